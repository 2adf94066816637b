"""Energy: what the answers took of electrical energy, by the GPUs' own counters or their power samples."""

from typing import TYPE_CHECKING, Annotated

from llm_locust.figures.figure import Run
from llm_locust.figures.goodput import Goodput
from llm_locust.figures.section import Line, Section, Tone
from llm_locust.figures.server_metrics import gpu_of
from llm_locust.figures.text import clean, number, plural, sentence
from llm_locust.figures.throughput import Throughput
from llm_locust.metrics.server_series import ServerSeries
from llm_locust.metrics.structs import SummaryPart, key

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary

_WINDOW = "the window"


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


# --- What the answers took of electrical energy, where the GPUs' own counters or their power were scraped


#: The share of the window that a GPU's samples have to span for its energy to be that of the window.
LEAST_COVERED = 0.9


def compute(run: Run) -> Energy | str | None:
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


def show(summary: "Summary") -> Section | None:
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
