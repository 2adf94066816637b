"""One API call from a prepared body to its record: send, wait, decode, classify."""

import secrets as random_secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

import gevent

from llm_locust.client.clock import ClockPair, read_clocks
from llm_locust.client.connection import Connection, Timeouts
from llm_locust.client.decoder import BodyDecoder
from llm_locust.client.errors import ClientError, ConnectionBrokenError
from llm_locust.client.exchange import Exchange
from llm_locust.client.outcome import error_text, judge
from llm_locust.client.pool import Pool
from llm_locust.client.timing import arrivals, read_times
from llm_locust.record import RequestRecord, TokenSource
from llm_locust.wire.reply import Endpoint, Reply

#: Response headers that name the replica, asked in this order after the user's own.
REPLICA_HEADERS = (
    "x-served-by",
    "x-upstream",
    "x-backend-server",
    "x-litellm-model-api-base",
    "x-envoy-upstream-host",
    "x-inference-pod",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What the caller knows of a request before it is sent; it goes into the record as it is."""

    request_id: str
    name: str
    scheduled_ns: int
    endpoint: Endpoint | None = Endpoint.CHAT  # None: not a generation; only its status is judged
    slo_class: str = ""
    model: str = ""
    streamed: bool = True
    user: int | None = None
    asked_input_tokens: int | None = None
    asked_output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished call: its record, and what the server said."""

    record: RequestRecord
    reply: Reply


class _PatienceError(BaseException):
    """The time of :meth:`LiveCall.wait_end` is over."""


class LlmClient:
    """Measured calls of an OpenAI-compatible API over a pool of connections.

    Args:
        headers: sent with every request, authorization among them.
        sink: gets the answer of every call, cancelled ones included, once.
        secrets: texts that are blanked out of every error text that a server sends back.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        sink: Callable[[Answer], None],
        headers: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
        replica_headers: Sequence[str] = (),
        secrets: Sequence[str] = (),
    ) -> None:
        self.pool = pool
        self.timeouts = timeouts or Timeouts()
        self.sink = sink
        self.replica_headers = tuple(h.lower().encode() for h in (*replica_headers, *REPLICA_HEADERS))
        self.secrets = tuple(s for s in secrets if s)
        self._fixed_head = _fixed_head(pool.target.authority, headers or {})
        self._base = pool.target.base.encode()
        self._id_prefix = random_secrets.token_hex(6)
        self._ids = count()
        self.in_flight = 0  # calls begun and not concluded

    def new_request_id(self) -> str:
        """An id that no other request has, of this process or another."""
        return f"{self._id_prefix}-{next(self._ids):08x}"

    def post(self, path: str, body: bytes, call: Call) -> Answer:
        """Send one request and wait for its end, whatever that is.

        What the network or the server does is told by the record, never raised. An exception thrown
        into the calling greenlet (the run's end kills its users) passes through; the call is then
        recorded as cancelled.
        """
        live = LiveCall(self, self.request(path, body, call.request_id), call)
        try:
            live.run_to_end()
        except BaseException:
            live.conclude(cancelled=True)
            raise
        return live.conclude()

    def request(self, path: str, body: bytes, request_id: str) -> bytes:
        """The bytes of a POST to a path below the API's base."""
        return b"POST %b%b HTTP/1.1\r\n%bX-Request-Id: %b\r\nContent-Length: %d\r\n\r\n%b" % (
            self._base,
            path.encode(),
            self._fixed_head,
            request_id.encode(),
            len(body),
            body,
        )


class LiveCall:
    """One call under way. Ends with exactly one :meth:`conclude`.

    A pooled connection that turns out to be stale (it breaks before any byte of a response came) is
    replaced once, by a new one.

    Args:
        timeouts: bounds of this call; the client's where none are given.
    """

    __slots__ = (
        "_call",
        "_client",
        "_connected",
        "_connection",
        "_decoder",
        "_error",
        "_exchange",
        "_request",
        "_retries",
        "_reused",
        "_started",
        "_timeouts",
    )

    def __init__(
        self, client: LlmClient, request: bytes, call: Call, timeouts: Timeouts | None = None
    ) -> None:
        client.in_flight += 1
        self._client = client
        self._call = call
        self._request = request
        self._timeouts = timeouts or client.timeouts
        self._started = read_clocks()
        self._connected: ClockPair | None = None
        self._reused = False
        self._retries = 0
        self._connection: Connection | None = None
        self._exchange = Exchange()
        self._decoder = BodyDecoder(self._exchange, call.endpoint, streamed=call.streamed)
        self._error: ClientError | None = None

    # -- under way ------------------------------------------------------------------------

    def run_to_end(self) -> None:
        """Send, and wait until the response is whole or the call has failed; decode nothing yet."""
        with suppress(ClientError):
            self._perform(Connection.wait_complete)

    def open(self, *, keep_body: bool = False) -> None:
        """Send, and wait for the response's headers (raises ClientError).

        Args:
            keep_body: keep the body's bytes for :meth:`read`.
        """
        self._decoder.tapped = keep_body
        self._perform(self._until_headers)

    def read(self) -> bytes:
        """The body's bytes that have come since the last read; waits for some; empty at the end.

        For a call that was opened with :meth:`open` (raises ClientError).
        """
        connection, tap = self._connection, self._decoder.tap
        assert connection is not None
        try:
            connection.wait_progress(self._readable)
        except ClientError as e:
            self._error = e
            if not self._readable():
                raise
        self._exchange.drain()
        body = b"".join(tap)
        tap.clear()
        return body

    def wait_end(self, patience_s: float) -> None:
        """Wait at most this long for the response's last byte; not at all in the event loop itself."""
        if self._connection is None or gevent.getcurrent() is gevent.get_hub():
            return
        with gevent.Timeout(patience_s, _PatienceError), suppress(ClientError, _PatienceError):
            self._connection.wait_complete()

    @property
    def answered(self) -> bool:
        """The answer is whole, though the response's last byte may still be on its way."""
        return self._decoder.answered

    @property
    def ended(self) -> bool:
        """The response is complete, or will never be."""
        return self._exchange.complete or self._error is not None

    @property
    def status(self) -> int:
        assert self._exchange.status is not None
        return self._exchange.status

    @property
    def headers(self) -> dict[bytes, bytes]:
        return self._exchange.headers

    def _perform(self, until: Callable[[Connection], None]) -> None:
        """Send, and wait ``until`` the connection has what is wanted."""
        pool = self._client.pool
        try:
            connection = pool.acquire()
            self._reused = connection.used
            try:
                self._send(connection)
                until(connection)
            except ConnectionBrokenError:
                if not self._reused or self._exchange.read_count:
                    raise
                connection.finish()
                self._retries, self._reused = 1, False
                connection = pool.open()
                self._send(connection)
                until(connection)
        except ClientError as e:
            self._error = e
            raise

    def _send(self, connection: Connection) -> None:
        self._connection = connection
        self._connected = self._started if self._reused else read_clocks()
        connection.send(self._request, self._exchange, self._timeouts, self._decoder.last_event_ns)

    def _until_headers(self, connection: Connection) -> None:
        connection.wait_progress(lambda: self._exchange.headers_at is not None)

    def _readable(self) -> bool:
        return self._exchange.pieces > 0 or bool(self._decoder.tap)

    # -- the end --------------------------------------------------------------------------

    def conclude(self, *, cancelled: bool = False) -> Answer:
        """Hand the connection back, decode what is left, make the record, give it to the sink."""
        ended = read_clocks()
        client, connection, sent, rtt_ns = self._client, self._connection, None, None
        client.in_flight -= 1
        if connection is not None:
            sent, rtt_ns = connection.sent, connection.rtt_ns()
            if connection.finish():
                client.pool.release(connection)
        reply = self._decoder.finish()
        self._exchange.release()
        answer = Answer(self._record(reply, sent, ended, rtt_ns, cancelled), reply)
        client.sink(answer)
        return answer

    def _record(
        self, reply: Reply, sent: ClockPair | None, ended: ClockPair, rtt_ns: int | None, cancelled: bool
    ) -> RequestRecord:
        call, exchange, started = self._call, self._exchange, self._started
        outcome, error = judge(exchange, self._error, reply, self._decoder, cancelled=cancelled)
        times = read_times(exchange, started, ended)
        came = arrivals(reply.token_ends, exchange.read_ends(), times.at_ns)
        sent_ns = None if sent is None else times.place(sent)
        after_sent = came.at_ns - (sent_ns or 0)
        usage = reply.usage
        counted = usage.output_tokens if usage is not None else None
        return RequestRecord(
            request_id=call.request_id,
            name=call.name,
            outcome=outcome,
            scheduled_ns=call.scheduled_ns,
            started_ns=started.realtime_ns,
            ended_ns=times.end_ns(exchange, ended),
            connected_ns=None if self._connected is None else times.place(self._connected),
            sent_ns=sent_ns,
            headers_ns=None if exchange.headers_at is None else int(times.at_ns[exchange.headers_at]),
            arrivals_ns=after_sent,
            first_answer_ns=None if reply.first_answer is None else int(after_sent[reply.first_answer]),
            slo_class=call.slo_class,
            endpoint="other" if call.endpoint is None else call.endpoint.value,
            model=call.model or reply.model or "",
            streamed=call.streamed,
            user=call.user,
            status=exchange.status,
            error=error_text(error, self._client.secrets),
            finish_reason=reply.finish_reason,
            input_tokens=usage.input_tokens if usage is not None else None,
            cached_tokens=usage.cached_tokens if usage is not None else None,
            output_tokens=len(after_sent) if counted is None else counted,
            reasoning_tokens=usage.reasoning_tokens if usage is not None else None,
            token_source=TokenSource.EVENTS if counted is None else TokenSource.USAGE,
            asked_input_tokens=call.asked_input_tokens,
            asked_output_tokens=call.asked_output_tokens,
            output_chars=reply.output_chars if len(after_sent) else None,
            replica=self._replica(),
            peer=None if self._connection is None else self._connection.peer,
            reused=self._reused,
            retries=self._retries,
            kernel_stamps=times.kernel,
            client_lag_ns=times.client_lag_ns,
            clock_step_ns=times.clock_step_ns,
            rtt_ns=rtt_ns,
            reads=exchange.read_count,
            coalesced_reads=came.coalesced,
            bytes_received=exchange.bytes_received,
        )

    def _replica(self) -> str | None:
        headers = self._exchange.headers
        for name in self._client.replica_headers:
            if name in headers:
                return headers[name].decode("latin-1")
        return None


def _fixed_head(authority: str, headers: Mapping[str, str]) -> bytes:
    """The header lines that every request shares. The user's own replace ours of the same name."""
    lines = {
        "host": ("Host", authority),
        "user-agent": ("User-Agent", "llm-locust"),
        "accept": ("Accept", "text/event-stream, application/json"),
        "accept-encoding": ("Accept-Encoding", "identity"),
        "content-type": ("Content-Type", "application/json"),
    }
    for name, value in headers.items():
        if set("\r\n\0") & set(name + value):
            raise ValueError(f"header {name!r} holds a line break or a null character")
        lines[name.lower()] = (name, value)
    return "".join(f"{name}: {value}\r\n" for name, value in lines.values()).encode("latin-1")
