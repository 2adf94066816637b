"""What a worker does about the silence of its master, on a virtual clock."""

from collections import Counter

import pytest

from llm_locust.swarm.process.loops import GIVE_UP_S, SILENT_S, MasterWatch, Step


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def steps(watch: MasterWatch, clock: Clock, seconds: float, every_s: float = 0.5) -> list[tuple[float, Step]]:
    """Each step that was decided, with the seconds since the beginning."""
    found = []
    begin_s = clock.now_s
    while clock.now_s - begin_s < seconds:
        clock.now_s += every_s
        found.append((clock.now_s - begin_s, watch.step()))
    return found


def met() -> tuple[MasterWatch, Clock]:
    clock = Clock()
    watch = MasterWatch(clock)
    watch.heard()
    return watch, clock


def test_a_load_ends_within_ten_seconds_of_silence_and_its_worker_gives_up_after_thirty() -> None:
    watch, clock = met()
    found = steps(watch, clock, 35.0)
    at = {step: next(at_s for at_s, each in found if each == step) for step in ("stop", "leave")}
    assert at == {"stop": SILENT_S, "leave": GIVE_UP_S}
    assert at["stop"] < 10.0
    counted = Counter(step for _, step in found)
    assert counted["stop"] == 1
    assert counted["deliver"] == 0


def test_a_master_that_answers_every_second_is_never_gone() -> None:
    watch, clock = met()
    for _ in range(100):
        assert {step for _, step in steps(watch, clock, 7.0)} == {"load"}
        watch.heard()


def test_a_worker_that_has_not_met_its_master_waits_for_it() -> None:
    clock = Clock()
    watch = MasterWatch(clock)
    assert {step for _, step in steps(watch, clock, 400.0)} == {"load"}


def test_a_master_that_is_back_is_delivered_to_after_the_load_has_ended() -> None:
    watch, clock = met()
    steps(watch, clock, 15.0)
    watch.heard()
    assert steps(watch, clock, 0.5)[0][1] == "deliver"


def test_another_master_ends_the_load_at_once_and_is_delivered_to() -> None:
    watch, clock = met()
    watch.unknown()
    assert [step for _, step in steps(watch, clock, 1.0)] == ["stop", "deliver"]


@pytest.mark.parametrize("pause_s", [20.0, 300.0])
def test_a_process_that_stood_still_reads_what_has_arrived_before_it_decides(pause_s: float) -> None:
    watch, clock = met()
    clock.now_s += pause_s
    assert watch.step() == "load"
    watch.heard()
    assert watch.step() == "load"
