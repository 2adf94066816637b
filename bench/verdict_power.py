"""How often gates and stop rules err, on simulated runs of a known truth: ``python bench/verdict_power.py``.

Gates: of so many independent requests, the share of runs that hold (exit code 0), break (1) and cannot tell
(3), and in brackets the share that held when the figure alone decided. Stop rules: runs of five minutes of a
queue with so many seats, of which some are stopped.
"""

import argparse
import heapq
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from llm_locust.figures.gate_rules import GateEvidence, evaluate
from llm_locust.metrics.limits import parse_gates
from llm_locust.metrics.stats.censoring import Durations, summarise
from llm_locust.metrics.structs import LatencyTable
from llm_locust.options.run import ErrorRate, Oversaturation, StopRule, StopWatch, Totals

SHARES = [
    ("error_rate<1%", 0.05), ("error_rate<1%", 0.10), ("error_rate<1%", 0.005),
    ("goodput>=95%", 0.10), ("goodput>=95%", 0.20), ("goodput>=95%", 0.04),
]  # fmt: skip
LATENCIES = [("p50_ttft<1s", 1.2), ("p50_ttft<1s", 0.9), ("p95_ttft<1s", 1.2), ("p95_ttft<1s", 0.9)]
NORMAL = {"p50": 0.0, "p95": 1.6448536}


def judged(gate: str, bad: int, n: int, ttft_s: np.ndarray) -> tuple[str, bool]:
    """What a gate says of n requests of which some are bad, and whether the figure alone would hold."""
    figures = LatencyTable(summarise(Durations.of(ttft_s), 1e3))
    counts = {"population": n, "scheduled": n, "ok": n - bad, "failed": bad, "cancelled": 0}
    part: Any = SimpleNamespace(  # all that gates on these figures look at
        requests=SimpleNamespace(**counts, error_rate=bad / n),
        goodput=SimpleNamespace(ratio=1 - bad / n, judged=n, slo={}, slo_by_class={}),
        latency_ms={"ttft": figures},
        latency_ms_adjusted={"ttft": figures},
    )
    (asked,) = parse_gates(gate)
    (found,) = evaluate((asked,), part, GateEvidence(lambda _: Durations.of(ttft_s), seconds=60.0))
    word = "holds" if found.passed else "cannot tell" if found.undecided else "breaks"
    value = found.value
    below = value is not None and (value < asked.limit if asked.op == "<" else value >= asked.limit)
    return word, below


def gates(runs: int) -> None:
    rng = np.random.default_rng(1)
    print("gate            truth          n     holds    breaks   cannot tell   (by the figure alone)")
    for gate, bad in SHARES:
        for n in (3, 20, 30, 50, 80, 100, 200, 300, 1000):
            _line(
                gate,
                f"{bad:.1%} bad",
                n,
                [judged(gate, int(rng.binomial(n, bad)), n, np.ones(n)) for _ in range(runs)],
            )
    for gate, factor in LATENCIES:
        for n in (10, 20, 50, 200):
            truth = factor / math.exp(0.5 * NORMAL[gate[:3]])
            made = [judged(gate, 0, n, truth * rng.lognormal(0, 0.5, n)) for _ in range(runs)]
            _line(gate, f"{factor:.1f} x limit", n, made)


def _line(gate: str, truth: str, n: int, made: list[tuple[str, bool]]) -> None:
    shares = [
        sum(word == each for word, _ in made) / len(made) for each in ("holds", "breaks", "cannot tell")
    ]
    alone = sum(below for _, below in made) / len(made)
    told = "  ".join(f"{share:8.1%}" for share in shares)
    print(f"{gate:15} {truth:12} {n:5} {told}      ({alone:.1%})")


def queue(
    seed: int, rate: Callable[[float], float], peak: float, mean_s: float, seats: int
) -> Callable[[float], Totals]:
    """Poisson arrivals, lognormal answers, so many at a time: the counts at each time."""
    rng = np.random.default_rng(seed)
    due = np.cumsum(rng.exponential(1 / peak, int(330 * peak) + 100))
    due = due[[rng.random() < rate(t) / peak for t in due.tolist()]]
    free, ends = [0.0] * seats, []
    for at_s, takes_s in zip(due, mean_s * rng.lognormal(-0.18, 0.6, len(due)), strict=True):
        ends.append(max(at_s, heapq.heappop(free)) + takes_s)
        heapq.heappush(free, ends[-1])
    ended_at = np.sort(ends)

    def totals(t: float) -> Totals:
        ended, arrived = int(np.searchsorted(ended_at, t)), int(np.searchsorted(due, t))
        return Totals(ok=ended, ended=ended, backlog=arrived - ended)

    return totals


def failures(seed: int, rate: float, share: float) -> Callable[[float], Totals]:
    rng = np.random.default_rng(seed)
    at_s = np.cumsum(rng.exponential(1 / rate, int(1300 * rate)))
    failed = np.concatenate([[0], np.cumsum(rng.random(len(at_s)) < share)])

    def totals(t: float) -> Totals:
        n = int(np.searchsorted(at_s, t))
        return Totals(n - int(failed[n]), int(failed[n]), n)

    return totals


def stopped_s(rule: StopRule, seconds: float, totals: Callable[[float], Totals]) -> float | None:
    watch = StopWatch([rule])
    times = (0.25 * step for step in range(int(4 * seconds)))
    return next((t for t in times if watch.look(t, totals(t)) is not None), None)


def stop_rules(runs: int) -> None:
    print("\nrule                          truth                              stopped   median after")
    loads: list[tuple[str, Callable[[float], float], float, float, int]] = [
        ("70 % of 16 seats, 1 s", lambda _: 11.2, 11.3, 1.0, 16),
        ("95 % of 16 seats, 1 s", lambda _: 15.2, 15.3, 1.0, 16),
        ("90 % of 32 seats, 5 s", lambda _: 5.8, 5.9, 5.0, 32),
        ("70 % of 128 seats, 60 s", lambda _: 1.5, 1.6, 60.0, 128),
        ("a ramp of 120 s to 90 %", lambda t: 14.4 * min(1.0, t / 120), 14.5, 1.0, 16),
        ("a wave, 45 to 95 %", lambda t: 16 * (0.7 + 0.25 * math.sin(t / 38)), 16.0, 1.0, 16),
        ("three times for 40 s", lambda t: 28.8 if 120 < t < 160 else 9.6, 29.0, 1.0, 16),
        ("1.1 times, 16 seats", lambda _: 17.6, 17.7, 1.0, 16),
        ("1.1 times, 8 seats", lambda _: 8.8, 8.9, 1.0, 8),
        ("1.3 times, 16 seats", lambda _: 20.8, 20.9, 1.0, 16),
        ("2 times, 16 seats", lambda _: 32.0, 32.1, 1.0, 16),
    ]
    for truth, rate, peak, mean_s, seats in loads:
        made = [stopped_s(Oversaturation(), 300, queue(s, rate, peak, mean_s, seats)) for s in range(runs)]
        _stopped("oversaturation", truth, made)
    for rule, per_s, share in (
        (ErrorRate(0.2, 30.0), 1.0, 0.05), (ErrorRate(0.2, 5.0), 3.0, 0.05),
        (ErrorRate(0.2, 30.0), 1.0, 0.15),
        (ErrorRate(0.2, 30.0), 1.0, 0.3), (ErrorRate(0.2, 30.0), 1.0, 0.5), (ErrorRate(0.2, 5.0), 3.0, 1.0),
    ):  # fmt: skip
        made = [stopped_s(rule, 1200, failures(s, per_s, share)) for s in range(runs)]
        _stopped(f"error_rate>20% over {rule.over_s:g}s", f"{share:.0%} fail, {per_s:g}/s, 20 min", made)


def _stopped(rule: str, truth: str, made: list[float | None]) -> None:
    hits = [at_s for at_s in made if at_s is not None]
    after = f"{np.median(hits):.0f} s" if hits else ""
    print(f"{rule:29} {truth:34} {len(hits):3} of {len(made):<4} {after}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=400, help="of each gate (%(default)s)")
    parser.add_argument("--stopped-runs", type=int, default=20, help="of each stop rule (%(default)s)")
    args = parser.parse_args()
    gates(args.runs)
    stop_rules(args.stopped_runs)
