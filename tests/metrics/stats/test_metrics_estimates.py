"""A figure of one run with its interval, and the difference of two runs' figures."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from llm_locust.figures.relative_gates import State, judge_change, parse_relative_gates
from llm_locust.metrics.stats.bootstrap import StandardError
from llm_locust.metrics.stats.censoring import Durations
from llm_locust.metrics.stats.estimates import (
    Average,
    Difference,
    Estimate,
    Noise,
    Percentile,
    Rate,
    Share,
    alike,
    change,
    difference,
)
from llm_locust.metrics.stats.intervals import EffectiveSize, Memory, percentile_shares

Z = 1.959964
UNKNOWN = -math.inf, math.inf
ERROR = StandardError(0.1, 1e9)
#: From 0 to 1: the value at a share is the share.
SAMPLES = Durations(np.linspace(0.0, 1.0, 1_001))


def independent(n: float) -> EffectiveSize:
    """So many samples that do not depend on each other."""
    return EffectiveSize(ERROR, n, Memory(n, n))


@pytest.mark.parametrize(
    ("figure", "ends"),
    [
        (Average(1.0, None), UNKNOWN),
        (Average(1.0, independent(99)), UNKNOWN),
        (Rate(1.0, None), UNKNOWN),
        (Rate(1.0, StandardError(0.1, 4, settled=False)), UNKNOWN),
        (Share(0.5, 100, None), (0.0, 1.0)),
        (Percentile(0.5, 50.0, SAMPLES, None), UNKNOWN),
        (Percentile(0.9, 90.0, SAMPLES, independent(99)), UNKNOWN),
    ],
)
def test_a_figure_of_too_few_samples_lies_anywhere(figure: Estimate, ends: tuple[float, float]) -> None:
    assert figure.ends(0.95) == ends


@pytest.mark.parametrize("figure", [Average(2.0, independent(100)), Rate(2.0, ERROR)])
def test_the_interval_of_a_mean_and_of_a_rate_is_that_of_its_logarithm(figure: Estimate) -> None:
    factor = math.exp(Z * 0.1 / 2)
    assert figure.ends(0.95) == pytest.approx((2 / factor, 2 * factor), rel=1e-4)


@pytest.mark.parametrize(
    "figure", [Share(0.1, 400, independent(400)), Percentile(0.1, 10.0, SAMPLES, independent(400))]
)
def test_the_ends_of_a_share_are_those_whose_own_samples_would_just_come_out_so(figure: Estimate) -> None:
    """Wilson's definition: a share x is z errors of its own away, and half a sample for continuity."""
    low, high = figure.ends(0.95)
    assert low < 0.1 < high
    for x in (low, high):
        assert abs(0.1 - x) - 1 / 800 == pytest.approx(Z * math.sqrt(x * (1 - x) / 400), rel=1e-3)


#: A run worth 20 samples: its error is a fifth larger than it seems.
FEW = Noise(independent(30), EffectiveSize(StandardError(0.2, 1e9), 30), 20.0, 25.0)


def test_a_run_that_is_too_short_for_its_cells_is_told_by_its_blocks() -> None:
    few = Average(2.0, independent(30), FEW)
    assert few.ends(0.95) == pytest.approx([2 * math.exp(way * 1.2 * Z * 0.2 / 2) for way in (-1, 1)])
    enough = Average(2.0, independent(100), FEW)
    assert enough.ends(0.95) == Average(2.0, independent(100)).ends(0.95)
    low, high = Percentile(0.5, 50.0, SAMPLES, independent(30), FEW).ends(0.95)
    for end in (low, high):
        assert abs(0.5 - end) == pytest.approx(Z * math.sqrt(end * (1 - end) * 1.2**2 / 30), rel=1e-3)
    assert Percentile(0.99, 99.0, SAMPLES, independent(30), FEW).ends(0.95)[1] == math.inf


@pytest.mark.parametrize(
    ("error", "blocks", "reach"),
    [
        (StandardError(0.3, 1e9), StandardError(0.5, 1e9), 0.3),  # 2 is 6.7 times its error
        (StandardError(0.4, 1e9), StandardError(0.5, 1e9), 1.2 * 0.5),  # 5 times: the run is short
        (StandardError(0.4, 1e9), StandardError(0.1, 1e9), 1.2 * 0.4),
        (StandardError(0.1, 1e9, settled=False), StandardError(0.2, 1e9), 1.2 * 0.2),
    ],
)
def test_a_rate_that_its_rounds_do_not_settle_is_told_by_the_larger_error(
    error: StandardError, blocks: StandardError, reach: float
) -> None:
    assert Rate(2.0, error, blocks, 20).ends(0.95)[1] == pytest.approx(2 * math.exp(Z * reach / 2))
    with_edge = Rate(2.0, error, blocks, 20, edge=0.4)
    assert with_edge.ends(0.95)[1] == pytest.approx(2 * math.exp(Z * math.hypot(reach, 0.4) / 2))


@pytest.mark.parametrize(
    ("worth", "blocks", "n_eff"),
    [
        (independent(400), EffectiveSize(ERROR, 50), 400),  # 50 hits: the cells show how they come
        (independent(80), EffectiveSize(ERROR, 50), 80),  # ten
        (independent(79), EffectiveSize(ERROR, 50), 50),  # fewer
        (independent(50), EffectiveSize(ERROR, 99), 50),
        (EffectiveSize(StandardError(0.1, 1e9, settled=False), 400), EffectiveSize(ERROR, 50), 50),
    ],
)
@pytest.mark.parametrize("value", [0.125, 0.875])
def test_a_share_of_few_hits_or_few_others_is_told_by_the_larger_error(
    worth: EffectiveSize, blocks: EffectiveSize, n_eff: float, value: float
) -> None:
    assert Share(value, 400, worth, blocks).ends(0.95) == Share(value, 400, independent(n_eff)).ends(0.95)


@pytest.mark.parametrize(("value", "ends"), [(0.0, (0.0, 0.0362)), (1.0, (0.9638, 1.0))])
def test_none_and_all_of_a_hundred_have_the_bound_of_clopper_and_pearson(
    value: float, ends: tuple[float, float]
) -> None:
    assert Share(value, 100, None).ends(0.95) == pytest.approx(ends, abs=5e-5)
    assert Share(value, 1_000, None, together=10).ends(0.95) == pytest.approx(ends, abs=5e-5)


def test_two_runs_failures_are_taken_to_come_together_alike() -> None:
    """Of 1,000 requests 50 failed, worth 25 samples: 40 come together, and none of 1,000 is none of 25."""
    clean, outage = Share(0.0, 1_000, None), Share(0.05, 1_000, independent(100), EffectiveSize(ERROR, 25))
    assert (clean.hits_together, outage.hits_together) == (1.0, 40.0)
    for pair in (alike(clean, outage), alike(outage, clean)[::-1]):
        assert pair[0].ends(0.95)[1] == pytest.approx(Share(0.0, 25, None).ends(0.95)[1])
        assert pair[1].ends(0.95) == outage.ends(0.95)
    apart = Share(0.05, 1_000, independent(1_000))
    assert apart.hits_together == 1.0
    assert alike(clean, apart) == (clean, apart)
    rate = Rate(2.0, ERROR)
    assert alike(rate, outage) == (rate, outage)  # no share: as it is


def test_the_difference_of_two_shares_is_newcombes_own_example() -> None:
    """56 of 70 and 48 of 80: Newcombe 1998, interval estimation for the difference, method 11."""
    found = difference(Share(48 / 80, 80, independent(80)), Share(56 / 70, 70, independent(70)), 0.95)
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.0428, 0.3422), abs=1e-4)
    assert found.is_known


@dataclass(frozen=True, slots=True)
class Between:
    """A figure whose interval is given."""

    value: float
    low: float
    high: float

    def ends(self, confidence: float) -> tuple[float, float]:
        return self.low, self.high


@pytest.mark.parametrize(
    ("base", "new", "low", "high"),
    [
        # Both are known to a factor of 2: the change is, to 2 to the power of √2.
        (Between(1, 0.5, 2), Between(2, 1, 4), 2 ** (1 - math.sqrt(2)) - 1, 2 ** (1 + math.sqrt(2)) - 1),
        (Between(2, 2, 2), Between(1, 0.5, 4), -0.75, 1.0),
        (Between(2, 1, 8), Between(1, 1, 1), -0.875, 0.0),
        (Between(1, 1, 1), Between(2, 0, 4), -1.0, 3.0),  # it may be nothing, and not less
        (Between(1, 0, 2), Between(2, 2, 2), 0.0, math.inf),  # of nothing any amount is a change without end
        (Between(1, -math.inf, math.inf), Between(2, 1, 4), -math.inf, math.inf),
        (Between(1, 0.5, 2), Between(2, -math.inf, math.inf), -math.inf, math.inf),
    ],
)
def test_a_change_is_as_far_from_its_ends_as_both_figures_are_on_a_scale_of_factors(
    base: Between, new: Between, low: float, high: float
) -> None:
    found = change(base, new, 0.95)
    assert found.value == pytest.approx(new.value / base.value - 1)
    assert (found.low, found.high) == pytest.approx((low, high))


def test_no_end_of_a_difference_is_beyond_what_it_can_be() -> None:
    found = Difference(0.1, -1.5, 1.2).within(-1.0, 1.0)
    assert found == Difference(0.1, -1.0, 1.0)
    assert Difference(0.1, -0.2, 0.3).within(-1.0, 1.0) == Difference(0.1, -0.2, 0.3)
    assert Difference(0.1, -math.inf, math.inf).within(-1.0, 1.0) == Difference(0.1, -math.inf, math.inf)


def test_the_difference_from_a_figure_that_lies_anywhere_is_not_known() -> None:
    for base, new in ((Rate(1.0, None), Rate(2.0, ERROR)), (Rate(2.0, ERROR), Rate(1.0, None))):
        found = difference(base, new, 0.95)
        assert (found.low, found.high) == UNKNOWN
        assert not found.is_known


def with_low_end_open(confidence: float) -> Percentile:
    """Of answers of 0.1 and 1 s two were cut, so that the share of each is open; there the interval ends."""
    worth = independent(1_000)
    low, _ = percentile_shares(60.0, worth, confidence)
    short = round(low * 1_002) - 1
    lasted = np.repeat([0.1, 1.0], [short, 1_000 - short])
    samples = Durations(lasted, np.array([0.05, 0.05]), trend=True)
    assert math.isnan(samples.quantile(low))
    return Percentile(samples.quantile(0.6), 60.0, samples, worth)


def test_an_end_of_a_percentile_that_cut_requests_leave_open_is_not_known() -> None:
    figure = with_low_end_open(0.95)
    assert figure.value == 1.0
    assert figure.ends(0.95) == (-math.inf, 1.0)
    cut = Durations(np.linspace(0.0, 1.0, 901), np.full(100, 2.0))  # nothing is known from 0.9 on
    low, high = Percentile(cut.quantile(0.89), 89.0, cut, independent(1_000)).ends(0.95)
    assert 0.96 < low < cut.quantile(0.89) < 0.99
    assert high == math.inf


@pytest.mark.parametrize(("text", "is_base"), [("p90_ttft<=+5%", False), ("p90_ttft>=-5%", True)])
def test_a_gate_whose_favourable_end_is_not_known_does_not_break(text: str, is_base: bool) -> None:
    (gate,) = parse_relative_gates(text)
    known = Percentile(1.0, 60.0, Durations(np.full(1_000, 1.0)), independent(1_000))
    slow = Percentile(0.5, 60.0, Durations(np.full(1_000, 0.5)), independent(1_000))
    open_ = with_low_end_open(0.9)  # the end in favour of a gate is a one-sided bound of 95 %
    assert judge_change(gate, *((open_, known) if is_base else (known, open_))).state is State.HELD
    assert judge_change(gate, *((open_, slow) if is_base else (slow, open_))).state is State.TOO_FEW


@pytest.mark.parametrize(("text", "is_base"), [("p90_ttft<=+5%", True), ("p90_ttft>=-5%", False)])
def test_a_gate_whose_unfavourable_end_is_not_known_is_unknown_and_not_held(text: str, is_base: bool) -> None:
    (gate,) = parse_relative_gates(text)
    known = Percentile(1.0, 60.0, Durations(np.full(1_000, 1.0)), independent(1_000))
    open_ = with_low_end_open(0.8)  # the end against it is one of 90 %
    base, new = (open_, known) if is_base else (known, open_)
    result = judge_change(gate, base, new)
    assert result.state is State.OPEN
    assert not result.passed()
    assert judge_change(gate, known, known).state is State.HELD
