"""Processes of the run: CPU, event loops and clocks during the window, and the source of timestamps."""

from collections.abc import Iterable
from typing import Any

from llm_locust.core.manifest import ClockFacts, HealthCell, Manifest, NodeHealth
from llm_locust.metrics.sections.completeness import known, largest
from llm_locust.metrics.window import Window


def nodes(manifest: Manifest, window: Window | None) -> dict[str, Any]:
    """Figures of the worst worker, and of the master; without a window for the whole run.

    A worker's figures are those of its :class:`~llm_locust.core.manifest.HealthCell` whose middle is in the
    window; if there is none, or the run's manifest has no such cells, those of its whole run.
    """
    workers = [_health(w.health, w.clock, window) for w in manifest.workers]
    return {
        "cpu_percent_max": largest(w.cpu_percent_max for w in workers),
        "steal_percent_max": largest(w.steal_percent for w in workers),
        "throttled_percent_max": largest(w.throttled_percent for w in workers),
        "run_queue_percent_max": largest(w.run_queue_percent for w in workers),
        "hub_lag_ms_p99": largest(w.hub_lag_ms_p99 for w in workers),
        "hub_lag_ms_max": largest(w.hub_lag_ms_max for w in workers),
        "hub_lag_master_ms_max": known(_health(manifest.master, None, window).hub_lag_ms_max),
        "worker_clock_steps": sum(w.clock.steps for w in manifest.workers if w.clock),
        "master_clock_steps": manifest.clock_steps,
        "clock_error_ms_max": largest(w.clock.error_ns * 1e-6 for w in manifest.workers if w.clock),
    }


def stamps(manifest: Manifest, kernel_share: float | None) -> dict[str, Any]:
    """Source of the timestamps, and what read the sockets.

    ``timestamps`` is ``kernel``, ``program`` or ``mixed``. ``reader`` is ``c`` if all workers had the thread,
    ``python`` if any had not, None where none says.

    Args:
        kernel_share: share of the requests whose stamps are all the kernel's.
    """
    readers = {worker.stamps.reader for worker in manifest.workers if worker.stamps is not None}
    source = None if kernel_share is None else {1.0: "kernel", 0.0: "program"}.get(kernel_share, "mixed")
    return {
        "timestamps": source,
        "kernel_share": kernel_share,
        "reader": max(readers, default=None),
    }


def _health(health: NodeHealth, clock: ClockFacts | None, window: Window | None) -> NodeHealth:
    """Figures of a window."""
    offset_ns = 0 if clock is None else clock.offset_ns
    cells = [cell for cell in health.cells if window is not None and _inside(cell, offset_ns, window)]
    if not cells:
        return health
    return NodeHealth(
        cpu_percent_max=largest(cell.cpu_percent for cell in cells),
        hub_lag_ms_p99=largest(cell.hub_lag_ms_p99 for cell in cells),
        hub_lag_ms_max=largest(cell.hub_lag_ms_max for cell in cells),
        steal_percent=_mean((cell.seconds, cell.steal_percent) for cell in cells),
        throttled_percent=_mean((cell.seconds, cell.throttled_percent) for cell in cells),
        run_queue_percent=_mean((cell.seconds, cell.run_queue_percent) for cell in cells),
    )


def _inside(cell: HealthCell, offset_ns: int, window: Window) -> bool:
    middle_ns = round((cell.at_s - cell.seconds / 2) * 1e9) + offset_ns
    return any(span.start_ns <= middle_ns < span.end_ns for span in window.spans)


def _mean(values: Iterable[tuple[float, float | None]]) -> float | None:
    """Mean of the known values, by their weights."""
    some = [(weight, value) for weight, value in values if value is not None]
    total = sum(weight for weight, _ in some)
    return sum(weight * value for weight, value in some) / total if total > 0 else None
