"""``--until`` ends a stage when a figure is known well enough, and its interval holds the truth."""

import math
from itertools import accumulate

import numpy as np
import pytest
from metrics_cases import batch, failed, manifest, request, stage

from llm_locust.figures.summarise import summarise
from llm_locust.figures.summary import typed
from llm_locust.metrics.columns import Floats
from llm_locust.metrics.stage_course import (
    EARLY_LOOKS,
    LOOK_CONFIDENCE,
    FigureEstimate,
    is_enough,
    look,
    parse_until,
)
from llm_locust.metrics.stats.intervals import in_order
from llm_locust.report.markdown import markdown

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
