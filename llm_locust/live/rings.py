"""Recent past of a run in cells of equal width, and the whole run in a bounded number of cells."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Ring(Generic[T]):
    """Values by time, in cells of ``width_s`` aligned to multiples of it; at most ``most`` cells.

    Args:
        merge: combines two values of one cell.
        whole: keep all of the past, by doubling the width whenever there would be too many cells; else forget
            the oldest cells.
    """

    def __init__(self, width_s: float, most: int, merge: Callable[[T, T], T], *, whole: bool = False) -> None:
        self.width_s = width_s
        self._most = most
        self._merge = merge
        self._whole = whole
        self._cells: dict[int, T] = {}
        self._newest: int | None = None

    def __len__(self) -> int:
        return len(self._cells)

    def add(self, at_s: float, value: T) -> None:
        """Add to the cell of a time; ignore a time that is too old for the ring."""
        place = int(at_s // self.width_s)
        if self._newest is None or place > self._newest:
            self._newest = place
            self._forget()
        if not self._whole and place <= self._newest - self._most:
            return
        self._put(place, value)
        while self._whole and len(self._cells) > self._most:
            self._widen()

    def cells(self, begin_s: float, end_s: float) -> Iterator[tuple[float, T]]:
        """Start and value of each cell between two times, the oldest first."""
        for place in sorted(self._cells):
            if begin_s <= place * self.width_s and (place + 1) * self.width_s <= end_s:
                yield place * self.width_s, self._cells[place]

    @property
    def since_s(self) -> float:
        """Time from which on all that was added is in its cells."""
        if self._whole or self._newest is None:
            return float("-inf")
        return (self._newest - self._most + 1) * self.width_s

    def _put(self, place: int, value: T) -> None:
        self._cells[place] = self._merge(self._cells[place], value) if place in self._cells else value

    def _forget(self) -> None:
        assert self._newest is not None
        if not self._whole:
            oldest = self._newest - self._most
            self._cells = {place: value for place, value in self._cells.items() if place > oldest}

    def _widen(self) -> None:
        assert self._newest is not None
        before, self._cells = self._cells, {}
        self.width_s *= 2
        self._newest //= 2
        for place, value in before.items():
            self._put(place // 2, value)
