"""Whether a long run got slower or worse."""

from typing import Any

import numpy as np
import pytest
from long_runs import everybody, run_of, span, wandering
from metrics_cases import ns, plain

from llm_locust.core.record import Outcome
from llm_locust.figures.drift import MEASURES, drift
from llm_locust.metrics.columns import OUTCOMES, Columns
from llm_locust.metrics.gates import Slo
from llm_locust.metrics.requests.goodput import Limits, judge
from llm_locust.metrics.requests.latency import per_request
from llm_locust.metrics.window import Window

HOURS = 3.0
SECONDS = HOURS * 3600
SLO = Slo(ttft_s=0.4)
OK, FAILED = OUTCOMES.index(Outcome.OK), OUTCOMES.index(Outcome.TIMEOUT)


def drift_of(c: Columns, window: Window | None = None, slo: Slo | None = SLO) -> dict[str, Any]:
    window = window or span(SECONDS)
    judgement = judge(c, per_request(c), Limits(slo), "sent") if slo else None
    found: dict[str, Any] = plain(drift(c, everybody(c, window), judgement, window))
    return found


def soak(seed: int, constant_s: float = 1.0, slower_per_hour: float = 0.0, wander: float = 0.1) -> Columns:
    """108 requests in each of 60 bins of three hours. TTFT and the share of failures wander together."""
    random = np.random.default_rng([seed, round(constant_s)])
    at = np.sort(random.uniform(0, SECONDS, 60 * 108))
    (noise,) = wandering(1, SECONDS, constant_s, seed)
    level = np.interp(at, 10.0 * np.arange(len(noise)), noise)
    ttft_s = 0.25 * np.exp(0.3 * random.standard_normal(len(at)) + wander * level)
    failed = random.uniform(size=len(at)) < 0.01 * np.exp(0.5 * level)
    outcome = np.where(failed, FAILED, OK).astype(np.int8)
    return run_of(at, ttft_s * (1 + slower_per_hour * at / 3600), outcome=outcome)


@pytest.mark.parametrize("constant_s", [1.0, 300.0])
def test_of_a_hundred_flat_runs_at_most_five_have_a_drift_also_where_noise_wanders(constant_s: float) -> None:
    found = [drift_of(soak(seed, constant_s))["found"] for seed in range(100)]
    assert sum(map(bool, found)) <= 5


@pytest.mark.parametrize("constant_s", [1.0, 60.0])
def test_ten_per_cent_an_hour_are_found_in_three_hours(constant_s: float) -> None:
    runs = [drift_of(soak(seed, constant_s, slower_per_hour=0.1, wander=0.05)) for seed in range(20)]
    assert all("ttft_p50_ms" in run["found"] for run in runs)
    assert np.mean([run["measures"]["ttft_p50_ms"]["relative_per_hour"] for run in runs]) == pytest.approx(
        0.1, abs=0.01
    )
    held = [run["measures"]["ttft_p50_ms"]["ci95"] for run in runs]
    assert sum(low <= 25.0 <= high for low, high in held) >= 17


def test_a_line_is_told_with_its_ends_its_slope_and_its_share() -> None:
    at = np.arange(0.0, SECONDS, 0.5)
    c = run_of(at, 0.2 + 0.1 * at / SECONDS)
    found = drift_of(c)
    assert (found["reason"], found["bins"], found["bin_s"]) == (None, 60, 180.0)
    ttft = found["measures"]["ttft_p50_ms"]
    assert (ttft["at_start"], ttft["at_end"]) == pytest.approx((200, 300), rel=1e-3)
    assert ttft["per_hour"] == pytest.approx(100 / 3, rel=1e-3)
    assert ttft["relative_per_hour"] == pytest.approx(1 / 6, rel=1e-2)
    assert ttft["ci95"] == pytest.approx([100 / 3, 100 / 3], rel=1e-2)
    assert "ttft_p50_ms" in found["found"]
    assert found["client_rss_mib"] is None


def test_memory_that_grows_is_told_apart_from_memory_that_does_not() -> None:
    at = np.arange(0.0, SECONDS, 0.5)
    c = run_of(at, np.full(len(at), 0.2))
    rng = np.random.default_rng(0)
    minutes = np.arange(60.0, SECONDS, 300.0)
    memory = {
        "master": np.column_stack([minutes, 130 + rng.normal(0, 0.3, len(minutes))]).tolist(),
        "w1": np.column_stack(
            [minutes, 180 + minutes / 3600 * 12 + rng.normal(0, 0.3, len(minutes))]
        ).tolist(),
        "w2": [[60.0, 180.0]],
    }
    window = span(SECONDS)
    told = plain(drift(c, everybody(c, window), None, window, memory))["client_rss_mib"]
    assert set(told) == {"master", "w1"}
    assert not told["master"]["beyond_noise"]
    assert told["w1"]["beyond_noise"]
    assert told["w1"]["per_hour"] == pytest.approx(12, abs=1)


def test_tokens_goodput_and_errors_are_those_of_their_bins() -> None:
    at = np.arange(0.0, SECONDS, 0.5)
    late = at >= SECONDS / 2
    every_tenth = np.arange(len(at)) % 10 == 0
    outcome = np.where(every_tenth & late, FAILED, OK).astype(np.int8)
    measures = drift_of(run_of(at, np.where(late, 0.5, 0.1), outcome=outcome))["measures"]
    # Two answers of 50 tokens a second; errors and good ones step in the middle, so lines lie between.
    assert measures["output_tokens_per_s"]["at_start"] == pytest.approx(100, rel=0.01)
    assert measures["error_rate"]["at_start"] < 0.0 < 0.1 < measures["error_rate"]["at_end"]
    assert measures["goodput_ratio"]["at_start"] > 1.0 > 0.0 > measures["goodput_ratio"]["at_end"]
    assert measures["error_rate"]["relative_per_hour"] is None


def test_what_never_changes_has_a_drift_of_none() -> None:
    found = drift_of(run_of(np.arange(0.0, SECONDS, 0.5), 0.1))
    for measure in ("ttft_p50_ms", "ttft_p99_ms", "goodput_ratio", "error_rate"):
        assert found["measures"][measure]["ci95"] == [0.0, 0.0], measure
    assert found["found"] == []


def test_without_an_slo_goodput_has_no_drift() -> None:
    found = drift_of(run_of(np.arange(0.0, SECONDS, 0.5), 0.1), slo=None)
    assert found["measures"]["goodput_ratio"] is None
    assert set(found["measures"]) == set(MEASURES)


def test_hours_without_an_answer_are_no_samples() -> None:
    at = np.arange(0.0, SECONDS, 0.5)
    asked = (at < 4000) | (at > 8000)
    found = drift_of(run_of(at[asked], 0.1))
    assert 30 < found["measures"]["ttft_p50_ms"]["bins"] < 40
    assert found["measures"]["ttft_p50_ms"]["ci95"] == [0.0, 0.0]


def test_the_order_of_the_requests_changes_no_digit() -> None:
    random = np.random.default_rng(1)
    at, ttft_s = random.uniform(0, SECONDS, 7000), random.uniform(0.1, 0.3, 7000)
    order = random.permutation(7000)
    assert drift_of(run_of(at, ttft_s)) == drift_of(run_of(at[order], ttft_s[order]))


@pytest.mark.parametrize(
    ("seconds", "every", "window", "reason"),
    [
        (58.0, 0.1, span(58.0), "the window is 58 s long: drift needs at least 20 min"),
        (1200.0, 1.01, span(1200.0), "too few requests: 1189, 1200 are needed"),
        (
            SECONDS,
            1.0,
            Window(ns(0.0), ns(SECONDS), "", gaps=((ns(10.0), ns(20.0)),)),
            "the window has gaps: it is that of several runs or stages",
        ),
    ],
)
def test_a_run_that_can_tell_nothing_of_hours_says_why(
    seconds: float, every: float, window: Window, reason: str
) -> None:
    found = drift_of(run_of(np.arange(0.0, seconds, every), 0.1), window)
    assert found.pop("reason") == reason
    assert set(found.values()) == {None}
