"""Intervals hold the truth about as often as they say, or there is none: in a queue too."""

import math
from itertools import accumulate, permutations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from metrics_cases import columns, request, summarise_latency
from numpy.typing import NDArray

from llm_locust.metrics.requests.gaps import GapCourse, joined
from llm_locust.metrics.stats.bootstrap import CELLS, Order, StandardError, order_cells
from llm_locust.metrics.stats.censoring import PERCENTILES
from llm_locust.metrics.stats.intervals import (
    Memory,
    Observed,
    Worth,
    in_order,
    is_told,
    mean_ends,
    needed,
    percentile_shares,
    ratio_ends,
    scaled_ends,
    share_ends,
    share_worth,
)

Floats = NDArray[np.float64]


def normal(seed: int, memory: float, n: int) -> Floats:
    """Values around 10, each with ``memory`` of the one before."""
    steps = np.random.default_rng(seed).normal(size=n) * math.sqrt(1 - memory**2)
    steps[:1] /= math.sqrt(1 - memory**2)
    return 10 + np.fromiter(accumulate(steps, lambda before, step: memory * before + step), float, n)


@pytest.mark.parametrize(("memory", "n"), [(0.0, 400), (0.9, 4_000)])
def test_intervals_hold_the_truth_about_as_often_as_they_say(memory: float, n: int) -> None:
    """0.95 of 150 runs come out below 0.90 once in a hundred times."""
    held, told = dict.fromkeys(("mean", "p50", "p90"), 0), 0
    truth = {"mean": 10.0, "p50": 10.0, "p90": 10 + 1.2815515655}
    for seed in range(150):
        ends = summarise_latency(normal(seed, memory, n))["ci95"]
        for key in held:
            told += ends[key] is not None
            held[key] += ends[key] is None or ends[key][0] <= truth[key] * 1e3 <= ends[key][1]
    assert told > 0.97 * 3 * 150
    assert all(0.9 <= count / 150 <= 1 for count in held.values()), held


def test_independent_samples_are_worth_their_number_and_correlated_ones_far_less() -> None:
    apart, alike = (summarise_latency(normal(1, memory, 4_000))["n_effective"] for memory in (0.0, 0.9))
    assert apart["p50"] > 3_000
    assert alike["p50"] < 600
    assert alike["mean"] == pytest.approx(4_000 * 0.1 / 1.9, rel=0.5)  # n (1 - r) / (1 + r)


def test_a_run_that_is_shorter_than_its_memory_has_no_interval() -> None:
    figures = summarise_latency(np.linspace(1.0, 2.0, 2_000))  # it only ever grew
    assert figures["p50"] is not None
    assert set(figures["ci95"].values()) == {None}


def test_one_long_stall_leaves_the_mean_and_the_tail_untold_and_the_median_told() -> None:
    values = normal(1, 0.0, 10_000)
    values[4_000:4_300] = 500.0
    ends = summarise_latency(values)["ci95"]
    assert ends["p50"] is not None
    assert (ends["p99"], ends["p99_9"]) == (None, None)


def test_values_that_are_all_one_have_an_interval_of_no_width() -> None:
    figures = summarise_latency(np.full(500, 0.02))
    assert figures["n_effective"]["p50"] == 500
    assert figures["ci95"]["p50"] == pytest.approx([20, 20])
    assert figures["ci95"]["mean"] == pytest.approx([20, 20])


@pytest.mark.parametrize(("percent", "expected"), [(50, 40), (75, 57), (90, 100), (95, 200), (99, 1_000)])
def test_an_interval_needs_ten_effective_samples_beyond(percent: float, expected: int) -> None:
    assert needed(percent) == expected
    assert needed(100 - percent) == expected


def test_a_withheld_interval_leaves_its_percentile() -> None:
    figures = summarise_latency(normal(1, 0.0, 300))
    assert figures["p99"] is not None
    assert figures["ci95"]["p99"] is None
    assert figures["ci95"]["p50"] is not None


def test_the_upper_end_of_an_adjusted_interval_can_be_beyond() -> None:
    values = np.random.default_rng(2).exponential(size=930)
    low, high = summarise_latency(values, failed=70)["ci95"]["p90"]
    assert high is not None
    low, high = summarise_latency(values[:910], failed=90)["ci95"]["p90"]
    assert low is not None
    assert high is None


def test_wilsons_interval_with_the_correction_for_continuity_is_the_textbooks() -> None:
    """81 of 263, 15 of 148, 0 of 20 and 1 of 29: Newcombe 1998, table I, method 4."""
    z = 1.959964
    for hits, n, expected in (
        (81, 263, (0.2535, 0.3682)),
        (15, 148, (0.0598, 0.1644)),
        (0, 20, (0.0, 0.2005)),
        (1, 29, (0.0018, 0.1963)),
    ):
        assert share_ends(hits / n, n, z) == pytest.approx(expected, abs=6e-5)


@given(st.floats(0, 1), st.floats(1, 1e6), st.floats(0.5, 20))
def test_a_shares_interval_has_it_inside_and_stays_a_share(share: float, n: float, z: float) -> None:
    low, high = share_ends(share, n, z)
    assert 0 <= low <= share + 1e-9
    assert share - 1e-9 <= high <= 1


def test_a_share_of_all_is_worth_no_more_than_what_is_slow_together() -> None:
    counts = np.full(100, 10.0)
    slow = Worth(StandardError(0.1, 20), 55.0)
    assert share_worth(counts, counts) == Worth(StandardError(0.0, 99), 1_000)
    assert share_worth(counts, counts, slow) == slow
    half = np.tile([4.0, 6.0], 50)
    assert share_worth(half, counts, slow) == share_worth(half, counts)


def test_a_single_cell_does_not_show_how_cells_differ() -> None:
    assert share_worth(np.array([3.0, 0.0]), np.array([5.0, 0.0])) is None


def test_a_means_interval_is_as_far_in_both_directions_by_its_ratio() -> None:
    low, high = scaled_ends(2.0, StandardError(0.1, 1e9), 0.95)
    assert low * high == pytest.approx(4.0)
    assert high == pytest.approx(2 * math.exp(1.96 * 0.05), rel=1e-4)
    assert scaled_ends(0.0, StandardError(0.1, 1e9), 0.95) == pytest.approx((-0.196, 0.196), abs=1e-4)


# --- runs that happen to be quiet -------------------------------------------------------------------


def test_the_memory_of_a_run_decides_and_dependent_samples_need_twice_as_many() -> None:
    assert Memory(100, 100).margin(100) == 1
    assert Memory(110, 100).margin(100) == pytest.approx(100 / 110)
    assert Memory(1_000, 199).margin(100) < 1
    assert Memory(1_000, 200).margin(100) == 1
    assert Memory(1_000, 0).margin(1) == 0
    error = StandardError(1.0, 30)
    assert is_told(Worth(error, 75, Memory(1_000, 200)), 100)
    assert not is_told(Worth(error, 1_000, Memory(1_000, 199)), 100)
    assert not is_told(Worth(error, 74, Memory(1_000, 1_000)), 100)
    assert not is_told(Worth(error, 1_000), 100)
    assert not is_told(Worth(StandardError(1.0, 4, settled=False), 1_000, Memory(1_000, 1_000)), 100)


def test_with_little_memory_to_spare_the_end_towards_the_tail_is_moved_out_and_no_other() -> None:
    error, z = StandardError(0.1, 1e9), 1.959964
    plain = scaled_ends(2.0, error, 0.95)
    up, down = (mean_ends(2.0, Worth(error, 150, Memory(1e6, 200, upward)), 0.95) for upward in (True, False))
    far = scaled_ends(2.0, StandardError(0.35, 1e9), 0.95)
    assert up == pytest.approx((plain[0], far[1]), rel=1e-3)
    assert down == pytest.approx((far[0], plain[1]), rel=1e-3)
    assert mean_ends(2.0, Worth(error, 150, Memory(1e6, 600)), 0.95) == plain
    low, high = percentile_shares(90, Worth(error, 150, Memory(1e6, 200)), 0.95)
    assert low == pytest.approx(share_ends(0.9, 150, z)[0], rel=1e-4)
    assert high == pytest.approx(share_ends(0.9, 150 / 3.5**2, z)[1], rel=1e-4)
    # Of a ratio the rarer outcome is what a quiet run shows too little of.
    few = Worth(error, 150, Memory(1e6, 160))
    assert ratio_ends(0.95, few, 0.95)[0] < share_ends(0.95, 150, z)[0]
    assert ratio_ends(0.95, few, 0.95)[1] == pytest.approx(share_ends(0.95, 150, z)[1], rel=1e-4)
    assert ratio_ends(0.05, few, 0.95)[1] > share_ends(0.05, 150, z)[1]


@given(st.floats(1, 1e6), st.floats(0, 1), st.floats(0, 1), st.floats(1, 1e4))
def test_a_stretch_moves_no_end_inwards_and_leaves_independent_samples_alone(
    n: float, memory: float, own: float, fewest: float
) -> None:
    stretch = Worth(StandardError(1.0, 9), n * own, Memory(n, n * memory)).stretch(fewest)
    assert 1 - 1e-9 <= stretch <= 3.5 + 1e-9
    assert Worth(StandardError(1.0, 9), n, Memory(n, n * memory)).stretch(fewest) == pytest.approx(1)


def test_a_percentile_has_an_interval_only_where_those_nearer_the_median_have() -> None:
    """Values just above the median rise in the middle of the run, of which the p99 knows nothing."""
    values = np.random.default_rng(1).random(20_000)
    above = (values > 0.5) & (values < 0.9)
    values[above] = np.where(np.flatnonzero(above) < 10_000, 0.6, 0.8)
    every = {"p50": 50.0, "p65": 65.0, "p99": 99.0}
    both, far = (summarise_latency(values, places=places) for places in (every, {"p50": 50.0, "p99": 99.0}))
    assert both["n_effective"]["p99"] > needed(99)
    assert (both["ci95"]["p65"], both["ci95"]["p99"]) == (None, None)
    assert both["ci95"]["p50"] is not None
    assert far["ci95"]["p99"] is not None


def test_most_samples_at_the_highest_value_leave_the_low_percentiles_their_intervals() -> None:
    """The median is the maximum, as that of shares that came on time often is."""
    rng = np.random.default_rng(1)
    shares = np.where(rng.random(5_000) < 0.7, 1.0, rng.random(5_000))
    figures = summarise_latency(shares, places={"p50": 50.0, "p5": 5.0, "p1": 1.0})
    assert figures["ci95"]["p5"] is not None
    assert figures["ci95"]["p1"] is not None


# --- cells ------------------------------------------------------------------------------------------


@given(st.integers(0, 2_000))
def test_cells_of_an_order_have_as_many_items(items: int) -> None:
    sizes = np.diff(Order.even(items).bounds)
    assert sizes.sum() == items
    assert len(sizes) == min(items, CELLS)
    assert not items or sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("at", [(1.0, 2.0, 3.0), (3.0, 1.0, 2.0), (2.0, 2.0, 1.0), (1.0, 1.0, 1.0)])
def test_requests_are_in_the_order_of_their_schedule_and_those_of_one_time_by_what_became_of_them(
    at: tuple[float, ...],
) -> None:
    took = (0.3, 0.1, 0.2)
    records = [request(t, (e2el,)) for t, e2el in zip(at, took, strict=True)]
    expected = sorted(zip(at, took, strict=True))
    for some in permutations(range(3)):
        c = columns(*(records[i] for i in some))
        order = order_cells(c, np.arange(3))
        found = zip(order.sorted(c.scheduled_s), order.sorted(c.last_event_s), strict=True)
        assert [*map(tuple, found)] == [pytest.approx(each) for each in expected]


@given(st.lists(st.tuples(st.floats(0, 10), st.booleans()), min_size=1, max_size=300), st.randoms())
def test_a_part_of_an_order_stays_in_its_cells(items: list[tuple[float, bool]], random: object) -> None:
    values = np.array([value for value, _ in items])
    which = np.array([chosen for _, chosen in items])
    places = np.argsort(values, kind="stable")
    for order in (Order.even(len(items)), Order.even(len(items), places)):
        of_part = order.having(which)
        expected = order.sums(np.where(order.sorted(which), order.sorted(values), 0.0))
        assert of_part.sums(of_part.sorted(values[which])) == pytest.approx(expected)


@given(st.lists(st.one_of(st.none(), st.floats(0, 100)), min_size=1, max_size=400), st.floats(0, 100))
def test_a_course_counts_what_is_at_or_below_a_limit(values: list[float | None], limit: float) -> None:
    samples = np.array([math.nan if value is None else value for value in values])
    course = in_order(samples)
    assert course.counts.sum() == sum(value is not None for value in values)
    assert course.at_most(np.array([limit]))[0].sum() == sum(v is not None and v <= limit for v in values)
    assert course.sums.sum() == pytest.approx(sum(v for v in values if v is not None))


def test_infinite_samples_are_counted_and_are_at_most_no_limit() -> None:
    course = in_order(np.ones(500), 500)
    assert course.counts.sum() == 1_000
    assert course.at_most(np.array([1e300]))[0].sum() == 500
    assert np.ptp(course.at_most(np.array([1.0]))[0]) <= 2  # they lie evenly among the others


# --- gaps -------------------------------------------------------------------------------------------


def test_gaps_are_counted_up_to_the_nearest_edge_of_a_bin() -> None:
    rng = np.random.default_rng(1)
    gaps_ns = np.rint(rng.lognormal(16.8, 0.5, 20_000)).astype(np.int64)
    cell_of = np.sort(rng.integers(0, 256, 200))
    counts = np.full(200, 100)
    whole = GapCourse(256)
    whole.add(gaps_ns, counts, cell_of)
    halves = [GapCourse(256), GapCourse(256)]
    halves[0].add(gaps_ns[:7_000], counts[:70], cell_of[:70])
    halves[1].add(gaps_ns[7_000:], counts[70:], cell_of[70:])
    merged = joined(halves)
    assert merged is not None
    limits = np.percentile(gaps_ns, list(PERCENTILES.values())) * 1e-9
    exact = (
        Observed(Order.even(20_000), np.asarray(gaps_ns * 1e-9, dtype=np.float64)).at_most(limits).sum(axis=1)
    )
    for course in (whole, merged):
        assert course.counts.sum() == 20_000
        assert course.sums.sum() == pytest.approx(gaps_ns.sum() * 1e-9)
        assert course.at_most(limits).sum(axis=1) == pytest.approx(exact, rel=0.005)
    assert whole.at_most(limits) == pytest.approx(merged.at_most(limits))


def test_a_limit_in_the_bin_of_all_gaps_but_a_few_is_at_the_edge_that_parts_these() -> None:
    course = GapCourse(2)
    gaps_ns = np.array([20_000_000] * 98 + [90_000_000] * 2)
    course.add(gaps_ns, np.array([50, 50]), np.array([0, 1]))
    assert course.at_most(np.array([0.02]))[0].tolist() == [50, 48]
    assert course.at_most(np.array([0.09]))[0].tolist() == [50, 48]
    assert course.sums == pytest.approx([50 * 0.02, 48 * 0.02 + 2 * 0.09], rel=1e-12)


@pytest.mark.parametrize(("limit_ms", "counted"), [(19.990, 10), (20.050, 110)])
def test_a_limit_in_a_bin_is_at_the_edge_that_it_is_nearer_to(limit_ms: float, counted: int) -> None:
    course = GapCourse(1)  # at 20 ms a bin is 65,536 ns wide
    gaps_ns = np.repeat([10_000_000, 20_000_000, 40_000_000], [10, 100, 10])
    course.add(gaps_ns, np.array([120]), np.array([0]))
    assert course.at_most(np.array([limit_ms * 1e-3])).sum() == counted
    assert course.table.shape == (1, 513)  # two powers of two, and nothing before the shortest gap
