"""Replicas, GPUs and cost for a rate, beside sums made by hand."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from llm_locust.figures.bottleneck import (
    Capacity,
    NoCapacityError,
    capacity_of_law,
    capacity_under_slo,
    need,
    replicas_at_once,
)
from llm_locust.figures.curve import UslFigures, UslParameter
from llm_locust.figures.edge import SearchResult
from llm_locust.figures.objective import Probe, ProbeReading

FIFTY = Capacity(50.0, 40.0, 60.0, "measured")


def test_a_rate_needs_the_replicas_of_the_lower_end_and_the_spare_ones() -> None:
    found = need(FIFTY, 200.0, measured_replicas=2, spare=1, gpus_per_replica=4, gpu_hour_price=2.5)
    # 40 requests/s of 2 replicas: 20 each, so 10 and one spare; 60 would be 30 each, so 7 and one.
    assert (found.replicas, found.fewest, found.most) == (11, 8, 11)
    assert found.used == pytest.approx(200 / (11 * 20))
    assert found.used_after_loss == pytest.approx(1.0)
    assert (found.gpus, found.cost_per_hour) == (44, 110.0)
    assert found.cost_per_million == pytest.approx(110.0 / (200 * 3600) * 1e6)


def test_without_a_spare_replica_the_loss_of_one_is_more_than_the_others_take() -> None:
    found = need(FIFTY, 200.0, measured_replicas=2, spare=0)
    assert found.replicas == 10
    assert found.used_after_loss > 1
    alone = need(FIFTY, 10.0, spare=0)
    assert (alone.replicas, alone.used_after_loss) == (1, math.inf)
    assert (alone.gpus, alone.cost_per_hour, alone.cost_per_million) == (None, None, None)


def test_a_rate_that_just_fits_needs_no_replica_more() -> None:
    assert need(Capacity(0.1, 0.1, 0.1, ""), 0.3, spare=0).replicas == 3


def test_a_search_of_rates_gives_its_answer_with_the_interval_or_the_bound() -> None:
    found = capacity_under_slo(
        SearchResult("", load=50.0, low=48.0, high=53.0, limit="goodput"), [], "rate", [], 0.95
    )
    assert (found.rate, found.low, found.high, found.is_bound) == (50.0, 48.0, 53.0, False)
    found = capacity_under_slo(SearchResult("", at_least=64.0), [], "rate", [], 0.95)
    assert (found.rate, found.low, found.is_bound) == (64.0, None, True)
    with pytest.raises(NoCapacityError, match="less than 4; measure lower loads"):
        capacity_under_slo(SearchResult("", at_most=4.0), [], "rate", [], 0.95)
    with pytest.raises(NoCapacityError, match="no stage with a result has 3 users"):
        capacity_under_slo(SearchResult("", load=3.0, low=3.0, high=3.0), [], "users", [], 0.95)


def test_an_edge_without_an_interval_is_planned_by_the_loads_that_held_and_broke() -> None:
    shown = [
        Probe(load, (ProbeReading(hits, 900, 900.0),)) for load, hits in ((10.0, 900), (20.0, 899), (40.0, 9))
    ]
    edge = SearchResult("", load=31.0, limit="goodput")
    found = capacity_under_slo(edge, [], "rate", shown, 0.95)
    assert (found.sure, found.high, found.is_bracket) == (20.0, 40.0, True)
    with pytest.raises(NoCapacityError, match="no load is shown to hold"):
        capacity_under_slo(edge, [], "rate", shown[2:], 0.95)


def test_a_load_that_held_above_one_that_broke_is_not_planned_with() -> None:
    hits = {10.0: 900, 20.0: 9, 30.0: 900, 40.0: 9}
    shown = [Probe(load, (ProbeReading(n, 900, 900.0),)) for load, n in hits.items()]
    edge = SearchResult("", load=31.0, limit="goodput")
    found = capacity_under_slo(edge, [], "rate", shown, 0.95)
    assert (found.sure, found.high) == (10.0, 40.0), "from below all that broke to above all that held"
    with pytest.raises(NoCapacityError, match="not resolved: 30 held the SLO and 20 broke it"):
        capacity_under_slo(edge, [], "rate", shown[1:], 0.95)


def figures(plateau: float | None, peak: float | None, measured_to: float) -> UslFigures:
    def told(value: float | None) -> UslParameter:
        return UslParameter(value=value, ci95=[value, value])

    return UslFigures(
        gamma=told(1.0),
        alpha=told(0.1),
        beta=told(0.01),
        peak=told(peak),
        plateau=told(plateau),
        residual=0.01,
        measured_to=measured_to,
    )


def test_a_plateau_beyond_what_was_measured_is_called_a_model() -> None:
    assert not capacity_of_law(figures(20.0, 30.0, 40.0)).is_model
    assert capacity_of_law(figures(20.0, 50.0, 40.0)).is_model
    assert capacity_of_law(figures(20.0, None, 40.0)).is_model
    with pytest.raises(NoCapacityError, match="no plateau yet"):
        capacity_of_law(figures(None, None, 40.0))


def test_all_repeats_of_the_highest_load_that_holds_make_the_rate() -> None:
    def stage(users: float, rate: float) -> Any:
        part = SimpleNamespace(
            requests_per_s=rate, intervals=lambda: {"requests_per_s": (rate - 1, rate + 1)}
        )
        return SimpleNamespace(asked=users, is_result=True, figures=SimpleNamespace(throughput=part))

    answer = SearchResult("", load=8.0, low=8.0, high=9.0)
    found = capacity_under_slo(
        answer, [stage(4, 10), stage(8, 20), stage(8, 26), stage(8, 23)], "users", [], 0.95
    )
    reach = 4.302653 * 3 / math.sqrt(3)
    assert (found.rate, found.low, found.high) == pytest.approx((23, 23 - reach, 23 + reach), rel=1e-5)
    found = capacity_under_slo(answer, [stage(4, 10), stage(8, 20)], "users", [], 0.95)
    assert (found.rate, found.low, found.high) == (20, 19, 21)


def test_a_replica_that_was_restarted_under_another_name_counts_once() -> None:
    whole, first, second = [1.0] * 60, [1.0] * 31 + [0.0] * 29, [0.0] * 30 + [1.0] * 30
    assert replicas_at_once([whole, first, second]) == 2
    assert replicas_at_once([whole, whole, whole]) == 3
    quiet = [0.0, 1.0] * 30  # at a low load, without a request in half of the parts
    assert replicas_at_once([quiet, quiet]) == 2
    assert replicas_at_once([[], []]) == 2


def test_without_a_name_the_number_of_replicas_is_not_known() -> None:
    with pytest.raises(NoCapacityError, match=r"no answer named its replica.*give --replicas N"):
        replicas_at_once([])
