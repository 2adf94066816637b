"""Findings on live counts, by the report's rules: users that hang, slow replicas, the client's verdict."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from llm_locust.core.manifest import HealthCell
from llm_locust.core.texts import quantity
from llm_locust.figures.client import ClientVerdict
from llm_locust.figures.client_rules import (
    LAG_PROGRAM,
    PROGRAM_SHARE,
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
from llm_locust.figures.fairness import slower
from llm_locust.figures.user_time import HungUsers
from llm_locust.live.counts import Counts, LiveKey
from llm_locust.live.figures import latency
from llm_locust.live.state import Observation, WorkerState
from llm_locust.metrics.standstill import longest_usual_s
from llm_locust.metrics.stats.proportions import median_bounds
from llm_locust.metrics.structs import Interval, largest

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
                since_s.append(worker.reported_s - each.silent_s)
                seconds += each.silent_s
    from_s = float(round(min(since_s) - origin_s)) if since_s else None
    return HungUsers(n=len(since_s), from_s=from_s, until_s=None, seconds=seconds)


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
# These are the rules of :mod:`llm_locust.figures.client_rules` that can be checked during a run: the
# same findings, by the same thresholds, with the same cause.
# --------------------


@dataclass(frozen=True, slots=True)
class LiveValidity:
    """``ok``, ``suspect`` or ``invalid``, with the reasons, the worst first, and why the client was late."""

    severity: ClientVerdict
    reasons: tuple[str, ...] = ()
    cause: Cause | None = None


def live_validity(
    counts: Counts, workers: Iterable[WorkerState], *, open_loop: bool, seconds: float
) -> LiveValidity:
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
        return LiveValidity("ok")
    return LiveValidity(findings[0][0], tuple(text for _, text in findings), cause)


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
