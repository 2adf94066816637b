"""Progress of a headless run: a panel on a terminal, an occasional line in a log."""

import atexit
import logging
import sys
from typing import TextIO

from locust.env import Environment
from locust.runners import WorkerRunner
from rich.console import Console
from rich.live import Live

from llm_locust.live.state import state_of
from llm_locust.live.store import LiveStore, figures_since, snapshot
from llm_locust.options.option import ProgressMode
from llm_locust.report.console import RECENT_S, PresentStage, Progress, ProgressPanel, progress_line
from llm_locust.swarm.process.event_loop import every

logger = logging.getLogger(__name__)

PANEL_INTERVAL_S = 1.0
LINE_INTERVAL_S = 10.0


def show_progress(environment: Environment, store: LiveStore | None, mode: ProgressMode) -> None:
    """Show the progress of a headless run instead of Locust's tables. Call it while the process starts.

    Locust's ``--only-summary`` keeps the last tables.

    Args:
        store: None on a worker, which shows nothing.
        mode: ``auto`` yields to Locust's ``--print-stats``, which asks for its table.
    """
    options = environment.parsed_options
    assert options is not None
    if store is None or isinstance(environment.runner, WorkerRunner) or not options.headless:
        return
    if mode == "locust" or (mode == "auto" and getattr(options, "print_stats", False)):
        return
    if not options.only_summary:  # the report has all that is in the tables that Locust prints at its end
        logging.getLogger("locust.stats_logger").disabled = True
    # Locust starts its printer after this, unless only the last table is requested.
    options.only_summary = True
    if mode == "rich" or (mode == "auto" and _can_draw()):
        panel = _Panel(store)
        environment.events.quitting.add_listener(lambda **_: panel.close())
        every(PANEL_INTERVAL_S, panel.show, "the progress panel")
    else:
        every(LINE_INTERVAL_S, lambda: _say(store), "the progress lines")


def _can_draw() -> bool:
    console = Console(stderr=True)
    return console.is_terminal and not console.is_dumb_terminal


def _going_on(store: LiveStore) -> bool:
    return bool(store.run.id) and store.content.stopped_s is None


def _progress(store: LiveStore) -> Progress:
    whole, recent = snapshot(store, rows=False), snapshot(store, RECENT_S, rows=False)
    return Progress(store.run, whole, recent, _present_stage(store))


def _present_stage(store: LiveStore) -> PresentStage | None:
    shown, now_ns = store.stages, round(store.clock_s() * 1e9)
    if shown is None or shown.run != store.run.id:
        return None
    facts = shown.facts()
    begun = [stage for stage in facts if stage.begun_ns <= now_ns]
    if not begun:
        return None
    stage = begun[-1]
    state = state_of(stage, now_ns, is_sweep=shown.is_sweep)
    goodput = None
    if state == "measuring" and stage.measured_ns is not None:
        goodput = figures_since(store, stage.measured_ns * 1e-9).goodput
    return PresentStage(
        stage, state, shown.planned or len(facts), is_bound=bool(shown.objective), goodput=goodput
    )


def _say(store: LiveStore) -> None:
    if _going_on(store):
        logger.info("%s", progress_line(_progress(store)))


class _Panel:
    """Panel below the log on stderr, drawn in the event loop; it disappears when the process ends."""

    def __init__(self, store: LiveStore) -> None:
        self._store = store
        self._console = Console(stderr=True, force_terminal=True, highlight=False, emoji=False, markup=False)
        self._live: Live | None = None
        self._handlers: list[tuple[logging.StreamHandler[TextIO], TextIO]] = []

    def show(self) -> None:
        """Draw it again while a run goes on."""
        if not _going_on(self._store):
            return
        panel = ProgressPanel(_progress(self._store))
        if self._live is None:
            self._open(panel)
        else:
            self._live.update(panel, refresh=True)

    def close(self) -> None:
        """Remove it: later output starts at its position."""
        if self._live is not None:
            for handler, stream in self._handlers:
                handler.setStream(stream)
            self._live.stop()
            self._live = None

    def _open(self, panel: ProgressPanel) -> None:
        stderr = sys.stderr
        # Without rich's own thread, which would draw from outside the event loop.
        self._live = Live(panel, console=self._console, auto_refresh=False, transient=True)
        self._live.start(refresh=True)
        atexit.register(self.close)  # an exit without an event would leave the cursor hidden
        # The log appears above the panel, through rich's replacement of stderr.
        self._handlers = [(handler, stderr) for handler in _stream_handlers() if handler.stream is stderr]
        for handler, _ in self._handlers:
            handler.setStream(sys.stderr)


def _stream_handlers() -> list["logging.StreamHandler[TextIO]"]:
    """Handlers of all loggers: Locust's have handlers of their own."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = dict.fromkeys(h for each in loggers if isinstance(each, logging.Logger) for h in each.handlers)
    return [handler for handler in handlers if isinstance(handler, logging.StreamHandler)]
