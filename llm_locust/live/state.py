"""State of a run that goes on, besides its requests: constants, stages, workers, servers, load."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from llm_locust.core.manifest import HealthCell, Manifest, NodeHealth, StageFacts
from llm_locust.figures.agents import PerTurn
from llm_locust.figures.search import SearchAnswer
from llm_locust.figures.stages import Stage
from llm_locust.metrics.limits import Slo, parse_slo
from llm_locust.metrics.measured import limits_of, measured_from
from llm_locust.metrics.requests.judgement import Limits
from llm_locust.metrics.requests.latency import MeasuredFrom
from llm_locust.metrics.server_series import FIGURES, ServerNow

# --- State of a run at one time, besides its requests


T = TypeVar("T", int, float)

MarkKind = Literal[
    "users", "rate", "came", "back", "lost", "went", "missed", "reset", "asked", "silent", "answers"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """Constants of a run. ``run_time_s`` is its planned length, None if unbounded.

    ``roots`` and ``pauses_s`` are those of the pool of trajectories; None in a run without one.
    """

    id: str
    model: str = ""
    limits: Limits = field(default_factory=lambda: Limits(Slo()))
    measured_from: MeasuredFrom = "sent"
    open_loop: bool = False
    run_time_s: float | None = None
    warmup_s: float = 0.0
    roots: int = 0
    pauses_s: PerTurn | None = None

    @classmethod
    def of(cls, manifest: Manifest, run_time_s: float | None = None) -> "LiveRun":
        """Make it from a manifest, with the same limits as in the report."""
        pool = manifest.trajectories
        return cls(
            id=manifest.id,
            model=manifest.model or "",
            limits=limits_of(manifest, parse_slo(manifest.slo)),
            measured_from=measured_from(manifest),
            open_loop=manifest.open_loop,
            run_time_s=run_time_s,
            warmup_s=manifest.warmup_s,
            roots=0 if pool is None else pool.roots,
            pauses_s=None if pool is None else PerTurn.of(pool.pauses_s),
        )


#: A user is listed as waiting from this silence on: every server has pauses of a second.
LEAST_SILENT_S = 5.0

#: Most users that a worker lists, the longest silent ones; most characters of what they ask.
MOST_WAITING, MOST_NAME = 1000, 256


class Waiting(msgspec.Struct, array_like=True, frozen=True):
    """A user whose latest request goes on: for ``silent_s`` nothing of it has come."""

    name: Annotated[str, Meta(max_length=MOST_NAME)]
    slo_class: Annotated[str, Meta(max_length=MOST_NAME)]
    streamed: bool
    silent_s: Annotated[float, Meta(ge=0, le=1e9)]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """A worker's last report; None for what it did not report.

    ``cpu_percent`` is of one core, ``hub_lag_ms`` the p99 of its event loop's lag in this run. ``now`` is its
    state of the last 9 to 18 s, in a run of hours of a longer time. ``waiting`` are its users whose request
    was silent for :data:`LEAST_SILENT_S` at ``told_s`` of the store's clock, the longest first.
    """

    id: str
    state: str
    reported_s: float = 0.0
    waiting: tuple[Waiting, ...] = ()
    users: int = 0
    in_flight: int | None = None
    cpu_percent: float | None = None
    hub_lag_ms: float | None = None
    now: HealthCell | None = None

    def measured(self, health: NodeHealth) -> "WorkerState":
        """The same worker with what it measured of itself."""
        cells = health.cells[-2:]
        return replace(
            self, hub_lag_ms=health.hub_lag_ms_p99, now=reduce(HealthCell.joined, cells) if cells else None
        )

    @property
    def here(self) -> bool:
        return self.state not in (MISSING, GONE)

    @property
    def lost(self) -> bool:
        """Whether it no longer reports, and did not announce its end."""
        return self.state == MISSING


#: States of a worker that no longer reports: it may come back, or it has left.
MISSING, GONE = "missing", "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The load at one time. ``users`` are running, ``target`` is their planned number.

    ``rate`` is an open loop's requests per second, over all workers. ``draining``: the load has ended, and
    requests in flight are waited for.
    """

    users: int
    target: int
    rate: float | None = None
    workers: tuple[WorkerState, ...] = ()
    draining: bool = False

    @property
    def in_flight(self) -> int | None:
        """Requests in flight at all workers, as far as reported; None before the first report."""
        counts = [w.in_flight for w in self.workers if w.here and w.in_flight is not None]
        return sum(counts) if counts else None


@dataclass(frozen=True, slots=True)
class LoadMark:
    """A change of the load or of the workers, at a time of the store's clock."""

    at_s: float
    kind: MarkKind
    text: str


@dataclass(frozen=True, slots=True)
class Gauges:
    """Observations of a span: their sums, their numbers, and the maxima.

    ``in_flight_n`` is the number of observations that had the requests in flight.
    """

    n: int = 0
    users: int = 0
    workers: int = 0
    in_flight_n: int = 0
    in_flight: int = 0
    in_flight_max: int | None = None
    cpu_percent_max: float | None = None
    hub_lag_ms_max: float | None = None

    @classmethod
    def of(cls, seen: Observation) -> "Gauges":
        here = [w for w in seen.workers if w.here]
        return cls(
            1,
            seen.users,
            len(here),
            int(seen.in_flight is not None),
            seen.in_flight or 0,
            seen.in_flight,
            _most([w.cpu_percent for w in here]),
            _most([w.hub_lag_ms for w in here]),
        )

    def __add__(self, other: "Gauges") -> "Gauges":
        return Gauges(
            self.n + other.n,
            self.users + other.users,
            self.workers + other.workers,
            self.in_flight_n + other.in_flight_n,
            self.in_flight + other.in_flight,
            _most([self.in_flight_max, other.in_flight_max]),
            _most([self.cpu_percent_max, other.cpu_percent_max]),
            _most([self.hub_lag_ms_max, other.hub_lag_ms_max]),
        )

    @property
    def users_mean(self) -> float | None:
        return self.users / self.n if self.n else None

    @property
    def workers_mean(self) -> float | None:
        return self.workers / self.n if self.n else None

    @property
    def in_flight_mean(self) -> float | None:
        return self.in_flight / self.in_flight_n if self.in_flight_n else None


def _most(values: list[T | None]) -> T | None:
    return max((v for v in values if v is not None), default=None)


@dataclass(frozen=True, slots=True)
class ServerGauges:
    """Reports of one server in a span: the sum and the number of values for each of
    :data:`~llm_locust.metrics.server_series.FIGURES`."""

    sums: tuple[float, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, now: ServerNow) -> "ServerGauges":
        values = [getattr(now, name) for name in FIGURES]
        return cls(tuple(v or 0.0 for v in values), tuple(int(v is not None) for v in values))

    def __add__(self, other: "ServerGauges") -> "ServerGauges":
        return ServerGauges(
            tuple(map(add, self.sums, other.sums)), tuple(map(add, self.counts, other.counts))
        )

    @property
    def means(self) -> dict[str, float | None]:
        """Mean of each figure; None if the server did not report it."""
        sums = zip(FIGURES, self.sums, self.counts, strict=True)
        return {name: total / n if n else None for name, total, n in sums}


def marks_between(at_s: float, before: Observation, now: Observation) -> list[LoadMark]:
    """Changes from one observation to the next."""
    marks = []
    if now.rate != before.rate and now.rate is not None:
        marks.append(LoadMark(at_s, "rate", f"rate {_shown(before.rate)} → {_shown(now.rate)} requests/s"))
    elif now.target != before.target and now.rate is None:
        marks.append(LoadMark(at_s, "users", f"users {before.target} → {now.target}"))
    earlier = {w.id: w for w in before.workers}
    for worker in now.workers:
        old = earlier.get(worker.id)
        if old is None:
            marks.append(LoadMark(at_s, "came", f"worker {worker.id} came"))
        elif old.here and worker.state == MISSING:
            marks.append(LoadMark(at_s, "lost", f"worker {worker.id} is lost"))
        elif old.here and worker.state == GONE:
            marks.append(LoadMark(at_s, "went", f"worker {worker.id} went"))
        elif not old.here and worker.here:
            marks.append(LoadMark(at_s, "back", f"worker {worker.id} is back"))
    return marks


def _shown(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:g}"


# --- The stages of a run that goes on: where each is, and what those that have ended show


State = Literal["to come", "ramp", "measuring", "draining", "drained", "over"]


@dataclass(slots=True)
class LiveStages:
    """The stages of one run.

    Attributes:
        run: the run's id, and ``path`` its directory.
        facts: returns what is known of them now; those of a profile are there before they begin.
        planned: most stages that there can be.
        is_sweep: each ends with a drain. Otherwise requests of one may end in the next.
        objective: what a search looks for; empty in another run.
        whys: why the search chose the load of a stage, by its number.
        reading: number of the stage that the search reads now, before it chooses the next load.
        answer: of the search, once it has ended.
        has_records: returns whether all records of the drained stages are in the run directory.
        figures: those that have been read, as the report has them, by their number.
    """

    run: str
    path: Path
    facts: Callable[[], Sequence[StageFacts]]
    planned: int = 0
    is_sweep: bool = False
    objective: str = ""
    whys: dict[int, str] = field(default_factory=dict)
    reading: int | None = None
    answer: SearchAnswer | None = None
    has_records: Callable[[], bool] = lambda: True
    figures: dict[int, Stage] = field(default_factory=dict)


def state_of(stage: StageFacts, now_ns: int, *, is_sweep: bool) -> State:
    """Where a stage is; ``over`` is one that ended and was not drained, as all of a profile."""
    if now_ns < stage.begun_ns:
        return "to come"
    if stage.ended_ns is not None and (now_ns >= stage.ended_ns or stage.fault):
        if stage.drained_ns is not None:
            return "drained"
        return "over" if stage.fault or not is_sweep else "draining"
    return "ramp" if stage.measured_ns is None or now_ns < stage.measured_ns else "measuring"
