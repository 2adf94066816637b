"""The side of a run that has users: a worker process, or a process that is all in one."""

import logging
import os
from collections.abc import Callable

import gevent
import psutil
from locust.env import Environment
from locust.runners import WorkerRunner

from llm_locust.batch import RecordBatch
from llm_locust.client.clock import hold_stamping
from llm_locust.client.pool import TargetError
from llm_locust.swarm import messages
from llm_locust.swarm.messages import (
    AckMessage,
    CountsMessage,
    FlushMessage,
    Received,
    RefusedMessage,
    RunInfo,
)
from llm_locust.swarm.options import UsageError, parse_settings
from llm_locust.swarm.recorder import Deliver
from llm_locust.swarm.session import Session
from llm_locust.swarm.shipping import Shipper

logger = logging.getLogger(__name__)

#: A batch is closed at least this often, so that a worker that dies loses no more than this.
BATCH_INTERVAL_S = 3.0


class UserSide:
    """Sessions of a process that has users. ``deliver`` takes their batches.

    Args:
        worker: this process's name in the records.
        place: gives this process's index and how many there are, when a run begins.
    """

    def __init__(
        self, environment: Environment, worker: str, place: Callable[[], tuple[int, int]], deliver: Deliver
    ) -> None:
        self.environment = environment
        self.worker = worker
        self.session: Session | None = None
        self._place = place
        self._deliver = deliver
        RecordBatch.warm_up()
        self._stamping = hold_stamping()
        self._process = psutil.Process()
        self._cpu_percent_max: float | None = None
        gevent.spawn(self._close_batches)

    def begin(self, run: RunInfo) -> None:
        """Make the session of a new run.

        Raises:
            UsageError: its settings cannot be used in this process.
        """
        index, workers = self._place()
        self._process.cpu_percent()
        self._cpu_percent_max = None
        options = self.environment.parsed_options
        assert options is not None
        try:
            self.session = Session(
                self.environment,
                run,
                parse_settings(options),
                host=self.environment.host or "",
                worker=self.worker,
                worker_index=index,
                worker_count=workers,
                deliver=self._deliver,
            )
        except (TargetError, ValueError) as e:
            raise UsageError(str(e)) from e

    def counts(self, unsent: int = 0) -> CountsMessage | None:
        """What this process has done in its run so far; None before its first."""
        session = self.session
        if session is None:
            return None
        return CountsMessage(
            run=session.run["id"],
            finished=session.recorder.finished,
            in_flight=session.client.in_flight,
            unsent=unsent,
            cpu_percent_max=self._cpu_percent_max,
        )

    def close(self) -> None:
        """End the session; its users must have stopped."""
        if self.session is not None and not self.session.closed:
            self.session.close()
            if self._cpu_percent_max is None:  # a run shorter than an interval
                self._sample_cpu()

    def _sample_cpu(self) -> None:
        """The CPU since the last sample, of one core, in percent."""
        self._cpu_percent_max = max(self._cpu_percent_max or 0.0, self._process.cpu_percent())

    def _close_batches(self) -> None:
        while True:
            gevent.sleep(BATCH_INTERVAL_S)
            if self.session is not None and not self.session.closed:
                self._sample_cpu()
                self.session.recorder.close_batch()


class WorkerSide:
    """A worker process: users here, the run directory at the master."""

    def __init__(self, environment: Environment) -> None:
        runner = environment.runner
        assert isinstance(runner, WorkerRunner)
        self._environment = environment
        self._runner = runner
        self._shipper = Shipper(lambda m: runner.send_message(messages.BATCH, dict(m)))
        self._users = UserSide(environment, runner.client_id, self._place, self._shipper.deliver)
        self._done: set[str] = set()
        runner.register_message(messages.ACK, self._on_ack)
        runner.register_message(messages.FLUSH, self._on_flush, concurrent=True)
        events = environment.events
        events.test_start.add_listener(self._on_test_start)
        events.test_stop.add_listener(self._on_test_stop)
        events.report_to_master.add_listener(self._on_report)
        events.quitting.add_listener(self._on_quitting)
        gevent.spawn(self._resend)

    @property
    def session(self) -> Session | None:
        return self._users.session

    def _place(self) -> tuple[int, int]:
        options = self._environment.parsed_options
        expected = getattr(options, "expect_workers", 1) or 1
        return max(self._runner.worker_index, 0), int(expected)

    def _on_test_start(self, **_: object) -> None:
        run: RunInfo | None = getattr(self._environment.parsed_options, "llm_run", None)
        if run is None:
            logger.error("the master does not load llm_locust: nothing will be recorded or sent")
            return
        try:
            self._users.begin(run)
        except UsageError as e:
            logger.error("%s", e)
            refusal = RefusedMessage(run=run["id"], reason=f"worker {os.uname().nodename}: {e}")
            self._runner.send_message(messages.REFUSED, dict(refusal))

    def _on_test_stop(self, **_: object) -> None:
        self._users.close()

    def _on_ack(self, msg: Received[AckMessage], **_: object) -> None:
        self._shipper.acknowledged(msg.data["run"], msg.data["seq"])

    def _on_flush(self, msg: Received[FlushMessage], **_: object) -> None:
        if self.session is None or self.session.run["id"] != msg.data["run"]:
            return
        self._runner.stop()  # the users end as --stop-timeout says
        self._flush()

    def _flush(self) -> None:
        """Send all of the run and say that it was all; the master waits for this word."""
        session = self.session
        if session is None:
            return
        self._users.close()
        # Once Locust has ended the greenlet that receives, no acknowledgement can come: do not wait for one.
        receives = len(self._runner.greenlet) > 0
        self._shipper.flush(session.settings.flush_timeout_s if receives else 0.0)
        counts = self._users.counts(self._shipper.unsent)
        assert counts is not None
        self._done.add(counts["run"])
        self._runner.send_message(messages.DONE, dict(counts))

    def _on_report(self, data: dict[str, object], **_: object) -> None:
        counts = self._users.counts(self._shipper.unsent)
        if counts is not None:
            data["llm"] = dict(counts)

    def _on_quitting(self, **_: object) -> None:
        """This worker is told to end (SIGTERM, Ctrl-C, the master's word): no record stays behind.

        Runs before Locust's own listener, while messages still come and go.
        """
        if self.session is not None and self.session.run["id"] not in self._done:
            self._runner.stop()
            self._flush()

    def _resend(self) -> None:
        while True:
            gevent.sleep(1.0)
            self._shipper.resend_overdue()
