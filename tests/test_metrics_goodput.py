"""Which requests are good, of all that were asked for."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from metrics_cases import columns, failed, request, requests

from llm_locust.metrics.goodput import LOST, OUTCOME, Limits, MeasuredFrom, goodput, judge
from llm_locust.metrics.latency import per_request, summarise_latency
from llm_locust.metrics.slo import Slo
from llm_locust.record import Outcome, RequestRecord


def of(
    *records: RequestRecord,
    slo: Slo,
    measured_from: MeasuredFrom = "sent",
    seconds: float = 10.0,
    lost: int | None = 0,
) -> dict[str, Any]:
    c = columns(*records)
    judged = np.flatnonzero(~c.cancelled)
    return goodput(judge(c, per_request(c), Limits(slo), measured_from), c, judged, seconds, lost=lost)


def good(record: RequestRecord, slo: Slo, measured_from: MeasuredFrom = "sent") -> bool:
    return bool(of(record, slo=slo, measured_from=measured_from)["ratio"])


def test_a_request_is_good_when_it_holds_every_limit_up_to_and_including_it() -> None:
    record = request(arrivals=(0.5, 0.55, 0.6))
    assert good(record, Slo(ttft_s=0.5, tpot_s=0.05, e2el_s=0.6))
    assert not good(record, Slo(ttft_s=0.499, tpot_s=0.05))
    assert not good(record, Slo(ttft_s=0.5, tpot_s=0.0499))
    assert not good(record, Slo(e2el_s=0.599))


def test_trap_12_goodput_is_of_all_requests_not_of_successes() -> None:
    """A server that rejects nine of ten and serves the tenth well."""
    result = of(request(), *(failed() for _ in range(9)), slo=Slo(ttft_s=1.0))
    assert result["ratio"] == pytest.approx(0.1)
    assert result["attainment"] == {"ttft": pytest.approx(0.1)}
    assert result["first_failed"] == {"ttft": 0, OUTCOME: 9, LOST: 0}


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


def test_rates_are_of_good_requests_and_their_tokens() -> None:
    result = of(request(), request(), request(arrivals=(5.0,)), slo=Slo(ttft_s=1.0), seconds=4.0)
    assert result["requests_per_s"] == pytest.approx(2 / 4)
    assert result["output_tokens_per_s"] == pytest.approx(6 / 4)
    assert result["slo"] == {"ttft": 1000.0}


def test_attainment_is_for_each_limit_alone() -> None:
    slow_start, slow_pace = request(arrivals=(0.9, 1.0)), request(arrivals=(0.1, 0.9))
    result = of(slow_start, slow_pace, request(), failed(), slo=Slo(ttft_s=0.5, tpot_s=0.2))
    assert result["attainment"] == {"ttft": 0.5, "tpot": 0.5}
    assert result["ratio"] == 0.25


def test_what_failed_first_is_first_in_time() -> None:
    slo = Slo(ttft_s=1.0, tpot_s=0.1, e2el_s=2.0)
    both = request(arrivals=(1.5, 5.0))  # ttft breaks at 1.0, tpot at 1.6, e2el at 2.0
    pace = request(arrivals=(0.5, 5.0))  # tpot breaks at 0.6
    end = request(arrivals=(0.9, 2.5), output_tokens=100)  # tpot holds
    result = of(both, pace, end, failed(), request(), slo=slo)
    assert result["first_failed"] == {"ttft": 1, "tpot": 1, "e2el": 1, OUTCOME: 1, LOST: 0}


@pytest.mark.parametrize(("tokens", "first"), [(6, "tpot"), (8, "e2el")])
def test_a_pace_breaks_when_the_answer_takes_longer_than_its_tokens_may(tokens: int, first: str) -> None:
    record = request(arrivals=(0.9, 3.0), output_tokens=tokens)  # due at 1.4 with 6 tokens, 1.6 with 8
    assert of(record, slo=Slo(tpot_s=0.1, e2el_s=1.5))["first_failed"][first] == 1


def test_without_an_slo_nothing_is_good_or_bad() -> None:
    result = goodput(None, columns(request()), np.array([0]), 10.0)
    assert result["ratio"] is None
    assert result["requests_per_s"] is None
    assert result["output_tokens_per_s"] is None
    assert result["attainment"] == result["slo"] == {}


def test_no_requests_have_no_share_and_an_empty_window_no_rate() -> None:
    result = of(slo=Slo(ttft_s=1.0))
    assert result["ratio"] is None
    assert result["attainment"] == {"ttft": None}
    assert of(request(), slo=Slo(ttft_s=1.0), seconds=0.0)["requests_per_s"] is None


def test_a_request_without_a_record_held_no_limit() -> None:
    result = of(request(), request(arrivals=(0.1, 3.0)), slo=Slo(ttft_s=1.0, tpot_s=1.0), lost=2)
    assert result["ratio"] == pytest.approx(1 / 4)
    assert result["attainment"] == {"ttft": pytest.approx(2 / 4), "tpot": pytest.approx(1 / 4)}
    assert result["first_failed"] == {"ttft": 0, "tpot": 1, OUTCOME: 0, LOST: 2}
    assert result["requests_per_s"] == pytest.approx(1 / 10)


def test_lost_requests_alone_have_a_share_and_it_is_none_of_them() -> None:
    result = of(slo=Slo(ttft_s=1.0), lost=5)
    assert (result["ratio"], result["attainment"]) == (0.0, {"ttft": 0.0})


def test_where_lost_requests_are_not_known_shares_are_of_the_recorded_ones() -> None:
    result = of(request(), failed(), slo=Slo(ttft_s=1.0), lost=None)
    assert result["ratio"] == 0.5
    assert result["first_failed"] == {"ttft": 0, OUTCOME: 1}


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
    judged = [r for r in records if r.outcome is not Outcome.CANCELLED]
    if not judged and not lost:
        assert result["ratio"] is None
        return
    good_ones = round(result["ratio"] * (len(judged) + lost))
    assert good_ones + sum(result["first_failed"].values()) == len(judged) + lost
    assert result["first_failed"][OUTCOME] == sum(r.outcome is not Outcome.OK for r in judged)
    assert result["ratio"] <= min(result["attainment"].values())


@given(st.lists(requests(), max_size=12), slos)
def test_from_scheduled_is_never_better_than_from_sent(records: list[RequestRecord], slo: Slo) -> None:
    sent, scheduled = of(*records, slo=slo), of(*records, slo=slo, measured_from="scheduled")
    assert sent["ratio"] is None or scheduled["ratio"] <= sent["ratio"]


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
    judged = np.flatnonzero(~c.cancelled)
    return goodput(judge(c, per_request(c), OWN, "sent"), c, judged, 10.0, lost=lost)


def labelled(slo_class: str, ttft_s: float) -> RequestRecord:
    return replace(request(arrivals=(ttft_s, ttft_s + 0.1)), slo_class=slo_class)


def test_a_class_with_limits_of_its_own_is_held_against_them_alone() -> None:
    assert of_classes(labelled("code", 0.15))["ratio"] == 0.0
    assert of_classes(labelled("chat", 0.15))["ratio"] == 1.0
    assert of_classes(labelled("batch", 99.0))["ratio"] == 1.0
    assert of_classes(labelled("code", 0.05))["ratio"] == 1.0


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


def test_attainment_is_of_those_that_have_the_limit() -> None:
    found = of_classes(
        labelled("code", 0.15), labelled("chat", 0.15), labelled("chat", 9.0), labelled("batch", 99.0)
    )
    assert found["attainment"] == {"ttft": pytest.approx(1 / 3), "e2el": 0.5}
    assert found["ratio"] == 0.5
    assert found["first_failed"] == {"ttft": 2, "e2el": 0, OUTCOME: 0, LOST: 0}
    assert of_classes(labelled("batch", 1.0))["attainment"] == {"ttft": None, "e2el": None}
