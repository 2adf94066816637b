"""The page: its chapters and tables, and its templates filled in, with everything that it needs inside."""

import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest
from llm_locust.figures import errors
from llm_locust.figures.charts import RunCharts, run_charts
from llm_locust.figures.charts.course import ServerCurves, axis_window, server_curves
from llm_locust.figures.charts.distributions import LEVELS, MOST_DRAWN
from llm_locust.figures.completeness import WorkerCompleteness
from llm_locust.figures.parts import LATENCY_COLUMNS
from llm_locust.figures.routing import ReplicaFigures
from llm_locust.figures.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.figures.summary import Summary
from llm_locust.figures.text import clean, count, cut_note, number, percent, seconds
from llm_locust.metrics.measured import Measured
from llm_locust.report.html import distributions, over_time, overview
from llm_locust.report.html.chart import Chart
from llm_locust.report.html.over_load import over_load
from llm_locust.report.html.shell import whole_page
from llm_locust.report.inputs import Scraped
from llm_locust.report.sections import contents
from llm_locust.report.sections.contents import heading
from llm_locust.report.sections.findings import boxes
from llm_locust.report.sections.headline import Headline, verdict

# --- Tables that only the page has: the workers and the configuration


_MOST_ROWS = 100

#: Those that a narrow table has too.
_LATENCIES = {key: column for key, column in LATENCY_COLUMNS.items() if not column.wide}


def workers(run: RunCharts, summary: Summary) -> Section | None:
    """What each worker measured, beside what it cost; None where there was one."""
    known = {w.id: w for w in summary.completeness.workers}
    if max(len(run.workers), len(known)) < 2:
        return None
    columns = (
        Column("Worker", left=True, verbatim=True, wraps=True),
        Column("requests"),
        Column("share"),
        Column("errors"),
        *_LATENCIES.values(),
        Column("tokens/s", over="output"),
        Column("goodput"),
        Column("p99 ms", over="hub lag"),
        Column("%", over="CPU"),
    )
    names = summary.completeness.names
    rows = [
        _worker_row(names.get(found.name, clean(found.name)), found, known.get(found.name))
        for found in run.workers
    ]
    return Section(
        "By worker",
        table=Table(columns, tuple(rows[:_MOST_ROWS])).without_empty(),
        notes=(
            Line(
                "The same server seen by each worker: a worker that differs is a client that differs.",
                Tone.FAINT,
            ),
            *_left_out(rows),
        ),
    )


def _worker_row(name: str, found: ReplicaFigures, known: WorkerCompleteness | None) -> TableRow:
    return TableRow(
        (
            name,
            count(found.requests),
            percent(found.share),
            percent(found.error_rate),
            *(number(found.figure(f"{key}_{place}_ms")) for key, place in _LATENCIES),
            number(found.output_tokens_per_s),
            percent(found.goodput_ratio),
            number(known.hub_lag_ms_p99) if known and known.hub_lag_ms_p99 is not None else "",
            number(known.cpu_percent_max) if known and known.cpu_percent_max is not None else "",
        )
    )


def configuration(manifest: Manifest) -> list[Section]:
    """All that the manifest knows of how the run was made; it holds no secrets."""
    facts: dict[str, object] = {
        "id": manifest.id,
        "host": manifest.host,
        "model": manifest.model,
        "scenario": manifest.scenario,
        "seed": manifest.seed,
        "loop": "open" if manifest.open_loop else "closed",
        "slo": manifest.slo,
        "gates": manifest.gates,
        "warm-up": f"{manifest.warmup_s:g} s",
        "workers": f"{len(manifest.workers)} of {manifest.workers_expected} expected",
        "command": shlex.join(manifest.command),
    }
    return [
        _settings("Run", facts),
        _settings("Options", manifest.options),
        _settings("Versions", manifest.versions),
    ]


def _settings(title: str, settings: Mapping[str, object]) -> Section:
    rows = tuple(
        TableRow((clean(key), _setting(value))) for key, value in settings.items() if value not in (None, "")
    )
    columns = (Column("Setting", left=True), Column("Value", left=True, verbatim=True, wraps=True))
    return Section(title, table=Table(columns, rows))


def _setting(value: object) -> str:
    return clean(value if isinstance(value, str) else msgspec.json.encode(value).decode())


def _left_out(rows: Sequence[object]) -> Iterator[Line]:
    if len(rows) > _MOST_ROWS:
        yield Line(f"{count(len(rows) - _MOST_ROWS)} more are not shown", Tone.FAINT)


# --- What stands on the page after the first screen, and in which order


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
    by_group = [*placed["groups"], workers(run, summary)]
    found = [
        _chapter("verdict", "Verdict", parts=placed["verdict"]),
        _chapter("stages", "Stages", over_load(summary, manifest.options), placed["stages"]),
        _chapter("arms", "Arms", parts=placed["arms"]),
        _chapter("over-time", "Over the run", course, lead=_OVER_TIME_LEAD),
        *([] if summary.is_of_parts else _of_one_load(run, slo_ms, placed)),
        _chapter("groups", "By group", over_time.in_flight(run, summary), by_group),
        _chapter("servers", "Servers", over_time.servers(run, curves), placed["servers"], lead=_SERVERS_LEAD),
        _chapter("slowest", "Slowest requests", distributions.timeline(run), [distributions.table(run)]),
        _chapter("errors", "Errors", parts=[errors.show(summary, examples=True)]),
        _chapter("quality", "Quality", parts=placed["quality"]),
        _chapter("sessions", "Sessions", parts=placed["sessions"]),
        _chapter("cost", "Cost and energy", parts=placed["cost"]),
        _chapter("further", "Further figures", parts=placed["further"]),
        Chapter("definitions", "Definitions", formulas=True),
        _chapter("configuration", "Configuration", parts=configuration(manifest)),
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
        _chapter("limits", "Goodput at any limit", distributions.limits(run), lead=_LIMITS_LEAD),
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


# --- The page: templates filled in, everything that it needs inside


def html_report(
    requests: Requests,
    manifest: Manifest,
    summary: Summary,
    measured: Measured,
    scraped: Scraped | None = None,
    found: Headline | None = None,
) -> bytes:
    """The whole report as one HTML page that loads nothing, in UTF-8.

    Args:
        summary: what was made of the same requests.
        measured: what :func:`~llm_locust.metrics.measured.measure` gave for them, with the same limits and
            window.
        scraped: what its servers said of themselves, where they were asked.
        found: the verdict, if the caller knows more than the summary says.
    """
    found = found or verdict(summary)
    counted = summary.requests
    missing = (counted.lost or 0) + (counted.unsent or 0) + counted.stuck
    run = run_charts(requests, manifest, measured, missing)
    contents = chapters(run, manifest, summary, _curves(run, measured, scraped))
    charts = [chart for chapter in contents for chart in chapter.charts]
    latencies = overview.latencies(summary, run.measured_from)
    return whole_page(
        "page.html.j2",
        {"run": clean(manifest.id), "charts": [chart.payload() for chart in charts]},
        drawn=bool(charts),
        head=heading(summary),
        alarms=boxes(found.findings),
        tiles=overview.tiles(summary, found),
        slo_line=overview.slo_line(summary, run.measured_from),
        latencies=latencies,
        latency_notes=overview.meaning(latencies),
        places=[head for _, head in overview.PLACES],
        facts=overview.facts(summary),
        cut_note=cut_note(counted.cut_share),
        chapters=contents,
        made_of=_made_of(run, contents),
        version=clean(manifest.versions.get("llm-locust", "")),
    )


def _curves(run: RunCharts, m: Measured, scraped: Scraped | None) -> ServerCurves | None:
    if scraped is None:
        return None
    series = scraped.series(axis_window(run.axis, m.c), run.axis.bins)
    return server_curves(series, run.axis, m.c)


def _made_of(run: RunCharts, contents: Sequence[Chapter]) -> str:
    """What of the records is on the page, in words."""
    text = (
        f"Made of {count(run.requests)} records. Tables and percentiles are of all requests in the window. "
        f"Charts over time are of the whole run, in {count(run.axis.bins)} spans of "
        f"{seconds(run.axis.width_s)}; distributions are drawn at {len(LEVELS)} levels; scatter plots show a "
        f"random sample of at most {count(MOST_DRAWN)} requests, the same each time."
    )
    if run.itl_relative_error:
        text += f" ITL percentiles were counted in bins, within {100 * run.itl_relative_error:.2f} %."
    return text
