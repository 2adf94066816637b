"""What the answers cost: GPUs by the hour, or tokens by the million; and what one GPU gave."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from llm_locust.metrics.deployment.server_metrics import gpu_of
from llm_locust.metrics.deployment.server_series import ServerSeries

_HOUR_S = 3600.0
_MILLION = 1e6

_SHARED = "only some of the requests are looked at, and what GPUs cost cannot be shared out"


class PriceError(ValueError):
    """A price or a number of GPUs that is none; one line that says what to write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What is paid, in any one currency. None is what is not known.

    ``gpu_hour_cost`` is of one GPU for an hour, ``gpus`` how many the deployment under test has;
    ``input_token_price`` and ``output_token_price`` are of a million tokens.

    Raises:
        PriceError: a price below 0, no GPU, or a number that is not finite.
    """

    gpu_hour_cost: float | None = None
    gpus: float | None = None
    input_token_price: float | None = None
    output_token_price: float | None = None

    def __post_init__(self) -> None:
        for name in _NAMES:
            value = getattr(self, name)
            if value is None:
                continue
            if not math.isfinite(value) or value < 0:
                raise PriceError(f"{name} is {value:g}: write a number of 0 or more")
            if name == "gpus" and not value:
                raise PriceError("gpus is 0: write how many GPUs the deployment has")

    @classmethod
    def of_options(cls, options: Mapping[str, Any]) -> "Prices":
        """Those of a run's options; each is a number, or a text of one.

        Raises:
            PriceError: see the class.
        """
        return cls(**{name: _number(name, options.get(name)) for name in _NAMES})

    def or_else(self, other: "Prices") -> "Prices":
        """These, and where one is not known the other's."""
        mine = {name: getattr(self, name) for name in _NAMES}
        return Prices(**{name: getattr(other, name) if v is None else v for name, v in mine.items()})

    def __bool__(self) -> bool:
        return any(getattr(self, name) is not None for name in _NAMES)


_NAMES = tuple(field.name for field in fields(Prices))


def _number(name: str, value: Any) -> float | None:
    if value is None or value == "":
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        raise PriceError(f'{name} is "{value}": write a number, as 2.5') from None


def cost(
    prices: Prices, seconds: float, figures: Mapping[str, Any], *, of_selection: bool = False
) -> dict[str, Any]:
    """The ``cost`` of a summary; nothing at all where no price and no number of GPUs is given.

    The cost of the window is, by GPU, gpus × price of an hour × hours; by API, input tokens × their price +
    output tokens × theirs. Each figure is the whole cost / what came out in the window, so a figure by
    input tokens and one by output tokens do not add up: either carries all. Tokens, requests and good ones
    are those of the rates per second: rate × seconds. A session counts where it began in the window
    and neither failed nor was left.

    Args:
        seconds: of the window.
        figures: the parts of the summary; of these ``throughput``, ``goodput`` and ``sessions`` are read.
        of_selection: they are of some of the requests only: what GPUs cost cannot be shared out then.

    Returns:
        prices, hours, ``gpu`` and ``api`` with the same figures, ``per_gpu``, and ``missing``, which has for
        each figure that is None what it lacks.
    """
    if not prices:
        return {}
    throughput, goodput = figures["throughput"], figures["goodput"]
    bases = _bases(seconds, throughput, goodput, figures["sessions"])
    gpu, no_gpu = (None, {"gpu": _SHARED}) if of_selection else _gpu_cost(prices, seconds)
    api, no_api = _api_cost(
        prices, bases["per_million_input_tokens"].amount, bases["per_million_output_tokens"].amount
    )
    per_gpu = {
        "output_tokens_per_s": throughput["output_tokens_per_s"],
        "goodput_requests_per_s": goodput["requests_per_s"],
        "goodput_output_tokens_per_s": goodput["output_tokens_per_s"],
    }
    return {
        "prices": {name: getattr(prices, name) for name in _NAMES},
        "hours": seconds / _HOUR_S,
        "gpu": _figures(gpu, bases),
        "api": _figures(api, bases),
        "per_gpu": {key: None if of_selection else _over(rate, prices.gpus) for key, rate in per_gpu.items()},
        "missing": no_gpu | no_api | {key: base.lacks for key, base in bases.items() if base.lacks},
    }


@dataclass(frozen=True, slots=True)
class _Base:
    """What a cost is divided by: an ``amount``, None where it is ``unknown``; ``none`` says what an amount of
    0 means."""

    amount: float | None
    unknown: str
    none: str
    unit: float = 1.0

    @property
    def lacks(self) -> str:
        if self.amount is None:
            return self.unknown
        return "" if self.amount else self.none


def _bases(
    seconds: float, throughput: Mapping[str, Any], goodput: Mapping[str, Any], sessions: Mapping[str, Any]
) -> dict[str, _Base]:
    def count(rate: float | None) -> float | None:
        return None if rate is None else rate * seconds

    served = sessions["completed"] + sessions["cut"] if sessions else None
    no_slo = "" if goodput["slo"] or goodput["slo_by_class"] else "no SLO was given"
    requests, good = count(throughput["requests_per_s"]), count(goodput["requests_per_s"])
    inputs, outputs = (count(throughput[f"{kind}_tokens_per_s"]) for kind in ("input", "output"))
    good_outputs = count(goodput["output_tokens_per_s"])
    unknown = "output tokens are unknown"
    return {
        "per_request": _Base(requests, "the window is empty", "no request ended ok"),
        "per_good_request": _Base(good, no_slo or "the window is empty", "no request was good"),
        "per_million_input_tokens": _Base(
            inputs, "input tokens are unknown", "no prompt was processed", _MILLION
        ),
        "per_million_output_tokens": _Base(outputs, unknown, "no token arrived", _MILLION),
        "per_million_good_output_tokens": _Base(
            good_outputs, no_slo or unknown, "no request was good", _MILLION
        ),
        "per_session": _Base(
            served, "no request was a turn of a session", "every session failed or was abandoned"
        ),
    }


def _gpu_cost(prices: Prices, seconds: float) -> tuple[float | None, dict[str, str]]:
    """gpus × price of an hour × hours; and why not, where only one of the two is known."""
    lacking = [name for name in ("gpu_hour_cost", "gpus") if getattr(prices, name) is None]
    if prices.gpu_hour_cost is not None and prices.gpus is not None:
        return prices.gpus * prices.gpu_hour_cost * seconds / _HOUR_S, {}
    return None, {"gpu": _not_given(lacking)}


def _api_cost(
    prices: Prices, inputs: float | None, outputs: float | None
) -> tuple[float | None, dict[str, str]]:
    """Tokens × their price; and why not, where a price or a count is not known."""
    lacking = [n for n in ("input_token_price", "output_token_price") if getattr(prices, n) is None]
    if prices.input_token_price is None or prices.output_token_price is None:
        return None, {"api": _not_given(lacking)}
    if inputs is None or outputs is None:
        return None, {"api": "input or output tokens are unknown"}
    return (inputs * prices.input_token_price + outputs * prices.output_token_price) / _MILLION, {}


def _not_given(names: list[str]) -> str:
    return f"{' and '.join(names)} {'are' if len(names) > 1 else 'is'} not given"


def _figures(total: float | None, bases: Mapping[str, _Base]) -> dict[str, float | None]:
    return {"total": total, **{key: _over(total, base.amount, base.unit) for key, base in bases.items()}}


def _over(amount: float | None, by: float | None, unit: float = 1.0) -> float | None:
    return amount / by * unit if amount is not None and by else None


# --------------------
# What the answers took of electrical energy, where the GPUs' own counters or their power were scraped.
# --------------------


#: The share of the window that a GPU's samples have to span for its energy to be that of the window.
LEAST_COVERED = 0.9


def energy(series: ServerSeries, figures: Mapping[str, Any]) -> dict[str, Any]:
    """The ``energy`` of a summary.

    ``joules`` is of all GPUs over the window: of each its mean power while it was watched × the window, by
    its energy counter where it has one (``by_counter`` of ``gpus``), else by the mean of its power samples.
    Idle power is in it: it is what the deployment took, not what a token costs at the margin.

    - ``joules_per_output_token`` = joules / output tokens of the window; ``joules_per_token`` has input
      tokens in it, too.
    - ``per_watt``: rates per second / ``power_w``; of tokens that is tokens per joule.
    - ``per_gpu``: the same rates / ``gpus``.

    Args:
        figures: the parts of the summary; ``throughput`` and ``goodput`` are read.

    Returns:
        Nothing at all where no GPU tells energy or power; ``missing`` instead of figures where a GPU was
        observed for less than :data:`LEAST_COVERED` of the window.
    """
    powers, by_counter, uncovered = _powers(series)
    if not powers and not uncovered:
        return {}
    if uncovered:
        names = ", ".join(sorted(uncovered))
        return {"missing": f"observed for less than {100 * LEAST_COVERED:.0f} % of the window: {names}"}
    power_w, seconds = sum(powers.values()), series.seconds
    rates = {
        "output_tokens_per_s": figures["throughput"]["output_tokens_per_s"],
        "total_tokens_per_s": figures["throughput"]["total_tokens_per_s"],
        "requests_per_s": figures["throughput"]["requests_per_s"],
        "goodput_requests_per_s": figures["goodput"]["requests_per_s"],
        "goodput_output_tokens_per_s": figures["goodput"]["output_tokens_per_s"],
    }
    return {
        "gpus": len(powers),
        "by_counter": by_counter,
        "power_w": power_w,
        "joules": power_w * seconds,
        "joules_per_output_token": _energy_over(power_w, rates["output_tokens_per_s"]),
        "joules_per_token": _energy_over(power_w, rates["total_tokens_per_s"]),
        "joules_per_request": _energy_over(power_w, rates["requests_per_s"]),
        "joules_per_good_request": _energy_over(power_w, rates["goodput_requests_per_s"]),
        "per_watt": {key: _energy_over(rate, power_w) for key, rate in rates.items()},
        "per_gpu": {key: _energy_over(rate, len(powers)) for key, rate in rates.items()},
    }


def _powers(series: ServerSeries) -> tuple[dict[str, float], int, set[str]]:
    """The mean power of each GPU, how many are by a counter, and those that were watched too little."""
    powers: dict[str, float] = {}
    uncovered: set[str] = set()
    counted = 0
    for name in ("energy_j", "power_w"):
        for key, each in series.named(name).items():
            gpu = gpu_of(key)
            if gpu in powers:
                continue
            if each.covered_s < LEAST_COVERED * series.seconds:
                uncovered.add(gpu)
                continue
            mean = each.total / each.covered_s if name == "energy_j" else each.mean
            if mean is not None:
                powers[gpu] = mean
                counted += name == "energy_j"
    return powers, counted, uncovered - powers.keys()


def _energy_over(amount: float | None, by: float | None) -> float | None:
    return amount / by if amount is not None and by else None
