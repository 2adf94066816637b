"""The first screen: may the numbers be trusted, did the run hold, and the numbers that decide."""

from collections.abc import Iterator
from dataclasses import dataclass

from llm_locust.metrics.catalogue import LATENCY, from_scheduled, shown_in
from llm_locust.metrics.compare.comparison import Verdict
from llm_locust.metrics.latency_metric import View
from llm_locust.metrics.summary_types.base import LatencyTable
from llm_locust.metrics.summary_types.requests import RequestCounts
from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.report.section import Section, Tone
from llm_locust.report.sections import course, verdicts
from llm_locust.report.sections.completeness import completeness
from llm_locust.report.sections.parts.arms import arms
from llm_locust.report.text import UNDEFINED, count, number, percent, plural, sentence
from llm_locust.report.uncertainty import CUT_MARK, estimate, is_cut

PLACES = (("p50", "p50"), ("p95", "p95"), ("p99", "p99"))

_MOST_LINES = 3

_VERDICTS = {"ok": ("valid", Tone.GOOD), "suspect": ("suspect", Tone.WARN), "invalid": ("INVALID", Tone.BAD)}


@dataclass(frozen=True, slots=True)
class Tile:
    """One verdict: a word or a number that is seen first, and what it rests on."""

    label: str
    value: str
    lines: tuple[str, ...]
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Figure:
    """A percentile with its 95 % interval as text; ``interval`` says so where there is none."""

    value: str
    interval: str


@dataclass(frozen=True, slots=True)
class Latency:
    name: str
    figures: tuple[Figure, ...]
    limit: str
    n: str


@dataclass(frozen=True, slots=True)
class Fact:
    label: str
    value: str
    unit: str = ""
    tone: Tone = Tone.PLAIN


#: Sections that stand above the tiles, whole.
ON_TOP = ("standstill",)


def alarms(summary: Summary) -> list[Section]:
    """What has no tile of its own, and has to be read before any number."""
    found = (course.standstill(summary), course.stuck(summary))
    return [section for section in found if section is not None]


def tiles(summary: Summary) -> list[Tile]:
    """Gates, validity, completeness, goodput: in the order in which they can spoil a conclusion."""
    return [_gates(summary), _client(summary), _records(summary), _outcome(summary)]


def _outcome(summary: Summary) -> Tile:
    """The goodput; where the whole run has none, what there is in its place."""
    if summary.is_sweep:
        return _stages(summary)
    return _arms(summary) if summary.is_of_parts else _goodput(summary)


def _gates(summary: Summary) -> Tile:
    judged = summary.gates
    if not judged:
        return Tile("Gates", "none", ("No gate was given: no figure was limited.",), Tone.FAINT)
    section = verdicts.gates(summary)
    rows = section.table.rows if section is not None and section.table is not None else ()
    lines = tuple(sentence(list(row.cells)) for row in rows[:4])
    if section is not None and not all(gate.passed for gate in judged):
        (headline,) = section.lines
        value = "FAIL" if headline.tone is Tone.BAD else "UNKNOWN"
        return Tile("Gates", value, (headline.text, *lines), headline.tone)
    return Tile("Gates", "pass", (f"{plural(len(judged), 'gate')} held", *lines), Tone.GOOD)


def _client(summary: Summary) -> Tile:
    value, tone = _VERDICTS[summary.client.verdict]
    return Tile("Measurement", value, _texts(verdicts.client(summary)), tone)


def _records(summary: Summary) -> Tile:
    section = completeness(summary)
    value, tone = ("INCOMPLETE", Tone.BAD) if section.alarm else ("complete", Tone.GOOD)
    return Tile("Records", value, _texts(section), tone)


def _goodput(summary: Summary) -> Tile:
    part = summary.goodput
    if part.ratio is None:
        return Tile("Goodput", UNDEFINED, ("No SLO was given: see goodput at any limit below.",), Tone.FAINT)
    rates = [
        f"{number(part.requests_per_s)} good requests/s",
        "" if summary.is_without_output else f"{number(part.output_tokens_per_s)} output tokens/s of them",
    ]
    on_time = part.on_time_ratio
    lines = (
        sentence(rates),
        "" if on_time is None else f"{percent(on_time)} of tokens arrived on time",
    )
    return Tile("Goodput", percent(part.ratio), tuple(line for line in lines if line))


def _stages(summary: Summary) -> Tile:
    """How many loads have a result, in place of a goodput over all of them."""
    found = summary.stages or []
    results = sum(stage.is_result for stage in found)
    tone = Tone.GOOD if results == len(found) else Tone.WARN
    return Tile(
        "Stages", f"{count(results)} of {count(len(found))}", ("have a result: see the table below",), tone
    )


def _arms(summary: Summary) -> Tile:
    """What differs between the arms, in place of a goodput over all of them."""
    sections = [section for section in arms(summary) if section.key]
    rows = [row for arm in summary.arms or () if arm.against for row in arm.against.rows]
    if any(row.verdict in (Verdict.BETTER, Verdict.WORSE) for row in rows):
        value = "differ"
    else:
        value = "no difference" if rows else UNDEFINED
    lines = tuple(line.text for section in sections for line in section.lines[:_MOST_LINES])
    return Tile("Arms", value, lines)


def _texts(section: Section) -> tuple[str, ...]:
    """The first lines; a section that alarms stands below as a whole."""
    return tuple(line.text for line in section.lines[:_MOST_LINES])


def slo_line(summary: Summary, measured_from: str) -> str:
    """The limits, each with the share that held it; empty in a sweep, and of several arms."""
    if summary.is_of_parts:
        return ""
    table = verdicts.goodput(summary).table
    limits = (
        [f"{row.cells[0]}: held by {row.cells[1]}" for row in table.rows if row.cells[1]] if table else []
    )
    return sentence([*limits, f"counted from {measured_from}"]) if summary.goodput.attainment else ""


def latencies(summary: Summary, measured_from: str) -> list[Latency]:
    """The latencies of the first screen; those from scheduled too where requests had a schedule.

    The limit of a metric stands where the SLO counts it from. A sweep has none: its stages have. So do arms.
    """
    if summary.is_of_parts:
        return []
    part, slo = summary.latency_ms, {} if summary.goodput.slo_by_class else summary.goodput.slo
    cut = is_cut(summary.requests.cut_share)
    if measured_from == "scheduled":
        late = {metric: from_scheduled(LATENCY[metric]) for metric in slo}
        slo = {(found.key if (found := late[metric]) else metric): slo[metric] for metric in slo}
    return [
        Latency(
            metric.label,
            tuple(_figure(part[metric.key], place, cut=cut) for place, _ in PLACES),
            f"{slo[metric.key]:,g}" if metric.key in slo else "",
            count(part[metric.key].known.n),
        )
        for metric in shown_in(View.OVERVIEW)
        if (summary.is_open_loop or not metric.is_from_scheduled)
        and (part[metric.key].known.n or not summary.is_without_output)
    ]


def _figure(stats: LatencyTable, place: str, *, cut: bool) -> Figure:
    value, ends = stats.figure(place), stats.intervals().get(place)
    if value is None:
        return Figure(estimate(stats, place, cut=cut), "")
    interval = "too few samples" if ends is None else f"{_end(ends[0])} .. {_end(ends[1])}"
    return Figure(f"{number(value)}{CUT_MARK if cut else ''}", interval)


def _end(value: float | None) -> str:
    return "∞" if value is None else number(value)


def facts(summary: Summary) -> list[Fact]:
    """Rates, concurrency, requests and errors; of a sweep and of arms no rates."""
    requests = summary.requests
    errors = f"{count(requests.failed)} ({percent(requests.error_rate)})"
    return [
        *([] if summary.is_of_parts else _rates(summary)),
        Fact("Requests", f"{count(requests.scheduled)} scheduled, {count(requests.ok)} ok"),
        Fact("Errors", errors, tone=Tone.BAD if requests.failed else Tone.PLAIN),
        *_missing(requests),
        *([Fact("Stream", "buffered on the way", tone=Tone.BAD)] if summary.tokens.is_buffered else []),
    ]


def _rates(summary: Summary) -> list[Fact]:
    part, shown = summary.throughput, summary.images
    output = Fact("Output", number(part.output_tokens_per_s), "tokens/s")
    user = Fact("A user sees (median)", number(summary.tokens.user_tps.p50), "tokens/s")
    return [
        *([] if part.inputs_per_s is None else [Fact("Inputs", number(part.inputs_per_s), "inputs/s")]),
        *([] if shown is None else [Fact("Images", number(shown.images_per_s), "images/s")]),
        *([] if summary.is_without_output else [output]),
        Fact("Input", number(part.input_tokens_per_s), "tokens/s"),
        Fact("Requests ended ok", number(part.requests_per_s), "requests/s"),
        *([] if summary.is_without_output else [user]),
        Fact("Concurrency", f"{number(part.concurrency_mean)} mean, {count(part.concurrency_peak)} peak"),
    ]


def _missing(requests: RequestCounts) -> Iterator[Fact]:
    if requests.cut:
        broken = requests.cut_broken
        judged = "" if broken is None else f", {count(broken)} of them over a limit"
        tone = Tone.BAD if is_cut(requests.cut_share) else Tone.PLAIN
        text = f"{count(requests.cut)} ({percent(requests.cut_share)}){judged}"
        yield Fact("Cut by the end", text, tone=tone)
    for n, label, tone in (
        (requests.abandoned, "Users left", Tone.WARN),
        (requests.lost, "Lost", Tone.BAD),
        (requests.unsent, "Never sent", Tone.BAD),
        (requests.stuck, "Stuck from before the window", Tone.BAD),
    ):
        if n:
            yield Fact(label, count(n), tone=tone)
