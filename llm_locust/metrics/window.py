"""The window [start, end) over which a run is judged, and the requests that belong to it."""

from dataclasses import dataclass

import numpy as np

from llm_locust.manifest import Manifest
from llm_locust.metrics.columns import Columns, Floats, Mask, Rows, Times
from llm_locust.metrics.concurrency import Spans

#: Concurrency is compared with its plateau as the mean over this many equal parts of the run:
#: the instant between one request of a user and the next is no change of the load.
STEADY_PARTS = 100
STEADY_TOLERANCE = 0.1


@dataclass(frozen=True, slots=True)
class Window:
    """[``start_ns``, ``end_ns``) in wall-clock nanoseconds; ``rule`` says in words where it is from."""

    start_ns: int
    end_ns: int
    rule: str

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) * 1e-9

    def start_s(self, c: Times) -> float:
        return c.after_origin_s(self.start_ns)

    def end_s(self, c: Times) -> float:
        return c.after_origin_s(self.end_ns)

    def scheduled(self, c: Times) -> Mask:
        """The requests scheduled inside."""
        return (c.scheduled_s >= self.start_s(c)) & (c.scheduled_s < self.end_s(c))

    def ended(self, c: Times) -> Mask:
        """The requests that ended inside."""
        return (c.ended_s >= self.start_s(c)) & (c.ended_s < self.end_s(c))


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
        """ok and failed: what error rate and goodput are shares of."""
        return _ascending(self.ok, self.failed)

    @property
    def all(self) -> Rows:
        return _ascending(self.ok, self.failed, self.cancelled)


def _ascending(*some: Rows) -> Rows:
    rows = np.concatenate(some)
    rows.sort()
    return rows


def run_window(c: Times, manifest: Manifest, warmup_s: float) -> Window:
    """The run without its warm-up and without the drain after the stop.

    From the first scheduled request (the start of the run, without any) + ``warmup_s`` to the
    stop. Where no stop is known, to just after the last end, so that this is inside. A window that
    the warm-up fills is empty.
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
    return Window(start_ns, max(start_ns, end_ns), f"run: first scheduled request{warmup} to {end}")


def steady_window(c: Times, run: Window) -> Window:
    """The longest span of ``run`` in which concurrency stays within 10 % of its plateau.

    Concurrency is its mean over each of :data:`STEADY_PARTS` equal parts of ``run``. The plateau is
    where most parts crowd: the median of the largest group within 10 % of one of its own. The span
    is the longest sequence of parts within 10 % of it. Without any concurrency it is ``run`` itself.
    """
    parts = np.linspace(run.start_s(c), run.end_s(c), STEADY_PARTS + 1)
    levels = Spans.of(c).means(parts) if run.seconds > 0 else np.zeros(STEADY_PARTS)
    if not (levels > 0).any():
        return Window(run.start_ns, run.end_ns, f"{run.rule} (no concurrency, so no steady span)")
    near = _plateau(levels)
    first, last = _longest(np.abs(levels - near) <= STEADY_TOLERANCE * near)
    ns = run.end_ns - run.start_ns
    return Window(
        run.start_ns + ns * first // STEADY_PARTS,
        run.start_ns + ns * last // STEADY_PARTS,
        f"steady: concurrency within {STEADY_TOLERANCE:.0%} of {near:.4g}",
    )


def _plateau(levels: Floats) -> float:
    ascending = np.sort(levels[levels > 0])
    first = np.searchsorted(ascending, ascending * (1 - STEADY_TOLERANCE), side="left")
    last = np.searchsorted(ascending, ascending * (1 + STEADY_TOLERANCE), side="right")
    crowd = int(np.argmax(last - first))
    return float(np.median(ascending[first[crowd] : last[crowd]]))


def _longest(mask: Mask) -> tuple[int, int]:
    """The longest sequence of True, as [first, last); the earliest of equals."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    starts, ends = edges[::2], edges[1::2]
    longest = int(np.argmax(ends - starts))
    return int(starts[longest]), int(ends[longest])
