"""State shared by the users of one process during one run: connections, prompts, back-off, the recorder."""

import gc
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, NoReturn, Protocol
from weakref import WeakSet

import gevent
import msgspec
from gevent.event import Event
from greenlet import getcurrent, greenlet
from locust.env import Environment
from locust.exception import StopUser

from llm_locust.client.call import Canceller, LlmClient
from llm_locust.client.http.timers import DECODE_BUDGET
from llm_locust.client.recording import Answer, Call
from llm_locust.core.error_kinds import ErrorKinds
from llm_locust.core.manifest import PrefixShare
from llm_locust.core.record import UNJUDGED, LengthPair, OtherTable, Outcome, RequestRecord
from llm_locust.live.state import LEAST_SILENT_S, MOST_NAME, MOST_WAITING, Waiting
from llm_locust.options.run import Quota, share
from llm_locust.options.settings import Settings
from llm_locust.swarm.channel.messages import NO_LOAD, LoadCounts, RunInfo
from llm_locust.swarm.channel.shipping import BATCH_ARRIVALS, Deliver, Offset, Recorder
from llm_locust.swarm.process.event_loop import wait_until
from llm_locust.swarm.process.log import redact
from llm_locust.swarm.process.patches import events
from llm_locust.swarm.tracing_setup import tracer_of
from llm_locust.swarm.users.open_loop import OpenLoad
from llm_locust.swarm.users.traffic import TrafficTable, make_routes, request_headers
from llm_locust.swarm.users.waits import Backoffs

logger = logging.getLogger(__name__)


# --- Requests in Locust's own statistics


class LlmRequestError(Exception):
    """A failed request, as Locust's failure table shows it."""


class _OwnContext(dict[str, Any]):
    """The context of our own events; it is empty."""


class LocustStatistics:
    """Fires one request event per judged record, so that Locust's own statistics are correct.

    A cancelled request, or a first try, is neither a success nor a failure of the server. Locust has no such
    category, so these are only in the records.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._failures = ErrorKinds()

    def add(self, record: RequestRecord) -> None:
        """Fire the event of a request that ended ok or failed."""
        failure = None
        if record.outcome is not Outcome.OK:
            failure = LlmRequestError(self._failures.of(f"{record.outcome}: {record.error}"))
        self._environment.events.request.fire(
            request_type=record.endpoint,
            name=record.name,
            response_time=_elapsed_ms(record),
            response_length=record.bytes_received,
            exception=failure,
            context=_OwnContext(),
        )


class OtherStatistics:
    """Counts the events of requests that are not ours, until :meth:`end`."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.table = OtherTable()
        environment.events.request.add_listener(self._on_request)

    def end(self) -> None:
        """Count no more."""
        with suppress(ValueError):  # it has ended before
            self._environment.events.request.remove_listener(self._on_request)

    def _on_request(
        self,
        request_type: object = "",
        name: object = "",
        response_time: object = None,
        exception: object = None,
        context: object = None,
        **_: object,
    ) -> None:
        if not isinstance(context, _OwnContext):
            self.table.add(request_type, name, response_time, failed=exception is not None)


def _elapsed_ms(record: RequestRecord) -> float:
    """End-to-end latency; for a failure, the time until it failed."""
    if record.outcome is Outcome.OK and len(record.arrivals_ns):
        return float(record.arrivals_ns[-1]) * 1e-6
    begin = record.started_ns if record.sent_ns is None else record.sent_ns
    return (record.ended_ns - begin) * 1e-6


# --- The gate at which users of a closed loop wait between two stages, and the warm-up of what passes it


class StageGate:
    """Open during a stage's load, closed between two stages; in a run without a sweep always open.

    Attributes:
        phase: number of times that it was opened after it had been closed.
        measured_ns: end of the current stage's warm-up on the run's clock; None: not known yet.
        lengths: of the current stage's prompts and answers, from before its load begins; None: as the run
            says.
        prefix: what the current stage's prompts share, and its number, from then; None: as the run says.

    Args:
        origin_ns: start of an open loop's schedule, on the run's clock.
        clock: returns this process's clock against the run's time.
    """

    def __init__(self, settings: Settings, origin_ns: int, clock: Callable[[], Offset]) -> None:
        self.measured_ns: int | None = None
        self.lengths: LengthPair | None = None
        self.prefix: tuple[PrefixShare, int] | None = None
        self.phase = 0
        self._sweep = settings.load.sweep
        self._warmup_s = settings.run.warmup_s
        self._origin_ns = origin_ns
        self._clock = clock
        self._began_s = time.monotonic()
        self._opened = Event()
        if self._sweep is None or self._sweep.kind == "rate":
            self._opened.set()

    def open(self) -> None:
        self.phase += not self._opened.is_set()
        self._opened.set()

    def close(self) -> None:
        self._opened.clear()

    @property
    def is_open(self) -> bool:
        return self._opened.is_set()

    def wait(self) -> None:
        """Return at once if the gate is open, else when it opens."""
        if not self._opened.is_set():
            self._opened.wait()

    @property
    def is_warm_up_now(self) -> bool:
        """Whether the measured part of the run, or of the stage, has not begun; for a closed loop."""
        if self._sweep is None:
            return time.monotonic() - self._began_s < self._warmup_s
        offset_ns, _ = self._clock() or (0, 0)
        return self._is_before(time.time_ns() + offset_ns)

    def is_warm_up_at(self, at_s: float) -> bool:
        """Whether a request due ``at_s`` after the schedule's start is due before the measured part."""
        if self._sweep is None:
            return at_s < self._warmup_s
        return self._is_before(self._origin_ns + round(at_s * 1e9))

    def _is_before(self, at_ns: int) -> bool:
        return self.measured_ns is None or at_ns < self.measured_ns


# --- State shared by the users of one process during one run


#: Pause of a greenlet that asks for a request again although no more may start.
TURNED_AWAY_S = 1.0


class Closable(Protocol):
    """An answer that a user may leave open."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """A worker's position in a run: its name in the records, its index from 0, and the number of workers."""

    worker: str
    index: int
    count: int


class LoadSession:
    """One run in one process.

    Attributes:
        stopping: the load has ended: no request starts, those in flight go on.
        drained_s: time from the end of the load to the end of the drain; None before.
        closed: the last record is in.
        load: the schedule that requests follow; None in a closed loop.
        ok, failed: numbers of requests by result. ``backoffs`` are the waits after failed ones.
        kinds: state shared by the requests of each kind.
        others: counts of the requests that other users send.
        answers: those that users may have left open; closed, and so recorded, at the end.

    Args:
        run: facts from the master, the same for all workers.
        place: position of this process among the run's workers.
        deliver: receives the recorder's batches.
        clock: returns this process's clock against the run's time.
    """

    def __init__(
        self,
        environment: Environment,
        run: RunInfo,
        settings: Settings,
        *,
        place: WorkerPlace,
        deliver: Deliver,
        clock: Callable[[], Offset] = lambda: None,
    ) -> None:
        self.run = run
        self.settings = settings
        self.recorder = Recorder(run["id"], place.worker, deliver, lambda: self.client.in_flight, clock)
        self.stopping = False
        self.drained_s: float | None = None
        self.closed = False
        self._stopped_s = math.nan
        self._cutting = False
        self._leaving: set[greenlet] = set()
        self._turned_away: WeakSet[greenlet] = WeakSet()
        self.answers: WeakSet[Closable] = WeakSet()
        self.load: OpenLoad | None = None
        self.ok = self.failed = 0
        total = settings.load.num_requests
        self.gate = StageGate(settings, run["origin_ns"], clock)
        self._quota = None if total is None else Quota(share(total, place.index, run["starters"]))
        self._environment = environment
        redact(environment, settings.secrets)
        self._statistics = LocustStatistics(environment)
        self.worker_index = place.index
        self._users = count()
        self.backoffs = Backoffs(run["seed"], place.index)
        self.client = LlmClient(
            make_routes(run, settings, place.index, self._together),
            sink=self._finished,
            headers=request_headers(settings),
            timeouts=settings.run.timeouts,
            max_answer_bytes=settings.run.max_answer_bytes,
            replica_headers=[*settings.run.replica_headers, *filter(None, [run.get("replica_header")])],
            secrets=settings.secrets,
            worker=place.worker,
            admit=self._admit,
            count_tokens=None if settings.workload.tokenizer is None else settings.workload.tokenizer.count,
            trace=tracer_of(environment, run["id"], place.worker),
        )
        places = place.index, max(place.count, place.index + 1)
        self._cut = Canceller(self.client)
        self.kinds = TrafficTable(run, settings, self.client, places, partial(redact, environment))
        self.others = OtherStatistics(environment)

    def _together(self, call: Call) -> str | None:
        """Key of sticky requests: their conversation, else their user.

        Each request of a schedule has a key of its own, whichever user object sends it.
        """
        if call.session is not None or self.load is not None:
            return call.session
        return f"{self.worker_index}-{call.user}"

    def new_user(self) -> int:
        """A number that no other user of this process has."""
        return next(self._users)

    def enter(self) -> "LoadSession":
        """Return this session if another request may start.

        In a sweep a user waits here from the end of a stage's load to the beginning of the next.

        Raises:
            StopUser: this worker's share of ``--num-requests`` is used up.
            gevent.GreenletExit: the load has ended, and this is not a user's ``on_stop``. It passes every
                ``except Exception`` of the user or the SDK.
        """
        self.gate.wait()
        if self._over:
            self._turn_away(gevent.GreenletExit())
        if self.exhausted:
            self._turn_away(StopUser())
        return self

    def _turn_away(self, error: BaseException) -> NoReturn:
        """Raise ``error``. A greenlet that has caught the last one waits first: a user who tries again
        forever would hold the event loop."""
        me = getcurrent()
        if me in self._turned_away:
            gevent.sleep(TURNED_AWAY_S)
        self._turned_away.add(me)
        raise error

    @contextmanager
    def taking_leave(self) -> Iterator[None]:
        """Let this greenlet, which runs a user's ``on_stop``, send requests after the end of the load."""
        me = getcurrent()
        self._leaving.add(me)
        try:
            yield
        finally:
            self._leaving.discard(me)

    @property
    def _over(self) -> bool:
        """Whether no request may start here any more."""
        return self.stopping and (self.closed or getcurrent() not in self._leaving)

    @property
    def in_flight(self) -> int:
        """Number of requests in flight."""
        return self.client.in_flight

    def waiting(self) -> list[Waiting]:
        """Users whose request has long been silent, the longest first; none of a schedule or a drain."""
        if self.load is not None or self.stopping:
            return []
        calls = [
            Waiting(call.name[:MOST_NAME], call.slo_class[:MOST_NAME], call.streamed, silent_s)
            for call, silent_s in self.client.silences()
            if silent_s > LEAST_SILENT_S
        ]
        return sorted(calls, key=lambda each: -each.silent_s)[:MOST_WAITING]

    @property
    def exhausted(self) -> bool:
        """Whether this worker's share of --num-requests is used up; a schedule ends by itself."""
        return self.load is None and self._quota is not None and self._quota.spent

    @property
    def spent(self) -> bool:
        """Whether this worker's whole share was sent and has ended. Always False without a bound."""
        finished = self.exhausted if self.load is None else self.load.spent
        return finished and not self.in_flight

    def counts(self) -> LoadCounts:
        """Counts of the load."""
        return msgspec.structs.replace(
            NO_LOAD if self.load is None else self.load.counts(),
            ok=self.ok,
            failed=self.failed,
            **self.backoffs.counts(),
            spent=self.spent,
            cut=self.cut or 0,
            share_left=0 if self._quota is None or self.load is not None else self._quota.left,
            drained_ns=None if self.drained_s is None else round(self.drained_s * 1e9),
        )

    def stop(self) -> None:
        """Stop admitting requests."""
        if not self.stopping:
            self.stopping = True
            self.backoffs.end()
            self.gate.open()  # users that wait there find that the load has ended
            self._stopped_s = time.monotonic()
            # Streams that users dropped are open until the collector finds them; nobody will read them.
            gc.collect()

    def drain(self) -> None:
        """Wait for the requests in flight, at most ``--drain`` after :meth:`stop`; then cut them.

        A concurrent call from another greenlet waits as well.
        """
        self.stop()
        left_s = self._stopped_s + self.settings.run.drain_s - time.monotonic()
        wait_until(lambda: self._cutting or not self.client.unanswered, left_s, poll_s=0.02)
        if self.drained_s is None:
            self.drained_s = time.monotonic() - self._stopped_s
        self._cut.end_drain()

    @property
    def cut(self) -> int | None:
        """Requests that were in flight when the drain ended; None before."""
        return self._cut.count

    @property
    def draining(self) -> bool:
        """Whether the load has ended and requests in flight are waited for."""
        return self.stopping and self.drained_s is None and not self._cutting

    def cut_short(self) -> None:
        """End the drain now, and any later one."""
        self._cutting = True

    def close(self) -> None:
        """End the session: record what is still in flight as cancelled, deliver the open batch."""
        self.stop()
        for answer in list(self.answers):
            answer.close()
        self._cut.cut_rest()
        self.closed = True
        self.others.end()
        self.recorder.close_batch()
        self.client.routes.close()

    def _finished(self, answer: Answer) -> None:
        record = answer.record
        if self.closed:
            # From a greenlet that its user left behind, after the final counts, which list it as in flight.
            logger.warning("request %s ended after its run: not recorded", record.request_id)
            return
        self.recorder.add(record)
        if len(record.arrivals_ns) > BATCH_ARRIVALS:
            gevent.spawn(
                DECODE_BUDGET.take, self.recorder.close_batch
            )  # some 10 ms, which no answer should wait for
        if self.load is None and self.settings.load.backs_off:
            self.backoffs.note(answer)
        self.ok += record.outcome is Outcome.OK
        if record.outcome not in UNJUDGED:
            self.failed += record.outcome is not Outcome.OK
            self._statistics.add(record)
        events.llm_request.fire(record=record)

    def _admit(self) -> None:
        """Count one more request; raises as :meth:`enter`."""
        self.enter()
        if self.load is None and self._quota is not None:
            self._quota.take()
