"""Any record that can be made, for tests of what carries records."""

from dataclasses import fields
from itertools import accumulate
from typing import Any

import numpy as np
from hypothesis import strategies as st

from llm_locust.core.record import Echo, Outcome, RequestRecord, TokenSource

_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_NS = st.integers(0, 2**62)
_COUNTS = st.integers(0, 2**53)
_SMALL = st.integers(0, 2**15 - 1)

_TIMES = ("scheduled_ns", "started_ns", "ended_ns")
_MAYBE_NS = (
    *("connected_ns", "sent_ns", "headers_ns", "first_answer_ns", "client_lag_ns", "rtt_ns"),
    *("first_chunk_ns", "finish_ns", "last_chunk_ns"),
)
_MAYBE_COUNTS = (
    *("user", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"),
    *("asked_input_tokens", "asked_output_tokens", "output_chars", "hidden_tokens"),
    *("inputs", "images", "pixels"),
)

#: Texts of few values and of many: a column's dictionary has to do with both.
_LABELS = st.sampled_from(["", "chat", "replica-0"]) | _TEXTS


def arrivals() -> st.SearchStrategy[Any]:
    """Times that do not decrease, some of them equal."""
    gaps = st.lists(st.integers(0, 10**9), max_size=6)
    return gaps.map(lambda each: np.array(list(accumulate(each)), dtype=np.int64))


_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("request_id", "name", "slo_class", "endpoint", "model"), _LABELS),
    **dict.fromkeys(("error", "finish_reason", "replica", "peer"), st.none() | _LABELS),
    **dict.fromkeys(_TIMES, _NS),
    **dict.fromkeys(_MAYBE_NS, st.none() | _NS),
    **dict.fromkeys(_MAYBE_COUNTS, st.none() | _COUNTS),
    **dict.fromkeys(("streamed", "reused", "kernel_stamps"), st.booleans()),
    **dict.fromkeys(("reads", "coalesced_reads"), st.integers(0, 2**31 - 1)),
    "bytes_received": _COUNTS,
    "clock_step_ns": st.none() | st.integers(-(2**62), 2**62),
    **dict.fromkeys(("session", "rejected_by", "prompt_id", "arm"), st.none() | _LABELS),
    "answered_model": st.none() | _LABELS,
    "session_header": st.none() | st.sampled_from(Echo),
    **dict.fromkeys(("turn", "stage", "local_port"), st.none() | st.integers(0, 2**31 - 1)),
    "blocked_ns": st.none() | _NS,
    "abandoned": st.booleans(),
    "correct": st.none() | st.booleans(),
    "answer_hash": st.none() | st.integers(-(2**63), 2**63 - 1),
    "retries": _SMALL,
    "status": st.none() | st.integers(100, 599),
    "outcome": st.sampled_from(Outcome),
    "token_source": st.sampled_from(TokenSource),
    "arrivals_ns": arrivals(),
    "early_ns": st.none() | arrivals(),
}

assert _FIELDS.keys() == {field.name for field in fields(RequestRecord)}


@st.composite
def records(draw: st.DrawFn) -> RequestRecord:
    """One record, every field drawn for itself."""
    return RequestRecord(**{name: draw(values) for name, values in _FIELDS.items()})


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
