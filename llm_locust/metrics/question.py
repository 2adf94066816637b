"""What is asked of a run: one value that report, compare, rolling summaries and notebooks hand down."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from llm_locust.core.manifest import Manifest
from llm_locust.core.texts import parse_time
from llm_locust.metrics.answers import ByPrompt
from llm_locust.metrics.limits import EDGE, Gate, Slo, parse_gates, parse_slo
from llm_locust.metrics.stats.censoring import PERCENTILES
from llm_locust.metrics.window import Window
from llm_locust.roofline import Roof, roof_of_options

# --- Prices: what is paid for GPUs and tokens.


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


WINDOWS = ("run", "steady")

FromTo = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of a run beside what its manifest says. None: as the manifest has it.

    Its texts are read where they are used, as those of the manifest are. Each method raises the error of a
    text that cannot be read: SloError, GateError, PriceError, RooflineError.

    Attributes:
        slo, gates: texts such as ``ttft=500ms`` and ``goodput>=95%``; an empty one means none.
        warmup_s: left out at the start of the window.
        window: ``run``, ``steady``, seconds after the run's start (from, to), or one that is known.
        percentiles: of the latencies, key in the summary -> percent, beside the standard ones.
        by: dimensions that the figures are told by as well.
        where: a condition; the requests that do not meet it are left out.
        prices: for what answers cost; each that is None is the manifest's.
        quality_baseline: the answers of another run, for ``quality.baseline``.
        roof: options of :func:`~llm_locust.roofline.roof_of_options` instead of the manifest's.
    """

    slo: str | None = None
    gates: str | None = None
    warmup_s: float | None = None
    window: str | FromTo | Window | None = None
    percentiles: Mapping[str, float] | None = None
    by: tuple[str, ...] = ()
    where: str | None = None
    prices: Prices | None = None
    quality_baseline: ByPrompt | None = None
    roof: Mapping[str, Any] | None = None

    @property
    def is_plain(self) -> bool:
        """The report is the run's own: nothing else than its manifest says was asked for."""
        return self == PLAIN

    @property
    def places(self) -> dict[str, float]:
        """The percentiles of the latencies, ascending: key to percent."""
        return dict(sorted({**PERCENTILES, **(self.percentiles or {})}.items(), key=lambda place: place[1]))

    def slo_of(self, manifest: Manifest) -> Slo:
        return parse_slo(manifest.slo if self.slo is None else self.slo)

    def gates_of(self, manifest: Manifest) -> tuple[Gate, ...]:
        """Of some of the requests the run's own gates are without those on its search."""
        if self.gates is not None:
            return parse_gates(self.gates)
        gates = parse_gates(manifest.gates)
        return gates if self.where is None else tuple(gate for gate in gates if gate.metric != EDGE)

    def warmup_of(self, manifest: Manifest) -> float:
        """The warm-up in seconds (raises ValueError where it is negative)."""
        warmup_s = manifest.warmup_s if self.warmup_s is None else self.warmup_s
        if not 0 <= warmup_s < float("inf"):
            raise ValueError(f"the warm-up is {warmup_s!r} s; it must be 0 or more")
        return warmup_s

    def window_of(self, manifest: Manifest) -> str | FromTo | Window:
        """The window that is asked for (raises ValueError where the manifest's is none)."""
        if self.window is not None:
            return self.window
        told = manifest.options.get("window") or "run"
        return parse_window(str(told))

    def prices_of(self, manifest: Manifest) -> Prices:
        return (self.prices or Prices()).or_else(Prices.of_options(manifest.options))

    def roof_of(self, manifest: Manifest) -> Roof | None:
        """The model and its GPUs; None where neither is known.

        Raises:
            RooflineError: as :func:`~llm_locust.roofline.roof_of_options`.
        """
        if not self.roof and self.lacks_shape(manifest):
            return None
        return roof_of_options({**manifest.options, **(self.roof or {})})

    def lacks_shape(self, manifest: Manifest) -> bool:
        """Whether the manifest names a file in place of the model's shape, and no shape is given now. Such a
        file is never opened: the manifest may be a stranger's."""
        shape = manifest.options.get("model_shape")
        return bool(shape) and not isinstance(shape, dict) and "model_shape" not in (self.roof or {})


#: The run's own report.
PLAIN = Question()


def parse_window(text: str) -> str | FromTo:
    """``run``, ``steady``, or the seconds of ``30s-90s``, ``30s-`` and ``-90s``.

    Raises:
        ValueError: it is none of them.
    """
    if text in WINDOWS:
        return text
    start, dash, end = text.partition("-")
    if not dash or not (start.strip() or end.strip()):
        raise ValueError(f'unknown window "{text}": write {", ".join(WINDOWS)}, or a span such as 30s-90s')
    try:
        start_s = parse_time(start.strip()) if start.strip() else 0.0
        end_s = parse_time(end.strip()) if end.strip() else math.inf
    except ValueError as e:
        raise ValueError(f'window "{text}": {e}') from None
    if start_s >= end_s:
        raise ValueError(f'window "{text}": its end must be after its start')
    return start_s, end_s
