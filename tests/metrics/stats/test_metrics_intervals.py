"""Intervals hold the truth about as often as they say, or there is none: in a queue too."""

import math
from dataclasses import dataclass, field
from itertools import accumulate, pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from metrics_cases import columns, request, summarise_latency
from numpy.typing import NDArray

from llm_locust.metrics.requests.gaps import GapCourse, joined
from llm_locust.metrics.stats.bootstrap import (
    CELLS,
    Order,
    StandardError,
    block_length,
    longest_block,
    order_cells,
    standard_error,
)
from llm_locust.metrics.stats.censoring import PERCENTILES
from llm_locust.metrics.stats.estimates import InBlocks, Noise, Remembered, blocks_of, merged, of_none, unseen
from llm_locust.metrics.stats.intervals import (
    EffectiveSize,
    Memory,
    Observed,
    effective_sizes,
    in_order,
    is_told,
    mean_ends,
    needed,
    percentile_shares,
    ratio_ends,
    scaled_ends,
    share_ends,
    share_size,
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
    slow = EffectiveSize(StandardError(0.1, 20), 55.0)
    assert share_size(counts, counts) == EffectiveSize(StandardError(0.0, 99), 1_000)
    assert share_size(counts, counts, slow) == slow
    half = np.tile([4.0, 6.0], 50)
    assert share_size(half, counts, slow) == share_size(half, counts)


def test_a_single_cell_does_not_show_how_cells_differ() -> None:
    assert share_size(np.array([3.0, 0.0]), np.array([5.0, 0.0])) is None


def test_a_means_interval_is_as_far_in_both_directions_by_its_ratio() -> None:
    low, high = scaled_ends(2.0, StandardError(0.1, 1e9), 0.95)
    assert low * high == pytest.approx(4.0)
    assert high == pytest.approx(2 * math.exp(1.96 * 0.05), rel=1e-4)
    assert scaled_ends(0.0, StandardError(0.1, 1e9), 0.95) == pytest.approx((-0.196, 0.196), abs=1e-4)


def test_the_memory_of_a_run_decides_and_dependent_samples_need_twice_as_many() -> None:
    assert Memory(100, 100).margin(100) == 1
    assert Memory(110, 100).margin(100) == pytest.approx(100 / 110)
    assert Memory(1_000, 199).margin(100) < 1
    assert Memory(1_000, 200).margin(100) == 1
    assert Memory(1_000, 0).margin(1) == 0
    error = StandardError(1.0, 30)
    assert is_told(EffectiveSize(error, 75, Memory(1_000, 200)), 100)
    assert not is_told(EffectiveSize(error, 1_000, Memory(1_000, 199)), 100)
    assert not is_told(EffectiveSize(error, 74, Memory(1_000, 1_000)), 100)
    assert not is_told(EffectiveSize(error, 1_000), 100)
    assert not is_told(EffectiveSize(StandardError(1.0, 4, settled=False), 1_000, Memory(1_000, 1_000)), 100)


def test_with_little_memory_to_spare_the_end_towards_the_tail_is_moved_out_and_no_other() -> None:
    error, z = StandardError(0.1, 1e9), 1.959964
    plain = scaled_ends(2.0, error, 0.95)
    up, down = (
        mean_ends(2.0, EffectiveSize(error, 150, Memory(1e6, 200, upward)), 0.95) for upward in (True, False)
    )
    far = scaled_ends(2.0, StandardError(0.35, 1e9), 0.95)
    assert up == pytest.approx((plain[0], far[1]), rel=1e-3)
    assert down == pytest.approx((far[0], plain[1]), rel=1e-3)
    assert mean_ends(2.0, EffectiveSize(error, 150, Memory(1e6, 600)), 0.95) == plain
    low, high = percentile_shares(90, EffectiveSize(error, 150, Memory(1e6, 200)), 0.95)
    assert low == pytest.approx(share_ends(0.9, 150, z)[0], rel=1e-4)
    assert high == pytest.approx(share_ends(0.9, 150 / 3.5**2, z)[1], rel=1e-4)
    # Of a ratio the rarer outcome is what a quiet run shows too little of.
    few = EffectiveSize(error, 150, Memory(1e6, 160))
    assert ratio_ends(0.95, few, 0.95)[0] < share_ends(0.95, 150, z)[0]
    assert ratio_ends(0.95, few, 0.95)[1] == pytest.approx(share_ends(0.95, 150, z)[1], rel=1e-4)
    assert ratio_ends(0.05, few, 0.95)[1] > share_ends(0.05, 150, z)[1]


@given(st.floats(1, 1e6), st.floats(0, 1), st.floats(0, 1), st.floats(1, 1e4))
def test_a_stretch_moves_no_end_inwards_and_leaves_independent_samples_alone(
    n: float, memory: float, own: float, fewest: float
) -> None:
    stretch = EffectiveSize(StandardError(1.0, 9), n * own, Memory(n, n * memory)).stretch(fewest)
    assert 1 - 1e-9 <= stretch <= 3.5 + 1e-9
    assert EffectiveSize(StandardError(1.0, 9), n, Memory(n, n * memory)).stretch(fewest) == pytest.approx(1)


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
    assert course.table.shape == (3, 1)  # of two powers of two, the bins that have any


VALUES = np.array([1.0, 4.0, 2.0, 8.0, 5.0, 7.0, 3.0])


@pytest.mark.parametrize(
    ("cells", "rounds", "found"),
    [
        (100, 16.0, 8),  # two rounds each
        (100, 100.0, 8),  # at most
        (100, 10.0, 5),
        (100, 5.9, 3),  # of few rounds one each
        (100, 2.9, None),
        (5, 100.0, 5),  # a block has a request in it
        (2, 100.0, None),
        (100, 3 - 1e-12, 3),  # three, and the rounding of floats
    ],
)
def test_a_block_is_two_rounds_long_and_one_where_there_are_few(
    cells: int, rounds: float, found: int | None
) -> None:
    assert blocks_of(cells, rounds) == found


@given(st.lists(st.integers(0, 100), min_size=3, max_size=60), st.integers(3, 8))
def test_blocks_have_every_cell_once_in_the_order_of_the_run(cells: list[int], blocks: int) -> None:
    blocks = min(blocks, len(cells))
    found = merged(np.array(cells, np.float64), blocks)
    sizes = merged(np.ones(len(cells)), blocks).astype(int)
    assert sizes.max() - sizes.min() <= 1
    edges = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    assert found.tolist() == [sum(cells[a:b]) for a, b in pairwise(edges)]
    assert edges[-1] == len(cells)


def test_a_course_in_blocks_has_the_sums_of_their_samples() -> None:
    course = InBlocks(in_order(VALUES), 3)  # two, two and three
    assert course.counts.tolist() == [2, 2, 3]
    assert course.sums.tolist() == [5, 10, 15]
    assert course.at_most(np.array([2.0, 5.0])).tolist() == [[1, 1, 0], [2, 1, 2]]


@dataclass(slots=True)
class Counting:
    """A course that keeps what it was asked."""

    counts: Floats = field(default_factory=lambda: np.ones(len(VALUES)))
    sums: Floats = field(default_factory=lambda: VALUES)
    asked: list[list[float]] = field(default_factory=list)

    def at_most(self, limits: Floats) -> Floats:
        self.asked.append(limits.tolist())
        return in_order(VALUES).at_most(limits)


def test_a_course_is_asked_once_for_the_same_limits() -> None:
    course = Counting()
    remembered = Remembered(course)
    for limits in ([2.0], [2.0, 5.0], [2.0]):
        found = remembered.at_most(np.array(limits))
        assert found.tolist() == in_order(VALUES).at_most(np.array(limits)).tolist()
    assert course.asked == [[2.0], [2.0, 5.0]]
    assert (remembered.counts.sum(), remembered.sums.sum()) == (7, 30)


@pytest.mark.parametrize(("worth", "factor"), [(20.0, 1.2), (100.0, 1.04), (1.0, 5.0), (0.01, 5.0)])
def test_an_error_is_a_fifth_larger_than_it_seems_at_twenty_samples(worth: float, factor: float) -> None:
    assert unseen(worth) == pytest.approx(factor)


@pytest.mark.parametrize(("n", "bound"), [(10, 0.3085), (30, 0.1157), (100, 0.0362)])
def test_of_none_among_n_the_bound_is_that_of_clopper_and_pearson(n: int, bound: float) -> None:
    assert of_none(n, 0.95) == pytest.approx(bound, abs=5e-5)  # of their tables
    assert (1 - of_none(n, 0.95)) ** n == pytest.approx(0.025)  # as rarely none of n come at that share


def noise(cells: EffectiveSize, blocks: EffectiveSize, level: float = 20.0) -> Noise:
    return Noise(cells, blocks, level, 50.0)


SMALL, LARGE = EffectiveSize(StandardError(0.1, 1e9), 400.0), EffectiveSize(StandardError(0.2, 1e9), 100.0)


#: Of three blocks: Student's t of 2 degrees is 4.30, where many have 1.96.
OF_THREE = EffectiveSize(StandardError(0.1, 2), 400.0)


@pytest.mark.parametrize(("cells", "blocks"), [(SMALL, LARGE), (LARGE, SMALL)])
def test_the_interval_of_a_mean_is_that_of_the_larger_error(
    cells: EffectiveSize, blocks: EffectiveSize
) -> None:
    low, high = noise(cells, blocks).mean_ends(10.0, 0.95)
    reach = 1.2 * 1.959964 * 0.2  # the run is worth 20
    assert (low, high) == pytest.approx((10 * math.exp(-reach / 10), 10 * math.exp(reach / 10)))
    assert noise(SMALL, OF_THREE).mean_ends(10.0, 0.95)[1] > high  # 4.30 * 0.1: what the ends are counts


def test_what_is_rare_is_worth_no_more_than_the_level_of_the_run() -> None:
    many = noise(SMALL, SMALL, level=100.0)
    assert many.effective(0.5) == pytest.approx(400 / 1.08**2)  # in 50 rounds
    assert many.effective(0.975) == pytest.approx(400 / 1.08**2)  # ten samples are beyond it
    assert many.effective(0.98) == many.effective(0.02) == pytest.approx(100 / 1.08**2)
    assert noise(SMALL, LARGE, level=20.0).effective(0.5) == pytest.approx(100 / 1.2**2)
    twenty = EffectiveSize(StandardError(0.1, 1e9), 20.0)
    assert noise(twenty, twenty, level=10.0).effective(0.5) == pytest.approx(20 / 1.4**2)  # ten are enough


def test_an_end_is_known_only_where_some_of_so_few_samples_would_lie_beyond_it() -> None:
    """33 effective samples: all of them are at or below a p90 in 3.1 % of cases, and a p80 in 0.1 %."""
    of = noise(SMALL, EffectiveSize(StandardError(0.1, 1e9), 40.0), level=40.0)
    assert of.effective(0.5) == pytest.approx(40 / 1.1**2)
    for end in of.share_ends(0.5, 0.95):  # Wilson's definition: so many errors of its own away
        assert abs(0.5 - end) == pytest.approx(1.959964 * math.sqrt(end * (1 - end) * 1.1**2 / 40), rel=1e-4)
    assert of.share_ends(0.9, 0.95)[1] == 1.0
    assert of.share_ends(0.1, 0.95)[0] == 0.0
    assert 0.8 < of.share_ends(0.8, 0.95)[1] < 1.0
    assert 0.0 < of.share_ends(0.2, 0.95)[0] < 0.2


def test_the_interval_of_a_share_is_that_of_the_larger_error() -> None:
    """As many samples, but three blocks to know it from."""
    low, high = noise(SMALL, OF_THREE).share_ends(0.5, 0.95)
    reach = 4.302653 * math.sqrt(high * (1 - high) * 1.2**2 / 400)
    assert (high - 0.5, 0.5 - low) == pytest.approx((reach, reach), rel=1e-4)
    assert noise(OF_THREE, SMALL).share_ends(0.5, 0.95) == (low, high)


@pytest.mark.parametrize("n", [12, 30, 80])
def test_of_short_runs_the_intervals_of_95_percent_hold_the_truth_in_about_as_many(n: int) -> None:
    """Independent answers of one user: their mean is e^0.125, the median 1."""
    rng, held = np.random.default_rng(n), {"mean": 0, "p50": 0}
    for _ in range(200):
        values = np.exp(0.5 * rng.normal(size=n))
        blocks = blocks_of(n, n)
        assert blocks is not None
        course, median = in_order(values), float(np.median(values))
        of = [
            effective_sizes(each, float(values.mean()), float(values.std()), median, [median])
            for each in (course, InBlocks(course, blocks))
        ]
        (cells, (cells_p50,)), (in_blocks, (blocks_p50,)) = of
        assert cells is not None
        assert in_blocks is not None
        assert cells_p50 is not None
        assert blocks_p50 is not None
        level = min(cells_p50.n_eff, blocks_p50.n_eff)
        low, high = Noise(cells, in_blocks, level, n).mean_ends(float(values.mean()), 0.95)
        held["mean"] += low <= math.exp(0.125) <= high
        low, high = Noise(cells_p50, blocks_p50, level, n).share_ends(0.5, 0.95)
        held["p50"] += np.quantile(values, low) <= 1.0 <= np.quantile(values, high)
    assert min(held.values()) >= 0.92 * 200, held


def noise_of_bootstrap(seed: int, memory: float = 0.0, n: int = CELLS) -> Floats:
    """An autoregressive series of variance 1, each value having ``memory`` of the one before."""
    steps = np.random.default_rng(seed).normal(size=n) * math.sqrt(1 - memory**2)
    return np.fromiter(accumulate(steps, lambda before, step: memory * before + step), float, n)


def true_error(memory: float, n: int = CELLS) -> float:
    """The standard deviation of the mean of such a series, by its long-run variance."""
    return math.sqrt((1 + memory) / (1 - memory) / n)


def errors(memory: float, runs: int = 60) -> Floats:
    """The standard errors of the mean that a bootstrap of many such series gives."""
    found = [standard_error(noise_of_bootstrap(seed, memory), np.ones(CELLS)) for seed in range(runs)]
    return np.array([error.value for error in found if error is not None])


def drawn_error(values: Floats, length: int, draws: int = 20_000) -> float:
    """The standard deviation of the mean of a run put together of random blocks, by drawing them."""
    rng, n = np.random.default_rng(0), len(values)
    starts = rng.integers(0, n, (draws, n // length, 1))
    means = values[(starts + np.arange(length)).reshape(draws, -1) % n].mean(axis=1)
    blocks = n / length
    return float(means.std()) * math.sqrt(blocks / (blocks - 1))


@pytest.mark.parametrize("memory", [0.0, 0.8])
def test_the_error_is_that_of_all_draws_of_blocks(memory: float) -> None:
    values = noise_of_bootstrap(3, memory, 240)
    found = standard_error(values, np.ones(240))
    assert found is not None
    length = block_length(values - values.mean())
    if 240 % length:
        length = next(d for d in range(length, 240) if 240 % d == 0)
    assert found.value == pytest.approx(drawn_error(values, length), rel=0.08)


def test_blocks_that_do_not_fit_into_the_run_are_told() -> None:
    short = standard_error(noise_of_bootstrap(1, 0.995), np.ones(CELLS))
    apart = standard_error(noise_of_bootstrap(1, 0.0), np.ones(CELLS))
    assert short is not None
    assert apart is not None
    assert not short.settled
    assert apart.settled
    assert longest_block(4) == 1
    few = standard_error(np.arange(4.0), np.ones(4))
    assert few is not None
    assert not few.settled


def test_the_error_of_independent_values_is_the_textbooks() -> None:
    assert errors(memory=0.0).mean() == pytest.approx(1 / math.sqrt(CELLS), rel=0.08)


@pytest.mark.parametrize("memory", [0.5, 0.8, 0.9])
def test_values_that_resemble_their_neighbours_count_as_fewer(memory: float) -> None:
    found = errors(memory)
    assert 0.7 * true_error(memory) < float(np.median(found)) < 1.25 * true_error(memory)
    assert float(np.median(found)) > 1.4 / math.sqrt(CELLS)


@pytest.mark.parametrize(("memory", "share"), [(0.0, 0.912), (0.5, 0.912), (0.9, 0.87)])
def test_the_interval_of_a_mean_holds_it_about_as_often_as_it_says(memory: float, share: float) -> None:
    """The true mean is 0. In 300 runs 95 % come out as 91.2 % once in a thousand times."""
    held = {0.95: 0, 0.998: 0}
    for seed in range(300):
        values = noise_of_bootstrap(seed, memory)
        error = standard_error(values, np.ones(CELLS))
        assert error is not None
        for confidence in held:
            held[confidence] += abs(float(values.mean())) <= error.reach(confidence)
    assert held[0.95] / 300 > share
    assert held[0.998] / 300 > 0.985


def test_blocks_are_as_long_as_the_memory_of_the_series() -> None:
    def lengths(memory: float) -> float:
        return float(np.mean([block_length(noise_of_bootstrap(seed, memory)) for seed in range(40)]))

    assert lengths(0.0) < 6 < lengths(0.5) < lengths(0.9) <= CELLS / 5


def test_a_series_without_any_difference_has_no_error_and_blocks_of_one() -> None:
    assert block_length(np.ones(CELLS)) == 1
    error = standard_error(np.full(CELLS, 3.0), np.ones(CELLS))
    assert error is not None
    assert error.value == pytest.approx(0, abs=1e-12)


def test_a_single_cell_says_nothing_of_how_cells_differ() -> None:
    weights = np.zeros(CELLS)
    assert standard_error(weights, weights) is None
    weights[3] = 5
    assert standard_error(weights, weights) is None


def test_a_ratio_of_sums_has_the_error_of_the_ratio() -> None:
    rng = np.random.default_rng(1)
    counts = rng.poisson(20, CELLS).astype(float)
    sums = 3 * counts + rng.normal(size=CELLS)
    error = standard_error(sums, counts)
    assert error is not None
    # The counts vary by far more than the ratio, which is 3 in every cell but for the noise added.
    assert error.value == pytest.approx(math.sqrt(CELLS) / counts.sum(), rel=0.25)


def test_degrees_of_freedom_are_those_of_the_blocks() -> None:
    even, uneven = (standard_error(noise_of_bootstrap(1, m), np.ones(CELLS)) for m in (0.0, 0.9))
    assert even is not None
    assert uneven is not None
    assert even.degrees > 4 * uneven.degrees
    assert uneven.degrees >= 4
    few = standard_error(np.arange(4.0), np.ones(4))
    assert few is not None
    assert few.degrees == 3


@given(st.integers(0, 50), st.floats(0.001, 1000))
def test_the_error_has_the_unit_of_its_figure(seed: int, scale: float) -> None:
    values, ones = noise_of_bootstrap(seed, 0.5, 64), np.ones(64)
    plain, scaled = (standard_error(k * values, ones) for k in (1.0, scale))
    assert plain is not None
    assert scaled is not None
    assert scaled.value == pytest.approx(scale * plain.value, rel=1e-9)


def test_an_interval_is_wider_of_fewer_degrees_and_of_more_confidence() -> None:
    error = StandardError(2.0, 10)
    assert error.reach(0.95) == pytest.approx(2 * 2.228, rel=1e-3)
    assert error.reach(0.998) > error.reach(0.95) > StandardError(2.0, 200).reach(0.95)
