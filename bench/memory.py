"""Memory over time: samples of processes, the slope of their memory, and the printing of both."""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from clients import BenchError
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

MOST_MB_PER_H = 1.0

#: Allocators take memory from the system in steps of one to two MB: a few steps are not a trend. The standard
#: error does not account for steps.
STEPS_MB = 5.0
WARMUP = 0.25  # of the samples


@dataclass(frozen=True, slots=True)
class Sample:
    """Resources used by one process at a time after the start of the load."""

    at_s: float
    rss_mb: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Trend:
    """A line through memory over time, in MB per hour, and the standard error of its slope.

    ``grown_mb`` is the difference between its ends.
    """

    slope: float
    error: float
    grown_mb: float

    @property
    def grows(self) -> bool:
        """Whether the slope is significantly above the mark."""
        return self.slope - 2 * self.error > MOST_MB_PER_H and self.grown_mb > STEPS_MB


def trend(samples: Sequence[Sample], clock: float) -> Trend:
    """Least squares over the samples after the warm-up; ``clock`` is the factor by which hours are shortened.

    Raises:
        BenchError: fewer than three samples are left.
    """
    used = samples[math.ceil(len(samples) * WARMUP) :]
    if len(used) < 3:
        raise BenchError(f"{len(used)} samples after the warm-up are too few: let it run for longer")
    hours = np.array([s.at_s for s in used]) / 3600 * clock
    rss_mb = np.array([s.rss_mb for s in used])
    away = hours - hours.mean()
    slope = float(away @ rss_mb / (away @ away))
    residuals: NDArray[np.float64] = rss_mb - rss_mb.mean() - slope * away
    error = math.sqrt(residuals @ residuals / (len(used) - 2) / (away @ away))
    return Trend(slope, error, float(rss_mb[-1] - rss_mb[0]))


def write_samples(path: Path, samples: Mapping[str, Sequence[Sample]]) -> None:
    """Write the data of a plot: a row per sample."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["process", "at_s", "rss_mb", "cpu_s"])
        for name, each in samples.items():
            writer.writerows([name, f"{s.at_s:.1f}", f"{s.rss_mb:.3f}", f"{s.cpu_s:.2f}"] for s in each)


def print_memory(console: Console, samples: Mapping[str, Sequence[Sample]], clock: float) -> bool:
    """Print the table of processes; return whether all are flat."""
    table = Table(
        "process", "RSS MB at first", "after warm-up", "last", "MB/h", "± s.e.", "MB/h, wall", "CPU %", ""
    )
    flat = True
    for name, each in samples.items():
        line = trend(each, clock)
        flat = flat and not line.grows
        cpu = 100 * (each[-1].cpu_s - each[0].cpu_s) / (each[-1].at_s - each[0].at_s)
        first, warm, last = (each[i].rss_mb for i in (0, math.ceil(len(each) * WARMUP), -1))
        table.add_row(
            name, f"{first:.1f}", f"{warm:.1f}", f"{last:.1f}", f"{line.slope:+.2f}", f"{line.error:.2f}",
            f"{line.slope * clock:+.2f}", f"{cpu:.1f}", "GROWS" if line.grows else "flat",
        )  # fmt: skip
    console.print(table)
    if clock != 1:
        console.print(f"An hour here is 1,200 reports: {60 / clock:.1f} minutes by the clock on the wall.")
    return flat
