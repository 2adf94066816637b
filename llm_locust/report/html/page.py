"""The page: its chapters and tables, and its templates filled in, with everything that it needs inside."""

import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest
from llm_locust.core.texts import UNDEFINED
from llm_locust.figures import client, goodput, reliability
from llm_locust.figures.arms import show as arms
from llm_locust.figures.charts import LEVELS, MOST_DRAWN, RunCharts, run_charts
from llm_locust.figures.comparison import Verdict
from llm_locust.figures.completeness import WorkerCompleteness, show as completeness
from llm_locust.figures.counts import RequestCounts
from llm_locust.figures.course import ServerCurves, axis_window, server_curves
from llm_locust.figures.curve import knee_of
from llm_locust.figures.parts import LATENCY_COLUMNS
from llm_locust.figures.routing import ReplicaFigures
from llm_locust.figures.search import show as search
from llm_locust.figures.summary import Summary
from llm_locust.figures.text import (
    MARK,
    MARK_MEANING,
    Column,
    Line,
    Section,
    Table,
    TableRow,
    Tone,
    clean,
    count,
    cut_note,
    estimate,
    is_cut,
    number,
    percent,
    plural,
    seconds,
    sentence,
)
from llm_locust.metrics.catalogue import LATENCY, View, from_scheduled, shown_in
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.structs import LatencyTable
from llm_locust.report import contents
from llm_locust.report.contents import heading
from llm_locust.report.headline import Headline, RunFinding, boxes, edge_of, headline_of
from llm_locust.report.html import charts as plots, over_time
from llm_locust.report.html.shell import Chart, whole_page
from llm_locust.report.inputs import Scraped

# --- Tables that only the page has: the workers and the configuration


_MOST_ROWS = 100

#: Those that a narrow table has too.
_LATENCIES = {key: column for key, column in LATENCY_COLUMNS.items() if not column.wide}


def workers(run: RunCharts, summary: Summary) -> Section | None:
    """What each worker measured, beside what it cost; None where there was one."""
    workers = {w.id: w for w in summary.completeness.workers}
    if max(len(run.workers), len(workers)) < 2:
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
        _worker_row(names.get(found.name, clean(found.name)), found, workers.get(found.name))
        for found in run.workers
    ]
    notes = ["The same server seen by each worker: a worker that differs is a client that differs."]
    if len(rows) > _MOST_ROWS:
        notes.append(f"{count(len(rows) - _MOST_ROWS)} more are not shown")
    return Section(
        "By worker",
        table=Table(columns, tuple(rows[:_MOST_ROWS])).without_empty(),
        notes=tuple(Line(note, Tone.FAINT) for note in notes),
    )


def _worker_row(name: str, found: ReplicaFigures, worker: WorkerCompleteness | None) -> TableRow:
    return TableRow(
        (
            name,
            count(found.requests),
            percent(found.share),
            percent(found.error_rate),
            *(number(found.figure(f"{key}_{place}_ms")) for key, place in _LATENCIES),
            number(found.output_tokens_per_s),
            percent(found.goodput_ratio),
            number(worker.hub_lag_ms_p99) if worker and worker.hub_lag_ms_p99 is not None else "",
            number(worker.cpu_percent_max) if worker and worker.cpu_percent_max is not None else "",
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
    texts = {
        key: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for key, value in settings.items()
        if value not in (None, "")
    }
    rows = tuple(TableRow((clean(key), clean(text))) for key, text in texts.items())
    columns = (Column("Setting", left=True), Column("Value", left=True, verbatim=True, wraps=True))
    return Section(title, table=Table(columns, rows))


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
        _chapter("stages", "Stages", plots.over_load(summary, manifest.options), placed["stages"]),
        _chapter("arms", "Arms", parts=placed["arms"]),
        _chapter("over-time", "Over the run", course, lead=_OVER_TIME_LEAD),
        *([] if summary.is_of_parts else _of_one_load(run, slo_ms, placed)),
        _chapter("groups", "By group", over_time.in_flight(run, summary), by_group),
        _chapter("servers", "Servers", over_time.servers(run, curves), placed["servers"], lead=_SERVERS_LEAD),
        _chapter("slowest", "Slowest requests", plots.timeline(run), [plots.table(run)]),
        _chapter("errors", "Errors", parts=[reliability.show_errors(summary, examples=True)]),
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
    load = [*plots.relations(run), *over_time.gaps(run)]
    return [
        _chapter("latency", "Latency", plots.distributions(run, slo_ms), placed["latency"]),
        _chapter("load", "Length, load, pace", load, placed["load"]),
        _chapter("limits", "Goodput at any limit", plots.limits(run), lead=_LIMITS_LEAD),
    ]


def _chapter(
    id_: str, title: str, charts: Iterable[Chart] = (), parts: Iterable[Section | None] = (), lead: str = ""
) -> Chapter:
    return Chapter(id_, title, tuple(charts), tuple(part for part in parts if part is not None), lead)


def _placed(sections: Sequence[Section]) -> defaultdict[str, list[Section]]:
    """Chapter -> its sections; those of the first screen are on none."""
    placed = defaultdict(list)
    rank = {key: place for place, key in enumerate(_VERDICT)}
    for section in sorted(sections, key=lambda section: rank.get(section.key, len(rank))):
        placed[section.chapter].append(section)
    return placed


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
    found = found or headline_of(summary)
    counted = summary.requests
    missing = (counted.lost or 0) + (counted.unsent or 0) + counted.stuck
    run = run_charts(requests, manifest, measured, missing)
    contents = chapters(run, manifest, summary, _curves(run, measured, scraped))
    charts = [chart for chapter in contents for chart in chapter.charts]
    latencies = latency_figures(summary, run.measured_from)
    return whole_page(
        "page.html.j2",
        {"run": clean(manifest.id), "charts": [chart.payload() for chart in charts]},
        drawn=bool(charts),
        head=heading(summary),
        alarms=boxes(found.findings),
        tiles=tiles(summary, found),
        slo_line=slo_line(summary, run.measured_from),
        latencies=latencies,
        latency_notes=meaning(latencies),
        places=[head for _, head in PLACES],
        facts=facts(summary),
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


# --- The first screen: the result, its cause, and the numbers that decide.


PLACES = (("p50", "p50"), ("p95", "p95"), ("p99", "p99"))

_MOST_LINES = 3

_VERDICTS = {"ok": Tone.GOOD, "suspect": Tone.WARN, "invalid": Tone.BAD}


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
    code = () if found.code is None else (f"exit code {found.code}",)
    return Tile("Result", found.word, (*found.parts, *code), found.tone)


def _cause(found: Headline, summary: Summary) -> Tile:
    """The worst finding, and how many others there are."""
    first = next((each for each in found.findings if _is_cause(each, found)), None)
    if first is None:
        text = "Nothing speaks against this result." if found.is_good else "No single cause was found."
        if found.is_good and summary.client.verdict == "suspect":
            text = "Nothing of the server; the client is suspect."
        return Tile("Cause", "none", (text,), Tone.FAINT)
    others = sum(each.box is not None and each is not first for each in found.findings)
    # What an invalid client did is in its own tile: here is why, and what to do.
    text = (first.text.partition(". ")[2] if first.key == "client" else "") or first.text
    lines = (text, f"{plural(others, 'further finding')} below" if others else "")
    label = "Reservation" if found.is_good else "Cause"
    return Tile(label, first.title, tuple(line for line in lines if line), first.tone)


def _is_cause(each: RunFinding, found: Headline) -> bool:
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
    edge, _, bound = edge_of(summary).partition(", ")
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
    verdict, records = summary.client.verdict, completeness(summary)
    reason = client.show(summary).lines[1 if verdict == "invalid" else 0].text.removeprefix(f"{verdict}: ")
    lines = (reason.partition(". ")[0], records.lines[0].text)
    return Tile("Client", verdict, lines, Tone.BAD if records.alarm else _VERDICTS[verdict])


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
    """The knee and how many loads have a result, in place of a goodput over all of them."""
    found = summary.stages or []
    results = sum(stage.is_result for stage in found)
    tone = Tone.GOOD if results == len(found) else Tone.WARN
    value = f"{count(results)} of {count(len(found))}"
    if where := knee_of(summary).removeprefix("knee at "):
        return Tile("Knee", where, (f"{value} stages have a result",), tone)
    return Tile("Stages", value, ("have a result: see the table below",), tone)


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
    if summary.is_of_parts or summary.is_empty:
        return ""
    table = goodput.show(summary).table
    limits = (
        [f"{row.cells[0]}: held by {row.cells[1]}" for row in table.rows if row.cells[1]] if table else []
    )
    return sentence([*limits, f"counted from {measured_from}"]) if summary.goodput.attainment else ""


def latency_figures(summary: Summary, measured_from: str) -> list[Latency]:
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
