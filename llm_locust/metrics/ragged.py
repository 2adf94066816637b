"""List columns without a Python loop over rows: a hundred million token times fit in pieces."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from llm_locust.core.batch import Ragged

#: Values that one piece holds at most: its temporaries, 2 MiB each, stay near the processor.
PIECE = 1 << 18


def lengths(ragged: Ragged) -> NDArray[np.int64]:
    """The number of values of each row."""
    return ragged.offsets[1:] - ragged.offsets[:-1]


def offsets_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each row begins when rows of these lengths stand one after the other, and the end."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def gather(ragged: Ragged, rows: NDArray[np.int64]) -> Ragged:
    """The lists of ``rows``, in that order, as a ragged column of their own.

    Where they stand one after the other already, the values are those of ``ragged``, not a copy.
    """
    starts, ends = ragged.offsets[rows], ragged.offsets[rows + 1]
    offsets = offsets_of(ends - starts)
    if len(rows) and (starts[1:] == ends[:-1]).all():
        return Ragged(offsets, ragged.values[starts[0] : ends[-1]])
    counts = ends - starts
    index = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], counts)
    return Ragged(offsets, ragged.values[index])


def pieces(ragged: Ragged, rows: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], Ragged]]:
    """``rows`` in consecutive parts of at most :data:`PIECE` values (or one row), with their lists."""
    ends = np.cumsum(ragged.offsets[rows + 1] - ragged.offsets[rows])
    start = 0
    while start < len(rows):
        done = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, done + PIECE, side="right")))
        yield rows[start:stop], gather(ragged, rows[start:stop])
        start = stop
