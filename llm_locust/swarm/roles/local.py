"""Single-process mode: users, records and run directory in one process."""

from collections.abc import Callable, Iterable

from locust.env import Environment
from locust.runners import LocalRunner

from llm_locust.core.manifest import ClockFacts
from llm_locust.live.state import WorkerState
from llm_locust.options.settings import Settings, UsageError
from llm_locust.swarm.channel.messages import BatchMessage, RateMessage, RunInfo, StagedMessage, StageMessage
from llm_locust.swarm.channel.shipping import Offset, Shipper
from llm_locust.swarm.live import LocalLive
from llm_locust.swarm.process.event_loop import spawn_loop
from llm_locust.swarm.process.exits import keep_exits
from llm_locust.swarm.process.stopping import Stopping
from llm_locust.swarm.roles.coordinator import CUT_HINT, RunCoordinator
from llm_locust.swarm.roles.load_generator import LoadGenerator
from llm_locust.swarm.run.run import ActiveRun, State
from llm_locust.swarm.users.session import LoadSession


class LocalRole:
    """A run coordinator and a load generator in one process, with batches delivered as between two.

    So a batch that the disk did not take is kept and tried again here too. There is no spool, because it
    would be on the same disk.
    """

    def __init__(self, environment: Environment) -> None:
        runner = environment.runner
        assert isinstance(runner, LocalRunner)
        self._runner = runner
        self._stopping = Stopping(runner, self._on_own_end)
        self._shipper = Shipper(self._hand_over)
        self._runs = RunCoordinator(
            environment,
            lambda run, _, seq: self._shipper.acknowledged(run, seq),
            self._tell,
            look=self._look,
            on_clock_step=lambda: self._users.close_batch(),
        )
        self._users = LoadGenerator(
            environment, runner.client_id, self._shipper.deliver, self._runs.health, self
        )
        events = environment.events
        events.test_start.add_listener(self._on_test_start)
        events.test_stopping.add_listener(self._on_test_stopping)
        events.test_stop.add_listener(self._on_test_stop)
        self._live = LocalLive(environment, runner, self._worker_state, lambda: self._runs.stopped_ago_s)
        events.quitting.add_listener(lambda **_: self._runs.on_quitting(runner.stop))
        keep_exits(environment, self._runs.settle_code)
        events.quit.add_listener(lambda **_: self._runs.on_quit())
        spawn_loop(self._shipper.ship_forever, "the shipping of batches")
        self._runs.check()

    @property
    def session(self) -> LoadSession | None:
        return self._users.session

    def _on_own_end(self, end: Callable[[], None]) -> None:
        if self._runs.run is None:
            self._runs.refuse("a listener to test_start ends the load (runner.stop or quit) before it begins")
        elif self._runs.run.state > State.LOADING:
            end()
        else:
            self._runs.end_by_locustfile()

    # -- GeneratorHost -------------------------------------------------------------------------

    drain_hint = CUT_HINT

    def place(self, _: RunInfo) -> tuple[int, int]:
        """The only one."""
        return 0, 1

    def vet(self, settings: Settings) -> None:
        """Accept any code: whoever started this process named it."""

    def refuse(self, reason: str) -> None:
        """Refuse the current run."""
        self._runs.refuse(reason)

    def tell_staged(self, message: StagedMessage) -> None:
        """Confirm a step of a stage."""
        self._runs.staged(self._users.worker, message)

    def clock_facts(self) -> ClockFacts:
        """Facts about this process's clock, which is the run's."""
        return self._runs.clock.facts()

    def offset(self) -> Offset:
        """Offset of this process's realtime to the run's time."""
        clock = self._runs.clock
        clock.look()
        return clock.offset_ns, clock.error_ns

    # -- events of Locust ----------------------------------------------------------------------

    def _on_test_start(self, **_: object) -> None:
        run = self._runs.begin([self._users.worker])
        self._stopping.begin()
        self._shipper.begin(run.info["id"], None, run.info["manifest"])
        try:
            self._users.begin(run.info)
        except UsageError as e:
            self._runs.abandon(str(e))

    def _worker_state(self) -> WorkerState:
        session, runner = self.session, self._runner
        return WorkerState(
            id=runner.client_id,
            state=runner.state,
            users=runner.user_count,
            reported_s=self._live.store.clock_s(),
            waiting=() if session is None else tuple(session.waiting()),
            in_flight=None if session is None else session.client.occupancy.level,
            cpu_percent=float(runner.current_cpu_usage) or None,  # 0: not measured yet
        ).measured(self._runs.health.snapshot())

    def _tell(self, message: RateMessage | StageMessage, workers: Iterable[str] | None = None) -> None:
        if isinstance(message, RateMessage):
            self._users.change_rate(message)
        else:
            self._users.take_stage(message)

    def _look(self, run: ActiveRun) -> None:
        run.roster.heard(self._users.worker, self._users.counts())

    def _hand_over(self, message: BatchMessage) -> None:
        run = self._runs.run
        if run is not None and run.info["id"] == message.run:
            run.collector.accept(
                self._users.worker,
                message.seq,
                message.rows,
                message.frame,
                message.finished,
                message.in_flight,
            )

    def _on_test_stopping(self, **_: object) -> None:
        self._users.admit_no_more()
        run = self._runs.run
        if run is not None:
            run.stopped()
            self._runs.expect_end(self._stopping, self._on_test_stop)
            self._users.drain()
            self._look(run)
            run.drained()

    def on_interrupt(self, _: int) -> bool:
        """Handle Ctrl-C; return whether nothing more must be done."""
        return self._users.cut_short() or self._runs.keeps_report()

    def _on_test_stop(self, **_: object) -> None:
        run = self._runs.run
        if run is None or run.state >= State.FINISHING:
            return
        self._users.close()
        self._shipper.flush(run.settings.run.flush_timeout_s)
        counts = self._users.counts(self._shipper.unsent, self._shipper.dropped)
        if counts is not None:
            run.roster.done(self._users.worker, counts, stopped=True)
        self._shipper.finish(run.info["id"], None)
        self._runs.finish()
