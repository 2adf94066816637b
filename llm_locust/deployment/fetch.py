"""One GET with a hard time limit, whatever the other side does."""

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from llm_locust.deployment.endpoints import ScrapeTarget
from llm_locust.wire.names import clean_name

#: Longest page in bytes.
MOST_BYTES = 8 * 1024 * 1024
_BLOCK = 65_536


class FetchError(OSError):
    """No complete page; the text says why."""


@dataclass(frozen=True, slots=True)
class Page:
    text: str
    seconds: float


def fetch(
    target: ScrapeTarget,
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Page:
    """Fetch the page of ``target``.

    A socket's timeout limits only one read. So the connection is cut after the time limit, even if a slow
    server keeps sending.

    Raises:
        FetchError: refused, broken, late, too long, or another status than 200.
    """
    began, line = time.monotonic(), _CuttableSocket()
    cut = threading.Timer(timeout_s, line.cut)
    cut.daemon = True
    cut.start()
    try:
        body = line.get(target, timeout_s, headers or {}, tls)
        if line.late:
            raise FetchError(f"no whole page within {timeout_s:g} s")
    except (OSError, http.client.HTTPException, ValueError) as e:
        if line.late or isinstance(e, TimeoutError):
            raise FetchError(f"no whole page within {timeout_s:g} s") from e
        raise e if isinstance(e, FetchError) else FetchError(_reason(e)) from e
    finally:
        cut.cancel()
        line.close()
    return Page(body.decode("utf-8", "replace"), time.monotonic() - began)


class _CuttableSocket:
    """A socket that another thread may cut."""

    def __init__(self) -> None:
        self.late = False
        self._sock: socket.socket | None = None
        self._response: http.client.HTTPResponse | None = None

    def cut(self) -> None:
        self.late = True
        if self._sock is not None:
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._response is not None:  # it holds the socket too
            self._response.close()
        if self._sock is not None:
            self._sock.close()

    def get(
        self, target: ScrapeTarget, timeout_s: float, headers: Mapping[str, str], tls: ssl.SSLContext | None
    ) -> bytes:
        self._sock = socket.create_connection((target.address, target.port), timeout_s)
        if target.scheme == "https":
            context = tls or ssl.create_default_context()
            self._sock = context.wrap_socket(
                self._sock, server_hostname=target.host, do_handshake_on_connect=False
            )
            self._sock.do_handshake()
        connection = http.client.HTTPConnection(target.host, target.port)
        connection.sock = self._sock
        asked = {"Accept": "text/plain; version=0.0.4", "Connection": "close", **headers}
        connection.request("GET", target.path, headers=asked)
        response = self._response = connection.getresponse()
        if response.status != http.client.OK:
            raise FetchError(f"it answered {response.status}")
        return self._body(response)

    def _body(self, response: http.client.HTTPResponse) -> bytes:
        blocks, size = [], 0
        while not self.late and (block := response.read1(_BLOCK)):
            blocks.append(block)
            size += len(block)
            if size > MOST_BYTES:
                raise FetchError(f"the page has over {MOST_BYTES:,} bytes")
        if response.length:
            raise FetchError(f"the page ended {response.length:,} bytes early")
        return b"".join(blocks)


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return clean_name(" ".join(text.split()))
