"""``/metrics``: live numbers for Prometheus, on the web UI's port or on a separate one."""

import logging
import socket
from collections.abc import Callable, Iterable, Sequence

from gevent.pywsgi import WSGIServer
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from llm_locust.live.prometheus import registry
from llm_locust.live.store import LiveStore
from llm_locust.options.settings import UsageError
from llm_locust.swarm.process.event_loop import off_the_hub
from llm_locust.swarm.web.numbers import Fresh, at_rest
from llm_locust.swarm.web.own_origin import LineHandler, OwnOrigin, is_loopback

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"

CONTENT_TYPE = CONTENT_TYPE_LATEST

StartResponse = Callable[[str, list[tuple[str, str]]], object]


def fresh_text(store: LiveStore) -> Fresh[bytes]:
    """Exposition text, made off the event loop: with many keys it takes some hundredths of a second."""
    return Fresh(lambda: off_the_hub(lambda still: generate_latest(registry(still)), at_rest(store)))


def serve_metrics(store: LiveStore, host: str, port: int, names: Sequence[str] = ()) -> WSGIServer:
    """Serve only ``/metrics``; port 0 chooses a free port, see :attr:`WSGIServer.server_port`.

    Args:
        names: host names that are allowed besides addresses and, beyond loopback, those that no stranger's
            page can have.

    Raises:
        UsageError: the address cannot be listened on.
    """
    if not 0 <= port <= 65535:
        raise UsageError(
            f"--metrics-port: {port} is not a port; write one from 1 to 65535, or 0 for a free one"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as e:
        raise UsageError(f"--metrics-port: {host}:{port} cannot be listened on: {e.strerror or e}") from e
    application = metrics_application(fresh_text(store), host, names)
    server = WSGIServer(listener, application, log=None, error_log=logger, handler_class=LineHandler)
    server.start()
    logger.info("metrics for Prometheus at http://%s:%d/metrics", host, server.server_port)
    return server


def metrics_application(text: Callable[[], bytes], host: str, names: Sequence[str] = ()) -> OwnOrigin:
    """WSGI application of a server that listens on ``host``.

    Prometheus uses addresses, or names of a cluster's services: these are allowed beyond loopback, also with
    ``names``.
    """
    return OwnOrigin(
        _application(text),
        names,
        check_names=True,
        private_names=not is_loopback(host),
        is_page="/metrics".__eq__,
    )


def _application(text: Callable[[], bytes]) -> Callable[[dict[str, str], StartResponse], Iterable[bytes]]:
    def answer(environ: dict[str, str], start: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/metrics":
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [b"there is only /metrics\n"]
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start("405 Method Not Allowed", [("Allow", "GET, HEAD")])
            return []
        start("200 OK", [("Content-Type", CONTENT_TYPE)])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [text()]

    return answer
