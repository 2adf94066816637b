"""Steadiness of the load, and detection of a warm-up that should be left out.

The run's window is cut into equal parts. Concurrency and the median TTFT of each are compared with those of
the last third: a part outside of the range of 99 % of such parts, and more than 10 % off, differs. An
unbroken sequence of such parts at the start is a warm-up; one that reaches the middle of the run is a run
that does not settle.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from llm_locust.core.figures import quantity
from llm_locust.metrics.catalogue import ttft
from llm_locust.metrics.columns import Columns, Floats, Rows
from llm_locust.metrics.requests.concurrency import Spans
from llm_locust.metrics.sections.steady import STEADY_TOLERANCE, LoadOverTime, plateau
from llm_locust.metrics.stats.percentiles import ordered, percentile
from llm_locust.metrics.stats.trend import Level, level_of
from llm_locust.metrics.window import Window

#: Parts of the window where there are :data:`_MANY` requests, and where there are at least :data:`_FEWEST`.
PARTS_OF_MANY, PARTS_OF_FEW = 40, 20
_MANY, _FEWEST = 400, 100

_CONFIDENCE = 0.99


@dataclass(frozen=True, slots=True)
class _Beginning:
    """A series in its first ``parts``, which differ from the last third, and ``later``."""

    name: str
    unit: str
    parts: int
    was: float
    later: Level

    @property
    def text(self) -> str:
        low, high = (self._shown(self.later.mean + sign * self.later.reach) for sign in (-1, 1))
        return (
            f"{self.name} {self._shown(self.was)}{self.unit} against "
            f"{self._shown(self.later.mean)}{self.unit} in the last third "
            f"(99 % of such parts: {low} .. {high})"
        )

    @staticmethod
    def _shown(value: float) -> str:
        return quantity(max(0.0, value))


def steadiness(
    c: Columns, run: Window, ok: Rows, warmup_s: float, load: LoadOverTime | None
) -> dict[str, Any]:
    """The ``steadiness`` of a summary.

    ``plateau`` is the requested load that most of the run had, in ``unit``, ``steady_share`` the share of the
    run of the longest span that stays on it (what ``--window steady`` takes). ``settled`` is whether the run
    was like its last third by its middle, ``warmup_like`` whether its start was not, ``warmup_s_suggested``
    the whole ``--warmup`` that would leave that out, ``reason`` the reason, in a sentence.

    Args:
        run: the window of the run, see :func:`~llm_locust.metrics.window.run_window`.
        ok: the requests that ended ok and were scheduled in it.
        warmup_s: what was left out before it.
        load: the requested load, None if unknown.
    """
    if not len(c) or run.seconds <= 0:
        return untold("no request was in flight")
    level = None if load is None else plateau(load, c, run)
    found: dict[str, Any] = {}
    if load is not None and level is not None:
        found = {"unit": load.unit, "plateau": level.level, "steady_share": level.share}
    if len(ok) < _FEWEST:
        few = f"too few ok requests to detect a warm-up: {len(ok)}, {_FEWEST} are needed"
        return untold(few) | found
    parts = PARTS_OF_MANY if len(ok) >= _MANY else PARTS_OF_FEW
    beginnings = [b for b in _beginnings(c, run, ok, parts) if b is not None and b.parts]
    verdict = _verdict(beginnings, parts, run.seconds / parts, warmup_s)
    return untold("") | found | verdict


def untold(reason: str) -> dict[str, Any]:
    """A ``steadiness`` without any value, and the reason."""
    keys = ("settled", "warmup_like", "warmup_s_suggested", "unit", "plateau", "steady_share")
    return {**dict.fromkeys(keys), "reason": reason}


def _beginnings(c: Columns, run: Window, ok: Rows, parts: int) -> list[_Beginning | None]:
    edges = np.linspace(run.start_s(c), run.end_s(c), parts + 1)
    return [
        _beginning("concurrency", "", Spans.of(c).means(edges)),
        _beginning("TTFT median", " ms", _median_ttft_ms(c, ok, edges)),
    ]


def _median_ttft_ms(c: Columns, ok: Rows, edges: Floats) -> Floats:
    """Median TTFT of the requests scheduled in each part; NaN without any that has one."""
    place = np.searchsorted(edges, c.scheduled_s[ok], side="right") - 1
    values_s = ttft(c)[ok]
    return np.array([percentile(ordered(values_s[place == i]), 50.0) for i in range(len(edges) - 1)]) * 1e3


def _beginning(name: str, unit: str, series: Floats) -> _Beginning | None:
    """Parts before the first one that is like the last third; None if unknown."""
    third = len(series) // 3
    later = level_of(series[-third:], _CONFIDENCE)
    if later is None:
        return None
    allowed = max(later.reach, STEADY_TOLERANCE * later.mean)
    with np.errstate(invalid="ignore"):
        unlike = np.abs(series[:-third] - later.mean) > allowed
    parts = len(unlike) if unlike.all() else int(np.argmin(unlike))
    return _Beginning(name, unit, parts, float(series[:parts].mean()) if parts else math.nan, later)


def _verdict(beginnings: list[_Beginning], parts: int, part_s: float, warmup_s: float) -> dict[str, Any]:
    if not beginnings:
        return {
            "settled": True,
            "warmup_like": False,
            "reason": f"concurrency and median TTFT of the first {quantity(part_s)} s "
            "are like those of the last third",
        }
    what = " and ".join(b.text for b in beginnings)
    longest = max(b.parts for b in beginnings)
    if 2 * longest >= parts:
        return {
            "settled": False,
            "reason": f"not settled by the middle of the run: {what}; make the run longer, or see the drift",
        }
    suggested_s = _rounded_up(warmup_s + longest * part_s)
    more = f" instead of {warmup_s:g}s" if warmup_s else ""
    return {
        "settled": True,
        "warmup_like": True,
        "warmup_s_suggested": suggested_s,
        "reason": f"the first {quantity(longest * part_s)} s were like a warm-up: {what}; "
        f"use --warmup {suggested_s:g}s{more}",
    }


def _rounded_up(seconds: float) -> float:
    """Round up to whole seconds, below ten of them to tenths."""
    steps = 10 if seconds < 10 else 1
    return math.ceil(round(seconds * steps, 6)) / steps
