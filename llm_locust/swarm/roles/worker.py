"""Worker role: users here, the run directory at the master."""

import logging
import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import gevent
from locust import log
from locust.env import Environment
from locust.runners import STATE_INIT, WorkerRunner

from llm_locust.core import EXIT_INCOMPLETE
from llm_locust.core.manifest import ClockFacts, WorkerFacts
from llm_locust.options.settings import Settings, UsageError
from llm_locust.swarm.channel import messages
from llm_locust.swarm.channel.channel import WorkerMailbox, guard_of
from llm_locust.swarm.channel.messages import (
    AckMessage,
    CountsMessage,
    EndMessage,
    HelloMessage,
    PongMessage,
    RateMessage,
    RefusedMessage,
    RunInfo,
    RunMessage,
    StagedMessage,
    StageMessage,
    place_key,
    plain,
    version_conflict,
    worker_facts,
)
from llm_locust.swarm.channel.shipping import Offset, Shipper, own_spool
from llm_locust.swarm.channel.trust import check_own_code
from llm_locust.swarm.clocks import WorkerClock
from llm_locust.swarm.live import LiveSender
from llm_locust.swarm.process.event_loop import every, spawn_loop, wait_until
from llm_locust.swarm.process.exits import parent_is_gone
from llm_locust.swarm.process.health import Health
from llm_locust.swarm.process.patches import remember_default_arguments
from llm_locust.swarm.process.stopping import LEAVE_WITHIN_S, Stopping
from llm_locust.swarm.roles.load_generator import LoadGenerator
from llm_locust.swarm.roles.lost_master import LostMaster
from llm_locust.swarm.users.session import LoadSession

if TYPE_CHECKING:
    from locust.env import Environment

logger = logging.getLogger(__name__)

#: Interval at which a worker checks whether its share of the run is done.
SPENT_INTERVAL_S = 0.1

#: Longest wait for the acknowledgements of a master that is there again, before this worker ends.
DELIVER_WITHIN_S = 10.0


class WorkerRole:
    """A worker process: users here, the run directory at the master."""

    def __init__(self, environment: Environment) -> None:
        runner = environment.runner
        assert isinstance(runner, WorkerRunner)
        self._stopping = Stopping(runner, self._on_own_end, lambda: self._ending is None)
        remember_default_arguments()
        self._environment = environment
        self._runner = runner
        self._mail = mail = WorkerMailbox(runner)
        self._shipper = Shipper(lambda m: mail.send(messages.BATCH, m))
        # One offset applies to a batch: it must not span a step of the clock.
        self._clock = WorkerClock(lambda m: mail.send(messages.PING, m), lambda: self._users.close_batch())
        self._users = LoadGenerator(environment, runner.client_id, self._shipper.deliver, Health(), self)
        self._over: set[str] = set()  # runs that must not start here (again)
        self._last_word: CountsMessage | None = None  # final counts of the run that was flushed last
        self._ending: str | None = None  # the run that is ending here
        self._spent_sent: str | None = None
        self._held = 0  # records left in the spool, or lost
        mail.listen(messages.ACK, AckMessage, lambda ack: self._shipper.acknowledged(ack.run, ack.seq))
        mail.listen(messages.PONG, PongMessage, self._clock.on_pong)
        mail.listen(messages.OVER, RunMessage, self._on_over, concurrent=True)
        mail.listen(messages.RATE, RateMessage, self._users.change_rate)
        mail.listen(messages.STAGE, StageMessage, self._users.take_stage)
        mail.listen(messages.FLUSH, RunMessage, self._on_flush, concurrent=True)
        mail.listen(messages.CUT, RunMessage, self._on_cut)
        events = environment.events
        events.test_start.add_listener(self._on_test_start)
        events.test_stopping.add_listener(lambda **_: self._drain())
        events.test_stop.add_listener(lambda **_: self._users.close())
        LiveSender(environment, mail)
        # In a turn of its own, before the live counts, which Locust collects after.
        events.report_to_master._handlers.insert(0, self._on_report)
        events.quitting.add_listener(self._on_quitting)
        LostMaster(environment, runner, mail, self)
        spawn_loop(self._shipper.ship_forever, "the shipping of batches")
        spawn_loop(self._clock.run, "the watch on the clock")
        every(SPENT_INTERVAL_S, self._tell_when_spent, "the look at what is left to send")
        hello = HelloMessage(protocol=messages.PROTOCOL, version=messages.PACKAGE)
        self._mail.send(messages.HELLO, hello)
        if runner.worker_state != STATE_INIT:
            # It joined in the middle of a run, and received the spawn message before the listener was there.
            self._on_test_start()

    drain_hint = ""

    @property
    def session(self) -> LoadSession | None:
        return self._users.session

    def clock_facts(self) -> ClockFacts | None:
        """Facts about this worker's clock in the current run so far."""
        return self._clock.facts()

    def tell_staged(self, message: StagedMessage) -> None:
        """Confirm a step of a stage at the master."""
        self._mail.send(messages.STAGED, message)

    def place(self, run: RunInfo) -> tuple[int, int]:
        """This worker's index in the run, and the number of workers as far as it is known."""
        options = self._environment.parsed_options
        key, places = place_key(self._runner.client_id), run["places"]
        # A master that does not list this worker yet will place it after all others.
        index = places.index(key) if key in places else max(self._runner.worker_index, len(places))
        return index, max(int(getattr(options, "expect_workers", 1) or 1), len(places))

    def _drain(self) -> None:
        session = self.session
        if session is None:
            return
        stop_timeout_s = float(self._environment.stop_timeout or 0)
        within_s = session.settings.run.drain_s + stop_timeout_s + 1.5 * LEAVE_WITHIN_S
        gevent.spawn_later(within_s, self._expect_end, session)
        self._users.drain()

    def _expect_end(self, session: LoadSession) -> None:
        """Send everything although something holds up the end of the load, such as a listener."""
        if not session.closed:
            self._stopping.overdue("the records are sent without waiting any longer")
            self._flush(session)

    def _on_own_end(self, end: Callable[[], None]) -> None:
        """Let the master end the run, for all workers: it first takes everything that is recorded."""
        session = self.session
        if session is None or session.closed:
            end()
        else:
            code = (self._environment.process_exit_code or 0) & 0xFF  # as a shell has it
            self._mail.send(messages.END, EndMessage(run=session.run["id"], code=code))

    def _on_test_start(self, **_: object) -> None:
        options = self._environment.parsed_options
        if not hasattr(options, "llm_run"):
            logger.error("the master does not load llm_locust: nothing will be recorded or sent")
            return
        assert options is not None
        run: RunInfo | None = options.llm_run
        if run is None or run["id"] in self._over:
            return  # a ramp of users that went on while its run was stopped
        conflict = version_conflict(
            run.get("protocol", messages.PROTOCOL), run.get("version", "of an older version"), "the master"
        )
        if conflict is not None:
            logger.error("%s", conflict)
            self.refuse(conflict)
            return
        self._stopping.begin()
        self._clock.begin()
        spool = own_spool(options, self._runner.client_id, run)
        self._shipper.begin(run["id"], spool, run["manifest"])
        try:
            self._users.begin(run)
        except UsageError as e:
            logger.info("no part in run %s: %s", run["id"], e)
            self.refuse(str(e))

    def vet(self, settings: Settings) -> None:
        """Check that the master names only code next to the locustfile, unless it knows the run's secret or
        has sent the locustfile itself (raises UsageError)."""
        if guard_of(self._environment).keys is None:
            check_own_code(self._environment, settings.kinds)

    def refuse(self, reason: str) -> None:
        """Refuse the run at the master: it cannot be done here."""
        run: RunInfo = self._environment.parsed_options.llm_run  # type: ignore[union-attr]
        refusal = RefusedMessage(run=run["id"], reason=f"worker {os.uname().nodename}: {reason}")
        self._mail.send(messages.REFUSED, refusal)

    def _tell_when_spent(self) -> None:
        """Report once that this worker's share of a run is done. Each later report repeats it."""
        session = self.session
        if session is None or session.closed or session.run["id"] == self._spent_sent or not session.spent:
            return
        counts = self._counts()
        if counts is not None:
            self._mail.send(messages.SPENT, counts)
            self._spent_sent = session.run["id"]

    def offset(self) -> Offset:
        self._clock.look()
        offset_ns, error_ns = self._clock.offset_ns, self._clock.error_ns
        return None if offset_ns is None or error_ns is None else (offset_ns, error_ns)

    def _on_over(self, over: RunMessage) -> None:
        """End a run that ended while this worker could not be reached: its records are no longer accepted."""
        run = over.run
        self._shipper.over(run)
        session = self.session
        if session is not None and session.run["id"] == run and run not in self._over:
            logger.warning("run %s has ended without this worker: its load ends too", run)
            self._end(session)

    def _on_cut(self, cut: RunMessage) -> None:
        """Cut the drain short: the master no longer waits for requests in flight."""
        session = self.session
        if session is not None and session.run["id"] == cut.run:
            session.cut_short()

    def _on_flush(self, flush: RunMessage) -> None:
        run = flush.run
        session, last = self.session, self._last_word
        if self._ending == run:
            return  # its final counts will follow
        if last is not None and last.run == run:
            self._mail.send(messages.DONE, last)  # sent before, and lost
        elif session is not None and session.run["id"] == run:
            self._end(session)
        else:  # this worker took no part in it
            self._over.add(run)
            self._mail.send(messages.DONE, CountsMessage(run=run, finished=0, in_flight=0))

    def _end(self, session: LoadSession) -> None:
        """End this worker's part of the run: drain, stop the users, send everything."""
        self._ending = run = session.run["id"]
        self._over.add(run)
        self._runner.stop()  # drains, then the users end as --stop-timeout defines
        self._flush(session)

    def end_load(self) -> None:
        """End this worker's part of the run without a master: everything is kept until :meth:`deliver`."""
        session = self.session
        if session is None or session.closed or self._ending is not None:
            return
        self._ending = run = session.run["id"]
        self._over.add(run)
        self._runner.stop()
        self._users.close()
        self._shipper.queue_final_facts(run, self._facts())
        self._ending = None

    def deliver(self, takes: list[str] | None) -> None:
        """Send what :meth:`end_load` kept to a master that is there again; the rest stays in the spool.

        Args:
            takes: runs whose batches it takes; None for the master of the run itself.
        """
        session, last = self.session, self._last_word
        if session is None or (last is not None and last.run == session.run["id"]):
            return
        if takes is not None and session.run["id"] not in takes:
            self._shipper.over(session.run["id"])
        self._flush(session, DELIVER_WITHIN_S)

    def _flush(self, session: LoadSession, within_s: float = math.inf) -> None:
        """Send all batches of the run and then the final counts, which the master waits for."""
        run = session.run["id"]
        self._users.close()
        self._shipper.queue_final_facts(run, self._facts())
        # After Locust has ended the receiving greenlet, or the master itself, no acknowledgement can arrive.
        receives = len(self._runner.greenlet) > 0 and not parent_is_gone()
        timeout_s = min(session.settings.run.flush_timeout_s, within_s)
        if not self._shipper.flush(timeout_s, hears=receives) and receives:
            logger.error("batches of run %s were not acknowledged within %g s", run, timeout_s)
        counts = self._counts()
        assert counts is not None
        self._last_word, self._ending = counts, None
        self._mail.send(messages.DONE, counts)
        self._held += self._shipper.finish(run, self._facts()) + counts.dropped

    def _counts(self) -> CountsMessage | None:
        return self._users.counts(self._shipper.unsent, self._shipper.dropped)

    def _facts(self) -> WorkerFacts:
        """Final counts as stored in a spool, for a master that does not receive them."""
        session, counts = self.session, self._counts()
        assert session is not None
        assert counts is not None
        return worker_facts(self._runner.client_id, session.worker_index, counts)

    def _on_report(self, data: dict[str, object], **_: object) -> None:
        counts = self._counts()
        if counts is not None:
            data["llm"] = plain(counts)

    def on_interrupt(self, number: int) -> bool:
        """Handle the ``number``-th Ctrl-C; return whether nothing more must be done.

        The first one may be the one that the master has received as well and has reported: it cuts nothing.
        """
        if number == 1 or self._ending is None:
            return False
        return self._users.cut_short() or number == 2

    def _on_quitting(self, **_: object) -> None:
        """Deliver all records before this worker quits (SIGTERM, Ctrl-C, the master's message).

        Runs before Locust's own listener, while messages can still be sent and received.
        """
        if self._environment.process_exit_code is None and not log.unhandled_greenlet_exception:
            self._environment.process_exit_code = 0  # the verdict on a run is the master's
        self._finish_session()
        if self._held and not self._environment.process_exit_code:
            self._environment.process_exit_code = EXIT_INCOMPLETE

    def _finish_session(self) -> None:
        session = self.session
        if session is None:
            return
        run, last = session.run["id"], self._last_word
        if self._ending == run:
            settings = session.settings
            stop_timeout_s = float(self._environment.stop_timeout or 0)
            patience_s = settings.run.drain_s + stop_timeout_s + settings.run.flush_timeout_s
            wait_until(lambda: self._ending is None, patience_s)
        elif last is None or last.run != run:
            self._end(session)
