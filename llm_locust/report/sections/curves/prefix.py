"""Prefix-cache hits of the stages of an experiment, and what they are worth."""

from collections.abc import Iterator

from llm_locust.metrics.summary_types.search import PrefixWorth, StagePrefix
from llm_locust.metrics.summary_types.stages import Stage
from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.report.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.report.sections.groups import result_of, stage_label
from llm_locust.report.text import UNDEFINED, count, number, percent, plural
from llm_locust.report.uncertainty import estimate, is_cut, meaning_in

_COLUMNS = (
    Column("Stage", left=True),
    Column("asked", over="prefix-cache hits"),
    Column("possible", over="prefix-cache hits"),
    Column("achieved", over="prefix-cache hits"),
    Column("by", left=True),
    Column("p50", over="TTFT ms"),
    Column("p99", over="TTFT ms"),
    Column("shared tokens", wide=True),
    Column("primed", wide=True),
    Column("result", left=True),
)


def prefix_hits(summary: Summary) -> Section | None:
    """A row for each stage; None of a sweep that sets no share."""
    found = [(stage, stage.prefix) for stage in summary.stages or () if stage.prefix is not None]
    if not found:
        return None
    table = Table(_COLUMNS, tuple(_row(stage, prefix) for stage, prefix in found))
    first = found[0][1]
    replicas = plural(max(prefix.replicas for _, prefix in found), "replica")
    sent = plural(first.prefixes, "shared prefix", "shared prefixes")
    note = f"of prompts of {count(first.input_tokens)} tokens"
    if any(prefix.primed for _, prefix in found):
        note += f"; before each stage the caches of {replicas} were flushed, and {sent} sent to each"
    lines = () if summary.prefix_cache is None else tuple(_worth(summary.prefix_cache))
    notes = (Line(note, Tone.FAINT), *meaning_in(table))
    return Section("Prefix cache", lines, table=table, notes=notes, key="prefix_cache", stacked=True)


def _row(stage: Stage, prefix: StagePrefix) -> TableRow:
    part, times = stage.figures, (UNDEFINED, UNDEFINED)
    if part is not None:
        cut = is_cut(part.requests.cut_share)
        times = (
            estimate(part.latency_ms["ttft"], "p50", cut=cut),
            estimate(part.latency_ms["ttft"], "p99", cut=cut),
        )
    cells = (
        stage_label(stage.number, stage.repeat),
        percent(prefix.asked),
        percent(prefix.possible),
        percent(prefix.achieved),
        prefix.source or UNDEFINED,
        *times,
        count(prefix.tokens),
        count(prefix.primed),
        result_of(stage),
    )
    return TableRow(cells, Tone.PLAIN if stage.is_result else Tone.WARN)


def _worth(found: PrefixWorth) -> Iterator[Line]:
    slope, ends = found.ttft_ms_per_10_points, found.ci95
    if slope is None or ends is None or None in ends:
        yield Line(f"no slope of the TTFT: {found.missing}", Tone.FAINT)
        return
    yield Line(
        f"10 points more of hits change the median TTFT by {number(slope)} ms ({number(ends[0])} to "
        f"{number(ends[1])}): {number(found.ttft_ms_per_1k_tokens)} ms for 1,000 computed prompt tokens"
    )
    if found.is_line is False:
        yield Line("but it does not follow a line: a median is over 3 standard errors off", Tone.WARN)
