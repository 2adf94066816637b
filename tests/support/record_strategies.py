"""Any record that can be made, for tests of what carries records."""

import sys
from collections.abc import Callable
from dataclasses import fields
from itertools import accumulate
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st

from llm_locust.core.record import Doubt, Outcome, RequestRecord, SessionHeaderEcho, TokenSource
from llm_locust.wire.usage import CountFault

#: A field's value by chance. If Hypothesis drew each field by itself, a record would take ten times as long.
_Field = Callable[[Random], Any]


def _between(low: int, high: int) -> _Field:
    """A whole number: a bound, none, a small one, any."""
    least = max(low, 0)
    return lambda chance: chance.choice(
        (low, high, least, least + chance.randrange(8), chance.randint(low, high))
    )


def _one_of(values: list[Any]) -> _Field:
    return lambda chance: chance.choice(values)


def _maybe(field: _Field) -> _Field:
    return lambda chance: field(chance) if chance.randrange(3) else None


def _label(chance: Random) -> str:
    """Texts of few values and of many: a column's dictionary has to do with both."""
    if chance.randrange(2):
        return chance.choice(("", "chat", "replica-0"))
    last = chance.choice((0x7F, 0xFF, 0xFFFF, sys.maxunicode))
    text = "".join(chr(chance.randint(0, last)) for _ in range(chance.randrange(7)))
    return text.encode(errors="ignore").decode()  # without surrogates


def _arrivals(chance: Random) -> Any:
    """Times that do not decrease, some of them equal."""
    gaps = (chance.choice((0, 1, chance.randint(0, 10**9))) for _ in range(chance.randrange(7)))
    return np.array(list(accumulate(gaps)), dtype=np.int64)


_NS = _between(0, 2**62)
_COUNT = _between(0, 2**53)
_INT32 = _between(0, 2**31 - 1)
_FLAG = _one_of([False, True])

_TIMES = ("scheduled_ns", "started_ns", "ended_ns")
_MAYBE_NS = (
    *("connected_ns", "sent_ns", "headers_ns", "first_answer_ns", "client_lag_ns", "end_lag_ns", "rtt_ns"),
    *("first_chunk_ns", "finish_ns", "last_chunk_ns", "blocked_ns"),
)
_MAYBE_COUNTS = (
    *("user", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"),
    *("asked_input_tokens", "asked_output_tokens", "output_chars", "hidden_tokens"),
    *("opening_tokens", "came_tokens"),
    *("inputs", "images", "pixels"),
)
_MAYBE_LABELS = (
    *("error", "finish_reason", "replica", "peer"),
    *("session", "rejected_by", "prompt_id", "arm", "answered_model", "unread"),
)

_FIELDS: dict[str, _Field] = {
    **dict.fromkeys(("request_id", "name", "slo_class", "endpoint", "model"), _label),
    **dict.fromkeys(_MAYBE_LABELS, _maybe(_label)),
    **dict.fromkeys(_TIMES, _NS),
    **dict.fromkeys(_MAYBE_NS, _maybe(_NS)),
    **dict.fromkeys(_MAYBE_COUNTS, _maybe(_COUNT)),
    **dict.fromkeys(("streamed", "reused", "kernel_stamps", "abandoned", "left_open"), _FLAG),
    **dict.fromkeys(("reads", "coalesced_reads"), _INT32),
    **dict.fromkeys(("turn", "stage", "local_port"), _maybe(_INT32)),
    "bytes_received": _COUNT,
    "clock_step_ns": _maybe(_between(-(2**62), 2**62)),
    "session_header": _maybe(_one_of(list(SessionHeaderEcho))),
    "doubt": _maybe(_one_of(list(Doubt))),
    "correct": _maybe(_FLAG),
    "answer_hash": _maybe(_between(-(2**63), 2**63 - 1)),
    "retries": _between(0, 2**15 - 1),
    "status": _maybe(_between(100, 599)),
    "outcome": _one_of(list(Outcome)),
    "count_fault": _maybe(_one_of([str(fault) for fault in CountFault])),
    "token_source": _one_of(list(TokenSource)),
    "arrivals_ns": _arrivals,
}

assert _FIELDS.keys() == {field.name for field in fields(RequestRecord)}


def _record(seed: int) -> RequestRecord:
    chance = Random(seed)
    return RequestRecord(**{name: field(chance) for name, field in _FIELDS.items()})


def records() -> st.SearchStrategy[RequestRecord]:
    """One record, every field any that it can be."""
    return st.integers(0, 2**32).map(_record)


def record(number: int) -> RequestRecord:
    """The record of this number, which is its request id and its ``reads``."""
    return RequestRecord(
        request_id=str(number),
        name="chat",
        outcome=Outcome.OK,
        scheduled_ns=number,
        started_ns=number,
        ended_ns=number,
        reads=number,
    )
