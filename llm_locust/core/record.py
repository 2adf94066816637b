"""Requests as values: what was requested, when its bytes arrived, how it ended; and counts of other requests.

``docs/definitions.md`` defines every time and count. All times of one record are on one clock: wall-clock
nanoseconds since the epoch (``CLOCK_REALTIME``)."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

#: Most token events of one record: more than the longest answers of today's models have. The client breaks a
#: longer answer off, so that a batch or file with more was not made by it.
MAX_ARRIVALS = 200_000

#: Most characters of a text of one record, such as its name or error: the client cuts longer ones off.
MAX_TEXT_CHARS = 16_384


#: Most tokens of an asked length: a typing error in a distribution must not fill the memory.
MAX_TOKENS = 10_000_000

Tokens = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]


@dataclass(frozen=True, slots=True, order=True)
class LengthPair:
    """Tokens that each prompt has, and tokens that each answer is asked for, where all have the same."""

    input_tokens: Tokens
    output_tokens: Tokens

    def __str__(self) -> str:
        """As it is written in ``--sweep``: ``128:32``."""
        return f"{self.input_tokens}:{self.output_tokens}"


class Outcome(StrEnum):
    """Result of one request. Only ``OK`` enters latency percentiles."""

    OK = "ok"
    HTTP_ERROR = "http_error"  # status >= 400
    API_ERROR = "api_error"  # an error inside a 200 answer, or a finish reason that means failure
    CONNECT_ERROR = "connect_error"  # no connection, or it broke before the answer's first byte
    TIMEOUT = "timeout"  # a time limit on the first byte, the gap or the total was exceeded
    TRUNCATED = "truncated"  # no finish reason and no [DONE], or fewer tokens than the reason says
    INVALID = "invalid"  # a body that violates the API
    EMPTY = "empty"  # complete, without a token
    REJECTED = "rejected"  # refused by the user's validator
    CANCELLED = "cancelled"  # ended by the run's end or by the user
    RESENT = "resent"  # a first try that was certainly not processed; the request has a record of its own


#: Outcomes that are neither a success nor a failure of the server.
UNJUDGED = frozenset({Outcome.CANCELLED, Outcome.RESENT})


class Doubt(StrEnum):
    """Why an answer that ended ``ok`` may not be what was asked for."""

    CONTENT_FILTER = "content_filter"  # a filter cut it, or the model refused
    NO_ANSWER = "no_answer"  # reasoning only
    NO_FINISH_REASON = "no_finish_reason"  # the server said that it is the end, and not why
    UNKNOWN_FINISH_REASON = "unknown_finish_reason"  # one that the API does not have


class TokenSource(StrEnum):
    """Origin of a record's ``output_tokens``."""

    USAGE = "usage"
    TOKENIZER = "tokenizer"
    EVENTS = "events"


class SessionHeaderEcho(StrEnum):
    """What a follow-up turn of a session had of the header that the server gave to it."""

    ECHOED = "echoed"
    MISSING = "missing"  # the session's earlier answers had none
    REFUSED = "refused"  # what they had cannot be sent


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """Facts of one request that was sent, or that could not be sent.

    ``None`` means unknown or undefined; it is never written as 0. ``arrivals_ns`` has the arrival of each
    token event in nanoseconds after ``sent_ns``, non-decreasing; events completed by one read share a value.
    A failed request keeps those it has.
    """

    request_id: str
    name: str
    outcome: Outcome
    scheduled_ns: int
    started_ns: int
    ended_ns: int
    connected_ns: int | None = None
    sent_ns: int | None = None
    headers_ns: int | None = None
    arrivals_ns: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    first_answer_ns: int | None = None  # after sent_ns: first token event that is not reasoning
    # After sent_ns, events without a token; None if there was none at that position.
    first_chunk_ns: int | None = None  # the first event with choices, before the first token event
    finish_ns: int | None = None  # the event with the finish reason, after the last token event
    last_chunk_ns: int | None = None  # the last event with choices, after the last token event
    slo_class: str = ""
    endpoint: str = "chat"
    model: str = ""
    answered_model: str | None = None  # that the answer names, if another one
    streamed: bool = True
    user: int | None = None
    status: int | None = None
    error: str | None = None
    finish_reason: str | None = None
    input_tokens: int | None = None  # usage.prompt_tokens, else the tokenizer's count
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    hidden_tokens: int | None = None  # part of output_tokens: reasoning that arrived in no event
    token_source: TokenSource = TokenSource.EVENTS
    # Of output_tokens, where the server counts in each event: those that had come with the event in which the
    # pace begins, without hidden ones, and with the last token event.
    opening_tokens: int | None = None
    came_tokens: int | None = None
    count_fault: str | None = None  # what does not fit about the server's count of output tokens
    unread: str | None = None  # field of the answer's events whose text is not read
    asked_input_tokens: int | None = None
    asked_output_tokens: int | None = None
    output_chars: int | None = None
    replica: str | None = None
    peer: str | None = None
    reused: bool = False
    retries: int = 0  # earlier attempts on stale pooled connections; each has a record, `resent`
    kernel_stamps: bool = False
    client_lag_ns: int | None = None  # largest time from a read's kernel stamp until it was read
    end_lag_ns: int | None = None  # from the end of a whole response until the event loop took it up
    clock_step_ns: int | None = None  # step of realtime against monotonic during the request
    rtt_ns: int | None = None
    reads: int = 0
    coalesced_reads: int = 0  # reads that completed more than one token event
    bytes_received: int = 0
    session: str | None = None  # conversation or trace session that it belongs to
    turn: int | None = None  # its position in the session, from 0
    blocked_ns: int | None = None  # part of schedule_delay: waited for a turn that it depends on
    abandoned: bool = False  # cancelled by the user's patience, not by the run's end
    rejected_by: str | None = None  # the validator that refused it
    correct: bool | None = None  # comparison with the expected answer, if the prompt has one
    prompt_id: str | None = None  # from the dataset's line
    answer_hash: int | None = None  # equal for equal answers
    stage: int | None = None  # number of its stage, from 0: set when the run's requests are stored
    arm: str | None = None  # target of an interleaved comparison that it was assigned to
    local_port: int | None = None  # the client's port of its connection
    session_header: SessionHeaderEcho | None = None  # of a follow-up turn, where such a header is asked for
    inputs: int | None = None  # texts or documents of a request that asks for a result of each
    images: int | None = None  # in its messages; None: none
    pixels: int | None = None  # of all of them, where each one's size is known
    doubt: Doubt | None = None  # of an ok one
    left_open: bool = False  # its answer was over, and the server did not end the response


#: Points in time of a record; all other times are relative to one of them.
MOMENTS = ("scheduled_ns", "started_ns", "connected_ns", "sent_ns", "headers_ns", "ended_ns")


def moved(record: RequestRecord, by_ns: int) -> RequestRecord:
    """The same request on a clock that is ``by_ns`` ahead: its points in time move, its durations do not."""
    moments = {name: getattr(record, name) for name in MOMENTS}
    return replace(record, **{name: ns + by_ns for name, ns in moments.items() if ns is not None})


# --- Requests of a locustfile that are not this package's, as those of ``HttpUser`` and ``FastHttpUser``
#
# They have no record. Each worker counts them by method and name; rows and times are bounded in number.


#: Most rows that are kept apart, the one for the rest included.
MOST_OTHER_REQUESTS = 20

#: The name of that row. Its method is empty, which no request's is.
OTHER_NAMES = "other names"

#: Times are counted in steps of 2 %, from 1 µs to 3 years: a percentile is within 1 % of the truth.
_STEP, _LEAST_MS, _MOST_STEP = math.log(1.02), 1e-3, 1_500

#: Beyond any time.
_ENDLESS_MS = 1e300

_LONGEST_METHOD, _LONGEST_NAME = 32, 200

_Count = Annotated[int, Meta(ge=0, le=2**53)]
_Step = Annotated[int, Meta(ge=0, le=_MOST_STEP)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRequests:
    """The requests of one method and name, failed ones included.

    ``times`` has pairs of a step of time and the number of requests in it, in ascending order. A request
    whose time is no finite number is in none of them.
    """

    method: Annotated[str, Meta(max_length=_LONGEST_METHOD)]
    name: Annotated[str, Meta(max_length=_LONGEST_NAME)]
    requests: _Count
    failures: _Count = 0
    times: Annotated[list[tuple[_Step, _Count]], Meta(max_length=_MOST_STEP + 1)] = field(
        default_factory=list
    )

    def percentile_ms(self, percent: float) -> float | None:
        """The time of the request at this share of all whose time is known, ms, to 1 %; None without any."""
        known = sum(count for _, count in self.times)
        rank = max(1, math.ceil(percent / 100 * known))
        for step, count in self.times:
            rank -= count
            if rank <= 0:
                return _LEAST_MS * math.exp(step * _STEP)
        return None


@dataclass(slots=True)
class _Row:
    requests: int = 0
    failures: int = 0
    times: Counter[int] = field(default_factory=Counter)

    def add(self, requests: int, failures: int, times: Iterable[tuple[int, int]]) -> None:
        self.requests += requests
        self.failures += failures
        for step, count in times:
            self.times[step] += count


class OtherTable:
    """Counts by method and name. Names beyond :data:`MOST_OTHER_REQUESTS` are counted together."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], _Row] = {}

    def add(self, method: object, name: object, time_ms: object, *, failed: bool) -> None:
        """Count a request as an event of Locust tells it; a locustfile can fire one with any values."""
        step = _step(time_ms)
        row = self._row(_text(method, _LONGEST_METHOD), _text(name, _LONGEST_NAME))
        row.add(1, int(failed), () if step is None else ((step, 1),))

    def merge(self, found: OtherRequests) -> None:
        """Add the counts of another process."""
        self._row(found.method, found.name).add(found.requests, found.failures, found.times)

    def rows(self) -> list[OtherRequests]:
        """Each method and name, those with the most requests first, the rest last."""
        ranked = sorted(self._rows.items(), key=lambda each: (each[0] == _REST, -each[1].requests, each[0]))
        return [
            OtherRequests(
                method=method,
                name=name,
                requests=row.requests,
                failures=row.failures,
                times=sorted(row.times.items()),
            )
            for (method, name), row in ranked
        ]

    def _row(self, method: str, name: str) -> _Row:
        key = (method, name)
        if key not in self._rows and len(self._rows) >= MOST_OTHER_REQUESTS - (_REST not in self._rows):
            key = _REST
        return self._rows.setdefault(key, _Row())


def together(found: Iterable[OtherRequests]) -> list[OtherRequests]:
    """The counts of several workers or runs as those of one."""
    table = OtherTable()
    for each in sorted(found, key=lambda each: -each.requests):
        table.merge(each)
    return table.rows()


_REST = ("", OTHER_NAMES)


def _text(value: object, most: int) -> str:
    """The value as text that every encoder takes."""
    return str(value)[:most].encode(errors="replace").decode()


def _step(time_ms: object) -> int | None:
    if not isinstance(time_ms, int | float) or not -_ENDLESS_MS < time_ms < _ENDLESS_MS:
        return None
    return min(_MOST_STEP, round(math.log(max(time_ms, _LEAST_MS) / _LEAST_MS) / _STEP))
