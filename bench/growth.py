"""Growth of a long run: memory of its processes over time, sizes of its directory and of temporary files."""

import csv
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Self

import numpy as np
from harness import BenchError
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from llm_locust.store import iter_requests, read_manifest
from llm_locust.store.files import growth_of, size_of, size_text

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


# --- Sizes of a run directory and of temporary files, against what a run announces of its growth


LOOK_S = 0.25

#: What a run has beside its records: manifest, summaries, two pages with the charts' script, 5 MiB each.
BESIDE_RECORDS = 12 << 20

#: Rolling summaries that the longest span of one has in its temporary file.
SPANS = 2

#: Of temporary files that do not lie beside the run.
MOST_TEMPORARY = 1 << 20


class Sizes:
    """Largest sizes in bytes of a run directory and of that for temporary files, while it is open.

    ``loaded`` is the run directory's until the load's end, as given to :meth:`load_ended`.
    """

    def __init__(self, folder: Path) -> None:
        self.run = self.loaded = self.temporary = 0
        self._grown: list[tuple[float, int]] = []
        self._folder = folder
        self._over = Event()
        self._watch = Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        (self._folder / "tmp").mkdir()
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watch.join()

    def load_ended(self, at_s: float) -> None:
        """The load ended at this time of the monotonic clock, now or before."""
        self.loaded = max((size for grown_s, size in self._grown if grown_s <= at_s), default=0)

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            if (size := size_of(self._folder / "run")) > self.run:
                self.run = size
                self._grown.append((time.monotonic(), size))
            self.temporary = max(self.temporary, size_of(self._folder / "tmp"))


def check_sizes(
    console: Console, folder: Path, sizes: Sizes, seconds: float, rolling_s: float | None
) -> bool:
    """Print what was announced and what it took; return whether it stayed within that.

    Args:
        seconds: of load.
        rolling_s: time between two rolling summaries; None if there are none.
    """
    workers = read_manifest(folder / "run").workers
    rows = arrivals = 0
    for batch in iter_requests(folder / "run"):
        rows += len(batch)
        arrivals += len(batch.arrivals().values)
    announced = growth_of(rows, arrivals / max(1, rows), sum(w.batches for w in workers))
    loaded = announced.frames + announced.kept * min(1.0, SPANS * (rolling_s or 0.0) / seconds)
    console.print(
        f"{rows:,} records with {arrivals / max(1, rows):.0f} token arrivals each; the run directory had "
        f"{size_text(sizes.loaded)} at most under load ({size_text(loaded)} announced) and "
        f"{size_text(sizes.run)} at its end ({size_text(announced.peak)}); "
        f"{size_text(sizes.temporary)} of temporary files elsewhere",
        highlight=False,
    )
    fits = sizes.loaded <= loaded + BESIDE_RECORDS and sizes.run <= announced.peak + BESIDE_RECORDS
    return fits and sizes.temporary <= MOST_TEMPORARY
