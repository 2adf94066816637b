"""Users of one process, whether the run directory is here or at a master."""

import logging
import random
import time
from collections.abc import Callable
from typing import Protocol

import gevent
from locust.env import Environment

from llm_locust.client.http.clock import hold_stamping
from llm_locust.client.http.reader import hub_reader, stamp_facts
from llm_locust.client.http.target import TargetError
from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import ClockFacts
from llm_locust.figures.text import plural
from llm_locust.host import exhausted
from llm_locust.options.settings import Settings, UsageError, parse_settings
from llm_locust.swarm.channel.messages import (
    CountsMessage,
    RateMessage,
    RunInfo,
    StagedMessage,
    StageMessage,
)
from llm_locust.swarm.channel.shipping import Deliver, Offset
from llm_locust.swarm.process.event_loop import every, keep_collections_short, wait_until
from llm_locust.swarm.process.health import Health, ensure_descriptors
from llm_locust.swarm.users.open_loop import OpenLoad, open_loop_class
from llm_locust.swarm.users.session import LoadSession, WorkerPlace

# --- A worker's part in the stages of a sweep: begin a load, end it, drain, confirm


#: Interval at which a drain is looked at.
POLL_S = 0.02

#: Longest wait for the records of requests that were cut.
CUT_S = 5.0


class StageFollower:
    """Stages of one session.

    Every step may arrive several times, because the master repeats it until it is confirmed.

    Args:
        tell: sends a confirmation to the master.
        clock: returns this process's clock against the run's time.
    """

    def __init__(
        self, session: LoadSession, tell: Callable[[StagedMessage], None], clock: Callable[[], Offset]
    ) -> None:
        self._session = session
        self._tell = tell
        self._clock = clock
        self._loaded: set[int] = set()
        self._draining: set[int] = set()
        self._drained: dict[int, StagedMessage] = {}

    def take(self, step: StageMessage) -> None:
        """Perform a step in a greenlet of its own; confirm one that is done already again."""
        stage = step.stage
        if step.step == "load":
            if stage not in self._loaded and stage not in self._draining:
                self._loaded.add(stage)
                gevent.spawn(self._load, step)
            self._set_stage(step)
            self._tell(StagedMessage(run=step.run, stage=stage, step="load"))
        elif stage in self._drained:
            self._tell(self._drained[stage])
        elif stage not in self._draining:
            self._draining.add(stage)
            gevent.spawn(self._drain, step)

    def _set_stage(self, step: StageMessage) -> None:
        if step.stage == max(self._loaded | self._draining):  # an older step may arrive late
            gate = self._session.gate
            gate.measured_ns, gate.lengths = step.measured_ns, step.lengths
            gate.prefix = None if step.prefix is None else (step.prefix, step.stage)

    def _load(self, step: StageMessage) -> None:
        session = self._session
        if session.load is not None and step.rate is not None:
            session.load.change_rate(step.at_ns, step.rate)
            return
        self._sleep_until(step.at_ns)
        if step.stage not in self._draining:
            session.gate.open()

    def _drain(self, step: StageMessage) -> None:
        session = self._session
        if session.load is not None:
            session.load.change_rate(step.at_ns, 0.0)
        self._sleep_until(step.at_ns)
        if not session.stopping:
            if session.load is None:
                session.gate.close()
            wait_until(lambda: session.stopping or self._is_idle(), step.drain_s, poll_s=POLL_S)
        if session.stopping:  # the run's own drain has begun, which counts by itself
            return
        unsent = 0 if session.load is None else session.load.give_up_waiting()
        cut = 0 if self._is_idle() else session.client.abandon_calls()
        wait_until(lambda: session.stopping or not session.in_flight, CUT_S, poll_s=POLL_S)
        session.recorder.close_batch()  # a search reads the stage before it chooses the next load
        self._drained[step.stage] = done = StagedMessage(
            run=step.run,
            stage=step.stage,
            step="drain",
            loaded=step.stage in self._loaded,
            cut=cut,
            unsent=unsent,
            finished=session.recorder.finished,
        )
        self._tell(done)

    def _is_idle(self) -> bool:
        load = self._session.load
        return not self._session.client.unanswered and (load is None or load.idle)

    def _sleep_until(self, at_ns: int) -> None:
        offset = self._clock()
        ours_ns = at_ns if offset is None else at_ns - offset[0]
        gevent.sleep(max(0.0, (ours_ns - time.time_ns()) * 1e-9))


logger = logging.getLogger(__name__)

#: Longest time until a batch is closed: a worker that dies loses no more than this.
BATCH_INTERVAL_S = 3.0


class GeneratorHost(Protocol):
    """What a load generator needs of its role."""

    #: appended to the first message of a drain
    drain_hint: str

    def place(self, run: RunInfo) -> tuple[int, int]:
        """This process's index in the run, and the number of processes with users."""

    def vet(self, settings: Settings) -> None:
        """Check a run's settings before they are used (raises UsageError)."""

    def offset(self) -> Offset:
        """Offset of this process's clock to the run's time."""

    def clock_facts(self) -> ClockFacts | None:
        """Facts about this process's clock so far."""

    def tell_staged(self, message: StagedMessage) -> None:
        """Confirm a step of a stage to the process with the run directory."""

    def refuse(self, reason: str) -> None:
        """Refuse the current run: it cannot be done here."""


class LoadGenerator:
    """Users of one process: their session in each run, from its first request to the end of its drain.

    Args:
        worker: this process's name in the records.
        deliver: receives the batches of records.
        host: role of this process.
    """

    def __init__(
        self, environment: Environment, worker: str, deliver: Deliver, health: Health, host: GeneratorHost
    ) -> None:
        self.environment = environment
        self.worker = worker
        self.session: LoadSession | None = None
        self._deliver = deliver
        self._health = health
        self._host = host
        self._stages: StageFollower | None = None
        self._counts_made = 0
        RecordBatch.warm_up()
        keep_collections_short()
        environment.events.spawning_complete.add_listener(lambda **_: keep_collections_short())
        self._stamping = hold_stamping()
        every(BATCH_INTERVAL_S, lambda: self.close_batch(in_turns=True), "the closing of batches")

    def begin(self, run: RunInfo) -> None:
        """Create the session of a new run.

        Raises:
            UsageError: its settings cannot be used in this process.
        """
        self.close()
        self._health.begin()
        index, workers = self._host.place(run)
        # Forked processes start with the same state of Python's generator, which wait times are drawn from.
        random.seed(f"{run['seed']}/{index}")
        options = self.environment.parsed_options
        assert options is not None
        try:
            hub_reader()  # which starts its thread
            settings = parse_settings(options)
            self._host.vet(settings)
            self.session = LoadSession(
                self.environment,
                run,
                settings,
                place=WorkerPlace(self.worker, index, workers),
                deliver=self._deliver,
                clock=self._host.offset,
            )
            self.session.load = self._open_load(self.session)
            is_open = self.session.load is not None
            ensure_descriptors(
                settings.load.max_in_flight if is_open else round(run["rate"]),
                "requests at once" if is_open else "users",
                max(1, run["starters"]),
                len(run["targets"]),
            )
            self._stages = StageFollower(self.session, self._host.tell_staged, self._host.offset)
            if self.session.load is not None:
                self.session.load.start()
        except Exception as e:
            reason = exhausted(e)
            if reason is None and not isinstance(e, TargetError | ValueError):
                raise
            raise UsageError(reason or str(e)) from e

    def _open_load(self, session: LoadSession) -> OpenLoad | None:
        """Create this process's part of an open loop (raises TraceError); None in a closed one."""
        user_class = open_loop_class(self.environment.user_classes, session.settings)
        if user_class is None:
            return None
        return OpenLoad(
            session.settings.load,
            session.run,
            session.worker_index,
            lambda clock: user_class(self.environment).follow(clock),
            self._host.offset,
            self._host.refuse,
            warmup_s=session.settings.run.warmup_s,
        )

    def change_rate(self, change: RateMessage) -> None:
        session = self.session
        if session is not None and session.load is not None and session.run["id"] == change.run:
            session.load.change_rate(change.at_ns, change.rate)

    def take_stage(self, step: StageMessage) -> None:
        """Perform a step of a stage of the current run."""
        session = self.session
        if self._stages is not None and session is not None and session.run["id"] == step.run:
            self._stages.take(step)

    def counts(self, unsent: int = 0, dropped: int = 0) -> CountsMessage | None:
        """Counts of this process in its run so far; None before its first."""
        session = self.session
        if session is None:
            return None
        self._counts_made += 1
        return CountsMessage(
            run=session.run["id"],
            number=self._counts_made,
            finished=session.recorder.finished,
            in_flight=session.in_flight,
            under_way=session.client.occupancy.level,
            in_flight_ns=session.client.occupancy.total_ns,
            unsent=unsent,
            dropped=dropped,
            load=session.counts(),
            clock=self._host.clock_facts(),
            health=self._health.snapshot(),
            stamps=stamp_facts(session.settings.run.stamps),
            waiting=session.waiting(),
            others=session.others.table.rows(),
            replica_headers=session.client.replicas.facts(),
        )

    def admit_no_more(self) -> None:
        """Stop admitting: no request starts, and users spawned from now on do nothing."""
        if self.session is not None:
            self.session.stop()
            if self.session.load is not None:
                self.session.load.stop()

    def drain(self) -> None:
        """Wait for the requests in flight after the end of the load, at most ``--drain``, then cut them."""
        self.admit_no_more()
        session = self.session
        if session is None or session.closed:
            return
        under_way, bound_s = session.client.unanswered, session.settings.run.drain_s
        if under_way and bound_s and session.draining:
            requests = plural(under_way, "request")
            logger.info("draining %s, at most %g s%s", requests, bound_s, self._host.drain_hint)
        session.drain()
        if session.cut:
            logger.info("cut %s that had not ended within the drain", plural(session.cut, "request"))

    def cut_short(self) -> bool:
        """End the current drain; return whether there was one."""
        session = self.session
        if session is None or not session.draining:
            return False
        session.cut_short()
        return True

    def close(self) -> None:
        """End the session; its users must have stopped."""
        if self.session is not None and not self.session.closed:
            if self.session.load is not None:
                self.session.load.drain(float(self.environment.stop_timeout or 0))
            self.session.close()

    def close_batch(self, *, in_turns: bool = False) -> None:
        """Deliver the records since the last batch; ``in_turns`` as the recorder has it."""
        if self.session is not None and not self.session.closed:
            self.session.recorder.close_batch(in_turns=in_turns)
