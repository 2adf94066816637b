"""Cost and energy: what the answers cost, by GPU hours, token prices and joules, and what one GPU gave."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

from llm_locust.figures import sessions
from llm_locust.figures.figure import Run
from llm_locust.figures.goodput import Goodput
from llm_locust.figures.server_metrics import gpu_of
from llm_locust.figures.sessions import Sessions
from llm_locust.figures.text import (
    Column,
    Line,
    Section,
    Table,
    TableRow,
    Tone,
    clean,
    number,
    plural,
    seconds,
    sentence,
)
from llm_locust.metrics.question import Prices
from llm_locust.metrics.requests.rates import Throughput
from llm_locust.metrics.server_series import ServerSeries
from llm_locust.metrics.structs import SummaryPart, key

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary


_WINDOW = "the window"
_COST = key("see [cost](definitions.md#cost)", _WINDOW)


class GivenPrices(SummaryPart, frozen=True):
    """The prices that were given."""

    gpu_hour_cost: Annotated[float | None, key("the prices given")]
    gpus: Annotated[float | None, key("the prices given")]
    input_token_price: Annotated[float | None, key("the prices given")]
    output_token_price: Annotated[float | None, key("the prices given")]


class CostFigures(SummaryPart, frozen=True):
    """The whole cost over what came out."""

    total: Annotated[float | None, _COST]
    per_request: Annotated[float | None, _COST]
    per_good_request: Annotated[float | None, _COST]
    per_million_input_tokens: Annotated[float | None, _COST]
    per_million_output_tokens: Annotated[float | None, _COST]
    per_million_good_output_tokens: Annotated[float | None, _COST]
    per_session: Annotated[float | None, _COST]


class RatesPerGpu(SummaryPart, frozen=True):
    """What one GPU gave."""

    output_tokens_per_s: Annotated[float | None, key("rate / GPUs", _WINDOW)]
    goodput_requests_per_s: Annotated[float | None, key("rate / GPUs", _WINDOW)]
    goodput_output_tokens_per_s: Annotated[float | None, key("rate / GPUs", _WINDOW)]


class Cost(SummaryPart, frozen=True):
    """What the answers cost, by GPU hours and by token prices."""

    prices: GivenPrices
    hours: Annotated[float, key("window in hours")]
    gpu: CostFigures
    api: CostFigures
    per_gpu: RatesPerGpu
    missing: Annotated[dict[str, str], key("why a figure above is null")]


_HOUR_S = 3600.0
_MILLION = 1e6

_SHARED = "only some of the requests are looked at, and what GPUs cost cannot be shared out"


def compute(run: Run) -> Cost | None:
    prices, served = run.question.prices_of(run.manifest), run.figure(sessions.compute)
    rates = run.whole.throughput, run.whole.goodput
    return cost(prices, run.m.window.seconds, *rates, served, of_selection=run.of_selection)


def cost(
    prices: Prices,
    seconds: float,
    throughput: Throughput,
    goodput: Goodput,
    served: Sessions | None,
    *,
    of_selection: bool = False,
) -> Cost | None:
    """None where no price and no number of GPUs is given.

    The cost of the window is, by GPU, gpus × price of an hour × hours; by API, input tokens × their price +
    output tokens × theirs. Each figure is the whole cost / what came out in the window, so a figure by
    input tokens and one by output tokens do not add up: either carries all. Tokens, requests and good ones
    are those of the rates per second: rate × seconds. A session counts where it began in the window
    and neither failed nor was left.

    Args:
        seconds: of the window.
        of_selection: figures are of some of the requests only: what GPUs cost cannot be shared out then.

    Returns:
        prices, hours, ``gpu`` and ``api`` with the same figures, ``per_gpu``, and ``missing``, which has for
        each figure that is None what it lacks.
    """
    if not prices:
        return None
    bases = _bases(seconds, throughput, goodput, served)
    gpu, no_gpu = (None, {"gpu": _SHARED}) if of_selection else _gpu_cost(prices, seconds)
    api, no_api = _api_cost(
        prices, bases["per_million_input_tokens"].amount, bases["per_million_output_tokens"].amount
    )
    per_gpu = {
        "output_tokens_per_s": throughput.output_tokens_per_s,
        "goodput_requests_per_s": goodput.requests_per_s,
        "goodput_output_tokens_per_s": goodput.output_tokens_per_s,
    }
    return Cost(
        prices=GivenPrices(**asdict(prices)),
        hours=seconds / _HOUR_S,
        gpu=_over_bases(gpu, bases),
        api=_over_bases(api, bases),
        per_gpu=RatesPerGpu(
            **{name: None if of_selection else _over(rate, prices.gpus) for name, rate in per_gpu.items()}
        ),
        missing=no_gpu | no_api | {key: base.lacks for key, base in bases.items() if base.lacks},
    )


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
    seconds: float, throughput: Throughput, goodput: Goodput, ended: Sessions | None
) -> dict[str, _Base]:
    def count(rate: float | None) -> float | None:
        return None if rate is None else rate * seconds

    served = None if ended is None else float(ended.completed + ended.cut)
    no_slo = "" if goodput.slo or goodput.slo_by_class else "no SLO was given"
    requests, good = count(throughput.requests_per_s), count(goodput.requests_per_s)
    inputs, outputs = count(throughput.input_tokens_per_s), count(throughput.output_tokens_per_s)
    good_outputs = count(goodput.output_tokens_per_s)
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


def _over_bases(total: float | None, bases: Mapping[str, _Base]) -> CostFigures:
    return CostFigures(
        total=total, **{name: _over(total, base.amount, base.unit) for name, base in bases.items()}
    )


def _over(amount: float | None, by: float | None, unit: float = 1.0) -> float | None:
    return amount / by * unit if amount is not None and by else None


# --- What the answers cost, and what one GPU gave, where a price or a number of GPUs is known


#: Key of summary.json, what it is per, and how many of them: a price of one request has few digits.
_FIGURES = (
    ("total", "the window", 1),
    ("per_request", "1,000 requests", 1000),
    ("per_good_request", "1,000 good requests", 1000),
    ("per_million_input_tokens", "1M input tokens", 1),
    ("per_million_output_tokens", "1M output tokens", 1),
    ("per_million_good_output_tokens", "1M good output tokens", 1),
    ("per_session", "a session", 1),
)
_BASES = (
    ("gpu", "by GPU", ("gpu_hour_cost", "gpus")),
    ("api", "by API", ("input_token_price", "output_token_price")),
)

#: What is missing is worth a line where somebody may have expected the figure.
_EXPECTED = {"per_good_request": "no cost of good requests"}


def show(summary: "Summary") -> Section | None:
    """The whole cost over what came out, by GPU hours and by token prices; None where neither is given."""
    part = summary.cost
    if part is None:
        return None
    prices = part.prices
    bases = [
        (key, head) for key, head, names in _BASES if any(prices.figure(name) is not None for name in names)
    ]
    of_basis = {"gpu": part.gpu, "api": part.api}
    figures = [(key, head) for key, head in bases if of_basis[key].total is not None]
    columns = (Column("For", left=True), *(Column(head) for _, head in figures))
    rows = tuple(_cost_rows([of_basis[key] for key, _ in figures]))
    return Section(
        "Cost",
        tuple(_lines(summary, part, prices)),
        Table(columns, rows) if rows else None,
        tuple(_missing_remarks(part.missing, [key for key, _ in bases], bool(figures))),
    )


def _lines(summary: "Summary", part: Cost, prices: GivenPrices) -> Iterator[Line]:
    gpus = plural(prices.gpus, "GPU") if prices.gpus is not None else ""
    if gpus and prices.gpu_hour_cost is not None:
        window = seconds(summary.window.seconds)
        yield Line(f"{gpus} at {number(prices.gpu_hour_cost)} per hour, over the {window} of the window")
    inputs, outputs = prices.input_token_price, prices.output_token_price
    if inputs is not None and outputs is not None:
        yield Line(f"API: {number(inputs)} for 1M input tokens · {number(outputs)} for 1M output tokens")
    per_gpu = part.per_gpu
    given = [
        f"{number(per_gpu.figure(key))} {unit}"
        for key, unit in (
            ("goodput_requests_per_s", "good requests/s"),
            ("goodput_output_tokens_per_s", "good output tokens/s"),
            ("output_tokens_per_s", "output tokens/s"),
        )
        if per_gpu.figure(key) is not None
    ]
    if given:
        yield Line(f"each of {gpus}: {sentence(given)}")


def _cost_rows(bases: list[CostFigures]) -> Iterator[TableRow]:
    for which, label, times in _FIGURES:
        values = [base.figure(which) for base in bases]
        if any(value is not None for value in values):
            yield TableRow((label, *(number(None if value is None else times * value) for value in values)))


def _missing_remarks(missing: Mapping[str, str], bases: list[str], has_figures: bool) -> Iterator[Line]:
    for base in bases:
        if base in missing:
            yield Line(f"no cost by {base.upper()}: {missing[base]}", Tone.WARN)
    for which, what in _EXPECTED.items():
        if has_figures and which in missing:
            yield Line(f"{what}: {missing[which]}", Tone.FAINT)


# --- Energy: what the GPUs drew, and what came out for it


class EnergyRates(SummaryPart, frozen=True):
    """Rates by power or by GPU."""

    output_tokens_per_s: Annotated[float | None, key("rate / power, rate / GPUs", _WINDOW)]
    total_tokens_per_s: Annotated[float | None, key("rate / power, rate / GPUs", _WINDOW)]
    requests_per_s: Annotated[float | None, key("rate / power, rate / GPUs", _WINDOW)]
    goodput_requests_per_s: Annotated[float | None, key("rate / power, rate / GPUs", _WINDOW)]
    goodput_output_tokens_per_s: Annotated[float | None, key("rate / power, rate / GPUs", _WINDOW)]


class Energy(SummaryPart, frozen=True):
    """What the answers took of electrical energy."""

    gpus: Annotated[int, key("GPUs watched", _WINDOW)]
    by_counter: Annotated[int, key("of these by an energy counter", _WINDOW)]
    power_w: Annotated[float, key("mean power, W", _WINDOW)]
    joules: Annotated[float, key("energy, J", _WINDOW)]
    joules_per_output_token: Annotated[float | None, key("power / rate of the window", _WINDOW)]
    joules_per_token: Annotated[float | None, key("power / rate of the window", _WINDOW)]
    joules_per_request: Annotated[float | None, key("power / rate of the window", _WINDOW)]
    joules_per_good_request: Annotated[float | None, key("power / rate of the window", _WINDOW)]
    per_watt: EnergyRates
    per_gpu: EnergyRates


#: The share of the window that a GPU's samples have to span for its energy to be that of the window.
LEAST_COVERED = 0.9


def compute_energy(run: Run) -> Energy | str | None:
    return energy(run.server, run.whole.throughput, run.whole.goodput) if run.server else None


def energy(series: ServerSeries, throughput: Throughput, goodput: Goodput) -> Energy | str | None:
    """What the answers took.

    ``joules`` is of all GPUs over the window: of each its mean power while it was watched × the window, by
    its energy counter where it has one (``by_counter`` of ``gpus``), else by the mean of its power samples.
    Idle power is in it: it is what the deployment took, not what a token costs at the margin.

    - ``joules_per_output_token`` = joules / output tokens of the window; ``joules_per_token`` has input
      tokens in it, too.
    - ``per_watt``: rates per second / ``power_w``; of tokens that is tokens per joule.
    - ``per_gpu``: the same rates / ``gpus``.

    Returns:
        None where no GPU tells energy or power; why not where a GPU was observed for less than
        :data:`LEAST_COVERED` of the window.
    """
    powers, by_counter, uncovered = _powers(series)
    if not powers and not uncovered:
        return None
    if uncovered:
        names = ", ".join(sorted(uncovered))
        return f"observed for less than {100 * LEAST_COVERED:.0f} % of the window: {names}"
    power_w, seconds = sum(powers.values()), series.seconds
    rates = {
        "output_tokens_per_s": throughput.output_tokens_per_s,
        "total_tokens_per_s": throughput.total_tokens_per_s,
        "requests_per_s": throughput.requests_per_s,
        "goodput_requests_per_s": goodput.requests_per_s,
        "goodput_output_tokens_per_s": goodput.output_tokens_per_s,
    }
    return Energy(
        gpus=len(powers),
        by_counter=by_counter,
        power_w=power_w,
        joules=power_w * seconds,
        joules_per_output_token=_energy_over(power_w, rates["output_tokens_per_s"]),
        joules_per_token=_energy_over(power_w, rates["total_tokens_per_s"]),
        joules_per_request=_energy_over(power_w, rates["requests_per_s"]),
        joules_per_good_request=_energy_over(power_w, rates["goodput_requests_per_s"]),
        per_watt=EnergyRates(**{name: _energy_over(rate, power_w) for name, rate in rates.items()}),
        per_gpu=EnergyRates(**{name: _energy_over(rate, len(powers)) for name, rate in rates.items()}),
    )


def _powers(series: ServerSeries) -> tuple[dict[str, float], int, set[str]]:
    """The mean power of each GPU, how many are by a counter, and those that were watched too little."""
    powers: dict[str, float] = {}
    uncovered: set[str] = set()
    counted = 0
    for name in ("energy_j", "power_w"):
        for which, each in series.named(name).items():
            gpu = gpu_of(which)
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


def show_energy(summary: "Summary") -> Section | None:
    """Energy by token and by request, and what a watt and a GPU gave; None where no GPU was watched."""
    part = summary.energy
    if part is None:
        return None
    if isinstance(part, str):
        return Section("Energy", (Line(f"no figures: {clean(part)}", Tone.WARN, verbatim=True),))
    watt, gpu = part.per_watt, part.per_gpu
    by = "by their energy counters" if part.by_counter == part.gpus else "by power samples"
    lines = (
        f"{plural(part.gpus, 'GPU')}: {number(part.power_w)} W, {number(part.joules)} J in the window, {by}",
        sentence(
            [
                _figure(part.joules_per_output_token, "J per output token"),
                _figure(part.joules_per_request, "J per request"),
                _figure(part.joules_per_good_request, "J per good request"),
            ]
        ),
        sentence(
            [
                _figure(watt.output_tokens_per_s, "output tokens/s per watt"),
                _figure(watt.goodput_requests_per_s, "good requests/s per watt"),
                _figure(gpu.output_tokens_per_s, "output tokens/s per GPU"),
                _figure(gpu.goodput_requests_per_s, "good requests/s per GPU"),
            ]
        ),
    )
    return Section("Energy", tuple(Line(line) for line in lines if line))


def _figure(value: float | None, unit: str) -> str:
    return "" if value is None else f"{number(value)} {unit}"
