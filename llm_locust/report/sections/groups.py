"""What differed inside the run: errors by kind, and the figures by name, class and replica."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llm_locust.report.section import Column, Line, Row, Section, Table, Tone
from llm_locust.report.text import UNDEFINED, after, clean, count, number, percent, short
from llm_locust.report.uncertainty import estimate, is_cut, meaning_in

Part = Mapping[str, Any]

#: Rows of one table; a note says how many more are in summary.json.
MOST_ROWS = 20
_MESSAGE_LENGTH, _EXAMPLE_LENGTH = 160, 2_000
_NAME_LENGTH = 64

#: The latencies of a group in a table of groups.
LATENCY_COLUMNS = (
    Column("p50", over="TTFT ms"),
    Column("p99", over="TTFT ms"),
    Column("p50", over="TPOT ms"),
    Column("p99", over="TPOT ms", wide=True),
    Column("p50", over="E2EL ms", wide=True),
    Column("p99", over="E2EL ms", wide=True),
)


def errors(summary: Part, *, examples: bool = False) -> Section | None:
    """The kinds of failure, most frequent first; None without any.

    Args:
        examples: all kinds, each with the first text of its kind, at length.
    """
    kinds = summary.get("errors") or ()
    if not kinds:
        return None
    started = (summary.get("run") or {}).get("started")
    columns = [
        Column("Outcome" if examples else "Errors", left=True),
        Column("Status"),
        Column("Count"),
        Column("First"),
        Column("Last"),
        Column("Kind of message" if examples else "Message", left=True, verbatim=True, wraps=True),
    ]
    if not examples:
        rows = tuple(Row(_error_cells(kind, started, _MESSAGE_LENGTH)) for kind in kinds[:MOST_ROWS])
        return Section("Errors", table=Table(tuple(columns), rows), notes=_left_out(kinds))
    columns.append(Column("Example", left=True, verbatim=True, wraps=True))
    rows = tuple(
        Row((*_error_cells(kind, started, _EXAMPLE_LENGTH), _text(kind.get("example"), _EXAMPLE_LENGTH)))
        for kind in kinds
    )
    return Section("Errors", table=Table(tuple(columns), rows).without_empty())


def _error_cells(kind: Part, started: str | None, most: int) -> tuple[str, ...]:
    status = kind.get("status")
    return (
        clean(kind.get("outcome")),
        UNDEFINED if status is None else str(status),
        count(kind.get("count")),
        after(kind.get("first"), started),
        after(kind.get("last"), started),
        _text(kind.get("message"), most),
    )


def _text(value: object, most: int) -> str:
    return UNDEFINED if value is None else short(clean(value), most)


def by_label(summary: Part, key: str, head: str) -> Section | None:
    """``by_name`` or ``by_class``, where there is more than one; None otherwise."""
    groups = summary.get(key) or {}
    if len(groups) < 2 or head.lower() in (summary.get("by") or ()):  # there it has a table of its own
        return None
    rows = [_group_row(label, part) for label, part in groups.items()]
    table = Table(_group_columns(head), tuple(rows[:MOST_ROWS]))
    return Section(f"By {head.lower()}", table=table, notes=(*meaning_in(table), *_left_out(rows)))


def breakdowns(summary: Part) -> Iterator[Section]:
    """A table for each dimension that the report was asked to tell the figures by."""
    for dimension, part in (summary.get("by") or {}).items():
        head = dimension.replace("_", " ").capitalize()
        rows = [_group_row(label, figures) for label, figures in part["groups"].items()]
        more = len(rows) + part["left_out"] - MOST_ROWS
        notes = (
            (Line(f"{count(more)} more, the first of them in summary.json", Tone.FAINT),) if more > 0 else ()
        )
        table = Table(_group_columns(head), tuple(rows[:MOST_ROWS]))
        notes = (*meaning_in(table), *notes)
        yield Section(f"By {head.lower()}", table=table, notes=notes, key=f"by_{dimension}")


def _group_columns(head: str) -> tuple[Column, ...]:
    return (
        Column(head, left=True, verbatim=True, wraps=True),
        Column("requests"),
        Column("errors"),
        *LATENCY_COLUMNS,
        Column("tokens/s", over="output"),
        Column("goodput"),
    )


def _group_row(label: str, part: Part) -> Row:
    requests, throughput = part.get("requests") or {}, part.get("throughput") or {}
    ttft, tpot, e2el = (_latency(part, key) for key in ("ttft", "tpot", "e2el"))
    cut = is_cut(requests)
    return Row(
        (
            _shown(label),
            count(requests.get("population")),
            percent(requests.get("error_rate")),
            estimate(ttft, "p50", cut=cut),
            estimate(ttft, "p99", cut=cut),
            estimate(tpot, "p50", cut=cut),
            estimate(tpot, "p99", cut=cut),
            estimate(e2el, "p50", cut=cut),
            estimate(e2el, "p99", cut=cut),
            number(throughput.get("output_tokens_per_s")),
            percent((part.get("goodput") or {}).get("ratio")),
        )
    )


def _latency(part: Part, key: str) -> Part:
    stats: Part = (part.get("latency_ms") or {}).get(key) or {}
    return stats


def replicas(summary: Part) -> Section | None:
    """The figures by replica; None where no answer named the replica that it is from."""
    found = summary.get("replicas") or ()
    if not found:
        return None
    columns = (
        Column("Replica", left=True, verbatim=True, wraps=True),
        Column("requests"),
        Column("share"),
        Column("errors"),
        *LATENCY_COLUMNS,
        Column("in flight", wide=True),
        Column("tokens/s", over="output"),
        Column("goodput"),
    )
    table = Table(columns, tuple(_replica_row(replica) for replica in found[:MOST_ROWS]))
    return Section("Replicas", table=table, notes=(*meaning_in(table), *_left_out(found)))


def _replica_row(replica: Part) -> Row:
    cut = is_cut(replica)
    return Row(
        (
            _shown(replica.get("name")),
            count(replica.get("requests")),
            percent(replica.get("share")),
            percent(replica.get("error_rate")),
            estimate(replica, "ttft_p50_ms", cut=cut),
            estimate(replica, "ttft_p99_ms", cut=cut),
            estimate(replica, "tpot_p50_ms", cut=cut),
            estimate(replica, "tpot_p99_ms", cut=cut),
            estimate(replica, "e2el_p50_ms", cut=cut),
            estimate(replica, "e2el_p99_ms", cut=cut),
            number(replica.get("concurrency_mean")),
            number(replica.get("output_tokens_per_s")),
            percent(replica.get("goodput_ratio")),
        )
    )


def _shown(label: object) -> str:
    return short(clean(label), _NAME_LENGTH) if label else "(none)"


def _left_out(rows: Sequence[object]) -> tuple[Line, ...]:
    more = len(rows) - MOST_ROWS
    return (Line(f"{count(more)} more in summary.json", Tone.FAINT),) if more > 0 else ()
