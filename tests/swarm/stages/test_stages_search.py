"""The plan of a search in the driver of a sweep: each load follows from what the finished stages show."""

from collections.abc import Sequence

from stages_swarm import TIMES, FakeSwarm

from llm_locust.core.manifest import StageFacts
from llm_locust.figures.edge import Bounds, SearchResult
from llm_locust.figures.objective import Probe, ProbeReading, parse_objective
from llm_locust.swarm.stages.driver import SweepDriver
from llm_locust.swarm.stages.plan import SearchPlan

USERS = parse_objective("max concurrency under goodput>=50%")
EDGE = 11


def shown(stages: Sequence[StageFacts]) -> Probe:
    """Up to the edge all requests are good, beyond it none; a stage with a fault shows nothing."""
    load = stages[-1].asked
    if stages[-1].fault:
        return Probe(load, no_result=stages[-1].fault)
    return Probe(load, (ProbeReading(500 if load <= EDGE else 0, 500, 500.0),))


def searched(swarm: FakeSwarm, bounds: Bounds) -> tuple[bool, list[StageFacts], SearchResult | None]:
    plan = SearchPlan(USERS, bounds, shown)
    driver = SweepDriver("run", swarm, plan, TIMES)
    swarm.confirm = driver.confirmed
    return driver.drive(), driver.stages, plan.found


def test_a_search_ends_by_itself_with_the_last_number_of_users_that_holds() -> None:
    complete, stages, found = searched(FakeSwarm(), Bounds(2.0))
    assert complete
    assert found is not None
    assert (found.load, found.is_resolved) == (EDGE, True)
    loads = [stage.asked for stage in stages]
    assert loads[:4] == [2, 4, 8, 16], "doubled until a limit breaks"
    assert max(loads) <= 2 * EDGE
    assert len(loads) <= 12
    assert {EDGE, EDGE + 1} <= set(loads)


def test_a_stage_that_two_workers_lost_is_run_again_once_and_then_ends_the_search() -> None:
    complete, stages, found = searched(FakeSwarm(drains_s=99.0), Bounds(2.0))
    assert complete
    assert [(stage.asked, stage.repeat) for stage in stages] == [(2, 0), (2, 1)]
    assert found is not None
    assert (found.load, found.at_least, found.at_most) == (None, None, None)
    assert "did not confirm" in found.why


def test_the_end_of_the_run_ends_the_search_without_an_answer() -> None:
    complete, stages, found = searched(FakeSwarm(over_s=20.0), Bounds(2.0))
    assert not complete
    assert found is None
    assert stages
