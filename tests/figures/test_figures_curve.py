"""Knee, scalability law, overload and capacity of curves whose answer is known."""

import math
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from metrics_cases import plain
from summaries import faked

from llm_locust.figures.bottleneck import (
    Capacity,
    NoCapacityError,
    capacity_of_law,
    capacity_under_slo,
    need,
    replicas_at_once,
)
from llm_locust.figures.curve import (
    CurveFacts,
    NoFitError,
    NoKneeError,
    Usl,
    UslFigures,
    UslParameter,
    curve as curve_of,
    find_knee,
    fit_usl,
    pooled,
)
from llm_locust.figures.edge import SearchResult
from llm_locust.figures.objective import Probe, ProbeReading
from llm_locust.metrics.columns import Floats

LOADS = np.array([5.0, 10, 15, 20, 25, 30, 35, 40, 45, 47.5])


def noisy(values: Floats, seed: int, sigma: float = 0.02) -> Floats:
    drawn: Floats = values * np.random.default_rng(seed).lognormal(0, sigma, len(values))
    return drawn


@pytest.mark.parametrize("seed", range(20))
def test_the_knee_of_a_queue_is_within_one_stage_of_where_its_curve_leaves_the_line(seed: int) -> None:
    latency = 1 / (50 - LOADS)
    # Farthest below the line between the ends: where the slope is that of the line.
    slope = (latency[-1] - latency[0]) / (LOADS[-1] - LOADS[0])
    true = 50 - 1 / math.sqrt(slope)
    found = find_knee(LOADS, noisy(latency, seed), np.full(10, 0.02), seed)
    near = np.abs(LOADS - true)
    assert found.load in LOADS[np.argsort(near)[:3]]
    assert found.low - 5 <= true <= found.high + 5


@pytest.mark.parametrize("seed", range(20))
def test_the_knee_of_a_batch_that_is_full_is_the_number_of_users_that_fills_it(seed: int) -> None:
    users = np.array([1.0, 2, 4, 8, 12, 16, 20, 24])
    latency = np.maximum(1.0, users / 8)
    found = find_knee(users, noisy(latency, seed), np.full(8, 0.02), seed)
    assert found.load in (4, 8, 12)
    assert found.low <= found.load <= found.high


@pytest.mark.parametrize(
    ("latency", "why"),
    [
        (np.linspace(1, 9, 10), "grows too evenly"),
        (np.full(10, 3.0), "does not grow"),
        (np.sqrt(LOADS), "grows too evenly"),
    ],
)
def test_a_line_a_flat_and_a_concave_curve_have_no_knee(latency: Floats, why: str) -> None:
    with pytest.raises(NoKneeError, match=why):
        find_knee(LOADS, latency, np.full(10, 0.01))


def test_few_loads_and_uncertain_latencies_have_no_knee() -> None:
    with pytest.raises(NoKneeError, match="3 loads have a result; a knee needs 4"):
        find_knee(LOADS[:3], LOADS[:3], np.zeros(3))
    with pytest.raises(NoKneeError, match="1 load has a result; a knee needs 4"):
        find_knee(LOADS[:1], LOADS[:1], np.zeros(1))
    with pytest.raises(NoKneeError, match="too uncertain"):
        find_knee(LOADS, 1 / (55 - LOADS), np.full(10, 2.0))


def test_repeated_loads_count_once_with_their_mean_and_its_error() -> None:
    load, value, error = pooled([4, 2, 4], [1.0, 9.0, 4.0], [0.2, 0.3, 0.2])
    assert load.tolist() == [2, 4]
    assert value == pytest.approx([9, 2])
    assert error == pytest.approx([0.3, 0.2 / math.sqrt(2)])


N = np.array([1.0, 2, 4, 8, 16, 32, 64, 96])


@pytest.mark.parametrize("law", [Usl(5.0, 0.05, 0.0005), Usl(2.0, 0.1, 0.0), Usl(3.0, 0.0, 0.001)])
def test_the_law_of_curves_without_noise_is_recovered(law: Usl) -> None:
    fit = fit_usl(N, law.at(N), np.full(len(N), 1e-6))
    assert (fit.law.gamma, fit.law.alpha, fit.law.beta) == pytest.approx(
        (law.gamma, law.alpha, law.beta), rel=1e-6, abs=1e-9
    )
    if law.beta:
        assert fit.law.peak == pytest.approx(math.sqrt((1 - law.alpha) / law.beta))
        assert fit.law.plateau == pytest.approx(max(law.at(np.linspace(1, 200, 100_000))), rel=1e-4)
    else:
        assert fit.law.plateau == pytest.approx(law.gamma / law.alpha, rel=1e-4)


def test_the_intervals_of_the_law_hold_the_truth_under_noise() -> None:
    law, held = Usl(5.0, 0.05, 0.0005), dict.fromkeys(("gamma", "alpha", "beta", "peak", "plateau"), 0)
    for seed in range(30):
        fit = fit_usl(N, noisy(law.at(N), seed), np.full(len(N), 0.02), seed)
        for name in held:
            low, high = fit.ends(name)
            held[name] += low <= getattr(law, name) <= high
    assert min(held.values()) >= 26, held


def test_what_never_saturates_has_an_infinite_plateau_and_too_little_gives_no_law() -> None:
    fit = fit_usl(N, 2.0 * N, np.full(len(N), 1e-6))
    assert fit.law.plateau > 1e6
    with pytest.raises(NoFitError, match=r"4 loads .* are needed, there are 3"):
        fit_usl(N[:3], N[:3], np.zeros(3))
    with pytest.raises(NoFitError, match="4-fold"):
        fit_usl(np.array([8.0, 9, 10, 11]), N[:4], np.zeros(4))


def curve(stages: list[dict[str, Any]]) -> Any:
    usual = {"saturated": None, "all_failed": False, "lengths": None}
    return plain(curve_of([faked(usual | stage) for stage in stages]))


def stage(load: float, good: float | None, **fields: Any) -> dict[str, Any]:
    table = {"mean": 1.0, "std": 0.1, "n": 900, "p50": 1000 / (50 - load), "ci95": {"p50": None}}
    figures = {
        "latency_ms": {"e2el": table},
        "throughput": {"requests_per_s": load, "concurrency_mean": load / (50 - load) + 1, "ci95": {}},
        "requests": {"ok": 900},
        "goodput": {"requests_per_s": good},
    }
    return {"asked": load, "repeat": 0, "is_result": True, "figures": figures} | fields


def test_a_collapse_is_told_from_goodput_that_holds_and_a_saturated_stage_counts_for_it() -> None:
    stages = [stage(load, load) for load in (10.0, 20.0, 30.0, 40.0, 45.0)]
    beyond = {"is_result": False, "saturated": True}
    found = curve([*stages, stage(60.0, 9.0, **beyond)])
    assert found is not None
    assert (found["loads"], found["left_out"]) == (5, 1)
    assert found["overload"] | {"collapses": True, "kept": 0.2, "best_load": 45.0} == found["overload"]
    found = curve([*stages, stage(60.0, 44.0, **beyond)])
    assert found is not None
    assert not found["overload"]["collapses"]
    assert found["knee"]["load"] in (30.0, 40.0)
    typed = msgspec.convert(found, CurveFacts)
    assert typed.knee is not None
    assert typed.usl is not None
    assert typed.usl.peak.ci95 is not None


def test_overload_is_the_mean_of_a_loads_repeats_in_any_order() -> None:
    collapsed, held = stage(60.0, 4.0), stage(60.0, 44.0, repeat=1)
    for repeats in ([collapsed, held], [held, collapsed]):
        found = curve([stage(20.0, 20.0), stage(40.0, 40.0), *repeats])
        assert found is not None
        assert (found["overload"]["good_per_s"], found["overload"]["kept"]) == (24.0, 0.6)


def test_what_a_sweep_cannot_show_it_says_why() -> None:
    found = curve([stage(10.0, None), stage(20.0, None), stage(30.0, 1.0, is_result=False)])
    assert found is not None
    assert (found["knee"], found["usl"], found["overload"]) == (None, None, None)
    assert found["missing"]["overload"] == "no SLO was given, so nothing is good"
    assert "2 loads have a result" in found["missing"]["knee"]
    assert curve([stage(10.0, 9.0), stage(10.0, 9.0)]) is None, "one load is no sweep"


def test_overload_has_the_interval_of_a_ratio_over_repeats_and_none_of_one_repeat() -> None:
    found = curve([stage(20.0, 20.0), stage(40.0, 40.0), stage(60.0, 30.0)])
    assert found is not None
    assert (found["overload"]["repeats"], found["overload"]["ci95"]) == (1, None)
    best, last = (40.0, 42.0, 38.0), (30.0, 33.0, 27.0)
    found = curve(
        [stage(40.0, good, repeat=i) for i, good in enumerate(best)]
        + [stage(60.0, good, repeat=i) for i, good in enumerate(last)]
    )
    assert found is not None
    # Σ y / Σ x = 0.75; y − 0.75 x = 0, 1.5, −1.5: s = 1.5, so 4.3027 · 1.5 / √3 / 40.
    reach = 4.302653 * 1.5 / math.sqrt(3) / 40
    assert found["overload"]["kept"] == 0.75
    assert found["overload"]["ci95"] == pytest.approx([0.75 - reach, 0.75 + reach], rel=1e-5)


def test_the_knee_has_the_latency_of_all_repeats_of_its_load() -> None:
    def repeat(factor: float, number: int) -> list[dict[str, Any]]:
        stages = [stage(load, load, repeat=number) for load in (10.0, 20.0, 30.0, 40.0, 45.0, 48.0)]
        for each in stages:
            each["figures"]["latency_ms"]["e2el"] = each["figures"]["latency_ms"]["e2el"] | {
                "p50": factor * each["figures"]["latency_ms"]["e2el"]["p50"]
            }
        return stages

    found = curve([*repeat(1.0, 0), *repeat(1.21, 1)])
    assert found is not None
    assert found["knee"]["latency_ms"] == pytest.approx(1.1 * 1000 / (50 - found["knee"]["load"]))


@pytest.mark.parametrize("seed", range(20))
def test_no_parameter_of_the_law_lies_outside_its_own_interval(seed: int) -> None:
    law = Usl(5.0, 0.0, 0.00001)
    fit = fit_usl(N, noisy(law.at(N), seed, 0.1), np.full(len(N), 0.01), seed)
    for name in ("gamma", "alpha", "beta", "peak", "plateau"):
        low, high = fit.ends(name)
        assert low <= getattr(fit.law, name) <= high


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
