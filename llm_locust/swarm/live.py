"""Live numbers of a run: counted by workers, sent, received and kept by the master."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import gevent
from locust.env import Environment
from locust.exception import RPCError
from locust.runners import STATE_CLEANUP, STATE_STOPPED, STATE_STOPPING, LocalRunner, MasterRunner

from llm_locust.client.http.timers import DECODE_BUDGET, DECODING_S
from llm_locust.core.manifest import MANIFEST_DECODER
from llm_locust.core.record import RequestRecord
from llm_locust.live.counting import STEPS, LiveCounts
from llm_locust.live.state import GONE, MISSING, LiveRun, Observation, WorkerState
from llm_locust.live.store import LiveStore
from llm_locust.live.worker_report import ReportError
from llm_locust.options.load import LoadSettings, parse_load
from llm_locust.options.settings import scenario_of
from llm_locust.swarm.channel.channel import NOT_A_WORKER, MasterMailbox, WorkerMailbox, guard_of
from llm_locust.swarm.channel.messages import LIVE, RESET, CountsMessage, LiveMessage, ResetMessage, RunInfo
from llm_locust.swarm.process.event_loop import every
from llm_locust.swarm.process.patches import events

# --- Owner of the live store: resets it with each run, and samples the load


#: Interval at which the load is sampled.
LOOK_INTERVAL_S = 1.0

#: Most workers that have left and are still listed.
MOST_GONE = 50

#: Option of a run with the number of its resets: a worker that joins later learns of them by it.
EPOCH_OPTION = "llm_live_epoch"

#: Attribute of an environment that holds its store. Only Locust's environments outlive a call.
_ATTRIBUTE = "llm_locust_live"

_ENDING = (STATE_STOPPING, STATE_CLEANUP, STATE_STOPPED)


class Watch:
    """Keeps a store in step with Locust's runs.

    Args:
        settle_s: longest time after a request's end until its report arrives.
        workers: returns the current workers by name.
        on_reset: called when all counts are reset.
        stopped_ago_s: time since the end of the load; None before. Rates cover the time until then, although
            requests in flight are still waited for.
    """

    def __init__(
        self,
        environment: Environment,
        settle_s: float,
        workers: Callable[[], Mapping[str, WorkerState]],
        on_reset: Callable[[], None],
        stopped_ago_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        ahead_s = time.time() - time.monotonic()
        # Seconds since the Unix epoch that start at the wall clock and are free of its steps.
        store = LiveStore(lambda: time.monotonic() + ahead_s, settle_s)
        store.is_draining = self._is_draining
        self.store = vars(environment)[_ATTRIBUTE] = store
        self._environment = environment
        self._workers = workers
        self._on_reset = on_reset
        self._stopped_ago_s = stopped_ago_s
        self._load = LoadSettings()
        self._listed: dict[str, WorkerState] = {}
        events = environment.events
        events.test_start.add_listener(lambda **_: self._begin())
        events.test_stopping.add_listener(lambda **_: self.store.stop(self._stopped_ago_s() or 0.0))
        events.reset_stats.add_listener(lambda **_: self.reset())
        events.spawning_complete.add_listener(self._on_spawning_complete)
        every(LOOK_INTERVAL_S, self._look, "the live numbers' look at the load")

    def reset(self) -> None:
        """Reset all counts within the run."""
        if self.store.run.id:
            self.store.reset()
            self._tell_epoch()
            self._on_reset()

    def _begin(self) -> None:
        run = live_run(self._environment)
        if run is None:
            return
        self._load = _load(self._environment)
        self._listed.clear()
        self.store.begin(run)
        self._tell_epoch()

    def _tell_epoch(self) -> None:
        vars(self._environment.parsed_options)[EPOCH_OPTION] = self.store.epoch

    def _on_spawning_complete(self, **_: object) -> None:
        if self._environment.reset_stats:  # Locust's --reset-stats
            self.reset()

    def _look(self) -> None:
        runner: Any = self._environment.runner
        if not self.store.run.id or self.store.content.stopped_s is not None:
            return
        # The state changes before all listeners of test_stopping have returned: one of them drains.
        if runner.state in _ENDING and not self._is_draining():
            self.store.stop()
        else:
            self.store.observe(self._observation())

    def _is_draining(self) -> bool:
        return self._stopped_ago_s() is not None

    def _observation(self) -> Observation:
        runner: Any = self._environment.runner
        now = self._workers()
        # One that Locust no longer lists is gone; a missing one stays missing.
        gone = [
            WorkerState(id=id_, state=worker.state if worker.state == MISSING else GONE)
            for id_, worker in self._listed.items()
            if id_ not in now
        ]
        self._listed = {worker.id: worker for worker in [*gone[-MOST_GONE:], *now.values()]}
        return Observation(
            users=runner.user_count,
            target=runner.target_user_count,
            rate=self._rate(runner.target_user_count),
            workers=tuple(self._listed.values()),
            draining=self._is_draining(),
        )

    def _rate(self, users: int) -> float | None:
        """Rate that an open loop's schedule asks for now; None for a trace."""
        info = run_info(self._environment)
        if not self.store.run.open_loop or info is None:
            return None
        if self._load.users_are_rate:
            return float(users)
        profiles = [*self._load.class_rates.values(), *([self._load.rate] if self._load.rate else [])]
        since_origin_s = max(0.0, self.store.clock_s() - info["origin_ns"] * 1e-9)
        return sum(float(profile.rate(since_origin_s)) for profile in profiles) if profiles else None


def store_of(environment: Environment) -> LiveStore | None:
    """Live store of a process; None on a worker, and before the process has its role."""
    found: LiveStore | None = vars(environment).get(_ATTRIBUTE)
    return found


def run_info(environment: Environment) -> RunInfo | None:
    """Facts of the current run in this process; None before the first."""
    info: RunInfo | None = getattr(environment.parsed_options, "llm_run", None)
    return info


def live_run(environment: Environment) -> LiveRun | None:
    """The current run as the live numbers need it, in any process; None before the first."""
    info = run_info(environment)
    if info is None:
        return None
    run_time = getattr(environment.parsed_options, "run_time", None)
    # The web UI's form leaves it as text, and ends the run itself.
    run_time_s = float(run_time) if isinstance(run_time, int | float) else None
    return LiveRun.of(MANIFEST_DECODER.decode(info["manifest"]), run_time_s)


def _load(environment: Environment) -> LoadSettings:
    options = environment.parsed_options
    assert options is not None
    scenario = scenario_of(options)
    classes = () if scenario is None else scenario.classes
    return parse_load(options, {found.name: found.rate for found in classes if found.rate is not None})


# --- The live counts of a process with users


class RequestCounter:
    """Counts the requests of this process's current run."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.counts: LiveCounts | None = None
        self._pass: gevent.Greenlet[[], None] | None = None
        environment.events.test_start.add_listener(lambda **_: self._begin())
        events.llm_request.add_listener(self._on_request)
        self._begin()  # a worker may join in the middle of a run

    def report(self, *, whole: bool = True) -> bytes | None:
        """Return the counts since the last report; None before the first run."""
        return None if self.counts is None else self.counts.report(whole=whole)

    def count(self) -> None:
        """Count what has ended in several turns of the loop, so that little is left to :meth:`report`."""
        self._catch_up()
        for _ in range(STEPS):  # of the second that goes on
            DECODE_BUDGET.wait_for_next()
            if self.counts is not None:
                self.counts.step()
        DECODE_BUDGET.wait_for_next()  # the report, too, takes a millisecond

    def _begin(self) -> None:
        run = live_run(self._environment)
        if run is not None:
            epoch = getattr(self._environment.parsed_options, EPOCH_OPTION, 0)
            self.counts = LiveCounts(run, time.monotonic_ns, epoch)

    def _on_request(self, record: RequestRecord, **_: object) -> None:
        if self.counts is None:
            return
        self.counts.add(record)
        if self.counts.is_due and (self._pass is None or self._pass.ready()):
            self._pass = gevent.spawn(self._catch_up)

    def _catch_up(self) -> None:
        """Count the seconds that have passed, each step in a turn of its own, as for the record's batch."""
        while (counts := self.counts) is not None and counts.is_due:
            DECODE_BUDGET.wait()
            DECODE_BUDGET.spend(DECODING_S)
            counts.step()


# --------------------
# A worker's live counts, sent to the master.
#
# They are added to Locust's own report, every 3 s, and counted in several turns of the loop before Locust
# collects for it: whoever is ended in one of these turns has taken nothing out yet. When a test stops, Locust
# sends no report: the last counts are sent in a message of their own, before the worker's final counts of the
# run.
# --------------------


logger = logging.getLogger(__name__)


class LiveSender:
    """Counts a worker's requests, and reports them."""

    def __init__(self, environment: Environment, mail: WorkerMailbox) -> None:
        self._mail = mail
        self._counter = RequestCounter(environment)
        mail.listen(RESET, ResetMessage, self._on_reset)
        environment.events.report_to_master._handlers.insert(0, lambda **_: self._counter.count())
        environment.events.report_to_master.add_listener(self._on_report)
        environment.events.test_stop.add_listener(lambda **_: self._send_last())

    def _on_report(self, data: dict[str, object], **_: object) -> None:
        """Add the counts since the last report to Locust's; the next one has what is not counted yet."""
        report = self._counter.report(whole=False)
        if report is not None:
            data[LIVE] = report

    def _send_last(self) -> None:
        report = self._counter.report()
        if report is None:
            return
        try:
            self._mail.send(LIVE, LiveMessage(report=report))
        except RPCError as e:
            logger.warning("could not send the last live numbers; the records are not affected: %s", e)

    def _on_reset(self, reset: ResetMessage) -> None:
        counts = self._counter.counts
        if counts is not None and counts.run.id == reset.run and counts.epoch != reset.epoch:
            counts.reset(reset.epoch)


# --- The master's live numbers, received from the workers


#: Longest time after a request's end until its report has arrived: Locust's interval is 3 s.
MASTER_SETTLE_S = 4.0


class LiveReceiver:
    """Merges the live counts of the workers."""

    def __init__(
        self,
        environment: Environment,
        runner: MasterRunner,
        mail: MasterMailbox,
        stopped_ago_s: Callable[[], float | None],
    ) -> None:
        self._runner = runner
        self._mail = mail
        self._watch = Watch(environment, MASTER_SETTLE_S, self._workers, self._tell_all, stopped_ago_s)
        self._reports: dict[str, tuple[CountsMessage, float]] = {}  # by worker, and when
        self._dropped = guard_of(environment).dropped
        mail.listen(LIVE, LiveMessage, self.take)

    @property
    def store(self) -> LiveStore:
        return self._watch.store

    def note(self, worker: str, counts: CountsMessage) -> None:
        """Keep a worker's counts for display."""
        if counts.run == self.store.run.id:
            self._reports[worker] = counts, self.store.clock_s()

    def take(self, worker: str, message: LiveMessage) -> None:
        """Merge a worker's report; drop an invalid one."""
        if worker not in self._runner.clients:  # it has left, and its records are complete without this
            self._dropped.note(worker, LIVE, NOT_A_WORKER)
            return
        try:
            taken = self.store.take(worker, message.report)
        except ReportError as e:
            self._dropped.note(worker, LIVE, f"{e}; does it run another version of llm_locust?")
            return
        if taken == "stale":
            self._tell(worker)

    def _tell_all(self) -> None:
        for client in self._runner.clients.all:
            self._tell(client.id)

    def _tell(self, worker: str) -> None:
        """Send the reset to a worker; sent again if the worker reports the old epoch."""
        if not self.store.run.id:  # no run yet: there is nothing to reset
            return
        self._mail.send(RESET, ResetMessage(run=self.store.run.id, epoch=self.store.epoch), worker)

    def _workers(self) -> dict[str, WorkerState]:
        clients = self._runner.clients.all
        self._reports = {
            client.id: self._reports[client.id] for client in clients if client.id in self._reports
        }
        return {client.id: self._worker(client.id) for client in clients}

    def _worker(self, worker: str) -> WorkerState:
        client, (counts, reported_s) = self._runner.clients[worker], self._reports.get(worker, (None, 0.0))
        ours = counts is not None and counts.run == self.store.run.id
        state = WorkerState(
            id=worker,
            state=client.state,
            reported_s=reported_s,
            waiting=tuple(counts.waiting) if counts is not None and ours else (),
            users=client.user_count,
            in_flight=counts.under_way if counts is not None and ours else None,
            cpu_percent=float(client.cpu_usage) or None,  # 0: not measured yet
        )
        return state.measured(counts.health) if counts is not None and ours else state


# --- Live numbers of a process that is master and worker in one: it reports to itself


#: Interval at which the counts are merged.
COUNT_INTERVAL_S = 1.0

#: Longest time after a request's end until it is in the store.
LOCAL_SETTLE_S = 1.5


class LocalLive:
    """Counts this process's requests, and merges the counts.

    Args:
        worker: returns the current state of this process.
    """

    def __init__(
        self,
        environment: Environment,
        runner: LocalRunner,
        worker: Callable[[], WorkerState],
        stopped_ago_s: Callable[[], float | None],
    ) -> None:
        self._runner = runner
        self._watch = Watch(
            environment, LOCAL_SETTLE_S, lambda: {runner.client_id: worker()}, self._on_reset, stopped_ago_s
        )
        self._counter = RequestCounter(environment)
        # At once: the run's last live figures may be read as soon as this greenlet waits.
        environment.events.test_stop.add_listener(lambda **_: self._report())
        every(COUNT_INTERVAL_S, self._report_in_turns, "the live numbers' report")

    @property
    def store(self) -> LiveStore:
        return self._watch.store

    def _report_in_turns(self) -> None:
        self._counter.count()
        self._report(whole=False)

    def _report(self, *, whole: bool = True) -> None:
        report = self._counter.report(whole=whole)
        if report is not None:
            self.store.take(self._runner.client_id, report)

    def _on_reset(self) -> None:
        if self._counter.counts is not None:
            self._counter.counts.reset(self.store.epoch)
