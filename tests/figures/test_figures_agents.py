"""Agents: speeds, jobs that ended in the window, and hits over the same turns as the possible ones."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from metrics_cases import batch, manifest, ns, request
from summaries import summarise

from llm_locust.core.manifest import TrajectoryFacts
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.figures.agents import agents_by_load

#: Two trajectories and a sub-agent of the first.
FACTS = TrajectoryFacts(
    ids=["a", "b", "sub"], roots=2, possible=[[0.2, 0.8], [0.5], [0.6]], pauses_s=[[1.0, 0.0], [0.0], [0.0]]
)


def turn(
    walk: str, number: int, at: float, tpot_s: float = 0.02, late: float = 0.0, **fields: Any
) -> RequestRecord:
    """A turn with its first token after 50 ms and three tokens."""
    arrivals = (0.05, 0.05 + tpot_s, 0.05 + 2 * tpot_s)
    known: dict[str, Any] = {"session": walk, "turn": number, "cached_tokens": 5, "user": 0}
    return request(at, arrivals, late=late, **{**known, **fields})


def agents(*records: RequestRecord, gpus: str = "4") -> dict[str, Any]:
    made = summarise(batch(*records), manifest(options={"gpus": gpus}, trajectories=FACTS))
    found: dict[str, Any] = made["agents"]
    return found


def test_a_job_is_a_walk_that_came_to_its_end_in_the_window_and_sub_agents_are_none() -> None:
    found = agents(
        turn("r1-t0-of2", 0, 1.0),
        turn("r2-t2-of1", 0, 2.0),  # the sub-agent
        turn("r1-t0-of2", 1, 4.0),
        turn("r3-t1-of1", 0, 5.0, user=1),
        turn("r4-t0-of2", 0, 6.0, user=1),  # never came to its second turn
        turn("r5-t1-of1", 0, 7.0, user=1, outcome=Outcome.HTTP_ERROR),
        turn("r6-t1-of1", 0, 9.95),  # ended after the window
    )
    assert (found["agents"], found["turns"], found["ok"], found["jobs"]) == (2, 7, 6, 2)
    assert found["job_s_mean"] == pytest.approx((3.09 + 0.09) / 2)
    assert found["between_turns_s_mean"] == pytest.approx((3.09 - 2 * 0.09) / 2)
    # Turns that ended in the window: 5, of the 4 / 2 that a job of the pool has. The window begins with the
    # first turn; the second agent was there from its own first one on.
    assert found["jobs_worked"] == pytest.approx(5 / 2)
    assert found["agent_s"] == pytest.approx(9 + 5)
    assert found["jobs_per_h_per_user"] == pytest.approx(3600 * 2.5 / 14)
    assert found["jobs_per_h"] == pytest.approx(3600 * 2.5 / 9)
    assert found["jobs_per_h_per_gpu"] == pytest.approx(3600 * 2.5 / 9 / 4)
    assert found["turns_seen"] == 1.0
    # The tool of the first trajectory takes 1 s after its first turn.
    assert found["tools_s"] == pytest.approx(2)
    assert found["tools_s_mean"] == pytest.approx(1 / 2)
    assert found["tools_share"] == pytest.approx(2 / 14)


def test_tools_are_apart_from_sub_agents_and_end_with_the_window() -> None:
    found = agents(
        turn("r1-t0-of2", 0, 1.0),
        turn("r2-t2-of1", 0, 1.2),
        turn("r9-t2-of1", 0, 4.0, outcome=Outcome.HTTP_ERROR),
        turn("r1-t0-of2", 1, 5.0),
        turn("r3-t0-of2", 0, 9.3),  # its tool would end after the window
        turn("r4-t0-of2", 0, 9.4, user=1, outcome=Outcome.HTTP_ERROR),  # no tool ran
    )
    assert found["tools_s"] == pytest.approx(2)
    assert found["tools_share"] * found["agent_s"] == pytest.approx(1 + (10 - 9.39))
    assert found["between_turns_share"] > found["tools_share"]


def test_speeds_are_quantiles_of_turns_from_the_slow_end() -> None:
    found = agents(*(turn(f"r{i}-t1-of1", 0, i, tpot_s) for i, tpot_s in enumerate((0.01, 0.02, 0.04, 0.05))))
    assert found["output_tokens_per_s_p25"] == pytest.approx(20 + 0.75 * 5)  # numpy's: between 20 and 25
    assert found["output_tokens_per_s_p50"] == pytest.approx((25 + 50) / 2)
    e2e_s = [0.05 + 2 * tpot_s for tpot_s in (0.01, 0.02, 0.04, 0.05)]
    assert found["e2e_tokens_per_s_mean"] == pytest.approx(12 / sum(e2e_s))
    assert found["e2e_tokens_per_s_p50"] == pytest.approx((3 / e2e_s[1] + 3 / e2e_s[2]) / 2)


def test_hits_and_possible_hits_are_of_the_same_turns() -> None:
    found = agents(
        turn("r1-t0-of2", 0, 1.0, input_tokens=100, cached_tokens=10),
        turn("r1-t0-of2", 1, 2.0, input_tokens=300, cached_tokens=200),
        turn("r2-t1-of1", 0, 3.0, cached_tokens=None),  # the server did not say
        turn("r3-t9-of1", 0, 4.0, input_tokens=500, cached_tokens=500),  # of no trajectory of this pool
        turn("r4-t1-of1", 5, 5.0, input_tokens=500, cached_tokens=500),  # no turn of its trajectory
    )
    assert found["cache"] == {
        "turns": 2,
        "achieved": pytest.approx(210 / 400),
        "possible": pytest.approx((0.2 * 100 + 0.8 * 300) / 400),
    }


def test_without_walks_there_is_no_figure_and_no_zero() -> None:
    found = agents(request(1.0), gpus="")
    assert (found["agents"], found["turns"], found["jobs"]) == (0, 0, 0)
    assert found["cache"] == {"turns": 0, "achieved": None, "possible": None}
    for key in (
        "tools_share",
        "output_tokens_per_s_p25",
        "e2e_tokens_per_s_mean",
        "job_s_mean",
        "jobs_per_h_per_user",
    ):
        assert found[key] is None
    assert found["jobs_per_h_per_gpu"] is None


def test_a_run_of_no_pool_has_no_agents() -> None:
    assert "agents" not in summarise(batch(request(1.0)), manifest())


def test_jobs_that_failed_are_counted_and_in_no_other_figure() -> None:
    found = agents(
        turn("r1-t1-of1", 0, 1.0),
        turn("r2-t0-of2", 0, 2.0),
        turn("r2-t0-of2", 1, 3.0, outcome=Outcome.HTTP_ERROR),
        turn("r3-t1-of1", 0, 4.0, outcome=Outcome.TIMEOUT),
        turn("r4-t2-of1", 0, 5.0, outcome=Outcome.HTTP_ERROR),  # the sub-agent's own
        turn("r5-t1-of1", 0, 6.0, outcome=Outcome.CANCELLED),  # cut
        turn("r6-t1-of1", 0, 20.0, outcome=Outcome.HTTP_ERROR),  # after the window
    )
    assert (found["jobs"], found["jobs_failed"]) == (1, 2)
    assert found["job_s_mean"] == pytest.approx(0.09)


def renewals(turn_s: float, seed: int) -> tuple[dict[str, Any], float]:
    """Four agents over trajectories of 4 and of 100 turns, cut after 60 s; and what jobs/h really are."""
    rng = np.random.default_rng(seed)
    lengths = (4, 100)
    facts = TrajectoryFacts(
        ids=["short", "long"],
        roots=2,
        possible=[[0.0] * n for n in lengths],
        pauses_s=[[0.0] * n for n in lengths],
    )
    rows = []
    for agent in range(4):
        at, walk = 1.0, 0
        while at < 70:
            place = int(rng.integers(2))
            for number in range(lengths[place]):
                took = float(rng.gamma(4, turn_s / 4))
                if at < 70:
                    name = f"a{agent}w{walk}-t{place}-of{lengths[place]}"
                    rows.append(
                        request(at, (took / 2, took), session=name, turn=number, user=agent, cached_tokens=0)
                    )
                at += took
            walk += 1
    made = summarise(batch(*rows), manifest(stopped_ns=ns(61.0), trajectories=facts))
    return made["agents"], 3600 / (turn_s * sum(lengths) / 2)


@pytest.mark.parametrize("seed", range(4))
def test_jobs_an_hour_are_right_where_the_end_of_the_run_cuts_long_jobs(seed: int) -> None:
    found, truth = renewals(1.0, seed)
    assert found["jobs_per_h_per_user"] == pytest.approx(truth, rel=0.12)
    # What the finished ones alone would tell: the short ones, or nothing.
    assert found["job_s_mean"] is None or 3600 / found["job_s_mean"] > 3 * truth


def test_turns_of_walks_that_failed_are_no_work_and_their_time_counts() -> None:
    found = agents(
        turn("r1-t1-of1", 0, 1.0),
        turn("r2-t0-of2", 0, 3.0),
        turn("r2-t0-of2", 1, 5.0, outcome=Outcome.HTTP_ERROR),
    )
    assert found["jobs_worked"] == pytest.approx(1 / 2)
    assert found["agent_s"] == pytest.approx(9)


def test_lateness_is_of_turns_after_a_pause_and_names_what_was_more_than_5_ms() -> None:
    late = (0.0, 0.001, 0.004, 0.02)
    found = agents(*(turn("r1-t0-of9", n, 1.0 + n, late=late_s) for n, late_s in enumerate(late)))["pauses"]
    assert (found["n"], found["late"]) == (3, 1)
    assert found["late_ms_max"] == pytest.approx(20, abs=0.1)
    assert found["late_ms_p50"] == pytest.approx(4, abs=0.1)
    assert found["late_ms_p99"] == pytest.approx(4 + 0.98 * 16, abs=0.1)


def summary(*figures: Any) -> Any:
    return cast(Any, SimpleNamespace(stages=[SimpleNamespace(asked=8.0, figures=each) for each in figures]))


def test_loads_without_agents_have_no_row() -> None:
    assert agents_by_load(summary(None, SimpleNamespace(agents=None))) is None
    assert agents_by_load(cast(Any, SimpleNamespace(stages=None))) is None


def test_a_load_is_a_whole_number_of_agents_and_what_is_not_known_is_no_zero() -> None:
    cache = SimpleNamespace(achieved=0.5, possible=None)
    part = SimpleNamespace(
        turns=1200,
        jobs=3,
        output_tokens_per_s_p25=20.0,
        e2e_tokens_per_s_p25=10.0,
        jobs_per_h_per_user=4.0,
        jobs_per_h_per_gpu=None,
        between_turns_share=0.25,
        tools_share=0.2,
        cache=cache,
    )
    section = agents_by_load(summary(SimpleNamespace(agents=part)))
    assert section is not None
    assert section.table is not None
    assert section.table.rows[0].cells[:3] == ("8", "1,200", "3")
    assert section.table.rows[0].cells[6:] == ("–", "25.0 %", "20.0 %", "50.0 %", "–")
