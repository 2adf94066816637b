"""Arrival processes, and the schedules of all workers."""

import time
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from llm_locust.workload.arrivals import (
    BLOCK,
    Arrival,
    ArrivalColumns,
    ClassArrival,
    ListedSchedule,
    MixedSchedule,
    Process,
    Schedule,
    constant,
    parse_rate,
    unit_times,
)

# --- Arrival processes in unit time: the laws of the gaps, held against their closed forms


N = 40_000


def times(cv: float, n: int = N, seed: int = 1, stream: str = "") -> NDArray[np.float64]:
    blocks = islice(unit_times(Process(cv), seed, stream), -(-n // BLOCK))
    return np.concatenate(list(blocks))[:n]


def gaps(cv: float, n: int = N, seed: int = 1) -> NDArray[np.float64]:
    return np.diff(times(cv, n, seed), prepend=0.0)


def exponential_cdf(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return -np.expm1(-x)


def gamma_4_cdf(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of a gamma law of shape 4 and mean 1, which has CV 0.5: an Erlang law."""
    y = 4 * x
    return np.asarray(1 - np.exp(-y) * (1 + y + y**2 / 2 + y**3 / 6))


def distance(sample: NDArray[np.float64], cdf: NDArray[np.float64]) -> float:
    """The Kolmogorov-Smirnov statistic of a sample, given the law's CDF at the sorted sample."""
    n = len(sample)
    return float(max(np.max(np.arange(1, n + 1) / n - cdf), np.max(cdf - np.arange(n) / n)))


def critical(n: int) -> float:
    """The distance that a sample of the law itself passes once in a thousand times, for a large n."""
    return float(np.sqrt(-np.log(0.001 / 2) / (2 * n)))


@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_poisson_gaps_pass_kolmogorov_smirnov_against_the_exponential_law(seed: int) -> None:
    sample = np.sort(gaps(1.0, seed=seed))
    assert distance(sample, exponential_cdf(sample)) < critical(N)
    assert distance(sample, gamma_4_cdf(sample)) > 10 * critical(N)


@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_gamma_gaps_of_cv_one_half_pass_kolmogorov_smirnov_against_shape_four(seed: int) -> None:
    sample = np.sort(gaps(0.5, seed=seed))
    assert distance(sample, gamma_4_cdf(sample)) < critical(N)
    assert distance(sample, exponential_cdf(sample)) > 10 * critical(N)


@pytest.mark.parametrize("cv", [0.1, 0.5, 1.0, 2.0, 4.0])
def test_gaps_have_mean_one_and_the_asked_cv_and_do_not_depend_on_each_other(cv: float) -> None:
    sample = gaps(cv)
    excess_kurtosis = 6 * cv**2
    assert sample.mean() == pytest.approx(1, abs=5 * cv / np.sqrt(N))
    assert sample.var() == pytest.approx(cv**2, rel=5 * np.sqrt((excess_kurtosis + 2) / N))
    centred = sample - sample.mean()
    assert abs(np.mean(centred[1:] * centred[:-1])) < 5 * cv**2 / np.sqrt(N)


@pytest.mark.parametrize("cv", [0.1, 0.5, 1.0, 2.0, 5.0, 20.0, 100.0])
@pytest.mark.parametrize("s", [0.1, 1.0, 10.0])
def test_gaps_have_the_laplace_transform_of_a_gamma_law(cv: float, s: float) -> None:
    """E exp(-s·gap) is (1 + s·cv²) ** (-1/cv²). It is bounded, so that the largest CV can be judged by it."""

    def transform(s: float) -> float:
        return float((1 + s * cv**2) ** (-1 / cv**2))

    error = np.sqrt((transform(2 * s) - transform(s) ** 2) / N)
    drawn = Process(cv).gaps(np.random.default_rng(4), N)
    assert np.exp(-s * drawn).mean() == pytest.approx(transform(s), abs=5 * error)


def test_constant_gaps_are_exactly_one_from_zero_on() -> None:
    assert np.array_equal(times(0.0, 3 * BLOCK), np.arange(3 * BLOCK))


def test_one_seed_gives_one_sequence_and_another_seed_or_stream_another() -> None:
    first = times(1.0)
    assert np.array_equal(first, times(1.0))
    assert not np.any(first == times(1.0, seed=2))
    chat, code = times(1.0, stream="chat"), times(1.0, stream="code")
    independent = np.corrcoef(np.diff(chat), np.diff(code))[0, 1]
    assert abs(independent) < 5 / np.sqrt(N)


@pytest.mark.parametrize("cv", [0.001, 0.5, 1.0, 20.0, 100.0])
def test_times_never_go_back_across_blocks_either(cv: float) -> None:
    found = times(cv, 20 * BLOCK)
    assert found[0] >= 0
    assert np.all(np.isfinite(found))
    assert np.all(np.diff(found) >= 0)


def test_a_long_sequence_is_not_worn_down_by_the_rounding_of_its_sum() -> None:
    """After a million arrivals the float is the exact sum of the gaps, rounded once."""
    blocks = 250
    seeds = np.random.SeedSequence(3, spawn_key=(int.from_bytes(b"arrivals", "big"),))
    rng = np.random.Generator(np.random.Philox(seeds))
    exact = np.longdouble(0)
    for _ in range(blocks):
        exact += Process(1.0).gaps(rng, BLOCK).astype(np.longdouble).sum()
    assert times(1.0, blocks * BLOCK, seed=3)[-1] == pytest.approx(float(exact), abs=1e-9)


@pytest.mark.parametrize("cv", [-1.0, 1e-9, 101.0, float("nan"), float("inf")])
def test_a_cv_out_of_bounds_is_refused_with_its_value(cv: float) -> None:
    with pytest.raises(ValueError, match=rf"CV {cv:g} is not in 0.001 .. 100"):
        Process(cv)


# --- Schedules: what every worker sends and when, and that all of them together are the asked process


RATES = st.sampled_from(["200", "ramp:0..300,20s", "steps:50@5s,0@5s,400", "sine:200,200,7s"])
CVS = st.sampled_from([0.0, 0.5, 1.0, 3.0])


def schedule(
    cv: float, rate: str, worker: int = 0, of: int = 1, *, seed: int = 5, limit: int | None = None
) -> Schedule:
    return Schedule(
        Process(cv), parse_rate(rate), seed=seed, worker_index=worker, worker_count=of, limit=limit
    )


def union(shares: Sequence[ArrivalColumns]) -> ArrivalColumns:
    k = np.concatenate([share.k for share in shares])
    at_s = np.concatenate([share.at_s for share in shares])
    order = np.argsort(k)
    return ArrivalColumns(k[order], at_s[order])


def same(first: ArrivalColumns, second: ArrivalColumns) -> bool:
    return np.array_equal(first.k, second.k) and np.array_equal(first.at_s, second.at_s)


@given(CVS, RATES, st.integers(1, 7), st.none() | st.integers(0, 9000))
@settings(max_examples=60, deadline=None)
def test_the_workers_together_have_exactly_the_process_of_one(
    cv: float, rate: str, workers: int, limit: int | None
) -> None:
    shares = [schedule(cv, rate, i, workers, limit=limit).times(30.0) for i in range(workers)]
    whole = schedule(cv, rate, limit=limit).times(30.0)
    assert same(union(shares), whole)
    assert np.array_equal(whole.k, np.arange(len(whole.k)))
    assert all(np.all(share.k % workers == i) for i, share in enumerate(shares))
    assert all(np.all(np.diff(share.at_s) > -1e-12) for share in shares)


@given(CVS, RATES, st.lists(st.floats(0, 30), max_size=15))
@settings(max_examples=40, deadline=None)
def test_how_often_it_is_asked_changes_nothing_and_each_arrival_comes_once(
    cv: float, rate: str, stops: list[float]
) -> None:
    asked = schedule(cv, rate, 1, 3)
    parts = [asked.times(until_s) for until_s in (*stops, 30.0)]
    for until_s, part in zip(stops, parts, strict=False):
        assert np.all(part.at_s < until_s + 1e-9)
    joined = ArrivalColumns(np.concatenate([p.k for p in parts]), np.concatenate([p.at_s for p in parts]))
    assert same(joined, schedule(cv, rate, 1, 3).times(30.0))


def test_more_workers_than_arrivals_of_a_block_still_take_each_one_once() -> None:
    workers = 5000
    shares = [schedule(1.0, "1000", i, workers).times(12.0) for i in (0, 4095, 4096, 4999)]
    whole = schedule(1.0, "1000").times(12.0)
    for share in shares:
        assert np.array_equal(share.at_s, whole.at_s[share.k])
    assert shares[2].k[:2].tolist() == [4096, 9096]


def test_constant_arrivals_are_evenly_spaced_from_the_origin_on_without_drift() -> None:
    at_s = schedule(0.0, "200").times(3600.0).at_s
    assert len(at_s) == 720_000
    assert np.max(np.abs(at_s - np.arange(720_000) / 200)) < 1e-9


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("limit", [0, 1, 7, 4096, 10_001])
def test_a_limit_is_exact_over_all_workers_and_ends_each(workers: int, limit: int) -> None:
    shares = [schedule(1.0, "200", i, workers, limit=limit) for i in range(workers)]
    found = union([share.times(1e6) for share in shares])
    assert np.array_equal(found.k, np.arange(limit))
    assert all(share.ended for share in shares)
    assert all(len(share.times(2e6).k) == 0 for share in shares)


def test_a_schedule_without_a_limit_has_no_end_and_one_with_it_ends_with_its_last_arrival() -> None:
    endless, bounded = schedule(0.0, "10"), schedule(0.0, "10", limit=20)
    endless.times(100.0)
    assert not endless.ended
    assert len(bounded.times(1.95).k) == 20
    assert bounded.ended


def test_a_rate_of_zero_is_no_end_since_it_may_be_changed() -> None:
    stopped = schedule(0.0, "steps:10@1s,0")
    assert len(stopped.times(1e6).k) == 10
    assert not stopped.ended
    stopped.change_rate(2e6, 5.0)
    assert stopped.times(2e6 + 1).at_s == pytest.approx(2e6 + np.arange(5) / 5)


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_that_learn_of_a_change_at_different_times_agree(workers: int) -> None:
    shares = []
    for i in range(workers):
        one = schedule(1.0, "100", i, workers)
        early = one.times(2.0 + i)  # each asks on its own until it hears of the change at 10 s
        one.change_rate(10.0, 400.0)
        shares.append(union([early, one.times(20.0)]))
    at_s = union(shares).at_s
    expected = Schedule(Process(1.0), constant(100.0).changed_at(10.0, 400.0), seed=5).times(20.0).at_s
    assert np.array_equal(at_s, expected)
    assert np.array_equal(at_s[at_s < 9.999], schedule(1.0, "100").times(9.999).at_s)
    assert abs(np.sum(at_s >= 10) - 4000) < 5 * np.sqrt(4000)


def test_a_change_that_comes_too_late_repeats_and_leaves_out_no_arrival() -> None:
    one = schedule(0.0, "100")
    early = one.times(12.0)
    one.change_rate(10.0, 200.0)
    late = one.times(20.0)
    assert np.array_equal(np.concatenate([early.k, late.k]), np.arange(3000))
    assert late.at_s[0] == pytest.approx(11.0)


def test_one_by_one_and_as_columns_are_the_same_arrivals() -> None:
    columns = schedule(1.0, "200", 1, 2).times(5.0)
    one_by_one = schedule(1.0, "200", 1, 2).before(5.0)
    assert one_by_one == list(map(Arrival, columns.k.tolist(), columns.at_s.tolist()))
    assert type(one_by_one[0].k) is int


def test_ten_thousand_arrivals_a_second_cost_less_than_a_tenth_of_a_core() -> None:
    """Measured 0.5 µs an arrival; a tenth of a core is 10 µs."""
    asked = schedule(1.0, "sine:10000,5000,60s")
    begin = time.process_time()
    arrivals = sum(len(asked.before(step / 10)) for step in range(1, 101))
    cost_us = (time.process_time() - begin) / arrivals * 1e6
    print(f"{cost_us:.2f} µs an arrival")
    assert cost_us < 10


def test_a_time_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="give a finite time"):
        schedule(1.0, "10").times(float("inf"))


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"seed": -1}, "seed -1 is negative"),
        ({"worker": 2, "of": 2}, "worker 2 of 2"),
        ({"worker": -1}, "worker -1 of 1"),
        ({"limit": -5}, "limit of -5 arrivals"),
    ],
)
def test_a_place_or_a_limit_that_cannot_be_is_refused(arguments: dict[str, int], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        schedule(1.0, "10", **arguments)


def test_listed_times_come_once_each_and_are_read_no_further_than_asked() -> None:
    read = []

    def source() -> Iterator[Arrival]:
        for k in range(10):
            read.append(k)
            yield Arrival(k, k / 2)

    listed = ListedSchedule(source())
    assert [a.k for a in listed.before(1.5)] == [0, 1, 2]
    assert listed.before(1.5) == []
    assert read == [0, 1, 2, 3]
    assert [a.k for a in listed.before(100.0)] == [3, 4, 5, 6, 7, 8, 9]
    assert listed.ended


def test_a_limit_of_listed_times_counts_those_of_all_workers() -> None:
    entries = [Arrival(k, float(k)) for k in range(10)]
    shares = [ListedSchedule(entries[i::3], limit=7) for i in range(3)]
    assert sorted(a.k for share in shares for a in share.before(100.0)) == list(range(7))
    assert all(share.ended for share in shares)
    assert ListedSchedule(entries, limit=0).ended


# --- Several schedules as one


MIXED_RATES = {"chat": 20.0, "code": 5.0, "batch": 0.5}


def mixed(index: int = 0, count: int = 1, limit: int | None = None, seed: int = 3) -> MixedSchedule:
    classes = {
        name: Schedule(Process(1.0), constant(rate), seed=seed, stream=name)
        for name, rate in MIXED_RATES.items()
    }
    return MixedSchedule(classes, worker_index=index, worker_count=count, limit=limit)


def test_each_class_arrives_as_by_its_own_schedule() -> None:
    found = mixed().before(100.0)
    for name, rate in MIXED_RATES.items():
        alone = Schedule(Process(1.0), constant(rate), seed=3, stream=name).times(100.0).at_s
        assert [a.at_s for a in found if a.of == name] == pytest.approx(alone.tolist(), abs=0)


def test_classes_of_one_rate_do_not_arrive_at_the_same_times() -> None:
    twins = {name: Schedule(Process(1.0), constant(5.0), seed=1, stream=name) for name in ("a", "b")}
    times = {name: set(schedule.times(100.0).at_s.tolist()) for name, schedule in twins.items()}
    assert not times["a"] & times["b"]


@settings(max_examples=50, deadline=None)
@given(
    workers=st.integers(1, 5),
    limit=st.none() | st.integers(0, 400),
    cuts=st.lists(st.floats(0.0, 10.0), max_size=6),
)
def test_the_workers_parts_are_the_whole_wherever_time_is_cut(
    workers: int, limit: int | None, cuts: list[float]
) -> None:
    whole = mixed(limit=limit).before(10.0)
    assert [a.k for a in whole] == list(range(len(whole)))
    assert np.all(np.diff([a.at_s for a in whole]) >= 0)
    assert limit is None or len(whole) <= limit
    parts: list[ClassArrival] = []
    for index in range(workers):
        schedule = mixed(index, workers, limit)
        mine = [arrival for until_s in [*sorted(cuts), 10.0] for arrival in schedule.before(until_s)]
        assert all(arrival.k % workers == index for arrival in mine)
        parts += mine
    assert sorted(parts) == whole


def test_a_limit_counts_all_classes_and_ends_the_schedule() -> None:
    schedule = mixed(limit=50)
    assert not schedule.ended
    assert len(schedule.before(60.0)) == 50
    assert schedule.ended
    assert schedule.before(120.0) == []


def test_rates_may_change_over_time() -> None:
    ramp = Schedule(Process(1.0), parse_rate("ramp:1..50,20s"), seed=0, stream="ramp")
    found = MixedSchedule({"ramp": ramp}).before(20.0)
    assert len([a for a in found if a.at_s >= 10]) > 2 * len([a for a in found if a.at_s < 10])
