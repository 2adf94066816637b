"""Two clocks read together, kernel stamps, and steps between."""

import struct
import time

import pytest
from hypothesis import given, strategies as st

import llm_locust.client.http.clock as clock_module
from llm_locust.client.http.clock import (
    STEP_THRESHOLD_NS,
    ClockPair,
    clock_step_ns,
    read_clocks,
    stamp_ns,
)

pytestmark = pytest.mark.alone


def test_a_pair_is_of_the_moment_at_which_it_was_read() -> None:
    before = time.time_ns(), time.monotonic_ns()
    pair = read_clocks()
    after = time.time_ns(), time.monotonic_ns()
    assert before[0] <= pair.realtime_ns <= after[0]
    assert before[1] <= pair.monotonic_ns <= after[1]


class FakeTime:
    """A clock on which each reading of a pair takes the next of ``durations_ns``."""

    def __init__(self, durations_ns: list[int]) -> None:
        self._left = durations_ns
        self._now = 0
        self._reading = False

    def monotonic_ns(self) -> int:
        if self._reading:
            self._now += self._left.pop(0)
        self._reading = not self._reading
        return self._now

    def time_ns(self) -> int:
        return self._now + 10**18


@pytest.mark.parametrize(
    ("durations_ns", "best_ns", "left"),
    [([100, 9], 100, 1), ([10**6, 200, 9], 200, 1), ([10**6, 10**5, 10**7, 10**8, 9], 10**5, 1)],
)
def test_a_reading_that_was_interrupted_is_made_again(
    monkeypatch: pytest.MonkeyPatch, durations_ns: list[int], best_ns: int, left: int
) -> None:
    monkeypatch.setattr(clock_module, "time", FakeTime(durations_ns))
    assert read_clocks().offset_ns == 10**18 - best_ns // 2
    assert len(durations_ns) == left


@given(st.integers(1, 2**62))
def test_stamps_are_read_to_the_nanosecond(time_ns: int) -> None:
    assert stamp_ns(struct.pack("qq", *divmod(time_ns, 10**9))) == time_ns


@pytest.mark.parametrize("step", [0, STEP_THRESHOLD_NS, -STEP_THRESHOLD_NS])
def test_a_difference_as_of_reading_is_no_step(step: int) -> None:
    assert clock_step_ns(ClockPair(1000, 0), ClockPair(1000 + 7 + step, 7)) is None


@pytest.mark.parametrize("step", [STEP_THRESHOLD_NS + 1, -STEP_THRESHOLD_NS - 1, 3600 * 10**9])
def test_a_step_of_realtime_is_told_with_its_sign(step: int) -> None:
    assert clock_step_ns(ClockPair(1000, 0), ClockPair(1000 + 7 + step, 7)) == step
