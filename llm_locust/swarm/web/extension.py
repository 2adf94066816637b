"""Extensions of Locust's web UI and of monitoring for a load test of a model."""

import errno
import logging
import socket
from pathlib import Path

import psutil
from gevent.pywsgi import WSGIServer
from locust.env import Environment
from locust.runners import MasterRunner
from locust.web import WebUI

from llm_locust.core.texts import parse_time
from llm_locust.live.store import LiveStore
from llm_locust.options.report import Keep
from llm_locust.options.settings import UsageError
from llm_locust.swarm.live import run_info
from llm_locust.swarm.process.event_loop import spawn_loop
from llm_locust.swarm.process.leaving import LOOPBACK, leave
from llm_locust.swarm.web.drift import DriftWatch
from llm_locust.swarm.web.form import Forms
from llm_locust.swarm.web.pages import Pages
from llm_locust.swarm.web.reports import KnownRun, Reports, summarise_forever
from llm_locust.swarm.web.wsgi import (
    LineHandler,
    OwnOrigin,
    is_loopback,
    pages_for_links,
    serve_metrics,
)

logger = logging.getLogger(__name__)

_MIB = 1 << 20


def extend(environment: Environment, store: LiveStore | None) -> None:
    """Add pages to the web UI, if there is one; watch for drifts; serve ``--metrics-port``; write the
    summaries of ``--rolling-summary``. Call it once, while the process starts.

    Args:
        store: None on a worker, which has nothing to show.

    Raises:
        SystemExit: the port cannot be listened on; one line was printed.
    """
    if store is None:
        return
    options = environment.parsed_options
    drift = DriftWatch(store, lambda: _memory_mib(environment))
    spawn_loop(drift.watch, "the watch on drift")
    reports = Reports()
    environment.events.test_start.add_listener(lambda **_: _note(environment, reports))
    if environment.web_ui is not None:
        _check_port(environment.web_ui)
        Pages(environment.web_ui, store, reports, drift)
        _protect(environment, environment.web_ui)
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


def _protect(environment: Environment, web_ui: WebUI) -> None:
    """Let only its own pages, and programs, use the web UI; let forms set only the allowed fields."""
    Forms(web_ui, environment)
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
        reports.add(KnownRun(info["id"], Path(info["path"]).resolve(), info["host"], info["model"] or ""))


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
