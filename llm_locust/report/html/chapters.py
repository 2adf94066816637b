"""What stands on the page after the first screen, and in which order."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from llm_locust.core.manifest import Manifest
from llm_locust.metrics.charts import RunCharts
from llm_locust.metrics.charts.servers import ServerCurves
from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.report.html import (
    distributions,
    limits,
    over_time,
    replicas,
    servers,
    slowest,
    tables,
)
from llm_locust.report.html.chart import Chart
from llm_locust.report.html.over_load import over_load
from llm_locust.report.section import Section
from llm_locust.report.sections import contents, groups

_OVER_TIME_LEAD = "The whole run. Shaded parts are outside the window, and in no figure of this report."
_LIMITS_LEAD = (
    "The same run under other SLOs: the share of good requests at each limit, with failed and lost ones in "
    "the denominator."
)
_SERVERS_LEAD = (
    "The servers' own metrics, scraped during the run. Charts cover the whole run, on the same time axis as "
    "the client's; the table covers the window."
)

#: The order of the chapter of the verdict.
_VERDICT = ("gates", "goodput", "warmup", "reliability", "drift")


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
    run: RunCharts, manifest: Manifest, summary: Summary, curves: ServerCurves | None = None
) -> list[Chapter]:
    """Every chapter that has something to say.

    Args:
        curves: what the servers said of themselves, where they were asked.
    """
    slo_ms = {} if summary.goodput.slo_by_class else summary.goodput.slo
    placed = _placed(contents.sections(summary))
    course = [*over_time.latencies(run, slo_ms), *over_time.rates(run), *over_time.failures(run)]
    by_group = [*placed["groups"], tables.workers(run, summary)]
    found = [
        _chapter("verdict", "Verdict", parts=placed["verdict"]),
        _chapter("stages", "Stages", over_load(summary, manifest.options), placed["stages"]),
        _chapter("arms", "Arms", parts=placed["arms"]),
        _chapter("over-time", "Over the run", course, lead=_OVER_TIME_LEAD),
        *([] if summary.is_of_parts else _of_one_load(run, slo_ms, placed)),
        _chapter("groups", "By group", replicas.in_flight(run, summary), by_group),
        _chapter("servers", "Servers", servers.servers(run, curves), placed["servers"], lead=_SERVERS_LEAD),
        _chapter("slowest", "Slowest requests", slowest.timeline(run), [slowest.table(run)]),
        _chapter("errors", "Errors", parts=[groups.errors(summary, examples=True)]),
        _chapter("quality", "Quality", parts=placed["quality"]),
        _chapter("sessions", "Sessions", parts=placed["sessions"]),
        _chapter("cost", "Cost and energy", parts=placed["cost"]),
        _chapter("further", "Further figures", parts=placed["further"]),
        Chapter("definitions", "Definitions", formulas=True),
        _chapter("configuration", "Configuration", parts=tables.configuration(manifest)),
    ]
    return [chapter for chapter in found if chapter.charts or chapter.sections or chapter.formulas]


def _of_one_load(
    run: RunCharts, slo_ms: dict[str, float], placed: Mapping[str, list[Section]]
) -> list[Chapter]:
    """Chapters of figures over all requests, which in a sweep are of no load."""
    load = [*distributions.relations(run), *over_time.gaps(run)]
    return [
        _chapter("latency", "Latency", distributions.distributions(run, slo_ms), placed["latency"]),
        _chapter("load", "Length, load, pace", load, placed["load"]),
        _chapter("limits", "Goodput at any limit", limits.limits(run), lead=_LIMITS_LEAD),
    ]


def _chapter(
    id_: str, title: str, charts: Iterable[Chart] = (), parts: Iterable[Section | None] = (), lead: str = ""
) -> Chapter:
    return Chapter(id_, title, tuple(charts), tuple(part for part in parts if part is not None), lead)


def _placed(sections: Sequence[Section]) -> defaultdict[str, list[Section]]:
    """Chapter -> its sections; those of the first screen are on none."""
    placed = defaultdict(list)
    for section in sorted(sections, key=_rank):
        placed[section.chapter].append(section)
    return placed


def _rank(section: Section) -> int:
    return _VERDICT.index(section.key) if section.key in _VERDICT else len(_VERDICT)
