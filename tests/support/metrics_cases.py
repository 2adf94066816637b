"""Requests in plain numbers: records, strategies, samples of servers, arrays of long runs, a run going on."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from json import dumps
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from msgspec import json

from llm_locust.core.batch import Labels, RecordBatch
from llm_locust.core.manifest import Manifest, NodeHealth, StageFacts, WorkerFacts
from llm_locust.core.record import Outcome, RequestRecord, TokenSource
from llm_locust.metrics.columns import Columns, Floats, Part
from llm_locust.metrics.server_series import ServerSeries, read_server_series
from llm_locust.metrics.stats.censoring import PERCENTILES, Durations, summarise
from llm_locust.metrics.stats.intervals import in_order
from llm_locust.metrics.window import Population, Window
from llm_locust.store import FRAMES_FILE, FrameHeader, FrameLog, encode_frame, write_manifest

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


WINDOW = Window(ns(0.0), ns(10.0), "")
Row = tuple[float, str, str, str, float]


def rows(
    target: str, name: str, values: Iterable[float], every_s: float = 1.0, first_s: float = 0.0, **labels: str
) -> list[Row]:
    text = dumps(labels, sort_keys=True)
    return [(first_s + i * every_s, target, name, text, float(value)) for i, value in enumerate(values)]


def tables(samples: Iterable[Row], size: int = 1_000_000) -> list[pa.Table]:
    """In the order of time, in parts of ``size``."""
    ordered = sorted(samples)
    names = ("at_ns", "target", "name", "labels", "value")
    columns = [[ns(s[0]) if i == 0 else s[i] for s in ordered] for i in range(5)]
    whole = pa.table(dict(zip(names, columns, strict=True)))
    return [whole.slice(start, size) for start in range(0, len(whole), size)]


def series(samples: Iterable[Row], window: Window = WINDOW, size: int = 1_000_000) -> ServerSeries:
    return read_server_series(tables(samples, size), window)


NAMES = ("a", "b", "c", "d")


def served(
    pick: Callable[[int], str | None], n: int = 800, every_s: float = 0.1, **fields: Any
) -> list[RequestRecord]:
    """``n`` requests of three tokens, one after the other on one connection; ``pick`` names the replica."""
    known: dict[str, Any] = {"peer": "10.0.0.1:80", "local_port": 40_000} | fields
    return [request(i * every_s, replica=pick(i), reused=i > 0, **known) for i in range(n)]


def at_random(seed: int = 0, names: tuple[str, ...] = NAMES) -> Callable[[int], str]:
    source = random.Random(seed)
    return lambda _: source.choice(names)


def in_turn(names: tuple[str, ...] = NAMES) -> Callable[[int], str]:
    return lambda i: names[i % len(names)]


def run_of(scheduled_s: Floats, ttft_s: Floats | float, last_s: float = 0.5, **changed: Any) -> Columns:
    """Requests sent when scheduled, with a first event ``ttft_s`` later and the last ``last_s`` after it."""
    n = len(scheduled_s)
    one = columns(request(output_tokens=50))
    values = {f.name: _repeated(getattr(one, f.name), n) for f in fields(Columns)}
    first = np.broadcast_to(ttft_s, n).astype(np.float64)
    times = {
        "scheduled_s": scheduled_s,
        "sent_s": scheduled_s,
        "first_event_s": first,
        "last_event_s": first + last_s,
        "ended_s": scheduled_s + first + last_s,
    }
    return Columns(**(values | times | changed))


def span(seconds: float) -> Window:
    return Window(ns(0.0), ns(seconds), "")


def everybody(c: Columns, window: Window) -> Population:
    return Population.of(c, window.scheduled(c), np.arange(len(c)))


def wandering(runs: int, seconds: float, constant_s: float, seed: int, step_s: float = 10.0) -> Floats:
    """Noise of variance 1 on a grid of ``step_s``, shape (runs, steps): each value resembles those that are
    less than ``constant_s`` away."""
    random = np.random.default_rng(seed)
    stay = float(np.exp(-step_s / constant_s))
    steps = int(seconds / step_s) + 1
    noise = np.empty((runs, steps))
    noise[:, 0] = random.standard_normal(runs)
    for i in range(1, steps):
        noise[:, i] = stay * noise[:, i - 1] + np.sqrt(1 - stay**2) * random.standard_normal(runs)
    return noise


def _repeated(value: Any, n: int) -> Any:
    if isinstance(value, Labels):
        return Labels(np.repeat(value.codes, n), value.names)
    return np.repeat(value, n) if isinstance(value, np.ndarray) else value


Batch = tuple[str, list[RequestRecord]]


@contextmanager
def going_on(run: Path, batches: Sequence[Batch], **facts: object) -> Iterator[FrameLog]:
    """A run directory as the master has it while the run goes on; each worker's batches are numbered."""
    run.mkdir(exist_ok=True)
    workers = [
        WorkerFacts(id=name, index=i, announced=999, received=0, in_flight=3, lost=True, heard_ns=ns(60.0))
        for i, name in enumerate(dict.fromkeys(worker for worker, _ in batches))
    ]
    known: dict[str, object] = {"workers": workers, "slo": "ttft=1s", "name": "soak"}
    write_manifest(run, manifest(None, **{**known, **facts}))
    log = FrameLog(run / FRAMES_FILE)
    seqs: dict[str, int] = {}
    for worker, records in batches:
        seq = seqs[worker] = seqs.get(worker, -1) + 1
        log.append(frame(worker, seq, records))
    try:
        yield log
    finally:
        log.close()


def frame(worker: str, seq: int, records: Sequence[RequestRecord]) -> bytes:
    batch = RecordBatch.from_records(list(records), worker)
    return encode_frame(FrameHeader("run", worker, seq, len(records)), batch.to_bytes())
