"""Client's verdict on the live numbers.

These are the rules of :mod:`llm_locust.metrics.sections.validity` that can be checked during a run, with the
same thresholds.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from llm_locust.core.figures import quantity
from llm_locust.live.counts import Counts
from llm_locust.live.figures import latency
from llm_locust.live.state import WorkerState
from llm_locust.metrics.sections.thresholds import CPU, DELAY, HUB_LAG_PROGRAM, LAG_PROGRAM, usual
from llm_locust.metrics.sections.validity import end_lag_share, late_load_findings, wide_findings

Severity = Literal["ok", "suspect", "invalid"]


@dataclass(frozen=True, slots=True)
class LiveVerdict:
    """``ok``, ``suspect`` or ``invalid``, with the reasons, the worst first."""

    severity: Severity
    reasons: tuple[str, ...] = ()


def verdict(counts: Counts, workers: Iterable[WorkerState], *, open_loop: bool) -> LiveVerdict:
    """Client's verdict from the requests of a span, and from the current state of its workers."""
    here = [w for w in workers if w.here]
    kernel = counts["kernel_stamps"] == counts.judged
    findings = [
        *wide_findings(counts["first_tokens_wide"], counts["first_tokens"]),
        *(() if kernel else _lag(counts, here)),
        *(_delay(counts) if open_loop else _lag_closed(counts)),
        *_cpu(here, kernel=kernel),
    ]
    findings.sort(key=lambda finding: finding[0])  # "invalid" before "suspect"
    if not findings:
        return LiveVerdict("ok")
    return LiveVerdict(findings[0][0], tuple(text for _, text in findings))


Finding = tuple[Severity, str]


def _lag(counts: Counts, workers: list[WorkerState]) -> Iterator[Finding]:
    of, of_ms = usual(ITL=latency(counts, "itl").p50_ms, E2EL=latency(counts, "e2el").p50_ms)
    lag_ms = latency(counts, "client_lag").p99_ms
    if found := LAG_PROGRAM.severity(lag_ms, of_ms):
        read = f"the client read {quantity(lag_ms)} ms late (p99)"
        yield found, f"{read}, the median {of} is {quantity(of_ms)} ms"
    hub_ms = max((w.hub_lag_ms or 0.0 for w in workers), default=0.0)
    if found := HUB_LAG_PROGRAM.severity(hub_ms, of_ms):
        yield (
            found,
            f"a worker's event loop was {quantity(hub_ms)} ms late (p99), "
            f"the median {of} is {quantity(of_ms)} ms",
        )


def _lag_closed(counts: Counts) -> Iterator[Finding]:
    share = end_lag_share(counts["total_ns_end_lag"], counts["total_ns_e2el"])
    yield from late_load_findings(share, latency(counts, "end_lag").p50_ms)


def _delay(counts: Counts) -> Iterator[Finding]:
    delay_ms = latency(counts, "schedule_delay").p99_ms
    of, of_ms = usual(TTFT=latency(counts, "ttft").p50_ms, E2EL=latency(counts, "e2el").p50_ms)
    if found := DELAY.severity(delay_ms, of_ms):
        yield (
            found,
            f"the load was late: requests were sent {quantity(delay_ms)} ms after their schedule (p99), "
            f"the median {of} is {quantity(of_ms)} ms",
        )


def _cpu(workers: list[WorkerState], *, kernel: bool) -> Iterator[Finding]:
    cpu = max((w.cpu_percent or 0.0 for w in workers), default=0.0)
    if found := CPU[kernel].severity(cpu):
        yield found, f"the busiest worker uses {quantity(cpu)} % of its core: use more workers"
