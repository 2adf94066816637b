"""Conversion of a finished call to a record, and what that has of the call: replica, times, tokens, names."""

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import gevent
import numpy as np
from numpy.typing import NDArray

from llm_locust.client.http.clock import ClockPair, clock_step_ns
from llm_locust.client.http.exchange import Exchange
from llm_locust.client.outcome import NOTHING_ASKED, Asked, Verdict, doubt_of
from llm_locust.core.manifest import MOST_HEADER_VALUES, MOST_REPLICA_HEADERS, HeaderFacts
from llm_locust.core.record import Outcome, RequestRecord, SessionHeaderEcho, TokenSource
from llm_locust.wire.dialects.chat import CHAT
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.draft import Draft, Reply
from llm_locust.wire.foreign_text import blanked_name, clean_name
from llm_locust.wire.payload import AskedResults

# --- Who answered: the replica that a response's headers name, and which of its headers tell replicas apart


#: Response headers that name the replica, in order of priority after the user's own.
REPLICA_HEADERS = (
    "x-served-by",
    "x-upstream",
    "x-backend-server",
    "x-litellm-model-api-base",
    "x-envoy-upstream-host",
    "x-inference-pod",
)

#: Separators of addresses as in ``$upstream_addr``: a comma after each, a colon between groups of servers.
_BETWEEN = re.compile(r" : |, ?")
_ADDRESS = r"(?:[\w.-]+:\d+|\[[\da-fA-F:.]+\]:\d+|unix:[^\s,]+)"
_TRIED = re.compile(rf"{_ADDRESS}(?:(?:{_BETWEEN.pattern}){_ADDRESS})+")

#: Longest list of addresses; a longer one is ignored.
_MAX_TRIED_CHARS = 8192

#: Bytes of a value that are compared with those of the answers before.
_COMPARED_BYTES = 1024


@dataclass(slots=True)
class _Seen:
    """The values of one header. ``raw`` are those whose name is known already."""

    answers: int = 0
    first: str = ""
    raw: set[bytes] = field(default_factory=set)
    values: set[int] = field(default_factory=set)
    more: bool = False


class ReplicaNames:
    """Reads the replica of each answer, and counts the values of every header that may name one.

    Args:
        own: headers of the user's, which come before the known ones.
        secrets: texts that are blanked in names.
    """

    def __init__(self, own: Sequence[str] = (), secrets: Sequence[str] = ()) -> None:
        self.names = tuple(dict.fromkeys(name.lower().encode() for name in (*own, *REPLICA_HEADERS)))
        self._secrets = secrets
        self._seen = {name: _Seen() for name in self.names[:MOST_REPLICA_HEADERS]}

    def read(self, headers: Mapping[bytes, bytes], secrets: Sequence[str] | None = None) -> str | None:
        """The replica that answered with these headers (lower-case names), and count their values.

        Args:
            secrets: those to blank, if there are more by now than at first.
        """
        known = self._secrets if secrets is None else secrets
        for name, seen in self._seen.items():
            if name in headers:
                self._count(seen, headers, name, known)
        return replica_of(headers, self.names, known)

    def facts(self) -> list[HeaderFacts]:
        """The headers that answers have had so far, in order of priority."""
        return [
            HeaderFacts(
                name=clean_name(name.decode("latin-1")),
                answers=seen.answers,
                value=seen.first,
                values=sorted(seen.values),
                more=seen.more,
            )
            for name, seen in self._seen.items()
            if seen.answers
        ]

    def _count(
        self, seen: _Seen, headers: Mapping[bytes, bytes], name: bytes, secrets: Sequence[str]
    ) -> None:
        seen.answers += 1
        raw = headers[name][:_COMPARED_BYTES]
        if seen.more or raw in seen.raw:
            return
        if len(seen.raw) == MOST_HEADER_VALUES:
            seen.more = True
            return
        seen.raw.add(raw)
        value = replica_of(headers, (name,), secrets) or ""
        seen.first = seen.first or value
        seen.values.add(zlib.crc32(value.encode()))


def replica_of(
    headers: Mapping[bytes, bytes], names: Sequence[bytes], secrets: Sequence[str] = ()
) -> str | None:
    """Value of the first of these headers (lower-case names) in the response, without secrets.

    Of several addresses the last: nginx's ``$upstream_addr`` lists those that it tried in turn, and the last
    one answered. A list of names stays unchanged, because its meaning is unknown.
    """
    value = next((headers[name].decode("latin-1") for name in names if name in headers), None)
    if value is None:
        return None
    value = blanked_name(value, secrets)
    if len(value) <= _MAX_TRIED_CHARS and _TRIED.fullmatch(value):
        value = _BETWEEN.split(value)[-1]
    return clean_name(value)


# --- Conversion of reads and their stamps to the times of one request. Pure functions over columns


@dataclass(frozen=True, slots=True)
class ReadTimes:
    """Times of the reads of one response.

    ``at_ns`` (reads,) is realtime and non-decreasing: the kernel's stamp, or the program's own reading if
    there is none, or for all reads if realtime was stepped during the request (then all times are the start
    time plus monotonic differences, so that the step changes no duration).
    """

    at_ns: NDArray[np.int64]
    kernel: bool
    client_lag_ns: int | None
    clock_step_ns: int | None


def read_times(
    kernel_ns: NDArray[np.int64], monotonic_ns: NDArray[np.int64], started: ClockPair, ended: ClockPair
) -> ReadTimes:
    """Times from kernel_ns (reads,) realtime, 0 without a stamp, and monotonic_ns (reads,)."""
    program = monotonic_ns + started.offset_ns
    step = clock_step_ns(started, ended)
    # Reductions of ufuncs, and methods: half of the time of functions and methods by name, which is most of
    # what so few reads cost.
    if step is None and len(kernel_ns) and np.minimum.reduce(kernel_ns) > 0:
        lag = max(0, int(np.maximum.reduce(program - kernel_ns)))
        # A packet that came before its predecessor arrives with that one, later than its own stamp.
        return ReadTimes(np.maximum.accumulate(kernel_ns), True, lag, None)
    stamped = kernel_ns > 0
    if step is not None or not stamped.any():
        return ReadTimes(program, False, None, step)
    lag = max(0, int((program - kernel_ns)[stamped].max()))
    # The kernel starts to stamp some time after the first request for stamps. A read without a stamp arrived
    # no later than the next one with a stamp, however late the program was.
    mixed = np.where(stamped, kernel_ns, program)
    return ReadTimes(np.minimum.accumulate(mixed[::-1])[::-1], False, lag, None)


@dataclass(frozen=True, slots=True)
class TokenArrivals:
    """Arrival times of token events: ``at_ns`` (events,) realtime; ``coalesced`` reads had more than one."""

    at_ns: NDArray[np.int64]
    coalesced: int


def completed_by(token_ends: NDArray[np.int64], read_ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Index of the read that completed each token event.

    Args:
        token_ends: offset in the body just after each token event.
        read_ends: for each read, the length of the body after it (non-decreasing).
    """
    return read_ends.searchsorted(token_ends)


def arrivals(read: NDArray[np.int64], at_ns: NDArray[np.int64]) -> TokenArrivals:
    """Stamp of the read that completed each token event.

    Args:
        read: index of that read.
        at_ns: for each read, its time.
    """
    shared = read[1:] == read[:-1]
    coalesced = 0
    if np.count_nonzero(shared):
        coalesced = int(shared[:1].sum() + (shared[1:] & ~shared[:-1]).sum())
    return TokenArrivals(at_ns[read], coalesced)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Clock readings during a call. None: it did not get so far."""

    started: ClockPair
    connected: ClockPair | None
    sent: ClockPair | None
    ended: ClockPair


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All times of one request, realtime nanoseconds of one clock; ``arrivals_ns`` after ``sent_ns``."""

    started_ns: int
    connected_ns: int | None
    sent_ns: int | None
    headers_ns: int | None
    arrivals_ns: NDArray[np.int64]
    ended_ns: int
    reads: ReadTimes
    read_ends: NDArray[np.int64]  # body bytes received after each read, (reads,)
    end_lag_ns: int | None  # from the end of a whole response until the event loop took it up
    coalesced: int


def timeline(exchange: Exchange, token_ends: Sequence[int], moments: Moments) -> Timeline:
    """Times of a call whose body was drained.

    A response that a read completed ended with that read, however late the program processed it.
    """
    read_ends, kernel_ns, monotonic_ns = exchange.reads.columns().T
    reads = read_times(kernel_ns, monotonic_ns, moments.started, moments.ended)
    read = completed_by(np.asarray(token_ends, dtype=np.int64), read_ends)
    came = arrivals(read, reads.at_ns)

    def placed(moment: ClockPair) -> int:
        """Realtime of a moment, by the clock as it was when the call started."""
        stepped = reads.clock_step_ns is not None
        return moment.monotonic_ns + moments.started.offset_ns if stepped else moment.realtime_ns

    connected_ns = None if moments.connected is None else placed(moments.connected)
    sent_ns = None if moments.sent is None else placed(moments.sent)
    at = exchange.completed_at
    taken_up_ns = moments.ended.monotonic_ns + moments.started.offset_ns
    return Timeline(
        started_ns=moments.started.realtime_ns,
        connected_ns=connected_ns,
        sent_ns=sent_ns,
        headers_ns=None if exchange.headers_at is None else int(reads.at_ns[exchange.headers_at]),
        arrivals_ns=came.at_ns - (sent_ns or 0),
        ended_ns=placed(moments.ended) if at is None else int(reads.at_ns[at]),
        reads=reads,
        read_ends=read_ends,
        end_lag_ns=None if at is None else max(0, taken_up_ns - int(reads.at_ns[at])),
        coalesced=came.coalesced,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Facts of a request that are known before it is sent; they go into the record unchanged."""

    request_id: str
    name: str
    scheduled_ns: int
    endpoint: Dialect | None = CHAT  # None: not a generation; only its status is judged
    slo_class: str = ""
    model: str = ""
    streamed: bool = True
    user: int | None = None
    asked_input_tokens: int | None = None
    asked_output_tokens: int | None = None
    session: str | None = None
    turn: int | None = None
    target: int | None = None  # index of its route, where its arm was drawn with its prompt
    blocked_ns: int | None = None
    prompt_id: str | None = None
    counted_input_tokens: int | None = None  # by a tokenizer; used if the server does not report it
    images: int | None = None
    pixels: int | None = None
    asked: AskedResults | None = None  # of an API that gives a result for each input; None: not checked
    # Off the timing path: returns the final record, which replaces the original one.
    check: Callable[["Answer"], RequestRecord] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished call: its record, the server's reply, and how long the server asks to wait after a
    failure."""

    record: RequestRecord
    reply: Reply
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Connection that carried the request. Fields as in the record."""

    peer: str | None = None
    local_port: int | None = None
    reused: bool = False
    retries: int = 0
    rtt_ns: int | None = None
    replica: str | None = None
    arm: str | None = None
    session_header: SessionHeaderEcho | None = None


#: Fields that a record has as the call and the link have them.
_CALL = (
    *("request_id", "name", "scheduled_ns", "slo_class", "streamed", "user", "session", "turn"),
    *("asked_input_tokens", "asked_output_tokens", "blocked_ns", "prompt_id", "images", "pixels"),
)
_LINK = tuple(each.name for each in fields(Link))


def record_of(
    call: Call,
    exchange: Exchange,
    reply: Reply,
    verdict: Verdict,
    times: Timeline,
    link: Link,
    asked: Asked = NOTHING_ASKED,
) -> RequestRecord:
    """Make the record of a finished call."""
    arrivals, first, usage = times.arrivals_ns, reply.first_answer, reply.usage
    first_chunk_ns, finish_ns, last_chunk_ns = _came_ns(reply, times)
    return RequestRecord(
        outcome=verdict[0],
        started_ns=times.started_ns,
        ended_ns=times.ended_ns,
        connected_ns=times.connected_ns,
        sent_ns=times.sent_ns,
        headers_ns=times.headers_ns,
        arrivals_ns=arrivals,
        first_answer_ns=None if first is None else int(arrivals[first]),
        first_chunk_ns=first_chunk_ns,
        finish_ns=finish_ns,
        last_chunk_ns=last_chunk_ns,
        endpoint="other" if call.endpoint is None else call.endpoint.name,
        model=call.model or reply.model or "",
        answered_model=_answered_model(call, reply),
        status=exchange.status,
        error=verdict[1],
        finish_reason=reply.finish_reason,
        input_tokens=_input_tokens(reply, call),
        cached_tokens=None if usage is None else usage.cached_tokens,
        reasoning_tokens=None if usage is None else usage.reasoning_tokens,
        unread=reply.unread,
        **_output_tokens(call, reply, asked.counted),
        output_chars=reply.output_chars if len(arrivals) else None,
        kernel_stamps=times.reads.kernel,
        client_lag_ns=times.reads.client_lag_ns,
        end_lag_ns=times.end_lag_ns,
        clock_step_ns=times.reads.clock_step_ns,
        reads=exchange.read_count,
        coalesced_reads=times.coalesced,
        bytes_received=exchange.bytes_received,
        inputs=None if call.asked is None else call.asked.inputs,
        doubt=doubt_of(reply, call.endpoint, asked) if verdict[0] is Outcome.OK else None,
        **{name: getattr(call, name) for name in _CALL},
        **{name: getattr(link, name) for name in _LINK},
    )


def first_try_of(call: Call, exchange: Exchange, moments: Moments, error: str | None, link: Link) -> Answer:
    """Make the answer of a first try that broke before anything was processed, and that is repeated."""
    reply = Draft().finish()
    times = timeline(exchange, (), moments)
    return Answer(record_of(call, exchange, reply, (Outcome.RESENT, error), times, link), reply)


def _answered_model(call: Call, reply: Reply) -> str | None:
    """The model that the answer names, if it is another one than was asked for."""
    found = reply.model
    return None if not call.model or found in (None, call.model, clean_name(call.model)) else found


def _input_tokens(reply: Reply, call: Call) -> int | None:
    """By the server, else by the tokenizer. No prompt has 0 tokens."""
    return (reply.usage and reply.usage.input_tokens) or call.counted_input_tokens


def _came_ns(reply: Reply, times: Timeline) -> Iterator[int | None]:
    """Times after ``sent`` of the first chunk, the finish and the last chunk; None for no such event."""
    ends = (reply.opening_end, reply.finish_end, reply.closing_end)
    if not any(ends):
        return iter([None] * len(ends))
    read_ends, at_ns, sent_ns = times.read_ends, times.reads.at_ns, times.sent_ns or 0
    return (None if end is None else int(at_ns[np.searchsorted(read_ends, end)]) - sent_ns for end in ends)


def _output_tokens(call: Call, reply: Reply, counted: int | None) -> dict[str, Any]:
    """Output tokens by the server, else by the tokenizer over the text, else the token events.

    Each token event has one at least.
    """
    count, events = reply.count, len(reply.token_ends)
    tokens, source = count.tokens, TokenSource.USAGE
    if tokens is None:
        source = TokenSource.EVENTS if counted is None else TokenSource.TOKENIZER
        tokens = max(counted or 0, events)
    return {
        "output_tokens": None if call.endpoint and not call.endpoint.generates else tokens,
        "hidden_tokens": count.hidden if source is TokenSource.USAGE else None,
        "token_source": source,
        "opening_tokens": count.opening,
        "came_tokens": count.came,
        "count_fault": count.fault,
    }


# --- Token counts of answers by the run's tokenizer, if the server has not counted them


#: Returns the number of tokens of a text.
CountTokens = Callable[[str], int]

#: Most characters counted in the event loop: takes some 10 ms.
MAX_LOOP_CHARS = 8192

#: Most characters counted at all: takes some 1 s, in a thread.
MAX_COUNTED_CHARS = 1 << 20


def server_counted(reply: Reply) -> bool:
    """Whether the server has counted the output tokens, and its number can be true."""
    return reply.count.tokens is not None


def count_here(reply: Reply, count: CountTokens | None) -> int | None:
    """Count the tokens of a short answer that the server has not counted; None for any other."""
    if count is None or server_counted(reply) or not 0 < reply.output_chars <= MAX_LOOP_CHARS:
        return None
    return count(_text(reply))


def count_in_thread(reply: Reply, count: CountTokens) -> int | None:
    """Count the tokens of a long answer that the server has not counted, in a thread; None for others."""
    if server_counted(reply) or not MAX_LOOP_CHARS < reply.output_chars <= MAX_COUNTED_CHARS:
        return None
    tokens: int = gevent.get_hub().threadpool.apply(count, (_text(reply),))
    return tokens


def _text(reply: Reply) -> str:
    calls = (f"{call.name}{call.arguments}" for call in reply.tool_calls)
    return "".join((reply.reasoning, reply.text, reply.refusal, *calls))


# --- Names in one process's records, bounded in number


#: Most different names of one kind (replicas, models, finish reasons) in the records of one process.
MAX_NAMES = 1000

#: Replacement of every further name once there are :data:`MAX_NAMES`.
OTHER = "(other)"


class Names:
    """The different names in one process's records, bounded: each is a row or a label in some table."""

    def __init__(self) -> None:
        self._known: dict[str, set[str]] = {
            name: set() for name in ("replica", "model", "answered_model", "finish_reason", "unread")
        }

    def bounded(self, record: RequestRecord) -> RequestRecord:
        """The record with its names cleaned; those beyond the limit become :data:`OTHER`."""
        changed: dict[str, Any] = {
            field: name
            for field, known in self._known.items()
            if (said := getattr(record, field)) is not None and (name := _known(said, known)) != said
        }
        return replace(record, **changed) if changed else record


def _known(said: str, known: set[str]) -> str:
    if said in known:
        return said
    name = clean_name(said)
    if name not in known:
        if len(known) >= MAX_NAMES:
            return OTHER
        known.add(name)
    return name
