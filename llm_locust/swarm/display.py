"""A run that goes on, shown: progress on the terminal, pages in the web UI, metrics, rolling summaries."""

import atexit
import errno
import logging
import socket
import sys
from pathlib import Path
from typing import TextIO

import psutil
from gevent.pywsgi import WSGIServer
from locust.env import Environment
from locust.runners import MasterRunner
from locust.web import WebUI
from rich.console import Console
from rich.live import Live

from llm_locust.core.texts import parse_time
from llm_locust.live.snapshot import figures_since, snapshot
from llm_locust.live.state import state_of
from llm_locust.live.store import LiveStore
from llm_locust.options.option import ProgressMode
from llm_locust.options.report import Keep
from llm_locust.options.settings import UsageError
from llm_locust.report.console import RECENT_S, PresentStage, Progress, ProgressPanel, progress_line
from llm_locust.swarm.drift import DriftWatch
from llm_locust.swarm.live import run_info, store_of
from llm_locust.swarm.process.event_loop import every, spawn_loop
from llm_locust.swarm.process.exits import LOOPBACK, leave
from llm_locust.swarm.web.form import Forms
from llm_locust.swarm.web.pages import Pages
from llm_locust.swarm.web.reports import ListedRun, Reports, summarise_forever
from llm_locust.swarm.web.wsgi import LineHandler, OwnOrigin, is_loopback, pages_for_links, serve_metrics

logger = logging.getLogger(__name__)


def show_run(environment: Environment) -> None:
    """Show the runs of a process that has the live numbers. Call it once, while the process starts.

    Raises:
        SystemExit: a port cannot be listened on; one line was printed.
    """
    store = store_of(environment)
    assert store is not None
    _show_progress(environment, store)
    _extend(environment, store)


# --- Progress of a headless run: a panel on a terminal, an occasional line in a log


PANEL_INTERVAL_S = 1.0
LINE_INTERVAL_S = 10.0


def _show_progress(environment: Environment, store: LiveStore) -> None:
    """Show the progress of a headless run instead of Locust's tables.

    Locust's ``--only-summary`` keeps the last tables. The mode ``auto`` yields to Locust's ``--print-stats``,
    which asks for its table.
    """
    options = environment.parsed_options
    assert options is not None
    if not options.headless:
        return
    mode: ProgressMode = getattr(options, "progress", None) or "auto"
    if mode == "locust" or (mode == "auto" and getattr(options, "print_stats", False)):
        return
    if not options.only_summary:  # the report has all that is in the tables that Locust prints at its end
        logging.getLogger("locust.stats_logger").disabled = True
    # Locust starts its printer after this, unless only the last table is requested.
    options.only_summary = True
    if mode == "rich" or (mode == "auto" and _can_draw()):
        panel = _Panel(store)
        # What the process that makes the report has to say would else be written into the panel.
        for event in (environment.events.test_stopping, environment.events.quitting):
            event.add_listener(lambda **_: panel.close())
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
    stages, now_ns = store.stages, round(store.clock_s() * 1e9)
    if stages is None or stages.run != store.run.id:
        return None
    facts = stages.facts()
    begun = [stage for stage in facts if stage.begun_ns <= now_ns]
    if not begun:
        return None
    stage = begun[-1]
    state = state_of(stage, now_ns, is_sweep=stages.is_sweep)
    goodput = None
    if state == "measuring" and stage.measured_ns is not None:
        goodput = figures_since(store, stage.measured_ns * 1e-9).goodput
    return PresentStage(
        stage, state, stages.planned or len(facts), is_bound=bool(stages.objective), goodput=goodput
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


# --- Pages in Locust's web UI, metrics for monitoring, and what is done every few minutes of a long run


_MIB = 1 << 20


def _extend(environment: Environment, store: LiveStore) -> None:
    """Add pages to the web UI, if there is one; watch for drifts; serve ``--metrics-port``; write the
    summaries of ``--rolling-summary``."""
    options = environment.parsed_options
    drift = DriftWatch(store, lambda: _memory_mib(environment))
    spawn_loop(drift.watch, "the watch on drift")
    reports = Reports()
    environment.events.test_start.add_listener(lambda **_: _note(environment, reports))
    if environment.web_ui is not None:
        _check_port(environment.web_ui)
        Pages(environment.web_ui, store, reports, drift)
        _protect(environment, environment.web_ui, store)
    port = getattr(options, "metrics_port", None)
    if port is not None:
        try:
            host = getattr(options, "metrics_host", None) or LOOPBACK
            serve_metrics(store, host, int(port), getattr(options, "web_name", None) or ())
        except UsageError as e:
            leave(e)
    _look_after_run(environment, store)


def _look_after_run(environment: Environment, store: LiveStore) -> None:
    """Write rolling summaries, upload, and drop what is older than ``--keep``, as far as was asked for."""
    options = environment.parsed_options
    rolling, kept = (getattr(options, name, None) for name in ("rolling_summary", "keep"))
    if not rolling and not kept:
        return
    upload = getattr(options, "upload", None) or None
    rolling_s = parse_time(rolling) if rolling else None
    keep = Keep.of(parse_time(kept), rolling_s) if kept else None
    interval_s = rolling_s or (keep.look_s if keep else 0.0)
    spawn_loop(
        lambda: summarise_forever(
            interval_s,
            lambda: _running(environment, store),
            upload,
            keep=keep,
            summarises=bool(rolling),
        ),
        "the rolling summary",
    )


def _check_port(web_ui: WebUI) -> None:
    """End the process with one line if the web UI cannot listen on its port, which Locust would try later."""
    try:
        family, *_, address = socket.getaddrinfo(
            web_ui.host or None, web_ui.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as e:
        busy = e.errno == errno.EADDRINUSE
        why = "is in use by another process" if busy else f"cannot be used: {e.strerror or e}"
        where = f"{web_ui.host or '*'}:{web_ui.port}"
        leave(UsageError(f"--web-port: {where} {why}; give another --web-port, or --headless"))


def _protect(environment: Environment, web_ui: WebUI, store: LiveStore) -> None:
    """Let only its own pages, and programs, use the web UI; let forms set only the allowed fields."""
    Forms(web_ui, environment, store.is_draining)
    app = web_ui.app
    assert app is not None
    names = getattr(environment.parsed_options, "web_name", None) or ()
    local = is_loopback(web_ui.host)
    # Behind a login, a page under a foreign name has no session, whatever address its name resolves to.
    guard = OwnOrigin(
        app.wsgi_app,
        names,
        check_names=local or bool(names) or not web_ui.web_login,
        private_names=not local and not names,
        is_page=pages_for_links(app),
    )
    WSGIServer.handler_class = LineHandler  # Locust makes its server itself
    app.wsgi_app = guard  # type: ignore[method-assign, assignment]
    if app.config.get("SESSION_COOKIE_SAMESITE") is None:
        app.config["SESSION_COOKIE_SAMESITE"] = "Lax"
    if not local and not web_ui.web_login:
        logger.warning(
            "the web UI listens on %s without --web-login: anyone who reaches it can start load and read the "
            "results; give --web-host 127.0.0.1 or --web-login",
            web_ui.host or "all interfaces",
        )


def _note(environment: Environment, reports: Reports) -> None:
    info = run_info(environment)
    if info is not None:
        reports.add(ListedRun(info["id"], Path(info["path"]).resolve(), info["host"], info["model"] or ""))


def _running(environment: Environment, store: LiveStore) -> Path | None:
    info = run_info(environment)
    goes_on = info is not None and info["id"] == store.run.id and store.content.stopped_s is None
    return Path(info["path"]) if info is not None and goes_on else None


def _memory_mib(environment: Environment) -> float | None:
    """Resident memory of the largest process that makes load."""
    runner = environment.runner
    if isinstance(runner, MasterRunner):
        return max((c.memory_usage / _MIB for c in runner.clients.all if c.memory_usage), default=None)
    return float(psutil.Process().memory_info().rss / _MIB)
