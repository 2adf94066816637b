"""A page as from NVIDIA's DCGM exporter, for the simulated GPUs of each replica, at ``/gpu/metrics``.

Nothing of it is measured. A device draws :data:`BUSY_W` while its engine is in a step, whatever the step
contains, and otherwise :data:`IDLE_W`; so energy = idle power · time + (busy − idle power) · time in steps.
Utilisation and power are current values: all or nothing. Its memory is its share of the weights and of the KV
cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: Round figures of the size of a data centre's GPU, of no particular model.
IDLE_W, BUSY_W = 100.0, 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuKind:
    """Hardware of a replica: ``count`` devices, each with its share of the weights and of the KV cache."""

    model: str = "simulated"
    count: int = 1
    weights_mib: float = 16_000.0
    kv_cache_mib: float = 50_000.0


@dataclass(frozen=True, slots=True)
class GpuReading:
    """Reading of a replica's devices, for each. ``busy_ns`` of the ``total_ns`` since its start were in
    steps; ``in_step`` is set during a step."""

    label: str
    total_ns: int
    busy_ns: int
    in_step: bool
    kv_cache_usage: float

    @property
    def power_w(self) -> float:
        return BUSY_W if self.in_step else IDLE_W

    @property
    def energy_j(self) -> float:
        return (IDLE_W * self.total_ns + (BUSY_W - IDLE_W) * self.busy_ns) / 1e9


_FAMILIES: tuple[tuple[str, str, str, Callable[[GpuReading, GpuKind], float]], ...] = (
    ("GPU_UTIL", "gauge", "GPU utilization (in %).", lambda r, _: 100.0 * r.in_step),
    ("POWER_USAGE", "gauge", "Power draw (in W).", lambda r, _: r.power_w),
    (
        "TOTAL_ENERGY_CONSUMPTION",
        "counter",
        "Energy since the start (in mJ).",
        lambda r, _: 1e3 * r.energy_j,
    ),
    (
        "FB_USED",
        "gauge",
        "Framebuffer memory used (in MiB).",
        lambda r, kind: kind.weights_mib + kind.kv_cache_mib * r.kv_cache_usage,
    ),
)


def gpu_exposition(readings: Sequence[GpuReading], kind: GpuKind) -> str:
    """All devices as Prometheus text (format 0.0.4), with the exporter's names and labels."""
    lines = []
    for name, metric_type, text, value in _FAMILIES:
        full = f"DCGM_FI_DEV_{name}"
        lines += [f"# HELP {full} {text} Simulated.", f"# TYPE {full} {metric_type}"]
        for reading in readings:
            lines += [f"{full}{{{labels}}} {value(reading, kind):.3f}" for labels in _labels(reading, kind)]
    return "\n".join(lines) + "\n"


def _labels(reading: GpuReading, kind: GpuKind) -> list[str]:
    """Labels of each device of the replica whose index is in the reading's label."""
    first = int(reading.label) * kind.count
    return [
        f'gpu="{number}",UUID="GPU-sim-{number}",modelName="{kind.model}"'
        for number in range(first, first + kind.count)
    ]
