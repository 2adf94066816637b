"""Replicas that came after a step of the load: when, and what was lost meanwhile."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from metrics_cases import batch, columns, failed, manifest, request, stage
from report_cases import told
from summaries import summarise, typed

from llm_locust.core.manifest import StageFacts, WorkerFacts
from llm_locust.core.record import RequestRecord
from llm_locust.figures.autoscaling import Autoscaling, ReplicasUp, autoscaling, lives, show as section
from llm_locust.metrics.measured import measure
from llm_locust.metrics.question import Question

STEP_S, END_S, CAME_S = 60.0, 180.0, 90.0


def rate(number: int, begun_s: float, ended_s: float, asked: float) -> StageFacts:
    """A stage without ramp and warm-up: it is measured from its beginning, half a second after begun."""
    return stage(number, begun_s + 0.5, ended_s, kind="rate", asked=asked)


def good(at_s: float, replica: str) -> RequestRecord:
    return request(at_s, (0.05, 0.07), replica=replica)


def slow(at_s: float) -> RequestRecord:
    return request(at_s, (1.0, 1.02), replica="a")


def scaled(bad: Any) -> list[RequestRecord]:
    """5 requests/s with 2 % bad, from 60 s on 10 with a third bad, until replica b answers at 90.05 s."""
    before = [bad(i / 5) if i % 50 == 49 else good(i / 5, "a") for i in range(300)]
    meanwhile = [bad(STEP_S + i / 10) if i % 3 == 0 else good(STEP_S + i / 10, "a") for i in range(300)]
    after = [good(CAME_S + i / 10, "ba"[i % 2]) for i in range(900)]
    return [*before, *meanwhile, *after]


def facts(rows: int, **more: Any) -> Any:
    stages = [rate(0, 0.0, STEP_S, 5.0), rate(1, STEP_S, END_S, 10.0)]
    workers = [WorkerFacts(id="w1", index=0, announced=rows, received=rows)]
    return manifest(END_S, **{"open_loop": True, "stages": stages, "workers": workers, **more})


def summary_of(records: list[RequestRecord], slo: str = "", **more: Any) -> dict[str, Any]:
    return summarise(batch(*records), facts(len(records), **more), Question(slo=slo))


@pytest.mark.parametrize(("bad", "slo", "by"), [(failed, "", "outcome"), (slow, "ttft=500ms", "slo")])
def test_each_figure_of_a_step_is_that_of_its_closed_form(bad: Any, slo: str, by: str) -> None:
    summary = summary_of(scaled(bad), slo)
    assert [each["kind"] for each in summary["fairness"]["causes"]] == ["added", "round_robin"]
    found = summary["autoscaling"]
    assert found["replicas"] == [
        {"at_s": 0.0, "replicas": 1},
        {"at_s": pytest.approx(CAME_S + 0.05), "replicas": 2},
    ]
    assert (found["judged_by"], found["unsure"], found["unrecorded"]) == (by, 0, 0)
    # Before: the 297 requests from 0.5 s on, 6 of them bad. Meanwhile: 60.0 to 90.0 s, each third bad.
    # The 50 requests from 89.2 s on have two bad ones, as many as the interval before allows (2.1).
    usual = 6 / 297
    (step,) = found["steps"]
    assert step == {
        "at_s": pytest.approx(60),
        "kind": "rate",
        "asked_before": 5.0,
        "asked": 10.0,
        "replicas_before": 1,
        "new": 1,
        "first_new_s": pytest.approx(30.05),
        "last_new_s": pytest.approx(30.05),
        "requests": 301,
        "missed": 100,
        "missed_share_before": pytest.approx(usual),
        "good_lost": pytest.approx(100 - usual * 301),
        "recovered_s": pytest.approx(29.2),
        "recovered_at_least_s": None,
    }


def test_a_step_without_a_new_replica_says_so() -> None:
    """Replica b came long before the second step, after which goodput stays low."""
    records = [r for r in scaled(failed) if r.scheduled_ns < batch_ns(120.0)]
    later = [failed(120 + i / 10) if i % 3 else good(120 + i / 10, "ab"[i % 2]) for i in range(600)]
    stages = [rate(0, 0.0, 60.0, 5.0), rate(1, 60.0, 120.0, 10.0), rate(2, 120.0, END_S, 20.0)]
    summary = summary_of([*records, *later], stages=stages)
    first, second = summary["autoscaling"]["steps"]
    assert (first["new"], second["new"], second["replicas_before"]) == (1, 0, 2)
    assert second["first_new_s"] is second["last_new_s"] is second["recovered_s"] is None
    assert (second["requests"], second["missed"]) == (600, 400)
    assert second["recovered_at_least_s"] == pytest.approx(55.0)  # the last 50 begin there
    made = section(typed(summary))
    assert made is not None
    assert made.table is not None
    assert [row.cells[3] for row in made.table.rows] == ["30.0 s", "–"]
    assert "no new replica answered after 1 step" in [note.text for note in made.notes]


def in_turn(user: int, begin_s: float, end_s: float, took_s: float, replica: str) -> list[RequestRecord]:
    """Requests of one user, each as soon as the one before has its answer, spread over replicas."""
    times = np.arange(begin_s, end_s - 1e-9, took_s)
    return [
        request(at_s, (took_s / 2, took_s), user=user, replica=replica[(user + i) % len(replica)])
        for i, at_s in enumerate(times.tolist())
    ]


@pytest.mark.parametrize("drain_s", [0.0, 8.0])
def test_a_closed_loop_loses_what_its_users_did_not_ask_for(drain_s: float) -> None:
    """4 users with a request a second each, then 16, of whom each has one in 4 s until b answers.

    g = 1 good request per user and second, U = 16 × 32 user seconds, G = 16 × 8 requests: 384 are lost, and
    not one request failed.
    """
    step_s = STEP_S + drain_s
    before = [r for user in range(4) for r in in_turn(user, 0.0, STEP_S, 1.0, "a")]
    waiting = [r for user in range(16) for r in in_turn(user, step_s, step_s + 32, 4.0, "a")]
    after = [r for user in range(16) for r in in_turn(user, step_s + 32, step_s + 120, 1.0, "ab")]
    stages = [
        stage(0, 0.5, STEP_S, asked=4.0, drained_ns=batch_ns(step_s)),
        stage(1, step_s + 0.5, step_s + 120, asked=16.0),
    ]
    more: dict[str, Any] = {"open_loop": False, "stages": stages, "stopped_ns": batch_ns(step_s + 120)}
    summary = summary_of([*before, *waiting, *after], **more)
    (step,) = summary["autoscaling"]["steps"]
    assert (step["kind"], step["new"], step["missed"]) == ("users", 1, 0)
    assert step["good_lost"] == pytest.approx(384, rel=0.05)  # the last new answer is half a second later
    made = section(typed(summary))
    assert made is not None
    assert any("per user and second as before" in note.text for note in made.notes)
    unnamed = [replace(r, user=None) for r in [*before, *waiting, *after]]
    assert summary_of(unnamed, **more)["autoscaling"]["steps"][0]["good_lost"] is None


def batch_ns(seconds: float) -> int:
    return request(seconds).scheduled_ns


def test_a_step_down_belongs_to_the_step_up_before_it() -> None:
    """A spike that is over before the new replica answers: it was the spike that it came for."""
    stages = [rate(0, 0.0, 60.0, 5.0), rate(1, 60.0, 80.0, 10.0), rate(2, 80.0, END_S, 5.0)]
    (step,) = summary_of(scaled(failed), stages=stages)["autoscaling"]["steps"]
    assert (step["new"], step["first_new_s"]) == (1, pytest.approx(30.05))


def test_a_load_after_a_long_pause_is_no_step() -> None:
    """As in a resumed run: the replicas may have changed in the pause."""
    paused = [rate(0, -100.0, -60.5, 5.0), rate(1, STEP_S, END_S, 10.0)]
    assert summary_of(scaled(failed), stages=paused)["autoscaling"]["steps"] == []


def test_a_pause_ends_the_step_before_it() -> None:
    """The second load was under way when the master died; it is repeated 80 s later, with a new replica."""
    under_way = replace(
        rate(1, 20.0, 30.0, 10.0), measured_ns=None, ended_ns=None, drained_ns=None, repeated_as=2
    )
    resumed = [rate(0, 0.0, 20.0, 5.0), under_way, rate(2, 110.0, END_S, 10.0)]
    ran = [r for r in scaled(failed) if not 30.0 <= (r.scheduled_ns - batch_ns(0.0)) * 1e-9 < 110.0]
    found = autoscaling_of(ran, resumed)
    assert [(step["new"], step["requests"]) for step in found["steps"]] == [(0, 50)]


def autoscaling_of(records: list[RequestRecord], stages: list[StageFacts]) -> dict[str, Any]:
    found: dict[str, Any] = summary_of(records, stages=stages)["autoscaling"]
    return found


def test_a_replica_that_goes_is_one_less() -> None:
    records = [good(i / 10, "b" if i % 2 and i < 600 else "a") for i in range(1800)]
    found = summary_of(records, stages=[])["autoscaling"]
    assert found["replicas"] == [
        {"at_s": 0.0, "replicas": 2},
        {"at_s": pytest.approx(59.9 + 0.07), "replicas": 1},
    ]
    assert found["steps"] == []


def test_runs_whose_replicas_stay_and_parts_of_a_run_have_none() -> None:
    steady = [good(i / 10, "ab"[i % 2]) for i in range(1800)]
    assert "autoscaling" not in summary_of(steady)
    assert section(told()) is None
    records = scaled(failed)
    part = summarise(batch(*records), facts(len(records)), rows_of_run=len(records))
    assert "autoscaling" not in part


def test_an_error_with_the_name_of_a_replica_is_no_answer_of_it() -> None:
    """A server that is loading its model answers 503 for 20 s."""
    loading = [failed(70 + i / 10, replica="b") for i in range(200)]
    (step,) = summary_of([*scaled(slow), *loading], "ttft=500ms")["autoscaling"]["steps"]
    assert step["first_new_s"] == pytest.approx(30.05)


def test_requests_without_a_record_make_the_loss_a_lower_bound() -> None:
    records = scaled(failed)
    workers = [WorkerFacts(id="w1", index=0, announced=len(records) + 7, received=len(records), unsent=3)]
    summary = summary_of(records, workers=workers)
    assert summary["autoscaling"]["unrecorded"] == 10
    made = section(typed(summary))
    assert made is not None
    assert "10 requests have no record: good lost is a lower bound" in [note.text for note in made.notes]


def test_replicas_that_were_there_all_along_never_come_and_never_go() -> None:
    """Requests go to one of k replicas at random, few of them at first."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        k = int(rng.integers(2, 9))
        due_s = [*np.arange(0, 60, 1.0), *np.arange(60, 120, 0.1)]
        found = lives(columns(*(good(at_s, f"r{rng.integers(k)}") for at_s in due_s)))
        assert not any(life.came or life.left for life in found)


def test_a_single_late_answer_tells_nothing_of_its_replica() -> None:
    records = [good(i / 10, "a") for i in range(1800)]
    c = columns(*records, good(100.0, "b"))
    assert [(life.came, life.left, life.unsure) for life in lives(c)] == [
        (False, False, False),
        (False, False, True),
    ]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 119), min_size=1, max_size=60), min_size=1, max_size=5),
    st.integers(1, 118),
)
def test_a_replica_that_answered_before_the_step_is_never_new(times: list[list[int]], at_s: int) -> None:
    names = "abcde"
    records = [good(float(t), names[i]) for i, of_one in enumerate(times) for t in of_one]
    stages = [rate(0, 0.0, at_s, 1.0), rate(1, at_s, 121.0, 2.0)]
    run = manifest(121.0, open_loop=True, stages=stages)
    sent = batch(*records)
    found = autoscaling(sent, measure(sent, run, Question(slo="")), run, 0)
    if found is None:
        return
    could = sum(min(of_one) + 0.05 > at_s for of_one in times)
    (step,) = found.steps
    assert step.new <= could
    assert (step.first_new_s is None) == (step.new == 0)
    assert 0 <= step.replicas_before <= len(times) - step.new
    assert all(0 <= each.replicas <= len(times) for each in found.replicas)
    assert len({each.replicas for each in found.replicas}) > 1 or len(found.replicas) > 2


def test_the_section_names_steps_and_changes_and_bounds_their_number() -> None:
    found = summary_of(scaled(failed))
    many = [ReplicasUp(at_s=float(i), replicas=1 + i % 2) for i in range(40)]
    part = typed(found).autoscaling
    assert isinstance(part, Autoscaling)
    steps = part.steps * 30
    made = section(told(autoscaling={**found["autoscaling"], "replicas": [], "steps": []}))
    assert made is not None
    assert made.table is None
    of_many = Autoscaling(replicas=many, steps=steps, unsure=2, judged_by="slo", unrecorded=0)
    made = section(told(autoscaling=of_many))
    assert made is not None
    assert made.table is not None
    assert len(made.table.rows) == 20
    assert made.table.rows[0].cells[:3] == ("5.00 → 10.0 requests/s", "60.0 s", "1 + 1")
    assert any("28 changes more" in note.text for note in made.notes)
