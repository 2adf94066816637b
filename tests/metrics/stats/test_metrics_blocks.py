"""The error of short runs, by few long blocks."""

import math
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

from llm_locust.metrics.columns import Floats
from llm_locust.metrics.stats.bootstrap import StandardError
from llm_locust.metrics.stats.estimates import InBlocks, Noise, Remembered, blocks_of, merged, of_none, unseen
from llm_locust.metrics.stats.intervals import Worth, in_order, worths

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


def noise(cells: Worth, blocks: Worth, level: float = 20.0) -> Noise:
    return Noise(cells, blocks, level, 50.0)


SMALL, LARGE = Worth(StandardError(0.1, 1e9), 400.0), Worth(StandardError(0.2, 1e9), 100.0)
#: Of three blocks: Student's t of 2 degrees is 4.30, where many have 1.96.
OF_THREE = Worth(StandardError(0.1, 2), 400.0)


@pytest.mark.parametrize(("cells", "blocks"), [(SMALL, LARGE), (LARGE, SMALL)])
def test_the_interval_of_a_mean_is_that_of_the_larger_error(cells: Worth, blocks: Worth) -> None:
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
    twenty = Worth(StandardError(0.1, 1e9), 20.0)
    assert noise(twenty, twenty, level=10.0).effective(0.5) == pytest.approx(20 / 1.4**2)  # ten are enough


def test_an_end_is_known_only_where_some_of_so_few_samples_would_lie_beyond_it() -> None:
    """33 effective samples: all of them are at or below a p90 in 3.1 % of cases, and a p80 in 0.1 %."""
    of = noise(SMALL, Worth(StandardError(0.1, 1e9), 40.0), level=40.0)
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
            worths(each, float(values.mean()), float(values.std()), median, [median])
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
