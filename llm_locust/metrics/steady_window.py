"""Steady part of a run, chosen only by the requested load, not by anything that the server did.

For an open loop that is the rate at which requests were due, for a closed loop the number of users. A server
that stalls changes neither, so that a stall stays inside; concurrency and latency would leave it out.

The records do not have all of it: not the requests that a hang left unsent, nor the users that wait for their
next request when the run ends. Neither is taken for a load that falls.
"""

from dataclasses import dataclass, field

import numpy as np

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest
from llm_locust.core.record import UNJUDGED, Outcome
from llm_locust.core.texts import quantity
from llm_locust.metrics.catalogue import LATENCY, End, e2el
from llm_locust.metrics.columns import Columns, Floats, Mask, Rows, Times
from llm_locust.metrics.requests.judgement import Limits
from llm_locust.metrics.requests.latency import begun_s
from llm_locust.metrics.requests.rates import Spans
from llm_locust.metrics.stats.censoring import ordered, percentile
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

#: After any other outcome a user of a closed loop waits before its next request.
_NO_FAILURE = UNJUDGED | {Outcome.OK, Outcome.REJECTED}


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

    A user is present from when its first request was due to the stop, see :func:`_present_until`; in a sweep,
    which has pauses between its loads, to when its last request ended. Either includes the wait for an answer
    that does not arrive. None if a closed loop's records name no users.
    """
    if manifest.open_loop:
        parts = requests.parts(("scheduled_ns",))
        due_s = np.concatenate([np.empty(0), *(part.seconds("scheduled_ns", origin_ns) for part in parts)])
        return LoadOverTime("requests/s", due_s=np.sort(due_s)) if len(due_s) else None
    calls = _calls(requests, origin_ns)
    if not len(calls.due_s):
        return None
    first_s = np.full(calls.user.max() + 1, np.inf)
    np.minimum.at(first_s, calls.user, calls.due_s)
    last_s = calls.ended_s[calls.lasts]
    if not manifest.is_sweep:
        last_s = np.maximum(last_s, _present_until(calls, manifest, origin_ns))
    return LoadOverTime("users", spans=Spans(np.sort(first_s), np.sort(last_s)))


@dataclass(frozen=True, slots=True)
class _Calls:
    """Requests of users, in the order of the users' numbers and of their ends; shape (requests,).

    ``user`` counts those of all workers, ``worker`` is an index into ``workers``. ``failed`` are those after
    which their user waits.
    """

    due_s: Floats
    ended_s: Floats
    user: Rows
    worker: Rows
    failed: Mask
    workers: tuple[str, ...]

    @property
    def lasts(self) -> Rows:
        """The last one of each user."""
        return np.flatnonzero(np.diff(self.user, append=-1))

    @property
    def longest_pause_s(self) -> float:
        """Longest time that a user took from the end of one to when its next was due."""
        pauses_s = (self.due_s[1:] - self.ended_s[:-1])[self.user[1:] == self.user[:-1]]
        return max(0.0, float(pauses_s.max(initial=0.0)))


def _calls(requests: Requests, origin_ns: int) -> _Calls:
    due, ended, users = [np.empty(0)], [np.empty(0)], [np.empty(0)]
    workers, failed = [np.empty(0, np.int64)], [np.empty(0, np.bool_)]
    numbers: dict[str, int] = {}  # of the workers
    for batch in requests.parts(("scheduled_ns", "ended_ns", "user", "worker", "outcome")):
        due.append(batch.seconds("scheduled_ns", origin_ns))
        ended.append(batch.seconds("ended_ns", origin_ns))
        users.append(batch.floats("user"))
        labels, outcomes = batch.labels("worker"), batch.labels("outcome")
        of_code = np.array([numbers.setdefault(name, len(numbers)) for name in labels.names], dtype=np.int64)
        workers.append(of_code[labels.codes])
        fails = np.array([name not in _NO_FAILURE for name in outcomes.names], dtype=np.bool_)
        failed.append(fails[outcomes.codes])
    number = np.concatenate(users)
    named = np.flatnonzero(~np.isnan(number))
    number, worker = number[named], np.concatenate(workers)[named]
    _, user = np.unique(worker * (number.max(initial=0) + 1) + number, return_inverse=True)
    order = np.lexsort((np.concatenate(ended)[named], user))
    rows = named[order]
    return _Calls(
        np.concatenate(due)[rows],
        np.concatenate(ended)[rows],
        user[order],
        worker[order],
        np.concatenate(failed)[rows],
        tuple(numbers),
    )


def _present_until(calls: _Calls, manifest: Manifest, origin_ns: int) -> Floats:
    """Until when each user is taken for present, also where it sent no more, shape (users,).

    A wait for the next request is no end: a ``Retry-After`` of the server may outlast the run. With a fixed
    number of users (``--users``) that is the stop, or when their worker was heard of last if it went before.
    Where the load itself may have ended some (a shape, ``--num-requests``), it is so for users whose last
    request failed; others are present for the longest pause that any user took.
    """
    lasts = calls.lasts
    stop_s = float(calls.ended_s.max())
    if manifest.stopped_ns is not None:
        stop_s = (manifest.stopped_ns - origin_ns) * 1e-9
    gone_s = {
        w.id: -np.inf if w.heard_ns is None else (w.heard_ns - origin_ns) * 1e-9
        for w in manifest.workers
        if w.lost or w.left
    }
    ends_s = np.array([min(stop_s, gone_s.get(name, stop_s)) for name in calls.workers])[calls.worker[lasts]]
    options = manifest.options
    if options.get("num_users") is not None and options.get("num_requests") is None:
        return ends_s
    paused_s = calls.ended_s[lasts] + calls.longest_pause_s
    return np.where(calls.failed[lasts], ends_s, np.minimum(ends_s, paused_s))


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


def steady_window(load: LoadOverTime | None, c: Times, run: Window, unsent: int = 0) -> Window:
    """Longest span of ``run`` in which the requested load stays on its :func:`plateau`.

    ``run`` itself, with the reason in its ``rule``, if there is none, if it is shorter than half of ``run``,
    or if the load is not known well enough to tell.

    Args:
        unsent: requests of an open loop that were due in ``run`` and never sent. When is not known.
    """
    found = None if load is None else plateau(load, c, run)
    if load is None or found is None:
        why = "the requested load is unknown" if len(c) else "nothing was sent"
    elif _may_hide(found, run, unsent):
        why = f"{unsent:,} requests were due and never sent, and it is not known when"
    elif found.share < LEAST_SHARE:
        why = f"the longest at {quantity(found.level)} {load.unit} is {100 * found.share:.0f} % of the run"
    else:
        ns = run.end_ns - run.start_ns
        return Window(
            run.start_ns + ns * found.first // found.parts,
            run.start_ns + ns * found.last // found.parts,
            f"steady: load within {100 * found.tolerance:.0f} % of {quantity(found.level)} {load.unit}",
        )
    return Window(run.start_ns, run.end_ns, f"{run.rule} (no steady span: {why})")


def _may_hide(found: Plateau, run: Window, unsent: int) -> bool:
    """Whether unsent requests may be why ``found`` is not longer: the records' load fell, not the load.

    A few that the end of the load overtook are not, if the span goes on to that end.
    """
    of_part = found.tolerance * found.level * run.seconds / found.parts
    return unsent > 0 and (found.last < found.parts or unsent > of_part)


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


# --- Requests from before a window that hung in it: scheduled too early to belong to it, and never answered


#: Without a limit, a request is stuck that waits for longer than this, and than so many median E2ELs.
LEAST_S, MEDIANS = 1.0, 10.0

_NONE = np.empty(0)


@dataclass(frozen=True, slots=True)
class Stuck:
    """How long each stuck request was in flight after the window's start, until it was given up.

    Arrays of shape (rows,): ``lasted_s`` in seconds, NaN for requests that are not stuck; ``silent`` marks
    requests that are streamed and had no token after the window's start.
    """

    c: Columns = field(repr=False)
    lasted_s: Floats
    silent: Mask

    def among(self, rows: Rows) -> Rows:
        """The stuck ones of ``rows``."""
        return rows[~np.isnan(self.lasted_s[rows])]

    def bounds_s(self, rows: Rows, metric: str) -> Floats:
        """Lower bounds of a latency of the stuck ones of ``rows``, counted from the window's start.

        None of ttft and ttfo if a token arrived after it: the first one may have arrived before.
        """
        end, per = LATENCY[metric].end, LATENCY[metric].per
        if end is None:
            return _NONE
        stuck = self.among(rows)
        if end is not End.LAST_TOKEN:
            stuck = stuck[self.silent[stuck]]
        bounds_s = self.lasted_s if per is None else self.lasted_s * per(self.c)
        return bounds_s[stuck[~np.isnan(bounds_s[stuck])]]


def find_stuck(c: Columns, window: Window, limits: Limits) -> Stuck:
    """Requests that were scheduled before the window, were in flight in it and were given up too late.

    Given up means cancelled or timed out. Too late: a request that was sent at the window's start, or later
    if it started later, and had received nothing before, would have broken a limit of its SLO class. That is
    one on ttft or ttfo without a token after the window's start, or one on e2el. Without any of them it is
    ``MEDIANS`` times the median E2EL of the window's ok requests, at least ``LEAST_S``, without a token.
    """
    start_s = _next_start_s(c, window)
    from_s = np.fmax(start_s, begun_s(c))
    last_s = c.sent_s + c.last_event_s  # NaN: no token
    silent = c.streamed & ~(last_s > start_s)
    first_limit_s = np.where(c.streamed, _least(c, limits, End.FIRST_TOKEN, End.FIRST_ANSWER_TOKEN), np.inf)
    whole_limit_s = _least(c, limits, End.LAST_TOKEN)
    lasted_s = c.ended_s - from_s
    broken = silent & (lasted_s > first_limit_s) | (lasted_s > whole_limit_s)
    may_be = c.given_up & (lasted_s > 0) & ~window.scheduled(c)
    unlimited = np.isinf(first_limit_s) & np.isinf(whole_limit_s)
    if (unlimited & may_be).any():
        broken |= unlimited & (c.ended_s - np.fmax(from_s, last_s) > _long_s(c, window))
    return Stuck(c, np.where(broken & may_be, lasted_s, np.nan), silent)


def _next_start_s(c: Columns, window: Window) -> Floats:
    """Start of the first span of the window after each request was scheduled; +∞ without one."""
    starts = [span.start_s(c) for span in window.spans if span.seconds > 0]
    return np.array([*starts, np.inf])[np.searchsorted(starts, c.scheduled_s, side="right")]


def _least(c: Columns, limits: Limits, *ends: End) -> Floats:
    """Tightest limit of each request on what waits for one of these; infinite without one."""
    metrics = [metric for metric in limits.metrics if LATENCY[metric].end in ends]
    limits_s = [limits.per_request(c.slo_class, metric) for metric in metrics]
    least: Floats = np.min([np.full(len(c), np.inf), *limits_s], axis=0)
    return least


def _long_s(c: Columns, window: Window) -> float:
    ok = Population.of(c, window.scheduled(c), np.arange(len(c))).ok
    return float(np.fmax(MEDIANS * percentile(ordered(e2el(c)[ok]), 50.0), LEAST_S))
