"""Records as columns without an Arrow table, for a look at a few of them: a tenth of the time."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from llm_locust.core.batch import Labels, Ragged
from llm_locust.core.record import RequestRecord

_EMPTY = np.empty(0, dtype=np.int64)


class ColumnSource(Protocol):
    """What metrics read columns from: a :class:`~llm_locust.core.batch.RecordBatch`, or records."""

    def __len__(self) -> int: ...

    def floats(self, name: str) -> NDArray[np.float64]: ...

    def seconds(self, name: str, origin_ns: int) -> NDArray[np.float64]: ...

    def ints(self, name: str) -> NDArray[np.int64]: ...

    def bools(self, name: str) -> NDArray[np.bool_]: ...

    def labels(self, name: str) -> Labels: ...

    def texts(self, name: str) -> list[str | None]: ...

    def arrivals(self) -> Ragged: ...


class RecordRows:
    """Columns of records, as :meth:`RecordBatch.from_records` of the same arguments has them."""

    __slots__ = ("_records", "_worker")

    def __init__(self, records: Sequence[RequestRecord], worker: str) -> None:
        self._records = records
        self._worker = worker

    def __len__(self) -> int:
        return len(self._records)

    def _values(self, name: str) -> list[Any]:
        if name == "worker":
            return [self._worker] * len(self._records)
        attribute = "slo_class" if name == "class" else name
        return [getattr(record, attribute) for record in self._records]

    def floats(self, name: str) -> NDArray[np.float64]:
        """A numeric column as float64, None as NaN."""
        return np.array(self._values(name), dtype=np.float64)  # which takes None for NaN

    def seconds(self, name: str, origin_ns: int) -> NDArray[np.float64]:
        """A wall-clock column in seconds after ``origin_ns``, None as NaN; subtracted as integers."""
        values = self._values(name)
        after = [None if at_ns is None else at_ns - origin_ns for at_ns in values]
        return np.array(after, dtype=np.float64) * 1e-9

    def ints(self, name: str) -> NDArray[np.int64]:
        """A column without None as int64 (raises ValueError if it has one)."""
        values = self._values(name)
        if None in values:
            raise ValueError(f"column {name!r} has {values.count(None)} nulls")
        return np.array(values, dtype=np.int64)

    def bools(self, name: str) -> NDArray[np.bool_]:
        return np.array(self._values(name), dtype=np.bool_)

    def labels(self, name: str) -> Labels:
        """A text column as codes and names, in the order of their first occurrence."""
        values = self._values(name)
        names = dict.fromkeys(value for value in values if value is not None)
        code_of: dict[str | None, int] = {value: code for code, value in enumerate(names)} | {None: -1}
        return Labels(np.array([code_of[value] for value in values], np.int32), tuple(map(str, names)))

    def texts(self, name: str) -> list[str | None]:
        return [None if value is None else str(value) for value in self._values(name)]

    def arrivals(self) -> Ragged:
        """Arrival times of the token events of all requests, ns after each request's ``sent_ns``."""
        return _ragged(self._values("arrivals_ns"))


def _ragged(lists: Sequence[NDArray[np.int64] | None]) -> Ragged:
    own = [_EMPTY if each is None else each for each in lists]
    offsets = np.array([*accumulate(map(len, own), initial=0)], dtype=np.int64)
    return Ragged(offsets, np.concatenate([_EMPTY, *own]))
