"""The failed requests by what went wrong, and wall times as text."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from llm_locust.metrics.columns import OUTCOMES, Columns, Rows

#: Kinds of failure that are listed one by one.
MOST_KINDS = 50

#: ``outcome`` of the last entry, which counts the kinds that are not listed.
OTHER = "other"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def failures(c: Columns, failed: Rows) -> list[dict[str, Any]]:
    """The requests ``failed`` by (outcome, status, message), most frequent first.

    ``first`` and ``last`` are when such requests ended. Beyond :data:`MOST_KINDS` kinds one entry
    with the outcome ``other`` counts the rest, so that the counts add up to all failures.
    """
    keys = np.stack([column[failed].astype(np.int64) for column in (c.outcome, c.status, c.error.codes)])
    kinds, kind, counts = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    ended_s = c.ended_s[failed]
    first, last = np.full(len(counts), np.inf), np.full(len(counts), -np.inf)
    np.minimum.at(first, kind, ended_s)
    np.maximum.at(last, kind, ended_s)
    entries = [
        {
            "outcome": OUTCOMES[outcome].value,
            "status": int(code) if code >= 0 else None,
            "message": c.error.names[message] if message >= 0 else None,
            "count": int(count),
            "first": _at(c, begin),
            "last": _at(c, end),
        }
        for (outcome, code, message), count, begin, end in zip(kinds.T, counts, first, last, strict=True)
    ]
    entries.sort(key=lambda e: (-e["count"], e["outcome"], e["status"] or 0, e["message"] or ""))
    return entries[:MOST_KINDS] + _rest(entries[MOST_KINDS:])


def iso(at_ns: int) -> str:
    """A wall-clock time as ISO 8601 in UTC, to the microsecond."""
    moment = _EPOCH + timedelta(microseconds=at_ns // 1000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _rest(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not entries:
        return []
    return [
        {
            "outcome": OTHER,
            "status": None,
            "message": f"{len(entries)} more kinds of failure",
            "count": sum(e["count"] for e in entries),
            "first": min(e["first"] for e in entries),
            "last": max(e["last"] for e in entries),
        }
    ]


def _at(c: Columns, ended_s: float) -> str:
    return iso(c.origin_ns + round(ended_s * 1e9))
