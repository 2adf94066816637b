"""Many parts put below each other: arrays of a part into the arrays of all rows, in place."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from llm_locust.core.batch import Labels, RecordBatch, Requests

T = TypeVar("T")

#: From so many rows on an array is looked at for what memory it could do without.
_LARGE = 1 << 16


class Whole(Generic[T]):
    """The values of a frozen dataclass for ``rows`` requests, out of those of its parts, in order.

    Of the fields of ``kind``, arrays of shape (part's rows,), dictionaries of such arrays and
    :class:`~llm_locust.core.batch.Labels` become those of all rows; what else there is (an origin, a
    window, None) all parts have alike. Beside the result no memory is used: parts that were kept to
    be joined in the end would be there twice.

    Raises:
        ValueError: the parts have more or fewer rows than ``rows``.
    """

    def __init__(self, kind: type[T], rows: int) -> None:
        self._kind = kind
        self._rows = rows
        self._at = 0
        self._values: dict[str, Any] = {}
        self._texts: dict[str, dict[str, int]] = {}

    def add(self, part: T, rows: int) -> None:
        """The next part, which has ``rows`` requests. It may be of a subclass of the kind."""
        if self._at + rows > self._rows:
            raise ValueError(f"more than the {self._rows} requests that were announced")
        for field in fields(self._kind):  # type: ignore[arg-type]
            whole, value = self._values.get(field.name), getattr(part, field.name)
            if isinstance(value, dict):
                whole = {key: self._placed((whole or {}).get(key), array) for key, array in value.items()}
            elif isinstance(value, Labels):
                whole = self._placed(whole, self._recoded(field.name, value))
            elif isinstance(value, np.ndarray):
                whole = self._placed(whole, value)
            else:
                whole = value
            self._values[field.name] = whole
        self._at += rows

    def value(self) -> T:
        """All rows, once; the parts have to be there."""
        if self._at != self._rows:
            raise ValueError(f"{self._at} of the {self._rows} requests that were announced")
        values = {name: self._thrifty(value) for name, value in self._values.items()}
        self._values = {}
        labels = {key: Labels(values[key], tuple(codes)) for key, codes in self._texts.items()}
        return self._kind(**(values | labels))

    def _thrifty(self, value: Any) -> Any:
        """An array whose values are all alike as a view of one of them: many columns of a run are so."""
        if isinstance(value, dict):
            return {key: self._thrifty(array) for key, array in value.items()}
        if not isinstance(value, np.ndarray) or len(value) < _LARGE:
            return value
        first = value[:1]
        alike = (
            np.isnan(value).all()
            if first.dtype.kind == "f" and np.isnan(first[0])
            else (value == first).all()
        )
        return np.broadcast_to(first.copy(), value.shape) if alike else value

    def _placed(self, whole: NDArray[Any] | None, part: NDArray[Any]) -> NDArray[Any]:
        if whole is None:
            whole = np.empty(self._rows, part.dtype)
        whole[self._at : self._at + len(part)] = part
        return whole

    def _recoded(self, column: str, labels: Labels) -> NDArray[np.int32]:
        """The codes of a part by the texts of the whole, -1 staying -1."""
        codes = self._texts.setdefault(column, {})
        to = [codes.setdefault(name, len(codes)) for name in labels.names]
        return np.array([*to, -1], dtype=np.int32)[labels.codes]


def read_whole(
    kind: type[T], requests: Requests, columns: Sequence[str], of: Callable[[RecordBatch], T]
) -> T:
    """What ``of`` makes of each batch with these columns, of all requests, read part by part."""
    whole = Whole(kind, len(requests))
    for batch in requests.parts(columns):
        whole.add(of(batch), len(batch))
    return whole.value()
