"""The live numbers wired to Locust: workers count, the master or a process that is all in one merges.

A worker's counts ride on Locust's own report, every 3 s. When a test stops Locust sends no report: the
last counts come in a message of their own, before the worker's last word on the run.
"""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated

import gevent
import msgspec
from locust.env import Environment
from locust.exception import RPCError
from locust.runners import LocalRunner, MasterRunner, WorkerRunner
from msgspec import Meta

from llm_locust.client.http.turns import TURN
from llm_locust.core.manifest import Count, NodeHealth
from llm_locust.core.record import RequestRecord
from llm_locust.live.messages import ReportError
from llm_locust.live.reporting import PASS_ARRIVALS, LiveCounts
from llm_locust.live.state import WorkerState
from llm_locust.live.store import LiveStore
from llm_locust.swarm.channel.messages import CountsMessage, MessageError, Name, Received, plain, read
from llm_locust.swarm.channel.securing import guard_of
from llm_locust.swarm.live.watch import EPOCH_OPTION, Watch, live_run
from llm_locust.swarm.process.hooks import events
from llm_locust.swarm.process.loops import every
from llm_locust.swarm.users.session import Session

logger = logging.getLogger(__name__)

#: Where an environment keeps its part. Locust's environments are the only state that outlives a call.
_ATTRIBUTE = "llm_locust_live"

#: Key in Locust's report, and message from worker to master: a worker's live counts.
LIVE = "llm_live"
#: Message from master to worker: count anew.
RESET = "llm_live_reset"

#: A process that is all in one counts as often.
COUNT_INTERVAL_S = 1.0

#: How long after a request's end its report has come: Locust's interval of 3 s, and a message's way.
MASTER_SETTLE_S = 4.0
LOCAL_SETTLE_S = 1.5


#: A report of all keys, each with a sketch of every metric, takes less.
MOST_REPORT_BYTES = 8 << 20


class LastMessage(msgspec.Struct, frozen=True, kw_only=True):
    report: Annotated[bytes, Meta(max_length=MOST_REPORT_BYTES)]


class ResetMessage(msgspec.Struct, frozen=True, kw_only=True):
    run: Name
    epoch: Count


def attach(
    environment: Environment,
    session: Callable[[], Session | None] = lambda: None,
    health: Callable[[], NodeHealth] = NodeHealth,
    stopped_ago_s: Callable[[], float | None] = lambda: None,
) -> LiveStore | None:
    """Let this process take part in the live numbers, once. To be called when its side is there.

    Args:
        session: the session of a process that is all in one; a worker's report tells its own.
        health: how such a process fares.
        stopped_ago_s: the time since the present run's load has ended; None before.

    Returns:
        The store, where there is one: not on a worker.
    """
    if _ATTRIBUTE not in vars(environment):
        vars(environment)[_ATTRIBUTE] = _part(environment, session, health, stopped_ago_s)
    return store_of(environment)


def store_of(environment: Environment) -> LiveStore | None:
    """The live numbers of a process that has them: not on a worker, nor before :func:`attach`."""
    part = vars(environment).get(_ATTRIBUTE)
    return part.store if isinstance(part, _Master | _Local) else None


def _part(
    environment: Environment,
    session: Callable[[], Session | None],
    health: Callable[[], NodeHealth],
    stopped_ago_s: Callable[[], float | None],
) -> "_Worker | _Master | _Local":
    runner = environment.runner
    if isinstance(runner, WorkerRunner):
        return _Worker(environment, runner)
    if isinstance(runner, MasterRunner):
        return _Master(environment, runner, stopped_ago_s)
    assert isinstance(runner, LocalRunner)
    return _Local(environment, runner, session, health, stopped_ago_s)


class _Counting:
    """Counts the requests of this process's present run."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.counts: LiveCounts | None = None
        environment.events.test_start.add_listener(lambda **_: self._begin())
        events.llm_request.add_listener(self._on_request)
        self._begin()  # a worker may have joined in the middle of a run

    def report(self) -> bytes | None:
        """What came since the last report; None before the first run."""
        return None if self.counts is None else self.counts.report()

    def _begin(self) -> None:
        run = live_run(self._environment)
        if run is not None:
            epoch = getattr(self._environment.parsed_options, EPOCH_OPTION, 0)
            self.counts = LiveCounts(run, time.monotonic_ns, epoch)

    def _on_request(self, record: RequestRecord, **_: object) -> None:
        if self.counts is not None:
            self.counts.add(record)
            if len(record.arrivals_ns) > PASS_ARRIVALS:
                gevent.spawn(TURN.take, self.counts.count)  # as with the record's batch


class _Worker:
    """A worker process: counts, and reports."""

    def __init__(self, environment: Environment, runner: WorkerRunner) -> None:
        self._runner = runner
        self._counting = _Counting(environment)
        runner.register_message(RESET, self._on_reset)
        environment.events.test_stop.add_listener(self._on_test_stop)
        environment.events.report_to_master.add_listener(self._on_report)

    def _on_report(self, data: dict[str, object], **_: object) -> None:
        report = self._counting.report()
        if report is not None:
            data[LIVE] = report

    def _on_test_stop(self, **_: object) -> None:
        report = self._counting.report()
        if report is None:
            return
        try:
            self._runner.send_message(LIVE, plain(LastMessage(report=report)))
        except RPCError as e:
            logger.warning("the last live numbers could not be sent; the records are not concerned: %s", e)

    def _on_reset(self, msg: Received[object], **_: object) -> None:
        counts = self._counting.counts
        try:
            reset = read(msg.data, ResetMessage)
        except MessageError as e:
            logger.warning("a message of the master was dropped (%s): %s", RESET, e)
            return
        if counts is not None and counts.run.id == reset.run and counts.epoch != reset.epoch:
            counts.reset(reset.epoch)


class _Master:
    """Locust's master: the counts come from the workers."""

    def __init__(
        self, environment: Environment, runner: MasterRunner, stopped_ago_s: Callable[[], float | None]
    ) -> None:
        self._runner = runner
        self._watch = Watch(environment, MASTER_SETTLE_S, self._workers, self._tell_all, stopped_ago_s)
        self._told: dict[str, CountsMessage] = {}  # by each worker that is listed
        self._dropped = guard_of(environment).dropped
        environment.events.worker_report.add_listener(self._on_worker_report)
        runner.register_message(LIVE, self._on_last)

    @property
    def store(self) -> LiveStore:
        return self._watch.store

    def _on_worker_report(self, client_id: str, data: Mapping[str, object], **_: object) -> None:
        with suppress(MessageError):  # the run's side counts and names it
            if (counts := data.get("llm")) is not None:
                known = read(counts, CountsMessage)
                if known.run == self.store.run.id:
                    self._told[client_id] = known
        if (report := data.get(LIVE)) is not None:
            self._take(client_id, {"report": report})

    def _on_last(self, msg: Received[object], **_: object) -> None:
        self._take(msg.node_id, msg.data)

    def _take(self, worker: str, message: object) -> None:
        if worker not in self._runner.clients:  # a stranger; or one that is gone, whose records say it all
            self._dropped.note(worker, LIVE, "its sender is no worker of this master")
            return
        try:
            taken = self.store.take(worker, read(message, LastMessage).report)
        except (ReportError, MessageError) as e:
            self._dropped.note(worker, LIVE, f"{e}; does it run another version of llm_locust?")
            return
        if taken == "stale":
            self._tell(worker)

    def _tell_all(self) -> None:
        for client in self._runner.clients.all:
            self._tell(client.id)

    def _tell(self, worker: str) -> None:
        """A worker that misses it counts on, and is told again when it reports."""
        if not self.store.run.id:  # no run yet: there is nothing to count anew
            return
        reset = ResetMessage(run=self.store.run.id, epoch=self.store.epoch)
        try:
            self._runner.send_message(RESET, plain(reset), worker)
        except RPCError as e:
            logger.warning("worker %s could not be told to count anew: %s", worker, e)

    def _workers(self) -> dict[str, WorkerState]:
        clients = self._runner.clients.all
        self._told = {client.id: self._told[client.id] for client in clients if client.id in self._told}
        return {client.id: self._worker(client.id) for client in clients}

    def _worker(self, worker: str) -> WorkerState:
        client, counts = self._runner.clients[worker], self._told.get(worker)
        ours = counts is not None and counts.run == self.store.run.id
        return WorkerState(
            id=worker,
            state=client.state,
            users=client.user_count,
            in_flight=counts.in_flight if counts is not None and ours else None,
            cpu_percent=float(client.cpu_usage) or None,  # 0: not measured yet
            hub_lag_ms=counts.health.hub_lag_ms_p99 if counts is not None and ours else None,
        )


class _Local:
    """A process that is all in one: it reports to itself."""

    def __init__(
        self,
        environment: Environment,
        runner: LocalRunner,
        session: Callable[[], Session | None],
        health: Callable[[], NodeHealth],
        stopped_ago_s: Callable[[], float | None],
    ) -> None:
        self._runner = runner
        self._session = session
        self._health = health
        self._watch = Watch(environment, LOCAL_SETTLE_S, self._workers, self._on_reset, stopped_ago_s)
        self._counting = _Counting(environment)
        environment.events.test_stop.add_listener(lambda **_: self._report())
        every(COUNT_INTERVAL_S, self._report, "the live numbers' report")

    @property
    def store(self) -> LiveStore:
        return self._watch.store

    def _report(self) -> None:
        report = self._counting.report()
        if report is not None:
            self.store.take(self._runner.client_id, report)

    def _on_reset(self) -> None:
        if self._counting.counts is not None:
            self._counting.counts.reset(self.store.epoch)

    def _workers(self) -> dict[str, WorkerState]:
        session = self._session()
        worker = WorkerState(
            id=self._runner.client_id,
            state=self._runner.state,
            users=self._runner.user_count,
            in_flight=None if session is None else session.in_flight,
            cpu_percent=float(self._runner.current_cpu_usage) or None,  # 0: not measured yet
            hub_lag_ms=self._health().hub_lag_ms_p99,
        )
        return {worker.id: worker}
