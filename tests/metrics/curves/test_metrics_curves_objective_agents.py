"""Agents as the load of a search."""

import pytest

from llm_locust.figures.objective import ObjectiveError, parse_objective


def test_agents_are_the_users_of_a_search_with_the_limits_of_agentperf() -> None:
    found = parse_objective("max agents under p75_tpot<=50ms p95_ttft<=10s")
    tpot, ttft = found.limits
    assert found.axis == "concurrency"
    assert (tpot.metric, tpot.required, tpot.limit_s) == ("tpot", 0.75, 0.05)
    assert (ttft.metric, ttft.required, ttft.limit_s) == ("ttft", 0.95, 10.0)
    assert parse_objective("max-goodput over agents").axis == "concurrency"


def test_an_unknown_load_names_agents_among_the_known_ones() -> None:
    with pytest.raises(ObjectiveError, match="agents"):
        parse_objective("max clients under goodput>=95%")
