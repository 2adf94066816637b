"""The first screen: may the numbers be trusted, did the run hold, and the numbers that decide."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llm_locust.metrics.catalogue import LATENCY, from_scheduled, shown_in
from llm_locust.metrics.latency_metric import View
from llm_locust.metrics.summary_types.summary import typed
from llm_locust.report.section import Section, Tone
from llm_locust.report.sections import course, measures, verdicts
from llm_locust.report.sections.completeness import completeness
from llm_locust.report.text import UNDEFINED, count, number, percent, plural, sentence
from llm_locust.report.uncertainty import CUT_MARK, estimate, is_cut

Part = Mapping[str, Any]

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


def alarms(summary: Part) -> list[Section]:
    """What has no tile of its own, and has to be read before any number."""
    told = typed(summary)
    found = (course.standstill(told), course.stuck(told))
    return [section for section in found if section is not None]


def tiles(summary: Part) -> list[Tile]:
    """Gates, validity, completeness, goodput: in the order in which they can spoil a conclusion."""
    return [_gates(summary), _client(summary), _records(summary), _goodput(summary)]


def _gates(summary: Part) -> Tile:
    judged = summary.get("gates") or ()
    broken = [gate for gate in judged if not gate.get("passed")]
    if not judged:
        return Tile("Gates", "none", ("No gate was given: no number makes this run fail.",), Tone.FAINT)
    section = verdicts.gates(summary)
    rows = section.table.rows if section is not None and section.table is not None else ()
    lines = tuple(sentence(list(row.cells)) for row in rows[:4])
    if broken:
        return Tile(
            "Gates",
            "FAIL",
            (f"{count(len(broken))} of {plural(len(judged), 'gate')} failed", *lines),
            Tone.BAD,
        )
    return Tile("Gates", "pass", (f"{plural(len(judged), 'gate')} held", *lines), Tone.GOOD)


def _client(summary: Part) -> Tile:
    verdict = str((summary.get("client") or {}).get("verdict") or "unknown")
    value, tone = _VERDICTS.get(verdict, (verdict, Tone.WARN))
    return Tile("Measurement", value, _texts(verdicts.client(summary)), tone)


def _records(summary: Part) -> Tile:
    section = completeness(typed(summary))
    value, tone = ("INCOMPLETE", Tone.BAD) if section.alarm else ("complete", Tone.GOOD)
    return Tile("Records", value, _texts(section), tone)


def _goodput(summary: Part) -> Tile:
    part = summary.get("goodput") or {}
    if part.get("ratio") is None:
        return Tile("Goodput", UNDEFINED, ("No SLO was given: see goodput at any limit below.",), Tone.FAINT)
    on_time = part.get("on_time_ratio")
    lines = (
        sentence(
            [
                f"{number(part.get('requests_per_s'))} good requests/s",
                f"{number(part.get('output_tokens_per_s'))} output tokens/s of them",
            ]
        ),
        "" if on_time is None else f"{percent(on_time)} of tokens came on time",
    )
    return Tile("Goodput", percent(part.get("ratio")), tuple(line for line in lines if line))


def _texts(section: Section) -> tuple[str, ...]:
    """The first lines; a section that alarms stands below as a whole."""
    return tuple(line.text for line in section.lines[:_MOST_LINES])


def slo_line(summary: Part, measured_from: str) -> str:
    """The limits, each with the share that held it."""
    table = verdicts.goodput(summary).table
    held = (summary.get("goodput") or {}).get("attainment") or {}
    limits = (
        [f"{row.cells[0]}: held by {row.cells[1]}" for row in table.rows if row.cells[1]] if table else []
    )
    return sentence([*limits, f"counted from {measured_from}"]) if held else ""


def latencies(summary: Part, measured_from: str) -> list[Latency]:
    """The latencies of the first screen; those from scheduled too where requests had a schedule.

    The limit of a metric stands where the SLO counts it from.
    """
    part = summary.get("latency_ms") or {}
    good = summary.get("goodput") or {}
    slo = {} if good.get("slo_by_class") else good.get("slo") or {}
    cut = is_cut(summary.get("requests") or {})
    open_loop = measures.is_open_loop(summary)
    if measured_from == "scheduled":
        late = {metric: from_scheduled(LATENCY[metric]) for metric in slo}
        slo = {(found.key if (found := late[metric]) else metric): slo[metric] for metric in slo}
    return [
        Latency(
            metric.label,
            tuple(_figure(part.get(metric.key) or {}, place, cut=cut) for place, _ in PLACES),
            f"{slo[metric.key]:,g}" if metric.key in slo else "",
            count((part.get(metric.key) or {}).get("n")),
        )
        for metric in shown_in(View.OVERVIEW)
        if open_loop or not metric.is_from_scheduled
    ]


def _figure(stats: Part, place: str, *, cut: bool) -> Figure:
    if stats.get(place) is None:
        return Figure(estimate(stats, place, cut=cut), "")
    ends = (stats.get("ci95") or {}).get(place)
    interval = "too few samples" if ends is None else f"{_end(ends[0])} .. {_end(ends[1])}"
    return Figure(f"{number(stats[place])}{CUT_MARK if cut else ''}", interval)


def _end(value: float | None) -> str:
    return "∞" if value is None else number(value)


def facts(summary: Part) -> list[Fact]:
    """Rates, concurrency, requests and errors."""
    part, requests = summary.get("throughput") or {}, summary.get("requests") or {}
    failed = requests.get("failed")
    pace = (summary.get("tokens") or {}).get("user_tps") or {}
    return [
        Fact("Output", number(part.get("output_tokens_per_s")), "tokens/s"),
        Fact("Input", number(part.get("input_tokens_per_s")), "tokens/s"),
        Fact("Requests ended ok", number(part.get("requests_per_s")), "requests/s"),
        Fact("A user sees (median)", number(pace.get("p50")), "tokens/s"),
        Fact(
            "Concurrency",
            f"{number(part.get('concurrency_mean'))} mean, {count(part.get('concurrency_peak'))} peak",
        ),
        Fact("Requests", f"{count(requests.get('scheduled'))} scheduled, {count(requests.get('ok'))} ok"),
        Fact(
            "Errors",
            f"{count(failed)} ({percent(requests.get('error_rate'))})",
            tone=Tone.BAD if failed else Tone.PLAIN,
        ),
        *_missing(requests),
        *([Fact("Stream", "buffered on the way", tone=Tone.BAD)] if measures.is_buffered(summary) else []),
    ]


def _missing(requests: Part) -> Iterator[Fact]:
    if cut := requests.get("cut"):
        broken = requests.get("cut_broken")
        judged = "" if broken is None else f", {count(broken)} of them over a limit"
        tone = Tone.BAD if is_cut(requests) else Tone.PLAIN
        yield Fact(
            "Cut by the end", f"{count(cut)} ({percent(requests.get('cut_share'))}){judged}", tone=tone
        )
    for key, label, tone in (
        ("abandoned", "Users left", Tone.WARN),
        ("lost", "Lost", Tone.BAD),
        ("unsent", "Never sent", Tone.BAD),
        ("stuck", "Stuck from before the window", Tone.BAD),
    ):
        if requests.get(key):
            yield Fact(label, count(requests[key]), tone=tone)
