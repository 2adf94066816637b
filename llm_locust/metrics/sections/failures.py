"""Failed requests by cause, and wall times as text."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np

from llm_locust.core.batch import Labels
from llm_locust.metrics.columns import OUTCOMES, Columns, Floats, Rows
from llm_locust.metrics.sections.error_text import fold
from llm_locust.metrics.summary_types.requests import ErrorKind

#: Kinds of failure that are listed one by one.
MOST_KINDS = 50

#: ``outcome`` of the last entry, which counts the kinds that are not listed.
OTHER = "other"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def failures(c: Columns, failed: Rows) -> list[ErrorKind]:
    """The requests ``failed`` by (outcome, status, message), most frequent first.

    ``message`` is the error text without details that differ between cases
    (:func:`~llm_locust.metrics.sections.error_text.fold`), ``example`` the unchanged text of the first such
    request; of several at one time, the one that sorts first. ``first`` and ``last`` are when such requests
    ended. Beyond :data:`MOST_KINDS` kinds one entry with the outcome ``other`` counts the rest, so that the
    counts add up to all failures.
    """
    kinds = _kinds(c, failed)
    order = sorted(range(len(kinds.names)), key=lambda k: (-kinds.counts[k], *_sortable(kinds.names[k])))
    examples = _examples(c, failed, kinds, set(order[:MOST_KINDS]))
    listed = [
        ErrorKind(
            outcome=kinds.names[k][0],
            status=kinds.names[k][1],
            message=kinds.names[k][2],
            example=examples.get(k),
            count=int(kinds.counts[k]),
            first=_at(c, kinds.first_s[k]),
            last=_at(c, kinds.last_s[k]),
        )
        for k in order[:MOST_KINDS]
    ]
    return listed + _rest(c, kinds, np.array(order[MOST_KINDS:], dtype=np.int64))


def iso(at_ns: int) -> str:
    """A wall-clock time as ISO 8601 in UTC, to the microsecond."""
    moment = _EPOCH + timedelta(microseconds=at_ns // 1000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


_Name = tuple[str, int | None, str | None]


@dataclass(frozen=True, slots=True)
class _Kinds:
    """``names[k]`` is (outcome, status, message) of kind k; ``of[i]`` is the kind of failed request i."""

    names: list[_Name]
    of: Rows
    counts: Rows
    first_s: Floats
    last_s: Floats


def _kinds(c: Columns, failed: Rows) -> _Kinds:
    message, messages = _messages(c.error, failed)
    # One integer instead of three columns: numpy sorts those a hundred times faster than rows.
    keys = (c.outcome[failed].astype(np.int64) << 48) + (c.status[failed].astype(np.int64) + 1 << 32)
    keys, of, counts = np.unique(keys + message + 1, return_inverse=True, return_counts=True)
    first_s, last_s = np.full(len(keys), np.inf), np.full(len(keys), -np.inf)
    np.minimum.at(first_s, of, c.ended_s[failed])
    np.maximum.at(last_s, of, c.ended_s[failed])
    triples = zip(keys >> 48, (keys >> 32 & 0xFFFF) - 1, (keys & 0xFFFF_FFFF) - 1, strict=True)
    names = [
        (OUTCOMES[outcome].value, int(status) if status >= 0 else None, messages[text] if text >= 0 else None)
        for outcome, status, text in triples
    ]
    return _Kinds(names, of, counts, first_s, last_s)


def _messages(error: Labels, failed: Rows) -> tuple[Rows, list[str]]:
    """Folded texts, each once, and for each failed request the index of its text; -1 without one."""
    codes = error.codes[failed]
    messages: dict[str, int] = {}
    folded = np.full(len(error.names) + 1, -1, dtype=np.int64)  # the last one is that of code -1
    for code in np.unique(codes[codes >= 0]).tolist():
        folded[code] = messages.setdefault(fold(error.names[code]), len(messages))
    return folded[codes], list(messages)


def _examples(c: Columns, failed: Rows, kinds: _Kinds, wanted: set[int]) -> dict[int, str]:
    """For each kind with texts, the least text among those of its first time."""
    at_first = np.flatnonzero(c.ended_s[failed] == kinds.first_s[kinds.of])
    examples: dict[int, str] = {}
    for kind, code in zip(kinds.of[at_first].tolist(), c.error.codes[failed[at_first]].tolist(), strict=True):
        if kind in wanted and code >= 0:
            text = c.error.names[code]
            examples[kind] = min(text, examples.get(kind, text))
    return examples


def _sortable(name: _Name) -> tuple[str, int, str]:
    outcome, status, message = name
    return outcome, status or 0, message or ""


def _rest(c: Columns, kinds: _Kinds, rest: Rows) -> list[ErrorKind]:
    if not len(rest):
        return []
    return [
        ErrorKind(
            outcome=OTHER,
            status=None,
            message=f"{len(rest)} more kinds of failure",
            example=None,
            count=int(kinds.counts[rest].sum()),
            first=_at(c, kinds.first_s[rest].min()),
            last=_at(c, kinds.last_s[rest].max()),
        )
    ]


def _at(c: Columns, ended_s: float) -> str:
    return iso(c.origin_ns + round(float(ended_s) * 1e9))
