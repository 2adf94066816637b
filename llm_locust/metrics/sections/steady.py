"""Steady part of a run, chosen only by the requested load, not by anything that the server did.

For an open loop that is the rate at which requests were due, for a closed loop the number of users. A server
that stalls changes neither, so that a stall stays inside; concurrency and latency would leave it out.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest
from llm_locust.metrics.columns import Columns, Floats, Mask, Times
from llm_locust.metrics.requests.concurrency import Spans
from llm_locust.metrics.requests.goodput import Judgement
from llm_locust.metrics.requests.latency import latency_figures
from llm_locust.metrics.window import Population, Window

#: The load is compared with its plateau as the mean over so many equal parts of the run.
STEADY_PARTS = 100
STEADY_TOLERANCE = 0.1

#: Arrivals of an open loop that a part has on average; where there are fewer, there are fewer parts.
PART_ARRIVALS = 400
_FEWEST_PARTS = 10

#: Counts of arrivals differ by chance. So many standard deviations of them are no change of the rate.
_SIGMAS = 4.0

#: A shorter steady span is not taken: the rest of the run would be left unsaid.
LEAST_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class LoadOverTime:
    """Load requested over time: ``users``, or requests per second.

    ``unit`` is its name; ``spans`` are the users' times, ``due_s`` the times at which requests were due.
    Exactly one of the two is given.
    """

    unit: str
    spans: Spans | None = None
    due_s: Floats | None = None

    def parts(self, seconds: float) -> int:
        """Number of parts of a window of this length for its levels."""
        if self.due_s is None:
            return STEADY_PARTS
        return max(_FEWEST_PARTS, min(STEADY_PARTS, len(self.due_s) // PART_ARRIVALS))

    def levels(self, edges_s: Floats) -> Floats:
        """Mean load between each edge and the next."""
        if self.spans is not None:
            return self.spans.means(edges_s)
        assert self.due_s is not None
        counts = np.diff(np.searchsorted(self.due_s, edges_s))
        return np.asarray(counts / np.diff(edges_s), dtype=np.float64)

    def tolerance(self, level: float, part_s: float) -> float:
        """Greatest distance of a part from a level that it belongs to, as a share of the level."""
        if self.due_s is None or level <= 0:
            return STEADY_TOLERANCE
        return max(STEADY_TOLERANCE, _SIGMAS / float(np.sqrt(level * part_s)))


def asked_load(requests: Requests, manifest: Manifest, origin_ns: int) -> LoadOverTime | None:
    """Requested load according to the records, in seconds after ``origin_ns``.

    A user is present from when its first request was due to when its last one ended, including the wait for
    an answer that does not arrive. None if a closed loop's records name no users.
    """
    columns = ("scheduled_ns", "ended_ns", "user", "worker")
    due, ended, users, workers = [np.empty(0)], [np.empty(0)], [np.empty(0)], [np.empty(0, np.int64)]
    numbers: dict[str, int] = {}  # of the workers
    for batch in requests.parts(columns):
        due.append(batch.seconds("scheduled_ns", origin_ns))
        if manifest.open_loop:
            continue
        ended.append(batch.seconds("ended_ns", origin_ns))
        users.append(batch.floats("user"))
        labels = batch.labels("worker")
        of_code = np.array([numbers.setdefault(name, len(numbers)) for name in labels.names], dtype=np.int64)
        workers.append(of_code[labels.codes])
    due_s = np.concatenate(due)
    if manifest.open_loop:
        return LoadOverTime("requests/s", due_s=np.sort(due_s)) if len(due_s) else None
    user = np.concatenate(users)
    named = ~np.isnan(user)
    if not named.any():
        return None
    due_s, ended_s, user = due_s[named], np.concatenate(ended)[named], user[named]
    _, place = np.unique(np.concatenate(workers)[named] * (user.max() + 1) + user, return_inverse=True)
    first, last = np.full(place.max() + 1, np.inf), np.full(place.max() + 1, -np.inf)
    np.minimum.at(first, place, due_s)
    np.maximum.at(last, place, ended_s)
    return LoadOverTime("users", spans=Spans(np.sort(first), np.sort(last)))


@dataclass(frozen=True, slots=True)
class Plateau:
    """Load of most of a window, and the longest span of the window that stays on it.

    ``first`` and ``last`` are the edges of that span, in ``parts`` equal parts of the window.
    """

    level: float
    first: int
    last: int
    parts: int
    tolerance: float

    @property
    def share(self) -> float:
        return (self.last - self.first) / self.parts


def plateau(load: LoadOverTime, c: Times, run: Window) -> Plateau | None:
    """Plateau of ``run``; None if no load was requested in it.

    It is where most parts are: the median of the largest group within 10 % (more if chance alone moves them
    further) of one of its own. The span is the longest sequence of parts as near to it.
    """
    if run.seconds <= 0:
        return None
    parts = load.parts(run.seconds)
    levels = load.levels(np.linspace(run.start_s(c), run.end_s(c), parts + 1))
    if not (levels > 0).any():
        return None
    tolerance = load.tolerance(float(np.median(levels[levels > 0])), run.seconds / parts)
    # Sums of floats differ in their last digits from one machine to another, and what is told must not.
    near = float(f"{_plateau(levels, tolerance):.10g}")
    first, last = _longest(np.abs(levels - near) <= tolerance * near)
    return Plateau(near, first, last, parts, tolerance)


def steady_window(load: LoadOverTime | None, c: Times, run: Window) -> Window:
    """Longest span of ``run`` in which the requested load stays on its :func:`plateau`.

    ``run`` itself, with the reason in its ``rule``, if there is none, or if it is shorter than half of
    ``run``.
    """
    found = None if load is None else plateau(load, c, run)
    if load is None or found is None:
        why = "the requested load is unknown" if len(c) else "nothing was sent"
        return Window(run.start_ns, run.end_ns, f"{run.rule} (no steady span: {why})")
    if found.share < LEAST_SHARE:
        why = f"the longest at {found.level:.4g} {load.unit} is {100 * found.share:.0f} % of the run"
        return Window(run.start_ns, run.end_ns, f"{run.rule} (no steady span: {why})")
    ns = run.end_ns - run.start_ns
    return Window(
        run.start_ns + ns * found.first // found.parts,
        run.start_ns + ns * found.last // found.parts,
        f"steady: load within {100 * found.tolerance:.0f} % of {found.level:.4g} {load.unit}",
    )


def left_out(c: Columns, run: Window, window: Window, judgement: Judgement | None) -> dict[str, Any]:
    """Part of ``run`` that is not in ``window``, and the figures with it (``_run``)."""
    in_run = run.scheduled(c)
    outside = in_run & ~window.scheduled(c)
    rest, whole = _figures(c, outside, judgement), _figures(c, in_run, judgement)
    seconds = run.seconds - window.seconds
    return {"seconds": seconds, **rest, **{f"{key}_run": value for key, value in whole.items()}}


def _figures(c: Columns, scheduled: Mask, judgement: Judgement | None) -> dict[str, Any]:
    population = Population.of(c, scheduled, np.arange(len(c)))
    (found,) = latency_figures(c, [population], ["ttft"], {"p99": 99.0})
    good = None if judgement is None else judgement.good[population.all[judgement.judged[population.all]]]
    return {
        "requests": int(scheduled.sum()),
        "ttft_p99_ms": found["ttft"]["p99"],
        "goodput_ratio": None if good is None or not len(good) else float(good.mean()),
    }


def _plateau(levels: Floats, tolerance: float) -> float:
    ascending = np.sort(levels[levels > 0])
    first = np.searchsorted(ascending, ascending * (1 - tolerance), side="left")
    last = np.searchsorted(ascending, ascending * (1 + tolerance), side="right")
    crowd = int(np.argmax(last - first))
    return float(np.median(ascending[first[crowd] : last[crowd]]))


def _longest(mask: Mask) -> tuple[int, int]:
    """Longest sequence of True, as [first, last); the earliest of equals."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    starts, ends = edges[::2], edges[1::2]
    longest = int(np.argmax(ends - starts))
    return int(starts[longest]), int(ends[longest])
