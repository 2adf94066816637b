"""Transport for a real ``openai.OpenAI``: the SDK makes the requests, this package takes the time stamps.

The SDK's HTTP layer (httpx2) uses :class:`MeasuredTransport`. Each request is one
:class:`~llm_locust.client.call.LiveCall`, whose bytes are passed on as they arrive.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import gevent
import httpx2
import msgspec

from llm_locust.client.call import LiveCall, LlmClient
from llm_locust.client.http.errors import ClientError, ConnectError, RequestTimeoutError
from llm_locust.client.http.timers import DECODE_BUDGET
from llm_locust.client.recording import Call
from llm_locust.client.routes import Heads
from llm_locust.wire.chat_form import ImageCount, images_in
from llm_locust.wire.dialects import DIALECTS
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.payload import DECODE_ERRORS, AskedResults

#: A consumer stops at ``[DONE]``; the chunk that ends the body arrives at the same time. Waiting this long
#: for it saves the connection.
_END_PATIENCE_S = 0.25

#: Bytes that the SDK decodes at a time. Other greenlets run in between once it has taken its share of a turn.
_PIECE_BYTES = 8 << 10

_PATHS = {dialect.path: dialect for dialect in DIALECTS.values()}

#: Set here, whatever the SDK sets: the body's framing and the refusal of compression.
_OWN_HEADERS = frozenset(
    {b"host", b"content-length", b"transfer-encoding", b"accept-encoding", b"connection"}
)


class RequestFields(msgspec.Struct):
    """Fields of a request's body that a record needs."""

    model: str = ""
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None


NewCall = Callable[[str, Dialect | None, RequestFields], Call]


class MeasuredTransport(httpx2.BaseTransport):
    """An httpx2 transport over a measured client.

    Requests are written for the client's first target; each goes to the next target in turn.

    Args:
        new_call: creates the call's description from request id, endpoint (None for paths that no dialect
            has, such as ``/models``) and body fields.
        heads: their templates are filled for each request; a header set in the request itself is kept.
    """

    def __init__(self, client: LlmClient, new_call: NewCall, heads: Heads | None = None) -> None:
        self._client = client
        self._new_call = new_call
        self._heads = heads

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        target = self._client.pool.target
        if (request.url.scheme, request.url.netloc.decode()) != (target.scheme, target.authority):
            raise httpx2.UnsupportedProtocol(
                f"this transport is for {target.url} only, not for {request.url}", request=request
            )
        body = request.read()
        own_id = request.headers.get("x-request-id")
        endpoint = self._endpoint(request)
        call = self._new_call(own_id or self._client.new_request_id(), endpoint, _fields(body))
        shown = _images(body)
        call = replace(
            call, asked=_asked(endpoint, body), images=shown and shown.images, pixels=shown and shown.pixels
        )
        routes = self._client.routes
        route = routes.choose(call)
        if self._heads is not None:
            for name, value in self._client.filled(self._heads[route.place], call).items():
                request.headers.setdefault(name, value)
        path = route.moved(request.url.raw_path, routes.first)
        head = _head(request, path, call.request_id, len(body), route.pool.target.authority)
        bounds = self._client.timeouts.within(request.extensions.get("timeout", {}).get("read"))
        live = LiveCall(self._client, route, head + body, call, bounds)
        try:
            live.open(keep_body=True)
        except ClientError as e:
            if live.cut:
                raise gevent.GreenletExit from e
            live.conclude()
            raise _as_httpx(e, request) from e
        except BaseException:
            live.conclude(cancelled=True)
            raise
        stream = MeasuredStream(live, request)
        # Without content-encoding the SDK does not unpack an error's body, which no limit would bound.
        headers = [
            (name, line)
            for name, value in live.headers.items()
            if name != b"content-encoding"
            for line in value.split(b"\n")
        ]
        return httpx2.Response(live.status, headers=headers, stream=stream, request=request)

    def _endpoint(self, request: httpx2.Request) -> Dialect | None:
        if request.method != "POST":
            return None
        path = request.url.path.removeprefix(self._client.pool.target.base)
        return _PATHS.get(path.rstrip("/"))


class MeasuredStream(httpx2.SyncByteStream):
    """Body of one response, piece by piece as it arrives. Closing it early cancels the call."""

    def __init__(self, live: LiveCall, request: httpx2.Request) -> None:
        self._live = live
        self._request = request
        self._concluded = False

    def __iter__(self) -> Iterator[bytes]:
        try:
            while body := self._live.read():
                for at in range(0, len(body), _PIECE_BYTES):
                    DECODE_BUDGET.wait()
                    self._live.check_time()  # which what is still to be passed on does not extend
                    began_s = time.monotonic()
                    yield body[at : at + _PIECE_BYTES]
                    DECODE_BUDGET.spend(time.monotonic() - began_s)
        except ClientError as e:
            if self._live.cut:
                raise gevent.GreenletExit from e
            raise _as_httpx(e, self._request) from e
        finally:
            self.close()

    def close(self) -> None:
        """End the call: complete, failed, or left by its reader, which makes it cancelled."""
        try:
            if not self._concluded and self._live.answered and not self._live.ended:
                self._live.wait_end(_END_PATIENCE_S)
            if not self._concluded and self._live.ended:
                self._live.settle()
        finally:
            self._conclude()

    def __del__(self) -> None:
        """Close a response that was neither read nor closed: its request was sent and has a record."""
        self._conclude()

    def _conclude(self) -> None:
        if not self._concluded:
            self._concluded = True
            self._live.conclude(cancelled=not self._live.ended)


def _fields(body: bytes) -> RequestFields:
    try:
        return msgspec.json.decode(body, type=RequestFields) if body else RequestFields()
    except DECODE_ERRORS:
        return RequestFields()


def _asked(endpoint: Dialect | None, body: bytes) -> AskedResults | None:
    """The results that a body asks for; None of an API that generates, and where it cannot be told."""
    if endpoint is None or endpoint.asked is None:
        return None
    with suppress(*DECODE_ERRORS):
        return endpoint.asked(msgspec.json.decode(body, type=dict[str, Any]))
    return None


def _images(body: bytes) -> ImageCount | None:
    """The images of a body's messages. One without the word is not decoded."""
    if b'"image' not in body and b'"input_image' not in body:
        return None
    with suppress(*DECODE_ERRORS):
        fields = msgspec.json.decode(body, type=dict[str, Any])
        messages = fields.get("messages") or fields.get("input")
        return images_in(messages if isinstance(messages, list) else ())
    return None


def _head(request: httpx2.Request, path: bytes, request_id: str, length: int, authority: str) -> bytes:
    lines = [b"%b %b HTTP/1.1" % (request.method.encode(), path), b"Host: " + authority.encode()]
    lines += [
        b"%b: %b" % (name, value)
        for name, value in request.headers.raw
        if name.lower() not in _OWN_HEADERS and name.lower() != b"x-request-id"
    ]
    lines += [b"Accept-Encoding: identity", b"X-Request-Id: " + request_id.encode()]
    lines.append(b"Content-Length: %d" % length)
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _as_httpx(error: ClientError, request: httpx2.Request) -> httpx2.TransportError:
    """The same failure as an exception of the SDK's HTTP layer."""
    if isinstance(error, RequestTimeoutError):
        return httpx2.ReadTimeout(str(error), request=request)
    if isinstance(error, ConnectError):
        return httpx2.ConnectError(str(error), request=request)
    return httpx2.RemoteProtocolError(str(error), request=request)
