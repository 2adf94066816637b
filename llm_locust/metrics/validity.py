"""May the numbers be trusted, as far as the client is concerned?

``suspect``: the client may have shaped the load or part of the numbers. ``invalid``: the numbers
are in good part the client's own. The thresholds:

- **Client lag** p99 against the median ITL. With kernel stamps a late read does not change a
  latency; it makes events coalesce and a closed loop send late, so it is suspect once it passes a
  whole gap. Where the program takes the stamps, lag is in every latency: suspect from a tenth of a
  gap, invalid from a whole one.
- **Hub lag** p99 of the worker that has most of it, against the median ITL by the same limits, where
  not all stamps are the kernel's: what an event loop reads late the program stamps late.
- **Schedule delay** p99 against the median TTFT, in an open loop: the load was not the one that was
  asked for. Suspect from a tenth, invalid from a half.
- **CPU** of the busiest worker: a core that is full delays reads and sends. Kernel stamps: suspect
  from 90 %. The program's stamps: suspect from 70 %, invalid from 90 %.
- **Coalesced reads**, where the client was late or where its lag is not known: suspect from 10 % of
  the reads. Where the client is known to have read in time they were merged on the way, which
  ``tokens.delivery`` tells.
- **Clock steps** during a request, or anywhere in the run at a worker or the master: suspect from the
  first. They change no latency, only places on the run's axis.
- **Clock error** of the worker whose clock is known worst: suspect above 1 s, or above 1 % of the
  window, because so much of its load may be on the wrong side of the window's edges.

Delays under 1 ms are never held against a client.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from llm_locust.manifest import Manifest, WorkerFacts
from llm_locust.metrics.columns import Columns, Floats, Rows
from llm_locust.metrics.completeness import known, largest
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
CLOCK_ERROR_S = 1.0
CLOCK_ERROR_OF_WINDOW = 0.01

#: Workers that one reason names; the others it counts.
_MOST_NAMED = 3


def client_validity(
    c: Columns,
    judged: Rows,
    manifest: Manifest,
    *,
    window_s: float,
    itl_p50_ms: float | None,
    ttft_p50_ms: float | None,
) -> dict[str, Any]:
    """The verdict on the client, with its reasons (worst first) and the evidence.

    Lag, delay and stamps are those of the population ``judged``, failures too. ``timestamps`` is
    ``kernel``, ``program`` or ``mixed``; hub lag, CPU and clock error are those of the worst worker.
    ``clock_steps`` counts requests, the other two steps of a node's clock. Figures without evidence
    are None.
    """
    kernel = float(c.kernel_stamps[judged].mean()) if len(judged) else None
    lag_ms = _p99_ms(client_lag(c)[judged])
    delay_ms = _p99_ms(schedule_delay(c)[judged]) if manifest.open_loop else None
    cpu = largest(w.health.cpu_percent_max for w in manifest.workers)
    nodes = _nodes(manifest)
    reads = int(c.reads[judged].sum())
    coalesced = int(c.coalesced_reads[judged].sum()) / reads if reads else None
    stepped = int(c.stepped[judged].sum())
    findings = [
        *_lag(lag_ms, itl_p50_ms, kernel),
        *_hub_lag(nodes["hub_lag_ms_p99"], itl_p50_ms, kernel),
        *_delay(delay_ms, ttft_p50_ms),
        *_cpu(cpu, kernel),
        *_coalesced(coalesced, lag_ms),
        *_stepped(stepped, len(judged)),
        *_clocks_set(manifest),
        *_clock_error(manifest, window_s),
        *_blind(lag_ms, nodes["hub_lag_ms_p99"], cpu, kernel),
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
        **nodes,
    }


def _nodes(manifest: Manifest) -> dict[str, float | None]:
    """Event loops and clocks of the processes that took part."""
    workers = manifest.workers
    return {
        "hub_lag_ms_p99": largest(w.health.hub_lag_ms_p99 for w in workers),
        "hub_lag_ms_max": largest(w.health.hub_lag_ms_max for w in workers),
        "hub_lag_master_ms_max": known(manifest.master.hub_lag_ms_max),
        "worker_clock_steps": sum(w.clock.steps for w in workers if w.clock),
        "master_clock_steps": manifest.clock_steps,
        "clock_error_ms_max": largest(w.clock.error_ns * 1e-6 for w in workers if w.clock),
    }


def _p99_ms(values_s: Floats) -> float | None:
    ascending = ordered(values_s)
    return percentile(ascending, 99.0) * 1e3 if len(ascending) else None


def _source(kernel: float | None) -> str | None:
    if kernel is None:
        return None
    return {1.0: "kernel", 0.0: "program"}.get(kernel, "mixed")


def severity(value: float, limits: Mapping[str, float], of: float = 1.0) -> Severity | None:
    """What a value amounts to by its limits, which are shares of ``of``."""
    if value >= limits["invalid"] * of:
        return "invalid"
    return "suspect" if value >= limits["suspect"] * of else None


def lag_severity(lag_ms: float | None, itl_ms: float | None, *, kernel: bool) -> Severity | None:
    """Of the client's lag (p99) against the median ITL; ``kernel``: all stamps are the kernel's."""
    if lag_ms is None or itl_ms is None or lag_ms < LAG_FLOOR_MS:
        return None
    if kernel:
        return "suspect" if lag_ms > itl_ms else None
    return severity(lag_ms, LAG_OF_ITL, itl_ms)


def hub_lag_severity(hub_lag_ms: float | None, itl_ms: float | None, *, kernel: bool) -> Severity | None:
    """Of an event loop's lag (p99): it is in the latencies only where not all stamps are the kernel's."""
    if kernel or hub_lag_ms is None or itl_ms is None or hub_lag_ms < LAG_FLOOR_MS:
        return None
    return severity(hub_lag_ms, LAG_OF_ITL, itl_ms)


def delay_severity(delay_ms: float | None, ttft_ms: float | None) -> Severity | None:
    """Of the delay against the schedule (p99) against the median TTFT."""
    if delay_ms is None or ttft_ms is None or delay_ms < LAG_FLOOR_MS:
        return None
    return severity(delay_ms, DELAY_OF_TTFT, ttft_ms)


def cpu_severity(cpu_percent: float, *, kernel: bool) -> Severity | None:
    """Of the busiest worker's share of its core."""
    if kernel:
        return "suspect" if cpu_percent >= CPU_PERCENT_KERNEL else None
    return severity(cpu_percent, CPU_PERCENT_PROGRAM)


def coalesced_severity(ratio: float | None, lag_ms: float | None) -> Severity | None:
    """Of the share of reads that found several events, where the client was late or cannot tell."""
    late = lag_ms is None or lag_ms >= LAG_FLOOR_MS
    return "suspect" if ratio is not None and ratio >= COALESCED and late else None


def _lag(lag_ms: float | None, itl_ms: float | None, kernel: float | None) -> Iterator[Finding]:
    if found := lag_severity(lag_ms, itl_ms, kernel=kernel == 1):
        compared = f"the client read {lag_ms:.3g} ms late (p99), the median ITL is {itl_ms:.3g} ms"
        meaning = (
            "; kernel stamps keep latencies true, but the load may have been late"
            if kernel == 1
            else ", and not all stamps are the kernel's, so lag is in the latencies"
        )
        yield found, compared + meaning


def _hub_lag(hub_lag_ms: float | None, itl_ms: float | None, kernel: float | None) -> Iterator[Finding]:
    if found := hub_lag_severity(hub_lag_ms, itl_ms, kernel=kernel in (None, 1)):
        yield (
            found,
            f"a worker's event loop was {hub_lag_ms:.3g} ms late (p99), the median ITL is {itl_ms:.3g} ms, "
            "and not all stamps are the kernel's, so its lag is in the latencies",
        )


def _delay(delay_ms: float | None, ttft_ms: float | None) -> Iterator[Finding]:
    if found := delay_severity(delay_ms, ttft_ms):
        yield (
            found,
            f"requests were sent {delay_ms:.3g} ms after their schedule (p99), "
            f"the median TTFT is {ttft_ms:.3g} ms: the load was not the one asked for",
        )


def _cpu(cpu: float | None, kernel: float | None) -> Iterator[Finding]:
    if cpu is None:
        return
    if found := cpu_severity(cpu, kernel=kernel == 1):
        text = f"the busiest worker used {cpu:.3g} % of its core: use more workers"
        if kernel != 1:
            text += "; the time stamps are not all the kernel's, so its delays are in the latencies"
        yield found, text


def _coalesced(ratio: float | None, lag_ms: float | None) -> Iterator[Finding]:
    if found := coalesced_severity(ratio, lag_ms):
        yield found, f"{ratio:.1%} of the reads found several events: the gaps between those are not known"


def _stepped(stepped: int, n: int) -> Iterator[Finding]:
    if stepped:
        yield (
            "suspect",
            f"the wall clock was set during {stepped} of {n} requests: their durations are the monotonic "
            "clock's, stamped by the program, and places on the run's axis may be off by the step",
        )


def _clocks_set(manifest: Manifest) -> Iterator[Finding]:
    stepped = [w for w in manifest.workers if w.clock and w.clock.steps]
    steps = sum(w.clock.steps for w in stepped if w.clock)
    if stepped:
        yield (
            "suspect",
            f"{_clocks_of(stepped)} set {_times(steps)} during the run: the records are placed by the "
            "corrected clock, and no latency changed",
        )
    if manifest.clock_steps:
        yield (
            "suspect",
            f"the master's clock was set {_times(manifest.clock_steps)} during the run: the run's time did "
            "not follow, so later times differ from the wall clock's; no latency changed",
        )


def _clocks_of(workers: list[WorkerFacts]) -> str:
    if len(workers) == 1:
        return f"worker {workers[0].id}'s clock was"
    named = ", ".join(w.id for w in workers[:_MOST_NAMED])
    more = f" and {len(workers) - _MOST_NAMED} more" if len(workers) > _MOST_NAMED else ""
    return f"the clocks of {len(workers)} workers ({named}{more}) were"


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n} times"


def _clock_error(manifest: Manifest, window_s: float) -> Iterator[Finding]:
    error_s, worker = max(
        ((w.clock.error_ns * 1e-9, w.id) for w in manifest.workers if w.clock), default=(0.0, "")
    )
    if error_s > CLOCK_ERROR_S or 0 < CLOCK_ERROR_OF_WINDOW * window_s < error_s:
        yield (
            "suspect",
            f"worker {worker}'s clock is known to {error_s:.3g} s only, the window has {window_s:.6g} s: "
            "which of its requests are inside is uncertain",
        )


def _blind(
    lag_ms: float | None, hub_lag_ms: float | None, cpu: float | None, kernel: float | None
) -> Iterator[Finding]:
    if kernel is not None and kernel < 1 and lag_ms is hub_lag_ms is cpu is None:
        yield (
            "suspect",
            "neither the client's lag nor its CPU is known: nothing shows that it read in time",
        )
