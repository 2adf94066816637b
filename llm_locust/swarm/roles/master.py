"""Role of Locust's master: users elsewhere, the run directory here."""

import logging
import math
import time
from collections.abc import Iterable

import gevent
from gevent.event import Event
from locust.env import Environment
from locust.rpc import Message
from locust.runners import STATE_MISSING, STATE_STOPPING, MasterRunner

from llm_locust.options.settings import UsageError
from llm_locust.swarm.channel import messages
from llm_locust.swarm.channel.channel import NOT_A_WORKER, MasterMailbox, guard_of, warn_of_strangers
from llm_locust.swarm.channel.collector import EarlierParts, batch_fault
from llm_locust.swarm.channel.locust_messages import Reported
from llm_locust.swarm.channel.messages import (
    AckMessage,
    BatchMessage,
    CountsMessage,
    EndMessage,
    HelloMessage,
    LiveMessage,
    PingMessage,
    RateMessage,
    RefusedMessage,
    RunMessage,
    StagedMessage,
    StageMessage,
    StrangerMessage,
    printable,
    version_conflict,
)
from llm_locust.swarm.clocks import pong
from llm_locust.swarm.live import LiveReceiver
from llm_locust.swarm.process.event_loop import every, wait_until
from llm_locust.swarm.process.exits import ended_forks, keep_exits, leave
from llm_locust.swarm.process.stopping import Stopping
from llm_locust.swarm.roles.coordinator import CUT_HINT, RunCoordinator
from llm_locust.swarm.run.parts import earlier_parts
from llm_locust.swarm.run.run import ActiveRun, State

logger = logging.getLogger(__name__)

#: Kind under which dropped counts of Locust's own report are listed.
REPORT = "llm_report"

#: Most workers remembered after they have left.
MOST_MET = 10_000

#: Interval at which the workers that ``--processes`` forked are looked at until the load.
FORKS_INTERVAL_S = 0.5

#: Interval at which a worker without final counts is asked for them again: the first request may be lost.
FLUSH_AGAIN_S = 2.0


class MasterRole:
    """A run coordinator whose workers are reached by messages."""

    def __init__(self, environment: Environment) -> None:
        runner = environment.runner
        assert isinstance(runner, MasterRunner)
        self._environment = environment
        self._runner = runner
        self._stopping = Stopping(runner)
        self._cutting = False
        self._is_built = Event()  # a killed master's workers send to this one from its first moment on
        guard = guard_of(environment)
        guard.custom = runner.custom_messages
        warn_of_strangers(environment, guard)
        options = environment.parsed_options
        keep = bool(getattr(options, "json", False) or getattr(options, "json_file", None))
        self._reported = Reported(runner, keep_seconds=keep)
        self._handle = runner.handle_message
        vars(runner)["handle_message"] = self._handle_message
        self._runs = RunCoordinator(
            environment, self._acknowledge, self._tell, present=self._present, dropped=guard.dropped
        )
        self._mail = mail = MasterMailbox(runner, guard.dropped, self._is_worker, self._drop)
        self._earlier = EarlierParts(earlier_parts(options), self._acknowledge)
        self._met: dict[str, None] = {}  # workers that have joined, the latest last
        self._conflicts: dict[str, str] = {}  # why a connected worker cannot take part
        mail.listen(messages.HELLO, HelloMessage, self._on_hello)
        mail.listen(messages.BATCH, BatchMessage, self._on_batch)
        mail.listen(messages.DONE, CountsMessage, self._on_done)
        mail.listen(messages.SPENT, CountsMessage, self._on_counts)
        mail.listen(messages.STAGED, StagedMessage, self._runs.staged)
        mail.listen(messages.REFUSED, RefusedMessage, self._on_refused)
        mail.listen(messages.END, EndMessage, self._on_end)
        mail.listen(messages.PING, PingMessage, self._on_ping)
        events = environment.events
        events.test_start.add_listener(self._on_test_start)
        events.worker_connect.add_listener(self._on_worker_connect)
        events.worker_report.add_listener(self._on_worker_report)
        events.test_stopping.add_listener(self._on_test_stopping)
        events.test_stop.add_listener(self._on_test_stop)
        self._live = LiveReceiver(environment, runner, mail, lambda: self._runs.stopped_ago_s)
        events.quitting.add_listener(
            lambda **_: self._runs.on_quitting(lambda: runner.stop(send_stop_to_client=False))
        )
        events.quitting.add_listener(lambda **_: self._earlier.close())  # called first
        keep_exits(environment, self._runs.settle_code)
        events.quit.add_listener(lambda **_: self._runs.on_quit())
        self._is_built.set()
        self._forks = every(FORKS_INTERVAL_S, self._look_at_forks, "the watch on forked workers")
        self._runs.check(self._await_workers)

    def _await_workers(self) -> None:
        """Wait for the workers that Locust would wait for next (raises UsageError)."""
        options, clients = self._environment.parsed_options, self._runner.clients
        expected = int(getattr(options, "expect_workers", 1))
        most_s = float(getattr(options, "expect_workers_max_wait", 0) or math.inf)
        if len(clients.ready) < expected:
            logger.info("waiting for %d workers, then for the target", expected)
        if not wait_until(lambda: len(clients.ready) >= expected, most_s):
            raise UsageError(
                f"{len(clients.ready)} of {expected} workers have joined after {most_s:g} s: look at their "
                "logs, or change --expect-workers or --expect-workers-max-wait"
            )

    def _look_at_forks(self) -> None:
        """End the wait for workers of ``--processes`` of which one has ended before the load."""
        if ended := ended_forks():
            error = UsageError(
                f"a worker of --processes (process {ended[0]}) ended before the load: its own lines say why; "
                "one that was killed, as for memory, says nothing"
            )
            if self._runs.headless:
                leave(error)
            logger.error("%s", error)
            self._forks.kill()

    def _on_test_start(self, **_: object) -> None:
        options = self._environment.parsed_options
        self._forks.kill()
        ready = [client.id for client in self._runner.clients.ready]
        self._stopping.begin()
        conflict = next((self._conflicts[worker] for worker in ready if worker in self._conflicts), None)
        if conflict is not None:
            self._runs.refuse(conflict)
            raise gevent.GreenletExit
        self._runs.begin(ready, getattr(options, "expect_workers", 1))

    def _handle_message(self, client_id: str, msg: Message) -> None:
        """Handle a message as Locust does; an exception must not end its listener, and the run with it."""
        self._is_built.wait()
        try:
            if msg.type in ("stats", "exception") and not self._is_worker(client_id):
                self._runs.dropped.note(client_id, msg.type, NOT_A_WORKER)
                return
            if msg.type == "stats":
                self._reported.bound_stats(msg.data)
            elif msg.type == "exception":
                self._reported.bound_exception(msg.data)
            elif msg.type == "heartbeat" and client_id not in self._runner.clients:
                self._answer_unlisted(client_id)
                return
            self._handle(client_id, msg)
            if msg.type == "stats":
                self._reported.after()
        except Exception as e:
            why = f"Locust could not process it: {type(e).__name__}: {e}"
            self._runs.dropped.note(client_id, msg.type, why)

    def _answer_unlisted(self, worker: str) -> None:
        """Answer the heartbeat of a worker that Locust does not list, and would not answer.

        It lists none that sleeps through ``--stop-timeout``. Any other is an earlier master's.
        """
        if worker in self._met:
            self._runner.server.send_to_client(Message("heartbeat", None, worker))
        else:
            self._mail.send(messages.STRANGER, StrangerMessage(takes=self._earlier.takes), worker)

    def _is_worker(self, worker: str) -> bool:
        run = self._runs.run
        is_known = worker in self._runner.clients or self._earlier.knows(worker)
        return is_known or (run is not None and worker in run.roster)

    def _drop(self, worker: str, kind: str, why: str) -> None:
        self._runs.dropped.note(worker, kind, why)
        run = self._runs.run
        if kind == messages.BATCH and run is not None:
            run.roster.fault(worker, f"a batch could not be taken: {why}")

    def _current(self, run_id: str) -> ActiveRun | None:
        run = self._runs.run
        return run if run is not None and run.info["id"] == run_id else None

    def _on_worker_connect(self, client_id: str, **_: object) -> None:
        """Add the worker before Locust sends it the spawn message, which carries its place in the run."""
        self._met[client_id] = None
        if len(self._met) > MOST_MET:
            del self._met[next(iter(self._met))]
        run = self._runs.run
        if run is not None and run.state is State.LOADING:
            run.roster.heard(client_id)

    def _on_worker_report(self, client_id: str, data: dict[str, object], **_: object) -> None:
        if (counts := data.get("llm")) is not None:
            message = self._mail.read(client_id, REPORT, counts, CountsMessage)
            if message is not None:
                self._on_counts(client_id, message)
                self._live.note(client_id, message)
        if (report := data.get(messages.LIVE)) is not None:
            live = self._mail.read(client_id, messages.LIVE, {"report": report}, LiveMessage)
            if live is not None:
                self._live.take(client_id, live)

    def _on_hello(self, worker: str, hello: HelloMessage) -> None:
        name = printable(worker)
        conflict = version_conflict(hello.protocol, printable(hello.version), f"worker {name}")
        if conflict is None:
            self._conflicts.pop(worker, None)
            if hello.version != messages.PACKAGE:
                logger.info("worker %s runs llm-locust %s", name, printable(hello.version))
            return
        logger.error("%s", conflict)
        self._conflicts[worker] = conflict
        if self._runs.run is not None and worker in self._runs.run.roster:
            self._runs.refuse(conflict)

    def _on_batch(self, worker: str, batch: BatchMessage) -> None:
        run = self._current(batch.run)
        takes = batch.run in self._earlier.takes or (run is not None and run.state < State.FINISHING)
        if not takes:
            logger.error("worker %s sent a batch of run %s, which is over", worker, printable(batch.run))
            self._mail.send(messages.OVER, RunMessage(run=batch.run), worker)
            return
        if fault := batch_fault(worker, batch):
            self._drop(worker, messages.BATCH, fault)
        elif run is None:
            self._earlier.accept(worker, batch)
        else:
            run.roster.heard(worker)
            run.collector.accept(worker, batch.seq, batch.rows, batch.frame, batch.finished, batch.in_flight)

    def _acknowledge(self, run: str, worker: str, seq: int) -> None:
        # A lost acknowledgement is harmless: the worker sends the batch again and gets another one.
        self._mail.send(messages.ACK, AckMessage(run=run, seq=seq), worker)

    def _tell(self, message: RateMessage | StageMessage, workers: Iterable[str] | None = None) -> None:
        if self._runs.run is not None:
            self._runs.run.note_rate(message)
        kind = messages.RATE if isinstance(message, RateMessage) else messages.STAGE
        for worker in [client.id for client in self._runner.clients.all] if workers is None else workers:
            self._mail.send(kind, message, worker)

    def _on_done(self, worker: str, counts: CountsMessage) -> None:
        run = self._current(counts.run)
        if run is not None:
            run.roster.done(worker, counts, stopped=run.state > State.LOADING)
        else:
            self._earlier.done(worker, counts)

    def _on_counts(self, worker: str, counts: CountsMessage) -> None:
        run = self._current(counts.run)
        if run is not None:
            run.roster.heard(worker, counts)

    def _on_refused(self, _: str, refused: RefusedMessage) -> None:
        if self._current(refused.run) is not None:
            self._runs.refuse(" ".join(printable(refused.reason, 1000).split()))

    def _on_end(self, _: str, end: EndMessage) -> None:
        if self._current(end.run) is not None:
            if end.code and self._environment.process_exit_code is None:
                self._environment.process_exit_code = end.code
            self._runs.end_by_locustfile()

    def _on_ping(self, worker: str, ping: PingMessage) -> None:
        received_ns = self._runs.clock.now_ns()
        self._mail.send(messages.PONG, pong(ping, self._runs.clock, received_ns), worker)

    def _on_test_stopping(self, **_: object) -> None:
        """End the load on all workers and wait for their last records.

        Done in this event because afterwards Locust either tells its workers to quit, or lets them sleep
        through --stop-timeout without reading messages.
        """
        run = self._runs.run
        if run is None or run.state > State.LOADING:
            return
        run.stopped()
        self._runs.expect_end(self._stopping, self._on_test_stop)
        if not self._runner.worker_count and not run.stop_reason:
            self._note_no_worker(run)
        # No ramp or shape may spawn users from now on. Locust sets the same state right after this.
        self._runner.update_state(STATE_STOPPING)
        if run.settings.run.drain_s:
            # The workers' last reports may be seconds old: only they know the number of requests.
            logger.info("draining the requests in flight, at most %g s%s", run.settings.run.drain_s, CUT_HINT)
        self._cutting = False
        for client in self._runner.clients.all:
            self._send(messages.FLUSH, run, client.id)
        self._await_last_words(run)
        run.drained()

    def _note_no_worker(self, run: ActiveRun) -> None:
        """Note that a run ends because its last worker is gone: Locust stops it as if a user had."""
        missing = sum(client.state == STATE_MISSING for client in self._runner.clients.all)
        if missing:
            run.cut(f"no worker was left: {missing} of {len(list(run.roster))} went silent at the end")
        else:
            run.stop_reason = "no worker was left: the last one quit"
            run.cut_short = self._runs.ends_by_itself(run)
        logger.error("the run ends early: %s", run.stop_reason)

    def _on_test_stop(self, **_: object) -> None:
        if self._runs.run is not None:
            self._runs.run.note_undelivered()
        self._runs.finish()

    def _await_last_words(self, run: ActiveRun) -> None:
        patience_s = self._runs.end_patience_s(run)
        deadline = time.monotonic() + patience_s
        while not wait_until(lambda: not self._awaited(run), min(FLUSH_AGAIN_S, deadline - time.monotonic())):
            awaited = self._awaited(run)
            if time.monotonic() >= deadline:
                logger.error("no final counts within %g s from: %s", patience_s, ", ".join(awaited))
                return
            for worker in awaited:
                self._send(messages.FLUSH, run, worker)
                if self._cutting:
                    self._send(messages.CUT, run, worker)

    def on_interrupt(self, _: int) -> bool:
        """Handle Ctrl-C; return whether nothing more must be done."""
        run = self._runs.run
        if run is None or run.state is State.LOADING or run.drained_ns is not None or self._cutting:
            return self._runs.keeps_report()
        self._cutting = True
        for worker in self._awaited(run):
            self._send(messages.CUT, run, worker)
        return True

    def _send(self, kind: str, run: ActiveRun, worker: str) -> None:
        self._mail.send(kind, RunMessage(run=run.info["id"]), worker)

    def _awaited(self, run: ActiveRun) -> list[str]:
        """Workers whose final counts of the run are still to come."""
        return run.roster.awaited(self._present)

    def _present(self, worker: str) -> bool:
        clients = self._runner.clients
        return worker in clients and clients[worker].state != STATE_MISSING
