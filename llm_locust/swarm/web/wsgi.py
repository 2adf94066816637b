"""WSGI servers of this process: none answers pages of another origin. ``/metrics`` may have one of its own.

A browser names the origin of the page in ``Sec-Fetch-Site`` or ``Origin``, which no page can forge. A program
such as ``curl`` sends neither, and is allowed: it is not a browser that another page could misuse.
"""

import functools
import logging
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from http.client import HTTPException
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from flask import Flask
from gevent.pywsgi import WSGIHandler, WSGIServer
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from llm_locust.live.prometheus import registry
from llm_locust.live.store import LiveStore
from llm_locust.options.settings import UsageError
from llm_locust.swarm.channel.messages import printable
from llm_locust.swarm.process.event_loop import Fresh, RateLimiter, off_the_hub

logger = logging.getLogger(__name__)

# --- Pages of the web UI that a link of another site may open


#: Paths, below Locust's page, that only read.
_OPENED = r"/?|/login|/stats/report|/llm/charts|/llm/reports(/[^/]+(/so-far)?/[^/]+)?"

#: Key of Flask's configuration: further such paths, those of pages that a locustfile adds.
LINKED = "LLM_LOCUST_LINKED"


def pages_for_links(app: Flask) -> Callable[[str], bool]:
    """Whether a path is that of a page that only reads: a link of another site may open it."""
    pattern = re.compile(re.escape(app.blueprints["locust"].url_prefix or "") + f"(?:{_OPENED})")
    return lambda path: pattern.fullmatch(path) is not None or path in app.config.get(LINKED, ())


StartResponse = Callable[..., Any]
Application = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]

#: Headers of every answer that does not set them.
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Content-Security-Policy": "frame-ancestors 'self'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
}

#: Suffixes that cannot be registered in public DNS (RFC 6761, RFC 6762, RFC 8375; ICANN reserved ``internal``
#: in 2024; ``svc`` is not a top-level domain, and is Kubernetes' short form).
_PRIVATE_ENDS = (".local", ".internal", ".home.arpa", ".svc", ".test")
_SINGLE_LABEL = re.compile(r"(?!0x)[a-z0-9_-]*[a-z][a-z0-9_-]*")

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")

#: Routes that change something, and that Locust 2.43 to 2.46 has by GET.
_CHANGED_BY_GET = ("/stop", "/stats/reset")


class LineHandler(WSGIHandler):
    """Says in a line what is wrong with a request; gevent prints a traceback for too many header fields."""

    def read_request(self, raw_requestline: str) -> Any:
        try:
            return super().read_request(raw_requestline)
        except HTTPException as e:
            raise ValueError(str(e)) from e


class OwnOrigin:
    """WSGI application that answers only its own pages, and programs; everything else gets 403.

    No answer has a CORS header, and none can be shown in a frame of another origin.

    Args:
        application: answers the allowed requests.
        names: host names under which this server is reached, in addition to addresses and ``localhost``.
        check_names: refuse every other host name. A page has one if it was served from a name that then
            became this server's address (DNS rebinding).
        private_names: also allow names that no stranger's page can have: that of this machine, and those that
            cannot be registered in public DNS.
        is_page: whether the page of a path may be opened by a link of another site. It only reads.
    """

    def __init__(
        self,
        application: Application,
        names: Sequence[str] = (),
        *,
        check_names: bool,
        private_names: bool = False,
        is_page: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._application = application
        self._names = frozenset(name.lower().rstrip(".") for name in names)
        self._check_names = check_names
        self._private_names = private_names
        self._is_page = is_page
        self._log_limit = RateLimiter()

    def __call__(self, environ: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
        reason = self.refusal(environ)
        if reason is None:
            return self._application(environ, _closed(start))
        body = f"{reason}\n".encode()
        status = HTTPStatus.FORBIDDEN
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
        _closed(start)(f"{status.value} {status.phrase}", headers)
        return [body]

    def refusal(self, environ: Mapping[str, Any]) -> str | None:
        """Why a request is refused; None if it is allowed."""
        host = str(environ.get("HTTP_HOST", "")).lower()
        if self._check_names and host and not self._is_own_name(_name(host)):
            if self._log_limit.ready():
                logger.warning(
                    "a request for the host name %r was refused: if it is this server's, as behind a proxy "
                    "or an ingress, give it by --web-name",
                    printable(_name(host)),
                )
            return "This host name is not one of this server's: give it, or an ingress's, by --web-name NAME."
        if self._is_foreign(environ, host):
            return "Requests from pages of another origin are refused."
        return None

    def _is_own_name(self, name: str) -> bool:
        if name in self._names or name == "localhost" or name.endswith(".localhost") or _is_address(name):
            return True
        return self._private_names and _is_private(name)

    def _is_foreign(self, environ: Mapping[str, Any], host: str) -> bool:
        site = environ.get("HTTP_SEC_FETCH_SITE")
        path = str(environ.get("PATH_INFO", ""))
        if site is not None:
            opens = _follows_a_link(environ) and self._is_page(path)
            return site not in ("same-origin", "none") and not opens
        origin = environ.get("HTTP_ORIGIN")
        if origin is None:
            return path.endswith(_CHANGED_BY_GET) and _is_unknown_page_of_browser(environ, host)
        own = _authority(str(origin))
        return own is None or not (own == host or _name(own) in self._names)


def is_loopback(host: str) -> bool:
    """Whether a server that listens on ``host`` can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _follows_a_link(environ: Mapping[str, Any]) -> bool:
    """Whether the browser opens a page of this server in a tab: the other page cannot read it."""
    return (
        environ.get("REQUEST_METHOD") in _SAFE_METHODS
        and environ.get("HTTP_SEC_FETCH_MODE") == "navigate"
        and environ.get("HTTP_SEC_FETCH_DEST") == "document"
    )


def _is_unknown_page_of_browser(environ: Mapping[str, Any], host: str) -> bool:
    """Whether a browser sent this for a page that is not known to be this server's.

    Without TLS, and beyond loopback, browsers send no ``Sec-Fetch-Site``, and with a GET no ``Origin``.
    """
    is_browser = str(environ.get("HTTP_USER_AGENT", "")).startswith("Mozilla/")
    return is_browser and _authority(str(environ.get("HTTP_REFERER", ""))) != host


def _authority(origin: str) -> str | None:
    """Host and port of an ``Origin``; None if it is opaque (``null``) or malformed."""
    try:
        url = urlsplit(origin)
        return url.netloc.lower() if url.scheme in ("http", "https") and url.hostname else None
    except ValueError:
        return None


def _name(authority: str) -> str:
    """Host without its port, brackets and trailing dot."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0].rstrip(".")


def _is_private(name: str) -> bool:
    """Whether no stranger's page can have this name: not registered in public DNS, or this machine's own."""
    if name.endswith(_PRIVATE_ENDS) or _SINGLE_LABEL.fullmatch(name):
        return True
    return name in _names_of_machine()


@functools.cache
def _names_of_machine() -> frozenset[str]:
    """Names of this machine. Looked up once, and only if nothing else matches: it may query DNS."""
    return frozenset(name.lower().rstrip(".") for name in (socket.gethostname(), socket.getfqdn()))


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _closed(start: StartResponse) -> StartResponse:
    """``start_response`` that drops CORS headers and adds :data:`_HEADERS`."""

    def start_closed(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
        kept = [(k, v) for k, v in headers if not k.lower().startswith("access-control-")]
        own = {k.lower() for k, _ in kept}
        return start(status, kept + [(k, v) for k, v in _HEADERS.items() if k.lower() not in own], *exc_info)

    return start_closed


# --- Live numbers for Prometheus, on the web UI's port or on a separate one


def fresh_text(store: LiveStore) -> Fresh[bytes]:
    """Exposition text, made off the event loop: with many keys it takes some hundredths of a second."""
    return Fresh(lambda: off_the_hub(lambda still: generate_latest(registry(still)), store.at_rest()))


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

    def answer(environ: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/metrics":
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [b"there is only /metrics\n"]
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start("405 Method Not Allowed", [("Allow", "GET, HEAD")])
            return []
        start("200 OK", [("Content-Type", CONTENT_TYPE_LATEST)])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [text()]

    return OwnOrigin(
        answer,
        names,
        check_names=True,
        private_names=not is_loopback(host),
        is_page="/metrics".__eq__,
    )
