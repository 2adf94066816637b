"""Runs of thousands of requests, made as columns: what the tests of comparisons stand on."""

from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from metrics_cases import ORIGIN_NS, manifest
from numpy.typing import NDArray

from llm_locust.core.arrow import SCHEMA
from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import Manifest, NodeHealth, WorkerFacts
from llm_locust.figures.sides import Compared, measure_for_comparison
from llm_locust.metrics.question import PLAIN
from llm_locust.store import REQUESTS_FILE, create_run_dir, write_manifest, write_requests

Floats = NDArray[np.float64]

SECONDS = 60
TOKENS = 6
SLO = "ttft=100ms tpot=30ms"


def lognormal(
    rng: np.random.Generator, n: int = 2_000, correlated: float = 0.0, memory: float = 0.8
) -> Floats:
    """Values of mean 50 ms whose standard deviation is 0.3 of it.

    Args:
        correlated: the share of the variance of their logarithm that neighbours have in common.
        memory: how much of that a request has from the one before.
    """
    own, common = rng.normal(size=(2, n))
    steps = common * np.sqrt(1 - memory**2)
    steps[:1] = common[:1]
    level = np.array([*accumulate(steps.tolist(), lambda before, step: memory * before + step)])
    spread = np.sqrt(np.log(1 + 0.3**2))
    noise = np.sqrt(correlated) * level + np.sqrt(1 - correlated) * own
    values: Floats = 0.05 * np.exp(spread * noise - spread**2 / 2)
    return values


def made_batch(
    rng: np.random.Generator,
    ttft_s: Floats,
    pace_s: Floats | float = 0.02,
    failed: NDArray[np.bool_] | None = None,
    started_ns: int = ORIGIN_NS,
    late_ns: int = 0,
) -> RecordBatch:
    """Requests at random times of a minute, each of :data:`TOKENS` tokens; a failed one has none.

    Args:
        late_ns: how much later than they came the client stamped the tokens, without the kernel's stamps.
    """
    n = len(ttft_s)
    failed = np.zeros(n, dtype=np.bool_) if failed is None else failed
    gaps_s = np.broadcast_to(pace_s, n)[:, None] * rng.gamma(20, 1 / 20, (n, TOKENS))
    gaps_s[:, 0] = ttft_s
    arrivals_ns = np.rint(np.cumsum(gaps_s, axis=1) * 1e9).astype(np.int64)[~failed]
    at_ns = started_ns + np.sort(rng.integers(0, SECONDS * 1_000_000_000, n))
    ended_ns = at_ns.copy()
    ended_ns[~failed] += arrivals_ns[:, -1]
    events = np.where(failed, 0, TOKENS)
    offsets = np.concatenate([[0], np.cumsum(events)]).astype(np.int32)
    known: dict[str, Any] = {
        "request_id": ["r"] * n,
        "worker": ["w1"] * n,
        "name": ["chat"] * n,
        "class": [""] * n,
        "endpoint": ["chat"] * n,
        "model": ["tiny"] * n,
        "streamed": [True] * n,
        "outcome": np.where(failed, "http_error", "ok"),
        **dict.fromkeys(("scheduled_ns", "started_ns", "connected_ns", "sent_ns"), at_ns),
        "ended_ns": ended_ns,
        "arrivals_ns": pa.ListArray.from_arrays(
            offsets, arrivals_ns.ravel(), SCHEMA.field("arrivals_ns").type
        ),
        "input_tokens": [100] * n,
        "output_tokens": pa.array(events, mask=failed),
        "output_chars": pa.array(4 * events, mask=failed),
        "token_source": ["usage"] * n,
        "reused": [True] * n,
        "kernel_stamps": [not late_ns] * n,
        "client_lag_ns": [late_ns or 20_000] * n,
        **dict.fromkeys(("retries", "coalesced_reads", "bytes_received"), np.zeros(n, dtype=np.int64)),
        "reads": events,
        "abandoned": [False] * n,
    }
    columns = [known[f.name] if f.name in known else pa.nulls(n, f.type) for f in SCHEMA]
    return RecordBatch.from_table(pa.table(dict(zip(SCHEMA.names, columns, strict=True))))


def facts(rows: int, **known: Any) -> Manifest:
    worker = WorkerFacts(
        id="w1", index=0, announced=rows, received=rows, health=NodeHealth(cpu_percent_max=10.0)
    )
    return replace(manifest(SECONDS, slo=SLO, model="tiny", workers=[worker]), **known)


def compared(batch: RecordBatch, **known: Any) -> Compared:
    """A run in memory, measured for a comparison."""
    made = facts(len(batch), **known)
    return measure_for_comparison(batch, made, PLAIN)


@lru_cache(maxsize=64)
def made_run(seed: int, scale: float = 1.0, n: int = 2_000, late_ns: int = 0, **of_values: float) -> Compared:
    """A run whose TTFT is ``scale`` times :func:`lognormal`, and whose pace moves as the TTFT does."""
    rng = np.random.default_rng(seed)
    ttft_s = lognormal(rng, n, **of_values)
    return compared(made_batch(rng, scale * ttft_s, 0.015 + 0.1 * ttft_s, late_ns=late_ns))


def write_made_run(path: Path, number: int, scale: float = 1.0, n: int = 2_000, **known: Any) -> Path:
    """A run directory; each ``number`` has requests of its own."""
    rng = np.random.default_rng(number)
    started_ns = known.setdefault("started_ns", ORIGIN_NS)
    rows = made_batch(rng, scale * lognormal(rng, n), started_ns=started_ns)
    stopped_ns = known.setdefault("stopped_ns", started_ns + SECONDS * 1_000_000_000)
    known.setdefault("ended_ns", stopped_ns + 1_000_000_000)
    create_run_dir(path)
    write_manifest(path, facts(n, **({"id": path.name} | known)))
    write_requests(path / REQUESTS_FILE, [rows])
    return path
