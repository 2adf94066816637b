"""A run as it is now: its figures, its stages, the client's verdict."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from llm_locust.core.manifest import HealthCell, Manifest, NodeHealth, StageFacts
from llm_locust.core.texts import quantity
from llm_locust.figures.agents import PerTurn
from llm_locust.figures.client_thresholds import LAG_PROGRAM, PROGRAM_SHARE
from llm_locust.figures.fairness import slower
from llm_locust.figures.late_client import (
    Cause,
    EndLags,
    Finding,
    WorstNodes,
    cpu_findings,
    delay_findings,
    explain,
    hub_lag_findings,
    made_bad_findings,
    standstill_findings,
    taken_findings,
    usual,
    waiting_findings,
    wide_findings,
)
from llm_locust.figures.search import SearchAnswer
from llm_locust.figures.stages import Stage
from llm_locust.figures.user_time import HungUsers
from llm_locust.live.counts import METRICS, Counts, LiveKey
from llm_locust.metrics.columns import OUTCOMES
from llm_locust.metrics.limits import Slo, parse_slo
from llm_locust.metrics.measured import limits_of, measured_from
from llm_locust.metrics.requests.judgement import Limits
from llm_locust.metrics.requests.latency import MeasuredFrom
from llm_locust.metrics.server_series import FIGURES, ServerNow
from llm_locust.metrics.standstill import longest_usual_s
from llm_locust.metrics.stats.proportions import median_bounds
from llm_locust.metrics.structs import Interval, largest

# --- Counts of a span as figures of a table's row or a chart's point. Undefined ones are None


#: The percentiles of each latency.
LIVE_PLACES = {"p50": 50.0, "p95": 95.0, "p99": 99.0}


@dataclass(frozen=True, slots=True)
class LiveLatency:
    """Percentiles in milliseconds of the ``n`` samples of requests that ended ok."""

    n: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None

    def at_ms(self, place: str) -> float | None:
        """The percentile of a place such as ``p50``."""
        value: float | None = getattr(self, f"{place}_ms")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFigures:
    """Turns and jobs of agents that ended, as in the report's ``agents``: ``jobs`` are those that finished.

    ``tools_s`` are the recorded pauses that began, ``output_tokens_per_s_p25`` is 1 / p75 of TPOT.
    """

    turns: int
    ok: int
    jobs: int
    jobs_failed: int
    tools_s: float
    output_tokens_per_s_p25: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Requests that ended in a span of ``seconds``. Rates are None if it is empty.

    ``requests`` are the ok and the failed ones. ``goodput`` is the share of good ones among these and those
    that were cancelled after they had exceeded a limit, None without any limit. ``attainment`` is, for each
    limit, the share of the requests it applies to that met it. ``latencies`` has each of
    :data:`~llm_locust.live.counts.METRICS`. Tokens and inputs are counted when their request ends;
    ``inputs_per_s`` is None where no request had inputs, ``images_per_s`` where none had images,
    ``agents`` where none was a turn of an agent.
    ``concurrency`` is the mean number of requests between sent and ended, computed from their durations
    (Little's law): those still in flight are not in it.
    """

    seconds: float
    requests: int
    failures: int
    cancelled: int
    outcomes: Mapping[str, int]
    goodput: float | None
    attainment: Mapping[str, float | None]
    latencies: Mapping[str, LiveLatency]
    requests_per_s: float | None
    failures_per_s: float | None
    good_requests_per_s: float | None
    input_tokens_per_s: float | None
    output_tokens_per_s: float | None
    good_output_tokens_per_s: float | None
    inputs_per_s: float | None
    agents: AgentFigures | None
    images_per_s: float | None
    concurrency: float | None


def figures(counts: Counts, seconds: float, limits: Limits) -> Figures:
    """Figures of requests that ended in ``seconds``."""

    def per_s(amount: float) -> float | None:
        return amount / seconds if seconds > 0 else None

    def share(amount: int, of: int) -> float | None:
        return amount / of if of else None

    return Figures(
        seconds=seconds,
        requests=counts.judged,
        failures=counts.failed,
        cancelled=counts.cancelled,
        outcomes={outcome.value: counts.outcome(outcome) for outcome in OUTCOMES},
        goodput=share(counts["good"], counts["good_or_bad"]),
        attainment={
            metric: share(counts[f"held_{metric}"], counts[f"limited_{metric}"]) for metric in limits.metrics
        },
        latencies={metric: latency(counts, metric) for metric in METRICS},
        requests_per_s=per_s(counts.ok),
        failures_per_s=per_s(counts.failed),
        good_requests_per_s=per_s(counts["good"]) if limits else None,
        input_tokens_per_s=per_s(counts["input_tokens"]),
        output_tokens_per_s=per_s(counts["output_tokens"]),
        good_output_tokens_per_s=per_s(counts["good_output_tokens"]) if limits else None,
        inputs_per_s=per_s(counts["inputs"]) if counts["inputs"] else None,
        agents=_agents(counts) if counts["turns"] else None,
        images_per_s=per_s(counts["images"]) if counts["images"] else None,
        concurrency=per_s(counts["busy_ns"] * 1e-9),
    )


def _agents(counts: Counts) -> AgentFigures:
    slow_s = counts.sketch("tpot").percentile(75.0) if len(counts.sketch("tpot")) else 0.0
    return AgentFigures(
        turns=counts["turns"],
        ok=counts["turns_ok"],
        jobs=counts["jobs"],
        jobs_failed=counts["jobs_failed"],
        tools_s=counts["tools_ns"] * 1e-9,
        output_tokens_per_s_p25=1 / slow_s if slow_s else None,
    )


def latency(counts: Counts, metric: str) -> LiveLatency:
    """Percentiles of one of :data:`~llm_locust.live.counts.METRICS`."""
    sketch = counts.sketch(metric)
    if not len(sketch):
        return LiveLatency(0, None, None, None)
    p50, p95, p99 = (value_s * 1e3 for value_s in sketch.percentiles([*LIVE_PLACES.values()]))
    return LiveLatency(len(sketch), p50, p95, p99)


def rounded(value: float | None, digits: int = 4) -> float | None:
    """Round to this many significant digits, to keep pages small."""
    if value is None or not np.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


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
    told_s: float = 0.0
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
        told = [w.in_flight for w in self.workers if w.here and w.in_flight is not None]
        return sum(told) if told else None


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
        told = zip(FIGURES, self.sums, self.counts, strict=True)
        return {name: total / n if n else None for name, total, n in told}


def marks_between(at_s: float, before: Observation, now: Observation) -> list[LoadMark]:
    """Changes from one observation to the next."""
    marks = []
    if now.rate != before.rate and now.rate is not None:
        marks.append(LoadMark(at_s, "rate", f"rate {_shown(before.rate)} → {_shown(now.rate)} requests/s"))
    elif now.target != before.target and now.rate is None:
        marks.append(LoadMark(at_s, "users", f"users {before.target} → {now.target}"))
    known = {w.id: w for w in before.workers}
    for worker in now.workers:
        old = known.get(worker.id)
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


# --- Users that hang now, by the rule of the report on those that hung to the end


#: Fewest answers of a kind that tell how long a request usually waits: the first ones may be cold.
FEWEST_ANSWERS = 10


def hung_users(totals: Mapping[LiveKey, Counts], seen: Observation, origin_s: float) -> HungUsers:
    """Users whose request has been silent for three times as long as is usual of its kind.

    Args:
        totals: the answers by key.
        origin_s: the beginning of the measured part, on the store's clock.
    """
    usual_s: dict[tuple[str, str, bool], float] = {}
    since_s, seconds = list[float](), 0.0
    for worker in seen.workers:
        for each in worker.waiting if worker.here else ():
            kind = each.name, each.slo_class, each.streamed
            if kind not in usual_s:
                of_kind = Counts.merge(c for key, c in totals.items() if key[:2] == kind[:2])
                usual_s[kind] = _usual_s(of_kind, each.streamed)
            if each.silent_s > usual_s[kind]:
                since_s.append(worker.told_s - each.silent_s)
                seconds += each.silent_s
    from_s = float(round(min(since_s) - origin_s)) if since_s else None
    return HungUsers(n=len(since_s), from_s=from_s, seconds=seconds)


def _usual_s(counts: Counts, streamed: bool) -> float:
    if counts.ok < FEWEST_ANSWERS:
        return math.inf
    return longest_usual_s(counts.sketch("ttft" if streamed else "e2el"), counts.sketch("itl"))


# --- Replicas that are slower than the others, by the rule of the report


@dataclass(frozen=True, slots=True)
class _Replica:
    """Its median latencies, ms, and their intervals, as those of the report's replicas."""

    name: str
    share: float
    p50_ms: Mapping[str, float]
    ci95: Mapping[str, Interval]

    def figure(self, name: str, /) -> float | None:
        return self.p50_ms.get(name)


def slow_replicas(by_replica: Mapping[str, Counts]) -> tuple[str, ...]:
    """What the report would say of these answers: the replicas that are slow, beyond chance."""
    total = sum(counts.judged for counts in by_replica.values())
    found = []
    for name, counts in by_replica.items():
        sketches = {f"{metric}_p50_ms": counts.sketch(metric) for metric in ("tpot", "ttft")}
        p50_ms = {key: some.percentile(50.0) * 1e3 for key, some in sketches.items() if len(some)}
        bounds = {key: median_bounds(some) for key, some in sketches.items()}
        ci95 = {key: None if ends is None else (ends[0] * 1e3, ends[1] * 1e3) for key, ends in bounds.items()}
        found.append(_Replica(name, counts.judged / max(total, 1), p50_ms, ci95))
    return tuple(cause.text for each in found for cause in slower(each, found))


# --------------------
# Client's verdict on the live numbers.
#
# These are the rules of :mod:`llm_locust.figures.late_client` that can be checked during a run: the
# same findings, by the same thresholds, with the same cause.
# --------------------


Severity = Literal["ok", "suspect", "invalid"]


@dataclass(frozen=True, slots=True)
class LiveVerdict:
    """``ok``, ``suspect`` or ``invalid``, with the reasons, the worst first, and why the client was late."""

    severity: Severity
    reasons: tuple[str, ...] = ()
    cause: Cause | None = None


def verdict(
    counts: Counts, workers: Iterable[WorkerState], *, open_loop: bool, seconds: float
) -> LiveVerdict:
    """Verdict from the requests of a span of ``seconds``, and from the present state of the workers."""
    here = [w for w in workers if w.here]
    now = [w.now for w in here if w.now is not None]
    of_nodes = WorstNodes(
        cpu_percent_max=largest(w.cpu_percent for w in here),
        steal_percent_max=largest(cell.steal_percent for cell in now),
        throttled_percent_max=largest(cell.throttled_percent for cell in now),
        run_queue_percent_max=largest(cell.run_queue_percent for cell in now),
    )
    own = counts.judged - counts["kernel_stamps"] > PROGRAM_SHARE * counts.judged
    gap = usual(ITL=latency(counts, "itl").p50_ms, E2EL=latency(counts, "e2el").p50_ms)
    late = [
        *wide_findings(counts["first_tokens_wide"], counts["first_tokens"]),
        *(_lag(latency(counts, "client_lag").p99_ms, *gap) if own else ()),
        *(_sent_late(counts, seconds) if open_loop else _waited(counts)),
        *_stood_still(now),
        *(hub_lag_findings(largest(w.hub_lag_ms for w in here), *gap) if own else ()),
    ]
    cause = explain(late, of_nodes)
    findings = [
        *late,
        *(cpu_findings(of_nodes.cpu_percent_max) if own else ()),
        *(() if late else taken_findings(of_nodes)),
    ]
    findings.sort(key=lambda finding: finding[0])  # "invalid" before "suspect"
    if not findings:
        return LiveVerdict("ok")
    return LiveVerdict(findings[0][0], tuple(text for _, text in findings), cause)


def _lag(lag_ms: float | None, of: str, of_ms: float | None) -> Iterator[Finding]:
    if found := LAG_PROGRAM.severity(lag_ms, of_ms):
        read = f"the client read {quantity(lag_ms)} ms late (p99)"
        yield found, f"{read}, the median {of} is {quantity(of_ms)} ms"


def _waited(counts: Counts) -> Iterator[Finding]:
    end_lag = latency(counts, "end_lag")
    waits = EndLags(end_lag.n, counts["total_ns_end_lag"] * 1e-9, counts["total_ns_e2el"] * 1e-9)
    yield from waiting_findings(waits, end_lag.p50_ms)


def _sent_late(counts: Counts, seconds: float) -> Iterator[Finding]:
    of = usual(TTFT=latency(counts, "ttft").p50_ms, E2EL=latency(counts, "e2el").p50_ms)
    yield from delay_findings(latency(counts, "schedule_delay").p99_ms, *of, seconds)
    yield from made_bad_findings(counts["bad_by_delay"], counts.judged)


def _stood_still(now: list[HealthCell]) -> Iterator[Finding]:
    """Of the worst worker."""
    worst = max(now, key=lambda cell: cell.hub_lag_ms_max or 0.0, default=None)
    if worst is not None:
        yield from standstill_findings(worst.hub_lag_ms_max, worst.seconds, paused_ms=worst.paused_ms_max)
