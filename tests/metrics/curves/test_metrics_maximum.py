"""``max-goodput``: the load with the most good requests/s, of servers whose best load has a closed form."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from test_metrics_search import LIMIT_S, SERVED, queue

from llm_locust.figures.edge import Bounds, NextStage, SearchResult, unimodal
from llm_locust.figures.objective import GoodRate, ObjectiveError, Probe, ProbeReading, parse_objective
from llm_locust.figures.search import last_answer, next_step

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
