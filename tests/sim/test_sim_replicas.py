"""Simulated replicas, their prefix caches and pools, and the gateway's policies."""

import asyncio
import math
import random
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVarTuple

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sim_deployment import FAST, Deployment, deployment

from llm_locust.deployment.server_metrics import readings
from llm_locust.sim.command import settings_from
from llm_locust.sim.engine import Engine, EngineCounters, EngineSequence, Held, KvCache
from llm_locust.sim.jobs import ModelLimits
from llm_locust.sim.replica import (
    POLICIES,
    LeastInflightRouting,
    LeastRequest,
    PrefixAware,
    RandomRouting,
    Replica,
    RoundRobinRouting,
    Routed,
    StickyRouting,
    make_policy,
)
from llm_locust.sim.settings import SettingsError, SimSettings, add_arguments, check
from llm_locust.sim.telemetry import KV_BYTES_PER_TOKEN, ReplicaStats

STEP_S = 0.004

_Ts = TypeVarTuple("_Ts")


def make_replica(**changed: Any) -> Replica:
    profile = replace(FAST, step_base_ns=round(STEP_S * 1e9))
    return Replica(0, Engine(replace(profile, **changed), 0))


async def generate(replica: Replica, prompt_tokens: int, output_tokens: int, **more: Any) -> EngineSequence:
    """Submit a request and wait for its last token."""
    done, left = asyncio.Event(), output_tokens

    def sink() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done.set()

    sequence = replica.submit(prompt_tokens, output_tokens, 1, "stop", sink, **more)
    await done.wait()
    return sequence


class RecordingLoop(asyncio.SelectorEventLoop):
    """Keeps the times, on the loop's clock, at which a replica asked to be woken."""

    def __init__(self) -> None:
        super().__init__()
        self.wake_ups: list[float] = []

    def call_at(
        self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if isinstance(getattr(callback, "__self__", None), Replica):
            self.wake_ups.append(when)
        return super().call_at(when, callback, *args, context=context)


def test_steps_are_due_at_absolute_times_however_late_the_program_is() -> None:
    async def test() -> None:
        replica, done, times = make_replica(), asyncio.Event(), []

        def sink() -> None:
            times.append(time.monotonic())
            if len(times) % 5 == 1:
                time.sleep(2 * STEP_S)
            if len(times) == 12:
                done.set()

        started = time.monotonic()
        replica.submit(1, 12, 1, "stop", sink)
        submitted = time.monotonic()
        await done.wait()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, RecordingLoop)
        assert loop.wake_ups == pytest.approx([loop.wake_ups[0] + k * STEP_S for k in range(12)], abs=1e-6)
        assert started + STEP_S <= loop.wake_ups[0] + 1e-6 <= submitted + STEP_S + 2e-6
        clock_resolution_s = 1e-6
        assert all(at >= due - clock_resolution_s for at, due in zip(times, loop.wake_ups, strict=True))

    with asyncio.Runner(loop_factory=RecordingLoop) as runner:
        runner.run(asyncio.wait_for(test(), 10))


async def test_a_cancelled_sequence_gets_no_more_tokens_and_the_others_go_on() -> None:
    replica, done, cancelled_got = make_replica(), asyncio.Event(), []
    first = replica.submit(1, 1_000, 1, "stop", lambda: cancelled_got.append(1))
    left = 5

    def sink() -> None:
        nonlocal left
        left -= 1
        if left == 3:
            replica.cancel(first)
        if left == 0:
            done.set()

    replica.submit(1, 5, 1, "stop", sink)
    await done.wait()
    assert 1 <= len(cancelled_got) <= 3
    assert replica.in_flight == 0
    reading = replica.reading()
    assert (reading.running, reading.waiting, dict(reading.stats.finished)) == (0, 0, {"stop": 1})


async def test_histograms_hold_each_request_and_each_gap_and_their_sums_fit_together() -> None:
    base_s = 0.005
    replica = make_replica(ttft_base_ns=round(base_s * 1e9), max_num_seqs=1)
    await asyncio.gather(*(generate(replica, 1, 4) for _ in range(3)))
    stats = replica.reading().stats
    counts = {name: sum(getattr(stats, name).counts) for name in ("ttft_s", "itl_s", "tpot_s", "queue_s")}
    assert counts == {"ttft_s": 3, "itl_s": 9, "tpot_s": 3, "queue_s": 3}
    assert sum(stats.prefill_s.counts) == sum(stats.e2el_s.counts) == 3
    assert stats.ttft_s.total == pytest.approx(3 * base_s + stats.queue_s.total + stats.prefill_s.total)
    assert stats.e2el_s.total == pytest.approx(stats.ttft_s.total + stats.itl_s.total)
    assert stats.tpot_s.total == pytest.approx(stats.itl_s.total / 3)
    # One place: the second waits for four steps, the third for eight, but for what a busy machine made
    # them late by.
    assert 4 * STEP_S < stats.queue_s.total < 12.1 * STEP_S


async def test_preemptions_and_prefix_hits_are_those_of_the_sequences() -> None:
    replica = make_replica(step_base_ns=100_000, prefix_cache=True, kv_cache_tokens=160)
    keys = [tuple(range(3)), tuple(range(3)), (9,), ()]
    sequences = await asyncio.gather(
        *(generate(replica, 48 if len(k) == 3 else 20, 60, block_hashes=k) for k in keys)
    )
    counters = replica.reading().counters
    assert counters.preemptions == sum(s.preemptions for s in sequences) > 0
    assert counters.prefix_hits == sum(s.cached_tokens or 0 for s in sequences)
    assert counters.prefix_queries == 48 + 48 + 20 + 20
    replica.reset_prefix_cache()
    again = await generate(replica, 48, 1, block_hashes=keys[0])
    assert again.cached_tokens == 0
    assert (await generate(replica, 48, 1, block_hashes=keys[0])).cached_tokens == 32


async def test_a_slowed_replica_takes_its_factor_longer_and_refuses_one_that_is_none() -> None:
    replica = make_replica()
    replica.slow_factor = 3.0
    started = time.monotonic()
    await generate(replica, 1, 3)
    assert time.monotonic() - started >= 9 * STEP_S - 1e-6
    for factor in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=f"cannot last {factor} times as long"):
            replica.slow_factor = factor
    assert replica.slow_factor == 3.0


async def test_a_killed_replica_gives_no_more_tokens_counts_from_zero_and_serves_again() -> None:
    replica, got = make_replica(prefix_cache=True), []
    await generate(replica, 32, 2, block_hashes=(1, 2))
    lost = [replica.submit(1, 50, 1, "stop", lambda: got.append(1)) for _ in range(3)]
    replica.kill()
    reading = replica.reading()
    assert (reading.running, reading.waiting, reading.kv_cache_usage) == (0, 0, 0.0)
    assert (reading.stats, reading.counters, replica.in_flight) == (ReplicaStats(), EngineCounters(), 0)
    for sequence in lost:
        replica.cancel(sequence)  # as whoever waited for it does: over already
    again = await generate(replica, 32, 4, block_hashes=(1, 2))
    assert (got, again.cached_tokens) == ([], 0)
    stats = replica.reading().stats
    assert (stats.generation_tokens, stats.prompt_tokens, dict(stats.finished)) == (4, 32, {"stop": 1})
    # It began at once, and not where the step that was broken off would have ended.
    assert again.scheduled_ns is not None
    assert again.scheduled_ns == again.ready_ns


# --- Disaggregated prefill: who computes what, when, and what the replicas' metrics say of it


MS = 1_000_000
PROMPT = 3  # tokens of the test client's prompt

#: TTFT on an idle deployment = 2 · ttft_base + 2 · step_base + (PROMPT + 1) · prefill_per_token + transfer.
PROFILE = replace(FAST, ttft_base_ns=2 * MS, step_base_ns=3 * MS, prefill_per_token_ns=1 * MS)
TRANSFER_NS = 20 * MS
TTFT_NS = 2 * 2 * MS + 2 * 3 * MS + (PROMPT + 1) * MS + TRANSFER_NS

POOLS: dict[str, Any] = {
    "replicas": 3,
    "prefill_replicas": 1,
    "replica_ports": 0,
    "engine": PROFILE,
    "kv_transfer_ns": TRANSFER_NS,
}


async def figures(sim: Deployment, index: int) -> dict[str, float]:
    """A replica's own metrics as our scraper reads them; states of buckets are left out."""
    _, page = await sim.get("/metrics", base=sim.addresses.replicas[index])
    return {r.name: r.value for r in readings(page) if not r.name.endswith("_bucket")}


async def test_a_prompt_is_computed_by_one_replica_moved_and_decoded_by_another(tmp_path: Path) -> None:
    async with deployment(tmp_path, **POOLS) as sim:
        seen = [await sim.chat(f"id-{i}", tokens=5) for i in range(6)]
        entries = await sim.entries(6)
        prefill, *decodes = [await figures(sim, index) for index in range(3)]
        assert {answer.headers["X-Served-By"] for answer in seen} == {"decode-1", "decode-2"}
        assert [len(answer.texts) for answer in seen] == [5] * 6
        for entry in entries.values():
            assert entry["prefill_replica"] == "prefill-0"
            assert entry["complete"]
            # Nothing comes earlier than the closed form; how much later is up to the machine.
            assert entry["first_token_ns"] - entry["received_ns"] >= TTFT_NS
            assert entry["prefilled_ns"] - entry["received_ns"] >= 2 * MS + 3 * MS + PROMPT * MS
            assert entry["first_token_ns"] - entry["prefilled_ns"] >= TRANSFER_NS + 2 * MS + 3 * MS + MS
            assert entry["received_ns"] + 2 * MS <= entry["scheduled_ns"] <= entry["prefilled_ns"]
        assert (prefill["prompt_tokens"], prefill["generation_tokens"]) == (6 * PROMPT, 6)
        assert prefill["kv_transfer_s_count"] == 0
        for decode in decodes:
            assert decode["generation_tokens"] == 3 * 5
            assert decode["kv_transfer_s_count"] == 3
            assert decode["kv_transfer_s_sum"] == pytest.approx(3 * TRANSFER_NS * 1e-9)
            assert decode["kv_transfer_bytes_sum"] == 3 * PROMPT * KV_BYTES_PER_TOKEN
            assert decode["kv_transfers_failed"] == 0


async def test_a_failed_transfer_is_counted_and_its_prompt_computed_again(tmp_path: Path) -> None:
    async with deployment(tmp_path, "kv_transfer=50%", **POOLS) as sim:
        seen = [await sim.chat(f"id-{i}") for i in range(12)]
        faults = Counter(entry["fault"] for entry in (await sim.entries(12)).values())
        decodes = [await figures(sim, index) for index in (1, 2)]
        assert all(len(answer.texts) == 6 for answer in seen)
        assert 0 < faults["kv_transfer"] < 12
        assert sum(decode["kv_transfers_failed"] for decode in decodes) == faults["kv_transfer"]
        assert sum(decode["kv_transfer_s_count"] for decode in decodes) == 12 - faults["kv_transfer"]
        _, page = await sim.get("/metrics", base=sim.addresses.replicas[1])
        assert 'source="external_kv_transfer"} 0\n' not in page


async def test_a_killed_prefill_replica_breaks_off_what_it_computes_and_nothing_else(tmp_path: Path) -> None:
    async with deployment(tmp_path, **POOLS | {"kv_transfer_ns": 0}) as sim:
        decoding = asyncio.create_task(sim.chat("early", tokens=100))
        while not (await figures(sim, 0))["prompt_tokens"]:
            await asyncio.sleep(0.005)
        await sim.act("slow 0 1000x")
        prefilling = asyncio.create_task(sim.chat("late"))
        while not (await figures(sim, 0))["running"]:
            await asyncio.sleep(0.005)
        await sim.act("kill 0")
        assert len((await decoding).texts) == 100
        broken = await prefilling
        assert not broken.texts
        refused = await sim.chat("after")
        assert (refused.status, refused.headers["X-Served-By"][:6]) == (502, "decode")
        sim.fleet.look()
        assert (await sim.chat("no rotation")).status == 503
        entries = await sim.entries(4)
        assert [entries[i]["fault"] for i in ("early", "late", "after")] == [None, "killed", "dead"]


async def test_embeddings_and_a_replicas_own_port_need_no_other_replica(tmp_path: Path) -> None:
    async with deployment(tmp_path, **POOLS) as sim:
        embedded = await sim.post("/embeddings", {"input": "a b"}, x_request_id="embedded")
        own = await sim.post("/completions", {"prompt": "x", "max_tokens": 2}, base=sim.addresses.replicas[0])
        assert (embedded.status, own.status) == (200, 200)
        assert {entry["prefill_replica"] for entry in (await sim.entries(2)).values()} == {None}


def test_a_received_prompt_takes_a_step_of_one_token_and_a_preemption_loses_it() -> None:
    engine = Engine(replace(PROFILE, kv_cache_tokens=64), 0)
    first = EngineSequence(prompt_tokens=20, output_tokens=30, ready_ns=0, received=19)
    second = EngineSequence(prompt_tokens=20, output_tokens=30, ready_ns=0, received=19)
    engine.submit(first)
    engine.submit(second)
    assert engine.start_step() == 3 * MS + 2 * MS  # one token of each prompt
    assert engine.finish_step() == [first, second]
    while engine.start_step() is not None:
        engine.finish_step()
    assert (first.preemptions, first.received) == (0, 19)
    assert (second.preemptions, second.received) == (1, 0)


def test_pools_that_cannot_work_are_refused() -> None:
    limits = ModelLimits(max_model_len=1_000)
    with pytest.raises(SettingsError, match="leaves none that decodes"):
        check(SimSettings(replicas=2, prefill_replicas=2, limits=limits))
    parser = ArgumentParser()
    add_arguments(parser)
    with pytest.raises(SettingsError, match="nothing is transferred without --prefill-replicas"):
        settings_from(parser.parse_args(["--faults", "kv_transfer=1%"]))


BLOCKS, SIZE = 8, 4


def filled(cache: KvCache, *keys: int) -> Held:
    """A sequence that has computed and published these blocks."""
    held = Held()
    assert cache.take(held, len(keys) * cache.block_tokens)
    cache.publish(held, keys)
    return held


def test_a_cache_without_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="a KV cache of 0 blocks holds nothing; give it 16 tokens"):
        KvCache(0, 16)


def test_room_is_taken_in_whole_blocks_and_only_where_there_is_some() -> None:
    cache, held = KvCache(BLOCKS, SIZE), Held()
    assert cache.take(held, 5)
    assert (held.blocks, held.tokens, cache.used) == (2, 8, 2)
    assert cache.take(held, 8)
    assert cache.used == 2
    assert not cache.take(held, 33)
    assert (held.blocks, cache.used) == (2, 2)
    cache.release(held)
    assert (held.blocks, held.tokens, cache.used) == (0, 0, 0)


def test_a_shared_block_counts_once_and_stays_until_its_last_holder_goes() -> None:
    cache = KvCache(BLOCKS, SIZE)
    first, second = filled(cache, 1, 2), Held()
    assert cache.take(second, 3 * SIZE, cache.find([1, 2, 3]))
    assert (second.blocks, cache.used) == (3, 3)
    cache.release(first)
    assert cache.used == 3
    cache.release(second)
    assert cache.used == 0


def test_only_an_unbroken_beginning_is_found() -> None:
    cache = KvCache(BLOCKS, SIZE)
    filled(cache, 1, 2, 3)
    assert [len(cache.find(keys)) for keys in ([1, 2, 3, 4], [1, 9, 3], [9, 1], [])] == [3, 1, 0, 0]


def test_the_longest_unused_goes_first_and_of_one_prompt_its_end() -> None:
    cache = KvCache(BLOCKS, SIZE)
    for keys in ((1, 2, 3), (4, 5, 6)):
        cache.release(filled(cache, *keys))
    again = Held()
    cache.take(again, 3 * SIZE, cache.find([1, 2, 3]))
    cache.release(again)  # now 4 to 6 are the longest unused
    assert cache.take(Held(), 4 * SIZE)  # 2 blocks were never published, 2 go
    assert (len(cache.find([4, 5, 6])), len(cache.find([1, 2, 3]))) == (1, 3)


def test_of_two_that_compute_the_same_at_once_one_copy_is_found() -> None:
    cache = KvCache(BLOCKS, SIZE)
    first, second = filled(cache, 1), filled(cache, 1)
    assert cache.used == 2
    cache.release(first)
    assert cache.used == 1
    assert len(cache.find([1])) == 1
    cache.release(second)
    assert cache.used == 0


def test_a_block_computed_anew_takes_the_place_of_one_that_nobody_holds() -> None:
    cache = KvCache(BLOCKS, SIZE)
    cache.release(filled(cache, 1))
    held = filled(cache, 1)
    assert cache.take(Held(), 7 * SIZE)
    assert len(cache.find([1])) == 1
    cache.release(held)
    assert cache.used == 7


def test_what_is_forgotten_is_not_found_but_held_until_it_is_released() -> None:
    cache = KvCache(BLOCKS, SIZE)
    held = filled(cache, 1, 2)
    cache.release(filled(cache, 3))
    cache.forget()
    assert cache.find([1, 2]) == cache.find([3]) == []
    assert cache.used == 2
    cache.release(held)
    assert (cache.used, cache.find([1, 2])) == (0, [])
    assert cache.take(Held(), BLOCKS * SIZE)


@dataclass(eq=False)
class Prompt:
    keys: list[int]
    held: Held = field(default_factory=Held)
    done: int = 0  # blocks that are found or published


class AnyUse(RuleBasedStateMachine):
    """Sequences come, grow, publish and go in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = KvCache(BLOCKS, SIZE)
        self.prompts: list[Prompt] = []

    @rule(family=st.integers(0, 1), blocks=st.integers(1, 6))
    def begin(self, family: int, blocks: int) -> None:
        prompt = Prompt([10 * family + k for k in range(blocks)])
        found = self.cache.find(prompt.keys[:-1])
        free = self.cache.free
        wanted = len(found) + 1
        new = wanted - sum(1 for block in found if block.refs)
        assert self.cache.take(prompt.held, wanted * SIZE, found) == (new <= free)
        if prompt.held.blocks:
            prompt.done = len(found)
            self.prompts.append(prompt)

    @precondition(lambda self: self.prompts)
    @rule(which=st.integers(0, 99))
    def compute(self, which: int) -> None:
        prompt = self.prompts[which % len(self.prompts)]
        if prompt.done == len(prompt.keys):
            return
        if self.cache.take(prompt.held, (prompt.done + 1) * SIZE):
            self.cache.publish(prompt.held, prompt.keys[prompt.done : prompt.done + 1])
            prompt.done += 1

    @precondition(lambda self: self.prompts)
    @rule(which=st.integers(0, 99))
    def end(self, which: int) -> None:
        self.cache.release(self.prompts.pop(which % len(self.prompts)).held)

    @rule()
    def forget(self) -> None:
        self.cache.forget()
        assert self.cache.find(range(10)) == []

    @invariant()
    def every_block_is_counted_once(self) -> None:
        published = {block for prompt in self.prompts for block in prompt.held.published}
        private = sum(prompt.held.blocks - len(prompt.held.published) for prompt in self.prompts)
        assert self.cache.used == len(published) + private <= BLOCKS
        for block in published:
            assert block.refs == sum(block in prompt.held.published for prompt in self.prompts)

    @invariant()
    def what_is_found_has_its_place(self) -> None:
        unheld = [block for family in (0, 10) for k in range(6)
                  for block in self.cache.find([family + k]) if not block.refs]  # fmt: skip
        assert len(unheld) <= self.cache.free

    def teardown(self) -> None:
        for prompt in self.prompts:
            self.cache.release(prompt.held)
        assert self.cache.used == 0


AnyUse.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
test_any_use_keeps_the_books = AnyUse.TestCase


@given(st.integers(1, 64), st.integers(1, 40))
def test_room_for_tokens_is_rounded_up(tokens: int, size: int) -> None:
    cache, held = KvCache(64, size), Held()
    assert cache.take(held, tokens)
    assert held.tokens - size < tokens <= held.tokens


# --- The gateway's policies, without a gateway


IDLE = {0: 0, 1: 0, 2: 0}

loads_of_some = st.dictionaries(st.integers(0, 9), st.integers(0, 50), min_size=1, max_size=8)
prompts = st.lists(st.lists(st.integers(0, 5), max_size=6).map(tuple), max_size=30)


def asked(session: str = "s", hashes: tuple[int, ...] = (), seed: int = 0) -> Routed:
    return Routed(session, hashes, random.Random(seed))


def chain(*blocks: int) -> tuple[int, ...]:
    """Chained hashes: equal as far as the blocks before are."""
    return tuple(hash(blocks[: i + 1]) for i in range(len(blocks)))


def test_round_robin_takes_turns_and_skips_who_is_out_of_rotation() -> None:
    policy = RoundRobinRouting()
    assert [policy.pick(IDLE, asked()) for _ in range(4)] == [0, 1, 2, 0]
    assert [policy.pick({0: 9, 2: 0}, asked()) for _ in range(3)] == [2, 0, 2]
    assert policy.pick(IDLE, asked()) == 0


def test_random_takes_all_alike() -> None:
    picked = Counter(RandomRouting().pick(IDLE, asked(seed=i)) for i in range(3_000))
    assert all(900 < picked[index] < 1_100 for index in IDLE)


def test_least_inflight_takes_the_idlest_and_ties_take_turns() -> None:
    policy = LeastInflightRouting()
    assert policy.pick({0: 3, 1: 1, 2: 2}, asked()) == 1
    assert [policy.pick(IDLE, asked()) for _ in range(4)] == [2, 0, 1, 2]


def test_least_request_takes_the_better_of_two_draws() -> None:
    picked = Counter(LeastRequest().pick({0: 5, 1: 7, 2: 9}, asked(seed=i)) for i in range(3_000))
    # 0 wins both pairs that it is in, 1 the third, 2 none.
    assert picked.keys() == {0, 1}
    assert 1_850 < picked[0] < 2_150


def test_least_request_with_one_replica_takes_that() -> None:
    assert LeastRequest().pick({4: 99}, asked()) == 4


def test_a_session_sticks_to_its_replica_whatever_the_load() -> None:
    policy = StickyRouting()
    home = policy.pick(IDLE, asked("alice"))
    assert {policy.pick({**IDLE, home: load}, asked("alice", seed=load)) for load in range(20)} == {home}


def test_sessions_spread_over_all_replicas() -> None:
    picked = Counter(StickyRouting().pick(IDLE, asked(f"session-{i}")) for i in range(3_000))
    assert all(900 < picked[index] < 1_100 for index in IDLE)


@given(loads_of_some, st.text(), st.data())
def test_a_replica_that_leaves_moves_none_but_its_own_sessions(
    loads: dict[int, int], session: str, data: st.DataObject
) -> None:
    before = StickyRouting().pick(loads, asked(session))
    gone = data.draw(st.sampled_from(sorted(loads)))
    left = {index: load for index, load in loads.items() if index != gone}
    if left and gone != before:
        assert StickyRouting().pick(left, asked(session)) == before


def test_prompts_that_begin_alike_go_to_the_same_replica() -> None:
    policy = PrefixAware()
    homes = {tenant: policy.pick(IDLE, asked(hashes=chain(tenant, 0))) for tenant in range(3)}
    assert sorted(homes.values()) == [0, 1, 2]
    for turn in range(1, 5):
        for tenant, home in homes.items():
            assert policy.pick(IDLE, asked(hashes=chain(tenant, 0, turn))) == home


def test_the_longest_common_prefix_wins() -> None:
    policy = PrefixAware()
    assert policy.pick({0: 0, 1: 9}, asked(hashes=chain(1, 2))) == 0
    assert policy.pick({0: 99, 1: 0}, asked(hashes=chain(1, 2, 3))) == 1  # 0 is too busy
    assert policy.pick({0: 0, 1: 5}, asked(hashes=chain(1, 2, 3, 4))) == 1


def test_a_matching_replica_that_is_too_far_ahead_gives_way_to_the_least_loaded() -> None:
    policy = PrefixAware(imbalance=4)
    home = policy.pick({0: 0}, asked(hashes=chain(1)))
    assert home == 0
    assert policy.pick({0: 4, 1: 0, 2: 3}, asked(hashes=chain(1))) == 0
    assert policy.pick({0: 5, 1: 0, 2: 3}, asked(hashes=chain(1))) == 1


def test_prompts_without_a_known_prefix_go_to_the_least_loaded() -> None:
    policy = PrefixAware()
    assert policy.pick({0: 2, 1: 1, 2: 3}, asked(hashes=chain(1))) == 1
    assert policy.pick({0: 2, 1: 1, 2: 0}, asked(hashes=chain(2))) == 2
    assert policy.pick({0: 0, 1: 1, 2: 1}, asked()) == 0


def test_what_was_routed_longest_ago_is_forgotten_first_and_a_prefix_from_its_end() -> None:
    policy = PrefixAware(memory_blocks=4)
    policy.pick({0: 0}, asked(hashes=chain(1, 1, 1)))
    policy.pick({0: 0}, asked(hashes=chain(2, 2)))  # one block too many: the end of the first
    assert policy.pick({0: 9, 1: 0}, asked(hashes=chain(1, 1))) == 0  # its first two are left, and renewed
    policy.pick({0: 0}, asked(hashes=chain(3, 3)))
    assert policy.pick({0: 9, 1: 0}, asked(hashes=chain(2, 2))) == 1


def test_a_replica_that_was_away_is_not_thought_to_have_its_cache_yet() -> None:
    policy = PrefixAware()
    assert policy.pick({0: 0, 1: 5}, asked(hashes=chain(1))) == 0
    policy.pick({1: 5}, asked(hashes=chain(2)))
    assert policy.pick({0: 6, 1: 5}, asked(hashes=chain(1))) == 1


@given(loads_of_some, prompts, st.integers(1, 8))
def test_a_prefix_memory_stays_within_its_bound(
    loads: dict[int, int], asks: list[tuple[int, ...]], bound: int
) -> None:
    policy = PrefixAware(memory_blocks=bound)
    for blocks in asks:
        policy.pick(loads, asked(hashes=chain(*blocks)))
    assert all(len(routed) <= bound for routed in policy._routed.values())


@given(loads_of_some, prompts, st.integers(0, 10))
def test_prefix_routing_never_picks_one_beyond_the_bound(
    loads: dict[int, int], asks: list[tuple[int, ...]], imbalance: int
) -> None:
    policy = PrefixAware(imbalance)
    for blocks in asks:
        picked = policy.pick(loads, asked(hashes=chain(*blocks)))
        assert loads[picked] <= min(loads.values()) + imbalance
        loads[picked] += 1


@pytest.mark.parametrize("name", POLICIES)
@given(st.lists(loads_of_some, min_size=1, max_size=10), prompts)
def test_every_policy_picks_from_the_rotation(
    name: str, rotations: list[dict[int, int]], asks: list[tuple[int, ...]]
) -> None:
    policy = make_policy(name)
    for loads, blocks in zip(rotations, asks, strict=False):
        assert policy.pick(loads, asked(hashes=chain(*blocks))) in loads
