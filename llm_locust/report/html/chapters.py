"""What stands on the page after the first screen, and in which order."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_locust.core.manifest import Manifest
from llm_locust.metrics.charts import RunCharts
from llm_locust.metrics.charts.servers import ServerCurves
from llm_locust.report.html import distributions, limits, over_time, replicas, servers, slowest, tables
from llm_locust.report.html.chart import Chart
from llm_locust.report.section import Section
from llm_locust.report.sections import contents

Part = Mapping[str, Any]

_OVER_TIME_LEAD = "The whole run. What is shaded is outside the window, and in no figure of this report."
_LIMITS_LEAD = (
    "What another SLO would have said of the same run: the share of good requests at each limit, failed and "
    "lost ones in the denominator."
)
_SERVERS_LEAD = (
    "What the servers said of themselves, scraped during the run. Charts are of the whole run, on the time "
    "axis of the client's; the table is of the window."
)

#: The chapter of each section that every report has; one that is not named here is a further figure.
_CHAPTERS = {
    "verdict": ("Gates", "Goodput", "Warm-up", "Reliability", "Drift"),
    "latency": ("Latency", "Intervals"),
    "load": ("Throughput", "Tokens"),
    "groups": ("Server calls", "Replicas", "Fairness", "Nodes"),
    "servers": ("Servers",),
    "cost": ("Cost", "Roofline", "Energy"),
    "quality": ("Quality",),
    "sessions": ("Sessions", "By turn"),
}

#: Said on the first screen, and below only where they alarm; errors have a longer table here.
_ELSEWHERE = ("Client", "Records", "Requests", "Errors")


#: Stand above the first screen's tiles, whole.
_ON_TOP = ("Standstill",)


@dataclass(frozen=True, slots=True)
class Chapter:
    """``charts`` stand before ``sections``. ``lead`` is a sentence on the whole of it."""

    id: str
    title: str
    charts: tuple[Chart, ...] = ()
    sections: tuple[Section, ...] = ()
    lead: str = ""
    formulas: bool = False


def chapters(
    run: RunCharts, manifest: Manifest, summary: Part, curves: ServerCurves | None = None
) -> list[Chapter]:
    """Every chapter that has something to say.

    Args:
        curves: what the servers said of themselves, where they were asked.
    """
    slo_ms = _limits_of_all(summary)
    placed = _placed(contents.sections(summary))
    course = [*over_time.latencies(run, slo_ms), *over_time.rates(run), *over_time.failures(run)]
    load = [*distributions.relations(run), *over_time.gaps(run)]
    groups = [*placed["groups"], tables.workers(run, summary)]
    found = [
        _chapter("verdict", "Verdict", parts=placed["verdict"]),
        _chapter("over-time", "Over the run", course, lead=_OVER_TIME_LEAD),
        _chapter("latency", "Latency", distributions.distributions(run, slo_ms), placed["latency"]),
        _chapter("load", "Length, load, pace", load, placed["load"]),
        _chapter("limits", "Goodput at any limit", limits.limits(run), lead=_LIMITS_LEAD),
        _chapter("groups", "By group", replicas.in_flight(run, summary), groups),
        _chapter("servers", "Servers", servers.servers(run, curves), placed["servers"], lead=_SERVERS_LEAD),
        _chapter("slowest", "Slowest requests", slowest.timeline(run), [slowest.table(run)]),
        _chapter("errors", "Errors", parts=[tables.errors(summary)]),
        _chapter("quality", "Quality", parts=placed["quality"]),
        _chapter("sessions", "Sessions", parts=placed["sessions"]),
        _chapter("cost", "Cost and energy", parts=placed["cost"]),
        _chapter("further", "Further figures", parts=placed["further"]),
        Chapter("definitions", "Definitions", sections=(tables.peers(run),), formulas=True),
        _chapter("configuration", "Configuration", parts=tables.configuration(manifest)),
    ]
    return [chapter for chapter in found if chapter.charts or chapter.sections]


def _limits_of_all(summary: Part) -> dict[str, float]:
    """Metric -> limit in milliseconds, where all requests have the same."""
    part = summary.get("goodput") or {}
    return {} if part.get("slo_by_class") else dict(part.get("slo") or {})


def _chapter(
    id_: str, title: str, charts: Iterable[Chart] = (), parts: Iterable[Section | None] = (), lead: str = ""
) -> Chapter:
    return Chapter(id_, title, tuple(charts), tuple(part for part in parts if part is not None), lead)


def _placed(sections: Sequence[Section]) -> dict[str, list[Section]]:
    """Chapter -> its sections, what alarms first."""
    placed: dict[str, list[Section]] = {chapter: [] for chapter in (*_CHAPTERS, "further")}
    for section in sections:
        if section.title in _ON_TOP:
            continue
        if section.alarm or section.title not in _ELSEWHERE:
            placed[_chapter_of(section)].append(section)
    return {chapter: sorted(found, key=_rank) for chapter, found in placed.items()}


def _rank(section: Section) -> int:
    order = _CHAPTERS["verdict"]
    return -1 if section.alarm else order.index(section.title) if section.title in order else len(order)


def _chapter_of(section: Section) -> str:
    if section.alarm:
        return "verdict"
    for chapter, titles in _CHAPTERS.items():
        if section.title in titles:
            return chapter
    return "groups" if section.title.startswith("By ") else "further"
