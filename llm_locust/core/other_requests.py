"""Requests of a locustfile that are not this package's, as those of ``HttpUser`` and ``FastHttpUser``.

They have no record. Each worker counts them by method and name; rows and times are bounded in number.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

#: Most rows that are kept apart, the one for the rest included.
MOST_OTHER_REQUESTS = 20

#: The name of that row. Its method is empty, which no request's is.
OTHER_NAMES = "other names"

#: Times are counted in steps of 2 %, from 1 µs to 3 years: a percentile is within 1 % of the truth.
_STEP, _LEAST_MS, _MOST_STEP = math.log(1.02), 1e-3, 1_500

#: Beyond any time.
_ENDLESS_MS = 1e300

_LONGEST_METHOD, _LONGEST_NAME = 32, 200

_Count = Annotated[int, Meta(ge=0, le=2**53)]
_Step = Annotated[int, Meta(ge=0, le=_MOST_STEP)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRequests:
    """The requests of one method and name, failed ones included.

    ``times`` has pairs of a step of time and the number of requests in it, in ascending order. A request
    whose time is no finite number is in none of them.
    """

    method: Annotated[str, Meta(max_length=_LONGEST_METHOD)]
    name: Annotated[str, Meta(max_length=_LONGEST_NAME)]
    requests: _Count
    failures: _Count = 0
    times: Annotated[list[tuple[_Step, _Count]], Meta(max_length=_MOST_STEP + 1)] = field(
        default_factory=list
    )

    def percentile_ms(self, percent: float) -> float | None:
        """The time of the request at this share of all whose time is known, ms, to 1 %; None without any."""
        known = sum(count for _, count in self.times)
        rank = max(1, math.ceil(percent / 100 * known))
        for step, count in self.times:
            rank -= count
            if rank <= 0:
                return _LEAST_MS * math.exp(step * _STEP)
        return None


@dataclass(slots=True)
class _Row:
    requests: int = 0
    failures: int = 0
    times: Counter[int] = field(default_factory=Counter)

    def add(self, requests: int, failures: int, times: Iterable[tuple[int, int]]) -> None:
        self.requests += requests
        self.failures += failures
        for step, count in times:
            self.times[step] += count


class OtherTable:
    """Counts by method and name. Names beyond :data:`MOST_OTHER_REQUESTS` are counted together."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], _Row] = {}

    def add(self, method: object, name: object, time_ms: object, *, failed: bool) -> None:
        """Count a request as an event of Locust tells it; a locustfile can fire one with any values."""
        step = _step(time_ms)
        row = self._row(_text(method, _LONGEST_METHOD), _text(name, _LONGEST_NAME))
        row.add(1, int(failed), () if step is None else ((step, 1),))

    def merge(self, found: OtherRequests) -> None:
        """Add the counts of another process."""
        self._row(found.method, found.name).add(found.requests, found.failures, found.times)

    def rows(self) -> list[OtherRequests]:
        """Each method and name, those with the most requests first, the rest last."""
        ranked = sorted(self._rows.items(), key=lambda each: (each[0] == _REST, -each[1].requests, each[0]))
        return [
            OtherRequests(
                method=method,
                name=name,
                requests=row.requests,
                failures=row.failures,
                times=sorted(row.times.items()),
            )
            for (method, name), row in ranked
        ]

    def _row(self, method: str, name: str) -> _Row:
        key = (method, name)
        if key not in self._rows and len(self._rows) >= MOST_OTHER_REQUESTS - (_REST not in self._rows):
            key = _REST
        return self._rows.setdefault(key, _Row())


def together(found: Iterable[OtherRequests]) -> list[OtherRequests]:
    """The counts of several workers or runs as those of one."""
    table = OtherTable()
    for each in sorted(found, key=lambda each: -each.requests):
        table.merge(each)
    return table.rows()


_REST = ("", OTHER_NAMES)


def _text(value: object, most: int) -> str:
    """The value as text that every encoder takes."""
    return str(value)[:most].encode(errors="replace").decode()


def _step(time_ms: object) -> int | None:
    if not isinstance(time_ms, int | float) or not -_ENDLESS_MS < time_ms < _ENDLESS_MS:
        return None
    return min(_MOST_STEP, round(math.log(max(time_ms, _LEAST_MS) / _LEAST_MS) / _STEP))
