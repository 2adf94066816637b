"""The window [start, end) over which a run is judged, and the requests that belong to it."""

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import numpy as np

from llm_locust.core.manifest import Manifest, StageFacts
from llm_locust.core.texts import quantity
from llm_locust.metrics.columns import Columns, Floats, Mask, Rows, Times

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def iso(at_ns: int) -> str:
    """A wall-clock time as ISO 8601 in UTC, to the microsecond."""
    moment = _EPOCH + timedelta(microseconds=at_ns // 1000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Window:
    """[``start_ns``, ``end_ns``) in wall-clock nanoseconds; ``rule`` says in words where it is from.

    ``gaps`` are the spans inside that do not belong to it, ascending and apart: the time between
    the windows of several runs.
    """

    start_ns: int
    end_ns: int
    rule: str
    gaps: tuple[tuple[int, int], ...] = ()

    @property
    def seconds(self) -> float:
        outside_ns = sum(end_ns - start_ns for start_ns, end_ns in self.gaps)
        return (self.end_ns - self.start_ns - outside_ns) * 1e-9

    @property
    def spans(self) -> tuple["Window", ...]:
        """The windows without a gap that it consists of."""
        edges = [self.start_ns, *(edge for gap in self.gaps for edge in gap), self.end_ns]
        pairs = zip(edges[::2], edges[1::2], strict=True)
        return tuple(Window(start_ns, end_ns, self.rule) for start_ns, end_ns in pairs)

    def start_s(self, c: Times) -> float:
        return c.after_origin_s(self.start_ns)

    def end_s(self, c: Times) -> float:
        return c.after_origin_s(self.end_ns)

    def inside(self, c: Times, times_s: Floats) -> Mask:
        """Which times, on the axis of ``c``, lie inside."""
        found = np.zeros(len(times_s), dtype=np.bool_)
        for span in self.spans:
            found |= (times_s >= span.start_s(c)) & (times_s < span.end_s(c))
        return found

    def scheduled(self, c: Times) -> Mask:
        """The requests scheduled inside."""
        return self.inside(c, c.scheduled_s)

    def ended(self, c: Times) -> Mask:
        """The requests that ended inside."""
        return self.inside(c, c.ended_s)


@dataclass(frozen=True, slots=True)
class Population:
    """The requests scheduled in a window, whenever they ended, by what became of them."""

    ok: Rows
    failed: Rows
    cancelled: Rows

    @classmethod
    def of(cls, c: Columns, scheduled: Mask, rows: Rows) -> "Population":
        """Those of ``rows`` that ``scheduled`` marks."""
        inside = rows[scheduled[rows]]
        ok, cancelled = c.ok[inside], c.cancelled[inside]
        return cls(inside[ok], inside[~ok & ~cancelled], inside[cancelled])

    @property
    def judged(self) -> Rows:
        """ok and failed: what the error rate is a share of."""
        return _ascending(self.ok, self.failed)

    @property
    def all(self) -> Rows:
        return _ascending(self.ok, self.failed, self.cancelled)

    def cut(self, c: Columns) -> Rows:
        """The cancelled ones that the run's end cut: the others were abandoned by their user."""
        return self.cancelled[~c.abandoned[self.cancelled]]

    def given_up(self, c: Columns) -> Rows:
        """The cancelled ones, and the failed ones that timed out."""
        return _ascending(self.cancelled, self.failed[c.timed_out[self.failed]])


def _ascending(*some: Rows) -> Rows:
    rows = np.concatenate(some)
    rows.sort(kind="stable")  # each is ascending already: that sort merges them
    return rows


def given_window(run: Window, origin_ns: int, from_s: float, to_s: float) -> Window:
    """[``from_s``, ``to_s``) in seconds after ``origin_ns``, cut where the run's own window ends.

    Without the cut the drain after the stop, and the time after it, would lower every rate.

    Raises:
        ValueError: it begins after the end of ``run``.
    """
    ended_s = (run.end_ns - origin_ns) * 1e-9
    if from_s >= ended_s:
        raise ValueError(f"the window begins at {from_s:g} s, but the run ended after {quantity(ended_s)} s")
    end = f"{to_s:g} s" if to_s <= ended_s else "the run's end"
    start_ns, end_ns = (origin_ns + round(s * 1e9) for s in (from_s, min(to_s, ended_s)))
    return Window(start_ns, min(end_ns, run.end_ns), f"given: {from_s:g} s after the start to {end}")


def united(windows: Sequence[Window]) -> Window:
    """The union of the windows of several runs: what is in none of them is a gap. Of one it is that one."""
    if len(windows) == 1:
        return windows[0]
    spans = sorted((span.start_ns, span.end_ns) for window in windows for span in window.spans)
    edges = spans[:1]
    for start_ns, end_ns in spans[1:]:
        begun_ns, until_ns = edges[-1]
        if start_ns <= until_ns:
            edges[-1] = (begun_ns, max(until_ns, end_ns))
        else:
            edges.append((start_ns, end_ns))
    gaps = tuple((before[1], after[0]) for before, after in pairwise(edges))
    rules = "; ".join(dict.fromkeys(window.rule for window in windows))
    return Window(edges[0][0], edges[-1][1], f"union of {len(windows)} runs' windows, each {rules}", gaps)


def stage_window(stage: StageFacts, manifest: Manifest) -> Window | None:
    """The measured part of a stage: from the end of its warm-up to the end of its load.

    None where it has none, and as long as its load goes on and the run has no end.
    """
    ends_ns = [ns for ns in (stage.ended_ns, manifest.stopped_ns) if ns is not None]
    if stage.measured_ns is None or not ends_ns or min(ends_ns) <= stage.measured_ns:
        return None
    return Window(stage.measured_ns, min(ends_ns), "measured part of the stage")


def sweep_window(manifest: Manifest, numbers: Container[int] | None = None) -> Window | None:
    """Union of the measured parts of all stages, or of those with these numbers; None without any."""
    stages = [stage for stage in manifest.stages if numbers is None or stage.number in numbers]
    found = [window for stage in stages if (window := stage_window(stage, manifest)) is not None]
    if not found:
        return None
    rule = f"the measured {'part of a stage' if len(found) == 1 else f'parts of {len(found)} stages'}"
    return replace(united(found), rule=rule)


def run_window(c: Times, manifest: Manifest, warmup_s: float) -> Window:
    """The run without its warm-up and without the drain after the stop.

    From the first scheduled request (the start of the run, without any) + ``warmup_s`` to the
    stop. Where no stop is known, to just after the last end, so that this is inside. A window that
    the warm-up fills is empty. It begins after the last end of what was dropped: from there on every request
    that was in flight is in the run.
    """
    start_ns = manifest.started_ns
    if len(c):
        start_ns = c.origin_ns + round(float(c.scheduled_s.min()) * 1e9)
    start_ns += round(warmup_s * 1e9)
    if manifest.stopped_ns is not None:
        end_ns, end = manifest.stopped_ns, "the stop"
    elif len(c):
        end_ns, end = c.origin_ns + round(float(c.ended_s.max()) * 1e9) + 1, "the last end"
    else:
        end_ns, end = start_ns, "the start: nothing was sent"
    warmup = f" + {warmup_s:g} s warm-up" if warmup_s else ""
    start = f"first scheduled request{warmup}"
    if manifest.kept_from_ns is not None:  # the first request that is left does not begin a warm-up
        warm_ns = manifest.started_ns + round(warmup_s * 1e9)
        start_ns, start = max(manifest.kept_from_ns, warm_ns), "the end of what was dropped"
    return Window(start_ns, max(start_ns, end_ns), f"run: {start} to {end}")


def why_empty(c: Times, window: Window, warmup_s: float) -> str | None:
    """Why no request was scheduled in a window although some were sent, and how long to run; else None."""
    if not len(c) or window.scheduled(c).any():
        return None
    before = c.scheduled_s < window.start_s(c)
    if not warmup_s or not before.all():
        return f"none of {len(c)} requests was scheduled in it"
    took_s = float(np.nanmax(c.ended_s - c.scheduled_s))
    for_s = math.ceil(2 * took_s + warmup_s)
    began = "the only request" if len(c) == 1 else f"all {len(c)} requests"
    what = f"{began} began in the {warmup_s:g} s of warm-up and took up to {took_s:.3g} s"
    return f"{what}: run for {for_s} s or more, or give --warmup 0s"
