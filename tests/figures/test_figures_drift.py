"""Whether a long run got slower or worse, and what a report says of its course."""

from typing import Any

import numpy as np
import pytest
from metrics_cases import everybody, failed, ns, plain, request, run_of, span, wandering
from report_cases import records, seen_worker, summary, told
from summaries import typed

from llm_locust.core.record import Outcome
from llm_locust.figures import reliability, steadiness
from llm_locust.figures.steadiness import MEASURES, drift
from llm_locust.figures.summary import Summary
from llm_locust.figures.text import Section, Tone
from llm_locust.metrics.columns import OUTCOMES, Columns
from llm_locust.metrics.limits import Slo
from llm_locust.metrics.requests.judgement import Limits, judge
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


def said(section: Section | None) -> list[str]:
    return [] if section is None else [line.text for line in section.lines]


def soaked_summary(slower_per_hour: float) -> Summary:
    """A summary whose drift is that of three hours of two requests a second."""
    random = np.random.default_rng(1)
    at = np.arange(0.0, 10_800.0, 0.5)
    ttft_s = 0.2 * np.exp(0.1 * random.standard_normal(len(at))) * (1 + slower_per_hour * at / 3600)
    c, window = run_of(at, ttft_s), span(10_800.0)
    drifting = drift(c, everybody(c, window), None, window)
    return typed({**summary(workers=[seen_worker()]), "drift": drifting})


def test_a_run_without_a_warm_up_or_of_too_few_requests_says_nothing_of_one() -> None:
    assert steadiness.show(told()) is None


def test_a_warm_up_and_a_run_that_does_not_settle_are_warnings_with_their_reason() -> None:
    for beginning in (
        {"settled": True, "warmup_like": True, "reason": "use --warmup 12s"},
        {"settled": False, "warmup_like": None, "reason": "not settled"},
    ):
        found = steadiness.show(told(steadiness={**summary()["steadiness"], **beginning}))
        assert found is not None
        assert (said(found), found.lines[0].tone) == ([beginning["reason"]], Tone.WARN)


def test_where_nothing_failed_and_answers_kept_coming_there_is_no_reliability() -> None:
    assert reliability.show(typed(summary(records(bad=0)))) is None
    assert reliability.show(typed(summary([]))) is None


def test_a_run_with_failures_says_how_often_somebody_was_served() -> None:
    made = [request(float(i) / 4, (0.05, 0.1)) for i in range(16)] + [failed(5.0)]
    assert said(reliability.show(typed(summary(made)))) == [
        "80.0 % of 5 seconds had an ok answer, 80.0 % a good one",
        "longest without an ok answer 6.15 s, from 3.85 s on",
    ]
    assert said(reliability.show(typed(summary(made, slo=""))))[0] == "80.0 % of 5 seconds had an ok answer"


def test_the_longest_span_without_a_good_answer_stands_apart_where_it_is_another() -> None:
    at = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.5, 7.5, 8.5)
    made = [request(t, (0.05 if t < 5 else 0.5, 0.6), output_tokens=13) for t in at]
    assert said(reliability.show(typed(summary([*made, failed(9.5)]))))[1] == (
        "longest without an ok answer 1.50 s, from 5.60 s on · "
        "longest without a good one 5.40 s, from 4.60 s on"
    )


def test_an_interruption_is_told_where_chance_does_not_explain_it() -> None:
    broken = [request(i / 4, (0.05, 0.1)) for i in range(40) if not 8 <= i < 32]
    rare = [request(at, (0.05, 0.1)) for at in (0.0, 6.0)]
    assert "6.25 s, from 1.85 s on" in said(reliability.show(typed(summary(broken))))[1]
    assert reliability.show(typed(summary(rare))) is None


def test_requests_that_were_sent_again_are_told() -> None:
    made = [*records(bad=0), request(9.9, retries=2)]
    assert said(reliability.show(typed(summary(made))))[-1] == (
        "1 request sent again, 2 times in all: a pooled connection was stale"
    )


def test_a_short_run_has_no_drift() -> None:
    assert steadiness.show_drift(told()) is None


def test_a_drift_is_named_and_each_line_has_its_interval() -> None:
    found = steadiness.show_drift(soaked_summary(0.1))
    assert found is not None
    assert found.table is not None
    (headline,) = found.lines
    assert (headline.text, headline.tone) == ("beyond noise: TTFT p50, TTFT p99", Tone.WARN)
    cells = {row.cells[0]: row.cells[1:] for row in found.table.rows}
    assert list(cells) == ["TTFT p50, ms", "TTFT p99, ms", "errors, %", "output tokens/s"]
    start, end, slope, interval, relative = cells["TTFT p50, ms"]
    assert (start, end, slope, relative) == ("200", "260", "+20.0", "+10.0 %")
    low, high = interval.split(" .. ")
    assert 18 < float(low) < 20 < float(high) < 22
    assert cells["errors, %"] == ("0", "0", "0", "0 .. 0", "")
    assert [row.tone for row in found.table.rows] == [Tone.WARN, Tone.WARN, Tone.PLAIN, Tone.PLAIN]
    assert "60 bins of 3 min 0 s" in found.notes[0].text
    assert found.notes[1].text == "memory of a worker: at most 120 MiB; not recorded over time"


def test_a_long_run_that_did_not_change_says_so() -> None:
    found = steadiness.show_drift(soaked_summary(0.0))
    assert found is not None
    assert (said(found), found.lines[0].tone) == (["none beyond noise"], Tone.GOOD)
