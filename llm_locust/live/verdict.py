"""Client's verdict on the live numbers.

These are the rules of :mod:`llm_locust.metrics.sections.validity` that can be checked during a run: the same
findings, by the same thresholds, with the same cause.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from llm_locust.core.figures import quantity
from llm_locust.core.manifest import HealthCell
from llm_locust.live.counts import Counts
from llm_locust.live.figures import latency
from llm_locust.live.state import WorkerState
from llm_locust.metrics.sections.completeness import largest
from llm_locust.metrics.sections.thresholds import LAG_PROGRAM, PROGRAM_SHARE, usual
from llm_locust.metrics.sections.validity import (
    Cause,
    EndLags,
    Finding,
    cpu_findings,
    delay_findings,
    explain,
    hub_lag_findings,
    made_bad_findings,
    standstill_findings,
    taken_findings,
    waiting_findings,
    wide_findings,
)

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
    of_nodes = {
        "cpu_percent_max": largest(w.cpu_percent for w in here),
        "steal_percent_max": largest(cell.steal_percent for cell in now),
        "throttled_percent_max": largest(cell.throttled_percent for cell in now),
        "run_queue_percent_max": largest(cell.run_queue_percent for cell in now),
    }
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
        *(cpu_findings(of_nodes["cpu_percent_max"]) if own else ()),
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
        yield from standstill_findings(worst.hub_lag_ms_max, worst.seconds)
