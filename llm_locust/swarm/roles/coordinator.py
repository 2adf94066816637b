"""Run lifecycle shared by the master and the process that is all in one."""

import logging
import sys
from collections.abc import Callable, Collection
from typing import NoReturn

import gevent
from locust.env import Environment

from llm_locust.metrics.summary import EXIT_INCOMPLETE
from llm_locust.metrics.summary_types.summary import as_json
from llm_locust.options.option import OWN_SPOOL
from llm_locust.options.settings import UsageError
from llm_locust.report.output import shown_json
from llm_locust.report.render.console import print_report
from llm_locust.swarm.channel.dropped import Dropped
from llm_locust.swarm.channel.messages import RateMessage
from llm_locust.swarm.clocks.run_clock import RunClock
from llm_locust.swarm.process.health import Health
from llm_locust.swarm.process.leaving import EXIT_USAGE
from llm_locust.swarm.process.loops import spawn_loop
from llm_locust.swarm.process.waiting import wait_until
from llm_locust.swarm.roles.preparation import RunPreparation
from llm_locust.swarm.run.load_watch import LoadWatch, describe
from llm_locust.swarm.run.run import ActiveRun

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
        look: Callable[[ActiveRun], None] = lambda _: None,
        present: Callable[[str], bool] = lambda _: True,
        on_clock_step: Callable[[], None] = lambda: None,
        dropped: Dropped | None = None,
    ) -> None:
        self.environment = environment
        self.clock = RunClock(on_clock_step)
        self.health = Health()
        self.dropped = Dropped() if dropped is None else dropped
        self._preparation = RunPreparation(environment, self.clock, self.health, self.dropped, acknowledge)
        self.run: ActiveRun | None = None
        self._tell_rate = tell_rate
        self._look = look
        self._present = present
        self._refused = False  # the last run that was asked for could not be done
        self._finishing: gevent.Greenlet[[ActiveRun], None] | None = None
        self._printed: ActiveRun | None = None
        self._kept: ActiveRun | None = None  # whose report a Ctrl-C did not end
        assert environment.parsed_options is not None
        self._options = environment.parsed_options
        # Every worker looks for it in the options that it gets: its absence would say that the
        # master does not load this package.
        self._options.llm_run = None
        vars(self._options).pop(OWN_SPOOL, None)  # what a worker has of its own stands
        spawn_loop(self.clock.watch, "the watch on the clock")

    @property
    def headless(self) -> bool:
        return bool(self._options.headless)

    def check(self) -> None:
        """As :meth:`RunPreparation.check`: what cannot work ends the process, with one line."""
        self._preparation.check(at_once=self.headless or self._options.autostart)

    def begin(self, workers: Collection[str], expected: int = 1) -> ActiveRun:
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
            self.run = self._preparation.new_run(workers, expected)
            # Travels to every worker with the first spawn message, and to those that join later.
            self._options.llm_run = self.run.info
        except (UsageError, OSError) as e:
            self.refuse(str(e))
            raise gevent.GreenletExit from e
        logger.info("run %s writes to %s", self.run.info["id"], self.run.path)
        self._watch(self.run)
        return self.run

    def _watch(self, run: ActiveRun) -> None:
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

    def end_patience_s(self, run: ActiveRun) -> float:
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
            sys.stdout.write(shown_json(as_json(run.report.summary)) + "\n")
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

    def _finish(self, run: ActiveRun) -> None:
        run.finish()
        if not self.headless:
            self.print_once()

    def _join_finishing(self) -> None:
        if self._finishing is not None:
            self._finishing.join()
