"""May the numbers be trusted, as far as the client is concerned?

``suspect``: the client may have shaped the load or part of the numbers. ``invalid``: the numbers
are in good part the client's own. The thresholds:

- **Client lag** p99 against the median ITL. With kernel stamps a late read does not change a
  latency; it makes events coalesce and a closed loop send late, so it is suspect once it passes a
  whole gap. Where the program takes the stamps, lag is in every latency: suspect from a tenth of a
  gap, invalid from a whole one.
- **Schedule delay** p99 against the median TTFT, in an open loop: the load was not the one that was
  asked for. Suspect from a tenth, invalid from a half.
- **CPU** of the busiest worker: a core that is full delays reads and sends. Kernel stamps: suspect
  from 90 %. The program's stamps: suspect from 70 %, invalid from 90 %.
- **Coalesced reads**, where the client was late or where its lag is not known: suspect from 10 % of
  the reads. Where the client is known to have read in time they were merged on the way, which
  ``tokens.delivery`` tells.
- **Clock steps**: such requests have no latencies. Suspect from the first, invalid from 1 %.

Delays under 1 ms are never held against a client.
"""

from collections.abc import Iterator
from typing import Any, Literal

from llm_locust.manifest import Manifest
from llm_locust.metrics.columns import Columns, Floats, Rows
from llm_locust.metrics.latency import client_lag, schedule_delay
from llm_locust.metrics.percentiles import ordered, percentile

Severity = Literal["suspect", "invalid"]
Finding = tuple[Severity, str]

LAG_FLOOR_MS = 1.0
LAG_OF_ITL = {"suspect": 0.1, "invalid": 1.0}
DELAY_OF_TTFT = {"suspect": 0.1, "invalid": 0.5}
CPU_PERCENT_KERNEL = 90.0
CPU_PERCENT_PROGRAM = {"suspect": 70.0, "invalid": 90.0}
COALESCED = 0.1


def client_validity(
    c: Columns, judged: Rows, manifest: Manifest, *, itl_p50_ms: float | None, ttft_p50_ms: float | None
) -> dict[str, Any]:
    """The verdict on the client, with its reasons (worst first) and the evidence.

    Lag, delay and stamps are those of the population ``judged``, failures too. ``timestamps`` is
    ``kernel``, ``program`` or ``mixed``; figures without evidence are None.
    """
    kernel = float(c.kernel_stamps[judged].mean()) if len(judged) else None
    lag_ms = _p99_ms(client_lag(c)[judged])
    delay_ms = _p99_ms(schedule_delay(c)[judged]) if manifest.open_loop else None
    busiest = (w.health.cpu_percent_max for w in manifest.workers)
    cpu = max((percent for percent in busiest if percent is not None), default=None)
    reads = int(c.reads[judged].sum())
    coalesced = int(c.coalesced_reads[judged].sum()) / reads if reads else None
    stepped = int(c.stepped[judged].sum())
    findings = [
        *_lag(lag_ms, itl_p50_ms, kernel),
        *_delay(delay_ms, ttft_p50_ms),
        *_cpu(cpu, kernel),
        *_coalesced(coalesced, lag_ms),
        *_stepped(stepped, len(judged)),
        *_blind(lag_ms, cpu, kernel),
    ]
    findings.sort(key=lambda finding: finding[0])  # "invalid" before "suspect"
    return {
        "verdict": findings[0][0] if findings else "ok",
        "reasons": [text for _, text in findings],
        "timestamps": _source(kernel),
        "kernel_share": kernel,
        "lag_ms_p99": lag_ms,
        "schedule_delay_ms_p99": delay_ms,
        "cpu_percent_max": cpu,
        "coalesced_ratio": coalesced,
        "clock_steps": stepped,
    }


def _p99_ms(values_s: Floats) -> float | None:
    ascending = ordered(values_s)
    return percentile(ascending, 99.0) * 1e3 if len(ascending) else None


def _source(kernel: float | None) -> str | None:
    if kernel is None:
        return None
    return {1.0: "kernel", 0.0: "program"}.get(kernel, "mixed")


def _severity(value: float, limits: dict[str, float]) -> Severity | None:
    if value >= limits["invalid"]:
        return "invalid"
    return "suspect" if value >= limits["suspect"] else None


def _lag(lag_ms: float | None, itl_ms: float | None, kernel: float | None) -> Iterator[Finding]:
    if lag_ms is None or itl_ms is None or lag_ms < LAG_FLOOR_MS:
        return
    compared = f"the client read {lag_ms:.3g} ms late (p99), the median ITL is {itl_ms:.3g} ms"
    if kernel == 1:
        if lag_ms > itl_ms:
            yield "suspect", f"{compared}; kernel stamps keep latencies true, but the load may have been late"
    elif severity := _severity(lag_ms, {key: share * itl_ms for key, share in LAG_OF_ITL.items()}):
        yield severity, f"{compared}, and not all stamps are the kernel's, so lag is in the latencies"


def _delay(delay_ms: float | None, ttft_ms: float | None) -> Iterator[Finding]:
    if delay_ms is None or ttft_ms is None or delay_ms < LAG_FLOOR_MS:
        return
    if severity := _severity(delay_ms, {key: share * ttft_ms for key, share in DELAY_OF_TTFT.items()}):
        yield (
            severity,
            f"requests were sent {delay_ms:.3g} ms after their schedule (p99), "
            f"the median TTFT is {ttft_ms:.3g} ms: the load was not the one asked for",
        )


def _cpu(cpu: float | None, kernel: float | None) -> Iterator[Finding]:
    if cpu is None:
        return
    text = f"the busiest worker used {cpu:.3g} % of its core: use more workers"
    if kernel == 1:
        if cpu >= CPU_PERCENT_KERNEL:
            yield "suspect", text
    elif severity := _severity(cpu, CPU_PERCENT_PROGRAM):
        yield (
            severity,
            f"{text}; the time stamps are not all the kernel's, so its delays are in the latencies",
        )


def _coalesced(ratio: float | None, lag_ms: float | None) -> Iterator[Finding]:
    late = lag_ms is None or lag_ms >= LAG_FLOOR_MS
    if ratio is not None and ratio >= COALESCED and late:
        yield (
            "suspect",
            f"{ratio:.1%} of the reads found several events: the gaps between those are not known",
        )


def _stepped(stepped: int, n: int) -> Iterator[Finding]:
    if stepped:
        yield (
            "suspect",
            f"the wall clock was set during {stepped} of {n} requests: their durations are the monotonic "
            "clock's, stamped by the program, and places on the run's axis may be off by the step",
        )


def _blind(lag_ms: float | None, cpu: float | None, kernel: float | None) -> Iterator[Finding]:
    if kernel is not None and kernel < 1 and lag_ms is None and cpu is None:
        yield "suspect", "neither the client's lag nor its CPU is known: nothing shows that it read in time"
