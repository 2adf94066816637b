"""Which requests are good, of all that were asked for, and how sure that is."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from metrics_cases import batch, columns, failed, manifest, ns, request, requests, summarise_latency

from llm_locust.core.record import Doubt, Outcome, RequestRecord
from llm_locust.metrics.limits import Slo
from llm_locust.metrics.measured import measure
from llm_locust.metrics.question import Question
from llm_locust.metrics.requests.judgement import (
    ABANDONED,
    LOST,
    OUTCOME,
    STUCK,
    UNSENT,
    Limits,
    Missing,
    good_rates,
    goodput,
    goodput_intervals,
    judge,
)
from llm_locust.metrics.requests.latency import MeasuredFrom, per_request
from llm_locust.metrics.requests.rates import Credits
from llm_locust.metrics.stats.bootstrap import CELLS
from llm_locust.metrics.stats.trend import student_t
from llm_locust.metrics.window import Window


def of(
    *records: RequestRecord,
    slo: Slo,
    measured_from: MeasuredFrom = "sent",
    seconds: float = 10.0,
    lost: int | None = 0,
    unsent: int | None = 0,
) -> dict[str, Any]:
    """Of requests that are all scheduled in the window, which begins with the first."""
    c, all_ = columns(*records), np.arange(len(records))
    judgement = judge(c, per_request(c), Limits(slo), measured_from)
    rates = good_rates(judgement, Credits.of(c, Window(ns(0.0), ns(seconds), "")), all_)
    return goodput(judgement, c, all_, Missing(lost, unsent)) | rates


def good(record: RequestRecord, slo: Slo, measured_from: MeasuredFrom = "sent") -> bool:
    return bool(of(record, slo=slo, measured_from=measured_from)["ratio"])


def test_a_request_is_good_when_it_holds_every_limit_up_to_and_including_it() -> None:
    record = request(arrivals=(0.5, 0.55, 0.6))
    assert good(record, Slo(ttft_s=0.5, tpot_s=0.05, e2el_s=0.6))
    assert not good(record, Slo(ttft_s=0.499, tpot_s=0.05))
    assert not good(record, Slo(ttft_s=0.5, tpot_s=0.0499))
    assert not good(record, Slo(e2el_s=0.599))


def test_tokens_of_good_answers_that_nobody_counted_are_unknown_and_not_0() -> None:
    found = of(request(0.0, (), ended=1.0, streamed=False, output_tokens=None), slo=Slo(e2el_s=2.0))
    assert (found["requests_per_s"], found["output_tokens_per_s"]) == (pytest.approx(0.1), None)
    assert of(failed(1.0), slo=Slo(e2el_s=2.0))["output_tokens_per_s"] == 0.0, "without an answer it is known"


def test_trap_19_an_open_loop_is_measured_from_scheduled_a_closed_one_from_sent() -> None:
    late = request(arrivals=(0.1, 0.2), late=2.0)
    for slo in (Slo(ttft_s=1.0), Slo(e2el_s=1.0), Slo(ttfo_s=1.0)):
        assert good(late, slo, "sent")
        assert not good(late, slo, "scheduled")
    assert not good(late, Slo(ttft_scheduled_s=1.0), "sent")
    assert good(late, Slo(tpot_s=0.1), "scheduled")


def test_what_is_not_defined_fails_its_limit_but_the_pace_of_one_token_holds() -> None:
    whole = request(arrivals=(), ended=0.1, streamed=False, output_tokens=5)
    assert not good(whole, Slo(ttft_s=9.0))
    assert not good(whole, Slo(tpot_s=9.0))
    assert good(whole, Slo(e2el_s=9.0))
    assert good(request(arrivals=(0.1,)), Slo(tpot_s=0.01))
    assert not good(request(first_answer_ns=None), Slo(ttfo_s=9.0))


def test_without_an_slo_nothing_is_good_or_bad() -> None:
    c = columns(request())
    result = goodput(None, c, np.array([0])) | good_rates(
        None, Credits.of(c, Window(ns(0.0), ns(10.0), "")), np.array([0])
    )
    assert result["ratio"] is result["judged"] is None
    assert result["requests_per_s"] is None
    assert result["output_tokens_per_s"] is None
    assert result["attainment"] == result["slo"] == {}


def test_no_requests_have_no_share_and_an_empty_window_no_rate() -> None:
    result = of(slo=Slo(ttft_s=1.0))
    assert result["ratio"] is None
    assert result["attainment"] == {"ttft": None}
    assert of(request(), slo=Slo(ttft_s=1.0), seconds=0.0)["requests_per_s"] is None


def test_lost_requests_alone_have_a_share_and_it_is_none_of_them() -> None:
    result = of(slo=Slo(ttft_s=1.0), lost=5)
    assert (result["ratio"], result["attainment"]) == (0.0, {"ttft": 0.0})


def test_where_lost_requests_are_not_known_shares_are_of_the_recorded_ones() -> None:
    result = of(request(), failed(), slo=Slo(ttft_s=1.0), lost=None)
    assert result["ratio"] == 0.5
    assert result["first_failed"] == {"ttft": 0, OUTCOME: 1, ABANDONED: 0, UNSENT: 0, STUCK: 0}


slos = st.builds(
    Slo,
    ttft_s=st.none() | st.sampled_from([0.001, 0.3, 2.0]),
    tpot_s=st.none() | st.sampled_from([0.001, 0.1, 0.5]),
    e2el_s=st.none() | st.sampled_from([0.001, 1.0, 5.0]),
).filter(bool)


@given(st.lists(requests(), max_size=12), slos, st.sampled_from(["sent", "scheduled"]), st.integers(0, 5))
def test_shares_and_counts_fit_together(
    records: list[RequestRecord], slo: Slo, base: MeasuredFrom, lost: int
) -> None:
    result = of(*records, slo=slo, measured_from=base, lost=lost)
    ended = [r for r in records if r.outcome is not Outcome.CANCELLED]
    assert len(ended) + lost <= result["judged"] <= len(records) + lost
    if not result["judged"]:
        assert result["ratio"] is None
        return
    good_ones = round(result["ratio"] * result["judged"])
    assert good_ones + sum(result["first_failed"].values()) == result["judged"]
    assert result["first_failed"][OUTCOME] == sum(r.outcome is not Outcome.OK for r in ended)
    if not any(result["not_judged"].values()):  # the good ones hold every limit that judges them
        assert all(result["ratio"] <= share for share in result["attainment"].values() if share is not None)


@given(st.lists(requests(), min_size=1, max_size=12), slos)
def test_bad_by_the_delay_are_ok_requests_that_are_good_from_sent_alone(
    records: list[RequestRecord], slo: Slo
) -> None:
    c = columns(*records)
    sent, scheduled = (judge(c, per_request(c), Limits(slo), start) for start in ("sent", "scheduled"))
    assert not sent.by_delay.any()
    assert (scheduled.by_delay & c.ok).tolist() == (c.ok & sent.good & ~scheduled.good).tolist()


@given(st.lists(requests(), min_size=1, max_size=12), st.integers(1, 6000))
def test_attainment_is_the_adjusted_distribution_at_the_limit(records: list[RequestRecord], ms: int) -> None:
    records = [replace(r, streamed=True, arrivals_ns=np.array([7_000_000])) for r in records]
    records = [r for r in records if r.sent_ns is not None and r.outcome is not Outcome.CANCELLED]
    share = of(*records, slo=Slo(ttft_s=ms / 1000))["attainment"]["ttft"]
    ok = [0.007 for r in records if r.outcome is Outcome.OK]
    adjusted = summarise_latency(np.array(ok), failed=len(records) - len(ok))
    if records:
        assert share == pytest.approx((len(ok) if ms >= 7 else 0) / adjusted["n"])


OWN = Limits(Slo(ttft_s=0.2, e2el_s=5.0), {"code": Slo(ttft_s=0.1), "batch": Slo()})


def of_classes(*records: RequestRecord, lost: int | None = 0) -> dict[str, Any]:
    c = columns(*records)
    return goodput(judge(c, per_request(c), OWN, "sent"), c, np.arange(len(c)), Missing(lost))


def labelled(slo_class: str, ttft_s: float) -> RequestRecord:
    return replace(request(arrivals=(ttft_s, ttft_s + 0.1)), slo_class=slo_class)


def test_a_class_with_limits_of_its_own_is_held_against_them_alone() -> None:
    assert of_classes(labelled("code", 0.15))["ratio"] == 0.0
    assert of_classes(labelled("chat", 0.15))["ratio"] == 1.0
    assert of_classes(labelled("batch", 99.0))["ratio"] == 1.0
    assert of_classes(labelled("code", 0.05))["ratio"] == 1.0


def test_there_are_limits_where_the_run_or_one_of_its_classes_has_some() -> None:
    assert not Limits(Slo(), {"chat": Slo()})
    assert Limits(Slo(), {"chat": Slo(), "code": Slo(ttft_s=1.0)})
    assert Limits(Slo(ttft_s=1.0), {"chat": Slo()})


def test_what_every_request_is_held_against_is_the_slo_where_classes_differ_each_is_told() -> None:
    assert of_classes(labelled("code", 0.1))["slo"] == {"ttft": 100.0}
    assert of_classes(labelled("code", 0.1))["slo_by_class"] == {}
    several = of_classes(labelled("code", 0.1), labelled("chat", 0.1), labelled("batch", 0.1))
    assert several["slo"] == {"ttft": 200.0, "e2el": 5000.0}
    assert several["slo_by_class"] == {
        "batch": {},
        "chat": {"ttft": 200.0, "e2el": 5000.0},
        "code": {"ttft": 100.0},
    }


def cut(at: float, arrivals: tuple[float, ...] = (), *, when: float = 10.0, **fields: Any) -> RequestRecord:
    """A request that the run's end cut ``when`` seconds after the start."""
    return request(at, arrivals, ended=when, outcome=Outcome.CANCELLED, **fields)


@pytest.mark.parametrize(
    ("record", "slo", "first"),
    [
        (cut(8.0), Slo(ttft_s=1.0), "ttft"),  # two seconds without a token
        (cut(9.5), Slo(ttft_s=1.0), None),
        (cut(8.0, (1.5,)), Slo(ttft_s=1.0), "ttft"),  # a token, but late
        (cut(8.0, (0.5,)), Slo(ttft_s=1.0), None),
        (cut(8.0, (0.5,)), Slo(ttft_s=1.0, e2el_s=1.9), "e2el"),
        (cut(8.0, (0.5,)), Slo(e2el_s=2.1), None),
        (cut(8.0, (0.5, 0.6), first_answer_ns=None), Slo(ttfo_s=1.0), "ttfo"),  # reasoning only
        (cut(8.0, (0.5, 0.6), asked_output_tokens=11), Slo(tpot_s=0.14), "tpot"),  # 1.5 s for 10 gaps
        (cut(8.0, (0.5, 0.6), asked_output_tokens=11), Slo(tpot_s=0.16), None),
        (cut(8.0, (0.5, 0.6)), Slo(tpot_s=0.7), "tpot"),  # a third token, now, would make it 0.75
        (cut(8.0, (0.5, 0.6)), Slo(tpot_s=0.8), None),
        (cut(8.0), Slo(tpot_s=0.1), None),
        (cut(8.0, (0.5,)), Slo(), None),
    ],
)
def test_a_cut_request_is_bad_where_it_had_broken_a_limit_and_else_in_no_share(
    record: RequestRecord, slo: Slo, first: str | None
) -> None:
    result = of(request(0.0, (0.01,)), record, slo=slo or Slo(e2el_s=99.0))
    assert result["judged"] == (1 if first is None else 2)
    assert result["ratio"] == (1.0 if first is None else 0.5)
    assert result["first_failed"].get(first or "", 0) == (0 if first is None else 1)


def test_a_request_that_was_cut_before_it_was_sent_counts_from_started_in_place_of_sent() -> None:
    waiting = cut(5.0, sent=False)
    assert of(waiting, slo=Slo(ttft_s=1.0), measured_from="scheduled")["ratio"] == 0.0
    assert of(waiting, slo=Slo(ttft_scheduled_s=1.0))["ratio"] == 0.0
    assert of(waiting, slo=Slo(ttft_s=1.0))["ratio"] == 0.0
    assert of(waiting, slo=Slo(ttft_s=30.0))["ratio"] is None


@pytest.mark.parametrize(
    ("first", "slo", "measured_from"),
    [
        ("e2el", Slo(ttft_s=4.0, e2el_s=1.0), "scheduled"),
        ("e2el", Slo(ttft_s=4.0, e2el_s=1.0), "sent"),
        ("ttft", Slo(ttft_s=0.5, e2el_s=1.0), "scheduled"),
        ("e2el_scheduled", Slo(ttft_s=4.0, e2el_scheduled_s=1.0), "sent"),
        ("ttft_started", Slo(ttft_started_s=0.5, e2el_s=1.0), "sent"),
        ("e2el", Slo(ttft_started_s=4.0, e2el_s=1.0), "scheduled"),
    ],
)
def test_of_a_request_that_was_never_sent_the_limit_that_broke_first_is_named_too(
    first: str, slo: Slo, measured_from: MeasuredFrom
) -> None:
    assert of(cut(5.0, sent=False), slo=slo, measured_from=measured_from)["first_failed"][first] == 1


def test_a_limit_that_counts_from_started_breaks_sooner_by_the_time_that_connecting_took() -> None:
    record = replace(request(0.0, (2.0, 3.0), late=0.7), started_ns=ns(0.2))  # 0.5 s to connect
    for ttft_s, first in ((1.4, "ttft_started"), (1.6, "e2el")):  # after sent: 0.9 or 1.1 against 1.0
        assert of(record, slo=Slo(ttft_started_s=ttft_s, e2el_s=1.0))["first_failed"][first] == 1


@pytest.mark.parametrize("slo", [Slo(ttft_s=1.0), Slo(tpot_s=1.0), Slo(e2el_s=9.0)])
def test_who_leaves_without_a_token_was_not_served_whatever_the_limits(slo: Slo) -> None:
    patient, hasty = cut(0.0, when=3.0, abandoned=True), cut(0.0, when=0.5, abandoned=True)
    result = of(request(), patient, hasty, slo=slo)
    assert (result["ratio"], result["judged"]) == (1 / 3, 3)
    (limit,) = slo.limits
    assert result["first_failed"] == {limit: 0, OUTCOME: 0, ABANDONED: 2, LOST: 0, UNSENT: 0, STUCK: 0}


def test_who_leaves_is_in_the_attainment_of_a_limit_only_if_it_had_passed() -> None:
    patient, hasty = cut(0.0, when=3.0, abandoned=True), cut(0.0, when=0.5, abandoned=True)
    assert of(request(), patient, hasty, slo=Slo(ttft_s=1.0))["attainment"] == {"ttft": 0.5}


@pytest.mark.parametrize("doubt", list(Doubt))
def test_an_answer_that_is_not_what_was_asked_for_is_not_good_however_fast(doubt: Doubt) -> None:
    fast, slow = request(arrivals=(0.1, 0.2), doubt=doubt), request(arrivals=(0.9, 1.0), doubt=doubt)
    found = of(request(), fast, slow, failed(), slo=Slo(ttft_s=0.5))
    bad = doubt is not Doubt.UNKNOWN_FINISH_REASON  # which may be a good end that nobody knows
    assert found["ratio"] == (0.25 if bad else 0.5)
    assert found["attainment"] == {"ttft": 0.5}, "the limit itself was met"
    named = {doubt.value: 1} if bad else {}
    missing = {LOST: 0, UNSENT: 0, STUCK: 0}
    assert found["first_failed"] == {"ttft": 1, OUTCOME: 1, ABANDONED: 0, **named, **missing}
    assert found["requests_per_s"] == pytest.approx(0.1 if bad else 0.2)


N = 2 * CELLS


#: What is the same in each cell leaves one degree of freedom less than cells.
T = student_t(CELLS - 1, 0.95)


#: Two a second: one that is answered within the second, and one that fails.
HALF = [each for at in range(CELLS) for each in (request(at + 0.1), failed(at + 0.6))]


def of_of_goodput_intervals(
    *records: RequestRecord, slo: str = "ttft=1s", missing: int = 0
) -> dict[str, Any]:
    """In a window that has a cell for each second."""
    rows = batch(*records)
    window = Window(ns(0.0), ns(float(CELLS)), "")
    m = measure(rows, manifest(), Question(slo=slo, window=window))
    return goodput_intervals(
        m.judgement, m.c, m.credits, m.population(np.arange(len(m.c))).all, np.arange(len(m.c)), missing
    )


def own_error(share: float, end: float, n: int) -> float:
    """How many errors of its own an end is away from a share, with half a sample for continuity."""
    return (abs(share - end) - 0.5 / n) / math.sqrt(end * (1 - end) / n)


@pytest.mark.parametrize("missing", [0, CELLS])
def test_a_ratio_that_is_the_same_all_along_is_worth_all_of_its_requests(missing: int) -> None:
    found = of_of_goodput_intervals(*HALF, missing=missing)
    n = N + missing
    assert found["n_effective"] == {"ratio": n}
    low, high = found["ci95"]["ratio"]
    assert low < CELLS / n < high
    assert [own_error(CELLS / n, end, n) for end in (low, high)] == pytest.approx([T, T])


def test_rates_that_are_the_same_all_along_have_an_interval_of_no_width() -> None:
    ends = of_of_goodput_intervals(*HALF)["ci95"]
    assert ends["requests_per_s"] == pytest.approx([1.0, 1.0])
    assert ends["output_tokens_per_s"] == pytest.approx([3.0, 3.0])


def test_where_all_failed_the_ratio_may_be_as_high_as_none_of_so_many_allow() -> None:
    found = of_of_goodput_intervals(*(failed(0.5 * at) for at in range(N)))
    assert found["n_effective"] == {"ratio": N}
    low, high = found["ci95"]["ratio"]
    assert low == 0.0
    assert own_error(0.0, high, N) == pytest.approx(T)
    assert found["ci95"]["requests_per_s"] is found["ci95"]["output_tokens_per_s"] is None


UNKNOWN = {
    "ci95": dict.fromkeys(("ratio", "requests_per_s", "output_tokens_per_s")),
    "n_effective": {"ratio": None},
}


@pytest.mark.parametrize(
    ("records", "slo"),
    [
        (HALF, ""),
        ([request()], "ttft=1s"),
        ([request(1.0, (), ended=1.1, outcome=Outcome.CANCELLED)], "ttft=1s"),
    ],
    ids=["no SLO", "one request", "none that is judged"],
)
def test_without_requests_that_can_be_told_apart_nothing_is_known(
    records: list[RequestRecord], slo: str
) -> None:
    assert of_of_goodput_intervals(*records, slo=slo) == UNKNOWN


def test_a_ratio_of_too_few_requests_has_a_size_and_no_interval() -> None:
    found = of_of_goodput_intervals(*HALF[:40])
    assert found["n_effective"]["ratio"] == 40
    assert found["ci95"]["ratio"] is None
