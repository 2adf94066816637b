"""Whether a run began with a warm-up, and where it was steady."""

import re
from typing import Any

import numpy as np
import pytest
from long_runs import everybody, run_of, span, wandering
from metrics_cases import batch, manifest, ns, plain, request

from llm_locust.figures.steadiness import steadiness
from llm_locust.figures.summarise import summarise
from llm_locust.metrics.columns import Columns, Floats
from llm_locust.metrics.question import Question
from llm_locust.metrics.steady_window import LoadOverTime
from llm_locust.metrics.window import Window

SECONDS = 120.0


def told(c: Columns, warmup_s: float = 0.0, start: float = 0.0) -> dict[str, Any]:
    window = Window(ns(start), ns(SECONDS), "")
    load = LoadOverTime("requests/s", due_s=np.sort(c.scheduled_s))
    found: dict[str, Any] = plain(steadiness(c, window, everybody(c, window).ok, warmup_s, load))
    return found


def arrivals(seed: int = 1, per_s: float = 20.0) -> Floats:
    return np.sort(np.random.default_rng(seed).uniform(0, SECONDS, int(per_s * SECONDS)))


def noisy(at: Floats, seed: int = 1) -> Floats:
    noise: Floats = 0.2 * np.exp(0.2 * np.random.default_rng([seed, 2]).standard_normal(len(at)))
    return noise


def test_a_run_that_is_alike_from_its_beginning_needs_no_warm_up() -> None:
    at = np.arange(0.0, SECONDS, 0.05)
    c = run_of(at, noisy(at), last_s=0.0)
    found = told(c)
    assert (found["settled"], found["warmup_like"], found["warmup_s_suggested"]) == (True, False, None)
    assert (found["plateau"], found["unit"]) == (pytest.approx(20.0, rel=0.05), "requests/s")
    assert found["steady_share"] == 1.0
    assert found["reason"] == "concurrency and median TTFT of the first 3 s are like those of the last third"


def test_slow_first_tokens_at_the_beginning_are_a_warm_up() -> None:
    at = arrivals()
    found = told(run_of(at, noisy(at) * np.where(at < 10, 2.0, 1.0), last_s=0.0))
    assert found["warmup_like"] is True
    assert 9 <= found["warmup_s_suggested"] <= 15
    said = re.fullmatch(
        r"the first [0-9.]+ s were like a warm-up: "
        r"(concurrency .* and )?TTFT median (\d+) ms against (\d+) ms "
        r"in the last third \(99 % of such parts: \d+ .. \d+\); use --warmup (\d+)s",
        found["reason"],
    )
    assert said
    assert int(said[2]) == pytest.approx(400, rel=0.15)
    assert int(said[3]) == pytest.approx(200, rel=0.05)
    assert float(said[4]) == found["warmup_s_suggested"]


def test_users_that_come_one_after_the_other_are_a_warm_up() -> None:
    begun = np.concatenate([np.arange(user, SECONDS, 2.0) for user in np.arange(0.0, 20.0, 1.0)])
    found = told(run_of(begun, 0.1, last_s=1.9))
    assert found["warmup_like"] is True
    assert 18 <= found["warmup_s_suggested"] <= 24
    assert "concurrency" in found["reason"]
    assert "TTFT" not in found["reason"]


def test_the_suggestion_counts_from_the_first_request_and_with_the_warm_up_that_there_was() -> None:
    at = arrivals()
    slow = np.where(at < 30, 3.0, 1.0)
    found = told(run_of(at, noisy(at) * slow, last_s=0.0), warmup_s=10.0, start=10.0)
    assert 28 <= found["warmup_s_suggested"] <= 36
    assert found["reason"].endswith(f"use --warmup {found['warmup_s_suggested']:g}s instead of 10s")


def test_what_is_suggested_is_enough() -> None:
    at = arrivals()
    ttft_s = noisy(at) * np.where(at < 10, 2.0, 1.0)
    warmup_s = told(run_of(at, ttft_s, last_s=0.0))["warmup_s_suggested"]
    again = told(run_of(at, ttft_s, last_s=0.0), warmup_s=warmup_s, start=warmup_s)
    assert again["warmup_like"] is False


def test_a_run_that_never_settles_is_not_told_to_leave_out_half_of_itself() -> None:
    at = np.arange(0.0, SECONDS, 0.05)
    for ttft_s in (np.where(at < 75, 1.0, 0.2), 0.2 + 0.01 * np.minimum(at, 75)):
        found = told(run_of(at, ttft_s, last_s=0.0))
        assert (found["settled"], found["warmup_like"], found["warmup_s_suggested"]) == (False, None, None)
        assert found["reason"].startswith("not settled by the middle of the run: ")


@pytest.mark.parametrize("constant_s", [0.01, 2.0, 6.0])
def test_of_a_hundred_runs_without_a_warm_up_at_most_five_are_said_to_have_one(constant_s: float) -> None:
    noise = wandering(100, SECONDS, constant_s, seed=9, step_s=0.25)
    said = []
    for seed in range(100):
        at = arrivals(seed, 10.0)
        level = np.interp(at, 0.25 * np.arange(noise.shape[1]), noise[seed])
        said.append(told(run_of(at, noisy(at, seed) * np.exp(0.2 * level), last_s=0.0))["warmup_like"])
    assert sum(answer is not False for answer in said) <= 5


def test_a_little_difference_is_no_warm_up_however_sure_it_is() -> None:
    at = np.arange(0.0, SECONDS, 0.05)
    found = told(run_of(at, np.where(at < 12, 0.218, 0.2), last_s=0.0))
    assert found["warmup_like"] is False


def test_too_few_requests_tell_no_warm_up_but_a_plateau() -> None:
    found = told(run_of(np.linspace(0, SECONDS, 99, endpoint=False), 0.5))
    assert found["reason"] == "too few ok requests to detect a warm-up: 99, 100 are needed"
    assert found["warmup_like"] is None
    assert found["plateau"] is not None


def test_a_run_without_requests_has_no_plateau() -> None:
    c = run_of(np.empty(0), 0.1)
    assert plain(steadiness(c, span(10.0), everybody(c, span(10.0)).ok, 0.0, None)) == {
        "settled": None,
        "warmup_like": None,
        "warmup_s_suggested": None,
        "unit": None,
        "plateau": None,
        "steady_share": None,
        "reason": "no request was in flight",
        "slower": None,
        "overload": None,
    }


def test_a_summary_tells_it_of_the_run_also_where_its_steady_part_is_judged() -> None:
    ramp = [request(user + 2.0 * k, (0.1, 1.99)) for user in range(10) for k in range(30)]
    rows, facts = batch(*ramp), manifest(stopped=60.0)
    of_run, of_part = (
        summarise(rows, facts, Question(window=window))["steadiness"] for window in ("run", "steady")
    )
    assert of_run == of_part
    assert of_run["warmup_like"] is True
    given = summarise(rows, facts, Question(window=Window(ns(10.0), ns(20.0), "")))["steadiness"]
    assert given["reason"].startswith("the window was given")
