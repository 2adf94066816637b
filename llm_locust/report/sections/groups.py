"""What differed inside the run: errors by kind, and the figures by stage, name, class and replica."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from llm_locust.core.texts import UNDEFINED
from llm_locust.figures.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.figures.summary import Summary
from llm_locust.figures.text import (
    after,
    clean,
    count,
    estimate,
    is_cut,
    load,
    meaning_in,
    number,
    percent,
    plural,
    seconds,
    short,
)
from llm_locust.metrics.catalogue import View, shown_in
from llm_locust.metrics.sections.failures import PLACEHOLDERS
from llm_locust.metrics.summary_types.deployment import ReplicaFigures
from llm_locust.metrics.summary_types.requests import ErrorKind, GroupPart, RequestPart
from llm_locust.metrics.summary_types.stages import Stage
from llm_locust.report.sections.deployment import naming
from llm_locust.report.sections.verdicts import limits

#: Rows of one table; a note says how many more are in summary.json.
MOST_ROWS = 20
_MESSAGE_LENGTH, _EXAMPLE_LENGTH, _NAME_LENGTH = 160, 2_000, 64
_LATENCIES = product(shown_in(View.GROUPS), ("p50", "p99"))

#: Heads of a load, by its kind.
LOADS = {"users": "users", "rate": "requests/s"}

#: The columns of a table of groups, by latency and percentile. A narrow terminal shows the first three.
LATENCY_COLUMNS = {
    (metric.key, place): Column(place, over=f"{metric.short} {metric.unit}", wide=at >= 3)
    for at, (metric, place) in enumerate(_LATENCIES)
}

#: Rates, behind the latencies; that of inputs is empty where no request has any.
RATE_COLUMNS = (Column("tokens/s", over="output"), Column("inputs/s"))

#: The cells of a stage that has no figures, from its length to its goodput.
NO_FIGURES = (*[UNDEFINED] * (3 + len(LATENCY_COLUMNS)), UNDEFINED, "", UNDEFINED)


def rate_cells(output_tokens_per_s: float | None, inputs_per_s: float | None) -> tuple[str, str]:
    """The cells of :data:`RATE_COLUMNS`."""
    return number(output_tokens_per_s), "" if inputs_per_s is None else number(inputs_per_s)


def having_figures(table: Table, summary: Summary) -> Table:
    """The table without empty columns: of a run that generated nothing those of tokens are."""
    if not summary.is_without_output:
        return table.without_empty()
    columns = (replace(each, wide=each.wide and not each.over) for each in table.columns)
    return Table(tuple(columns), table.rows).without_empty(UNDEFINED)


def errors(summary: Summary, *, examples: bool = False) -> Section | None:
    """The kinds of failure, most frequent first; None without any.

    Args:
        examples: all kinds, each with its text at length.
    """
    kinds, started = summary.errors, summary.run.started
    if not kinds:
        return None
    columns = [
        Column("Outcome" if examples else "Errors", left=True),
        Column("Status"),
        Column("Count"),
        Column("First"),
        Column("Last"),
        Column("Message", left=True, verbatim=True, wraps=True),
    ]
    if not examples:
        rows = tuple(TableRow(_error_cells(kind, started, _MESSAGE_LENGTH)) for kind in kinds[:MOST_ROWS])
        return Section("Errors", table=Table(tuple(columns), rows), notes=_left_out(kinds))
    rows = tuple(TableRow(_error_cells(kind, started, _EXAMPLE_LENGTH)) for kind in kinds)
    return Section("Errors", table=Table(tuple(columns), rows).without_empty())


def _error_cells(kind: ErrorKind, started: str, most: int) -> tuple[str, ...]:
    return (
        clean(kind.outcome),
        UNDEFINED if kind.status is None else str(kind.status),
        count(kind.count),
        after(kind.first, started),
        after(kind.last, started),
        _text(error_words(kind), most),
    )


def error_words(kind: ErrorKind) -> str | None:
    """What a person reads of a kind: its text, or the first one where that has had details taken out."""
    message = kind.message
    is_pattern = message is not None and any(each in message for each in PLACEHOLDERS)
    return kind.example if is_pattern else message


def _text(value: str | None, most: int) -> str:
    return UNDEFINED if value is None else short(clean(value), most)


def by_name(summary: Summary) -> Section | None:
    """The figures by name, where there is more than one and names are not the classes; None otherwise."""
    if _populations(summary.by_name) == _populations(summary.by_class):
        return None
    return _by_label(summary, summary.by_name, "Name")


def _populations(groups: Mapping[str, RequestPart]) -> dict[str, int]:
    return {label: part.requests.population for label, part in groups.items()}


def by_class(summary: Summary) -> Section | None:
    """The figures by class, where there is more than one; None otherwise."""
    return _by_label(summary, summary.by_class, "Class")


def _by_label(summary: Summary, groups: Mapping[str, RequestPart], head: str) -> Section | None:
    if len(groups) < 2 or head.lower() in (summary.by or {}):  # there it has a table of its own
        return None
    rows = [_group_row(label, part) for label, part in groups.items()]
    table = having_figures(Table(_group_columns(head), tuple(rows[:MOST_ROWS])), summary)
    return Section(f"By {head.lower()}", table=table, notes=(*meaning_in(table), *_left_out(rows)))


def breakdowns(summary: Summary) -> Iterator[Section]:
    """A table for each dimension that the report was asked to tell the figures by."""
    for dimension, part in (summary.by or {}).items():
        head = dimension.replace("_", " ").capitalize()
        rows = [_group_row(label, figures) for label, figures in part.groups.items()]
        more = len(rows) + part.left_out - MOST_ROWS
        notes = (
            (Line(f"{count(more)} more, the first of them in summary.json", Tone.FAINT),) if more > 0 else ()
        )
        table = having_figures(Table(_group_columns(head), tuple(rows[:MOST_ROWS])), summary)
        notes = (*meaning_in(table), *notes)
        yield Section(f"By {head.lower()}", table=table, notes=notes, key=f"by_{dimension}")


def _group_columns(head: str) -> tuple[Column, ...]:
    return (
        Column(head, left=True, verbatim=True, wraps=True),
        Column("requests"),
        Column("errors"),
        *LATENCY_COLUMNS.values(),
        *RATE_COLUMNS,
        Column("goodput"),
    )


def _group_row(label: str, part: RequestPart | GroupPart) -> TableRow:
    cut = is_cut(part.requests.cut_share)
    return TableRow(
        (
            _shown(label),
            count(part.requests.population),
            percent(part.requests.error_rate),
            *(estimate(part.latency_ms[key], place, cut=cut) for key, place in LATENCY_COLUMNS),
            *rate_cells(part.throughput.output_tokens_per_s, part.throughput.inputs_per_s),
            percent(part.goodput.ratio),
        )
    )


def other_requests(summary: Summary) -> Section | None:
    """What other users of the locustfile sent, such as an ``HttpUser``; None without any."""
    found = summary.other_requests
    if not found:
        return None
    columns = (
        Column("Method", left=True, verbatim=True),
        Column("Name", left=True, verbatim=True, wraps=True),
        Column("requests"),
        Column("failures"),
        Column("p50", over="time ms"),
        Column("p95", over="time ms"),
    )
    rows = tuple(
        TableRow(
            (
                short(clean(each.method), _NAME_LENGTH),
                _shown(each.name),
                count(each.requests),
                count(each.failures),
                number(each.p50_ms),
                number(each.p95_ms),
            ),
            Tone.WARN if each.failures else Tone.PLAIN,
        )
        for each in found
    )
    note = Line(
        "of other users of the locustfile, the whole run: in no other figure, gate or limit", Tone.FAINT
    )
    return Section("Other requests", table=Table(columns, rows), notes=(note,))


def replicas(summary: Summary) -> Section | None:
    """The figures by replica; None where no answer named the replica that it is from."""
    found = summary.replicas
    if not found:
        return None
    columns = (
        Column("Replica", left=True, verbatim=True),
        Column("requests"),
        Column("share"),
        Column("errors"),
        *LATENCY_COLUMNS.values(),
        Column("in flight", wide=True),
        Column("tokens/s", over="output"),
        Column("goodput"),
    )
    table = having_figures(Table(columns, tuple(map(_replica_row, found[:MOST_ROWS]))), summary)
    return Section(
        "Replicas", table=table, notes=(*meaning_in(table), *naming(summary.fairness), *_left_out(found))
    )


def _replica_row(replica: ReplicaFigures) -> TableRow:
    cut = is_cut(replica.cut_share)
    return TableRow(
        (
            _shown(replica.name),
            count(replica.requests),
            percent(replica.share),
            percent(replica.error_rate),
            *(estimate(replica, f"{key}_{place}_ms", cut=cut) for key, place in LATENCY_COLUMNS),
            number(replica.concurrency_mean),
            number(replica.output_tokens_per_s),
            percent(replica.goodput_ratio),
        )
    )


def stages(summary: Summary) -> Section | None:
    """The figures by stage; None in a run without stages."""
    if not summary.stages:
        return None
    section = of_stages(summary.stages, tuple(_outside(summary)))
    return replace(section, table=section.table and having_figures(section.table, summary))


def of_stages(found: Sequence[Stage], outside: tuple[Line, ...] = ()) -> Section:
    """The figures of stages, one at least, with why some are not a result; a row for each, in their order.

    Args:
        outside: notes on all stages, and on what is in none.
    """
    kinds = dict.fromkeys(LOADS[stage.kind] for stage in found)
    columns = (
        Column("Stage", left=True),
        Column("prefix" if any(stage.prefix for stage in found) else "lengths", left=True),
        Column("asked", over=" or ".join(kinds)),
        Column("offered", over=" or ".join(kinds)),
        Column("measured", wide=True),
        Column("requests", wide=True),
        Column("errors", wide=True),
        *LATENCY_COLUMNS.values(),
        *RATE_COLUMNS,
        Column("goodput"),
        Column("result", left=True),
    )
    table = Table(columns, tuple(map(_stage_row, found)))
    notes = (*(_why_not(s) for s in found if not s.is_result), *outside, *_remarks(found), *meaning_in(table))
    return Section("Stages", table=table, notes=notes)


def stage_label(number: int, repeat: int) -> str:
    return f"{number}" if not repeat else f"{number} (repeat {repeat})"


def _stage_row(stage: Stage) -> TableRow:
    tone = Tone.PLAIN if stage.is_result else Tone.WARN
    start = (stage_label(stage.number, stage.repeat), stage.pair, load(stage.asked), number(stage.offered))
    result = result_of(stage)
    part, window = stage.figures, stage.window
    if part is None or window is None:
        return TableRow((*start, *NO_FIGURES, result), tone)
    cut = is_cut(part.requests.cut_share)
    return TableRow(
        (
            *start,
            seconds(window.seconds),
            count(part.requests.population),
            percent(part.requests.error_rate),
            *(estimate(part.latency_ms[key], place, cut=cut) for key, place in LATENCY_COLUMNS),
            *rate_cells(part.throughput.output_tokens_per_s, part.throughput.inputs_per_s),
            percent(part.goodput.ratio),
            result,
        ),
        tone,
    )


def result_of(stage: Stage) -> str:
    if stage.is_result:
        return "yes"
    if stage.all_failed:
        return "NO: all failed"
    if stage.saturated:
        return "NO: saturated"
    if stage.steady is False:
        return "NO: not steady"
    if stage.lengths is not None and stage.lengths.is_other:
        return "NO: lengths"
    if stage.prefix is not None and stage.prefix.is_other:
        return "NO: hits"
    return "NO: client" if stage.client == "invalid" else "NO"


def _why_not(stage: Stage) -> Line:
    why = "; ".join(stage.reasons)
    return Line(f"stage {stage.number} ({_load(stage)}) is not a result: {clean(why)}", Tone.WARN)


def _outside(summary: Summary) -> Iterator[Line]:
    """The SLO of a sweep, and failures that are in no stage: those of ramps, warm-ups and drains."""
    if summary.is_sweep and (slo := limits(summary.goodput)):
        yield Line(f"goodput: {', '.join(slo.values())}", Tone.FAINT)
    outside = summary.outside_stages
    if outside is not None and outside.failed:
        failed = f"{count(outside.failed)} of {plural(outside.requests, 'request')} failed"
        yield Line(f"outside the stages (ramp, warm-up, drain) {failed}", Tone.WARN)


def _remarks(found: Sequence[Stage]) -> Iterator[Line]:
    """What is noted of stages, the same note of several ones once."""
    of_note: dict[str, list[str]] = {}
    for stage in found:
        for note in stage.notes:
            of_note.setdefault(note, []).append(str(stage.number))
    for note, numbers in of_note.items():
        which = f"stage {numbers[0]}" if len(numbers) == 1 else f"stages {', '.join(numbers)}"
        yield Line(f"{which}: {clean(note)}", Tone.FAINT)


def _load(stage: Stage) -> str:
    asked = plural(stage.asked, "user") if stage.kind == "users" else f"{load(stage.asked)} requests/s"
    return f"{asked}, {stage.pair} tokens" if stage.pair else asked


def _shown(label: str) -> str:
    return short(clean(label), _NAME_LENGTH) if label else "(none)"


def _left_out(rows: Sequence[object]) -> tuple[Line, ...]:
    more = len(rows) - MOST_ROWS
    return (Line(f"{count(more)} more in summary.json", Tone.FAINT),) if more > 0 else ()
