"""``make soak-ui``: a day of the live store in minutes, with a simulated clock.

Two workers report every 3 s for 24 h; now and then the load changes, and a worker leaves and joins. The
store's memory must be bounded, and a page must be answered within 200 ms and 2 MB however long the run is.
"""

import argparse
import pickle
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np
import psutil
from prometheus_client import generate_latest
from rich.console import Console
from rich.table import Table

from llm_locust.core.batch import RecordBatch
from llm_locust.core.record import Outcome, RequestRecord, TokenSource
from llm_locust.live.counting import count
from llm_locust.live.counts import KeyLimit
from llm_locust.live.prometheus import registry
from llm_locust.live.series import SPANS
from llm_locust.live.state import MISSING, LiveRun, Observation, WorkerState
from llm_locust.live.store import LiveStore
from llm_locust.live.worker_report import LiveReport, LiveSlice, encode_report
from llm_locust.metrics.limits import parse_slo
from llm_locust.metrics.requests.judgement import Limits
from llm_locust.swarm.process.event_loop import KEEP_S
from llm_locust.swarm.web.series_feed import Feed
from llm_locust.swarm.web.status import look_at, status
from llm_locust.swarm.web.tables import by_name, by_replica

REPORT_S = 3.0
WORKERS = ("a", "b")
REQUESTS_A_REPORT = 64
REPLICAS = 8
TOKENS = 50

MOST_MS = 200.0
MOST_BYTES = 2_000_000
#: The store may be so many times as large as after a quarter of the time: the cells of the whole run come
#: and go between half of the most and the most.
MOST_GROWTH = 1.5

_START_S = 1_795_000_000.0
_SHAPES = 20
_MIB = 1 << 20


@dataclass(slots=True)
class Clock:
    now_s: float = _START_S

    def __call__(self) -> float:
        return self.now_s


@dataclass(frozen=True, slots=True)
class Sample:
    """Measurements at one time of the run; the largest of the answers of each kind."""

    hours: float
    store_mib: float
    rss_mib: float
    answers_ms: dict[str, float]
    answers_bytes: dict[str, int]


class Day:
    """A store, and the workers that report to it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.seqs = dict.fromkeys(WORKERS, 0)
        self.run = LiveRun(id="soak", model="m", limits=Limits(parse_slo("ttft=500ms tpot=50ms")))
        self.store = LiveStore(self.clock)
        self.store.begin(self.run)
        self._slices = [made_slices(self.run, np.random.default_rng(seed)) for seed in range(_SHAPES)]

    def step(self) -> None:
        """Simulate one interval of reports, with observations in between."""
        number = self.seqs["a"]
        away = number % 700 > 680
        users = 64 + 8 * (number // 400 % 4)
        here = WorkerState(id="a", state="running", users=users, in_flight=users, cpu_percent=40.0)
        other = WorkerState(id="b", state=MISSING if away else "running", users=users, in_flight=users)
        for _ in range(int(REPORT_S)):
            self.clock.now_s += 1.0
            self.store.observe(Observation(users=users, target=users, workers=(here, other)))
        for worker in WORKERS[: 1 if away else 2]:
            seq = self.seqs[worker]
            self.seqs[worker] = seq + 1
            finished = (seq + 1) * REQUESTS_A_REPORT
            slices = self._slices[seq % _SHAPES]
            self.store.take(worker, encode_report(LiveReport("soak", 0, seq, finished, slices)))
        if away:
            self.seqs["a"] = number + 1


def made_slices(run: LiveRun, rng: np.random.Generator) -> list[LiveSlice]:
    """Counts of one report: requests to two names on several replicas, a few of them failed."""
    records = [_record(i, rng) for i in range(REQUESTS_A_REPORT)]
    limit, third = KeyLimit(), REQUESTS_A_REPORT // 3
    return [
        LiveSlice.of(
            0.5 + second,
            count(
                RecordBatch.from_records(records[second * third : (second + 1) * third], "w"),
                limit,
                run,
            ),
        )
        for second in range(3)
    ]


def _record(i: int, rng: np.random.Generator) -> RequestRecord:
    gaps = np.concatenate([rng.lognormal(-2, 0.5, 1), rng.lognormal(-4, 0.5, TOKENS - 1)])
    arrivals_ns = np.cumsum((gaps * 1e9).astype(np.int64))
    fails = rng.random() < 0.02
    return RequestRecord(
        request_id=str(i),
        name=f"name {i % 2}",
        outcome=Outcome.HTTP_ERROR if fails else Outcome.OK,
        scheduled_ns=0,
        started_ns=0,
        connected_ns=0,
        sent_ns=0,
        ended_ns=1_000_000 if fails else int(arrivals_ns[-1]),
        arrivals_ns=arrivals_ns[:0] if fails else arrivals_ns,
        input_tokens=None if fails else 500,
        output_tokens=None if fails else TOKENS,
        token_source=TokenSource.USAGE,
        replica=f"replica-{i % REPLICAS}",
        kernel_stamps=True,
        client_lag_ns=100_000,
        reads=TOKENS,
    )


def measure(day: Day, feed: Feed, tokens: dict[str, str]) -> Sample:
    """Request everything: as a page that has just been opened, and as one that has been open all the time."""
    store = day.store
    answers_ms: dict[str, float] = {}
    answers_bytes: dict[str, int] = {}

    def ask(kind: str, answer: Callable[[], bytes]) -> None:
        began = time.perf_counter()
        body = answer()
        answers_ms[kind] = max(answers_ms.get(kind, 0.0), (time.perf_counter() - began) * 1e3)
        answers_bytes[kind] = max(answers_bytes.get(kind, 0), len(body))

    time.sleep(KEEP_S)  # otherwise the answers would be cached ones of the hour before
    for span in SPANS:
        told = feed.answer(span, tokens.get(span, ""))
        tokens[span] = told["token"]
        new = Feed(store)
        ask("page opened", lambda new=new, span=span: _page(store, new.answer(span)))  # type: ignore[misc]
    day.step()
    time.sleep(KEEP_S)
    for span in SPANS:
        ask("poll", lambda span=span: _page(store, feed.answer(span, tokens[span])))  # type: ignore[misc]
    ask("table", lambda: _table(store))
    ask("metrics", lambda: generate_latest(registry(store.at_rest())))
    return Sample(
        hours=(day.clock() - _START_S) / 3600,
        store_mib=len(pickle.dumps((store.content, store.marks))) / _MIB,
        rss_mib=psutil.Process().memory_info().rss / _MIB,
        answers_ms=answers_ms,
        answers_bytes=answers_bytes,
    )


def _page(store: LiveStore, answer: dict[str, object]) -> bytes:
    return msgspec.json.encode(answer | {"now": status(look_at(store.at_rest()), ())})


def _table(store: LiveStore) -> bytes:
    look = look_at(store.at_rest())
    return msgspec.json.encode([by_name(look), by_replica(look)])


def soak(hours: float, console: Console) -> list[Sample]:
    day, samples = Day(), []
    feed, tokens = Feed(day.store), dict[str, str]()
    steps = round(hours * 3600 / REPORT_S)
    for step in range(1, steps + 1):
        day.step()
        if step % max(1, steps // 12) == 0:
            samples.append(measure(day, feed, tokens))
            console.print(f"{samples[-1].hours:5.1f} h", highlight=False)
    return samples


def told(samples: list[Sample], console: Console) -> bool:
    """Print the samples; return whether all is as expected."""
    kinds = list(samples[0].answers_ms)
    table = Table("hours", "store MiB", "process MiB", *(f"{kind} ms (kB)" for kind in kinds))
    for s in samples:
        answers = (f"{s.answers_ms[kind]:.1f} ({s.answers_bytes[kind] / 1e3:.1f})" for kind in kinds)
        table.add_row(f"{s.hours:.1f}", f"{s.store_mib:.2f}", f"{s.rss_mib:.0f}", *answers)
    console.print(table)
    slowest = max(max(s.answers_ms.values()) for s in samples)
    largest = max(max(s.answers_bytes.values()) for s in samples)
    settled = samples[len(samples) // 4].store_mib
    growth = max(s.store_mib for s in samples) / settled
    console.print(f"slowest answer {slowest:.0f} ms (at most {MOST_MS:g})")
    console.print(f"largest answer {largest / 1e3:.0f} kB (at most {MOST_BYTES / 1e3:g})")
    console.print(f"store at most {growth:.2f} times what it was after a quarter (at most {MOST_GROWTH:g})")
    return slowest <= MOST_MS and largest <= MOST_BYTES and growth <= MOST_GROWTH


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hours", type=float, default=24.0, help="of the store's clock (24)")
    options = parser.parse_args()
    console = Console(width=140)
    return 0 if told(soak(options.hours, console), console) else 1


if __name__ == "__main__":
    sys.exit(main())
