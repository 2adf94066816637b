import asyncio
import time
from collections.abc import Callable
from contextvars import Context
from dataclasses import replace
from typing import TypeVarTuple

import pytest
from sim_deployment import FAST

from llm_locust.sim.engine import Engine
from llm_locust.sim.replica import Replica

STEP_S = 0.004

_Ts = TypeVarTuple("_Ts")


def make_replica() -> Replica:
    return Replica(0, Engine(replace(FAST, step_base_ns=round(STEP_S * 1e9)), 0))


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
