"""Run lifecycle shared by the master and the single-process mode."""

import logging
import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import NoReturn

import gevent
from locust import log
from locust.env import Environment

from llm_locust.figures.summary import as_json
from llm_locust.figures.text import Line
from llm_locust.figures.verdict import RunVerdict, hung, stood_still
from llm_locust.host import exhausted
from llm_locust.options.option import OWN_SPOOL
from llm_locust.options.settings import UsageError
from llm_locust.report.console import print_report, print_sections
from llm_locust.report.headline import Headline, headline_of
from llm_locust.report.output import shown_json
from llm_locust.swarm.channel.messages import DroppedMessages, StagedMessage
from llm_locust.swarm.clocks import RunClock
from llm_locust.swarm.process.event_loop import spawn_loop, wait_until
from llm_locust.swarm.process.exits import SIGNALS
from llm_locust.swarm.process.health import Health
from llm_locust.swarm.process.stopping import LEAVE_WITHIN_S, RunTime, Stopping
from llm_locust.swarm.run.disk import watch_disk
from llm_locust.swarm.run.finishing import RunEnd, exit_verdict, without_gates
from llm_locust.swarm.run.load_control import LoadWatch, Sweeping, Tell, describe
from llm_locust.swarm.run.parts import go_on
from llm_locust.swarm.run.preparation import RunPreparation
from llm_locust.swarm.run.run import ActiveRun, State

logger = logging.getLogger(__name__)

#: Longest time that the locustfile's own listeners to the end of the process have.
QUITTING_S = 300.0

#: Appended to the message of a drain that can be cut short at this process's terminal.
CUT_HINT = "; Ctrl-C cuts them"


class RunCoordinator:
    """Starts runs, ends them, and sets the exit code.

    Args:
        acknowledge: called with (run, worker, seq) when a batch is in the run's file.
        tell: sends a change of the load to workers.
        look: called before a run's counts are read, if they are not sent to this process.
        present: whether a worker is connected.
        on_clock_step: called when this machine's clock was stepped.
        dropped: counts the dropped messages.
    """

    def __init__(
        self,
        environment: Environment,
        acknowledge: Callable[[str, str, int], None],
        tell: Tell,
        look: Callable[[ActiveRun], None] = lambda _: None,
        present: Callable[[str], bool] = lambda _: True,
        on_clock_step: Callable[[], None] = lambda: None,
        dropped: DroppedMessages | None = None,
    ) -> None:
        self.environment = environment
        self.clock = RunClock(on_clock_step)
        self.health = Health()
        self.dropped = DroppedMessages() if dropped is None else dropped
        self._preparation = RunPreparation(environment, self.clock, self.health, self.dropped, acknowledge)
        self.run: ActiveRun | None = None
        self._tell = tell
        self._sweep: Sweeping | None = None
        self._look = look
        self._present = present
        self._refused = False  # the last requested run could not be started
        self._finishing: gevent.Greenlet[[ActiveRun], None] | None = None
        self._printed: ActiveRun | None = None
        self._found: Headline | None = None  # what its report said
        self._kept: ActiveRun | None = None  # run whose report survived one Ctrl-C
        self._is_quitting = False
        assert environment.parsed_options is not None
        self._options = environment.parsed_options
        # Every worker looks for it in its options: if it were absent, the master would not load this package.
        self._options.llm_run = None
        self._run_time = RunTime(environment, self._on_web_timer)
        self._leaving: gevent.Greenlet[[], None] | None = None
        vars(self._options).pop(OWN_SPOOL, None)  # a worker's own setting must not be overwritten
        spawn_loop(self.clock.watch, "the watch on the clock")
        SIGNALS.has_begun = lambda: self.run is not None
        SIGNALS.cut = self.cut
        go_on(self._options, self.clock.now_ns(), environment.parsed_locustfiles or ())

    @property
    def headless(self) -> bool:
        return bool(self._options.headless)

    def check(self, await_workers: Callable[[], None] = lambda: None) -> None:
        """As :meth:`RunPreparation.check`: bad settings end the process with a one-line error."""
        at_once = self.headless or self._options.autostart
        self._preparation.check(at_once=at_once, await_workers=await_workers)
        if at_once:
            self._run_time.take()

    def begin(self, workers: Collection[str], expected: int = 1) -> ActiveRun:
        """Begin a run.

        Args:
            workers: names of the workers that are ready.
            expected: least number of workers.

        Raises:
            gevent.GreenletExit: the run cannot be started. The reason is logged. The greenlet that was about
                to spawn users ends, so that no worker starts.
        """
        before = self.run
        if before is not None:  # a start from the web UI may come while the run before it still ends
            wait_until(lambda: before.state >= State.FINISHING, self.end_patience_s(before))
        self._join_finishing()
        self.run, self._refused, self._options.llm_run = None, False, None
        run_time_s = self._run_time.give_back()
        try:
            self.run = self._preparation.new_run(workers, expected)
            if run_time_s is not None:
                self.run.end_after(run_time_s)
                SIGNALS.look_in(run_time_s)
            # Sent to every worker with the first spawn message, and to workers that join later.
            self._options.llm_run = self.run.info
        except Exception as e:  # Locust would log it, and wait for ever for users that have no run
            reason = exhausted(e)
            if reason is None and not isinstance(e, UsageError | OSError):
                logger.exception("the run cannot begin")
            self.refuse(reason or str(e))
            raise gevent.GreenletExit from e
        logger.info("run %s writes to %s", self.run.info["id"], self.run.path)
        if run_time_s is not None:
            logger.info("the load lasts %g s", run_time_s)
        elif self.headless and not self.ends_by_itself(self.run):
            logger.info("the load goes on until Ctrl-C: no -t, and nothing else, ends it")
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
            tell=self._tell,
            end=self.end_load,
        )
        spawn_loop(watch.watch, "the watch on the load")
        watch_disk(run)
        self._sweep = None
        if run.settings.load.sweep is not None:
            self._sweep = Sweeping(runner, run, present=self._present, tell=self._tell, end=self.end_load)
            gevent.spawn(self._sweep.drive)

    def staged(self, worker: str, message: StagedMessage) -> None:
        """Note a worker's confirmation of a step of a stage."""
        if self._sweep is not None:
            self._sweep.confirmed(worker, message)

    def _on_web_timer(self) -> None:
        """Let a run from the web UI have its whole run time: Locust's timer has counted the checks too."""
        if self.run is not None and self._run_time.of_web_run_s is not None:
            self.run.end_after(self._run_time.of_web_run_s)

    def end_load(self) -> None:
        """Stop the load; without a web UI the process ends. In its own greenlet: stopping takes time."""
        runner = self.environment.runner
        assert runner is not None
        gevent.spawn(runner.quit if self.headless else runner.stop)

    def end_by_locustfile(self) -> None:
        """End the load because a user has called ``runner.stop`` or ``quit``.

        That is an end which the locustfile gives the run: it is not cut short by it.
        """
        run = self.run
        if run is not None and run.state is State.LOADING:
            run.stop_reason = run.stop_reason or "the locustfile (runner.stop or runner.quit)"
            self.end_load()

    def cut(self, reason: str) -> float:
        """Log why, and end the load or what comes before it; return the longest time until the end."""
        run = self.run
        if run is None:
            self.refuse(reason)
            return 0.0
        logger.error("%s", reason)
        if run.state is State.LOADING:
            run.cut(reason)
            self.end_load()
        return self.end_patience_s(run)

    def refuse(self, reason: str) -> None:
        """Refuse a run: log why, once; stop the load; without a web UI the process ends."""
        if self._refused:
            return
        self._refused = True
        logger.error("%s", reason)
        self.end_load()
        self._autoquit()

    def abandon(self, reason: str) -> NoReturn:
        """Refuse the run that has just begun, before its first user (raises as :meth:`begin`)."""
        run, self.run, self._options.llm_run = self.run, None, None
        if run is not None:
            run.discard()
        self.refuse(reason)
        raise gevent.GreenletExit

    def finish(self) -> None:
        """Make the report in the background, once: all records are in, or given up."""
        run = self.run
        if run is not None and run.state < State.FINISHING:
            run.stopped()
            run.state = State.FINISHING
            SIGNALS.look_no_more()
            self._finishing = gevent.spawn(self._finish, run)
            self._autoquit()
            if self.headless:  # whoever has stopped the load: there is nothing more to do
                self.end_load()

    def _autoquit(self) -> None:
        """Leave ``--autoquit`` seconds after the run of ``--autostart``; with a load shape Locust does so."""
        options, web_ui = self._options, self.environment.web_ui
        after_s = getattr(options, "autoquit", -1)
        has_shape = self.environment.shape_class is not None
        if not options.autostart or web_ui is None or after_s == -1 or has_shape:
            return

        def leave() -> None:
            assert self.environment.runner is not None
            gevent.sleep(after_s)
            logger.info("--autoquit: leaving")
            self.environment.runner.quit()
            web_ui.stop()

        if self._leaving is None:
            self._leaving = gevent.spawn(leave)

    @property
    def stopped_ago_s(self) -> float | None:
        """Time since the end of the current run's load; None before."""
        return None if self.run is None else self.run.stopped_ago_s

    def keeps_report(self) -> bool:
        """Handle Ctrl-C while a report is being made, or printed as the process ends: return True once; the
        next one ends the process."""
        run = self.run
        if run is None or run is self._kept or run.state < State.DRAINING:
            return False
        if run.state is State.REPORTED and not (self.headless or self._is_quitting):
            return False
        self._kept = run
        logger.info("the report is being made; Ctrl-C again exits without it")
        return True

    def on_quitting(self, stop_load: Callable[[], None]) -> None:
        """End what still runs when the process quits: stop the load, wait for the report, set the exit code.

        Args:
            stop_load: ends the load and returns when all its records are in.
        """
        run, self._is_quitting = self.run, True
        if run is not None and run.state is State.LOADING:
            is_autostarted = self._options.autostart and self._printed is None
            if (self.headless or run.is_part or is_autostarted) and self.ends_by_itself(run):
                run.cut("the process was told to end (SIGTERM or Ctrl-C)")
            stop_load()
        elif run is not None:  # another greenlet is stopping it: a drain takes time
            wait_until(lambda: run.state >= State.FINISHING, self.end_patience_s(run))
        self.finish()
        self._join_finishing()
        gevent.spawn_later(QUITTING_S, self._leave_listeners)

    def settle_code(self) -> None:
        """Set the exit code, after all listeners: the run's own, or a listener's where that is 0."""
        self.environment.process_exit_code = self.verdict().code

    def _leave_listeners(self) -> None:
        """End the process although a listener to its end has not returned."""
        logger.error("a listener to `quitting` has not ended within %g s: it is left behind", QUITTING_S)
        self.settle_code()
        self.print_once()
        code = self.environment.process_exit_code
        gevent.get_hub().handle_system_error(SystemExit, SystemExit(code))

    def expect_end(self, stopping: Stopping, go_on: Callable[[], None]) -> None:
        """Go on without the end of the load's stop if something holds it up, such as a listener of the
        locustfile.

        Args:
            go_on: takes what there is, and makes the report.
        """
        run = self.run
        assert run is not None

        def look() -> None:
            if run.state < State.FINISHING:
                stopping.overdue("the report is made without waiting any longer")
                go_on()

        gevent.spawn_later(self.end_patience_s(run) + 2 * LEAVE_WITHIN_S, look)

    def end_patience_s(self, run: ActiveRun) -> float:
        """Longest time from the end of a run until all its records are in."""
        return run.settings.run.drain_s + float(self.environment.stop_timeout or 0) + run.patience_s

    def print_once(self) -> None:
        """Print the report on the terminal; after Locust's own tables in a headless run."""
        run = self.run
        if run is None or run.report is None or run is self._printed:
            return
        is_autostarted, self._printed = self._options.autostart and self._printed is None, run
        ends = self.headless or is_autostarted
        own = self.verdict() if ends else run.report.verdict
        found = headline_of(run.report.summary, own)
        if not ends:
            found = replace(found, code=None)
        print_report(run.report.summary, run.reported, sys.stdout, found=found, full=run.settings.report.full)
        self._found = found
        if run.settings.report.print_summary:
            sys.stdout.write(shown_json(as_json(run.report.summary)) + "\n")
        sys.stdout.flush()

    def on_quit(self) -> None:
        """Print the report, or the last line of a printed one again: Locust's tables have followed it."""
        found = self._found
        if found is not None and self.run is self._printed:
            print_sections((), sys.stdout, last=Line(found.line, found.tone))
        else:
            self.print_once()

    def verdict(self) -> RunVerdict:
        """Verdict on the last requested run, which the process ends with."""
        run = self.run
        report = None if run is None else run.report
        judged = None
        if report is not None:
            still = stood_still(report.summary) or hung(report.summary)
            judged = report.verdict or without_gates(report.summary.requests.failed, still)
        end = RunEnd(
            is_refused=self._refused,
            has_run=run is not None,
            was_to_run=self.headless,
            judged=judged,
            code_on_error=int(self._options.exit_code_on_error),
            has_crashed=log.unhandled_greenlet_exception,
            is_uploaded=None if run is None else run.uploaded,
            given=self.environment.process_exit_code,
        )
        return exit_verdict(end)

    def ends_by_itself(self, run: ActiveRun) -> bool:
        """Whether a run has an end of its own, so that an end before it cuts it short."""
        load = run.settings.load
        ends = (load.num_requests, load.trace, load.sweep)
        bounds = (self._options.run_time, *ends, self.environment.shape_class)
        return any(bound is not None for bound in bounds)

    def _finish(self, run: ActiveRun) -> None:
        run.finish()
        if not self.headless:
            self.print_once()
            goes_on = run.is_part and run.cut_short and not run.ended_in_order
            if goes_on and self.environment.web_ui is not None:
                logger.error("the process ends: the next one goes on with the run")
                self.environment.web_ui.stop()

    def _join_finishing(self) -> None:
        if self._finishing is not None:
            self._finishing.join()
