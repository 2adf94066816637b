"""What a report says of a run's course, and where it says nothing."""

import numpy as np
from long_runs import everybody, run_of, span
from metrics_cases import failed, request
from report_cases import records, seen_worker, summary, told

from llm_locust.figures import drift, reliability, steadiness
from llm_locust.figures.drift import drift as drift_of
from llm_locust.figures.section import Section, Tone
from llm_locust.figures.summary import Summary, typed


def said(section: Section | None) -> list[str]:
    return [] if section is None else [line.text for line in section.lines]


def soak(slower_per_hour: float) -> Summary:
    """A summary whose drift is that of three hours of two requests a second."""
    random = np.random.default_rng(1)
    at = np.arange(0.0, 10_800.0, 0.5)
    ttft_s = 0.2 * np.exp(0.1 * random.standard_normal(len(at))) * (1 + slower_per_hour * at / 3600)
    c, window = run_of(at, ttft_s), span(10_800.0)
    drifting = drift_of(c, everybody(c, window), None, window)
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
    assert drift.show(told()) is None


def test_a_drift_is_named_and_each_line_has_its_interval() -> None:
    found = drift.show(soak(0.1))
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
    found = drift.show(soak(0.0))
    assert found is not None
    assert (said(found), found.lines[0].tone) == (["none beyond noise"], Tone.GOOD)
