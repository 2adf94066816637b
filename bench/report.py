"""``make bench-report``: time and memory of a report on a synthetic run.

The run is written to disk part by part, then ``llm-locust report`` reads it in a process of its own.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich.console import Console

from llm_locust.core.arrow import SCHEMA
from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import Manifest, NodeHealth, WorkerFacts
from llm_locust.core.record import Outcome, TokenSource
from llm_locust.store import REQUESTS_FILE, write_manifest, write_requests

TOKENS = 100
RATE_PER_S = 5_000
PART = 1 << 16
STARTED_NS = 1_795_000_000_000_000_000
SLO = "ttft=80ms tpot=25ms e2el=3s"
TEXTS = {
    "worker": [f"w{i}" for i in range(4)],
    "name": ["chat", "search"],
    "class": ["interactive", "batch", "agent"],
    "replica": [f"replica-{i}" for i in range(8)],
}

#: Rows -> seconds and GiB at most, on two cores.
MARKS = {1_000_000: (40.0, 2.0), 10_000_000: (180.0, 3.0)}


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one command; ``read_mb`` is what it read from the file system, cached or not."""

    wall_s: float
    cpu_s: float
    peak_gib: float
    read_mb: float


def parts(rows: int, seed: int) -> Iterator[RecordBatch]:
    """An open loop at a steady rate: TTFT from 40 ms on, a token every 20 ms on average, 1 % failures."""
    rng = np.random.default_rng(seed)
    for first in range(0, rows, PART):
        yield _part(rng, first, min(PART, rows - first))


def _part(rng: np.random.Generator, first: int, n: int) -> RecordBatch:
    ok = rng.random(n) >= 0.01
    tokens = np.where(ok, TOKENS, 0)
    scheduled = STARTED_NS + (first + np.arange(n)) * (1_000_000_000 // RATE_PER_S)
    sent = scheduled + _ns(rng, n, 0.0, 0.0005)
    arrivals = _ns(rng, n * TOKENS, 0.015, 0.005).reshape(n, TOKENS)
    arrivals[:, 0] = _ns(rng, n, 0.04, 0.02)
    lists = np.cumsum(arrivals, axis=1)[ok]
    last = np.zeros(n, np.int64)
    last[ok] = lists[:, -1]
    known = {
        "request_id": pa.array([f"{i:032x}" for i in range(first, first + n)]),
        "outcome": _text(np.where(ok, 0, 1), [Outcome.OK, Outcome.HTTP_ERROR]),
        "error": _text(np.where(ok, -1, 0), ["no room"]),
        "status": pa.array(np.where(ok, 200, 503).astype(np.int16)),
        "token_source": _text(np.zeros(n, np.int64), [TokenSource.USAGE]),
        **{column: _text(rng.integers(0, len(names), n), names) for column, names in TEXTS.items()},
        "scheduled_ns": pa.array(scheduled),
        "started_ns": pa.array(scheduled),
        "connected_ns": pa.array(sent),
        "sent_ns": pa.array(sent),
        "headers_ns": pa.array(sent + 30_000_000),
        "ended_ns": pa.array(sent + last + _ns(rng, n, 0.001, 0.0001)),
        "arrivals_ns": pa.ListArray.from_arrays(
            pa.array(np.append(0, np.cumsum(tokens)).astype(np.int32)),
            pa.array(lists.ravel()),
            type=SCHEMA.field("arrivals_ns").type,
        ),
        "first_answer_ns": pa.array(arrivals[:, 0], mask=~ok),
        "input_tokens": pa.array(rng.integers(100, 1000, n), mask=~ok),
        "output_tokens": pa.array(tokens, mask=~ok),
        "output_chars": pa.array(tokens * 4, mask=~ok),
        "client_lag_ns": pa.array(_ns(rng, n, 0.00002, 0.00002)),
        "rtt_ns": pa.array(_ns(rng, n, 0.0001, 0.00002)),
        "reads": pa.array(tokens.astype(np.int32)),
        "bytes_received": pa.array(tokens * 250),
    }
    return RecordBatch.from_table(
        pa.table([known[f.name] if f.name in known else _constant(f, n) for f in SCHEMA], names=SCHEMA.names)
    )


def _ns(rng: np.random.Generator, n: int, least_s: float, more_s: float) -> NDArray[np.int64]:
    """``least_s`` plus an exponential time, in whole nanoseconds."""
    more_ns = rng.standard_exponential(n, dtype=np.float32) * np.float32(more_s * 1e9)
    return more_ns.astype(np.int64) + round(least_s * 1e9)


def _text(codes: NDArray[np.int64], names: Sequence[str]) -> pa.DictionaryArray:
    index = pa.array(codes.astype(np.int32), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(index, pa.array([str(name) for name in names]))


def _constant(field: pa.Field, n: int) -> pa.Array:
    """Column of constants: null if allowed, else true, 0 or an empty text."""
    if field.nullable:
        return pa.nulls(n, field.type)
    if pa.types.is_boolean(field.type):
        return pa.array(np.ones(n, np.bool_))
    if pa.types.is_dictionary(field.type):
        return _text(np.zeros(n, np.int64), [""])
    return pa.array(np.zeros(n, np.int64)).cast(field.type)


def make_run(run: Path, rows: int, seed: int) -> None:
    worker = WorkerFacts(
        id="w1", index=0, announced=rows, received=rows, health=NodeHealth(cpu_percent_max=60.0)
    )
    stopped_ns = STARTED_NS + rows * (1_000_000_000 // RATE_PER_S)
    write_manifest(
        run,
        Manifest(
            id="bench", name="bench", started_ns=STARTED_NS, stopped_ns=stopped_ns, slo=SLO,
            open_loop=True, workers_expected=1, workers=[worker],
        ),
    )  # fmt: skip
    write_requests(run / REQUESTS_FILE, parts(rows, seed))


def measure(command: Sequence[str | Path]) -> Cost:
    """Run a command to its end.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and its /proc still exists
        wall_s = time.monotonic() - began
        counts = dict(line.split(": ") for line in Path(f"/proc/{process.pid}/io").read_text().splitlines())
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20, int(counts["rchar"]) / 1e6)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rows", type=int, default=1_000_000, help=f"requests of {TOKENS} tokens (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=Path, help="where the run is made; 10 million rows take 5 GB")
    args = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="llm-locust-", dir=args.dir) as folder:
        run = Path(folder)
        began = time.monotonic()
        make_run(run, args.rows, args.seed)
        size_mb = (run / REQUESTS_FILE).stat().st_size / 1e6
        console.print(
            f"{args.rows:,} requests of {TOKENS} tokens: {size_mb:,.0f} MB of Parquet, "
            f"made in {time.monotonic() - began:.0f} s"
        )
        cost = measure([sys.executable, "-m", "llm_locust", "report", run])
    console.print(
        f"llm-locust report: {cost.wall_s:.1f} s wall, {cost.cpu_s:.1f} s CPU, "
        f"{cost.peak_gib:.2f} GiB peak RSS, {cost.read_mb:,.0f} MB read"
    )
    wall_s, gib = MARKS.get(args.rows, (float("inf"), float("inf")))
    met = cost.wall_s <= wall_s and cost.peak_gib <= gib
    if args.rows in MARKS:
        console.print(f"mark: {wall_s:.0f} s and {gib:.0f} GiB: {'met' if met else 'NOT MET'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
