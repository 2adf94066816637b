"""Detection of drift in a soak, with a line in the log and on the page.

The rules are those of llm_locust.figures.steadiness, applied to the cells of the live store: bins of a
minute or more, of 100 requests or more, at most 60; a line through them; a slope beyond noise that is also
large enough, found in several looks in a row. Only the time since the number of users last changed counts.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import gevent
import numpy as np

from llm_locust.figures.steadiness import BIN_REQUESTS, BIN_S, LONG_ENOUGH_S, MOST_BINS
from llm_locust.figures.text import number
from llm_locust.live.counts import Counts
from llm_locust.live.figures import Figures, figures
from llm_locust.live.store import Cell, LiveStore, TimeCells
from llm_locust.metrics.columns import Floats
from llm_locust.metrics.stats.trend import Trend, fit_trend
from llm_locust.swarm.process.event_loop import off_the_hub

logger = logging.getLogger(__name__)


LOOK_INTERVAL_S = 60.0

#: Number of looks in a row that must find a drift, because a soak is checked many times.
LOOKS = 3

_NAMED_FROM = 0.998
_HOUR_S = 3600.0
_MEMORY_CELLS = 360


@dataclass(frozen=True, slots=True)
class _Measure:
    """A measure that may drift. ``sign`` is 1 if more is worse, -1 if less is. ``least`` is the smallest
    change over the whole span that is reported, as a share of the level if ``relative``."""

    name: str
    unit: str
    sign: int
    least: float
    relative: bool
    scale: float = 1.0


_TTFT = _Measure("TTFT p99", "ms", 1, 0.1, relative=True)
_GOODPUT = _Measure("goodput", "%", -1, 0.01, relative=False, scale=100.0)
_ERRORS = _Measure("error rate", "%", 1, 0.01, relative=False, scale=100.0)
_MEMORY = _Measure("memory of a client process", "MiB", 1, 0.1, relative=True)


class DriftWatch:
    """Checks a store once a minute; ``alarms`` are the current drifts, in words.

    Args:
        memory_mib: resident memory of the largest process that makes load, now; None if unknown.
    """

    def __init__(self, store: LiveStore, memory_mib: Callable[[], float | None]) -> None:
        self.alarms: tuple[str, ...] = ()
        self._store = store
        self._memory_mib = memory_mib
        self._seen: dict[str, int] = {}
        self._begin()

    def watch(self) -> NoReturn:
        while True:
            gevent.sleep(LOOK_INTERVAL_S)
            self.look()

    def look(self) -> None:
        """Sample the memory, and update the drifts."""
        store = self._store
        if (store.run.id, store.epoch) != self._of:
            self._begin()
        if not store.run.id or store.content.stopped_s is not None:
            return
        memory = self._memory_mib()
        if memory is not None:
            self._memory.add(store.clock_s(), memory)
        samples = list(self._memory.between(store.content.started_s - self._memory.width_s, math.inf))
        self._tell(off_the_hub(drifts, store.at_rest(), samples))

    def _begin(self) -> None:
        self._of = self._store.run.id, self._store.epoch
        self._memory: TimeCells[float] = TimeCells(LOOK_INTERVAL_S, _MEMORY_CELLS, max, whole=True)
        self._seen.clear()
        self.alarms = ()

    def _tell(self, found: Mapping[str, str]) -> None:
        before = {name for name, looks in self._seen.items() if looks >= LOOKS}
        self._seen = {name: self._seen.get(name, 0) + 1 for name in found}
        named = [name for name, looks in self._seen.items() if looks >= LOOKS]
        for name in named:
            if name not in before:
                logger.warning("drift: %s", found[name])
        for name in sorted(before - set(named)):
            logger.info("drift: that of %s is no longer beyond noise", name)
        self.alarms = tuple(found[name] for name in named)


def drifts(store: LiveStore, memory_mib: Sequence[tuple[float, float]]) -> dict[str, str]:
    """Measures that got worse beyond noise: name of the measure -> description.

    Args:
        store: a copy that does not change.
        memory_mib: times and values of the memory.
    """
    cells = _steady_cells(store)
    if not cells or len(cells) * store.content.run.width_s < LONG_ENOUGH_S:
        return {}
    begin_s = cells[0][0]
    at_h, of_bins = _binned(store, cells)
    series: dict[_Measure, Floats] = {
        _TTFT: _values([f.latencies["ttft"].p99_ms for f in of_bins]),
        _GOODPUT: _values([f.goodput for f in of_bins]),
        _ERRORS: _values([f.failures / f.requests if f.requests else None for f in of_bins]),
    }
    found = {measure.name: _drift(measure, at_h, values) for measure, values in series.items()}
    later = [((at_s - begin_s) / _HOUR_S, mib) for at_s, mib in memory_mib if at_s >= begin_s]
    found[_MEMORY.name] = _drift(
        _MEMORY, _values([at for at, _ in later]), _values([mib for _, mib in later])
    )
    return {name: words for name, words in found.items() if words is not None}


def _steady_cells(store: LiveStore) -> list[tuple[float, Cell]]:
    """The last complete cells of the run since the number of users changed."""
    cells = list(store.content.run.between(store.content.started_s, store.settled_s))
    users = cells[-1][1].gauges.users_mean if cells else None
    changed = [i for i, (_, cell) in enumerate(cells) if cell.gauges.users_mean != users]
    return cells[changed[-1] + 1 :] if changed else cells


def _binned(store: LiveStore, cells: Sequence[tuple[float, Cell]]) -> tuple[Floats, list[Figures]]:
    """Midpoints of bins in hours since the first cell, and the figures of each."""
    width_s = store.content.run.width_s
    ended = sum(cell.counts.ended for _, cell in cells)
    most = max(1, min(MOST_BINS, ended // BIN_REQUESTS))
    per_bin = max(1, math.ceil(BIN_S / width_s), math.ceil(len(cells) / most))
    groups = [cells[i : i + per_bin] for i in range(0, len(cells) - per_bin + 1, per_bin)]
    at_h = [(g[0][0] + per_bin * width_s / 2 - cells[0][0]) / _HOUR_S for g in groups]
    of_bins = [
        figures(Counts.merge(cell.counts for _, cell in group), per_bin * width_s, store.run.limits)
        for group in groups
    ]
    return _values(at_h), of_bins


def _values(values: Sequence[float | None]) -> Floats:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def _drift(measure: _Measure, at_h: Floats, values: Floats) -> str | None:
    """Description of a drift, if the measure got worse beyond noise and by enough."""
    trend = fit_trend(at_h, values)
    if trend is None or not trend.is_beyond_noise(_NAMED_FROM) or trend.slope * measure.sign <= 0:
        return None
    hours = float(at_h[-1] - at_h[0])
    level = trend.level + trend.slope * float(at_h[0])
    enough = measure.least * abs(level) if measure.relative else measure.least
    return _words(measure, trend, level, hours) if abs(trend.slope) * hours >= enough else None


def _words(measure: _Measure, trend: Trend, level: float, hours: float) -> str:
    def scaled(value: float) -> str:
        return number(value * measure.scale)

    low, high = trend.interval(0.95)
    verb = "rises" if trend.slope > 0 else "falls"
    return (
        f"{measure.name} {verb}: {scaled(level)} to {scaled(level + trend.slope * hours)} {measure.unit} in "
        f"{hours * 60:.0f} min, {scaled(trend.slope)} {measure.unit} an hour "
        f"(95 % interval {scaled(low)} to {scaled(high)})"
    )
