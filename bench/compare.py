"""Check that ``compare`` finds what changed, and nothing else, on runs of the simulated engine in virtual
time.

    python bench/compare.py [--pairs 100]

Each run is one engine with continuous batching and 2,000 requests at random times (Poisson), so that
neighbours share its queue and its batches as in a real server. Two runs of one server have different
arrivals, lengths and noise, and must show no difference. If prefill and first wait are so much slower that
the mean TTFT is 10 % up, TTFT must show it. Nothing is sent: a run takes a fifth of a second.
"""

import argparse
import heapq
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import Manifest, WorkerFacts
from llm_locust.core.record import Outcome, RequestRecord, TokenSource
from llm_locust.metrics.compare.compared import Compared, measure_for_comparison
from llm_locust.metrics.compare.comparison import Row, Verdict, compare_in_turn
from llm_locust.metrics.question import Question
from llm_locust.sim.engine.engine import Engine, EngineProfile, Sequence

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
    end_ns = int(sent_ns[-1])
    manifest = Manifest(
        id=str(seed),
        name="sim",
        started_ns=ORIGIN_NS,
        stopped_ns=end_ns,
        ended_ns=end_ns,
        model="simulated",
        slo=SLO,
        open_loop=True,
        workers=[WorkerFacts(id="w", index=0, announced=REQUESTS, received=REQUESTS)],
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
            sequence = Sequence(prompts[k], answers[k], at_ns + base_ns)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=100)
    pairs = parser.parse_args().pairs
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


def changed(base: Compared, new: Compared) -> list[Row]:
    comparison = compare_in_turn([base, new])[0]
    return [*comparison.having(Verdict.WORSE), *comparison.having(Verdict.BETTER)]


def mean_ttft(of: Compared) -> float:
    values = of.measured.values["ttft"]
    return float(np.nanmean(values))


if __name__ == "__main__":
    main()
