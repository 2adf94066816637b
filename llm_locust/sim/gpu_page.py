"""A page as NVIDIA's DCGM exporter has it, of simulated GPUs: one a replica, at ``/gpu/metrics``.

Nothing of it is measured. A device draws :data:`BUSY_W` while its engine is in a step, whatever is in that,
and else :data:`IDLE_W`; so energy = idle power · time + (busy − idle power) · time in steps. Utilisation and
power are those of the moment: all or nothing. Its memory is the weights and the KV cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: Round figures of the size of a data centre's GPU, of none in particular.
IDLE_W, BUSY_W = 100.0, 600.0
WEIGHTS_MIB, KV_CACHE_MIB = 16_000.0, 50_000.0


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One device. ``busy_ns`` of the ``total_ns`` since its start were in steps; ``in_step``: so is now."""

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


_FAMILIES: tuple[tuple[str, str, str, Callable[[GpuReading], float]], ...] = (
    ("GPU_UTIL", "gauge", "GPU utilization (in %).", lambda r: 100.0 * r.in_step),
    ("POWER_USAGE", "gauge", "Power draw (in W).", lambda r: r.power_w),
    ("TOTAL_ENERGY_CONSUMPTION", "counter", "Energy since the start (in mJ).", lambda r: 1e3 * r.energy_j),
    (
        "FB_USED",
        "gauge",
        "Framebuffer memory used (in MiB).",
        lambda r: WEIGHTS_MIB + KV_CACHE_MIB * r.kv_cache_usage,
    ),
)


def gpu_exposition(readings: Sequence[GpuReading]) -> str:
    """All devices as Prometheus text (format 0.0.4), with the exporter's names and labels."""
    lines = []
    for name, kind, text, value in _FAMILIES:
        full = f"DCGM_FI_DEV_{name}"
        lines += [f"# HELP {full} {text} Simulated.", f"# TYPE {full} {kind}"]
        lines += [f"{full}{{{_labels(reading)}}} {value(reading):.3f}" for reading in readings]
    return "\n".join(lines) + "\n"


def _labels(reading: GpuReading) -> str:
    return f'gpu="{reading.label}",UUID="GPU-sim-{reading.label}",modelName="simulated"'
