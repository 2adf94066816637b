"""Several schedules as one."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from llm_locust.workload.arrivals import ClassArrival, MixedSchedule, Process, Schedule, constant, parse_rate

RATES = {"chat": 20.0, "code": 5.0, "batch": 0.5}


def mixed(index: int = 0, count: int = 1, limit: int | None = None, seed: int = 3) -> MixedSchedule:
    classes = {
        name: Schedule(Process(1.0), constant(rate), seed=seed, stream=name) for name, rate in RATES.items()
    }
    return MixedSchedule(classes, worker_index=index, worker_count=count, limit=limit)


def test_each_class_arrives_as_by_its_own_schedule() -> None:
    found = mixed().before(100.0)
    for name, rate in RATES.items():
        alone = Schedule(Process(1.0), constant(rate), seed=3, stream=name).times(100.0).at_s
        assert [a.at_s for a in found if a.of == name] == pytest.approx(alone.tolist(), abs=0)


def test_classes_of_one_rate_do_not_arrive_at_the_same_times() -> None:
    twins = {name: Schedule(Process(1.0), constant(5.0), seed=1, stream=name) for name in ("a", "b")}
    times = {name: set(schedule.times(100.0).at_s.tolist()) for name, schedule in twins.items()}
    assert not times["a"] & times["b"]


@settings(max_examples=50, deadline=None)
@given(
    workers=st.integers(1, 5),
    limit=st.none() | st.integers(0, 400),
    cuts=st.lists(st.floats(0.0, 10.0), max_size=6),
)
def test_the_workers_parts_are_the_whole_wherever_time_is_cut(
    workers: int, limit: int | None, cuts: list[float]
) -> None:
    whole = mixed(limit=limit).before(10.0)
    assert [a.k for a in whole] == list(range(len(whole)))
    assert np.all(np.diff([a.at_s for a in whole]) >= 0)
    assert limit is None or len(whole) <= limit
    parts: list[ClassArrival] = []
    for index in range(workers):
        schedule = mixed(index, workers, limit)
        mine = [arrival for until_s in [*sorted(cuts), 10.0] for arrival in schedule.before(until_s)]
        assert all(arrival.k % workers == index for arrival in mine)
        parts += mine
    assert sorted(parts) == whole


def test_a_limit_counts_all_classes_and_ends_the_schedule() -> None:
    schedule = mixed(limit=50)
    assert not schedule.ended
    assert len(schedule.before(60.0)) == 50
    assert schedule.ended
    assert schedule.before(120.0) == []


def test_rates_may_change_over_time() -> None:
    ramp = Schedule(Process(1.0), parse_rate("ramp:1..50,20s"), seed=0, stream="ramp")
    found = MixedSchedule({"ramp": ramp}).before(20.0)
    assert len([a for a in found if a.at_s >= 10]) > 2 * len([a for a in found if a.at_s < 10])
