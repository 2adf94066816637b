"""A search for the highest load, or the best one, against servers whose answer has a closed form."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from metrics_cases import batch, manifest, request, stage
from summaries import summarise, typed

from llm_locust.figures.edge import Bounds, NextStage, SearchResult, crossing, falling, find_edge, unimodal
from llm_locust.figures.objective import (
    GoodRate,
    Objective,
    ObjectiveError,
    Probe,
    ProbeReading,
    parse_objective,
)
from llm_locust.figures.search import SearchStage, last_answer, next_step, readings
from llm_locust.metrics.columns import Floats
from llm_locust.metrics.stats.bootstrap import Order
from llm_locust.metrics.stats.censoring import (
    PERCENTILES,
    Durations,
    certified,
    certified_rank,
    certified_share,
    fewest_samples,
)
from llm_locust.metrics.stats.intervals import FEWEST, Observed, effective_sizes, share_size
from llm_locust.report.markdown import markdown

RATE = parse_objective("max rate under goodput>=90%")
USERS = parse_objective("max concurrency under p99_tpot<50ms")
MOST = parse_objective("max-goodput")


def test_every_limit_is_a_share_of_the_requests() -> None:
    text = "max  rate under goodput>=95% p99_ttft<500ms, error_rate<1%"
    found = parse_objective(text)
    assert [(limit.metric, limit.required, limit.limit_s) for limit in found.limits] == [
        ("goodput", 0.95, None),
        ("ttft", 0.99, 0.5),
        ("ok", 0.99, None),
    ]
    assert found.axis == "rate"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not an objective"),
        ("max rate", "is not an objective"),
        ("max rate under", "is not an objective"),
        ("max rate under ,", "no gate"),
        ("max speed under goodput>=95%", '"speed" is not a load'),
        ("max rate under p99_ttft<0ms", "no request takes 0 ms"),
        ("max rate under p99_ttft>5ms", "does not break it"),
        ("max rate under goodput<95%", "does not break it"),
        ("max rate under goodput>=0%", "does not break it"),
        ("max rate under error_rate>1%", "does not break it"),
        ("max rate under goodput>=100%", "exactly 100 %"),
        ("max rate under error_rate<=0%", "exactly 100 %"),
        ("max rate under mean_ttft<1s", "limit a percentile"),
        ("max rate under max_ttft<1s", "limit a percentile"),
        ("max rate under p99_itl<1s", "not a latency of one request"),
        ("max rate under output_tps>5", "grows with the load"),
        ("max rate under certified goodput>=95%", "an upper limit on a percentile"),
        ("max rate under p99_tft<1s", "p99_ttft"),
    ],
)
def test_an_objective_that_cannot_be_searched_is_refused_in_one_line(text: str, why: str) -> None:
    with pytest.raises(ObjectiveError, match="find: ") as e:
        parse_objective(text)
    assert why in str(e.value)
    assert "\n" not in str(e.value)


@given(st.lists(st.floats(0.01, 0.99), min_size=1, max_size=12))
def test_an_isotonic_fit_falls_and_keeps_the_mean_and_what_fell_already(values: list[float]) -> None:
    fit = falling(np.array(values), np.ones(len(values)))
    assert (np.diff(fit) <= 1e-12).all()
    assert fit.mean() == pytest.approx(np.mean(values))
    falls = np.sort(values)[::-1]
    assert np.array_equal(falling(falls, np.ones(len(falls))), falls)


def test_a_crossing_is_between_the_loads_that_it_parts() -> None:
    loads, shares = np.array([1.0, 2.0, 4.0]), np.array([[0.99, 0.9, 0.1], [0.9, 0.4, 0.1], [0.4, 0.4, 0.4]])
    middle = [2 * math.sqrt(2), 2 ** (math.log(9) / math.log(9 * 1.5)), 0]  # log-odds ±2.197, and −0.405
    assert crossing(loads, shares, 0.5).tolist() == pytest.approx(middle)
    assert crossing(loads, shares, 0.5, np.array([0.5, 0.25, 0.5])).tolist() == pytest.approx(
        [2**1.5, 2**0.25, 0]
    )
    assert crossing(loads, shares, 0.995).tolist() == [0, 0, 0]
    assert crossing(loads, shares, 0.05).tolist() == [math.inf] * 3


def reading(latency_s: Floats, limit_s: float) -> ProbeReading:
    """As a run's: the worth of the share is that of requests that depend on their neighbours."""
    order = Order.even(len(latency_s))
    moments = float(latency_s.mean()), float(latency_s.std()), float(np.median(latency_s))
    slow, _ = effective_sizes(Observed(order, latency_s), *moments)
    within = (latency_s < limit_s).astype(np.float64)
    worth = share_size(order.sums(within), np.diff(order.bounds).astype(np.float64), slow)
    n = len(latency_s)
    n_eff = 1.0 if worth is None else min(n, max(1.0, worth.n_eff / worth.stretch(2 * FEWEST) ** 2))
    return ProbeReading(int(within.sum()), n, n_eff)


#: Requests/s of the single server, and its limit.
SERVED, LIMIT_S = 50.0, 0.2


def queue(rate: float, random: np.random.Generator, n: int = 5_000) -> ProbeReading:
    """M/M/1, by Lindley's recursion, without its start: P(time > t) = e^(−(μ − λ) t)."""
    begin = 500
    arrivals, services = random.exponential(1 / rate, n + begin), random.exponential(1 / SERVED, n + begin)
    walk = np.concatenate([[0.0], np.cumsum(services[:-1] - arrivals[1:])])
    return reading((walk - np.minimum.accumulate(walk) + services)[begin:], LIMIT_S)


def batched(users: float, random: np.random.Generator, n: int = 2_000) -> ProbeReading:
    """A batch whose steps take 10 ms + 0.5 ms a user, times log-normal noise with σ = 0.15."""
    return reading((0.010 + 0.0005 * users) * random.lognormal(0.0, 0.15, n), 0.050)


#: e^(−(μ − λ) t) = 10 %, and 99 % of the noise below its factor at 2.326 σ.
QUEUE_EDGE = SERVED + math.log(0.1) / LIMIT_S
BATCH_EDGE = (0.050 / math.exp(2.326348 * 0.15) - 0.010) / 0.0005
Server = Callable[[float, np.random.Generator], ProbeReading]


def search(server: Server, objective: object, seed: int) -> tuple[SearchResult, list[Probe]]:
    random, probes = np.random.default_rng(seed), list[Probe]()
    bounds = Bounds(start=8.0)
    while True:
        step = next_step(objective, bounds, probes)  # type: ignore[arg-type]
        if isinstance(step, SearchResult):
            return step, probes
        probes.append(Probe(step.load, (server(step.load, random),)))


@pytest.mark.parametrize(
    ("server", "objective", "edge"), [(queue, RATE, QUEUE_EDGE), (batched, USERS, BATCH_EDGE)]
)
@pytest.mark.parametrize("first", [0, 100])
def test_the_edge_is_within_5_percent_in_12_stages_for_20_seeds_and_18_intervals_cover_it(
    server: Server, objective: object, edge: float, first: int
) -> None:
    answers = [search(server, objective, seed) for seed in range(first, first + 20)]
    assert all(len(probes) <= 12 for _, probes in answers)
    loads = [found.load for found, _ in answers]
    # A whole user less than the edge is the answer where users are whole.
    whole = 1 / edge if objective is USERS else 0.0
    assert [load for load in loads if load is None or abs(load / edge - 1) > 0.05 + whole] == []
    covers = [
        found.low is None
        or found.high is None
        or found.low - edge * whole <= edge <= found.high + edge * whole
        for found, _ in answers
    ]
    assert sum(covers) >= 18


def steady(share: Callable[[float], float], n: int = 2_000) -> Callable[[float], ProbeReading]:
    return lambda load: ProbeReading(round(share(load) * n), n, float(n))


def steps(
    share: Callable[[float], float], bounds: Bounds, objective: object = RATE
) -> tuple[SearchResult, list[Probe]]:
    probes = list[Probe]()
    while isinstance(step := next_step(objective, bounds, probes), NextStage):  # type: ignore[arg-type]
        probes.append(Probe(step.load, (steady(share)(step.load),)))
    return step, probes


@given(st.floats(0.5, 5_000), st.floats(0.1, 2_000))
def test_no_load_is_beyond_twice_the_lowest_that_failed_or_twice_what_was_tried(
    edge: float, start: float
) -> None:
    _, probes = steps(lambda load: 1 / (1 + (load / edge) ** 20 / 9), Bounds(start))
    for k, probe in enumerate(probes[1:], 1):
        before = probes[:k]
        failed = [p.load for p in before if p.readings[0].share < 0.9]
        assert probe.load <= 2.001 * max(p.load for p in before)
        assert not failed or probe.load <= 2.001 * min(failed)
    assert len(probes) <= 12


def test_a_server_that_holds_everything_has_a_lower_bound_and_one_that_holds_nothing_an_upper() -> None:
    found, probes = steps(lambda _: 1.0, Bounds(4.0, most=20.0))
    assert [p.load for p in probes] == [4, 8, 16, 20]
    assert (found.at_least, found.load, found.is_resolved) == (20, None, False)
    found, probes = steps(lambda _: 0.2, Bounds(4.0, most_stages=5))
    assert (found.at_most, found.load) == (min(p.load for p in probes), None)
    found, _ = steps(lambda _: 0.2, Bounds(4.0), USERS)
    assert "single user" in found.why


def test_the_client_as_the_limit_ends_the_search_with_a_lower_bound() -> None:
    held = Probe(8.0, (ProbeReading(2_000, 2_000, 2_000.0),))
    late = Probe(16.0, (ProbeReading(0, 2_000, 2_000.0),), client="CPU at 100 %")
    again = next_step(RATE, Bounds(8.0), [held, late])
    assert again == NextStage(16.0, "again: the client was the limit: CPU at 100 %")
    found = next_step(RATE, Bounds(8.0), [held, late, late])
    assert isinstance(found, SearchResult)
    assert found.at_least == 8
    assert "the client is the limit from 16 requests/s on: CPU at 100 %" in found.why


def test_a_busy_second_of_the_client_is_none_of_its_limits() -> None:
    late = Probe(8.0, (ProbeReading(1_900, 2_000, 2_000.0),), client="it read late")
    held = [Probe(load, (ProbeReading(2_000, 2_000, 2_000.0),)) for load in (8.0, 16.0)]
    onwards = next_step(RATE, Bounds(8.0), [late, held[0]])
    assert isinstance(onwards, NextStage)
    assert onwards.load == 16
    worse = Probe(32.0, (ProbeReading(0, 2_000, 2_000.0),))
    near = next_step(RATE, Bounds(8.0), [late, *held, worse])
    assert isinstance(near, NextStage), "8 requests/s are no limit of a client that once sent them in time"
    assert 16 < near.load < 32


@pytest.mark.parametrize(
    ("objective", "loads"), [(USERS, (2.0, 1.0)), (RATE, (8.0, 4.0)), (MOST, (8.0, 4.0))]
)
def test_a_client_that_is_the_limit_at_every_load_is_named(
    objective: Objective, loads: tuple[float, ...]
) -> None:
    twice = [loads[0], loads[0], loads[1]]
    late = [Probe(load, (ProbeReading(0, 2_000, 2_000.0),), client="it read late") for load in twice]
    lower = next_step(objective, Bounds(loads[0]), late[:2])
    assert isinstance(lower, NextStage)
    assert lower.why.startswith("the client was the limit at")
    found = next_step(objective, Bounds(loads[0], most_stages=3), late)
    assert isinstance(found, SearchResult)
    assert (found.load, found.at_least, found.at_most) == (None, None, None)
    assert found.why.startswith(f"the client is the limit from {loads[-1]:g} ")
    assert found.why.endswith("it read late")


def test_a_stage_without_a_result_is_repeated_once_and_two_end_the_search_with_their_sentence() -> None:
    held = Probe(8.0, (ProbeReading(2_000, 2_000, 2_000.0),))
    silent = Probe(16.0, no_result="it was not steady")
    again = next_step(RATE, Bounds(8.0), [held, silent])
    assert again == NextStage(16.0, "again: it was not steady")
    found = next_step(RATE, Bounds(8.0), [held, silent, silent])
    assert isinstance(found, SearchResult)
    assert found.at_least == 8
    assert "it was not steady" in found.why
    nothing = next_step(RATE, Bounds(8.0), [silent, silent])
    assert isinstance(nothing, SearchResult)
    assert (nothing.load, nothing.at_least, nothing.at_most) == (None, None, None)


def test_stages_too_short_for_a_percentile_have_no_interval_and_say_how_many_requests_it_takes() -> None:
    objective = parse_objective("max rate under p99_ttft<1s")
    probes = [Probe(load, (ProbeReading(20 - bad, 20, 20.0),)) for load, bad in ((8.0, 0), (16.0, 12))]
    found = next_step(objective, Bounds(8.0, most_stages=2), probes)
    assert isinstance(found, SearchResult)
    assert (found.low, found.high, found.is_resolved) == (None, None, False)
    assert "needs 1000: make stages longer" in found.why or found.at_most is not None


@given(st.integers(1, 9_000), st.integers(0, 300), st.sampled_from(["p90", "p99", "p99_9"]))
def test_a_stage_holds_a_certified_limit_exactly_where_the_gate_of_a_run_passes(
    n: int, beyond: int, statistic: str
) -> None:
    beyond = min(beyond, n)
    percent = PERCENTILES[statistic]
    found = ProbeReading(n - beyond, n, float(n), certified_share(n, percent) or 1.0)
    latencies = np.repeat([0.5, 1.5], [n - beyond, beyond])
    bound_s = certified(Durations(latencies), percent)
    if n >= fewest_samples(percent):
        assert (found.shows(percent / 100) == "holds") == (bound_s <= 1)
        assert found.is_within(percent / 100) == (bound_s <= 1)
    elif beyond:
        assert found.shows(percent / 100) != "holds"


def certain(users: float, random: np.random.Generator) -> ProbeReading:
    found = batched(users, random)
    return ProbeReading(found.hits, found.n, found.n_eff, certified_share(found.n, 99.0))


def test_a_search_under_a_certified_limit_ends_below_the_edge_and_what_holds_has_a_certificate() -> None:
    objective = parse_objective("max concurrency under certified p99_tpot<50ms")
    answers = [search(certain, objective, seed) for seed in range(4)]
    loads = [found.load or 0.0 for found, _ in answers]
    allowed = 2_000 - round(2_000 * (certified_share(2_000, 99.0) or 0))
    assert allowed == (certified_rank(2_000, 99.0) or 0) - 1
    assert BATCH_EDGE * 0.9 < np.median(loads) < BATCH_EDGE
    for _, probes in answers:
        for probe in probes:
            (found,) = probe.readings
            assert (probe.shows((0.99,)) == "holds") == (found.n - found.hits <= allowed)


@pytest.mark.parametrize(
    "wrong",
    [{"start": 0.0}, {"start": math.nan}, {"start": 9.0, "most": 8.0}, {"start": 1.0, "precision": 0.0}],
)
def test_bounds_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="the "):
        Bounds(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="share"):
        ProbeReading(3, 2, 1.0)


def test_an_edge_is_a_number_where_a_drawn_share_rounds_to_one() -> None:
    n, seed = 1_000_000, 2
    draws = np.random.default_rng([seed, 2]).beta([n + 0.5, 0.8 * n + 0.5], [0.5, 0.2 * n + 0.5], (1000, 2))
    assert draws.max() == 1, "the draws of this test have none"
    held, broken = Probe(1.0, (ProbeReading(n, n, n),)), Probe(2.0, (ProbeReading(800_000, n, n),))
    edge = find_edge([held, broken], (0.95,), seed)
    assert 1 < edge.low <= edge.load <= edge.high < 2


BEST = parse_objective("max-goodput")


def good(rate: float) -> float:
    """Good requests/s of the M/M/1 queue of the search's tests: λ (1 − e^(−(μ − λ) t))."""
    return rate * (1 - math.exp(-(SERVED - rate) * LIMIT_S))


BEST_RATE = max(np.linspace(1, SERVED, 10_000).tolist(), key=good)


def probe(rate: float, found: ProbeReading) -> Probe:
    return Probe(rate, (found,), good=GoodRate.of(found, rate, is_counted=False))


def beyond(rate: float, random: np.random.Generator) -> ProbeReading:
    """The queue of the other tests; where it is overloaded hardly anything is good in the end."""
    return queue(rate, random) if rate < SERVED else ProbeReading(int(random.integers(0, 250)), 5_000, 500.0)


def searched(seed: int) -> tuple[SearchResult, list[Probe]]:
    random, probes = np.random.default_rng(seed), list[Probe]()
    while isinstance(step := next_step(BEST, Bounds(start=8.0), probes), NextStage):
        probes.append(probe(step.load, beyond(step.load, random)))
    return step, probes


def test_the_best_load_gives_95_percent_of_the_most_goodput_in_12_stages_and_18_of_20_intervals_hold_it() -> (
    None
):
    answers = [searched(seed) for seed in range(20)]
    assert max(len(probes) for _, probes in answers) <= 12
    loads = [found.load or 0.0 for found, _ in answers]
    assert [load for load in loads if good(load) < 0.95 * good(BEST_RATE)] == []
    assert sum((f.low or 0) <= BEST_RATE <= (f.high or 0) for f, _ in answers) >= 18
    widths = sorted((f.high or math.inf) / (f.low or 1e-9) for f, _ in answers)
    assert widths[10] < 1.8, widths
    assert widths[-1] < 2.1, widths
    known = [(f.good_low or 0) <= good(f.load or 0) <= (f.good_high or 0) for f, _ in answers]
    assert sum(known) >= 17


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=10), st.integers(0, 9))
def test_a_fit_rises_to_one_peak_and_keeps_what_did_so_already(values: list[float], at: int) -> None:
    fit = unimodal(np.array(values), np.ones(len(values)))
    steps = np.sign(np.diff(fit))
    assert not any(a < 0 < b for i, a in enumerate(steps) for b in steps[i:])
    peaked = np.array([*sorted(values[:at]), *sorted(values[at:], reverse=True)])
    assert unimodal(peaked, np.ones(len(peaked))) == pytest.approx(peaked)


def sure(load: float, share: float, **fields: object) -> Probe:
    found = ProbeReading(round(share * 100_000), 100_000, 100_000.0)
    return Probe(load, (found,), good=GoodRate.of(found, load, is_counted=False), **fields)  # type: ignore[arg-type]


def test_repeats_that_contradict_each_other_count_alike_and_widen_the_interval() -> None:
    """All good, then half: the first has the smaller error by far, and is not nearer to the truth."""
    repeats = [sure(8.0, 1.0), sure(8.0, 0.5)]
    shown = last_answer(BEST, Bounds(4.0), [sure(4.0, 1.0), *repeats, sure(16.0, 0.1)])
    assert shown.load == 8
    assert shown.good_per_s == pytest.approx(6)
    assert shown.good_low == pytest.approx(6 - 1.96 * 2, abs=0.1)
    assert shown.good_high == 8


def test_goodput_that_grows_as_far_as_was_tried_is_a_lower_bound() -> None:
    probes: list[Probe] = []
    while isinstance(step := next_step(BEST, Bounds(4.0, most=20.0), probes), NextStage):
        probes.append(sure(step.load, 0.99))
    assert [each.load for each in probes] == [4, 8, 16, 20]
    assert (step.load, step.at_least, step.is_resolved) == (None, 20, False)
    assert step.good_per_s == pytest.approx(19.8)
    few = ProbeReading(16, 16, 5.0)
    shown = last_answer(BEST, Bounds(4.0), [probe(4.0, few)])
    assert (shown.good_per_s, shown.good_high) == (4, 4), "no more are good than were asked for"
    late = sure(8.0, 0.1, client="CPU at 100 %")
    ended = next_step(BEST, Bounds(4.0), [sure(4.0, 1.0), late, late])
    assert isinstance(ended, SearchResult)
    assert (ended.at_least, ended.load) == (4, None)
    assert "the client is the limit from 8 requests/s on" in ended.why


def test_a_saturated_load_is_beyond_the_peak_whatever_its_share_was() -> None:
    """What is good of a queue that only grows depends on how long it was watched."""
    probes = [sure(8.0, 1.0), sure(16.0, 1.0), sure(32.0, 0.9, saturated=True)]
    step = next_step(BEST, Bounds(8.0), probes)
    assert isinstance(step, NextStage)
    assert 8 < step.load < 32
    found = last_answer(BEST, Bounds(8.0), probes)
    assert (found.load, found.low, found.high) == (16, 8, 32)


def test_loads_without_anything_good_are_halved_and_give_an_upper_bound() -> None:
    step = next_step(BEST, Bounds(8.0), [sure(8.0, 0.0)])
    assert isinstance(step, NextStage)
    assert step.load == 4
    found = next_step(BEST, Bounds(8.0, most_stages=2), [sure(8.0, 0.0), sure(4.0, 0.0)])
    assert isinstance(found, SearchResult)
    assert (found.load, found.at_most, found.good_per_s) == (None, 4, None)


def test_users_are_whole_and_a_stage_without_a_result_is_tried_again() -> None:
    users = parse_objective("max-goodput over concurrency")
    probes: list[Probe] = []
    while isinstance(step := next_step(users, Bounds(2.0), probes), NextStage):
        assert step.load.is_integer()
        assert len(probes) < 12
        probes.append(sure(step.load, min(1.0, 7.0 / step.load) ** 2))
    assert step.load == 7
    silent = Probe(8.0, no_result="it was not steady")
    assert next_step(users, Bounds(2.0), [sure(4.0, 1.0), silent]) == NextStage(
        8.0, "again: it was not steady"
    )
    assert isinstance(next_step(users, Bounds(2.0), [sure(4.0, 1.0), silent, silent]), SearchResult)


@pytest.mark.parametrize(
    "text", ["max-goodput under p99_ttft<1s", "max-goodput over speed", "max-goodput over"]
)
def test_another_form_of_it_is_refused(text: str) -> None:
    with pytest.raises(ObjectiveError, match="find: "):
        parse_objective(text)


def test_a_load_that_is_hardly_known_is_not_the_answer_because_its_neighbours_rise_to_it() -> None:
    """As measured live over concurrency: goodput collapses from 30 to 32 users, and 31 had both."""
    shares = {16: (163, 1.0, 31.3), 23: (233, 1.0, 15.3), 25: (232, 1.0, 8.8), 27: (247, 1.0, 27.1)}
    shares |= {28: (256, 1.0, 30.5), 29: (264, 1.0, 28.3), 30: (273, 0.985, 22.9)}
    shares |= {31: (282, 0.468, 1.44), 32: (291, 0.588, 18.7), 64: (388, 0.018, 94.7)}
    most = parse_objective("max-goodput over concurrency")
    probes = []
    for load, (n, share, worth) in shares.items():
        found = ProbeReading(round(n * share), n, worth)
        good = GoodRate.of(found, n / 40, is_counted=True)
        probes.append(Probe(float(load), (found,), good=good))
    answer = last_answer(most, Bounds(16.0, most_stages=len(probes)), probes)
    assert answer.load is not None
    assert 27 <= answer.load <= 30
    assert answer.good_per_s is not None
    assert answer.good_per_s > 6


@pytest.mark.parametrize(
    "options",
    [
        {"find": "max throughput at dawn"},
        {"find": "max rate under goodput>=95%", "first_load": "auto"},
        {"find": "max rate under goodput>=95%", "max_stages": "many"},
    ],
)
def test_a_search_that_another_version_wrote_leaves_a_report_that_says_so(options: dict[str, Any]) -> None:
    stages = [stage(0, 1.0, 9.0, kind="rate", asked=1.0)]
    known = manifest(10.0, options=options, open_loop=True, stages=stages)
    found = typed(summarise(batch(*(request(float(i)) for i in range(1, 9))), known))
    assert found.search is not None
    assert found.search.answer.load is None
    assert "this version cannot read what was asked for" in markdown(found)
    assert found.stages is not None
    assert found.stages[0].figures is not None


def test_why_a_stage_has_no_result_is_below_the_table_once() -> None:
    stages = [
        SearchStage(
            stage=None, load=load, shows=None, no_result="not steady", client=None, limits=[], good_per_s=None
        )
        for load in (15.3, 15.3, 16.0)
    ]
    made = readings("Readings", "requests/s", stages)
    assert made.table is not None
    assert [row.cells[-1] for row in made.table.rows] == ["no result"] * 3
    assert [note.text for note in made.notes] == ["15.3, 16 requests/s: not steady"]


def test_agents_are_the_users_of_a_search_with_the_limits_of_agentperf() -> None:
    found = parse_objective("max agents under p75_tpot<=50ms p95_ttft<=10s")
    tpot, ttft = found.limits
    assert found.axis == "concurrency"
    assert (tpot.metric, tpot.required, tpot.limit_s) == ("tpot", 0.75, 0.05)
    assert (ttft.metric, ttft.required, ttft.limit_s) == ("ttft", 0.95, 10.0)
    assert parse_objective("max-goodput over agents").axis == "concurrency"


def test_an_unknown_load_names_agents_among_the_known_ones() -> None:
    with pytest.raises(ObjectiveError, match="agents"):
        parse_objective("max clients under goodput>=95%")
