"""``make bench-coverage``: how often 95 % intervals contain the truth.

Many runs of each kind are made and summarised. The truth is known in closed form: an M/M/1 queue's time in
system is exponential, the values of the other processes are normal or lognormal. For each figure, it prints
how many runs have an interval, and how many of these contain the truth. The mark is that 0.90 to 0.98 of them
do, within three standard errors. If fewer than one run in fifty has an interval, these are too few to judge.
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from llm_locust.metrics.requests.gaps import GapCourse
from llm_locust.metrics.stats.bootstrap import Cells, Order
from llm_locust.metrics.stats.censoring import Durations, ordered, summarise, summarise_ascending
from llm_locust.metrics.stats.intervals import (
    CONFIDENCE,
    FEWEST,
    Observed,
    effective_sizes,
    in_order,
    is_told,
    ratio_ends,
    share_size,
)

Floats = NDArray[np.float64]
Ends = list[float | None] | None

PLACES = {"p50": 50.0, "p90": 90.0, "p99": 99.0}
LOW, HIGH, RARE = 0.90, 0.98, 0.02


@dataclass(frozen=True, slots=True)
class Process:
    """A source of runs: ``sample(rng, n)`` returns values in seconds, in order; and its truth."""

    name: str
    sample: Callable[[np.random.Generator, int], Floats]
    quantile: Callable[[float], float]
    mean: float
    sizes: tuple[int, ...]


def sojourns(rng: np.random.Generator, load: float, n: int) -> Floats:
    """Times in system of an M/M/1 queue in its steady state, with a mean service time of 1 s
    (Lindley 1952)."""
    before = int(30 / (1 - load) ** 2)
    service, between = rng.exponential(1, n + before), rng.exponential(1 / load, n + before)
    level = np.concatenate([[0.0], np.cumsum(service[:-1] - between[1:])])
    return (level - np.minimum.accumulate(level) + service)[before:]


def queue(load: float, *sizes: int) -> Process:
    rate = 1 - load
    return Process(
        f"M/M/1, load {load:g}",
        lambda rng, n: sojourns(rng, load, n),
        lambda share: -math.log(1 - share) / rate,
        1 / rate,
        sizes,
    )


def autoregressive(rng: np.random.Generator, memory: float, n: int) -> Floats:
    """Normal values of variance 1, each with the correlation ``memory`` to the previous one."""
    steps = rng.normal(size=n) * math.sqrt(1 - memory**2)
    steps[0] /= math.sqrt(1 - memory**2)
    return np.fromiter(accumulate(steps, lambda before, step: memory * before + step), float, n)


def lognormal(memory: float, *sizes: int) -> Process:
    spread = 0.3
    return Process(
        f"AR(1), {memory:g}",
        lambda rng, n: np.exp(spread * autoregressive(rng, memory, n)),
        lambda share: math.exp(spread * NormalDist().inv_cdf(share)),
        math.exp(spread**2 / 2),
        sizes,
    )


PROCESSES = (
    queue(0.5, 300, 3_000, 30_000),
    queue(0.8, 1_000, 10_000, 100_000),
    queue(0.9, 1_000, 10_000, 100_000),
    lognormal(0.0, 100, 1_000, 10_000),
    lognormal(0.9, 1_000, 10_000),
    lognormal(0.99, 1_000, 10_000),
)


@dataclass(slots=True)
class Count:
    """Numbers of runs, of those with an interval, and of those whose interval contains the truth."""

    runs: int = 0
    told: int = 0
    held: int = 0

    def add(self, ends: Ends, truth: float) -> None:
        self.runs += 1
        if ends is not None:
            low, high = ends
            self.told += 1
            self.held += (low is None or low <= truth) and (high is None or truth <= high)

    @property
    def share(self) -> float:
        return self.told / self.runs

    @property
    def coverage(self) -> float:
        return self.held / self.told if self.told else math.nan

    @property
    def is_met(self) -> bool:
        """Whether the share is within three standard errors for this number of runs."""
        if self.share < RARE:
            return True
        too_low, too_high = (3 * math.sqrt(mark * (1 - mark) / self.told) for mark in (LOW, HIGH))
        return LOW - too_low <= self.coverage <= HIGH + too_high


def coverage(process: Process, n: int, runs: int, seed: int = 0) -> dict[str, Count]:
    """Coverage of the mean, the percentiles and the goodput ratio (95 % are good) over many runs of ``n``
    requests."""
    found = {key: Count() for key in ("mean", *PLACES, "goodput")}
    truths = {"mean": process.mean} | {key: process.quantile(p / 100) for key, p in PLACES.items()}
    for i in range(runs):
        values = process.sample(np.random.default_rng([seed, n, i]), n)
        in_turn = replace(Durations.of(values), course=in_order(values))
        ends = summarise(in_turn, 1e3, PLACES)["ci95"]
        for key, truth in truths.items():
            found[key].add(ends[key], 1e3 * truth)
        found["goodput"].add(_goodput(values, process.quantile(0.95)), 0.95)
    return found


def _goodput(values: Floats, limit: float) -> Ends:
    order = Order.even(len(values))
    moments = float(values.mean()), float(values.std())
    slow, _ = effective_sizes(Observed(order, values), *moments, float(np.median(values)))
    good = values <= limit
    worth = share_size(order.sums(good), np.diff(order.bounds).astype(np.float64), slow)
    if worth is None or not is_told(worth, FEWEST):
        return None
    return list(ratio_ends(float(good.mean()), worth, CONFIDENCE))


def engine_steps(runs: int, seed: int = 0) -> dict[str, Count]:
    """ITL where some 40 requests share each of the engine's steps, one in fifty of which has a prefill.

    A step takes 20 ms, with some noise, and one with a prefill 60 to 200 ms; of 3,000 requests each has 20
    to 100 gaps. The truth is by the distribution of steps: each has on average as many requests.
    """
    found = {key: Count() for key in ("mean", *PLACES)}
    steps = _steps(np.random.default_rng([seed, 1]), 4_000_000)
    truths = {"mean": float(steps.mean())} | {k: float(np.percentile(steps, p)) for k, p in PLACES.items()}
    for i in range(runs):
        rng = np.random.default_rng([seed, 2, i])
        counts = rng.integers(20, 101, 3_000)
        begun = np.sort(rng.integers(0, 3_000 * 60 // 40, 3_000))
        taken = _steps(rng, int(begun[-1]) + 101)
        gaps = np.concatenate([taken[b : b + k] for b, k in zip(begun, counts, strict=True)])
        clock = np.concatenate([[0.0], np.cumsum(taken)])[begun]
        course = GapCourse(256)
        cells = Cells((clock / (clock[-1] * (1 + 1e-9)) * 256).astype(np.int64), 256)
        course.add(np.rint(gaps * 1e6).astype(np.int64), counts, cells.of)
        ends = summarise_ascending(ordered(gaps * 1e-3), 0, 1e3, PLACES, course)["ci95"]
        for key, truth in truths.items():
            found[key].add(ends[key], truth)
    return found


def _steps(rng: np.random.Generator, n: int) -> Floats:
    """In milliseconds."""
    steps = 20 * np.exp(0.05 * rng.normal(size=n))
    slow = rng.random(n) < 0.02
    steps[slow] = rng.uniform(60, 200, int(slow.sum()))
    return steps


def rows(runs: int) -> Iterator[tuple[str, int | str, dict[str, Count]]]:
    for process in PROCESSES:
        for n in process.sizes:
            yield process.name, n, coverage(process, n, runs)
    yield "ITL, shared engine steps", "3,000 × 60", engine_steps(max(20, runs // 3))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=150, help="of each kind and size (%(default)s)")
    args = parser.parse_args()
    console = Console()
    keys = ("mean", *PLACES, "goodput")
    title = "95 % intervals: share that hold (share of runs that have one)"
    table = Table("process", "requests", *keys, title=title)
    met = True
    for name, n, found in rows(args.runs):
        cells = [_cell(found.get(key)) for key in keys]
        met = met and all(count.is_met for count in found.values())
        table.add_row(name, f"{n:,}" if isinstance(n, int) else n, *cells)
    console.print(table)
    console.print(f"mark: {'met' if met else 'NOT MET'}")
    return 0 if met else 1


def _cell(count: Count | None) -> str:
    if count is None:
        return ""
    text = "cannot tell" if not count.told else f"{count.coverage:.2f} ({count.share:.0%})"
    return text if count.is_met else f"[red]{text}[/red]"


if __name__ == "__main__":
    sys.exit(main())
