"""Batch numbers as ranges, and as text in manifests: ``0-17 19 21-30``."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence

_WORD = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


def joined(ranges: Iterable[range]) -> list[range]:
    """The same numbers as ascending ranges that neither touch nor overlap."""
    result: list[range] = []
    for each in sorted((r for r in ranges if r), key=lambda r: r.start):
        if result and each.start <= result[-1].stop:
            result[-1] = range(result[-1].start, max(result[-1].stop, each.stop))
        else:
            result.append(each)
    return result


def seq_ranges(numbers: Iterable[int]) -> list[range]:
    """These numbers, in any order and with repetitions, as :func:`joined` ranges."""
    return joined(range(n, n + 1) for n in numbers)


def format_ranges(numbers: Iterable[int]) -> str:
    """Numbers as text: ``0-17 19 21-30``; empty for none."""
    return ranges_text(seq_ranges(numbers))


def ranges_text(ranges: Iterable[range]) -> str:
    """:func:`joined` ranges as text."""
    return " ".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in ranges)


def parse_ranges(text: str) -> list[range]:
    """Parse the result of :func:`format_ranges`, as :func:`joined` ranges.

    Raises:
        ValueError: the text is not a list of numbers and ranges; names the word.
    """
    return joined(_parse_word(word, text) for word in text.split())


def _parse_word(word: str, text: str) -> range:
    match = _WORD.fullmatch(word)
    if match is None:
        raise ValueError(f"{word!r} in {text!r} is not a range of batch numbers such as 0-17 or 19")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise ValueError(f"{word!r} in {text!r} ends before it starts")
    return range(first, last + 1)


def covers(outer: Sequence[range], inner: Sequence[range]) -> bool:
    """Whether all numbers of ``inner`` are in ``outer``, which is :func:`joined`."""
    return all(any(o.start <= i.start and i.stop <= o.stop for o in outer) for i in inner)


def overlap(some: Sequence[range], others: Sequence[range]) -> bool:
    """Whether a number is in both."""
    return any(s.start < o.stop and o.start < s.stop for s in some for o in others)


def minus(some: Sequence[range], others: Sequence[range]) -> list[range]:
    """Numbers of the first without those of the second; both are :func:`joined`."""
    left = list(some)
    for o in others:
        parts = ((range(s.start, min(s.stop, o.start)), range(max(s.start, o.stop), s.stop)) for s in left)
        left = [part for two in parts for part in two if part]
    return left


class Seqs:
    """Growing set of batch numbers; its memory depends on the gaps, not on the numbers."""

    __slots__ = ("_length", "_starts", "_stops")

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        # Run i is starts[i] <= n < stops[i]; runs ascend, with at least one missing number between two.
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._length = 0
        for number in numbers:
            self.add(number)

    def add(self, number: int) -> None:
        """Add a number; a repeated one changes nothing (raises ValueError below 0)."""
        if number < 0:
            raise ValueError(f"{number} is not a batch number: those start at 0")
        after = bisect_right(self._starts, number)  # the first run that starts after the number
        if after and number < self._stops[after - 1]:
            return
        self._length += 1
        extends = after > 0 and self._stops[after - 1] == number
        precedes = after < len(self._starts) and self._starts[after] == number + 1
        if extends and precedes:
            self._stops[after - 1] = self._stops.pop(after)
            del self._starts[after]
        elif extends:
            self._stops[after - 1] = number + 1
        elif precedes:
            self._starts[after] = number
        else:
            self._starts.insert(after, number)
            self._stops.insert(after, number + 1)

    def ranges(self) -> list[range]:
        """Runs of consecutive numbers, as from :func:`joined`."""
        return [range(*run) for run in zip(self._starts, self._stops, strict=True)]

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._stops[at]

    def __len__(self) -> int:
        return self._length

    def __str__(self) -> str:
        return ranges_text(self.ranges())
