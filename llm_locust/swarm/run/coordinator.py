"""What a process with the run directory does alike, whether its users are here or elsewhere."""

import logging
import secrets
import sys
from collections.abc import Callable, Collection
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NoReturn

import gevent
from locust.env import Environment

from llm_locust.deployment.profiler import ProfileError
from llm_locust.deployment.readiness import Replicas
from llm_locust.metrics.summary import EXIT_INCOMPLETE
from llm_locust.options.settings import Settings, UsageError, parse_settings, with_roofline
from llm_locust.options.table import OWN_SPOOL
from llm_locust.report.output import shown_json
from llm_locust.report.render.console import print_report
from llm_locust.store import FRAMES_FILE, FrameLog
from llm_locust.swarm.channel.dropped import Dropped
from llm_locust.swarm.channel.messages import PACKAGE, PROTOCOL, RateMessage, RunInfo
from llm_locust.swarm.clocks.run_clock import RunClock
from llm_locust.swarm.delivery.collector import Collector
from llm_locust.swarm.live.roles import store_of
from llm_locust.swarm.open_loop.load import ORIGIN_DELAY_S, open_loop_class
from llm_locust.swarm.process.health import Health
from llm_locust.swarm.process.hush import hush
from llm_locust.swarm.process.leaving import EXIT_USAGE, leave
from llm_locust.swarm.process.loops import spawn_loop
from llm_locust.swarm.process.offload import off_the_hub
from llm_locust.swarm.process.waiting import wait_until
from llm_locust.swarm.run.load_watch import (
    LoadWatch,
    check_load,
    check_shares,
    checked_trace,
    describe,
)
from llm_locust.swarm.run.preflight import (
    CHECK_TIMEOUT_S,
    check_hosts,
    check_metrics,
    check_run_dir,
    check_target,
    check_upload,
    check_workload,
    choose_run_dir,
    host_of,
    probed_endpoint,
)
from llm_locust.swarm.run.replicas import post_to, wait_for_replicas
from llm_locust.swarm.run.roster import Roster
from llm_locust.swarm.run.run import Run
from llm_locust.swarm.run.server_calls import CALL_TIMEOUT_S, ServerCalls

logger = logging.getLogger(__name__)

#: Said where a drain begins that a person at this process's terminal can end.
CUT_HINT = "; Ctrl-C cuts them"


class RunCoordinator:
    """Begins runs, ends them, sets the exit code.

    Args:
        acknowledge: called with (run, worker, seq) when a batch is in the run's file.
        tell_rate: called with a change of an open loop's rate, for all workers.
        look: called before a run's counts are looked at, where they do not come by themselves.
        present: whether a worker is there.
        on_clock_step: called when this machine's clock was stepped.
        dropped: counts the messages that were not taken.
    """

    def __init__(
        self,
        environment: Environment,
        acknowledge: Callable[[str, str, int], None],
        tell_rate: Callable[[RateMessage], None],
        look: Callable[[Run], None] = lambda _: None,
        present: Callable[[str], bool] = lambda _: True,
        on_clock_step: Callable[[], None] = lambda: None,
        dropped: Dropped | None = None,
    ) -> None:
        self.environment = environment
        self.clock = RunClock(on_clock_step)
        self.health = Health()
        self.run: Run | None = None
        self._acknowledge = acknowledge
        self._tell_rate = tell_rate
        self._look = look
        self._present = present
        self._refused = False  # the last run that was asked for could not be done
        self._ready: Replicas | None = None  # of the first run, whose time does not run while it waits
        self._finishing: gevent.Greenlet[[Run], None] | None = None
        self._runs = 0
        self._printed: Run | None = None
        self._kept: Run | None = None  # whose report a Ctrl-C did not end
        assert environment.parsed_options is not None
        self._options = environment.parsed_options
        # Every worker looks for it in the options that it gets: its absence would say that the
        # master does not load this package.
        self._options.llm_run = None
        vars(self._options).pop(OWN_SPOOL, None)  # what a worker has of its own stands
        self.dropped = Dropped() if dropped is None else dropped
        spawn_loop(self.clock.watch, "the watch on the clock")

    @property
    def headless(self) -> bool:
        return bool(self._options.headless)

    def check(self) -> None:
        """Before any load: what cannot work ends the process, with one line.

        A server that does not answer is only said where a person can still change the host in the web UI.
        """
        at_once = self.headless or self._options.autostart
        try:
            check_hosts(self.environment)
            settings = self._settings()
            checked_trace(settings.load)
            check_run_dir(settings)
            check_upload(settings)
            check_metrics(settings)
        except UsageError as e:
            leave(e)
        try:
            if at_once:
                self._ready = self._wait_for_replicas(settings)
            if at_once or self.environment.host:
                check_target(host_of(self.environment, settings), settings)
        except UsageError as e:
            if at_once:
                leave(e)
            logger.warning("%s", e)
        except KeyboardInterrupt:
            leave(UsageError("interrupted before the load began"))

    def _wait_for_replicas(self, settings: Settings, within_s: float | None = None) -> Replicas:
        """Those of the deployment, all of them ready (raises UsageError)."""
        host = host_of(self.environment, settings)
        endpoint = probed_endpoint(settings, self.environment.user_classes)
        return wait_for_replicas(host, settings, endpoint, within_s=within_s)

    def begin(self, workers: Collection[str], expected: int = 1) -> Run:
        """Begin a run.

        Args:
            workers: the names of those that are ready.
            expected: how many there have to be at least.

        Raises:
            gevent.GreenletExit: it cannot be done. The reason is said; the greenlet that was about to
                start users ends, so that no worker hears of it.
        """
        self._join_finishing()
        self.run, self._refused, self._options.llm_run = None, False, None
        try:
            self.run = self._new_run(workers, expected)
        except (UsageError, OSError) as e:
            self.refuse(str(e))
            raise gevent.GreenletExit from e
        logger.info("run %s writes to %s", self.run.info["id"], self.run.path)
        self._watch(self.run)
        return self.run

    def _watch(self, run: Run) -> None:
        runner = self.environment.runner
        assert runner is not None
        if run.open_loop:
            logger.info("%s", describe(run.settings.load, round(run.info["rate"])))
        watch = LoadWatch(
            runner,
            run,
            look=self._look,
            present=self._present,
            tell=self._tell_rate,
            end=self._end_load,
        )
        spawn_loop(watch.watch, "the watch on the load")

    def _end_load(self) -> None:
        """Stop the load; a process without a web UI ends. In a greenlet of its own: stopping takes time."""
        runner = self.environment.runner
        assert runner is not None
        gevent.spawn(runner.quit if self.headless else runner.stop)

    def refuse(self, reason: str) -> None:
        """The run cannot be done: say why, once; stop the load; a process without a web UI ends."""
        if self._refused:
            return
        self._refused = True
        logger.error("%s", reason)
        self._end_load()

    def abandon(self, reason: str) -> NoReturn:
        """Refuse the run that has just begun, before its first user (raises as :meth:`begin`)."""
        run, self.run, self._options.llm_run = self.run, None, None
        if run is not None:
            run.discard()
        self.refuse(reason)
        raise gevent.GreenletExit

    def finish(self) -> None:
        """All records are in, or waited for in vain: make the report in the background, once."""
        run = self.run
        if run is not None and not run.finishing:
            run.stopped()
            run.finishing = True
            self._finishing = gevent.spawn(self._finish, run)

    @property
    def stopped_ago_s(self) -> float | None:
        """The time since the present run's load has ended; None before."""
        return None if self.run is None else self.run.stopped_ago_s

    def keeps_report(self) -> bool:
        """Ctrl-C while a report is being made: say so, once, and give True; the next one ends the process."""
        run = self.run
        if run is None or run.stopped_ns is None or run.report is not None or run is self._kept:
            return False
        self._kept = run
        logger.info("the report is being made; Ctrl-C again leaves without it")
        return True

    def on_quitting(self, stop_load: Callable[[], None]) -> None:
        """The process ends: stop what still runs, wait for the report, set the exit code.

        Args:
            stop_load: ends the load and returns when all its records are in.
        """
        run = self.run
        if run is not None and run.stopped_ns is None:
            stop_load()
        elif run is not None:  # another greenlet is stopping it: to drain takes time
            wait_until(lambda: run.finishing, self.end_patience_s(run))
        self.finish()
        self._join_finishing()
        if self.environment.process_exit_code is None:
            self.environment.process_exit_code = self._exit_code()

    def end_patience_s(self, run: Run) -> float:
        """How long a run's end may take until all its records are in."""
        return run.settings.drain_s + float(self.environment.stop_timeout or 0) + run.patience_s

    def print_once(self) -> None:
        """The report on the terminal; after Locust's own tables in a headless run."""
        run = self.run
        if run is None or run.report is None or run is self._printed:
            return
        self._printed = run
        print_report(run.report.summary, run.path, sys.stdout)
        if run.settings.print_summary:
            sys.stdout.write(shown_json(run.report.summary) + "\n")
        sys.stdout.flush()

    def _exit_code(self) -> int | None:
        """Of the last run that was asked for; None leaves it to Locust."""
        if self._refused:
            return EXIT_USAGE
        if self.run is None:
            return None
        if self.run.report is None or self.run.uploaded is False:
            return EXIT_INCOMPLETE
        return self.run.report.exit_code

    def _finish(self, run: Run) -> None:
        run.finish()
        if not self.headless:
            self.print_once()

    def _join_finishing(self) -> None:
        if self._finishing is not None:
            self._finishing.join()

    def _settings(self) -> Settings:
        settings = with_roofline(parse_settings(self._options))
        hush(self.environment, settings.secrets)
        check_workload(settings, self.environment.user_classes)
        check_load(settings, self.environment.user_classes)
        return settings

    def _new_run(self, workers: Collection[str], expected: int) -> Run:
        settings = self._settings()
        check_shares(settings.load, len(workers))
        trace = off_the_hub(checked_trace, settings.load)
        # In the web UI a run's time is running already: who is missing is said soon.
        replicas, self._ready = self._ready or self._wait_for_replicas(settings, CHECK_TIMEOUT_S), None
        host = host_of(self.environment, settings)
        found = check_target(host, settings)
        runner = self.environment.runner
        assert runner is not None
        started = datetime.now()
        name = Path((self.environment.parsed_locustfiles or ["locust"])[0]).stem
        path = choose_run_dir(settings, name, started, again=self._runs > 0)
        info = RunInfo(
            id=f"{started:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}",
            protocol=PROTOCOL,
            version=PACKAGE,
            seed=secrets.randbelow(2**31) if settings.seed is None else settings.seed,
            host=host,
            base=found.base,
            targets=list(replicas.targets),
            model=found.model,
            salt=secrets.token_hex(4),
            path=str(path),
            manifest="",
            places=[],
            starters=len(workers),
            origin_ns=self.clock.now_ns() + round(ORIGIN_DELAY_S * 1e9),
            rate=float(runner.target_user_count),
            trace_scale=None if trace is None else trace.scale,
        )
        collector = Collector(FrameLog(path / FRAMES_FILE), partial(self._acknowledge, info["id"]))
        self._runs += 1
        self.health.begin()
        self.clock.begin()
        self.dropped.begin()
        run = Run(
            info=info,
            name=settings.out.name if settings.out is not None else name,
            path=path,
            settings=settings,
            workers_expected=max(expected, len(workers)),
            collector=collector,
            roster=Roster(info["id"], workers, self.clock.now_ns),
            clock=self.clock,
            health=self.health,
            dropped=self.dropped,
            started_ns=self.clock.now_ns(),
            replicas=replicas,
            calls=self._calls(settings, replicas),
            live=store_of(self.environment),
            open_loop=open_loop_class(self.environment.user_classes, settings) is not None,
        )
        run.begin()
        # Travels to every worker with the first spawn message, and to those that join later.
        self._options.llm_run = info
        return run

    def _calls(self, settings: Settings, replicas: Replicas) -> ServerCalls:
        run_s = getattr(self._options, "run_time", None)
        try:
            return ServerCalls(
                settings.deployment,
                replicas.known,
                post_to(settings, CALL_TIMEOUT_S),
                self.clock.now_ns,
                warmup_s=settings.warmup_s,
                run_s=run_s if isinstance(run_s, int | float) else None,
                told=self._note,
            )
        except ProfileError as e:
            raise UsageError(f"--profile-server: {e}") from e

    def _note(self, text: str) -> None:
        """Mark it in the live view, where there is one."""
        store = store_of(self.environment)
        if store is not None:
            store.note(text)
