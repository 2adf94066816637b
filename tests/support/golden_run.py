"""A made run of 5,000 requests with everything in it that a run can have, drawn once by a fixed seed; and
small ones, each drawn by a seed of its own."""

import json
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from metrics_cases import ORIGIN_NS
from summaries import summarise

from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import ClockFacts, HealthCell, Manifest, NodeHealth, ServerCall, WorkerFacts
from llm_locust.core.record import Doubt, Outcome, RequestRecord, TokenSource

FIRST = 0
REQUESTS = 5000
SPACING_S = 0.3
QUIET = 50  # the first of them, in the warm-up, are short: the server is idle between them
STUCK = 44  # one of the warm-up that was cut, without a token: 10 s after the window's start
WARMUP_S, STOP_S = 20.0, 1480.0  # requests are scheduled until 1,500 s
SLO = {"ttft": 0.35, "tpot": 0.03, "e2el": 1.2}  # seconds
SLOW = {"ttft": 0.6, "e2el": 1.6}  # of the class "slow", instead
GATES = (
    "goodput>=10%",
    "p50_ttft<1ms",
    "p99_ttft<1ms",
    "p99_ttft>1ms",
    "p99_ttft<1m",
    "error_rate<50%",
    "output_tps>1",
    "p50_connect<1s",
    "p50_tpot<1m",
    "p50_itl<1m",
    "error_rate<=100%",
)
IN_FLIGHT_UNSEEN_NS = (
    2_000_000_000  # calls were over for the first worker so much later than for their records
)
UNSENT_BY_CLASS = {"fast": 2, "": 1}
PRICES = {"gpu_hour_cost": 2.5, "gpus": 8, "input_token_price": 0.2, "output_token_price": 0.6}

#: Error texts, and what is left of them without what differs from case to case.
ERRORS = {
    Outcome.HTTP_ERROR: ("queue is full: {n} waiting", "queue is full: <n> waiting"),
    Outcome.API_ERROR: ("engine died", "engine died"),
    Outcome.CONNECT_ERROR: ("no route to 10.0.0.{m}:8000", "no route to <addr>"),
    Outcome.TIMEOUT: ("no byte for {m}.5s", "no byte for <n>"),
    Outcome.TRUNCATED: ("the stream ended early", "the stream ended early"),
    Outcome.INVALID: ("not JSON", "not JSON"),
    Outcome.EMPTY: (None, None),
    Outcome.REJECTED: ("the answer is not JSON", "the answer is not JSON"),
}

_SHARES = {Outcome.OK: 0.85, Outcome.CANCELLED: 0.02} | dict.fromkeys(ERRORS, 0.13 / len(ERRORS))
_WITHOUT_TOKENS = {Outcome.HTTP_ERROR, Outcome.CONNECT_ERROR, Outcome.EMPTY, Outcome.INVALID}
_COMPLETE = {Outcome.OK, Outcome.REJECTED}


def records() -> list[RequestRecord]:
    draw = np.random.default_rng(20261121)
    made = [_record(i, draw) for i in range(REQUESTS)]
    made[STUCK] = replace(made[STUCK], ended_ns=ORIGIN_NS + round(30 * 1e9))
    return made


@contextmanager
def generated(seed: int) -> Iterator[list[RequestRecord]]:
    """A run of 40 to 200 requests, whose spacing, window and limits are this module's meanwhile."""
    draw = np.random.default_rng([20261128, seed])
    requests, spacing_s = int(draw.integers(40, 200)), float(draw.choice([0.05, 0.3, 1.0]))
    length_s, strict = requests * spacing_s, float(draw.choice([0.5, 1.0, 2.0]))
    own: dict[str, Any] = {
        "FIRST": 1000 * (seed + 1),  # what is drawn by the number of a request is drawn anew
        "REQUESTS": requests,
        "SPACING_S": spacing_s,
        "WARMUP_S": round(length_s * float(draw.choice([0.0, 0.1, 0.3])), 3),
        "STOP_S": round(length_s * float(draw.choice([0.8, 0.95, 1.1])), 3),
        "SLO": {metric: round(limit_s * strict, 3) for metric, limit_s in SLO.items()},
        "SLOW": {metric: round(limit_s * strict, 3) for metric, limit_s in SLOW.items()},
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in own.items():
            patch.setattr(sys.modules[__name__], name, value)
        yield [_record(FIRST + i, draw) for i in range(requests)]


def batch(made: list[RequestRecord]) -> RecordBatch:
    """The records of two workers, those of the second after those of the first."""
    return RecordBatch.concat(
        RecordBatch.from_records(with_first_tries(own), worker)
        for own, worker in ((made[::2], "w1"), (made[1::2], "w2"))
    )


@cache
def whole() -> tuple[RecordBatch, Manifest]:
    """The run of 5,000 requests."""
    made = records()
    return batch(made), manifest(made)


@cache
def summary() -> Any:
    """Its summary, as ``summary.json`` has it."""
    return json.loads(json.dumps(summarise(*whole())))


def with_first_tries(made: list[RequestRecord]) -> list[RequestRecord]:
    """The records, and before each request that was sent again one for each sending that broke."""
    return [each for r in made for each in (*[_first_try(r)] * r.retries, r)]


def _first_try(r: RequestRecord) -> RequestRecord:
    return RequestRecord(
        request_id=r.request_id,
        name=r.name,
        slo_class=r.slo_class,
        outcome=Outcome.RESENT,
        error="the connection broke",
        scheduled_ns=r.scheduled_ns,
        started_ns=r.started_ns,
        connected_ns=r.started_ns,
        sent_ns=r.started_ns + 1_000,
        ended_ns=r.started_ns + 40_000_000,
        user=r.user,
        session=r.session,
        turn=r.turn,
        prompt_id=r.prompt_id,
        replica="d",
        reused=True,
        local_port=r.local_port,
        output_tokens=0,
    )


def manifest(made: list[RequestRecord]) -> Manifest:
    """Of a run whose second worker died: 3 of its records did not come, 2 requests were under way."""
    health = NodeHealth(
        hub_lag_ms_p99=0.7, hub_lag_ms_max=9.0, cpu_percent_max=41.5, rss_mib_max=120.5,
        steal_percent=1.5, throttled_percent=0.75, run_queue_percent=3.25,
        cells=[_cell(15.0, 99.0, 50.0), _cell(500.0, 40.5, 0.6), _cell(600.0, 30.5, 0.2)],
    )  # fmt: skip
    clock = ClockFacts(
        offset_ns=2_000_000, error_ns=150_000, least_offset_ns=0, most_offset_ns=1, exchanges=9
    )
    first, second = (len(with_first_tries(own)) for own in (made[::2], made[1::2]))
    return Manifest(
        id="20261121-golden",
        name="golden",
        started_ns=ORIGIN_NS,
        stopped_ns=ORIGIN_NS + round(STOP_S * 1e9),
        ended_ns=ORIGIN_NS + round(1510 * 1e9),
        host="http://127.0.0.1:8000",
        replicas_ready=["http://127.0.0.1:8001", "http://127.0.0.1:8002"],
        ready_s=1.5,
        server_calls=[
            *_calls(30, "/start_profile", None),
            *_calls(90, "/stop_profile", "timed out"),
        ],
        model="tiny",
        scenario="golden.yaml",
        seed=7,
        versions={"llm-locust": "0.1.0"},
        slo=" ".join(f"{metric}={limit_s * 1e3:g}ms" for metric, limit_s in SLO.items()),
        class_slos={"slow": SLOW},
        gates=" ".join(GATES),
        warmup_s=WARMUP_S,
        open_loop=True,
        stop_reason="num_requests=5000",
        options=dict(PRICES),
        workers_expected=2,
        workers=[
            WorkerFacts(
                id="w1", index=0, announced=first, received=first, batches=20, resent=1, received_seqs="0-19",
                joined_ns=ORIGIN_NS - 10**9, heard_ns=ORIGIN_NS + 1500 * 10**9, clock=clock, health=health,
                held_back=5, longest_held_ns=1_500_000_000, backoff_waits=3, backoff_ns=6_000_000_000,
                unsent=4, unsent_warmup=1,
                unsent_by_class=UNSENT_BY_CLASS,
                in_flight_ns=sum(r.ended_ns - r.started_ns for r in made[::2]) + IN_FLIGHT_UNSEEN_NS,
            ),
            WorkerFacts(
                id="w2", index=1, announced=second + 3, received=second, in_flight=2, lost=True, late=True,
                joined_ns=ORIGIN_NS + 10**9, heard_ns=ORIGIN_NS + 1490 * 10**9, dropped=1,
                faults=["it reported 5 finished requests, after 9"],
                held_back=2, longest_held_ns=2_500_000_000, backoff_waits=2, backoff_ns=1_500_000_000,
            ),
        ],
        master=NodeHealth(hub_lag_ms_max=4.5, cpu_percent_max=12.0),
        torn=["batches.frames: bytes 10 to 20 are not a frame"],
        messages_dropped={"w2": {"llm_batch": 2, "llm_done": 1}, "stranger": {"llm_ping": 4}},
    )  # fmt: skip


def _cell(at_s: float, cpu_percent: float, lag_ms: float) -> HealthCell:
    """Of 10 s, which ended at this time by a clock that is 2 ms behind the run's."""
    return HealthCell(
        at_s=ORIGIN_NS / 1e9 + at_s - 0.002, seconds=10.0, cpu_percent=cpu_percent, hub_lag_ms_p99=lag_ms,
        hub_lag_ms_max=10 * lag_ms, steal_percent=cpu_percent / 100, throttled_percent=lag_ms / 10,
        run_queue_percent=10 * lag_ms,
    )  # fmt: skip


def _calls(at_s: float, path: str, error: str | None) -> list[ServerCall]:
    at_ns = ORIGIN_NS + round(at_s * 1e9)
    first, second = "http://127.0.0.1:8001", "http://127.0.0.1:8002"
    status = 404 if error is None else None
    return [
        ServerCall(at_ns=at_ns, path=path, target=first, status=200),
        ServerCall(at_ns=at_ns, path=path, target=second, status=status, error=error),
    ]


def _ends(shares: Sequence[float]) -> list[float]:
    sums = np.cumsum(shares)
    ends: list[float] = (sums / sums[-1]).tolist()
    return ends


#: Where each one's share of 0 to 1 ends.
_OUTCOMES, _NAMES, _REPLICAS, _RETRIES = map(
    _ends, (list(_SHARES.values()), [0.6, 0.3, 0.1], [0.04, 0.4, 0.3, 0.26], [0.97, 0.02, 0.01])
)


def _one(draw: np.random.Generator, ends: Sequence[float]) -> int:
    """What ``draw.choice`` draws with shares, at a tenth of its time."""
    return bisect_right(ends, draw.random())


def _any(draw: np.random.Generator, of: Sequence[Any]) -> Any:
    return of[int(draw.integers(len(of)))]


def _record(i: int, draw: np.random.Generator) -> RequestRecord:
    outcome = list(_SHARES)[_one(draw, _OUTCOMES)]
    scheduled = ORIGIN_NS + round((i - FIRST + draw.random()) * SPACING_S * 1e9)
    started = scheduled + int(draw.integers(0, 15_000_000))
    reused = bool(draw.random() < 0.8)
    connected = started + (0 if reused else int(draw.integers(100_000, 4_000_000)))
    sent = connected + int(draw.integers(1_000, 60_000))
    streamed = bool(draw.random() < 0.95)
    arrivals = _arrivals(i, outcome, streamed, draw)
    last = int(arrivals[-1]) if len(arrivals) else int(draw.integers(1_000_000, 900_000_000))
    reached = outcome is not Outcome.CONNECT_ERROR
    error = ERRORS.get(outcome, (None, None))[0]
    status = {Outcome.HTTP_ERROR: _any(draw, [429, 503]), Outcome.CONNECT_ERROR: None}.get(outcome, 200)
    reads = len(arrivals) + 2
    return RequestRecord(
        request_id=f"r{i}",
        name=["chat", "search", "tool"][_one(draw, _NAMES)],
        slo_class=_any(draw, ["", "fast", "slow"]),
        model="tiny",
        outcome=outcome,
        scheduled_ns=scheduled,
        started_ns=started,
        connected_ns=connected if reached else None,
        sent_ns=sent if reached else None,
        headers_ns=sent + 1_000_000 if reached else None,
        ended_ns=sent + last + int(draw.integers(10_000, 3_000_000)),
        arrivals_ns=arrivals,
        first_answer_ns=_first_answer(arrivals, draw),
        streamed=streamed,
        user=i % 50,
        status=status,
        error=error and error.format(n=int(draw.integers(1, 500)), m=int(draw.integers(1, 200))),
        replica=[None, "a", "b", "c"][_one(draw, _REPLICAS)] if reached else None,
        reused=reused,
        local_port=None if i % 31 == 0 else 40_000 + i * i % 13,
        retries=_one(draw, _RETRIES),
        kernel_stamps=True,
        client_lag_ns=int(draw.integers(10_000, 300_000)) * (1 if i % 15 else 5),
        end_lag_ns=None if i % 7 == 0 else 1_000 * (i % 400) + 50_000,
        clock_step_ns=5_000_000 if i in (1000, 2000, 3000) else None,
        rtt_ns=int(draw.integers(30_000, 90_000)) if draw.random() < 0.9 else None,
        reads=reads,
        coalesced_reads=int(draw.random() < 0.2),
        abandoned=outcome is Outcome.CANCELLED and bool(draw.random() < 0.4),
        left_open=i % 17 == 0,
        rejected_by=_any(draw, ["json", "regex"]) if outcome is Outcome.REJECTED else None,
        **_with_events(i, arrivals, streamed, _tokens(outcome, len(arrivals), streamed, draw)),
        doubt=_doubt(i) if outcome is Outcome.OK else None,
        **_session(i),
        **_worth(i, outcome, draw),
    )  # fmt: skip


def _arrivals(i: int, outcome: Outcome, streamed: bool, draw: np.random.Generator) -> Any:
    events = 0 if outcome in _WITHOUT_TOKENS or not streamed else int(draw.integers(1, 60))
    if outcome is Outcome.CANCELLED and draw.random() < 0.5:  # given up before the first token
        events = 0
    if i < QUIET:
        return np.array([30_000_000, 50_000_000])[:events]
    ttft = draw.lognormal(np.log(0.2 + 0.05 * (i - FIRST) / REQUESTS), 0.5)
    gaps = np.where(draw.random(events) < 0.05, 0, 0.005 + draw.exponential(0.02, events))  # some in one read
    return np.cumsum(np.concatenate([[ttft], gaps[1:]])[:events] * 1e9).astype(np.int64)


def _doubt(i: int) -> Doubt | None:
    """Of some answers: why they may not be what was asked for. Draws of its own."""
    draw = np.random.default_rng([20261128, i])
    return list(Doubt)[int(draw.integers(0, len(Doubt)))] if draw.random() < 0.05 else None


def _first_answer(arrivals: Any, draw: np.random.Generator) -> int | None:
    reasoned = int(draw.integers(0, 5)) if draw.random() < 0.2 else 0
    return int(arrivals[reasoned]) if len(arrivals) > reasoned else None


def _tokens(outcome: Outcome, events: int, streamed: bool, draw: np.random.Generator) -> dict[str, Any]:
    """Counts by usage, by the tokenizer, or left to the number of events; sometimes two tokens per event."""
    answered = outcome in _COMPLETE or events > 0
    known = bool(draw.random() < 0.9) or not streamed
    n = events * _any(draw, [1, 1, 2]) if streamed else int(draw.integers(1, 60))
    by_usage = bool(draw.random() < 0.8)
    source = (TokenSource.USAGE if by_usage else TokenSource.TOKENIZER) if known else TokenSource.EVENTS
    inputs = int(draw.integers(10, 2000))
    return {
        "input_tokens": inputs if answered and by_usage else None,
        "asked_input_tokens": round(inputs * _any(draw, [0.9, 0.995, 1.0, 1.2])),
        "cached_tokens": int(draw.integers(0, inputs)) if answered and by_usage else None,
        "output_tokens": n if answered and known else None,
        "asked_output_tokens": _any(draw, [8, n + 1, max(1, n)]),
        "output_chars": 4 * n + int(draw.integers(0, 9)) if answered and draw.random() < 0.95 else None,
        "token_source": source,
        "finish_reason": _any(draw, ["stop", "length"]) if outcome in _COMPLETE else None,
    }


def _with_events(i: int, arrivals: Any, streamed: bool, told: dict[str, Any]) -> dict[str, Any]:
    """Events without a token: a role before them, a finish reason after them, and one more after that.

    Of those that ended with one, a third had an end (EOS) that usage counts. Of others some had reasoning
    that did not come.
    """
    draw = np.random.default_rng([20261121, i])
    if not streamed or not len(arrivals):
        return told
    first, last = int(arrivals[0]), int(arrivals[-1])
    finish = last + int(draw.integers(0, 30_000_000)) if draw.random() < 0.6 else None
    found = {
        "first_chunk_ns": max(0, first - int(draw.integers(0, 2_000_000))) if draw.random() < 0.7 else None,
        "finish_ns": finish,
        "last_chunk_ns": None if finish is None else finish + _any(draw, [0, 40_000]),
    }
    n, by_usage = told["output_tokens"], told["token_source"] is TokenSource.USAGE
    if n is not None and by_usage and draw.random() < 0.3:
        found["output_tokens"] = n + 1  # the end, where the finish reason came by itself
    elif n is not None and by_usage and draw.random() < 0.1:
        found |= {"output_tokens": n + 40, "reasoning_tokens": 40, "hidden_tokens": 40}
    elif (
        n is not None and by_usage and draw.random() < 0.1
    ):  # the first event has some, the finish one or none
        opening, end = int(draw.integers(1, 12)), int(draw.integers(0, 2))
        more = {"opening_tokens": opening, "came_tokens": n - 1 + opening}
        found |= {"output_tokens": n - 1 + opening + end, **more}
    if told["token_source"] is TokenSource.EVENTS and draw.random() < 0.05:
        found["count_fault"] = _any(draw, ["fewer_than_events", "more_than_bytes"])
    elif by_usage and draw.random() < 0.02:
        found["count_fault"] = _any(draw, ["reasoning_left_out", "other_total", "more_than_bytes"])
    if draw.random() < 0.02:
        found["unread"] = "thoughts_of_it"
    return told | found


def _session(i: int) -> dict[str, Any]:
    """Conversations of twelve turns and of three; every other long one was to have more."""
    block = i // 12
    if block % 3:
        return {"session": None, "turn": None}
    if block % 2:
        return {"session": f"s{i // 3}-of3", "turn": i % 3}
    return {"session": f"long{block}-of{12 if block % 4 else 13}", "turn": i % 12}


def _worth(i: int, outcome: Outcome, draw: np.random.Generator) -> dict[str, Any]:
    answered = outcome in _COMPLETE
    return {
        "prompt_id": f"p{i % 400}" if i % 2 else None,
        "correct": bool(draw.random() < 0.8) if answered and draw.random() < 0.7 else None,
        "answer_hash": int(draw.integers(-(2**60), 2**60)) // 2**59 if answered else None,
    }
