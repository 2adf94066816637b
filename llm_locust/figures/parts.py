"""What a summary tells of all requests, and again of those with one name or of one class."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pyarrow as pa
from msgspec import structs

from llm_locust.core.batch import Labels, RecordBatch, Requests
from llm_locust.core.record import Outcome
from llm_locust.core.texts import UNDEFINED, listed, nearest
from llm_locust.figures.agents import Agents
from llm_locust.figures.counts import GroupRequests, RequestCounts
from llm_locust.figures.figure import Run
from llm_locust.figures.goodput import Goodput, GroupGoodput
from llm_locust.figures.quality import PartQuality, quality_of_part
from llm_locust.figures.text import (
    MOST_ROWS,
    Column,
    Line,
    Section,
    Table,
    TableRow,
    Tone,
    count,
    estimate,
    is_cut,
    meaning_in,
    number,
    percent,
    rows_left_out,
    short_name,
)
from llm_locust.metrics.catalogue import View, shown_in
from llm_locust.metrics.columns import DOUBTS, OUTCOMES, Rows, groups, read_whole
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.requests.gaps import summarise_on_time
from llm_locust.metrics.requests.judgement import Missing, good_rates, goodput, goodput_intervals
from llm_locust.metrics.requests.latency import Measurable, latency_figures, latency_tables
from llm_locust.metrics.requests.rates import Throughput, throughput
from llm_locust.metrics.select import Label
from llm_locust.metrics.stats.bootstrap import order_cells, time_cells
from llm_locust.metrics.stats.censoring import PERCENTILES, Durations
from llm_locust.metrics.structs import LatencyTable, SummaryPart, key
from llm_locust.metrics.window import Population

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary


class PartFigures(SummaryPart, frozen=True):
    """What a summary has of all requests, and again of those of a stage or of an arm."""

    requests: RequestCounts
    latency_ms: dict[str, LatencyTable]
    latency_ms_adjusted: dict[str, LatencyTable]
    throughput: Throughput
    goodput: Goodput
    agents: Agents | None = None


class RequestPart(SummaryPart, frozen=True):
    """What a summary has of all requests, and again of those of one name or of one class."""

    latency_ms: dict[str, LatencyTable]
    latency_ms_adjusted: dict[str, LatencyTable]
    throughput: Throughput
    requests: RequestCounts
    goodput: Goodput
    quality: PartQuality


@dataclass(frozen=True, slots=True)
class Group:
    """Requests that a part of the summary is of, what gives their gaps, how many more are bad, and how many
    of them had a first try that is none of ``rows``.

    Of lost ones neither name nor class is known, of unsent ones not the name: a part of a run that has some
    has None.
    """

    rows: Rows
    gaps: Callable[[], Durations]
    missing: Missing
    resent: int

    @classmethod
    def of(cls, m: Measured, rows: Rows, missing: Missing, resent: int, **label: str) -> "Group":
        """``missing`` are those without a record; the stuck ones have one. ``label`` is that of the rows."""

        def gaps() -> Durations:
            return Durations(m.gaps.ascending(**label), course=m.gaps.course(**label))

        return cls(rows, gaps, replace(missing, stuck=len(m.stuck.among(rows))), resent)


def of_names(run: Run) -> dict[str, RequestPart]:
    return _parts_by(run, "name", lambda _: run.missing.of_part)


def of_classes(run: Run) -> dict[str, RequestPart]:
    """Nothing of a run without classes."""
    of_part = run.missing.of_part
    unsent = None if run.of_selection else run.manifest.unsent_by_class(run.warmup_s)

    def missing(label: str) -> Missing:
        return of_part if unsent is None else Missing(of_part.lost, unsent.get(label, 0))

    found = _parts_by(run, "slo_class", missing)
    return found if found.keys() - {""} else {}


def part_of_all(m: Measured, percentiles: Mapping[str, float], missing: Missing) -> PartFigures:
    """What :func:`parts` has of all requests."""
    (whole,) = parts(m, [Group.of(m, np.arange(len(m.c)), missing, m.first_tries.count())], percentiles)
    return whole


def parts(m: Measured, groups_: Sequence[Group], percentiles: Mapping[str, float]) -> list[PartFigures]:
    """The figures of each group.

    Args:
        percentiles: of the latencies, key to percent.
    """
    populations = [m.population(group.rows) for group in groups_]
    of_groups = list(zip(populations, groups_, strict=True))
    tables = latency_tables(
        m.c, [_measurable(m, population, group) for population, group in of_groups], percentiles
    )
    return [
        PartFigures(
            requests=_requests(m, population, group),
            latency_ms=_latencies(plain, m.gaps.relative_error),
            latency_ms_adjusted=_latencies(adjusted, m.gaps.relative_error),
            throughput=throughput(m.c, m.credits, group.rows),
            goodput=_goodput(m, population, group),
        )
        for (population, group), (plain, adjusted) in zip(of_groups, tables, strict=True)
    ]


def _measurable(m: Measured, population: Population, group: Group) -> Measurable:
    return Measurable(
        population,
        group.gaps,
        order_cells(m.c, population.all),
        time_cells(m.window, m.c, m.c.scheduled_s[population.failed]).sums(),
        group.missing.unsent or 0,
        partial(m.stuck.bounds_s, group.rows),
    )


def _parts_by(run: Run, by: Label, missing: Callable[[str], Missing]) -> dict[str, RequestPart]:
    """The same for each name or class, with the quality of its answers.

    Of a text that all requests have they are the whole's, but for what counts missing ones.
    """
    m, labels = run.m, getattr(run.m.c, by)
    found = {
        text: Group.of(m, rows, missing(text), m.first_tries.among(by, text), **{by: text})
        for text, rows in groups(labels)
    }
    of_groups = list(found.values())
    populations = [m.population(group.rows) for group in of_groups]
    if len(found) == 1 and len(of_groups[0].rows) == len(m.c):
        counted = _requests(m, populations[0], of_groups[0]), _goodput(m, populations[0], of_groups[0])
        made = [structs.replace(run.whole, requests=counted[0], goodput=counted[1])]
    else:
        made = parts(m, of_groups, run.question.places)
    return {
        text: RequestPart(
            latency_ms=part.latency_ms,
            latency_ms_adjusted=part.latency_ms_adjusted,
            throughput=part.throughput,
            requests=part.requests,
            goodput=part.goodput,
            quality=quality_of_part(run.answers, m.c, population.judged),
        )
        for text, part, population in zip(found, made, populations, strict=True)
    }


def _goodput(m: Measured, population: Population, group: Group) -> Goodput:
    on_time = summarise_on_time(None)
    if m.on_time is not None:
        on_time = summarise_on_time(m.on_time[population.ok], order_cells(m.c, population.ok))
    return Goodput(
        **goodput(m.judgement, m.c, population.all, group.missing),
        **good_rates(m.judgement, m.credits, group.rows),
        **goodput_intervals(m.judgement, m.c, m.credits, population.all, group.rows, group.missing.known),
        on_time_ratio=on_time.mean,
        on_time=on_time,
    )


def _latencies(tables: Mapping[str, dict[str, Any]], itl_error: float) -> dict[str, LatencyTable]:
    """What is told of ``itl`` may be off by this share of it."""
    return {
        metric: LatencyTable(table | {"relative_error": itl_error} if metric == "itl" else table)
        for metric, table in tables.items()
    }


def _requests(m: Measured, population: Population, group: Group) -> RequestCounts:
    c, scheduled, missing = m.c, population.all, group.missing
    of_all = int((~(c.ok | c.cancelled)[group.rows]).sum())
    judged = len(population.judged)
    cut = population.cut(c)
    counts = np.bincount(c.outcome[scheduled], minlength=len(OUTCOMES))
    doubts = np.bincount(c.doubt[population.ok] + 1, minlength=len(DOUBTS) + 1)[1:]
    return RequestCounts(
        scheduled=len(scheduled),
        sent=int((~np.isnan(c.sent_s[scheduled])).sum()),
        ok=len(population.ok),
        failed=len(population.failed),
        failed_outside=of_all - len(population.failed),
        cancelled=len(population.cancelled),
        cut=len(cut),
        cut_broken=None if m.judgement is None else int(m.judgement.judged[cut].sum()),
        cut_share=len(cut) / (judged + len(cut)) if judged + len(cut) else None,
        abandoned=int(c.abandoned[population.cancelled].sum()),
        lost=missing.lost,
        unsent=missing.unsent,
        stuck=missing.stuck,
        population=judged,
        error_rate=len(population.failed) / judged if judged else None,
        doubtful={doubt.value: int(n) for doubt, n in zip(DOUBTS, doubts, strict=True)},
        doubtful_rate=int(doubts.sum()) / judged if judged else None,
        left_open=int(c.left_open[population.judged].sum()),
        by_outcome={
            o.value: int(n) for o, n in zip(OUTCOMES, counts, strict=True) if o is not Outcome.RESENT
        },
        resent=group.resent,
    )


# --- The figures of a run by any label of its requests: by worker, by turn, by replica


#: What requests can be told apart by: columns of their records.
DIMENSIONS = (
    *("name", "class", "replica", "worker", "model", "session", "turn", "arm"),
    *("endpoint", "peer", "outcome", "status", "finish_reason", "token_source", "prompt_id", "user"),
    *("session_header", "answered_model", "doubt"),
)

#: Groups that are told, those of most requests: a run may have a million sessions.
MOST_GROUPS = 200

_SHOWN = tuple(metric.key for metric in shown_in(View.GROUPS))


class GroupPart(SummaryPart, frozen=True):
    """What a report has of the requests with one label of a dimension."""

    requests: GroupRequests
    latency_ms: dict[str, LatencyTable]
    throughput: Throughput
    goodput: GroupGoodput


class BreakdownPart(SummaryPart, frozen=True):
    """The groups of one dimension; requests without a label are those of the label ""."""

    groups: Annotated[
        dict[str, GroupPart],
        key(
            "`requests`, `latency_ms` (of ttft, tpot, e2el), `throughput` and `goodput` of each label, those "
            "of most requests"
        ),
    ]
    left_out: Annotated[int, key("number of groups that are not among them")]


def parse_dimensions(text: str) -> tuple[str, ...]:
    """The dimensions of ``replica,turn``.

    Raises:
        ValueError: one is unknown, or there is none.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in DIMENSIONS:
            raise ValueError(f'"{word}": {nearest(word, DIMENSIONS)}write one of {listed(DIMENSIONS)}')
    if not words:
        raise ValueError(f"nothing to tell requests apart by: write one of {listed(DIMENSIONS)}")
    return tuple(dict.fromkeys(words))


def breakdown(
    m: Measured, requests: Requests, dimension: str, places: Mapping[str, float] = PERCENTILES
) -> BreakdownPart:
    """requests, latency_ms (of the latencies that groups have), throughput and goodput of each label.

    Of requests without a record no label is known: shares are of the recorded ones.

    Args:
        requests: what ``m`` was measured of, in the same order.
        dimension: one of :data:`DIMENSIONS`.
    """
    found = sorted(groups(_labels(requests, dimension)), key=lambda group: -len(group[1]))
    largest = sorted(found[:MOST_GROUPS], key=lambda group: _order(group[0]))
    populations = [m.population(rows) for _, rows in largest]
    stuck_s = [partial(m.stuck.bounds_s, rows) for _, rows in largest]
    latencies = latency_figures(m.c, populations, _SHOWN, places, stuck_s)
    figures = {
        label: _figures(m, rows, population, latency_ms)
        for (label, rows), population, latency_ms in zip(largest, populations, latencies, strict=True)
    }
    return BreakdownPart(groups=figures, left_out=len(found) - len(largest))


@dataclass(frozen=True, slots=True)
class _Labelled:
    labels: Labels


def _labels(requests: Requests, column: str) -> Labels:
    def labelled(batch: RecordBatch) -> _Labelled:
        texts = batch.table.column(0).cast(pa.string()).fill_null("").dictionary_encode()
        return _Labelled(RecordBatch(batch.table.set_column(0, column, texts)).labels(column))

    return read_whole(_Labelled, requests, [column], labelled).labels


def _order(label: str) -> tuple[bool, int, str]:
    """Numbers by their value, before texts."""
    return (False, int(label), "") if label.isdecimal() else (True, 0, label)


def _figures(
    m: Measured, rows: Rows, population: Population, latency_ms: Mapping[str, dict[str, Any]]
) -> GroupPart:
    judged, cut, stuck = len(population.judged), len(population.cut(m.c)), len(m.stuck.among(rows))
    return GroupPart(
        requests=GroupRequests(
            scheduled=len(population.all),
            ok=len(population.ok),
            failed=len(population.failed),
            cancelled=len(population.cancelled),
            cut=cut,
            cut_share=cut / (judged + cut) if judged + cut else None,
            population=judged,
            error_rate=len(population.failed) / judged if judged else None,
        ),
        latency_ms={metric: LatencyTable(table) for metric, table in latency_ms.items()},
        throughput=throughput(m.c, m.credits, rows),
        goodput=GroupGoodput(
            **goodput(m.judgement, m.c, population.all, Missing(None, None, stuck)),
            **good_rates(m.judgement, m.credits, rows),
            **goodput_intervals(m.judgement, m.c, m.credits, population.all, rows, stuck),
        ),
    )


_LATENCIES = product(shown_in(View.GROUPS), ("p50", "p99"))

#: The columns of a table of groups, by latency and percentile. A narrow terminal shows the first three.
LATENCY_COLUMNS = {
    (metric.key, place): Column(place, over=f"{metric.short} {metric.unit}", wide=at >= 3)
    for at, (metric, place) in enumerate(_LATENCIES)
}

#: Rates, behind the latencies; that of inputs is empty where no request has any.
RATE_COLUMNS = (Column("tokens/s", over="output"), Column("inputs/s"))


def rate_cells(output_tokens_per_s: float | None, inputs_per_s: float | None) -> tuple[str, str]:
    """The cells of :data:`RATE_COLUMNS`."""
    return number(output_tokens_per_s), "" if inputs_per_s is None else number(inputs_per_s)


def having_figures(table: Table, summary: "Summary") -> Table:
    """The table without empty columns: of a run that generated nothing those of tokens are."""
    if not summary.is_without_output:
        return table.without_empty()
    columns = (replace(each, wide=each.wide and not each.over) for each in table.columns)
    return Table(tuple(columns), table.rows).without_empty(UNDEFINED)


def by_name(summary: "Summary") -> Section | None:
    """The figures by name, where there is more than one and names are not the classes; None otherwise."""
    if _populations(summary.by_name) == _populations(summary.by_class):
        return None
    return _by_label(summary, summary.by_name, "Name")


def _populations(groups: Mapping[str, RequestPart]) -> dict[str, int]:
    return {label: part.requests.population for label, part in groups.items()}


def by_class(summary: "Summary") -> Section | None:
    """The figures by class, where there is more than one; None otherwise."""
    return _by_label(summary, summary.by_class, "Class")


def _by_label(summary: "Summary", groups: Mapping[str, RequestPart], head: str) -> Section | None:
    if len(groups) < 2 or head.lower() in (summary.by or {}):  # there it has a table of its own
        return None
    rows = [_group_row(label, part) for label, part in groups.items()]
    table = having_figures(Table(_group_columns(head), tuple(rows[:MOST_ROWS])), summary)
    return Section(f"By {head.lower()}", table=table, notes=(*meaning_in(table), *rows_left_out(len(rows))))


def breakdowns(summary: "Summary") -> Iterator[Section]:
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
            short_name(label),
            count(part.requests.population),
            percent(part.requests.error_rate),
            *(estimate(part.latency_ms[key], place, cut=cut) for key, place in LATENCY_COLUMNS),
            *rate_cells(part.throughput.output_tokens_per_s, part.throughput.inputs_per_s),
            percent(part.goodput.ratio),
        )
    )
