"""May the live numbers be trusted, as far as the client is concerned?

The rules of :mod:`llm_locust.metrics.validity` that a running worker can tell, by its thresholds.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from llm_locust.live.counts import Counts
from llm_locust.live.figures import latency
from llm_locust.live.state import WorkerState
from llm_locust.metrics.validity import (
    COALESCED,
    CPU_PERCENT_KERNEL,
    CPU_PERCENT_PROGRAM,
    DELAY_OF_TTFT,
    LAG_FLOOR_MS,
    LAG_OF_ITL,
)

Severity = Literal["ok", "suspect", "invalid"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """``ok``, ``suspect`` or ``invalid``, with the reasons, the worst first."""

    severity: Severity
    reasons: tuple[str, ...] = ()


def verdict(counts: Counts, workers: Iterable[WorkerState], *, open_loop: bool) -> Verdict:
    """The client's verdict by the requests of a span, and by its workers as they are now."""
    here = [w for w in workers if w.here]
    kernel = counts["kernel_stamps"] == counts.judged
    findings = [
        *_lag(counts, here, kernel=kernel),
        *(_delay(counts) if open_loop else ()),
        *_cpu(here, kernel=kernel),
        *_coalesced(counts),
    ]
    findings.sort(key=lambda finding: finding[0])  # "invalid" before "suspect"
    if not findings:
        return Verdict("ok")
    return Verdict(findings[0][0], tuple(text for _, text in findings))


Finding = tuple[Severity, str]


def _lag(counts: Counts, workers: list[WorkerState], *, kernel: bool) -> Iterator[Finding]:
    itl_ms = latency(counts, "itl").p50_ms
    if itl_ms is None:
        return
    lag_ms = latency(counts, "client_lag").p99_ms
    if lag_ms is not None and lag_ms >= LAG_FLOOR_MS:
        text = f"the client read {lag_ms:.3g} ms late (p99), the median ITL is {itl_ms:.3g} ms"
        if kernel and lag_ms > itl_ms:
            yield "suspect", text
        elif not kernel:
            yield from _judged(lag_ms / itl_ms, LAG_OF_ITL, text)
    hub_ms = max((w.hub_lag_ms or 0.0 for w in workers), default=0.0)
    if not kernel and hub_ms >= LAG_FLOOR_MS:
        text = f"a worker's event loop was {hub_ms:.3g} ms late (p99), the median ITL is {itl_ms:.3g} ms"
        yield from _judged(hub_ms / itl_ms, LAG_OF_ITL, text)


def _delay(counts: Counts) -> Iterator[Finding]:
    delay_ms, ttft_ms = latency(counts, "schedule_delay").p99_ms, latency(counts, "ttft").p50_ms
    if delay_ms is not None and ttft_ms is not None and delay_ms >= LAG_FLOOR_MS:
        text = f"requests were sent {delay_ms:.3g} ms late (p99), the median TTFT is {ttft_ms:.3g} ms"
        yield from _judged(delay_ms / ttft_ms, DELAY_OF_TTFT, text)


def _cpu(workers: list[WorkerState], *, kernel: bool) -> Iterator[Finding]:
    cpu = max((w.cpu_percent or 0.0 for w in workers), default=0.0)
    text = f"the busiest worker uses {cpu:.3g} % of its core: use more workers"
    if not kernel:
        yield from _judged(cpu, CPU_PERCENT_PROGRAM, text)
    elif cpu >= CPU_PERCENT_KERNEL:
        yield "suspect", text


def _coalesced(counts: Counts) -> Iterator[Finding]:
    lag_ms = latency(counts, "client_lag").p99_ms
    late = lag_ms is None or lag_ms >= LAG_FLOOR_MS
    share = counts["coalesced_reads"] / counts["reads"] if counts["reads"] else 0.0
    if late and share >= COALESCED:
        yield "suspect", f"{share:.1%} of the reads found several events: the gaps between are not known"


def _judged(value: float, limits: dict[str, float], text: str) -> Iterator[Finding]:
    if value >= limits["invalid"]:
        yield "invalid", text
    elif value >= limits["suspect"]:
        yield "suspect", text
