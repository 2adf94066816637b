"""Which sections a report has below its verdict, and in which order: gates, numbers, what they rest on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from msgspec import UNSET, UnsetType

from llm_locust.figures import goodput, latency
from llm_locust.figures.client import ClientFacts, calibration_text
from llm_locust.figures.run_facts import AnalysisFacts, LeftOut
from llm_locust.figures.summary import FIGURES, Summary
from llm_locust.figures.text import (
    Line,
    Section,
    Table,
    Tone,
    clean,
    count,
    explained_once,
    moment,
    number,
    percent,
    plural,
    seconds,
    sentence,
)
from llm_locust.metrics.catalogue import View, shown_in
from llm_locust.report.headline import Headline, boxes

#: Before why the load ended.
ENDED = "ended: "


def heading(summary: Summary) -> Section:
    """What ran, against what, when, and which part of it is judged."""
    run, window = summary.run, summary.window
    facts = sentence(
        [
            moment(run.started),
            "open loop" if summary.is_open_loop else "",
            f"seed {run.seed}" if run.seed is not None else "",
        ]
    )
    lines = (
        Line(sentence([clean(run.model or ""), _where(summary)], " at "), verbatim=True),
        Line(facts, Tone.FAINT),
        Line(f"window {seconds(window.seconds)} · {clean(window.rule)}", Tone.FAINT),
        *_left_out(window.left_out),
        Line(f"{ENDED}{clean(run.stop_reason)}" if run.stop_reason else "", Tone.WARN),
        *_skipped(run.skipped_lines),
        Line(_INSECURE if run.insecure is True else "", Tone.WARN),
        *_calibrated(summary.client),
        *_asked(summary.analysis),
    )
    return Section(clean(run.name or run.id), tuple(line for line in lines if line.text))


_INSECURE = "--insecure: no certificate was checked, the answers may be anybody's"


def _calibrated(client: ClientFacts) -> Iterator[Line]:
    if (found := client.calibration) is not None:
        measured = bool(found.answers and not found.astray)
        yield Line(f"{'calibrated: ' if measured else ''}{calibration_text(found)}")


def _skipped(lines: dict[str, int] | UnsetType) -> Iterator[Line]:
    """Files of the load of which lines were left out."""
    for file, n in ({} if lines is UNSET else lines).items():
        yield Line(
            f"{plural(n, 'line')} of {clean(file)} could not be read, skipped by --skip-bad-lines",
            Tone.WARN,
            verbatim=True,
        )


def _left_out(part: LeftOut | None) -> Iterator[Line]:
    """What a steady window does not have, and what that changes."""
    if part is None or not part.requests:
        return
    good = f"goodput {percent(part.goodput_ratio)} there, {percent(part.goodput_ratio_run)} in the whole run"
    facts = [
        f"left out {seconds(part.seconds)} with {count(part.requests)} requests",
        f"p99 TTFT {number(part.ttft_p99_ms)} ms there, {number(part.ttft_p99_ms_run)} ms in the whole run",
        "" if part.goodput_ratio is None else good,
    ]
    yield Line(sentence(facts), Tone.WARN)


def _where(summary: Summary) -> str:
    """The host, or how many targets or arms take its place."""
    if len(summary.arms or ()) > 1:
        return f"{len(summary.arms or ())} arms"
    targets = summary.interventions.targets
    if len(targets) > 1:
        return f"{len(targets)} targets, {clean(targets[0])} and others"
    return clean(targets[0] if targets else summary.run.host or "")


def _asked(analysis: AnalysisFacts | None) -> Iterator[Line]:
    """What was left out of the run, or put together, before anything was computed."""
    if analysis is None:
        return
    runs = analysis.runs
    if len(runs) > 1:
        yield Line(f"{len(runs)} runs as one population: {clean(', '.join(runs))}", Tone.WARN, verbatim=True)
    if analysis.where:
        share = f"{count(analysis.requests)} of {count(analysis.of)} requests"
        yield Line(f"only {share}: {clean(analysis.where)}", Tone.WARN, verbatim=True)


@dataclass(frozen=True, slots=True)
class Entry:
    """The place of a section in every report: its key, and the chapter of the page that it stands in.

    ``of_one_load`` ones are left out in a sweep, whose figures over all stages are of no load, and in an
    interleaved comparison, where those over all arms are of no server.
    """

    key: str
    chapter: str
    of_one_load: bool = False


#: Every section in the order of the console and of Markdown. One without a chapter is on the page's first
#: screen, and in the chapter of the verdict only where it is an alarm.
CONTENTS = (
    Entry("doubtful", ""),
    Entry("parts", ""),
    Entry("since_start", ""),
    Entry("gates", "verdict"),
    Entry("requests", ""),
    Entry("search", "stages"),
    Entry("stages", "stages"),
    Entry("prefix_cache", "stages"),
    Entry("repeats", "stages"),
    Entry("arms", "arms"),
    Entry("curve", "stages"),
    Entry("spike", "stages"),
    Entry("goodput", "verdict", of_one_load=True),
    Entry("reliability", "verdict", of_one_load=True),
    Entry("warmup", "verdict", of_one_load=True),
    Entry("latency", "latency", of_one_load=True),
    Entry("intervals", "latency", of_one_load=True),
    Entry("bottleneck", "latency", of_one_load=True),
    Entry("throughput", "load", of_one_load=True),
    Entry("inputs", "load", of_one_load=True),
    Entry("images", "load", of_one_load=True),
    Entry("tokens", "load"),
    Entry("cost", "cost", of_one_load=True),
    Entry("roofline", "cost", of_one_load=True),
    Entry("drift", "verdict", of_one_load=True),
    Entry("quality", "quality"),
    Entry("sessions", "sessions"),
    Entry("agents", "sessions", of_one_load=True),
    Entry("agents_by_load", "sessions"),
    Entry("by_turn", "sessions", of_one_load=True),
    Entry("errors", ""),
    Entry("by_name", "groups", of_one_load=True),
    Entry("by_class", "groups", of_one_load=True),
    Entry("other_requests", "groups"),
    Entry("interventions", "groups"),
    Entry("replicas", "groups", of_one_load=True),
    Entry("autoscaling", "groups"),
    Entry("fairness", "groups", of_one_load=True),
    Entry("pools", "servers"),
    Entry("servers", "servers"),
    Entry("energy", "cost", of_one_load=True),
    Entry("by", "groups", of_one_load=True),
    Entry("left_open", "load"),
    Entry("client", ""),
    Entry("records", ""),
    Entry("nodes", "groups"),
)


#: The chapter of a section that has no entry and names none.
_LAST_CHAPTER = "load"

#: Sections of a run without a request in its window: the others would be tables of dashes.
_OF_NO_REQUEST = frozenset({"other_requests", "interventions", "servers", "client", "records", "nodes"})


def sections(summary: Summary) -> list[Section]:
    """Every section that has something to say. What alarms has a box of its own, see
    :func:`~llm_locust.report.headline.boxes`, and is not among them."""
    shown = [entry for entry in CONTENTS if not (entry.of_one_load and summary.is_of_parts)]
    if summary.is_empty:
        shown = [entry for entry in CONTENTS if entry.key in _OF_NO_REQUEST]
    places: dict[str, list[Section]] = {key: [] for key in (*(entry.key for entry in CONTENTS), "")}
    for name, figure in FIGURES.items():
        for section in figure.sections(summary):
            key = section.key or name
            place = next(each for each in (key, name, "") if each in places)
            places[place].append(replace(section, key=key))
    made = [replace(each, chapter=entry.chapter) for entry in shown for each in places[entry.key]]
    if not summary.is_empty:  # sections that have no entry come last
        made += [replace(each, chapter=each.chapter or _LAST_CHAPTER) for each in places[""]]
    return explained_once([section for section in made if not section.alarm])


# --------------------
# The short report: what a person needs in the first 20 seconds, some 30 lines on a terminal.
#
# It has the sections that answer the question of the run, cut to their deciding rows, and of all others
# what they warn of. ``--full`` prints every section.
# --------------------


#: Shown as they are, if there are any: each answers what its run was for.
_WHOLE = frozenset(
    {
        "parts",
        "since_start",
        "requests",
        "search",
        "stages",
        "arms",
        "curve",
        "spike",
        "repeats",
        "prefix_cache",
        "agents",
        "cost",
        "other_requests",
    }
)

#: Columns of the table of latencies; those that were asked for are shown too.
_STATISTICS = ("mean", "p50", "p90", "p95", "p99")

_MOST_BOXES, _MOST_ERRORS, _MOST_REMARKS = 3, 3, 4

#: Sections whose warnings are of their own figures, or told otherwise.
_NOT_REMARKED = frozenset({"gates", "client", "records", "bottleneck", "roofline", "cost", "energy"})


def brief(summary: Summary, found: Headline) -> list[Section]:
    """The sections of the short report below the verdict and its boxes, without the run's heading."""
    every = {section.key: section for section in sections(summary)}
    shown = list(_answers(summary, found, every))
    placed = {line.text for section in shown for line in _lines(section)}
    placed |= {line.text for each in found.findings if each.box is not None for line in _lines(each.box)}
    placed |= {
        note.text for section in every.values() if section.table for note in latency.marks(section.table)
    }
    others = (section for key, section in every.items() if key not in _NOT_REMARKED)
    left = (line.text for section in others for line in _warnings(section))
    above = "\n".join(placed)  # with why the client was the limit of a stage, which its readings tell again
    remarks = list(
        dict.fromkeys(text for text in left if text.rpartition("the client was the limit: ")[2] not in above)
    )
    closing = [every[key] for key in ("client", "records") if key in every]
    return [*shown, *(_first_line(section) for section in closing), *_remarks(remarks)]


def brief_heading(found: Section, result: str) -> Section:
    """A heading of two lines: what ran, and when; and what must not be missed and the result does not say."""
    faint = [line.text for line in found.lines if line.tone is Tone.FAINT]
    others = [line for line in found.lines if line.tone is not Tone.FAINT]
    first = sentence([found.title, *(line.text for line in others[:1])])
    more = [line for line in others[1:] if line.text.removeprefix(ENDED) not in result]
    return Section(first, (Line(sentence(faint), Tone.FAINT), *more))


def brief_boxes(found: Headline) -> list[Section]:
    """The boxes without what explains them, and at most so many."""
    every = boxes(found.findings)
    shown = [
        replace(box, lines=tuple(line for line in box.lines if line.tone is not Tone.FAINT))
        for box in every[:_MOST_BOXES]
    ]
    if more := len(every) - len(shown):
        titles = ", ".join(box.title for box in every[_MOST_BOXES:])
        shown.append(Section("", (Line(f"{plural(more, 'more finding')} in the full report: {titles}"),)))
    return shown


def _answers(summary: Summary, found: Headline, every: dict[str, Section]) -> Iterator[Section]:
    """The sections that answer the run's question, lines before tables."""
    blamed = any(each.key == "replicas" for each in found.findings)
    for key, section in every.items():
        if key in _WHOLE or key.removeprefix("by_") in (summary.by or ()):
            yield section
        elif key == "gates":
            yield replace(section, title="", lines=())
        elif key == "goodput":
            yield _goodput(summary, section)
            yield _throughput(summary)
        elif key == "latency":
            yield _latency(summary, section)
        elif key == "errors":
            yield _errors(section)
        elif key == "replicas" and blamed:
            yield replace(section, notes=())


def _goodput(summary: Summary, section: Section) -> Section:
    """Its line, and what each limit was held by in another one."""
    part = summary.goodput
    held = [
        f"{text} held by {percent(part.attainment.get(key))}" for key, text in goodput.limits(part).items()
    ]
    return Section(section.title, (*section.lines, *([Line(sentence(held))] if held else [])))


def _latency(summary: Summary, section: Section) -> Section:
    table = section.table
    if table is None:
        return section
    asked = summary.analysis.percentiles if summary.analysis is not None else None
    places = {*_STATISTICS, *(key.replace("_", ".") for key in asked or ())}
    kept = [i for i, column in enumerate(table.columns) if not i or column.head in (*places, "n")]
    columns = tuple(replace(table.columns[i], wide=False) for i in kept)
    labels = {metric.label for metric in shown_in(View.SHORT)}
    rows = tuple(
        replace(row, cells=tuple(row.cells[i] for i in kept)) for row in table.rows if row.cells[0] in labels
    )
    marked = tuple(note for note in section.notes if note in latency.marks(table))
    return replace(section, table=Table(columns, rows), notes=marked)


def _throughput(summary: Summary) -> Section:
    part = summary.throughput
    seen = summary.tokens.user_tps.p50
    pace = "" if seen is None else f"a user sees {number(seen)} tokens/s"
    rates = [
        f"{number(part.requests_per_s)} requests/s",
        f"{number(part.inputs_per_s)} inputs/s" if part.inputs_per_s is not None else "",
        "" if summary.is_without_output else f"{number(part.output_tokens_per_s)} output tokens/s",
        f"{number(part.input_tokens_per_s)} input tokens/s",
        pace,
        f"{number(part.concurrency_mean)} in flight, {count(part.concurrency_peak)} at most",
    ]
    return Section("Throughput", (Line(sentence(rates)),))


def _errors(section: Section) -> Section:
    table = section.table
    if table is None:
        return section
    more = len(table.rows) - _MOST_ERRORS
    notes = (Line(f"and {plural(more, 'more kind')}", Tone.FAINT),) if more > 0 else ()
    return replace(section, table=Table(table.columns, table.rows[:_MOST_ERRORS]), notes=notes)


def _first_line(section: Section) -> Section:
    return replace(section, lines=section.lines[:1], table=None, notes=())


def _remarks(texts: Sequence[str]) -> Iterator[Section]:
    """What the sections that are left out warn of: it changed no figure above, or is explained there."""
    if not texts:
        return
    more = len(texts) - _MOST_REMARKS
    lines = [Line(text, Tone.WARN, verbatim=True) for text in texts[:_MOST_REMARKS]]
    if more > 0:
        lines.append(Line(f"and {plural(more, 'more remark')} in the full report", Tone.FAINT))
    yield Section("Remarks", tuple(lines))


def _lines(section: Section) -> tuple[Line, ...]:
    return (*section.lines, *section.notes)


def _warnings(section: Section) -> Iterator[Line]:
    return (line for line in _lines(section) if line.tone in (Tone.WARN, Tone.BAD))
