"""The simulated engine, and what it says of itself."""

import itertools
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from sim_deployment import deployment

from llm_locust.deployment.server_metrics import readings
from llm_locust.sim.engine import Engine, EngineCounters, EngineProfile, EngineSequence
from llm_locust.sim.telemetry import (
    BUSY_W,
    IDLE_W,
    BucketHistogram,
    GpuKind,
    GpuReading,
    ReplicaReading,
    ReplicaStats,
    exposition,
    gpu_exposition,
)

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


def token_times_ns(engine: Engine, steps: int = 10_000) -> dict[EngineSequence, list[int]]:
    """Run the engine to its end: when each sequence's tokens came."""
    times: dict[EngineSequence, list[int]] = {}
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
    sequence = EngineSequence(prompt_tokens=50, output_tokens=3, ready_ns=7 * MS)
    engine.submit(sequence)
    # ready, then 10 + 1 + 50 · 0.1 ms with the prompt, then 10 + 1 ms a token
    assert token_times_ns(engine) == {sequence: [23 * MS, 34 * MS, 45 * MS]}
    assert (engine.num_running, engine.num_waiting, engine.kv_cache_usage) == (0, 0, 0.0)


def test_a_bigger_batch_makes_every_step_slower() -> None:
    engine = Engine(PROFILE, 0)
    sequences = [EngineSequence(10, 5, 0) for _ in range(4)]
    for sequence in sequences:
        engine.submit(sequence)
    times = token_times_ns(engine)
    gaps = {b - a for s in sequences for a, b in zip(times[s], times[s][1:], strict=False)}
    assert gaps == {14 * MS}


def test_a_long_prompt_is_prefilled_in_chunks_while_others_keep_decoding() -> None:
    engine = Engine(PROFILE, 0)
    short, long = EngineSequence(10, 8, 0), EngineSequence(250, 1, 0)
    engine.submit(short)
    engine.submit(long)
    times = token_times_ns(engine)
    # budget 100: short's 10 + 90 of long's, then 99 beside the decode, then the last 61
    assert times[short][0] == round((12 + 10) * MS)
    assert times[short][1] - times[short][0] == round((12 + 9.9) * MS)
    assert times[long] == [times[short][2]]


def test_more_sequences_than_the_limit_wait_first_come_first_served() -> None:
    engine = Engine(PROFILE, 0)
    sequences = [EngineSequence(1, 3, 0) for _ in range(7)]
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
    first, late = EngineSequence(1, 10, 0), EngineSequence(1, 1, 50 * MS)
    engine.submit(first)
    engine.submit(late)
    assert token_times_ns(engine)[late][0] > 50 * MS


def test_blocks_are_taken_as_tokens_come_and_a_full_cache_keeps_the_next_one_waiting() -> None:
    engine = Engine(replace(PROFILE, kv_cache_tokens=100), 0)  # 6 blocks of 16
    big, next_one = EngineSequence(60, 30, 0), EngineSequence(40, 10, 0)
    engine.submit(big)
    engine.submit(next_one)
    engine.start_step()
    engine.finish_step()
    assert (engine.num_running, engine.num_waiting) == (1, 1)  # the next one needs 3 blocks, 2 are free
    assert engine.kv_cache_usage == 4 / 6
    for _ in range(5):  # tokens 61 to 65: the last one begins a block
        engine.start_step()
        engine.finish_step()
    assert engine.kv_cache_usage == 5 / 6
    engine.cancel(big)
    engine.start_step()
    assert (engine.num_running, engine.num_waiting) == (1, 0)
    assert engine.finish_step() == [next_one]


@pytest.mark.parametrize(("kv_cache_tokens", "longest"), [(10_000, 10_000), (9_999, 9_984)])
def test_a_sequence_longer_than_the_kv_cache_is_refused_at_once(kv_cache_tokens: int, longest: int) -> None:
    engine = Engine(replace(PROFILE, kv_cache_tokens=kv_cache_tokens), 0)
    engine.submit(EngineSequence(longest - 1, 1, 0))
    with pytest.raises(ValueError, match=f"{longest + 1} tokens does not fit into a KV cache of {longest}"):
        engine.submit(EngineSequence(longest, 1, 0))


def test_the_youngest_gives_way_and_is_prefilled_again_with_the_tokens_that_it_has() -> None:
    engine = Engine(replace(PROFILE, kv_cache_tokens=64), 0)  # 4 blocks
    old, young = EngineSequence(31, 20, 0), EngineSequence(30, 10, 0)
    engine.submit(old)
    engine.submit(young)
    times = token_times_ns(engine)
    # Step 1 has both prompts. In step 3 the old one's 33rd token needs a third block: the young one, with
    # 32 tokens, gives its two back. They are free again when the old one is over, after its 20th step.
    step_ns = [18.1, 12.0, *[11.0] * 18, 14.2, *[11.0] * 7]
    ends_ns = [round(sum(step_ns[: k + 1]) * MS) for k in range(len(step_ns))]
    assert times[old] == ends_ns[:20]
    assert times[young] == [*ends_ns[:2], *ends_ns[20:]]
    assert (old.preemptions, young.preemptions, engine.counters.preemptions) == (0, 1, 1)
    assert young.scheduled_ns == 0  # the first time


def test_a_preempted_sequence_is_ahead_of_all_that_wait() -> None:
    engine = Engine(replace(PROFILE, kv_cache_tokens=64), 0)
    sequences = [EngineSequence(31, 20, 0), EngineSequence(31, 3, 0), EngineSequence(1, 1, 0)]
    for sequence in sequences:
        engine.submit(sequence)
    times = token_times_ns(engine)
    assert sequences[1].preemptions == 1
    # The last one would fit into the block that is left, and comes no sooner than the head of the queue.
    assert times[sequences[2]] == [times[sequences[1]][2]]
    assert times[sequences[1]][2] > times[sequences[0]][-1]


def shared_prompt(prompt: int, ready_ns: int, output: int = 2) -> EngineSequence:
    """A prompt that begins as every other one from here."""
    return EngineSequence(prompt, output, ready_ns, block_hashes=tuple(range(prompt // 16)))


def test_a_prompt_is_computed_from_where_it_differs_and_one_token_at_least() -> None:
    engine = Engine(replace(PROFILE, prefix_cache=True), 0)
    sequences = [
        shared_prompt(64, 0),
        shared_prompt(64, 1_000 * MS),  # the same: all but its last block
        shared_prompt(40, 2_000 * MS),  # two full blocks of it
        EngineSequence(64, 2, 3_000 * MS, block_hashes=(-1, 1, 2, 3)),  # another beginning: nothing
    ]
    for sequence in sequences:
        engine.submit(sequence)
    times = token_times_ns(engine)
    assert [s.cached_tokens for s in sequences] == [0, 48, 32, 0]
    ttfts_ns = [times[s][0] - s.ready_ns for s in sequences]
    assert ttfts_ns == [round((11 + computed * 0.1) * MS) for computed in (64, 16, 8, 64)]
    assert (engine.counters.prefix_queries, engine.counters.prefix_hits) == (64 + 64 + 40 + 64, 80)
    assert engine.kv_cache_usage == 0


def test_sequences_that_run_at_once_share_their_blocks() -> None:
    engine = Engine(replace(PROFILE, prefix_cache=True, kv_cache_tokens=112), 0)  # 7 blocks
    first, second = shared_prompt(65, 0, 9), shared_prompt(65, MS, 9)
    engine.submit(first)
    engine.submit(second)
    times = token_times_ns(engine)
    assert second.cached_tokens == 64
    assert times[second][0] == times[first][1]  # of ten blocks without sharing there would not be enough
    assert engine.counters.preemptions == 0


def test_without_a_prefix_cache_nothing_is_found_and_nothing_told() -> None:
    engine = Engine(PROFILE, 0)
    sequences = [shared_prompt(64, 0), shared_prompt(64, 1_000 * MS)]
    for sequence in sequences:
        engine.submit(sequence)
    token_times_ns(engine)
    assert [s.cached_tokens for s in sequences] == [None, None]
    assert engine.counters == EngineCounters()


def test_a_reset_prefix_cache_finds_nothing_and_what_runs_goes_on() -> None:
    engine = Engine(replace(PROFILE, prefix_cache=True), 0)
    running, later = shared_prompt(64, 0, 5), shared_prompt(64, MS, 1)
    engine.submit(running)
    engine.start_step()
    engine.finish_step()
    engine.reset_prefix_cache()
    engine.submit(later)
    times = token_times_ns(engine)
    assert (len(times[running]), later.cached_tokens) == (4, 0)
    assert engine.kv_cache_usage == 0


def test_a_preempted_prompt_finds_its_own_blocks_again() -> None:
    engine = Engine(replace(PROFILE, prefix_cache=True, kv_cache_tokens=64), 0)
    old, young = EngineSequence(31, 4, 0), shared_prompt(32, 0, 5)
    engine.submit(old)
    engine.submit(young)
    times = token_times_ns(engine)
    assert young.preemptions == 1
    # All its blocks are found but for what the old one has taken; it computes from there on, not from 0.
    resumed_ns = times[young][1] - times[old][-1]
    assert resumed_ns < round((11 + 33 * 0.1) * MS)
    assert (young.cached_tokens, engine.counters.prefix_hits) == (0, 0)  # looked up once a sequence


def test_a_step_that_reads_context_lasts_longer_with_every_token() -> None:
    engine = Engine(replace(PROFILE, context_per_token_ns=1_000.0), 0)
    sequence = EngineSequence(50, 4, 0)
    engine.submit(sequence)
    times = token_times_ns(engine)[sequence]
    gaps_ns = [b - a for a, b in itertools.pairwise(times)]
    assert times[0] == 16 * MS  # the prompt's own attention is in the time per prompt token
    assert gaps_ns == [11 * MS + context * 1_000 for context in (51, 52, 53)]


def test_with_overlap_the_longer_of_memory_and_arithmetic_counts() -> None:
    profile = replace(PROFILE, overlap=True, context_per_token_ns=10_000.0, max_num_batched_tokens=1_000)
    engine = Engine(profile, 0)
    long, short = EngineSequence(500, 3, 0), EngineSequence(50, 2, 1_000 * MS)
    engine.submit(long)
    engine.submit(short)
    times = token_times_ns(engine)
    # arithmetic: 1 + 500 · 0.1 ms; memory: 1 + 10 ms + (501, then 502 tokens of context) · 0.01 ms
    assert times[long] == [51 * MS, 51 * MS + 16_010_000, 51 * MS + 16_010_000 + 16_020_000]
    assert times[short][0] - short.ready_ns == 11 * MS  # 50 · 0.1 ms is hidden behind 10 ms of weights
    assert times[short][1] - times[short][0] == 11 * MS + 51 * 10_000


def test_a_slowed_engine_takes_its_factor_in_every_later_step() -> None:
    engine = Engine(PROFILE, 0)
    sequence = EngineSequence(50, 4, 0)
    engine.submit(sequence)
    engine.start_step()
    engine.slow_factor = 3.0  # the step under way lasts what it lasts
    assert engine.finish_step() == [sequence]
    assert engine.start_step() == (16 + 3 * 11) * MS
    engine.finish_step()
    engine.slow_factor = 1.0
    assert engine.start_step() == (16 + 3 * 11 + 11) * MS


def test_a_cleared_engine_has_nothing_and_is_free_at_once() -> None:
    engine = Engine(replace(PROFILE, prefix_cache=True), 0)
    for _ in range(6):
        engine.submit(shared_prompt(64, 0))
    engine.start_step()
    engine.clear(5 * MS)  # amid its first step
    assert (engine.num_running, engine.num_waiting, engine.kv_cache_usage) == (0, 0, 0.0)
    assert (engine.counters, engine.busy_ns) == (EngineCounters(), 5 * MS)
    again = shared_prompt(64, 6 * MS)
    engine.submit(again)
    assert token_times_ns(engine)[again][0] == round((6 + 11 + 6.4) * MS)
    assert again.cached_tokens == 0


def test_a_sequence_cancelled_during_a_step_gets_no_token_from_it() -> None:
    engine = Engine(PROFILE, 0)
    stays, decoding, waiting = EngineSequence(1, 9, 0), EngineSequence(1, 9, 0), EngineSequence(1, 9, 0)
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
    slow, other = EngineSequence(1, 4, 0, pace=3), EngineSequence(1, 12, 0)
    engine.submit(slow)
    engine.submit(other)
    times = token_times_ns(engine)
    assert times[slow] == times[other][0:10:3]


def test_noise_is_reproduced_by_the_seed_and_leaves_the_mean() -> None:
    noisy = replace(PROFILE, noise=0.2)

    def run(seed: int) -> list[int]:
        engine = Engine(noisy, seed)
        sequence = EngineSequence(1, 2_000, 0)
        engine.submit(sequence)
        return token_times_ns(engine)[sequence]

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert run(1)[-1] / 2_000 == pytest.approx(11 * MS, rel=0.03)  # 6 standard errors


ASKED = st.tuples(
    st.integers(1, 300),  # prompt tokens
    st.integers(1, 90),  # output tokens
    st.integers(0, 200),  # ms until it is ready
    st.integers(0, 2),  # the family of prompts that begin alike
    st.none() | st.integers(0, 99),  # the step during which it is cancelled
)


@given(st.lists(ASKED, max_size=20), st.integers(1, 6), st.booleans(), st.sampled_from([400, 500, 2_000]))
def test_every_sequence_ends_with_exactly_its_tokens_and_no_block_leaks(
    asked: list[tuple[int, int, int, int, int | None]], max_num_seqs: int, prefix_cache: bool, kv_tokens: int
) -> None:
    profile = replace(
        PROFILE, max_num_seqs=max_num_seqs, kv_cache_tokens=kv_tokens, prefix_cache=prefix_cache
    )
    engine, times, cancels = Engine(profile, 0), {}, {}
    for prompt, output, ready, family, cancelled_after in sorted(asked, key=lambda a: a[2]):
        keys = tuple(1_000 * family + k for k in range(prompt // 16))
        sequence = EngineSequence(prompt, output, ready * MS, block_hashes=keys)
        engine.submit(sequence)
        times[sequence] = list[int]()
        if cancelled_after is not None:
            cancels[sequence] = cancelled_after
    for step in range(20_000):
        end_ns = engine.start_step()
        assert 0 <= engine.kv_cache_usage <= 1
        if end_ns is None:
            break
        for sequence in [s for s, after in cancels.items() if after == step]:
            engine.cancel(sequence)
        for sequence in engine.finish_step():
            times[sequence].append(end_ns)
    assert (engine.num_running, engine.num_waiting, engine.kv_cache_usage) == (0, 0, 0.0)
    for sequence, at_ns in times.items():
        assert len(at_ns) == sequence.generated <= sequence.output_tokens
        assert sequence.generated == sequence.output_tokens or sequence in cancels
        assert sorted(set(at_ns)) == at_ns
        assert not at_ns or at_ns[0] >= sequence.ready_ns + PROFILE.step_base_ns
    assert engine.counters.preemptions == sum(s.preemptions for s in times)
    assert engine.counters.prefix_hits == sum(s.cached_tokens or 0 for s in times)
    looked_up = sum(s.prompt_tokens for s in times if s.scheduled_ns is not None)
    assert engine.counters.prefix_queries == (looked_up if prefix_cache else 0)


def test_the_oldest_sequence_is_never_preempted_however_small_the_cache() -> None:
    engine = Engine(replace(PROFILE, max_num_seqs=20, kv_cache_tokens=160), 0)
    sequences = [EngineSequence(20, 140, 0) for _ in range(20)]  # each of them fills the cache alone
    for sequence in sequences:
        engine.submit(sequence)
    times = token_times_ns(engine)
    assert sequences[0].preemptions == 0
    assert engine.counters.preemptions > 20
    lasts = [times[s][-1] for s in sequences]
    assert lasts == sorted(lasts)


_SAMPLE = re.compile(r'(vllm:[a-z0-9_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)+)\} ([-+0-9.einf]+)')


def reading(engine: str, ttfts_s: list[float]) -> ReplicaReading:
    stats = ReplicaStats(prompt_tokens=10, generation_tokens=20)
    stats.finished["stop"] += 3
    for ttft_s in ttfts_s:
        stats.ttft_s.observe(ttft_s)
    return ReplicaReading(engine, 4, 5, 0.25, stats, EngineCounters(7, 1_000, 640))


def test_every_line_is_a_comment_or_a_sample_under_its_own_type() -> None:
    types: dict[str, str] = {}
    for line in exposition('odd "model"\\\n', [reading("0", [0.5]), reading("1", [])]).splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types
            types[name] = kind
        elif not line.startswith("# HELP "):
            match = _SAMPLE.fullmatch(line)
            assert match, line
            assert re.sub(r"_(bucket|sum|count)$", "", match[1]) in types
            float(match[3])
    assert types["vllm:num_requests_running"] == types["vllm:kv_cache_usage_perc"] == "gauge"
    assert types["vllm:generation_tokens_total"] == "counter"
    assert types["vllm:time_to_first_token_seconds"] == "histogram"


def test_values_are_told_apart_by_engine() -> None:
    text = exposition("sim", [reading("0", []), reading("7", [])])
    assert 'vllm:num_requests_waiting{engine="7",model_name="sim"} 5\n' in text
    assert 'vllm:request_success_total{engine="0",model_name="sim",finished_reason="stop"} 3\n' in text


def test_buckets_are_cumulative_and_hold_their_upper_edge() -> None:
    text = exposition("sim", [reading("0", [0.001, 0.0011, 5000.0])])
    found = re.findall(r'time_to_first_token_seconds_bucket\{[^}]*le="([^"]+)"\} (\d+)', text)
    assert found[:2] == [("0.001", "1"), ("0.005", "2")]
    assert found[-2:] == [("2560.0", "2"), ("+Inf", "3")]
    assert "seconds_count{" in text


def test_our_own_scraper_reads_every_figure_that_vllm_tells() -> None:
    stats = ReplicaStats(prompt_tokens=10, generation_tokens=20)
    for value, histogram in enumerate((stats.ttft_s, stats.itl_s, stats.tpot_s, stats.e2el_s, stats.queue_s)):
        histogram.observe(value + 1.0)
    text = exposition("sim", [ReplicaReading("0", 4, 5, 0.25, stats, EngineCounters(7, 1_000, 640))])
    found = {r.name: r.value for r in readings(text) if not r.name.endswith("_bucket")}
    assert {name: found[name] for name in ("preemptions", "prefix_cache_queries", "prefix_cache_hits")} == {
        "preemptions": 7,
        "prefix_cache_queries": 1_000,
        "prefix_cache_hits": 640,
    }
    sums = [found[f"{name}_sum"] for name in ("ttft_s", "itl_s", "tpot_s", "e2el_s", "queue_s")]
    assert sums == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert 'vllm:request_prefill_time_seconds_count{engine="0",model_name="sim"} 0\n' in text


def test_a_histogram_puts_each_value_into_one_bucket() -> None:
    histogram = BucketHistogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    assert (histogram.counts, histogram.total) == ([2, 2, 1], 14.0)


# --- The simulated GPUs' page


S = 1_000_000_000


def test_an_idle_device_draws_idle_power_and_one_in_steps_all_the_time_the_most() -> None:
    idle, busy = GpuReading("0", 10 * S, 0, False, 0.0), GpuReading("1", 10 * S, 10 * S, True, 0.5)
    assert (idle.power_w, idle.energy_j) == (IDLE_W, 10 * IDLE_W)
    assert (busy.power_w, busy.energy_j) == (BUSY_W, 10 * BUSY_W)
    assert GpuReading("2", 10 * S, 5 * S, False, 0.0).energy_j == 5 * (IDLE_W + BUSY_W)


def test_the_page_reads_as_that_of_the_exporter() -> None:
    found = readings(
        gpu_exposition(
            [GpuReading("0", 10 * S, 5 * S, True, 0.0), GpuReading("1", 10 * S, 0, False, 1.0)], GpuKind()
        )
    )
    values = {(r.name, r.labels["gpu"]): r.value for r in found}
    assert [values["gpu_utilisation", gpu] for gpu in "01"] == [1.0, 0.0]
    assert values["power_w", "1"] == IDLE_W
    assert values["energy_j", "0"] == pytest.approx(5 * (IDLE_W + BUSY_W))
    assert values["gpu_memory_used_bytes", "1"] > values["gpu_memory_used_bytes", "0"] > 0
    assert {r.labels["UUID"] for r in found} == {"GPU-sim-0", "GPU-sim-1"}


def test_a_replica_on_several_gpus_has_as_many_devices_that_share_its_memory() -> None:
    kind = GpuKind(model="H100", count=4, weights_mib=100.0, kv_cache_mib=10.0)
    found = readings(
        gpu_exposition([GpuReading(label, 10 * S, 5 * S, True, 0.5) for label in ("0", "1")], kind)
    )
    used = {r.labels["gpu"]: r.value for r in found if r.name == "gpu_memory_used_bytes"}
    assert used == {str(number): 105 * 2**20 for number in range(8)}
    assert {r.labels["modelName"] for r in found} == {"H100"}


def test_time_in_steps_is_that_of_the_steps_and_not_of_the_pauses() -> None:
    engine = Engine(
        EngineProfile(noise=0.0, step_base_ns=1000, step_per_sequence_ns=10, prefill_per_token_ns=1), 0
    )
    for ready_ns in (0, 10_000_000):  # a pause of 10 ms between them
        engine.submit(EngineSequence(prompt_tokens=100, output_tokens=3, ready_ns=ready_ns))
        while engine.start_step() is not None:
            engine.finish_step()
    assert engine.busy_ns == 2 * (1110 + 2 * 1010)


async def test_a_deployment_serves_the_page_and_its_energy_grows_with_work(tmp_path: Path) -> None:
    async with deployment(tmp_path, replicas=1) as sim:
        await sim.chat(tokens=40)
        status, text = await sim.get("/gpu/metrics")
        assert status == 200
        (energy,) = [r.value for r in readings(text) if r.name == "energy_j"]
        assert energy >= 40 * 0.001 * (BUSY_W - IDLE_W)  # 40 steps of 1 ms
        _, page = await sim.get("/metrics")
        served = {r.name: r.value for r in readings(page)}
        assert (served["generation_tokens"], served["preemptions"]) == (40, 0)
        assert served["tpot_s_count"] == served["e2el_s_count"] == served["ttft_s_count"] == 1
        assert served["tpot_s_sum"] == pytest.approx(0.001, rel=0.5)
