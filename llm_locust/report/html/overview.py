"""The first screen: the result, its cause, and the numbers that decide."""

from collections.abc import Iterator
from dataclasses import dataclass

from llm_locust.core.texts import UNDEFINED
from llm_locust.figures import client, goodput
from llm_locust.figures.arms import show as arms
from llm_locust.figures.compare.comparison import Verdict
from llm_locust.figures.completeness import show as completeness
from llm_locust.figures.counts import RequestCounts
from llm_locust.figures.search import show as search
from llm_locust.figures.section import Tone
from llm_locust.figures.summary import Summary
from llm_locust.figures.text import (
    MARK,
    MARK_MEANING,
    count,
    estimate,
    is_cut,
    number,
    percent,
    plural,
    sentence,
)
from llm_locust.metrics.catalogue import LATENCY, View, from_scheduled, shown_in
from llm_locust.metrics.structs import LatencyTable
from llm_locust.report.sections.findings import RunFinding
from llm_locust.report.sections.headline import Headline, asked

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
    """A percentile with its 95 % interval as text. Without one it is marked, and ``interval`` is empty."""

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


def tiles(summary: Summary, found: Headline) -> list[Tile]:
    """Result, cause, the figure that was asked for, and whether the client can be trusted."""
    if summary.is_empty:
        return [_result(found), _client(summary)]
    return [_result(found), _cause(found, summary), _figure_asked(summary), _client(summary)]


def _result(found: Headline) -> Tile:
    parts = found.parts[:_MOST_LINES]
    more = len(found.parts) - len(parts)
    code = "" if found.code is None else f"exit code {found.code}"
    lines = (*parts, f"and {count(more)} more" if more > 0 else "", code)
    return Tile("Result", found.word, tuple(line for line in lines if line), found.tone)


def _cause(found: Headline, summary: Summary) -> Tile:
    """The worst finding, and how many others there are."""
    first = next((each for each in found.findings if _is_told(each, found)), None)
    if first is None:
        told = "Nothing speaks against this result." if found.is_good else "No single cause was found."
        if found.is_good and summary.client.verdict == "suspect":
            told = "Nothing of the server; the client is suspect."
        return Tile("Cause", "none", (told,), Tone.FAINT)
    others = sum(each.box is not None and each is not first for each in found.findings)
    # What an invalid client did is in its own tile: here is why, and what to do.
    text = (first.text.partition(". ")[2] if first.key == "client" else "") or first.text
    lines = (text, f"{plural(others, 'further finding')} below" if others else "")
    label = "Reservation" if found.is_good else "Cause"
    return Tile(label, first.title, tuple(line for line in lines if line), first.tone)


def _is_told(each: RunFinding, found: Headline) -> bool:
    """Whether a finding is the cause, which the result may name itself."""
    return each.text == found.cause or (
        not found.cause and each.box is not None and each.text in found.result
    )


def _figure_asked(summary: Summary) -> Tile:
    """Of a search its edge, of a sweep how many loads have a result, of arms how they differ; else the
    goodput, or the rate of a run without an SLO."""
    if summary.search is not None:
        return _edge(summary)
    if summary.is_sweep:
        return _stages(summary)
    if summary.is_of_parts:
        return _arms(summary)
    return _rate(summary) if summary.goodput.ratio is None else _goodput(summary)


def _edge(summary: Summary) -> Tile:
    edge, _, bound = asked(summary).partition(", ")
    lines = [section.lines for section in search(summary)][:1]
    texts = tuple(line.text for found in lines for line in found[1:_MOST_LINES])
    return Tile("Search", edge or "no answer", tuple(text for text in (bound, *texts) if text))


def _rate(summary: Summary) -> Tile:
    part = summary.throughput
    rate = f"{number(part.requests_per_s)} requests/s"
    if summary.is_without_output:
        return Tile("Throughput", rate, (f"{number(part.inputs_per_s)} inputs/s",))
    return Tile("Throughput", f"{number(part.output_tokens_per_s)} tokens/s", (rate, "no SLO was given"))


def _client(summary: Summary) -> Tile:
    """Whether the client can be trusted, and whether all of its records are here."""
    value, tone = _VERDICTS[summary.client.verdict]
    reasons, records = client.show(summary).lines, completeness(summary)
    first = reasons[1 if summary.client.verdict == "invalid" else 0].text.partition(". ")[0]
    return Tile("Client", value, (first, records.lines[0].text), Tone.BAD if records.alarm else tone)


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
        goodput.by_time(summary),
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


def slo_line(summary: Summary, measured_from: str) -> str:
    """The limits, each with the share that held it; empty in a sweep, and of several arms."""
    if summary.is_of_parts:
        return ""
    if summary.is_empty:
        return ""
    table = goodput.show(summary).table
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
        if (summary.is_open_loop or not metric.is_from_scheduled) and part[metric.key].known.n
    ]


def _figure(stats: LatencyTable, place: str, *, cut: bool) -> Figure:
    ends = None if stats.figure(place) is None else stats.intervals().get(place)
    interval = "" if ends is None else f"{_end(ends[0])} .. {_end(ends[1])}"
    return Figure(estimate(stats, place, cut=cut), interval)


def meaning(found: list[Latency]) -> list[str]:
    """What small figures and the mark of a percentile without an interval mean, where there are some."""
    figures = [figure for each in found for figure in each.figures]
    return [
        *(
            ["Small figures: 95 % interval of the percentile"]
            if any(each.interval for each in figures)
            else []
        ),
        *([MARK_MEANING] if any(each.value.startswith(MARK) for each in figures) else []),
    ]


def _end(value: float | None) -> str:
    return "∞" if value is None else number(value)


def facts(summary: Summary) -> list[Fact]:
    """Rates, concurrency, requests and errors; of a sweep and of arms no rates."""
    if summary.is_empty:
        return []
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
