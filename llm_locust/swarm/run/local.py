"""A process that is all in one: users, records and run directory."""

from locust.env import Environment
from locust.runners import LocalRunner

from llm_locust.core.manifest import NodeHealth
from llm_locust.options.settings import UsageError
from llm_locust.swarm.channel.messages import BatchMessage
from llm_locust.swarm.delivery.recorder import Offset
from llm_locust.swarm.delivery.shipping import Shipper
from llm_locust.swarm.process.loops import spawn_loop
from llm_locust.swarm.run.coordinator import CUT_HINT, RunCoordinator
from llm_locust.swarm.run.run import Run
from llm_locust.swarm.run.worker import LoadGenerator
from llm_locust.swarm.users.session import Session


class LocalRole:
    """The user's side and the run's side in one process, a batch handed over as between two.

    So a batch that the disk did not take is kept and tried again here too; without a spool, which
    would be on the same disk.
    """

    def __init__(self, environment: Environment) -> None:
        runner = environment.runner
        assert isinstance(runner, LocalRunner)
        self._shipper = Shipper(self._hand_over)
        self._runs = RunCoordinator(
            environment,
            lambda run, _, seq: self._shipper.acknowledged(run, seq),
            lambda change: self._users.change_rate(change),
            look=self._look,
            on_clock_step=lambda: self._users.close_batch(),
        )
        self._users = LoadGenerator(
            environment,
            runner.client_id,
            lambda _: (0, 1),
            self._shipper.deliver,
            self._runs.health,
            self._offset,
            self._runs.clock.facts,
            self._runs.refuse,
            hint=CUT_HINT,
        )
        events = environment.events
        events.test_start.add_listener(self._on_test_start)
        events.test_stopping.add_listener(self._on_test_stopping)
        events.test_stop.add_listener(self._on_test_stop)
        events.quitting.add_listener(lambda **_: self._runs.on_quitting(runner.stop))
        events.quit.add_listener(lambda **_: self._runs.print_once())
        spawn_loop(self._shipper.ship_forever, "the shipping of batches")
        self._runs.check()

    @property
    def session(self) -> Session | None:
        return self._users.session

    @property
    def stopped_ago_s(self) -> float | None:
        """The time since the run's load has ended; None before."""
        return self._runs.stopped_ago_s

    @property
    def health(self) -> NodeHealth:
        """Of this process, so far."""
        return self._runs.health.snapshot()

    def _offset(self) -> Offset:
        clock = self._runs.clock
        clock.look()
        return clock.offset_ns, clock.error_ns

    def _on_test_start(self, **_: object) -> None:
        run = self._runs.begin([self._users.worker])
        self._shipper.begin(run.info["id"], None, run.info["manifest"])
        try:
            self._users.begin(run.info)
        except UsageError as e:
            self._runs.abandon(str(e))

    def _look(self, run: Run) -> None:
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
            self._users.drain()
            self._look(run)
            run.drained()

    def on_interrupt(self, _: int) -> bool:
        """Ctrl-C; gives whether all is done that is to be done."""
        return self._users.cut_short() or self._runs.keeps_report()

    def _on_test_stop(self, **_: object) -> None:
        run = self._runs.run
        if run is None or run.finishing:
            return
        self._users.close()
        self._shipper.flush(run.settings.flush_timeout_s)
        counts = self._users.counts(self._shipper.unsent, self._shipper.dropped)
        if counts is not None:
            run.roster.done(self._users.worker, counts, stopped=True)
        self._shipper.finish(run.info["id"], None)
        self._runs.finish()
