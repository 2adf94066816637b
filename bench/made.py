"""Data of a worker under load, made without any load."""

from typing import Any

import numpy as np
from locust.stats import RequestStats

from llm_locust.core.batch import RecordBatch
from llm_locust.core.record import Outcome, RequestRecord, TokenSource
from llm_locust.swarm.channel.shipping import BATCH_ROWS

TOKENS = 100


def made_batch(worker: str, rng: np.random.Generator, ended_ns: int, span_s: float) -> bytes:
    """A batch of streams of :data:`TOKENS` tokens that ended in the ``span_s`` before ``ended_ns``."""
    gaps = rng.exponential(0.005, (BATCH_ROWS, TOKENS)) + 0.015
    gaps[:, 0] = rng.exponential(0.02, BATCH_ROWS) + 0.04
    arrivals = np.cumsum(np.round(gaps * 1e9).astype(np.int64), axis=1)
    sent = ended_ns - arrivals[:, -1] - np.sort(rng.integers(0, round(span_s * 1e9), BATCH_ROWS))[::-1]
    lags, rtts = rng.integers(10_000, 100_000, (2, BATCH_ROWS))
    records = [
        RequestRecord(
            request_id=rng.bytes(16).hex(),
            name="chat",
            outcome=Outcome.OK,
            scheduled_ns=int(sent[i]) - 40_000,
            started_ns=int(sent[i]) - 30_000,
            connected_ns=int(sent[i]) - 30_000,
            sent_ns=int(sent[i]),
            headers_ns=int(sent[i] + arrivals[i, 0]) - 100_000,
            ended_ns=int(sent[i] + arrivals[i, -1]) + 200_000,
            arrivals_ns=arrivals[i],
            first_answer_ns=int(arrivals[i, 0]),
            model="sim",
            user=i % 4,
            status=200,
            finish_reason="length",
            input_tokens=int(rng.integers(100, 1000)),
            output_tokens=TOKENS,
            token_source=TokenSource.USAGE,
            asked_output_tokens=TOKENS,
            output_chars=4 * TOKENS,
            replica=f"replica-{i % 8}",
            peer="10.0.0.1:8000",
            reused=True,
            kernel_stamps=True,
            client_lag_ns=int(lags[i]),
            clock_step_ns=0,
            rtt_ns=int(rtts[i]),
            reads=TOKENS + 1,
            bytes_received=250 * TOKENS,
        )
        for i in range(BATCH_ROWS)
    ]
    return RecordBatch.from_records(records, worker).to_bytes()


def made_report(rng: np.random.Generator, requests: int) -> dict[str, Any]:
    """Locust's own statistics of an interval, as a worker reports them."""
    stats = RequestStats()
    for elapsed_ms in rng.normal(2_000, 50, requests):
        stats.log_request("chat", "chat", elapsed_ms, 250 * TOKENS)
    return {
        "stats": stats.serialize_stats(),
        "stats_total": stats.total.get_stripped_report(),
        "errors": stats.serialize_errors(),
        "user_classes_count": {"Chat": 1},
        "user_count": 1,
    }
