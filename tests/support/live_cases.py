"""A live store whose clock a test turns, and workers that report to it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from metrics_cases import batch

from llm_locust.core.record import RequestRecord
from llm_locust.live.counting import LiveCounts, count
from llm_locust.live.counts import Counts, KeyLimit, LiveKey
from llm_locust.live.state import LiveRun, Observation, WorkerState
from llm_locust.live.store import LiveStore
from llm_locust.metrics.limits import Slo
from llm_locust.metrics.requests.judgement import Limits
from llm_locust.metrics.requests.latency import MeasuredFrom

START_S = 1_795_000_000.0
LIMITS = Limits(Slo(ttft_s=0.1, tpot_s=0.05))


@dataclass(slots=True)
class Clock:
    """Seconds of a time that passes when a test says so."""

    now_s: float = START_S

    def __call__(self) -> float:
        return self.now_s

    def ns(self) -> int:
        return round(self.now_s * 1e9)

    def tick(self, seconds: float = 1.0) -> None:
        self.now_s += seconds


def counts_of(
    *records: RequestRecord, limits: Limits = LIMITS, measured_from: MeasuredFrom = "sent"
) -> dict[LiveKey, Counts]:
    return count(batch(*records), KeyLimit(), LiveRun(id="r", limits=limits, measured_from=measured_from))


def observation(users: int = 4, *workers: WorkerState, target: int | None = None) -> Observation:
    return Observation(users=users, target=users if target is None else target, workers=workers)


def worker(id_: str = "w", state: str = "running", **known: Any) -> WorkerState:
    return WorkerState(id=id_, state=state, **known)


@dataclass
class Run:
    """A store in a run, and its workers' counts, all on one clock; reports need no time."""

    settle_s: float = 0.0
    limits: Limits = LIMITS
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.store = LiveStore(self.clock, self.settle_s)
        self.store.begin(LiveRun(id="run", model="m", limits=self.limits))
        self._workers: dict[str, LiveCounts] = {}

    def worker(self, name: str = "w") -> LiveCounts:
        if name not in self._workers:
            self._workers[name] = LiveCounts(self.store.run, self.clock.ns)
        return self._workers[name]

    def ended(self, records: Iterable[RequestRecord], worker: str = "w") -> None:
        """These requests end now, on a worker."""
        for record in records:
            self.worker(worker).add(record)

    def report(self) -> None:
        """Every worker reports now."""
        for name, counts in self._workers.items():
            assert self.store.take(name, counts.report()) == "counted"
