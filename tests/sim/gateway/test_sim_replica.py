import asyncio
import math
import time
from collections.abc import Callable
from contextvars import Context
from dataclasses import replace
from typing import Any, TypeVarTuple

import pytest
from sim_deployment import FAST

from llm_locust.sim.engine.engine import Engine
from llm_locust.sim.engine.scheduler import EngineCounters, EngineSequence
from llm_locust.sim.engine.stats import ReplicaStats
from llm_locust.sim.gateway.replica import Replica

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


def test_a_cancelled_sequence_gets_no_more_tokens_and_the_others_go_on() -> None:
    async def test() -> None:
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

    asyncio.run(asyncio.wait_for(test(), 10))


def test_histograms_hold_each_request_and_each_gap_and_their_sums_fit_together() -> None:
    async def test() -> None:
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

    asyncio.run(asyncio.wait_for(test(), 10))


def test_preemptions_and_prefix_hits_are_those_of_the_sequences() -> None:
    async def test() -> None:
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

    asyncio.run(asyncio.wait_for(test(), 10))


def test_a_slowed_replica_takes_its_factor_longer_and_refuses_one_that_is_none() -> None:
    async def test() -> None:
        replica = make_replica()
        replica.slow_factor = 3.0
        started = time.monotonic()
        await generate(replica, 1, 3)
        assert time.monotonic() - started >= 9 * STEP_S - 1e-6
        for factor in (0.0, -1.0, math.inf, math.nan):
            with pytest.raises(ValueError, match=f"cannot last {factor} times as long"):
                replica.slow_factor = factor
        assert replica.slow_factor == 3.0

    asyncio.run(asyncio.wait_for(test(), 10))


def test_a_killed_replica_gives_no_more_tokens_counts_from_zero_and_serves_again() -> None:
    async def test() -> None:
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

    asyncio.run(asyncio.wait_for(test(), 10))
