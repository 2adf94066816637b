"""Conversion of a finished call to a record."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from llm_locust.client.http.exchange import Exchange
from llm_locust.client.outcome import NOTHING_ASKED, Asked, Verdict, doubt_of
from llm_locust.client.timing import Moments, Timeline, timeline
from llm_locust.core.record import Echo, Outcome, RequestRecord, TokenSource
from llm_locust.wire.dialects.chat import CHAT
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.draft import Draft
from llm_locust.wire.names import clean_name
from llm_locust.wire.reply import Reply
from llm_locust.wire.results import AskedResults


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
    session_header: Echo | None = None


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
