"""Errors: failed requests by cause."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np

from llm_locust.core.batch import Labels
from llm_locust.core.texts import PLACEHOLDERS, UNDEFINED, fold
from llm_locust.figures.figure import Run
from llm_locust.figures.parts import MOST_ROWS, rows_left_out as _left_out
from llm_locust.figures.section import Column, Section, Table, TableRow
from llm_locust.figures.text import after, clean, count, short
from llm_locust.metrics.columns import OUTCOMES, Columns, Floats, Rows
from llm_locust.metrics.structs import SummaryPart, key
from llm_locust.metrics.window import iso

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary

_FAILED = "failed, of the population"


class ErrorKind(SummaryPart, frozen=True):
    """A kind of failure."""

    outcome: Annotated[str, key("outcome of a kind of failure", _FAILED)]
    status: Annotated[int | None, key("HTTP status", _FAILED)]
    message: Annotated[str | None, key("text without what differs from case to case", _FAILED)]
    example: Annotated[str | None, key("the first such text", _FAILED)]
    count: Annotated[int, key("how many", _FAILED)]
    first: Annotated[str, key("when the first of them ended, ISO 8601, UTC", _FAILED)]
    last: Annotated[str, key("when the last of them ended, ISO 8601, UTC", _FAILED)]


#: Kinds of failure that are listed one by one.
MOST_KINDS = 50

#: ``outcome`` of the last entry, which counts the kinds that are not listed.
OTHER = "other"


def compute(run: Run) -> list[ErrorKind]:
    return failures(run.m.c, run.population.failed)


def failures(c: Columns, failed: Rows) -> list[ErrorKind]:
    """The requests ``failed`` by (outcome, status, message), most frequent first.

    ``message`` is the error text without details that differ between cases
    (:func:`~llm_locust.core.texts.fold`), ``example`` the unchanged text of the first such
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


_MESSAGE_LENGTH, _EXAMPLE_LENGTH, _NAME_LENGTH = 160, 2_000, 64


_MESSAGE_LENGTH, _EXAMPLE_LENGTH, _NAME_LENGTH = 160, 2_000, 64


def show(summary: "Summary", *, examples: bool = False) -> Section | None:
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
