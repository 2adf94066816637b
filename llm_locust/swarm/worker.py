"""The side of a run that has users: a worker process, or a process that is all in one."""

import functools
import gc
import logging
import os
import random
from collections.abc import Callable
from dataclasses import asdict

import gevent
import psutil
from locust import argument_parser
from locust.env import Environment
from locust.runners import STATE_INIT, WorkerRunner

from llm_locust.batch import RecordBatch
from llm_locust.client.clock import hold_stamping
from llm_locust.client.polling import PollLimiter
from llm_locust.client.pool import TargetError
from llm_locust.manifest import NodeHealth
from llm_locust.swarm import messages
from llm_locust.swarm.messages import (
    AckMessage,
    CountsMessage,
    Received,
    RefusedMessage,
    RunInfo,
    RunMessage,
)
from llm_locust.swarm.recorder import Deliver
from llm_locust.swarm.session import Session
from llm_locust.swarm.settings import UsageError, parse_settings
from llm_locust.swarm.shipping import Shipper

logger = logging.getLogger(__name__)

#: A batch is closed at least this often, so that a worker that dies loses no more than this.
BATCH_INTERVAL_S = 3.0


def keep_collections_short() -> None:
    """Put all that lives now out of the garbage collector's sight, and let it look less often.

    A full collection takes 75 ms with all that is imported, 0.1 ms without; with thousands of users it
    would hold the loop again. A request leaves no cycles, so that there is next to nothing to find.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 50, 100)


def remember_default_arguments() -> None:
    """Let Locust work out the names of its own arguments once.

    A worker asks for them for every option of every spawn message, and each time Locust builds its
    whole parser: 60 ms in the event loop, every second of a ramp. The answer never changes.
    """
    if not hasattr(argument_parser.default_args_dict, "cache_info"):
        argument_parser.default_args_dict = functools.cache(argument_parser.default_args_dict)


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
        keep_collections_short()
        environment.events.spawning_complete.add_listener(lambda **_: keep_collections_short())
        self._polling = PollLimiter(lambda: 0.0 if self.session is None else self.session.poll_pause_s)
        self._stamping = hold_stamping()
        self._process = psutil.Process()
        self._cpu_percent_max: float | None = None
        gevent.spawn(self._close_batches)

    def begin(self, run: RunInfo) -> None:
        """Make the session of a new run.

        Raises:
            UsageError: its settings cannot be used in this process.
        """
        self.close()
        index, workers = self._place()
        # Forked processes begin with one state of Python's own generator, which wait times draw from.
        random.seed(f"{run['seed']}/{index}")
        self._process.cpu_percent()
        self._cpu_percent_max = None
        options = self.environment.parsed_options
        assert options is not None
        try:
            self.session = Session(
                self.environment,
                run,
                parse_settings(options),
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
            in_flight=session.in_flight,
            unsent=unsent,
            dropped=0,
            clock=None,
            health=asdict(NodeHealth(cpu_percent_max=self._cpu_percent_max)),
        )

    def admit_no_more(self) -> None:
        """The run is being stopped: a user that is spawned from here on does nothing."""
        if self.session is not None:
            self.session.stopping = True

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
        remember_default_arguments()
        self._environment = environment
        self._runner = runner
        self._shipper = Shipper(lambda m: runner.send_message(messages.BATCH, dict(m)))
        self._users = UserSide(environment, runner.client_id, self._place, self._shipper.deliver)
        self._over: set[str] = set()  # runs that must not begin here (again)
        self._done: set[str] = set()  # runs of which this worker has said its last word
        runner.register_message(messages.ACK, self._on_ack)
        runner.register_message(messages.FLUSH, self._on_flush, concurrent=True)
        events = environment.events
        events.test_start.add_listener(self._on_test_start)
        events.test_stopping.add_listener(lambda **_: self._users.admit_no_more())
        events.test_stop.add_listener(lambda **_: self._users.close())
        events.report_to_master.add_listener(self._on_report)
        events.quitting.add_listener(self._on_quitting)
        gevent.spawn(self._shipper.resend_forever)
        if runner.worker_state != STATE_INIT:
            # It joined in the middle of a run, and was told to spawn before anybody listened.
            self._on_test_start()

    @property
    def session(self) -> Session | None:
        return self._users.session

    def _place(self) -> tuple[int, int]:
        options = self._environment.parsed_options
        expected = getattr(options, "expect_workers", 1) or 1
        return max(self._runner.worker_index, 0), int(expected)

    def _on_test_start(self, **_: object) -> None:
        options = self._environment.parsed_options
        if not hasattr(options, "llm_run"):
            logger.error("the master does not load llm_locust: nothing will be recorded or sent")
            return
        assert options is not None
        run: RunInfo | None = options.llm_run
        if run is None or run["id"] in self._over:
            return  # a ramp of users that went on while its run was stopped
        try:
            self._users.begin(run)
        except UsageError as e:
            logger.info("no part in run %s: %s", run["id"], e)
            refusal = RefusedMessage(run=run["id"], reason=f"worker {os.uname().nodename}: {e}")
            self._runner.send_message(messages.REFUSED, dict(refusal))

    def _on_ack(self, msg: Received[AckMessage], **_: object) -> None:
        self._shipper.acknowledged(msg.data["run"], msg.data["seq"])

    def _on_flush(self, msg: Received[RunMessage], **_: object) -> None:
        run = msg.data["run"]
        self._over.add(run)
        session = self.session
        if session is not None and session.run["id"] == run:
            self._runner.stop()  # the users end as --stop-timeout says
            self._flush(session)
        else:  # this worker had no part in it
            nothing = CountsMessage(
                run=run, finished=0, in_flight=0, unsent=0, dropped=0, clock=None, health={}
            )
            self._runner.send_message(messages.DONE, dict(nothing))

    def _flush(self, session: Session) -> None:
        """Send all of the run and say that it was all; the master waits for this word."""
        self._users.close()
        run = session.run["id"]
        # Once Locust has ended the greenlet that receives, no acknowledgement can come: do not wait for one.
        receives = len(self._runner.greenlet) > 0
        timeout_s = session.settings.flush_timeout_s
        if receives and not self._shipper.flush(timeout_s):
            logger.error("batches of run %s were not acknowledged within %g s", run, timeout_s)
        counts = self._users.counts(self._shipper.unsent)
        assert counts is not None
        self._done.add(run)
        self._runner.send_message(messages.DONE, dict(counts))
        self._shipper.abandon(run)

    def _on_report(self, data: dict[str, object], **_: object) -> None:
        counts = self._users.counts(self._shipper.unsent)
        if counts is not None:
            data["llm"] = dict(counts)

    def _on_quitting(self, **_: object) -> None:
        """This worker is told to end (SIGTERM, Ctrl-C, the master's word): no record stays behind.

        Runs before Locust's own listener, while messages still come and go.
        """
        session = self.session
        if session is not None and session.run["id"] not in self._done:
            self._over.add(session.run["id"])
            self._runner.stop()
            self._flush(session)
