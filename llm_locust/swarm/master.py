"""The side of a run that has its directory: Locust's master, or a process that is all in one."""

import logging
import secrets
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import NoReturn

import gevent
import psutil
from locust.env import Environment
from locust.runners import STATE_MISSING, STATE_STOPPING, LocalRunner, MasterRunner

from llm_locust.report.console import print_report
from llm_locust.store import FrameHeader
from llm_locust.swarm import messages
from llm_locust.swarm.collector import Collector
from llm_locust.swarm.messages import (
    AckMessage,
    BatchMessage,
    CountsMessage,
    FlushMessage,
    Received,
    RefusedMessage,
    RunInfo,
)
from llm_locust.swarm.options import UsageError, parse_settings
from llm_locust.swarm.preflight import check_run_dir, check_target, choose_run_dir
from llm_locust.swarm.run import Run, wait_until
from llm_locust.swarm.session import Session
from llm_locust.swarm.worker import UserSide

logger = logging.getLogger(__name__)

EXIT_USAGE = 2


class RunSide:
    """Begins runs, ends them, sets the exit code. What it does alike for both kinds of process.

    Args:
        stop_load: ends the load, if one is running, and returns when all its records are in.
    """

    def __init__(self, environment: Environment, acknowledge: Callable[[str, int], None]) -> None:
        self.environment = environment
        self.run: Run | None = None
        self._acknowledge = acknowledge
        self._refusal: str | None = None
        self._finishing: gevent.Greenlet[[], None] | None = None
        self._runs = 0
        self._printed: Run | None = None

    @property
    def headless(self) -> bool:
        return bool(self.environment.parsed_options and self.environment.parsed_options.headless)

    def check(self) -> None:
        """Before any load: what cannot work ends the process, with one line.

        A server that does not answer is only said where a person can still change the host in the web UI.
        """
        options = self.environment.parsed_options
        assert options is not None
        try:
            settings = parse_settings(options)
            check_run_dir(settings)
        except UsageError as e:
            leave(e)
        try:
            if self.headless or options.autostart or self.environment.host:
                check_target(self.environment.host, settings)
        except UsageError as e:
            if self.headless or options.autostart:
                leave(e)
            logger.warning("%s", e)

    def begin(self, workers: int) -> Run | None:
        """Begin a run; None, and the load is stopped, if it cannot be done."""
        self._join_finishing()
        self.run = None
        try:
            self.run = self._new_run(workers)
        except (UsageError, ValueError, OSError) as e:
            self.refuse(str(e))
            return None
        logger.info("run %s writes to %s", self.run.info["id"], self.run.path)
        return self.run

    def refuse(self, reason: str) -> None:
        """The run cannot be done: say why, stop the load, end with a usage error."""
        self._refusal = reason
        logger.error("%s", reason)
        self.environment.process_exit_code = EXIT_USAGE
        runner = self.environment.runner
        assert runner is not None
        gevent.spawn(runner.quit if self.headless else runner.stop)

    def finish(self) -> None:
        """All records are in, or waited for in vain: make the report in the background."""
        run = self.run
        if run is not None and self._finishing is None:
            self._finishing = gevent.spawn(lambda: self._finish(run))

    def on_quitting(self, stop_load: Callable[[], None]) -> None:
        """The process ends: stop what still runs, wait for the report, set the exit code."""
        run = self.run
        if run is not None and run.stopped_ns is None:
            stop_load()
        self._join_finishing()
        if self._refusal is not None:
            self.environment.process_exit_code = EXIT_USAGE
        elif run is not None and self.environment.process_exit_code is None:
            if run.report is not None:
                self.environment.process_exit_code = run.report.exit_code
            elif run.failure is not None:
                self.environment.process_exit_code = EXIT_USAGE

    def print_once(self) -> None:
        """The report on the terminal; after Locust's own tables in a headless run."""
        run = self.run
        if run is None or run.report is None or run is self._printed:
            return
        self._printed = run
        print_report(run.report.summary, run.path, sys.stdout)
        sys.stdout.flush()

    def _finish(self, run: Run) -> None:
        run.finish()
        if not self.headless:
            self.print_once()

    def _join_finishing(self) -> None:
        if self._finishing is not None:
            self._finishing.join()
            self._finishing = None

    def _new_run(self, workers: int) -> Run:
        options = self.environment.parsed_options
        assert options is not None
        settings = parse_settings(options)
        found = check_target(self.environment.host, settings)
        started = datetime.now()
        name = Path((self.environment.parsed_locustfiles or ["locust"])[0]).stem
        path = choose_run_dir(settings, name, started, again=self._runs > 0)
        self._runs += 1
        info = RunInfo(
            id=f"{started:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}",
            seed=secrets.randbelow(2**31) if settings.seed is None else settings.seed,
            model=found.model,
            base=found.base,
            salt=secrets.token_hex(4),
        )
        # Travels to every worker with the first spawn message, and to those that join later.
        options.llm_run = info
        return Run(
            info=info,
            name=settings.out.name if settings.out is not None else name,
            path=path,
            host=self.environment.host or "",
            settings=settings,
            workers_expected=workers,
            collector=Collector(path, self._acknowledge),
        )


class LocalSide:
    """A process that is all in one: users, records and run directory."""

    def __init__(self, environment: Environment) -> None:
        runner = environment.runner
        assert isinstance(runner, LocalRunner)
        self._runner = runner
        self._runs = RunSide(environment, _nobody_waits)
        self._users = UserSide(environment, runner.client_id, lambda: (0, 1), self._deliver)
        events = environment.events
        events.test_start.add_listener(self._on_test_start)
        events.test_stopping.add_listener(self._on_test_stopping)
        events.test_stop.add_listener(self._on_test_stop)
        events.quitting.add_listener(lambda **_: self._runs.on_quitting(runner.stop))
        events.quit.add_listener(lambda **_: self._runs.print_once())
        self._runs.check()

    @property
    def session(self) -> Session | None:
        return self._users.session

    def _on_test_start(self, **_: object) -> None:
        run = self._runs.begin(workers=1)
        if run is None:
            return
        run.heard(self._users.worker, 0)
        try:
            self._users.begin(run.info)
        except UsageError as e:
            self._runs.refuse(str(e))

    def _deliver(self, header: FrameHeader, frame: bytes) -> None:
        if self._runs.run is not None:
            self._runs.run.collector.accept(header.worker, header.seq, header.rows, frame)

    def _on_test_stopping(self, **_: object) -> None:
        if self._runs.run is not None:
            self._runs.run.stopped()

    def _on_test_stop(self, **_: object) -> None:
        run = self._runs.run
        if run is None:
            return
        self._users.close()
        run.heard(self._users.worker, 0, self._users.counts()).done = True
        self._runs.finish()


class MasterSide:
    """Locust's master: users elsewhere, the run directory here."""

    def __init__(self, environment: Environment) -> None:
        runner = environment.runner
        assert isinstance(runner, MasterRunner)
        self._environment = environment
        self._runner = runner
        self._runs = RunSide(environment, self._acknowledge)
        runner.register_message(messages.BATCH, self._on_batch)
        runner.register_message(messages.DONE, self._on_done)
        runner.register_message(messages.REFUSED, self._on_refused)
        events = environment.events
        events.test_start.add_listener(self._on_test_start)
        events.worker_report.add_listener(self._on_worker_report)
        events.test_stopping.add_listener(self._on_test_stopping)
        events.test_stop.add_listener(lambda **_: self._runs.finish())
        events.quitting.add_listener(lambda **_: self._runs.on_quitting(self._stop_load))
        events.quit.add_listener(lambda **_: self._runs.print_once())
        self._runs.check()

    def _on_test_start(self, **_: object) -> None:
        options = self._environment.parsed_options
        clients = self._runner.clients
        run = self._runs.begin(workers=max(getattr(options, "expect_workers", 1), len(clients.ready)))
        if run is not None:
            for client in clients.ready:
                run.heard(client.id, self._runner.get_worker_index(client.id))

    def _current(self, run_id: str) -> Run | None:
        run = self._runs.run
        return run if run is not None and run.info["id"] == run_id else None

    def _on_worker_report(self, client_id: str, data: dict[str, object], **_: object) -> None:
        counts: CountsMessage | None = data.get("llm")  # type: ignore[assignment]
        run = None if counts is None else self._current(counts["run"])
        if run is not None:
            run.heard(client_id, self._runner.get_worker_index(client_id), counts)

    def _on_batch(self, msg: Received[BatchMessage], **_: object) -> None:
        run = self._current(msg.data["run"])
        if run is None:
            logger.warning("worker %s sent a batch of run %s, which is over", msg.node_id, msg.data["run"])
            return
        run.heard(msg.node_id, self._runner.get_worker_index(msg.node_id))
        run.collector.accept(msg.node_id, msg.data["seq"], msg.data["rows"], msg.data["frame"])

    def _acknowledge(self, worker: str, seq: int) -> None:
        run = self._runs.run
        if run is not None:
            self._runner.send_message(messages.ACK, dict(AckMessage(run=run.info["id"], seq=seq)), worker)

    def _on_done(self, msg: Received[CountsMessage], **_: object) -> None:
        run = self._current(msg.data["run"])
        if run is not None:
            index = self._runner.get_worker_index(msg.node_id)
            run.heard(msg.node_id, index, msg.data).done = True

    def _on_refused(self, msg: Received[RefusedMessage], **_: object) -> None:
        if self._current(msg.data["run"]) is not None:
            self._runs.refuse(msg.data["reason"])

    def _on_test_stopping(self, **_: object) -> None:
        """End the load on all workers and wait for their last records.

        Here, because after it Locust either tells its workers to quit, or lets them sleep
        through --stop-timeout without reading messages.
        """
        run = self._runs.run
        if run is None or run.stopped_ns is not None:
            return
        run.stopped()
        # No ramp or shape may spawn users from here on; Locust sets the same state right after.
        self._runner.update_state(STATE_STOPPING)
        self._runner.send_message(messages.FLUSH, dict(FlushMessage(run=run.info["id"])))
        patience_s = float(self._environment.stop_timeout or 0) + run.settings.flush_timeout_s + 5
        if not wait_until(lambda: not self._awaited(run), patience_s):
            logger.error("no last word within %g s from: %s", patience_s, ", ".join(self._awaited(run)))

    def _awaited(self, run: Run) -> list[str]:
        """Workers that are there and have not said that they are done."""
        clients = self._runner.clients
        return [
            worker
            for worker, participant in run.participants.items()
            if not participant.done and worker in clients and clients[worker].state != STATE_MISSING
        ]

    def _stop_load(self) -> None:
        self._runner.stop(send_stop_to_client=False)


def leave(error: UsageError) -> NoReturn:
    """End this process for a usage error, and the workers that ``--processes`` made of it.

    Without a master those would wait on.
    """
    print(f"llm-locust: error: {error}", file=sys.stderr, flush=True)
    for child in psutil.Process().children():
        child.terminate()
    raise SystemExit(EXIT_USAGE)


def _nobody_waits(worker: str, seq: int) -> None:
    """In one process a batch is not kept by anybody until it is acknowledged."""
