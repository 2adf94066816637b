"""The processes that made the load, where there is something to say of one of them."""

from collections.abc import Iterator

from llm_locust.metrics.summary_types.completeness import MasterHealth, WorkerCompleteness
from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.report.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.report.text import count, is_defined, number, plural

Node = WorkerCompleteness | MasterHealth

#: An event loop that was held for longer, once, is worth a row; so is a clock that is further off.
NOTABLE_HUB_LAG_MS = 50.0
NOTABLE_OFFSET_MS = 1.0

MOST_ROWS = 20

_COLUMNS = (
    Column("Node", left=True),
    Column("records"),
    Column("offset ms", over="clock"),
    Column("set", over="clock"),
    Column("p99", over="hub lag ms"),
    Column("max", over="hub lag ms"),
    Column("%", over="CPU"),
    Column("MiB", over="RSS"),
    Column("dropped"),
)


def nodes(summary: Summary) -> Section | None:
    """The nodes that were late, whose clock is off or was set, or that dropped records; None without any."""
    part = summary.completeness
    workers = part.workers
    found = [w for w in workers if _is_notable(w)]
    master = part.master
    rows = [_row(master, "master", "")] if _is_notable(master) else []
    rows += [_row(w, part.names[w.id], count(w.received)) for w in found]
    if not rows:
        return None
    notes = _notes(len(rows) - MOST_ROWS, len(workers) - len(found))
    return Section(
        "Nodes", table=Table(_COLUMNS, tuple(rows[:MOST_ROWS])).without_empty(), notes=tuple(notes)
    )


def _is_notable(node: Node) -> bool:
    return bool(
        (node.hub_lag_ms_max or 0) > NOTABLE_HUB_LAG_MS
        or node.clock_steps
        or (isinstance(node, WorkerCompleteness) and (node.dropped or _is_off(node)))
    )


def _is_off(worker: WorkerCompleteness) -> bool:
    return abs(worker.clock_offset_ms or 0) > max(NOTABLE_OFFSET_MS, worker.clock_error_ms or 0)


def _row(node: Node, name: str, records: str) -> TableRow:
    return TableRow(
        (
            name,
            records,
            _offset(node),
            count(node.clock_steps) if node.clock_steps else "",
            number(node.hub_lag_ms_p99),
            number(node.hub_lag_ms_max),
            number(node.cpu_percent_max),
            number(node.rss_mib_max),
            count(node.dropped) if isinstance(node, WorkerCompleteness) and node.dropped else "",
        )
    )


def _offset(node: Node) -> str:
    if not isinstance(node, WorkerCompleteness) or node.clock_offset_ms is None:
        return ""
    error = number(node.clock_error_ms)
    decimals = len(error.partition(".")[2]) if is_defined(node.clock_error_ms) else 3
    offset = number(node.clock_offset_ms)
    if len(offset.partition(".")[2]) > decimals:
        offset = f"{node.clock_offset_ms:,.{decimals}f}"
    return f"{offset} ± {error}"


def _notes(more: int, others: int) -> Iterator[Line]:
    if more > 0:
        yield Line(f"{count(more)} more in summary.json", Tone.FAINT)
    if others > 0:
        yield Line(
            f"{plural(others, 'other worker')}: loop never blocked for over {NOTABLE_HUB_LAG_MS:g} ms, "
            f"clock off by no more than its error or {NOTABLE_OFFSET_MS:g} ms",
            Tone.FAINT,
        )
