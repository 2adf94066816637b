"""The side of a run that has users: a worker process, or a process that is all in one."""

import functools
import gc
import logging
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from locust import argument_parser
from locust.env import Environment
from locust.runners import STATE_INIT, WorkerRunner

from llm_locust.client.http.clock import hold_stamping
from llm_locust.client.http.polling import PollLimiter
from llm_locust.client.http.pool import TargetError
from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import ClockFacts, WorkerFacts
from llm_locust.options.settings import Settings, UsageError, parse_settings
from llm_locust.options.table import OWN_SPOOL
from llm_locust.store import Spool
from llm_locust.store.files import check_folder_name
from llm_locust.swarm.channel import messages
from llm_locust.swarm.channel.messages import (
    AckMessage,
    CountsMessage,
    HelloMessage,
    MessageError,
    PongMessage,
    RateMessage,
    Received,
    RefusedMessage,
    RunInfo,
    RunMessage,
    plain,
    read,
    version_conflict,
)
from llm_locust.swarm.channel.securing import guard_of
from llm_locust.swarm.clocks.worker_clock import WorkerClock
from llm_locust.swarm.delivery.recorder import Deliver, Offset
from llm_locust.swarm.delivery.shipping import Shipper
from llm_locust.swarm.open_loop.load import OpenLoad, open_loop_class
from llm_locust.swarm.process.health import Health
from llm_locust.swarm.process.loops import every, spawn_loop
from llm_locust.swarm.process.own_code import check_named_functions, own_folders
from llm_locust.swarm.process.throttle import Throttle
from llm_locust.swarm.process.waiting import wait_until
from llm_locust.swarm.run.descriptors import ensure_descriptors
from llm_locust.swarm.run.roster import place_key
from llm_locust.swarm.users.session import Session, WorkerPlace

M = TypeVar("M", bound=msgspec.Struct)

logger = logging.getLogger(__name__)

#: How often a worker looks whether its share of the run is done.
SPENT_INTERVAL_S = 0.1

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


class LoadGenerator:
    """Sessions of a process that has users. ``deliver`` takes their batches.

    Args:
        worker: this process's name in the records.
        place: gives this process's index and how many there are, when a run begins.
        clock: gives this process's clock against the run's time, and
        clock_facts: what is known of it.
        refuse: told why the run that is under way cannot be done here.
        hint: said with the first word of the drain.
        vet: looks at a run's settings before they are used (raises UsageError).
    """

    def __init__(
        self,
        environment: Environment,
        worker: str,
        place: Callable[[RunInfo], tuple[int, int]],
        deliver: Deliver,
        health: Health,
        clock: Callable[[], Offset],
        clock_facts: Callable[[], ClockFacts | None],
        refuse: Callable[[str], None],
        hint: str = "",
        vet: Callable[[Settings], None] = lambda _: None,
    ) -> None:
        self.environment = environment
        self.worker = worker
        self._vet = vet
        self._hint = hint
        self.session: Session | None = None
        self._place = place
        self._deliver = deliver
        RecordBatch.warm_up()
        keep_collections_short()
        environment.events.spawning_complete.add_listener(lambda **_: keep_collections_short())
        self._polling = PollLimiter(lambda: 0.0 if self.session is None else self.session.poll_pause_s)
        self._stamping = hold_stamping()
        self._health = health
        self._clock = clock
        self._clock_facts = clock_facts
        self._refuse = refuse
        self._counts_made = 0
        every(BATCH_INTERVAL_S, self.close_batch, "the closing of batches")

    def begin(self, run: RunInfo) -> None:
        """Make the session of a new run.

        Raises:
            UsageError: its settings cannot be used in this process.
        """
        self.close()
        self._health.begin()
        index, workers = self._place(run)
        # Forked processes begin with one state of Python's own generator, which wait times draw from.
        random.seed(f"{run['seed']}/{index}")
        options = self.environment.parsed_options
        assert options is not None
        try:
            settings = parse_settings(options)
            self._vet(settings)
            self.session = Session(
                self.environment,
                run,
                settings,
                place=WorkerPlace(self.worker, index, workers),
                deliver=self._deliver,
                clock=self._clock,
            )
            self.session.load = self._open_load(self.session)
            ensure_descriptors(
                run,
                max(1, run["starters"]),
                self.session.settings.load.max_in_flight,
                open_loop=self.session.load is not None,
            )
        except (TargetError, ValueError) as e:
            raise UsageError(str(e)) from e
        if self.session.load is not None:
            self.session.load.start()

    def _open_load(self, session: Session) -> OpenLoad | None:
        """This process's part of an open loop (raises TraceError); None in a closed one."""
        user_class = open_loop_class(self.environment.user_classes, session.settings)
        if user_class is None:
            return None
        return OpenLoad(
            session.settings.load,
            session.run,
            session.worker_index,
            lambda clock: user_class(self.environment).follow(clock),
            self._clock,
            self._refuse,
            warmup_s=session.settings.warmup_s,
        )

    def change_rate(self, change: RateMessage) -> None:
        session = self.session
        if session is not None and session.load is not None and session.run["id"] == change.run:
            session.load.change_rate(change.at_ns, change.rate)

    def counts(self, unsent: int = 0, dropped: int = 0) -> CountsMessage | None:
        """What this process has done in its run so far; None before its first."""
        session = self.session
        if session is None:
            return None
        self._counts_made += 1
        return CountsMessage(
            run=session.run["id"],
            number=self._counts_made,
            finished=session.recorder.finished,
            in_flight=session.in_flight,
            in_flight_ns=session.client.occupancy.total_ns,
            unsent=unsent,
            dropped=dropped,
            load=session.counts(),
            clock=self._clock_facts(),
            health=self._health.snapshot(),
        )

    def admit_no_more(self) -> None:
        """The load has ended: no request begins, and a user that is spawned from here on does nothing."""
        if self.session is not None:
            self.session.stop()
            if self.session.load is not None:
                self.session.load.stop()

    def drain(self) -> None:
        """The load has ended: wait for the requests under way, at most ``--drain``, then cut them."""
        self.admit_no_more()
        session = self.session
        if session is None or session.closed:
            return
        under_way, bound_s = session.client.unanswered, session.settings.drain_s
        if under_way and bound_s and session.draining:
            logger.info("draining %d requests, at most %g s%s", under_way, bound_s, self._hint)
        session.drain()
        if session.cut:
            logger.info("%d requests were cut: they were under way when the drain ended", session.cut)

    def cut_short(self) -> bool:
        """End the drain that is under way; gives whether there was one."""
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

    def close_batch(self) -> None:
        """Deliver the records that have come since the last batch."""
        if self.session is not None and not self.session.closed:
            self.session.recorder.close_batch()


class WorkerRole:
    """A worker process: users here, the run directory at the master."""

    def __init__(self, environment: Environment) -> None:
        runner = environment.runner
        assert isinstance(runner, WorkerRunner)
        remember_default_arguments()
        self._environment = environment
        self._runner = runner
        self._shipper = Shipper(lambda m: self._send(messages.BATCH, m))
        self._clock = WorkerClock(lambda m: self._send(messages.PING, m), self._on_clock_step)
        self._users = LoadGenerator(
            environment,
            runner.client_id,
            self._place,
            self._shipper.deliver,
            Health(),
            self._offset,
            self._clock.facts,
            self._refuse,
            vet=self._check_code,
        )
        self._over: set[str] = set()  # runs that must not begin here (again)
        self._last_word: CountsMessage | None = None  # of the run that was flushed last
        self._ending: str | None = None  # the run whose end is under way here
        self._told_spent: str | None = None
        self._may_say_dropped = Throttle()
        self._listen(messages.ACK, AckMessage, self._on_ack)
        self._listen(messages.PONG, PongMessage, self._clock.on_pong)
        self._listen(messages.OVER, RunMessage, self._on_over, concurrent=True)
        self._listen(messages.RATE, RateMessage, self._users.change_rate)
        self._listen(messages.FLUSH, RunMessage, self._on_flush, concurrent=True)
        self._listen(messages.CUT, RunMessage, self._on_cut)
        events = environment.events
        events.test_start.add_listener(self._on_test_start)
        events.test_stopping.add_listener(lambda **_: self._users.drain())
        events.test_stop.add_listener(lambda **_: self._users.close())
        events.report_to_master.add_listener(self._on_report)
        events.quitting.add_listener(self._on_quitting)
        spawn_loop(self._shipper.ship_forever, "the shipping of batches")
        spawn_loop(self._clock.run, "the watch on the clock")
        every(SPENT_INTERVAL_S, self._tell_when_spent, "the look at what is left to send")
        hello = HelloMessage(protocol=messages.PROTOCOL, version=messages.PACKAGE)
        self._send(messages.HELLO, hello)
        if runner.worker_state != STATE_INIT:
            # It joined in the middle of a run, and was told to spawn before anybody listened.
            self._on_test_start()

    @property
    def session(self) -> Session | None:
        return self._users.session

    def _place(self, run: RunInfo) -> tuple[int, int]:
        """This worker's index in the run, and how many workers there are as far as is known."""
        options = self._environment.parsed_options
        key, places = place_key(self._runner.client_id), run["places"]
        # A master that has not heard of this worker yet will give it a place behind all others.
        index = places.index(key) if key in places else max(self._runner.worker_index, len(places))
        return index, max(int(getattr(options, "expect_workers", 1) or 1), len(places))

    def _spool(self, run: RunInfo) -> Spool | None:
        options = self._environment.parsed_options
        # The master's options replace this process's own; its disk is its own.
        chosen = getattr(options, OWN_SPOOL, None) or getattr(options, "spool", None)
        if chosen == "off":
            return None
        root = Path(chosen) if chosen else Path(run["path"]).parent
        try:
            name = check_folder_name(self._runner.client_id, "this worker's id")
            of_run = check_folder_name(run["id"], "the run's id")
            folder = root / of_run if chosen else Path(run["path"]) / "spool"
            return Spool(folder / name, root)
        except ValueError as e:
            logger.error("batches are kept in memory, not in a spool: %s", e)
            return None

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
            self._refuse(conflict)
            return
        self._clock.begin()
        self._shipper.begin(run["id"], self._spool(run), run["manifest"])
        try:
            self._users.begin(run)
        except UsageError as e:
            logger.info("no part in run %s: %s", run["id"], e)
            self._refuse(str(e))

    def _check_code(self, settings: Settings) -> None:
        """See that the master names no code but that beside the locustfile, unless it knows the run's secret
        or has sent the locustfile itself (raises UsageError)."""
        environment = self._environment
        sent = getattr(environment.parsed_options, "locustfile", None) == "-"
        if not sent and guard_of(environment).secret is None:
            folders = own_folders(environment.parsed_locustfiles or (), os.getcwd())
            check_named_functions(settings.kinds, folders)

    def _refuse(self, reason: str) -> None:
        """The run cannot be done here: the master is told."""
        run: RunInfo = self._environment.parsed_options.llm_run  # type: ignore[union-attr]
        refusal = RefusedMessage(run=run["id"], reason=f"worker {os.uname().nodename}: {reason}")
        self._send(messages.REFUSED, refusal)

    def _send(self, kind: str, message: msgspec.Struct) -> None:
        self._runner.send_message(kind, plain(message))

    def _listen(self, kind: str, struct: type[M], act: Callable[[M], None], concurrent: bool = False) -> None:
        """Let ``act`` have each message of this kind that fits; others are dropped."""

        def take(msg: Received[object], **_: object) -> None:
            try:
                message = read(msg.data, struct)
            except MessageError as e:
                if self._may_say_dropped():
                    logger.warning("a message of the master was dropped (%s): %s", kind, e)
                return
            act(message)

        self._runner.register_message(kind, take, concurrent=concurrent)

    def _tell_when_spent(self) -> None:
        """Say once that this worker's share of a run is done. Each report says it again."""
        session = self.session
        if session is None or session.closed or session.run["id"] == self._told_spent or not session.spent:
            return
        counts = self._counts()
        if counts is not None:
            self._send(messages.SPENT, counts)
            self._told_spent = session.run["id"]

    def _on_ack(self, ack: AckMessage) -> None:
        self._shipper.acknowledged(ack.run, ack.seq)

    def _offset(self) -> Offset:
        self._clock.look()
        offset_ns, error_ns = self._clock.offset_ns, self._clock.error_ns
        return None if offset_ns is None or error_ns is None else (offset_ns, error_ns)

    def _on_clock_step(self) -> None:
        """No batch holds records of before and after: each is placed by one offset."""
        self._users.close_batch()

    def _on_over(self, over: RunMessage) -> None:
        """The run ended while this worker could not be reached: nobody takes its records any more."""
        run = over.run
        self._shipper.over(run)
        session = self.session
        if session is not None and session.run["id"] == run and run not in self._over:
            logger.warning("run %s has ended without this worker: its load ends too", run)
            self._end(session)

    def _on_cut(self, cut: RunMessage) -> None:
        """The master waits no longer for requests under way."""
        session = self.session
        if session is not None and session.run["id"] == cut.run:
            session.cut_short()

    def _on_flush(self, flush: RunMessage) -> None:
        run = flush.run
        session, last = self.session, self._last_word
        if self._ending == run:
            return  # its last word will come
        if last is not None and last.run == run:
            self._send(messages.DONE, last)  # said before, and lost on its way
        elif session is not None and session.run["id"] == run:
            self._end(session)
        else:  # this worker had no part in it
            self._over.add(run)
            self._send(messages.DONE, CountsMessage(run=run, finished=0, in_flight=0))

    def _end(self, session: Session) -> None:
        """End this worker's part of the run: drain, stop the users, send what there is."""
        self._ending = run = session.run["id"]
        self._over.add(run)
        self._runner.stop()  # drains, then the users end as --stop-timeout says
        self._flush(session)

    def _flush(self, session: Session) -> None:
        """Send all of the run and say that it was all; the master waits for this word."""
        run = session.run["id"]
        self._users.close()
        counts = self._counts()
        assert counts is not None
        self._shipper.foretell(run, self._facts(counts))
        # Once Locust has ended the greenlet that receives, no acknowledgement can come: do not wait for one.
        receives = len(self._runner.greenlet) > 0
        timeout_s = session.settings.flush_timeout_s
        if not self._shipper.flush(timeout_s, hears=receives) and receives:
            logger.error("batches of run %s were not acknowledged within %g s", run, timeout_s)
        counts = self._counts()
        assert counts is not None
        self._last_word, self._ending = counts, None
        self._send(messages.DONE, counts)
        self._shipper.finish(run, self._facts(counts))

    def _counts(self) -> CountsMessage | None:
        return self._users.counts(self._shipper.unsent, self._shipper.dropped)

    def _facts(self, counts: CountsMessage) -> WorkerFacts:
        """The last word as a spool keeps it, for a master that does not hear it."""
        session = self.session
        assert session is not None
        return WorkerFacts(
            id=self._runner.client_id,
            index=session.worker_index,
            announced=counts.finished,
            received=counts.finished - counts.dropped,
            dropped=counts.dropped,
            in_flight=counts.in_flight,
            held_back=counts.load.held_back,
            longest_held_ns=counts.load.longest_held_ns,
            unsent=counts.load.unsent,
            unsent_warmup=counts.load.unsent_warmup,
            unsent_by_class=counts.load.unsent_by_class,
            cut=counts.load.cut,
            clock=self._clock.facts(),
            health=counts.health,
        )

    def _on_report(self, data: dict[str, object], **_: object) -> None:
        counts = self._counts()
        if counts is not None:
            data["llm"] = plain(counts)

    def on_interrupt(self, number: int) -> bool:
        """Ctrl-C, for the ``number``-th time; gives whether all is done that is to be done.

        The first one may be that which the master has heard as well, and has told of: it cuts nothing.
        """
        if number == 1 or self._ending is None:
            return False
        return self._users.cut_short() or number == 2

    def _on_quitting(self, **_: object) -> None:
        """This worker is told to end (SIGTERM, Ctrl-C, the master's word): no record stays behind.

        Runs before Locust's own listener, while messages still come and go.
        """
        session = self.session
        if session is None:
            return
        run, last = session.run["id"], self._last_word
        if self._ending == run:
            settings = session.settings
            stop_timeout_s = float(self._environment.stop_timeout or 0)
            patience_s = settings.drain_s + stop_timeout_s + settings.flush_timeout_s
            wait_until(lambda: self._ending is None, patience_s)
        elif last is None or last.run != run:
            self._end(session)
