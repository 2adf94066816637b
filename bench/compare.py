"""``make bench-compare``: how often a comparison errs, and how much it finds, on runs with a known truth.

    python bench/compare.py [--pairs 200] [--engine 40] [--process M/G]

1. Gates on latencies: pairs of runs of a process, one of which is slower by a known share. Printed is in how
   many per cent of the pairs the gate held, was unknown, and broke. The marks: runs of one process break at
   most one in twenty gates, as do those that differ by just the limit; twice the limit holds in at most one
   of ten; and of 500 independent requests at most one pair in five is undecided, of 30 one in twenty that is
   twice as slow is not broken. A run of few phases cannot know how phases differ: no mark is set there.
2. Gates on rates and shares: whole runs of closed loops in virtual time, by users in step and out of step.
3. The table of figures: runs of the simulated engine with continuous batching and 2,000 requests at random
   times. Two runs of one server must show no difference; a TTFT slower by a tenth must be found.

Nothing is sent.
"""

import argparse
import heapq
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from coverage import autoregressive
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import Manifest, WorkerFacts
from llm_locust.core.record import Outcome, RequestRecord, TokenSource
from llm_locust.figures.comparison import Row, Verdict, compare_in_turn
from llm_locust.figures.relative_gates import evaluate_relative, judge_change, parse_relative_gates
from llm_locust.figures.sides import Compared, figures_of, measure_for_comparison
from llm_locust.metrics.question import Question
from llm_locust.metrics.stats.censoring import Durations
from llm_locust.metrics.stats.estimates import Estimate
from llm_locust.metrics.stats.intervals import in_order
from llm_locust.sim.engine import Engine, EngineProfile, EngineSequence

Floats = NDArray[np.float64]

FINDINGS = ("held", "unknown", "broken")


# --- latencies ---------------------------------------------------------------------------------------


def lognormal(rng: np.random.Generator, n: int, spread: float = 0.5) -> Floats:
    values: Floats = np.exp(spread * rng.normal(size=n))
    return values


def queue(rng: np.random.Generator, n: int, load: float = 0.7, servers: int = 4) -> Floats:
    """Times in system of an M/G/4 queue in its steady state; service is lognormal, of mean 1."""
    before = 1_000
    service = np.exp(0.5 * rng.normal(size=n + before) - 0.125)
    between = rng.exponential(1 / (load * servers), n + before)
    free, at, taken = [0.0] * servers, 0.0, np.empty(n + before)
    for i, (work, gap) in enumerate(zip(service.tolist(), between.tolist(), strict=True)):
        at += gap
        begun = max(at, heapq.heappop(free))
        heapq.heappush(free, begun + work)
        taken[i] = begun + work - at
    return taken[before:]


def phases(rng: np.random.Generator, n: int, length: int = 40) -> Floats:
    """Half of the variance is common to each ``length`` requests in a row."""
    begun = int(rng.integers(0, length))
    level = np.repeat(rng.normal(size=n // length + 2), length)[begun : begun + n]
    values: Floats = np.exp(0.35 * level + 0.35 * rng.normal(size=n))
    return values


@dataclass(frozen=True, slots=True)
class Process:
    """A source of latencies.

    ``together``: requests under way together, on average. ``known_from``: requests from which on a run can
    know how far they depend on each other.
    """

    name: str
    sample: Callable[[np.random.Generator, int], Floats]
    together: float = 1.0
    known_from: int = 30


PROCESSES = (
    Process("independent", lognormal),
    Process("clean, 5 %", lambda rng, n: lognormal(rng, n, 0.05)),
    Process("AR(1) 0.5", lambda rng, n: np.exp(0.5 * autoregressive(rng, 0.5, n))),
    Process("M/G/4, 70 %", queue, together=3.5),
    Process("phases of 40", phases, known_from=500),
)
SIZES = (30, 80, 500, 2_000)
PERCENTS = {"mean": None, "p50": 50.0, "p95": 95.0, "p99": 99.0}
GATES = {"mean": 0.05, "p50": 0.05, "p95": 0.10, "p99": 0.10}


def latency(statistic: str, values: Floats, together: float) -> Estimate | None:
    """A figure of requests in the order of their run, so many under way together, as a comparison has it."""
    found = replace(Durations.of(values), course=in_order(values))
    return figures_of(found, [PERCENTS[statistic]], len(values) / together)[0]


def changes(limit: float) -> tuple[float, ...]:
    """Of one process, at the limit, of twice the limit, a fifth slower, twice as slow."""
    return (0.0, limit, 2 * limit, 0.2, 1.0)


def findings(statistic: str, process: Process, n: int, pairs: int) -> list[dict[str, int]]:
    """How often the gate held, was unknown and broke, for each of :func:`changes`."""
    limit = GATES[statistic]
    (gate,) = parse_relative_gates(f"{statistic}_ttft<=+{limit:.0%}")
    found = [dict.fromkeys(FINDINGS, 0) for _ in changes(limit)]
    for i in range(pairs):
        base, new = (process.sample(np.random.default_rng([n, i, k]), n) for k in (0, 1))
        before = latency(statistic, base, process.together)
        for change, counts in zip(changes(limit), found, strict=True):
            after = latency(statistic, new * (1 + change), process.together)
            counts[judge_change(gate, before, after).state.finding] += 1
    return found


def wrong(statistic: str, process: Process, n: int, found: list[dict[str, int]], pairs: int) -> set[int]:
    """Which of the changes are beyond their marks, by more than three standard errors."""

    def beyond(count: int, share: float) -> bool:
        return count > share * pairs + 3 * math.sqrt(share * (1 - share) * pairs)

    equal, at_limit, twice, _, double = found
    if n < process.known_from:
        return set()
    marks = {
        0: beyond(equal["broken"], 0.05),
        1: beyond(at_limit["broken"], 0.05),
        2: beyond(twice["held"], 0.10),
        4: beyond(double["held"], 0.0),
    }
    if process.name == "independent" and statistic in ("mean", "p50"):
        marks[0] |= n >= 500 and beyond(equal["unknown"], 0.20)
        marks[4] |= n >= 30 and beyond(pairs - double["broken"], 0.05)
    return {place for place, is_wrong in marks.items() if is_wrong}


def latencies(pairs: int, only: str = "") -> tuple[Table, bool]:
    heads = ("one process", "the limit", "twice the limit", "+20 %", "twice")
    table = Table("process", "requests", "gate", *heads, title="held/unknown/broken, %")
    met = True
    for process in (each for each in PROCESSES if each.name.startswith(only)):
        for n in SIZES:
            for statistic, limit in GATES.items():
                found = findings(statistic, process, n, pairs)
                bad = wrong(statistic, process, n, found, pairs)
                met = met and not bad
                cells = [_cell(counts, pairs, place in bad) for place, counts in enumerate(found)]
                table.add_row(process.name, f"{n:,}", f"{statistic}<=+{limit:.0%}", *cells)
    return table, met


def _cell(counts: dict[str, int], pairs: int, is_wrong: bool) -> str:
    text = "/".join(f"{100 * counts[key] / pairs:.0f}" for key in FINDINGS)
    return f"[red]{text}[/red]" if is_wrong else text


# --- rates and shares --------------------------------------------------------------------------------

USERS, TOKENS = 8, 16
LOOPS = {
    "in step": "fixed lengths: users move together, and each round varies by 2 %",
    "out of step": "lengths of 4 to 28 tokens",
}
LOOP_GATES = ("rps>=-5%", "output_tps>=-5%", "mean_e2el<=+5%", "goodput>=-1%", "error_rate<=+0.5pp")


def closed_loop(kind: str, seed: int, slower: float, seconds: float) -> Compared:
    """A run of :data:`USERS` users, each of whom sends a request when the last one has ended."""
    rng = np.random.default_rng(seed)
    rounds = np.exp(0.02 * rng.normal(size=10_000))
    records: list[RequestRecord] = []
    for user in range(USERS):
        at_s, turn = 0.002 * user, 0
        while at_s < seconds:
            tokens = TOKENS if kind == "in step" else int(rng.integers(4, 29))
            pace_s = 0.02 * slower * (rounds[turn] if kind == "in step" else 1.0)
            gaps_s = pace_s * rng.gamma(100, 1 / 100, tokens)
            gaps_s[0] *= 3
            arrivals_ns = np.rint(np.cumsum(gaps_s) * 1e9).astype(np.int64)
            sent_ns = ORIGIN_NS + round(at_s * 1e9)
            ended_ns = sent_ns + int(arrivals_ns[-1])
            records.append(record(len(records), sent_ns, ended_ns, arrivals_ns.tolist(), 100))
            at_s, turn = (ended_ns - ORIGIN_NS) * 1e-9 + 1e-3, turn + 1
    stopped_ns = ORIGIN_NS + round(seconds * 1e9)
    return measured(records, seed, stopped_ns, open_loop=False, options={"num_users": USERS})


def loops(pairs: int, seconds: float = 10.0) -> Table:
    heads = ("one server", "+10 %", "+20 %", "twice")
    table = Table(
        "closed loop", "gate", *heads, title=f"held/unknown/broken, %; {USERS} users, {seconds:g} s"
    )
    for kind in LOOPS:
        gates = [parse_relative_gates(text) for text in LOOP_GATES]
        found = [[dict.fromkeys(FINDINGS, 0) for _ in heads] for _ in gates]
        for pair in range(pairs):
            base = closed_loop(kind, 9 * pair, 1.0, seconds)
            for place, slower in enumerate((1.0, 1.1, 1.2, 2.0)):
                new = closed_loop(kind, 9 * pair + 1 + place, slower, seconds)
                for gate, counts in zip(gates, found, strict=True):
                    counts[place][evaluate_relative(gate, base, new)[0].state.finding] += 1
        for text, counts in zip(LOOP_GATES, found, strict=True):
            table.add_row(kind, text, *(_cell(each, pairs, False) for each in counts))
    return table


# --- the table of figures ----------------------------------------------------------------------------

REQUESTS = 2_000
RATE_PER_S = 25.0
SLO = "ttft=120ms tpot=30ms"
ORIGIN_NS = 1_700_000_000_000_000_000
SLOWER = 1.1


def slower(profile: EngineProfile, factor: float) -> EngineProfile:
    """Engine whose first tokens take ``factor`` times as long, with unchanged steps."""
    # An idle TTFT is the wait, the prefill and one step; the wait takes the share of the step.
    step_ns = profile.step_base_ns + profile.step_per_sequence_ns
    return replace(
        profile,
        ttft_base_ns=round(profile.ttft_base_ns * factor + step_ns * (factor - 1)),
        prefill_per_token_ns=round(profile.prefill_per_token_ns * factor),
    )


def run(seed: int, profile: EngineProfile) -> Compared:
    """One measured run of :data:`REQUESTS` requests."""
    rng = np.random.default_rng(seed)
    sent_s = np.cumsum(rng.exponential(1 / RATE_PER_S, REQUESTS))
    prompts = np.clip(rng.lognormal(np.log(400), 0.4, REQUESTS), 10, 4000).astype(int)
    answers = rng.integers(4, 16, REQUESTS)
    sent_ns = ORIGIN_NS + np.rint(sent_s * 1e9).astype(np.int64)
    records = list(served(Engine(profile, seed), sent_ns, prompts.tolist(), answers.tolist()))
    return measured(records, seed, int(sent_ns[-1]), open_loop=True)


def measured(records: list[RequestRecord], seed: int, stopped_ns: int, **known: Any) -> Compared:
    n = len(records)
    manifest = Manifest(
        id=str(seed),
        name="sim",
        started_ns=ORIGIN_NS,
        stopped_ns=stopped_ns,
        ended_ns=max(stopped_ns, *(each.ended_ns for each in records)),
        model="simulated",
        slo=SLO,
        workers=[WorkerFacts(id="w", index=0, announced=n, received=n)],
        **known,
    )
    batch = RecordBatch.from_records(records, worker="w")
    return measure_for_comparison(batch, manifest, Question(slo=SLO, warmup_s=0.0))


def served(
    engine: Engine, sent_ns: NDArray[np.int64], prompts: list[int], answers: list[int]
) -> Iterator[RequestRecord]:
    """Records of the requests, in the order of their ends."""
    base_ns = engine.profile.ttft_base_ns
    coming = [(int(at), k) for k, at in enumerate(sent_ns.tolist())]
    heapq.heapify(coming)
    number: dict[int, int] = {}
    arrivals: dict[int, list[int]] = {}
    ends_ns: int | None = None
    while coming or ends_ns is not None:
        while coming and (ends_ns is None or coming[0][0] <= ends_ns):
            at_ns, k = heapq.heappop(coming)
            sequence = EngineSequence(prompts[k], answers[k], at_ns + base_ns)
            number[id(sequence)], arrivals[k] = k, []
            engine.submit(sequence)
            if ends_ns is None:
                ends_ns = engine.start_step()
        if ends_ns is None:
            return
        for sequence in engine.finish_step():
            k = number[id(sequence)]
            arrivals[k].append(ends_ns - int(sent_ns[k]))
            if sequence.generated == sequence.output_tokens:
                yield record(k, int(sent_ns[k]), ends_ns, arrivals.pop(k), prompts[k])
        ends_ns = engine.start_step()


def record(k: int, sent_ns: int, ended_ns: int, arrivals_ns: list[int], prompt_tokens: int) -> RequestRecord:
    return RequestRecord(
        request_id=str(k),
        name="chat",
        outcome=Outcome.OK,
        scheduled_ns=sent_ns,
        started_ns=sent_ns,
        connected_ns=sent_ns,
        sent_ns=sent_ns,
        ended_ns=ended_ns,
        arrivals_ns=np.array(arrivals_ns, dtype=np.int64),
        input_tokens=prompt_tokens,
        output_tokens=len(arrivals_ns),
        output_chars=4 * len(arrivals_ns),
        token_source=TokenSource.USAGE,
        reused=True,
    )


def engine(pairs: int) -> bool:
    """Print what the table finds in runs of one engine, and of one whose first tokens are slower."""
    usual = EngineProfile()
    quiet, found = 0, dict.fromkeys(("mean_ttft", "p50_ttft", "p95_ttft", "p99_ttft"), 0)
    alarms: dict[str, int] = {}
    ratios = []
    for pair in range(pairs):
        base, new, worse = (
            run(3 * pair + 1, usual),
            run(3 * pair + 2, usual),
            run(3 * pair + 3, slower(usual, SLOWER)),
        )
        moved = [row.metric.name for row in changed(base, new)]
        quiet += not moved
        for name in moved:
            alarms[name] = alarms.get(name, 0) + 1
        ratios.append(mean_ttft(worse) / mean_ttft(base))
        for name in {row.metric.name for row in changed(base, worse)} & found.keys():
            found[name] += 1
    print(f"{pairs} pairs of runs of {REQUESTS:,} requests at {RATE_PER_S:g}/s")
    print(f"the same server: no difference beyond noise in {quiet} of {pairs}; alarms: {alarms or 'none'}")
    print(
        f"TTFT {np.mean(ratios) - 1:+.1%} (mean): found in " + ", ".join(f"{k} {v}" for k, v in found.items())
    )
    return quiet >= 0.95 * pairs - 3 * math.sqrt(0.05 * 0.95 * pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=200, help="for each gate (%(default)s)")
    parser.add_argument("--process", default="", help="only processes whose name begins so")
    parser.add_argument("--engine", type=int, default=40, help="pairs of whole runs (%(default)s)")
    args = parser.parse_args()
    console = Console(width=120)
    table, met = latencies(args.pairs, args.process)
    console.print(table)
    console.print(loops(args.engine))
    met = engine(args.engine) and met
    console.print(f"mark: {'met' if met else 'NOT MET'}")
    return 0 if met else 1


def changed(base: Compared, new: Compared) -> list[Row]:
    comparison = compare_in_turn([base, new])[0]
    return [*comparison.having(Verdict.WORSE), *comparison.having(Verdict.BETTER)]


def mean_ttft(of: Compared) -> float:
    values = of.measured.values["ttft"]
    return float(np.nanmean(values))


if __name__ == "__main__":
    sys.exit(main())
