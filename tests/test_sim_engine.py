from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_locust.sim.engine import Engine, EngineProfile, Sequence

MS = 1_000_000

PROFILE = EngineProfile(
    ttft_base_ns=0,
    prefill_per_token_ns=MS // 10,
    step_base_ns=10 * MS,
    step_per_sequence_ns=MS,
    max_num_seqs=4,
    max_num_batched_tokens=100,
    kv_cache_tokens=10_000,
    noise=0.0,
)


def token_times_ns(engine: Engine, steps: int = 10_000) -> dict[Sequence, list[int]]:
    """Run the engine to its end: when each sequence's tokens came."""
    times: dict[Sequence, list[int]] = {}
    for _ in range(steps):
        end_ns = engine.start_step()
        if end_ns is None:
            return times
        for sequence in engine.finish_step():
            times.setdefault(sequence, []).append(end_ns)
    raise AssertionError(f"still busy after {steps} steps")


def test_an_idle_engine_does_nothing() -> None:
    assert Engine(PROFILE, 0).start_step() is None


def test_a_lone_sequence_gets_its_tokens_at_the_times_of_the_formula() -> None:
    engine = Engine(PROFILE, 0)
    sequence = Sequence(prompt_tokens=50, output_tokens=3, ready_ns=7 * MS)
    engine.submit(sequence)
    # ready, then 10 + 1 + 50 · 0.1 ms with the prompt, then 10 + 1 ms a token
    assert token_times_ns(engine) == {sequence: [23 * MS, 34 * MS, 45 * MS]}
    assert (engine.num_running, engine.num_waiting, engine.kv_cache_usage) == (0, 0, 0.0)


def test_a_bigger_batch_makes_every_step_slower() -> None:
    engine = Engine(PROFILE, 0)
    sequences = [Sequence(10, 5, 0) for _ in range(4)]
    for sequence in sequences:
        engine.submit(sequence)
    times = token_times_ns(engine)
    gaps = {b - a for s in sequences for a, b in zip(times[s], times[s][1:], strict=False)}
    assert gaps == {14 * MS}


def test_a_long_prompt_is_prefilled_in_chunks_while_others_keep_decoding() -> None:
    engine = Engine(PROFILE, 0)
    short, long = Sequence(10, 8, 0), Sequence(250, 1, 0)
    engine.submit(short)
    engine.submit(long)
    times = token_times_ns(engine)
    # budget 100: short's 10 + 90 of long's, then 99 beside the decode, then the last 61
    assert times[short][0] == round((12 + 10) * MS)
    assert times[short][1] - times[short][0] == round((12 + 9.9) * MS)
    assert times[long] == [times[short][2]]


def test_more_sequences_than_the_limit_wait_first_come_first_served() -> None:
    engine = Engine(PROFILE, 0)
    sequences = [Sequence(1, 3, 0) for _ in range(7)]
    for sequence in sequences:
        engine.submit(sequence)
    engine.start_step()
    assert (engine.num_running, engine.num_waiting) == (4, 3)
    engine.finish_step()
    times = token_times_ns(engine)
    firsts = [times[s][0] for s in sequences[4:]]
    assert firsts == sorted(firsts)
    assert firsts[0] > times[sequences[0]][-1]


def test_a_sequence_is_not_admitted_before_it_is_ready() -> None:
    engine = Engine(PROFILE, 0)
    first, late = Sequence(1, 10, 0), Sequence(1, 1, 50 * MS)
    engine.submit(first)
    engine.submit(late)
    assert token_times_ns(engine)[late][0] > 50 * MS


def test_a_full_kv_cache_keeps_the_next_sequence_waiting_and_a_cancel_frees_it() -> None:
    engine = Engine(replace(PROFILE, kv_cache_tokens=100), 0)
    big, next_one = Sequence(60, 30, 0), Sequence(10, 10, 0)
    engine.submit(big)
    engine.submit(next_one)
    engine.start_step()
    engine.finish_step()
    assert (engine.num_running, engine.num_waiting) == (1, 1)
    assert engine.kv_cache_usage == pytest.approx(61 / 100)
    engine.cancel(big)
    engine.start_step()
    assert (engine.num_running, engine.num_waiting) == (1, 0)
    assert engine.finish_step() == [next_one]


def test_a_sequence_longer_than_the_kv_cache_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="a sequence of 10001 tokens does not fit"):
        Engine(PROFILE, 0).submit(Sequence(10_000, 1, 0))


def test_a_sequence_cancelled_during_a_step_gets_no_token_from_it() -> None:
    engine = Engine(PROFILE, 0)
    stays, decoding, waiting = Sequence(1, 9, 0), Sequence(1, 9, 0), Sequence(1, 9, 0)
    engine.submit(stays)
    engine.submit(decoding)
    engine.start_step()
    engine.finish_step()
    engine.submit(waiting)
    engine.start_step()
    engine.cancel(decoding)
    engine.cancel(waiting)
    engine.cancel(waiting)  # over already: left alone
    assert engine.finish_step() == [stays]


def test_a_slow_sequence_takes_its_pace_in_steps_per_token() -> None:
    engine = Engine(PROFILE, 0)
    slow, other = Sequence(1, 4, 0, pace=3), Sequence(1, 12, 0)
    engine.submit(slow)
    engine.submit(other)
    times = token_times_ns(engine)
    assert times[slow] == times[other][0:10:3]


def test_noise_is_reproduced_by_the_seed_and_leaves_the_mean() -> None:
    noisy = replace(PROFILE, noise=0.2)

    def run(seed: int) -> list[int]:
        engine = Engine(noisy, seed)
        sequence = Sequence(1, 2_000, 0)
        engine.submit(sequence)
        return token_times_ns(engine)[sequence]

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert run(1)[-1] / 2_000 == pytest.approx(11 * MS, rel=0.03)  # 6 standard errors


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 20), st.integers(0, 200)), max_size=20),
    st.integers(1, 6),
)
def test_every_sequence_gets_exactly_its_tokens_in_order_of_time(
    asked: list[tuple[int, int, int]], max_num_seqs: int
) -> None:
    engine = Engine(replace(PROFILE, max_num_seqs=max_num_seqs, kv_cache_tokens=400), 0)
    sequences = [Sequence(p, o, ready * MS) for p, o, ready in sorted(asked, key=lambda a: a[2])]
    for sequence in sequences:
        engine.submit(sequence)
    times = token_times_ns(engine)
    for sequence in sequences:
        assert len(times[sequence]) == sequence.output_tokens
        assert sorted(set(times[sequence])) == times[sequence]
        assert times[sequence][0] >= sequence.ready_ns + PROFILE.step_base_ns
    assert engine.kv_cache_usage == 0
