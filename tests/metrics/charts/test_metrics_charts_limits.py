"""Goodput at any limit: the curves go through what the summary says at the limits of the SLO."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from metrics_cases import batch, columns, failed, manifest, request, requests

from llm_locust.core.record import RequestRecord
from llm_locust.figures.charts.limits import LimitedRun, limit_curve, limit_surface
from llm_locust.figures.summarise import summarise
from llm_locust.metrics.columns import Part
from llm_locust.metrics.gates import Slo
from llm_locust.metrics.measured import measure
from llm_locust.metrics.question import Question
from llm_locust.metrics.requests.goodput import Limits, Missing, goodput, judge
from llm_locust.metrics.requests.latency import MeasuredFrom, per_request

SLO = Slo(ttft_s=0.1, tpot_s=0.03, e2el_s=1.0)


def limited(c: Part, slo: Slo = SLO, lost: int = 0, measured_from: MeasuredFrom = "sent") -> LimitedRun:
    values = per_request(c)
    judgement = judge(c, values, Limits(slo), measured_from) if slo else None
    judged = np.flatnonzero(~c.cancelled)
    ok, cancelled = np.flatnonzero(c.ok), np.flatnonzero(c.cancelled)
    return LimitedRun(c, values, judgement, measured_from, ok, len(judged) + lost, cancelled)


def run() -> Part:
    """Twenty answers with a TTFT of 10, 20 .. 200 ms and a pace of 10, 15 .. 105 ms; five failures."""
    made = [
        request(i * 0.1, tuple((i + 1) * 0.01 + k * (0.01 + 0.005 * i) for k in range(3))) for i in range(20)
    ]
    return columns(*made, *(failed(3.0) for _ in range(5)))


def test_a_limit_alone_is_held_by_the_share_at_or_below_it() -> None:
    curve = limit_curve(limited(run()), "ttft")
    assert curve is not None
    ttft = np.arange(1, 21) * 0.01
    assert curve.alone == pytest.approx([(ttft <= limit_s + 1e-12).sum() / 25 for limit_s in curve.limits_s])
    assert (curve.alone[0], curve.alone[-1]) == (1 / 25, 20 / 25)


def test_failed_and_lost_requests_hold_no_limit_however_wide() -> None:
    curve = limit_curve(limited(run(), lost=15), "tpot")
    assert curve is not None
    assert curve.alone[-1] == 20 / 40


@given(st.lists(requests(), min_size=1, max_size=30), st.sampled_from(["sent", "scheduled"]))
def test_at_the_limits_of_the_slo_every_curve_says_what_the_summary_does(
    made: list[RequestRecord], measured_from: MeasuredFrom
) -> None:
    c = columns(*made)
    found = limited(c, lost=2, measured_from=measured_from)
    said = goodput(found.judgement, c, np.arange(len(c)), Missing(lost=2))
    for metric in ("ttft", "tpot", "e2el"):
        curve = limit_curve(found, metric)
        if curve is not None:
            (place,) = np.flatnonzero(curve.limits_s == found.limit_s(metric))
            assert curve.alone[place] == pytest.approx(said["attainment"][metric])
            assert curve.good[place] == pytest.approx(said["ratio"])
    surface = limit_surface(found)
    if surface is not None:
        cell = np.searchsorted(surface.tpot_s, 0.03), np.searchsorted(surface.ttft_s, 0.1)
        assert surface.good[cell] == pytest.approx(said["ratio"])


@given(st.lists(requests(), min_size=1, max_size=30))
def test_wider_limits_are_never_held_by_fewer(made: list[RequestRecord]) -> None:
    found = limited(columns(*made))
    for curve in (limit_curve(found, metric) for metric in ("ttft", "tpot", "e2el")):
        if curve is not None:
            assert (np.diff(curve.alone) >= 0).all()
            assert (np.diff(curve.good) >= 0).all()
            if curve.metric != "tpot" or not found.unpaced.any():  # who cannot be judged by it may be good
                assert (curve.good <= curve.alone).all()
    surface = limit_surface(found)
    if surface is not None:
        assert (np.diff(surface.good, axis=0) >= 0).all()
        assert (np.diff(surface.good, axis=1) >= 0).all()


def test_without_an_slo_the_curves_are_of_each_limit_alone() -> None:
    curve = limit_curve(limited(run(), Slo()), "e2el")
    assert curve is not None
    assert curve.limit_s is None
    assert curve.good == pytest.approx(curve.alone)


def test_an_answer_of_one_token_breaks_no_limit_of_pace() -> None:
    c = columns(request(0.0, (0.05,)), request(0.0, (0.05, 0.5)))
    curve = limit_curve(limited(c, Slo()), "tpot")
    assert curve is not None
    assert curve.alone.tolist() == [1.0]
    assert limit_curve(limited(columns(request(0.0, (0.05,))), Slo()), "tpot") is None


def test_the_curve_of_a_run_is_that_of_its_summary() -> None:
    made = [request(i * 0.1, (0.01 * i + 0.01, 0.5), late=0.02) for i in range(40)]
    rows, facts = batch(*made), manifest(open_loop=True, slo="ttft=200ms")
    m = measure(rows, facts, Question(slo="ttft=200ms", warmup_s=0.0))
    found = LimitedRun(m.c, m.values, m.judgement, "scheduled", np.arange(40), 40, np.arange(0))
    curve = limit_curve(found, "ttft")
    assert curve is not None
    (place,) = np.flatnonzero(curve.limits_s == 0.2)
    assert curve.good[place] == summarise(rows, facts)["goodput"]["ratio"] == 18 / 40


def test_a_limit_that_differs_between_classes_is_no_line_of_the_curve() -> None:
    c = columns(request(0.0, (0.05, 0.06), slo_class="fast"), request(0.0, (0.2, 0.3), slo_class="slow"))
    values = per_request(c)
    limits = Limits(Slo(ttft_s=0.1), {"slow": Slo(ttft_s=0.5, tpot_s=0.05)})
    found = LimitedRun(c, values, judge(c, values, limits, "sent"), "sent", np.arange(2), 2, np.arange(0))
    curve = limit_curve(found, "ttft")
    assert curve is not None
    assert curve.limit_s is None
    assert (curve.alone[-1], curve.good[-1]) == (1.0, 0.5)
    assert curve.others == ("tpot",)
