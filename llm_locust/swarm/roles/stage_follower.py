"""A worker's part in the stages of a sweep: begin a load, end it, drain, confirm."""

import time
from collections.abc import Callable

import gevent

from llm_locust.swarm.channel.messages import StagedMessage, StageMessage
from llm_locust.swarm.delivery.recorder import Offset
from llm_locust.swarm.process.waiting import wait_until
from llm_locust.swarm.users.session import LoadSession

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
            self._confirm(step)
        elif stage in self._drained:
            self._tell(self._drained[stage])
        elif stage not in self._draining:
            self._draining.add(stage)
            gevent.spawn(self._drain, step)

    def _confirm(self, step: StageMessage) -> None:
        self._tell(StagedMessage(run=step.run, stage=step.stage, step="load"))

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

    @property
    def _offset_ns(self) -> int:
        found = self._clock()
        return 0 if found is None else found[0]

    def _sleep_until(self, at_ns: int) -> None:
        gevent.sleep(max(0.0, (at_ns - self._offset_ns - time.time_ns()) * 1e-9))
