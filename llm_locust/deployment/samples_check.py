"""Samples of a file that no scrape of this program can have written: left out, and named.

Pages are checked when they are scraped (:func:`~llm_locust.deployment.exposition.readings`). A file may have
been written by an earlier version, or by anyone.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from llm_locust.core.arrow.columns import from_numpy, values_of
from llm_locust.deployment.exposition import MOST_VALUE
from llm_locust.deployment.samples_file import SCHEMA
from llm_locust.wire.names import one_line
from llm_locust.wire.payload import DECODE_ERRORS

Mask = NDArray[np.bool_]

#: Latest valid time, in the year 2116.
_LAST_NS = 1 << 62

_MOST_NAMED = 3

_labels_of = msgspec.json.Decoder(dict[str, str]).decode


class CheckedSamples:
    """Iterates over the samples of tables that can be used, and counts the others by name and reason."""

    def __init__(self, tables: Iterable[pa.Table]) -> None:
        self._tables = tables
        self._left_out: Counter[tuple[str, str]] = Counter()

    def __iter__(self) -> Iterator[pa.Table]:
        for table in self._tables:
            yield self._usable(table)

    @property
    def failure(self) -> str:
        """What was left out so far, in a few words; empty if it is nothing."""
        if not self._left_out:
            return ""
        named = [
            f"{n:,} of {one_line(name)[:40]!r} ({why})"
            for (name, why), n in self._left_out.most_common(_MOST_NAMED)
        ]
        more = len(self._left_out) - len(named)
        others = f" and {more:,} other kinds" if more else ""
        return (
            f"{self._left_out.total():,} samples cannot be right and were left out: "
            + ", ".join(named)
            + others
        )

    def _usable(self, table: pa.Table) -> pa.Table:
        table = table.cast(SCHEMA).unify_dictionaries().combine_chunks()
        kept = np.ones(len(table), dtype=np.bool_)
        for why, is_wrong in _RULES.items():
            wrong = is_wrong(table) & kept
            if wrong.any():
                kept &= ~wrong
                names = table.column("name").filter(from_numpy(wrong)).to_pylist()
                self._left_out.update((str(name), why) for name in names)
        return table if kept.all() else table.filter(from_numpy(kept))


def _is_unnamed(table: pa.Table) -> Mask:
    """A dictionary may have a null of its own, which no column counts."""
    return ~(_where(table, "target", lambda _: True) & _where(table, "name", lambda _: True))


def _is_too_large(table: pa.Table) -> Mask:
    return ~_mask(pc.less_equal(pc.abs(table.column("value")), MOST_VALUE))  # NaN is not


def _is_at_no_time(table: pa.Table) -> Mask:
    at_ns = table.column("at_ns")
    return ~_mask(pc.and_(pc.greater_equal(at_ns, 0), pc.less_equal(at_ns, _LAST_NS)))


def _has_no_labels(table: pa.Table) -> Mask:
    return ~_where(table, "labels", lambda text: _decoded(text) is not None)


def _has_no_edge(table: pa.Table) -> Mask:
    is_bucket = _where(table, "name", lambda name: name.endswith("_bucket"))
    return is_bucket & ~_where(table, "labels", _is_with_edge)


#: Why a sample cannot be used, and which are such.
_RULES: dict[str, Callable[[pa.Table], Mask]] = {
    "target or name is missing": _is_unnamed,
    f"the value is not within ±{MOST_VALUE:.0e}": _is_too_large,
    "the time is not between 1970 and 2116": _is_at_no_time,
    "the labels are no JSON object of texts": _has_no_labels,
    "a bucket's 'le' is no number": _has_no_edge,
}


def _decoded(text: str) -> dict[str, str] | None:
    try:
        return _labels_of(text)
    except DECODE_ERRORS:
        return None


def _is_with_edge(text: str) -> bool:
    try:
        return not math.isnan(float((_decoded(text) or {}).get("le", math.nan)))
    except ValueError:
        return False


def _where(table: pa.Table, name: str, holds: Callable[[str], bool]) -> Mask:
    """The rows of whose text in a column something holds: asked once for each text."""
    found = [np.zeros(0, dtype=np.bool_)]
    for chunk in table.column(name).chunks:
        texts = chunk.dictionary.to_pylist()
        of_text = np.array([text is not None and holds(text) for text in texts], dtype=np.bool_)
        found.append(of_text[values_of(chunk.indices)])
    return np.concatenate(found)


def _mask(column: pa.ChunkedArray) -> Mask:
    chunks = [values_of(chunk) for chunk in column.chunks]
    return np.concatenate([np.zeros(0, dtype=np.bool_), *chunks])
