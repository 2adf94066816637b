"""A profile of steps is a list of stages, from its plan alone."""

import pytest

from llm_locust.core.manifest import MOST_STAGES
from llm_locust.swarm.stages.plan import stages_of, steps_of
from llm_locust.workload.arrivals import parse_rate

S = 1_000_000_000
STEPS = parse_rate("steps:10@60s,50@30s,20")


def test_each_step_is_a_stage_and_the_last_one_lasts_as_long_as_the_load() -> None:
    found = stages_of(STEPS, 100 * S, 0.0, None)
    assert [(s.asked, s.begun_ns, s.measured_ns, s.ended_ns) for s in found] == [
        (10, 100 * S, 100 * S, 160 * S),
        (50, 160 * S, 160 * S, 190 * S),
        (20, 190 * S, 190 * S, None),
    ]
    assert [s.number for s in found] == [0, 1, 2]


def test_a_warm_up_is_left_out_of_the_stages_that_it_reaches() -> None:
    found = stages_of(STEPS, 0, 70.0, None)
    assert [s.measured_ns for s in found] == [70 * S, 70 * S, 90 * S], "the first has no measured part"


def test_a_stage_that_the_end_of_the_load_did_not_let_begin_is_not_listed() -> None:
    assert len(stages_of(STEPS, 0, 0.0, 60 * S)) == 1
    assert len(stages_of(STEPS, 0, 0.0, 60 * S + 1)) == 2
    assert stages_of(STEPS, None, 0.0, None) == [], "the start of the schedule is not known yet"


@pytest.mark.parametrize("text", ["10", "ramp:0..10,60s", "sine:50,40,60s", "ramp:10..10,60s,10..20,60s"])
def test_a_rate_that_is_constant_or_changes_all_the_time_has_no_stages(text: str) -> None:
    assert not steps_of(parse_rate(text))


def test_a_spike_is_three_stages() -> None:
    assert [step.rate for step in steps_of(parse_rate("spike:5,50,60s,30s"))] == [5, 50, 5]


def test_too_many_steps_have_none() -> None:
    rates = [f"{1 + i}@1s" for i in range(MOST_STAGES)]
    assert len(steps_of(parse_rate("steps:" + ",".join(rates[:-1])))) == MOST_STAGES
    assert not steps_of(parse_rate("steps:" + ",".join([*rates, "1"])))
