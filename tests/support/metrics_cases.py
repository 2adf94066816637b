"""Requests in plain numbers, and strategies for many: what the tests of metrics stand on."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from msgspec import json

from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import Manifest, NodeHealth, StageFacts, WorkerFacts
from llm_locust.core.record import Outcome, RequestRecord, TokenSource
from llm_locust.metrics.columns import Floats, Part
from llm_locust.metrics.stats.censoring import PERCENTILES, Durations, summarise
from llm_locust.metrics.stats.intervals import in_order

ORIGIN_NS = 1_795_000_000_000_000_000


def ns(seconds: float) -> int:
    """Wall-clock nanoseconds of a time in seconds after the start of the run."""
    return ORIGIN_NS + round(seconds * 1e9)


def request(
    at: float = 0.0,
    arrivals: tuple[float, ...] = (0.05, 0.07, 0.09),
    *,
    late: float = 0.0,
    ended: float | None = None,
    sent: bool = True,
    **fields: Any,
) -> RequestRecord:
    """A request scheduled ``at``, sent ``late`` after that, with arrivals after sent; all in seconds."""
    sent_s = at + late
    end_s = ended if ended is not None else sent_s + (arrivals[-1] if arrivals else 0.0)
    events = len(arrivals)
    known: dict[str, Any] = {
        "request_id": "r",
        "name": "chat",
        "outcome": Outcome.OK,
        "connected_ns": ns(sent_s) if sent else None,
        "sent_ns": ns(sent_s) if sent else None,
        "arrivals_ns": np.array([round(a * 1e9) for a in arrivals], dtype=np.int64),
        "first_answer_ns": round(arrivals[0] * 1e9) if arrivals else None,
        "input_tokens": 10,
        "output_tokens": events or None,
        "token_source": TokenSource.USAGE,
        "kernel_stamps": True,
        "client_lag_ns": 20_000,
        "reads": events,
    }
    times = {"scheduled_ns": ns(at), "started_ns": ns(at), "ended_ns": ns(end_s)}
    return RequestRecord(**{**known, **times, **fields})


def failed(at: float = 0.0, outcome: Outcome = Outcome.HTTP_ERROR, **fields: Any) -> RequestRecord:
    """A request that failed 1 ms after it was sent, without a token."""
    known: dict[str, Any] = {"status": 503, "error": "no room", "input_tokens": None}
    return request(at, (), ended=at + 0.001, outcome=outcome, **{**known, **fields})


def summarise_latency(
    values_s: Floats, failed: int = 0, places: Mapping[str, float] = PERCENTILES
) -> dict[str, Any]:
    """The figures in milliseconds of latencies in seconds, in the order of their run; NaN is no sample.

    ``failed`` requests count as +∞.
    """
    found = Durations.of(values_s, failed=failed)
    return summarise(replace(found, course=in_order(values_s, failed)), 1e3, places)


def plain(figure: Any) -> Any:
    """A figure as ``summary.json`` has it."""
    return json.decode(json.encode(figure))


def batch(*records: RequestRecord, worker: str = "w1") -> RecordBatch:
    return RecordBatch.from_records(records, worker)


def columns(*records: RequestRecord) -> Part:
    return Part.from_batch(batch(*records), ORIGIN_NS)


def manifest(stopped: float | None = 10.0, **fields: Any) -> Manifest:
    """A run that began at the origin, with one worker that lost nothing."""
    known: dict[str, Any] = {
        "id": "run",
        "name": "test",
        "started_ns": ORIGIN_NS,
        "stopped_ns": None if stopped is None else ns(stopped),
        "workers": [
            WorkerFacts(id="w1", index=0, announced=0, received=0, health=NodeHealth(cpu_percent_max=10.0))
        ],
    }
    return Manifest(**{**known, **fields})


def stage(number: int, measured: float, ended: float, **fields: Any) -> StageFacts:
    """A stage whose load began half a second before its measured part; times in seconds after the origin."""
    known: dict[str, Any] = {
        "kind": "users",
        "asked": 1.0,
        "begun_ns": ns(measured - 0.5),
        "measured_ns": ns(measured),
        "ended_ns": ns(ended),
        "drained_ns": ns(ended + 0.25),
    }
    return StageFacts(**{"number": number, **known, **fields})


_MILLISECONDS = st.integers(0, 5_000).map(lambda ms: ms / 1000)
_GAPS_MS = st.lists(st.integers(0, 900), max_size=8)
_SENT = st.booleans()
_DRAWN: dict[str, st.SearchStrategy[Any]] = {
    "outcome": st.sampled_from([each for each in Outcome if each is not Outcome.RESENT]),
    "name": st.sampled_from(["chat", "long"]),
    "slo_class": st.sampled_from(["", "fast"]),
    "replica": st.sampled_from([None, "a", "b"]),
    "error": st.sampled_from([None, "boom", "bang"]),
    "streamed": st.booleans(),
    "output_tokens": st.none() | st.integers(0, 20),
}


@st.composite
def requests(draw: st.DrawFn) -> RequestRecord:
    """Any request: every outcome that one can have, with and without tokens, streamed or not, sent or not."""
    arrivals = tuple(float(ms) / 1000 for ms in np.cumsum(draw(_GAPS_MS)))
    drawn = {name: draw(values) for name, values in _DRAWN.items()}
    sent = bool(arrivals) or drawn["outcome"] is Outcome.OK or draw(_SENT)
    return request(draw(_MILLISECONDS), arrivals, late=draw(_MILLISECONDS) / 100, sent=sent, **drawn)
