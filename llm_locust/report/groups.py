"""What differed inside the run: errors by kind, and the figures by name, class and replica."""

from collections.abc import Mapping, Sequence
from typing import Any

from llm_locust.report.section import Column, Line, Row, Section, Table, Tone
from llm_locust.report.text import UNDEFINED, after, clean, count, number, percent, short

Part = Mapping[str, Any]

#: Rows of one table; a note says how many more are in summary.json.
MOST_ROWS = 20
_MESSAGE_LENGTH = 160
_NAME_LENGTH = 64


def errors(summary: Part) -> Section | None:
    """The kinds of failure, most frequent first; None without any."""
    kinds = summary.get("errors") or ()
    if not kinds:
        return None
    started = (summary.get("run") or {}).get("started")
    columns = (
        Column("Errors", left=True),
        Column("Status"),
        Column("Count"),
        Column("First"),
        Column("Last"),
        Column("Message", left=True, verbatim=True, wraps=True),
    )
    rows = tuple(_error_row(kind, started) for kind in kinds[:MOST_ROWS])
    return Section("Errors", table=Table(columns, rows), notes=_left_out(kinds))


def _error_row(kind: Part, started: str | None) -> Row:
    status = kind.get("status")
    message = kind.get("message")
    return Row(
        (
            clean(kind.get("outcome")),
            UNDEFINED if status is None else str(status),
            count(kind.get("count")),
            after(kind.get("first"), started),
            after(kind.get("last"), started),
            UNDEFINED if message is None else short(clean(message), _MESSAGE_LENGTH),
        )
    )


def by_label(summary: Part, key: str, head: str) -> Section | None:
    """``by_name`` or ``by_class``, where there is more than one; None otherwise."""
    groups = summary.get(key) or {}
    if len(groups) < 2:
        return None
    rows = [_group_row(label, part) for label, part in groups.items()]
    columns = (
        Column(head, left=True, verbatim=True, wraps=True),
        Column("requests"),
        Column("errors"),
        Column("p50", over="TTFT ms"),
        Column("p99", over="TTFT ms"),
        Column("p50", over="TPOT ms"),
        Column("p99", over="TPOT ms", wide=True),
        Column("p50", over="E2EL ms", wide=True),
        Column("p99", over="E2EL ms", wide=True),
        Column("tokens/s", over="output"),
        Column("goodput"),
    )
    return Section(f"By {head.lower()}", table=Table(columns, tuple(rows[:MOST_ROWS])), notes=_left_out(rows))


def _group_row(label: str, part: Part) -> Row:
    requests, throughput = part.get("requests") or {}, part.get("throughput") or {}
    ttft, tpot, e2el = (_latency(part, key) for key in ("ttft", "tpot", "e2el"))
    return Row(
        (
            _shown(label),
            count(requests.get("population")),
            percent(requests.get("error_rate")),
            number(ttft.get("p50")),
            number(ttft.get("p99")),
            number(tpot.get("p50")),
            number(tpot.get("p99")),
            number(e2el.get("p50")),
            number(e2el.get("p99")),
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
        Column("p50", over="TTFT ms"),
        Column("p99", over="TTFT ms"),
        Column("p50", over="TPOT ms"),
        Column("tokens/s", over="output"),
        Column("goodput"),
    )
    rows = tuple(_replica_row(replica) for replica in found[:MOST_ROWS])
    return Section("Replicas", table=Table(columns, rows), notes=_left_out(found))


def _replica_row(replica: Part) -> Row:
    return Row(
        (
            _shown(replica.get("name")),
            count(replica.get("requests")),
            percent(replica.get("share")),
            percent(replica.get("error_rate")),
            number(replica.get("ttft_p50_ms")),
            number(replica.get("ttft_p99_ms")),
            number(replica.get("tpot_p50_ms")),
            number(replica.get("output_tokens_per_s")),
            percent(replica.get("goodput_ratio")),
        )
    )


def _shown(label: object) -> str:
    return short(clean(label), _NAME_LENGTH) if label else "(none)"


def _left_out(rows: Sequence[object]) -> tuple[Line, ...]:
    more = len(rows) - MOST_ROWS
    return (Line(f"{count(more)} more in summary.json", Tone.FAINT),) if more > 0 else ()
