"""The simulated engine against what queueing theory and its own step time say, in virtual time.

Symbols: P prompt and n output tokens of a request, N sequences in the batch, b = step_base,
s = step_per_sequence, f = prefill_per_token, all in ns.
"""

import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from llm_locust.sim.engine import Engine, EngineProfile, EngineSequence
from llm_locust.sim.jobs import ModelLimits, resolve
from llm_locust.wire.dialects.chat import COMPLETIONS

MS = 1_000_000
S = 1_000 * MS

PROFILE = EngineProfile(
    ttft_base_ns=0,
    step_base_ns=10 * MS,
    step_per_sequence_ns=MS // 10,
    prefill_per_token_ns=20_000,
    max_num_seqs=32,
    max_num_batched_tokens=4_096,
    noise=0.0,
)
B, PER_SEQ, F = PROFILE.step_base_ns, PROFILE.step_per_sequence_ns, PROFILE.prefill_per_token_ns
P, N_OUT = 100, 50


@dataclass(eq=False)
class Served:
    """A request's times in virtual ns."""

    sequence: EngineSequence
    token_ns: list[int] = field(default_factory=list)

    @property
    def ttft_ns(self) -> int:
        return self.token_ns[0] - self.sequence.ready_ns

    @property
    def tpot_ns(self) -> float:
        return (self.token_ns[-1] - self.token_ns[0]) / (len(self.token_ns) - 1)


def serve(engine: Engine, sequences: Iterator[EngineSequence] | list[EngineSequence]) -> list[Served]:
    """Give the engine the sequences, in the order of their ``ready_ns``, and run it to the end."""
    served = {sequence: Served(sequence) for sequence in sequences}
    for sequence in served:
        engine.submit(sequence)
    while (end_ns := engine.start_step()) is not None:
        for sequence in engine.finish_step():
            served[sequence].token_ns.append(end_ns)
    return list(served.values())


def closed_loop(users: int, rounds: int) -> list[Served]:
    """Each user sends its next request as soon as the last one is answered."""
    engine, served = Engine(PROFILE, 0), dict[EngineSequence, Served]()

    def send(ready_ns: int) -> None:
        sequence = EngineSequence(P, N_OUT, ready_ns)
        served[sequence] = Served(sequence)
        engine.submit(sequence)

    for _ in range(users):
        send(0)
    while (end_ns := engine.start_step()) is not None:
        for sequence in engine.finish_step():
            served[sequence].token_ns.append(end_ns)
            if sequence.generated == N_OUT and len(served) < users * rounds:
                send(end_ns)
    return list(served.values())


def tokens_per_s(served: list[Served]) -> float:
    ends_ns = max(one.token_ns[-1] for one in served)
    begin_ns = min(one.sequence.ready_ns for one in served)
    return sum(len(one.token_ns) for one in served) / (ends_ns - begin_ns) * 1e9


@pytest.mark.parametrize("users", [1, 16, 32], ids=["idle", "half", "full"])
def test_a_closed_loop_of_any_size_has_its_ttft_tpot_and_throughput_exactly(users: int) -> None:
    """All users go in step: TPOT = b + N·s, TTFT = TPOT + N·P·f, tokens/s = N·n / (TTFT + (n-1)·TPOT)."""
    served = closed_loop(users, rounds=5)
    ttft_ns = B + users * PER_SEQ + users * P * F
    tpot_ns = B + users * PER_SEQ
    assert {one.ttft_ns for one in served} == {ttft_ns}
    assert {one.tpot_ns for one in served} == {tpot_ns}
    assert tokens_per_s(served) == pytest.approx(users * N_OUT / (ttft_ns + (N_OUT - 1) * tpot_ns) * 1e9)


def test_a_saturated_engine_works_in_rounds_and_what_waits_waits_for_whole_ones() -> None:
    """N_max·k requests come at 0. TPOT = b + N_max·s; the k-th round's TTFT = k·round + TPOT + N_max·P·f,

    and tokens/s = N_max·n / round, where round = n·TPOT + N_max·P·f.
    """
    slots, rounds = PROFILE.max_num_seqs, 6
    served = serve(Engine(PROFILE, 0), [EngineSequence(P, N_OUT, 0) for _ in range(slots * rounds)])
    tpot_ns = B + slots * PER_SEQ
    round_ns = N_OUT * tpot_ns + slots * P * F
    for k in range(rounds):
        of_round = served[k * slots : (k + 1) * slots]
        assert {one.ttft_ns for one in of_round} == {k * round_ns + tpot_ns + slots * P * F}
        assert {one.tpot_ns for one in of_round} == {tpot_ns}
    assert tokens_per_s(served) == pytest.approx(slots * N_OUT / round_ns * 1e9)


def saturated_requests_per_s(mean_output: float) -> float:
    """With N_max sequences of staggered lengths a request costs n·(b + N·s)/N + P·f of the engine's time."""
    slots = PROFILE.max_num_seqs
    return 1e9 / (mean_output * (B + slots * PER_SEQ) / slots + P * F)


def poisson(rate_per_s: float, count: int, seed: int, output: Callable[[], int]) -> Iterator[EngineSequence]:
    gaps_s = np.random.default_rng(seed).exponential(1 / rate_per_s, count)
    return (
        EngineSequence(P, output(), ready_ns)
        for ready_ns in np.rint(np.cumsum(gaps_s) * 1e9).astype(int).tolist()
    )


def test_saturated_by_an_open_loop_it_serves_what_a_full_batch_can() -> None:
    """Twice what it can serve comes: tokens/s = N_max / (b + N_max·s + f·P·N_max/n)."""
    lengths = np.random.default_rng(1).geometric(1 / N_OUT, 4_000).tolist()
    rate = saturated_requests_per_s(N_OUT)
    coming = iter(lengths)
    served = serve(Engine(PROFILE, 0), poisson(2 * rate, len(lengths), 2, lambda: next(coming)))
    last_ns = served[-1].sequence.ready_ns  # the batch is full from soon after the start until here
    tokens = sum(at_ns <= last_ns for one in served for at_ns in one.token_ns)
    assert tokens / last_ns * 1e9 == pytest.approx(rate * N_OUT, rel=0.03)
    # A queue that grows by what is too much: the k-th request waits k/rate - k/(2·rate).
    waits_s = [one.ttft_ns * 1e-9 for one in served]
    assert waits_s[2_000] == pytest.approx(2_000 / rate / 2, rel=0.05)


def test_half_loaded_by_poisson_arrivals_it_has_the_fluid_limits_step_time() -> None:
    """At λ requests/s the batch holds N = λ·n·T and a step lasts T = b + s·N + f·P·λ·T, so

    T = b / (1 - λ·(n·s + P·f)), TPOT = T, tokens/s = λ·n, TTFT = E[T²]/2E[T] + T + own prompt.
    """
    rate = saturated_requests_per_s(N_OUT) / 2
    served = serve(Engine(PROFILE, 0), poisson(rate, 6_000, 3, lambda: N_OUT))
    middle = served[500:-500]
    step_ns = B / (1 - rate / 1e9 * (N_OUT * PER_SEQ + P * F))
    assert np.mean([one.tpot_ns for one in middle]) == pytest.approx(step_ns, rel=0.02)
    # A request comes amid a step, the longer the likelier, and its own step has its own prompt beside
    # those of the others who came during that same step.
    steps_ns = np.unique(np.concatenate([one.token_ns for one in middle]))
    lengths_ns = np.diff(steps_ns)
    lengths_ns = lengths_ns[lengths_ns < 5 * step_ns]
    residual_ns = float(np.mean(lengths_ns**2.0) / (2 * np.mean(lengths_ns)))
    ttft_ns = residual_ns + step_ns + P * F
    assert np.mean([one.ttft_ns for one in middle]) == pytest.approx(ttft_ns, rel=0.05)
    first_ns, last_ns = middle[0].sequence.ready_ns, middle[-1].sequence.ready_ns
    tokens = sum(first_ns <= at_ns < last_ns for one in served for at_ns in one.token_ns)
    assert tokens / (last_ns - first_ns) * 1e9 == pytest.approx(rate * N_OUT, rel=0.03)


def lindley_ns(arrivals_ns: NDArray[np.int64], service_ns: int) -> NDArray[np.int64]:
    """Waits of a single server: W(k+1) = max(0, W(k) + D - (arrival k+1 - arrival k))."""
    steps = service_ns - np.diff(arrivals_ns)
    # The recursion as the walk's height above its lowest point so far.
    walk = np.concatenate([[0], np.cumsum(steps)])
    return walk - np.minimum.accumulate(walk)


@pytest.mark.parametrize("rho", [0.5, 0.8])
def test_one_server_at_a_time_queues_as_m_d_1(rho: float) -> None:
    """One slot, one token: service D = b + s + P·f for all, so the mean wait is ρ·D / (2·(1 - ρ))."""
    service_ns = round(B + PER_SEQ + P * F)
    gaps_ns = np.random.default_rng(7).exponential(service_ns / rho, 200_000)
    arrivals_ns = np.rint(np.cumsum(gaps_ns)).astype(np.int64)
    engine = Engine(replace(PROFILE, max_num_seqs=1), 0)
    waits_ns = lindley_ns(arrivals_ns, service_ns)
    first_ns = arrivals_ns[:5_000]
    sequences = [EngineSequence(P, 1, ready_ns) for ready_ns in first_ns.tolist()]
    for sequence in sequences:
        engine.submit(sequence)
    while engine.start_step() is not None:
        engine.finish_step()
    assert np.array_equal([s.scheduled_ns or 0 for s in sequences] - first_ns, waits_ns[: len(first_ns)])
    assert engine.busy_ns == len(first_ns) * service_ns
    assert waits_ns.mean() == pytest.approx(rho * service_ns / (2 * (1 - rho)), rel=0.03)
    assert (waits_ns == 0).mean() == pytest.approx(1 - rho, rel=0.03)  # who comes finds it idle: PASTA


def test_a_prefix_cache_saves_exactly_the_time_of_the_tokens_that_it_has() -> None:
    """TTFT = b + s + f·(P - cached), cached = the shared prompt's whole blocks."""
    shared, own, size = 800, 37, PROFILE.kv_block_tokens
    engine = Engine(replace(PROFILE, prefix_cache=True), 0)
    keys = tuple(range(shared // size))
    sequences = [
        EngineSequence(shared + own, 2, k * S, block_hashes=(*keys, 1_000 + 2 * k, 1_001 + 2 * k))
        for k in range(5)
    ]
    served = serve(engine, sequences)
    cached = shared // size * size
    computed = [shared + own, *[shared + own - cached] * 4]
    assert [one.ttft_ns for one in served] == [round(B + PER_SEQ + F * tokens) for tokens in computed]
    assert engine.counters.prefix_hits == 4 * cached


@pytest.mark.parametrize("models", [1, 2, 3])
def test_adapters_in_turn_find_a_prompt_once_less_for_each(models: int) -> None:
    """n prompts with one beginning, of a models in turn: (n - a) · cached hits, not (n - 1) · cached."""
    shared, n, size = " ".join(["word"] * 800), 12, PROFILE.kv_block_tokens
    limits = ModelLimits(models=("base", "lora-a", "lora-b"))
    engine = Engine(replace(PROFILE, prefix_cache=True), 0)
    sequences = []
    for k in range(n):
        asked = {"model": limits.models[k % models], "prompt": f"{shared} {k:03d} end", "max_tokens": 2}
        job = resolve(COMPLETIONS, json.dumps(asked).encode(), f"{k}", limits, random.Random(k), size)
        sequences.append(EngineSequence(job.prompt_tokens, 2, k * S, block_hashes=job.block_hashes))
    serve(engine, sequences)
    assert engine.counters.prefix_hits == (n - models) * (800 // size * size)
    assert engine.counters.prefix_queries == n * 802


def test_noise_leaves_the_throughput_and_spreads_the_gaps() -> None:
    """The factor's mean is 1 and its standard deviation sqrt(exp(σ²) - 1)."""
    sigma = 0.1
    (served,) = serve(Engine(replace(PROFILE, noise=sigma), 5), [EngineSequence(P, 20_000, 0)])
    gaps_ns = np.array([b - a for a, b in itertools.pairwise(served.token_ns)])
    assert gaps_ns.mean() == pytest.approx(B + PER_SEQ, rel=0.003)
    assert gaps_ns.std() / gaps_ns.mean() == pytest.approx(np.sqrt(np.expm1(sigma**2)), rel=0.03)
