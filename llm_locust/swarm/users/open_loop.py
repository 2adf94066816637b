"""Open-loop load: one worker's share of a run's schedule, from the start of the run to its end.

Times are seconds of the schedule, which starts at a point of the process's monotonic clock.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import gevent

from llm_locust.client.http.clock import ClockPair, read_clocks
from llm_locust.core.manifest import MANIFEST_DECODER
from llm_locust.options.load import DEFAULT_PROCESS, LoadSettings
from llm_locust.options.run import share
from llm_locust.swarm.channel.messages import NO_LOAD, LoadCounts, RunInfo
from llm_locust.swarm.channel.shipping import Offset
from llm_locust.swarm.process.event_loop import wait_until
from llm_locust.swarm.users.dispatcher import Dispatcher, Sender, TurnOrder
from llm_locust.workload.arrivals import (
    Arrival,
    ClassArrival,
    ListedSchedule,
    MixedSchedule,
    Process,
    Schedule,
    Timetable,
    constant,
)
from llm_locust.workload.trace_formats import TraceEntry, TraceError

logger = logging.getLogger(__name__)


# --- Time of an open loop's schedule


class ScheduleClock:
    """Conversion between the schedule's time and this process's clocks.

    Args:
        begins_ns: start of the schedule, by this process's realtime.
        read: the clocks.
    """

    def __init__(self, begins_ns: int, read: Callable[[], ClockPair] = read_clocks) -> None:
        self._origin_ns = begins_ns - read().offset_ns
        self._read = read

    def now_s(self) -> float:
        return (time.monotonic_ns() - self._origin_ns) * 1e-9

    def realtime_ns(self, at_s: float) -> int:
        """Convert a time of the schedule to this process's realtime, as set now."""
        return self._read().offset_ns + self._origin_ns + round(at_s * 1e9)


# --- One worker's share of an open loop's schedule, from the start of the run to its end


#: Time from the run's start to the schedule's, by when every worker has its message and knows its clock.
ORIGIN_DELAY_S = 2.0

#: After this time, a worker without a clock offset uses its own clock as the run's.
OFFSET_PATIENCE_S = 5.0

#: Most errors that are logged; further ones are not.
_SAID_ERRORS = 20

Item = Arrival | ClassArrival | TraceEntry

#: Factory of what sends, called once a run, in the load's own greenlet, with the schedule's clock.
MakeSender = Callable[[ScheduleClock], Sender[Any, Any]]


def open_loop_class(user_classes: Iterable[Any], settings: Any) -> Any | None:
    """Return the user class whose requests follow a schedule; None in a closed loop."""

    def follows(cls: Any) -> bool:
        return hasattr(cls, "follows_schedule") and cls.follows_schedule(settings)

    return next(filter(follows, user_classes), None)


def timetable(load: LoadSettings, run: RunInfo, index: int) -> Timetable[Any]:
    """Worker ``index``'s part of the run's schedule; empty for one that joined late.

    Raises:
        TraceError: the trace cannot be read here.
    """
    count = run["starters"]
    if index >= count:
        return ListedSchedule[Arrival](())
    if load.trace is not None:
        entries = load.open_trace(run["trace_scale"]).share(index, count)
        return ListedSchedule(entries, load.num_requests)
    process = load.arrival if isinstance(load.arrival, Process) else DEFAULT_PROCESS
    if load.class_rates:
        return MixedSchedule(
            {
                name: Schedule(process, rate, seed=run["seed"], stream=name)
                for name, rate in load.class_rates.items()
            },
            worker_index=index,
            worker_count=count,
            limit=load.num_requests,
        )
    return Schedule(
        process,
        constant(run["rate"]) if load.rate is None else load.rate,
        seed=run["seed"],
        worker_index=index,
        worker_count=count,
        limit=load.num_requests,
    )


class OpenLoad:
    """Requests of a schedule in one process.

    Args:
        index: this worker's index in the run.
        make_sender: factory of what sends them.
        clock: returns this process's clock against the run's time; None while it is unknown.
        refuse: called with the reason why the schedule cannot be followed to its end.
        warmup_s: arrivals within this time after the run's start are outside the measured window.

    Raises:
        TraceError: the trace cannot be read here.
    """

    def __init__(
        self,
        load: LoadSettings,
        run: RunInfo,
        index: int,
        make_sender: MakeSender,
        clock: Callable[[], Offset],
        refuse: Callable[[str], None],
        *,
        warmup_s: float = 0.0,
    ) -> None:
        self._warmup_s = warmup_s
        self._sender: Sender[Any, Any] | None = None
        self._load = load
        self._run_info = run
        self._index = index
        self._make_sender = make_sender
        self._clock = clock
        self._refuse = refuse
        self._timetable = timetable(load, run, index)
        self._dispatcher: Dispatcher[Any, Any] | None = None
        self._stopped_s: float | None = None
        self._errors = 0

    def start(self) -> None:
        gevent.spawn(self._run)

    @property
    def spent(self) -> bool:
        """Whether the schedule has ended, and all its requests too."""
        return self._dispatcher is not None and self._dispatcher.spent

    def change_rate(self, at_ns: int, rate: float) -> None:
        """Change the rate from ``at_ns`` of the run's clock on; a trace keeps its own."""
        if isinstance(self._timetable, Schedule):
            self._timetable.change_rate((at_ns - self._run_info["origin_ns"]) * 1e-9, rate)
            if self._dispatcher is not None:
                self._dispatcher.wake()

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight, nothing waits and nothing is due."""
        return self._dispatcher is None or self._dispatcher.idle

    def give_up_waiting(self) -> int:
        """Give up the requests that are held back now; they count as unsent. Return their number."""
        return 0 if self._dispatcher is None else self._dispatcher.give_up_waiting()

    def stop(self) -> None:
        """Start no more requests."""
        if self._stopped_s is None:
            self._stopped_s = time.monotonic()
        if self._dispatcher is not None:
            self._dispatcher.stop()

    def drain(self, patience_s: float) -> None:
        """Wait for the greenlets of requests, at most ``patience_s`` after :meth:`stop`; then kill them."""
        self.stop()
        dispatcher = self._dispatcher
        if dispatcher is None:
            return
        assert self._stopped_s is not None
        left_s = self._stopped_s + patience_s - time.monotonic()
        wait_until(lambda: not dispatcher.in_flight, max(0.0, left_s), poll_s=0.01)
        dispatcher.kill()

    def counts(self) -> LoadCounts:
        """Counts of the load so far, without the outcomes of its requests."""
        dispatcher = self._dispatcher
        if dispatcher is None:
            return NO_LOAD if self._stopped_s is None else LoadCounts(until_ns=0)
        unsent = dispatcher.unsent
        warmup, by_class = self._unsent_parts(unsent)
        return LoadCounts(
            waiting=dispatcher.waiting,
            held_back=dispatcher.held_back,
            longest_held_ns=round(dispatcher.longest_wait_s * 1e9),
            unsent=len(unsent),
            unsent_warmup=warmup,
            unsent_by_class=by_class,
            until_ns=None if dispatcher.stopped_s is None else max(0, round(dispatcher.stopped_s * 1e9)),
        )

    def _unsent_parts(self, unsent: Sequence[Item]) -> tuple[int, dict[str, int]]:
        """How many were due before the measured phase, and after it how many of each class; once known."""
        if not unsent or self._stopped_s is None or self._sender is None:
            return 0, {}
        measured = [item for item in unsent if item.at_s >= self._measured_from_s]
        return len(unsent) - len(measured), dict(Counter(map(self._sender.slo_class, measured)))

    @cached_property
    def _measured_from_s(self) -> float:
        """Start of the measured window, in the schedule's time."""
        started_ns = MANIFEST_DECODER.decode(self._run_info["manifest"].encode()).started_ns
        return self._warmup_s - (self._run_info["origin_ns"] - started_ns) * 1e-9

    def _run(self) -> None:
        if not wait_until(lambda: self._clock() is not None, OFFSET_PATIENCE_S, poll_s=0.01):
            logger.warning("this worker's clock is not measured yet: its own clock is used as the run's time")
        offset_ns, _ = self._clock() or (0, 0)
        clock = ScheduleClock(self._run_info["origin_ns"] - offset_ns)
        if self._stopped_s is not None:
            return
        limit = self._load.max_in_flight
        self._sender = self._make_sender(clock)
        self._dispatcher = dispatcher = Dispatcher(
            self._timetable,
            self._sender,
            clock.now_s,
            max_in_flight=None if limit is None else share(limit, self._index, self._run_info["starters"]),
            turns=None if self._load.trace is None else TurnOrder(),
            on_error=self._on_error,
        )
        try:
            dispatcher.run()
        except TraceError as e:
            self._refuse(str(e))
        except Exception as e:  # without a report the run would go on with no load
            logger.exception("the schedule cannot be followed")
            self._refuse(f"the schedule cannot be followed: {type(e).__name__}: {e}")

    def _on_error(self, error: Exception) -> None:
        self._errors += 1
        if self._errors <= _SAID_ERRORS:
            logger.error("a request of the schedule was not sent: %r", error, exc_info=error)


# --- How much of a schedule one worker had to send in a span of it


#: Span of a schedule that is drawn at a time.
_SPAN_S = 60.0


class Span(NamedTuple):
    """A part of a schedule: after ``from_s``, before ``until_s``, which is infinite for one that ends."""

    from_s: float
    until_s: float


class Scheduled(NamedTuple):
    """A number of requests, and how many of them were due before the measured phase."""

    requests: int = 0
    warmup: int = 0


def scheduled(
    load: LoadSettings, run: RunInfo, index: int, rates: Mapping[int, float], span: Span, measured_s: float
) -> Scheduled:
    """What the schedule has for worker ``index`` in a span; of a trace, as far as it can be read.

    Args:
        rates: the rate as it was changed, by the time of the run's axis from which on it held.
        measured_s: begin of the measured phase, in the schedule's time.
    """
    requests = warmup = 0
    try:
        arrivals = timetable(load, run, index)
        for at_ns, rate in sorted(rates.items()):
            if isinstance(arrivals, Schedule):
                arrivals.change_rate((at_ns - run["origin_ns"]) * 1e-9, rate)
        until_s = 0.0
        while until_s < span.until_s and not arrivals.ended:
            until_s = min(until_s + _SPAN_S, span.until_s)
            due_s = [at_s for at_s in _due(arrivals, until_s) if at_s > span.from_s]
            requests += len(due_s)
            warmup += sum(at_s < measured_s for at_s in due_s)
    except TraceError:
        pass  # the workers have said so
    return Scheduled(requests, warmup)


def _due(arrivals: Timetable[Any], until_s: float) -> Sequence[float]:
    if isinstance(arrivals, Schedule):
        due_s: list[float] = arrivals.times(until_s).at_s.tolist()
        return due_s
    return [arrival.at_s for arrival in arrivals.before(until_s)]
