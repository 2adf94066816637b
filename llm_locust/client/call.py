"""One API call from a prepared body to its record: send, wait, decode, classify."""

import re
import secrets as random_secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Protocol

import gevent
from gevent.lock import BoundedSemaphore

from llm_locust.client.decoder import BodyDecoder
from llm_locust.client.http.clock import ClockPair, read_clocks
from llm_locust.client.http.connection import Connection
from llm_locust.client.http.errors import (
    AnswerOverError,
    ClientError,
    ConnectionBrokenError,
    RequestTimeoutError,
)
from llm_locust.client.http.exchange import MAX_ANSWER_BYTES, Exchange
from llm_locust.client.http.pool import Pool
from llm_locust.client.http.target import Target
from llm_locust.client.http.timers import DECODE_BUDGET, DECODING_S, LONG_ANSWER_BYTES, OneTimer, Timeouts
from llm_locust.client.outcome import Asked, error_text, is_left_open, judge, redacted, retry_after_s
from llm_locust.client.pending import PendingAnswers
from llm_locust.client.recording import (
    MAX_LOOP_CHARS,
    Answer,
    Call,
    CountTokens,
    Moments,
    Names,
    ReplicaNames,
    count_here,
    count_in_thread,
    first_try_of,
    record_of,
    timeline,
)
from llm_locust.client.routes import Head, Heads, Route, Routes, call_fields, make_head
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.wire.draft import Reply
from llm_locust.wire.ends import AnswerEnd
from llm_locust.wire.headers import header_lines

__all__ = ["LiveCall", "LlmClient", "Trace"]


# --- User who leaves when the first token takes too long


class Patience:
    """Closes a connection whose answer has no token ``limit_s`` after its request was sent.

    A token that is in the socket by then, unread because this process was busy, counts as in time.

    Args:
        has_token: returns whether a token event, including reasoning, was read.
    """

    __slots__ = ("_alarm", "_connection", "_has_token", "_limit_s", "lost")

    def __init__(self, limit_s: float, has_token: Callable[[], bool]) -> None:
        self.lost = False  # whether the user has left
        self._limit_s = limit_s
        self._has_token = has_token
        self._connection: Connection | None = None
        self._alarm = OneTimer()

    def watch(self, connection: Connection) -> None:
        """Start, just before the request is sent on ``connection``; a second call replaces the first."""
        self._connection = connection
        self._alarm.arm(self._limit_s, self._on_timer)

    def stop(self) -> None:
        """Stop at the end of the call."""
        self._connection = None
        self._alarm.disarm()

    def _on_timer(self) -> None:
        connection = self._connection
        assert connection is not None
        sent = connection.sent
        # The loop's clock may be behind: its timers count from the start of its turn.
        waited_s = 0.0 if sent is None else (time.monotonic_ns() - sent.monotonic_ns) * 1e-9
        if waited_s < self._limit_s:
            self._alarm.arm(self._limit_s - waited_s, self._on_timer)
            return
        self.stop()
        connection.poll()
        if not self._has_token() and not connection.closed:
            self.lost = True
            connection.close()


# --- Integral of the number of calls in flight, by an independent counter


class Occupancy:
    """Area under the number of calls in flight: an account of a run that does not use the records.

    A change costs one reading of the clock.

    Args:
        monotonic_ns: the clock.

    Attributes:
        level: number of calls in flight, without those that are whole and get their record soon.
    """

    __slots__ = ("_at_ns", "_monotonic_ns", "_total_ns", "level")

    def __init__(self, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._monotonic_ns = monotonic_ns
        self.level = self._total_ns = 0
        self._at_ns = monotonic_ns()

    def change(self, by: int) -> None:
        """Change the number of calls in flight."""
        now_ns = self._monotonic_ns()
        self._total_ns += self.level * (now_ns - self._at_ns)
        self.level, self._at_ns = self.level + by, now_ns

    @property
    def total_ns(self) -> int:
        """Sum of the times that calls have been in flight until now."""
        self.change(0)
        return self._total_ns


#: Bytes that are still decoded of an answer once a limit or its user has cut it, in some 50 ms. There are
#: more only where decoding is behind.
_MOST_BEHIND_BYTES = 1 << 20

#: The bound of an answer's length in a request's body. In a text of the body its quotes would be escaped.
_SENT_LIMIT = re.compile(rb'"max_(?:completion_|output_)?tokens"\s*:\s*([0-9]{1,9})\b')

#: Adds a call to a trace: returns its request with the trace header, and a function to call with its answer.
Trace = Callable[[Call, Target, bytes], tuple[bytes, Callable[[Answer], None]]]


class LlmClient:
    """Measured calls of an HTTP API over a pool of connections, or over those of several targets.

    Args:
        headers: sent with every request, including authorization; values may be templates, see
            :mod:`llm_locust.wire.headers`.
        worker: name of this process, for such templates.
        sink: called once with the answer of every call, including cancelled ones, and before that with the
            answer of its first try (``resent``), if a stale connection made it send again.
        secrets: texts that are blanked in every name and error text from a server.
        max_answer_bytes: most bytes of one answer, including framing; more makes it ``invalid``.
        admit: called before each call starts; an exception prevents the call.
        count_tokens: counts answers whose length the server does not report.
    """

    def __init__(
        self,
        pool: Pool | Routes,
        *,
        sink: Callable[[Answer], None],
        headers: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        replica_headers: Sequence[str] = (),
        secrets: Sequence[str] = (),
        worker: str = "",
        admit: Callable[[], None] = lambda: None,
        count_tokens: CountTokens | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.count_tokens = count_tokens
        self.trace = trace
        self.routes = pool if isinstance(pool, Routes) else Routes([pool])
        self.admit = admit
        self.timeouts = timeouts or Timeouts()
        self.max_answer_bytes = max_answer_bytes
        self.names = Names()
        self.sink = sink
        self.secrets = tuple(s for s in secrets if s)
        self.replicas = ReplicaNames(replica_headers, self.secrets)
        self.heads = self.make_heads(headers or {})
        self._worker = worker
        self._templated = count()  # number of requests with a template
        self._id_prefix = random_secrets.token_hex(6)
        self._ids = count()
        self.live: dict[LiveCall, None] = {}  # started and not concluded, in this order
        self.occupancy = Occupancy()
        self._pending = PendingAnswers()

    @property
    def pool(self) -> Pool:
        """Connections to the target; with several, to the first."""
        return self.routes.first.pool

    @property
    def in_flight(self) -> int:
        """Number of calls in flight."""
        return len(self.live)

    def silences(self) -> Iterator[tuple[Call, float]]:
        """The latest call in flight of each user, and for how many seconds nothing of it has come."""
        for live in {live.call.user: live for live in self.live}.values():
            if live.call.user is not None:
                yield live.call, live.silent_s

    @property
    def unanswered(self) -> int:
        """Number of calls in flight whose response is incomplete and may still be completed."""
        return sum(not live.ended for live in self.live)

    def abandon_calls(self) -> int:
        """Break off every call in flight, whoever waits for it; return how many are recorded as cancelled.

        Each ends when it is broken off, with the bytes received by then. This takes several turns of the
        loop, so that other greenlets run meanwhile.
        """
        under_way = list(self.live)
        DECODE_BUDGET.each(under_way, LiveCall.abandon)
        for live in list(self.live):  # started meanwhile
            live.abandon()
            under_way.append(live)
        return sum(live.cut for live in under_way)

    def new_request_id(self) -> str:
        """Return an id that no other request has, of this process or another."""
        return f"{self._id_prefix}-{next(self._ids):08x}"

    def make_heads(self, headers: Mapping[str, str]) -> Heads:
        """Make the header lines of requests with these headers, for :meth:`post` (raises HeaderError)."""
        return tuple(make_head(authority, headers) for authority in self.routes.authorities)

    def post(
        self,
        path: str,
        body: bytes,
        call: Call,
        heads: Heads | None = None,
        *,
        patience_s: float | None = None,
        recorded: Callable[[Answer], None] | None = None,
    ) -> Answer:
        """Send one request and wait for its end, whatever that is.

        Failures of the network or the server are in the record, never raised. An exception thrown into the
        calling greenlet (the run's end kills its users) passes through, and the call is recorded as
        cancelled. The same happens if :meth:`abandon_calls` breaks it off, which ends the caller by a
        ``GreenletExit``.

        Args:
            patience_s: time after ``sent`` at which a call without a first token is broken off; its record is
                ``cancelled`` and ``abandoned``.
            recorded: called with the answer once it has its record. That may be after the return, unless the
                returned answer is looked at: see :mod:`llm_locust.client.pending`.
        """
        route = self.routes.choose(call)
        request = self.request(route, path, body, call, heads)
        live = LiveCall(self, route, request, call, patience_s=patience_s)
        try:
            live.run_to_end()
            if recorded is not None and live.is_whole and self._pending.has_room:
                live.release()
                return self._pending.add(live, recorded)
            live.settle()
        except BaseException:
            live.abandon()
            raise
        if live.cut:
            raise gevent.GreenletExit
        answer = live.conclude()
        if recorded is not None:
            recorded(answer)
        return answer

    def request(self, route: Route, path: str, body: bytes, call: Call, heads: Heads | None = None) -> bytes:
        """Bytes of a POST to a path below the base of a target's API."""
        head = (heads or self.heads)[route.place]
        lines = head.fixed
        if head.templates:
            lines += header_lines(self.filled(head, call).items())
        return route.post(path, body, lines, call)

    def filled(self, head: Head, call: Call) -> dict[str, str]:
        """Fill the header templates of one request; increments the counter behind ``{seq}``."""
        if not head.templates:
            return {}
        fields = call_fields(call, worker=self._worker, seq=next(self._templated))
        return {template.name: template.value(fields) for template in head.templates}


class LiveCall:
    """One call in flight. The first :meth:`conclude` makes its record; later ones return the same.

    ``cut`` is set if :meth:`abandon` ended it while another greenlet waited for it.

    A pooled connection that turns out to be stale (the peer had closed it before the request arrived, see
    :attr:`Connection.stale`) is replaced once, by a new one. A request that may have been processed is not
    sent again: a server that crashes on it is a failure.

    Args:
        route: its destination.
        timeouts: time limits of this call; default: the client's.
        patience_s: see :meth:`LlmClient.post`.
    """

    __slots__ = (
        "_answer",
        "_client",
        "_connected",
        "_connection",
        "_counted",
        "_decoder",
        "_ended",
        "_error",
        "_exchange",
        "_patience",
        "_released",
        "_request",
        "_retries",
        "_reused",
        "_route",
        "_rtt_ns",
        "_sent",
        "_started",
        "_timeouts",
        "_traced",
        "call",
        "cut",
    )

    def __init__(
        self,
        client: LlmClient,
        route: Route,
        request: bytes,
        call: Call,
        timeouts: Timeouts | None = None,
        patience_s: float | None = None,
    ) -> None:
        client.admit()
        self._traced: Callable[[Answer], None] | None = None
        if client.trace is not None:
            request, self._traced = client.trace(call, route.pool.target, request)
        client.live[self] = None
        client.occupancy.change(1)
        client.routes.began(route)
        self._client = client
        self._route = route
        self._answer: Answer | None = None
        self.call = call
        self._request = request
        self._timeouts = timeouts or client.timeouts
        self._started = read_clocks()
        self._connected: ClockPair | None = None
        self._reused = False
        self._retries = 0
        self._connection: Connection | None = None
        self._exchange = Exchange(client.max_answer_bytes)
        self._decoder = decoder = BodyDecoder(self._exchange, call.endpoint, streamed=call.streamed)
        self._patience = None if patience_s is None else Patience(patience_s, lambda: decoder.has_token)
        self._error: ClientError | None = None
        self._ended: ClockPair | None = None
        self._counted: int | None = None
        self._released = False
        self._sent: ClockPair | None = None
        self._rtt_ns: int | None = None
        self.cut = False

    # -- in flight ------------------------------------------------------------------------

    def run_to_end(self) -> None:
        """Send, and wait until the response is complete or the call has failed; decode nothing yet."""
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
        """Return body bytes received since the last read, not always all; wait for some; empty at the end.

        For a call that was opened with :meth:`open` (raises ClientError).
        """
        connection = self._connection
        assert connection is not None
        try:
            connection.wait_progress(self._readable)
        except AnswerOverError as e:
            self._error = e.without_frames()
        except ClientError as e:
            self._error = e.without_frames()
            if not self._readable():
                raise
        while self._exchange.has_body:  # not all at once, which would hold the loop
            self._exchange.step()
            if self._decoder.tap:
                break
        return self._decoder.take()

    @property
    def silent_s(self) -> float:
        """Time since the last bytes from the server; before these since the request was sent."""
        connection = self._connection
        began = self._started if connection is None else connection.sent or self._started
        last_ns = None if connection is None else connection.last_read_ns
        return (time.monotonic_ns() - (last_ns or began.monotonic_ns)) * 1e-9

    def check_time(self) -> None:
        """Raise RequestTimeoutError if a limit of the call is exceeded, whatever of it is still unread."""
        failure = None if self._connection is None else self._connection.failure
        if isinstance(failure, RequestTimeoutError):
            self._error = failure.without_frames()
            raise self._error

    def wait_end(self, patience_s: float) -> None:
        """Wait at most this long for the response's last byte; do not wait in the event loop itself."""
        if self._connection is None or gevent.getcurrent() is gevent.get_hub():
            return
        with gevent.Timeout(patience_s, False), suppress(ClientError):  # type: ignore[arg-type]
            self._connection.wait_complete()
        if self._decoder.over and not self._exchange.complete and self._connection.failure is None:
            self._error = AnswerOverError("the answer is over")

    @property
    def answered(self) -> bool:
        """Whether the answer is complete, though the response's last byte may still be missing."""
        return self._decoder.answered

    @property
    def has_token(self) -> bool:
        """Whether a token has arrived."""
        return self._decoder.has_token

    @property
    def ended(self) -> bool:
        """Whether the response is complete, or will never be."""
        return self._exchange.complete or self._error is not None

    @property
    def status(self) -> int:
        assert self._exchange.status is not None
        return self._exchange.status

    @property
    def headers(self) -> dict[bytes, bytes]:
        return self._exchange.headers

    def _perform(self, until: Callable[[Connection], None]) -> None:
        """Send, and wait with ``until``."""
        pool = self._route.pool
        try:
            connection = pool.acquire()
            self._reused = connection.carried > 0
            try:
                self._send(connection)
                until(connection)
            except ConnectionBrokenError as e:
                if not connection.stale or self._exchange.read_count or self._answer or self._left:
                    raise
                self._record_first_try(connection, e)
                connection.finish()
                self._retries, self._reused = 1, False
                connection = pool.open()
                self._send(connection)
                until(connection)
        except ClientError as e:
            self._error = e.without_frames()
            raise

    def _send(self, connection: Connection) -> None:
        if self._answer is not None:  # abandoned while its connection was being opened
            connection.close()
            raise ConnectionBrokenError("the call was broken off before it was sent")
        self._connection = connection
        self._connected = self._started if self._reused else read_clocks()
        if self._patience is not None:
            self._patience.watch(connection)
        connection.send(self._request, self._exchange, self._timeouts, self._decoder.last_event_ns)

    def _record_first_try(self, connection: Connection, error: ConnectionBrokenError) -> None:
        client = self._client
        moments = Moments(
            started=self._started, connected=self._connected, sent=connection.sent, ended=read_clocks()
        )
        link = self._route.link(
            None, connection, reused=True, echo=self._route.echo(self.call, self._request)
        )
        why = error_text(str(error), client.secrets)
        answer = first_try_of(self.call, self._exchange, moments, why, link)
        client.sink(replace(answer, record=client.names.bounded(answer.record)))

    def _until_headers(self, connection: Connection) -> None:
        connection.wait_progress(lambda: self._exchange.headers_at is not None)

    def _readable(self) -> bool:
        return self._exchange.has_body or bool(self._decoder.tap)

    # -- end --------------------------------------------------------------------------------

    def settle(self) -> None:
        """Decode the rest in steps, and count a long text in a thread, so that :meth:`conclude` does not hold
        the loop. At the end of a long answer, wait until the loop has time."""
        if self._answer is not None or gevent.getcurrent() is gevent.get_hub():
            return
        self._end()
        if isinstance(self._error, RequestTimeoutError):  # a limit holds while decoding is behind, too
            self._exchange.forget(beyond=_MOST_BEHIND_BYTES)
        more = True
        while more:
            DECODE_BUDGET.wait()
            began_s = time.monotonic()
            more = self._exchange.step()
            DECODE_BUDGET.spend(time.monotonic() - began_s)
        if self._client.count_tokens is not None and self._exchange.bytes_received > MAX_LOOP_CHARS:
            self._counted = count_in_thread(self._decoder.finish(), self._client.count_tokens)
        if self._exchange.bytes_received > LONG_ANSWER_BYTES:
            DECODE_BUDGET.wait()
            DECODE_BUDGET.spend(DECODING_S)  # the following takes more than its share of a turn

    @property
    def is_whole(self) -> bool:
        """Whether the response is complete, short, and no refusal."""
        exchange = self._exchange
        whole = exchange.complete and exchange.status == 200 and self._answer is None
        return whole and exchange.bytes_received <= LONG_ANSWER_BYTES

    def release(self) -> None:
        """Return the connection to the pool, so that it can carry the next request."""
        self._end()
        if self._released:
            return
        self._released = True
        self._client.routes.ended(self._route)
        if self._patience is not None:
            self._patience.stop()
        if (connection := self._connection) is not None:
            is_free = connection.finish()
            self._sent, self._rtt_ns = connection.sent, connection.rtt_ns
            if is_free:
                self._route.pool.release(connection)

    def conclude(self, *, cancelled: bool = False) -> Answer:
        """Return the connection to the pool, decode the rest, make the record, pass it to the sink."""
        if self._answer is not None:
            return self._answer
        self.release()
        client, exchange, connection, left = self._client, self._exchange, self._connection, self._left
        client.live.pop(self, None)
        echo, given = self._route.take(self.call, self._request, exchange.headers)
        secrets = (*client.secrets, *given)
        if cancelled or self._error is not None:
            exchange.forget(beyond=_MOST_BEHIND_BYTES)  # it holds the loop
        reply = redacted(self._decoder.finish(), secrets)
        exchange.release()
        asked = self._asked(reply)
        failed, over = None if left else self._error, cancelled or left
        outcome, error = judge(exchange, failed, reply, self._decoder, cancelled=over, asked=asked)
        moments = Moments(
            started=self._started, connected=self._connected, sent=self._sent, ended=self._end()
        )
        named = client.replicas.read(exchange.headers, secrets)
        link = self._route.link(
            named, connection, reused=self._reused, retries=self._retries, rtt_ns=self._rtt_ns, echo=echo
        )
        record = record_of(
            self.call,
            exchange,
            reply,
            (outcome, error_text(error, secrets)),
            timeline(exchange, reply.token_ends, moments),
            link,
            asked,
        )
        record = self._marked(client.names.bounded(record), reply, left=left)
        self._answer = Answer(record, reply, retry_after_s(exchange))
        try:
            if self.call.check is not None:
                checked = self.call.check(self._answer)
                if checked.error is not record.error:  # a user's own check may quote the answer
                    checked = replace(checked, error=error_text(checked.error, secrets))
                self._answer = replace(self._answer, record=checked)
        finally:  # the call has a record even if the check fails
            client.sink(self._answer)
            if self._traced is not None:
                self._traced(self._answer)
        return self._answer

    def _marked(self, record: RequestRecord, reply: Reply, *, left: bool) -> RequestRecord:
        """The record with what only the call knows: its user left, or the server did not end the response."""
        if left and record.outcome is Outcome.CANCELLED:
            return replace(record, abandoned=True, error="the user left before the first token")
        return replace(record, left_open=True) if is_left_open(self._error, reply) else record

    def _asked(self, reply: Reply) -> Asked:
        """What the answer must have."""
        counted = count_here(reply, self._client.count_tokens) if self._counted is None else self._counted
        tokens = self.call.asked_output_tokens
        if tokens is not None and reply.end is AnswerEnd.LENGTH:
            # A body of the user's own may bound it more closely.
            tokens = min([tokens, *(int(sent) for sent in _SENT_LIMIT.findall(self._request))])
        return Asked(self.call.asked, tokens, counted)

    def _end(self) -> ClockPair:
        """End of the call: now, unless it was set before."""
        if self._ended is None:
            self._ended = read_clocks()
            self._client.occupancy.change(-1)
        return self._ended

    @property
    def _left(self) -> bool:
        """Whether the user's patience has run out."""
        return self._patience is not None and self._patience.lost

    def abandon(self) -> Answer:
        """Break the call off, whoever waits for it, and record it as cancelled unless it is complete."""
        if self._answer is not None:
            return self._answer
        if self._connection is not None and not self._released:
            self._connection.poll()  # what is in the socket has arrived
            if not self._exchange.complete:
                self._connection.close()
        answer = self.conclude(cancelled=True)
        self.cut = answer.record.outcome is Outcome.CANCELLED
        return answer


# --- Requests that the end of a load cuts


class Cancellable(Protocol):
    """The calls in flight of one process."""

    @property
    def unanswered(self) -> int: ...

    def abandon_calls(self) -> int: ...


class Canceller:
    """Cuts the calls in flight at the end of a load, and counts each once.

    A signal and the master may ask for the end at once, each in a greenlet of its own, and cutting takes
    several turns of the loop: one greenlet cuts, another waits for it.

    Attributes:
        count: requests cut so far; None before the end of the drain.
    """

    def __init__(self, calls: Cancellable) -> None:
        self.count: int | None = None
        self.calls = calls
        self._one = BoundedSemaphore()

    def end_drain(self) -> None:
        """Cut what the drain has left, once."""
        with self._one:
            if self.count is None:
                self.count = self.calls.abandon_calls() if self.calls.unanswered else 0

    def cut_rest(self) -> None:
        """Cut what is still in flight."""
        with self._one:
            self.count = (self.count or 0) + self.calls.abandon_calls()
