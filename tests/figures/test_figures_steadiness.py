"""Whether a run began with a warm-up, where it was steady, and whether a stage was."""

import math
import re
from collections.abc import Callable
from functools import partial
from itertools import accumulate, product
from typing import Any

import numpy as np
import pytest
from metrics_cases import (
    batch,
    everybody,
    failed,
    manifest,
    ns,
    plain,
    request,
    run_of,
    span,
    stage,
    wandering,
)
from stage_cases import Random, Times, closed_loop, lockstep, many_servers, shared_server, single_queue
from summaries import summarise, typed

from llm_locust.figures.steadiness import steadiness
from llm_locust.metrics.columns import Columns, Floats
from llm_locust.metrics.question import Question
from llm_locust.metrics.stage_course import (
    EARLY_LOOKS,
    LOOK_CONFIDENCE,
    FigureEstimate,
    StageCourse,
    is_enough,
    look,
    parse_until,
    saturation,
    unsteady,
)
from llm_locust.metrics.stats.intervals import in_order
from llm_locust.metrics.steady_window import LoadOverTime
from llm_locust.metrics.window import Window
from llm_locust.report.markdown import markdown

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


Make = Callable[[Random], Times]


def found(make: Make, seed: int) -> str:
    """Everything that is held against the stage of one seed."""
    course = make(np.random.default_rng(seed)).course()
    return "; ".join([*unsteady(course), saturation(course)]).strip("; ")


def share(make: Make, seeds: int, what: str = "") -> float:
    return sum(bool(text) and what in text for text in (found(make, seed) for seed in range(seeds))) / seeds


STEADY = {
    **{
        f"M/M/1 at {load}, {n} requests": partial(single_queue, load=load, requests=n)
        for load, n in product((0.1, 0.5, 0.9), (60, 4000))
    },
    **{
        f"{users} users, lognormal {sigma}, {n} requests": partial(
            closed_loop, users=users, sigma=sigma, requests=n
        )
        for users, sigma, n in product((1, 8, 64), (0.0, 1.5), (60, 1000))
    },
    **{
        f"16 users before 4 servers, {n} requests": partial(shared_server, users=16, servers=4, requests=n)
        for n in (60, 1000)
    },
    "M/G/∞, lognormal 1.5": partial(many_servers, rate=5, sigma=1.5, requests=1000),
    "64 users in step, 6 rounds": partial(lockstep, users=64, rounds=6),
    "8 users in step, 30 rounds": partial(lockstep, users=8, rounds=30),
}


@pytest.mark.parametrize("make", STEADY.values(), ids=STEADY)
def test_a_steady_stage_is_called_unsteady_in_at_most_one_of_twenty(make: Make) -> None:
    assert share(make, 60) <= 0.05


@pytest.mark.parametrize("sigma", [0.0, 1.5])
@pytest.mark.parametrize(
    "hang", [(0.5, 1.5, 7), (0.25, 0.75, 7), (0.0, 0.5, 7), (0.3, 0.8, 8), (0.6, 1.1, 8)]
)
def test_a_hang_of_some_users_or_all_is_not_steady(hang: tuple[float, float, int], sigma: float) -> None:
    make = partial(closed_loop, users=8, sigma=sigma, requests=1600, hang=hang)
    assert share(make, 8) == 1.0


def test_a_short_hang_is_not_steady_where_times_vary_little() -> None:
    make = partial(closed_loop, users=8, sigma=0.5, requests=800, hang=(0.5, 0.6, 8))
    assert share(make, 8) == 1.0


@pytest.mark.parametrize("requests", [40, 800])
def test_a_stage_in_which_nothing_ends_is_not_steady(requests: int) -> None:
    make = partial(closed_loop, users=8, sigma=0.3, requests=requests, hang=(-1.0, 1.5, 8), drain=0.2)
    assert share(make, 8, "none of the 8 requests in flight ended") == 1.0


@pytest.mark.parametrize("open_loop", [False, True])
def test_a_stage_without_a_request_is_not_steady(open_loop: bool) -> None:
    nothing = np.array([])
    course = StageCourse(start_s=0.0, end_s=10.0, begun_s=nothing, ended_s=nothing, open_loop=open_loop)
    assert unsteady(course) == ["no request was in flight"]


def few_slow(rng: Random, at: Floats) -> Floats:
    """5 % of the requests of the last third take 20 times as long."""
    return np.where((at > 2 / 3) & (rng.random(len(at)) < 0.05), 20.0, 1.0)


def all_slower(_: Random, at: Floats) -> Floats:
    """The last third takes 1.3 times as long."""
    return np.where(at > 2 / 3, 1.3, 1.0)


@pytest.mark.parametrize("sigma", [0.0, 0.5, 1.0])
def test_a_few_requests_that_become_slow_are_found_in_two_thousand(sigma: float) -> None:
    loops = [
        partial(closed_loop, users=8, sigma=sigma, requests=2000, slow=few_slow),
        partial(many_servers, rate=5, sigma=sigma, requests=2000, slow=few_slow),
    ]
    assert [share(make, 10) for make in loops] == [1.0, 1.0]


def test_a_change_of_the_median_is_found_and_one_of_less_than_a_tenth_is_not() -> None:
    changed = partial(many_servers, rate=5, sigma=0.1, requests=1000, slow=all_slower)
    assert share(changed, 10, "its median latency") == 1.0
    little = partial(
        many_servers, rate=5, sigma=0.01, requests=1000, slow=lambda _, at: np.where(at > 0.5, 1.05, 1.0)
    )
    assert share(little, 10, "its median latency") == 0.0


def test_a_rate_above_the_capacity_is_saturated_and_one_below_is_not() -> None:
    assert share(partial(single_queue, load=1.5, requests=1000), 20, "requests were due") == 1.0
    assert share(partial(single_queue, load=1.25, requests=2000), 20, "requests were due") >= 0.9
    assert share(partial(single_queue, load=0.9, requests=1000), 60, "requests were due") <= 0.02


def test_requests_that_never_started_count_as_left() -> None:
    course = many_servers(np.random.default_rng(1), rate=5, sigma=0.5, requests=500).course()
    assert not saturation(course)
    assert "1,000 were" not in saturation(course, 1000)
    assert "were left at its end" in saturation(course, 1000)


def test_an_open_loop_that_hangs_for_a_while_is_not_steady_although_it_recovers() -> None:
    def hung(rng: Random) -> Times:
        steady = many_servers(rng, rate=5, sigma=0.5, requests=800)
        first, last = 0.3 * steady.seconds, 0.7 * steady.seconds
        stuck = (steady.ended_s > first) & (steady.due_s < last) & (rng.random(len(steady.due_s)) < 7 / 8)
        ended_s = np.where(stuck, np.maximum(steady.ended_s, last), steady.ended_s)
        return Times(steady.due_s, ended_s, steady.seconds, True)

    assert share(hung, 8) == 1.0


P99 = 2.3263478740408408


def ended(values_s: Floats, text: str) -> tuple[FigureEstimate, float]:
    """The look that ends a stage of these latencies, and the share of its time after which it does."""
    until = parse_until(text)
    for share in (*EARLY_LOOKS, 1.0):
        some_s = values_s[: round(share * len(values_s))]
        found = look(some_s, in_order(some_s), until)
        if is_enough(found, until):
            return found, share
    return found, 1.0


def correlated(rng: np.random.Generator, n: int, memory: float) -> Floats:
    """Standard normal, neighbours correlated by exp(−1 / memory)."""
    stay = math.exp(-1 / memory)
    steps = rng.normal(size=n) * math.sqrt(1 - stay * stay)
    steps[0] += stay * rng.normal()
    return np.array([*accumulate(steps.tolist(), lambda last, step: stay * last + step)])


CASES = [
    ("p50_ttft±5%", 0.5, 2000, 0.0, math.exp(0.0)),
    ("p50_ttft±12%", 0.5, 4000, 5.0, math.exp(0.0)),
    ("p99_ttft±10%", 0.3, 8000, 0.0, math.exp(0.3 * P99)),
    ("mean_e2el±5%", 0.7, 4000, 0.0, math.exp(0.7**2 / 2)),
]


@pytest.mark.parametrize(("text", "sigma", "n", "memory", "truth"), CASES)
def test_the_interval_holds_the_truth_whichever_look_ended_the_stage(
    text: str, sigma: float, n: int, memory: float, truth: float
) -> None:
    held, shares = [], []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        normal = correlated(rng, n, memory) if memory else rng.normal(size=n)
        found, share = ended(np.exp(sigma * normal), text)
        shares.append(share)
        if found.ends_s is not None:
            held.append(found.ends_s[0] <= truth <= found.ends_s[1])
    assert len(held) > 90
    assert np.mean(held) >= 0.95, "looks at 95 % each, and not at more for being several, hold in fewer"
    assert np.mean(np.array(shares) < 1) > 0.5, "most end early, so the looks are judged"


def test_a_look_is_surer_than_an_interval_alone() -> None:
    assert pytest.approx(0.9875) == LOOK_CONFIDENCE
    values_s = np.exp(np.random.default_rng(1).normal(size=500))
    found = look(values_s, in_order(values_s), parse_until("p50_ttft±5%"))
    assert found.half is not None
    assert found.half > 0.05


def test_too_few_requests_are_never_enough() -> None:
    until = parse_until("p99_ttft±50%")
    values_s = np.full(20, 0.1) + np.arange(20) * 1e-4
    assert look(values_s, in_order(values_s), until).half is None
    assert not is_enough(look(values_s, in_order(values_s), until), until)
    assert look(np.empty(0), in_order(np.empty(0)), until) == FigureEstimate(None, None)


@pytest.mark.parametrize("text", ["p99_ttft±5%", "p99_ttft+-5%", " p99_ttft +/- 5 % "])
def test_the_sign_can_be_typed(text: str) -> None:
    found = parse_until(text)
    assert (found.text, found.metric, found.statistic, found.precision) == (
        "p99_ttft±5%",
        "ttft",
        "p99",
        0.05,
    )
    assert parse_until("p99_9_e2el±2.5%").statistic == "p99_9"
    assert parse_until("mean_ttft_scheduled±5%").metric == "ttft_scheduled"


@pytest.mark.parametrize(
    "text",
    ["", "p99_ttft", "p99_ttft±5", "p99_itl±5%", "p42_ttft±5%", "ttft±5%", "p99_ttft±0%", "p50_e2el±101%"],
)
def test_other_texts_are_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="until "):
        parse_until(text)


def test_the_report_says_which_stage_ended_early_and_why() -> None:
    times_s = np.exp(0.2 * np.random.default_rng(3).normal(size=1000)) * 0.05
    records = [request(1 + i / 100, (float(t), float(t) + 0.02), user=1) for i, t in enumerate(times_s)]
    known = manifest(
        30.0,
        options={"sweep": "rate=100", "until": "p50_ttft±5%"},
        open_loop=True,
        stages=[
            stage(0, 1.0, 11.0, kind="rate", asked=100.0, is_early=True),
            stage(1, 20.0, 25.0, kind="rate", asked=200.0),
        ],
    )
    found = summarise(batch(*records), known)
    first = found["stages"][0]["until"]
    assert (first["is_early"], first["is_reached"]) == (True, True)
    assert first["interval_ms"][0] <= 50 <= first["interval_ms"][1]
    assert found["stages"][1]["until"]["value_ms"] is None
    text = markdown(typed(found))
    assert "stage 0: ended early, after 10 s: p50_ttft is known to ±" in text
    assert "stage 1: lasted its 5 s: its requests do not give p50_ttft an interval" in text


@pytest.mark.parametrize(("failing", "known"), [(0, True), (9, True), (30, False)])
def test_failed_requests_that_reach_up_to_the_figure_leave_it_without_an_interval(
    failing: int, known: bool
) -> None:
    """Of 3,000, so that p99 begins with 30: the ok ones alone are known to ±5 % in each case."""
    times_s = np.exp(0.02 * np.random.default_rng(3).normal(size=3_000)) * 0.05
    records = [
        failed(at=1 + i / 100)
        if i % 100 == 50 and i // 100 < failing
        else request(1 + i / 100, (float(t), 0.1))
        for i, t in enumerate(times_s)
    ]
    if failing == 30:
        records.append(failed(at=30.0))
    loads = [stage(0, 1.0, 31.0, kind="rate", asked=100.0)]
    options = {"sweep": "rate=100", "until": "p99_ttft±5%"}
    (found,) = summarise(batch(*records), manifest(40.0, options=options, open_loop=True, stages=loads))[
        "stages"
    ]
    assert found["until"]["value_ms"] == pytest.approx(52, rel=0.02)
    assert (found["until"]["interval_ms"] is not None, found["until"]["is_reached"]) == (known, known)
