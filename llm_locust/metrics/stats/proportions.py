"""Shares of counted things: their intervals, and whether groups differ by more than chance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llm_locust.metrics.columns import Floats
from llm_locust.metrics.stats.censoring import Ascending

# --- Shares of counted things, with intervals that hold for few of them and near 0 and 1


#: The normal distribution's 97.5 % point: intervals are of 95 %.
_Z = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Proportion:
    """``hits`` of ``n``."""

    hits: int
    n: int

    @property
    def ratio(self) -> float | None:
        """hits / n; None where n is 0."""
        return self.hits / self.n if self.n else None

    def interval(self) -> tuple[float, float] | None:
        """Wilson's 95 % score interval; None where n is 0.

        (p + z²/2n ± z √(p(1 − p)/n + z²/4n²)) / (1 + z²/n), with p = hits / n and z = 1.96.
        """
        if not self.n:
            return None
        p, zz = self.hits / self.n, _Z * _Z / self.n
        middle, reach = p + zz / 2, _Z * math.sqrt(p * (1 - p) / self.n + zz / self.n / 4)
        # Rounding must not leave an end beside the 0 or 1 that it is exactly.
        low = 0.0 if self.hits == 0 else (middle - reach) / (1 + zz)
        high = 1.0 if self.hits == self.n else (middle + reach) / (1 + zz)
        return low, high


@dataclass(frozen=True, slots=True)
class ProportionDifference:
    """Both None where one of the shares has no n."""

    difference: float | None
    ci95: tuple[float, float] | None


def difference(a: Proportion, b: Proportion) -> ProportionDifference:
    """a − b of two independent shares, with Newcombe's 95 % interval (his method 10, of Wilson's).

    Lower end d − √((a − l_a)² + (u_b − b)²), upper end d + √((u_a − a)² + (b − l_b)²), where d = a − b
    and [l, u] are Wilson's intervals.
    """
    p, q, of_a, of_b = a.ratio, b.ratio, a.interval(), b.interval()
    if p is None or q is None or of_a is None or of_b is None:
        return ProportionDifference(None, None)
    d = p - q
    low = d - math.hypot(p - of_a[0], of_b[1] - q)
    high = d + math.hypot(of_a[1] - p, q - of_b[0])
    return ProportionDifference(d, (max(-1.0, low), min(1.0, high)))


# --------------------
# Whether groups differ by more than chance makes them: two tests whose p-values need no table.
#
# Both statistics are, without a difference, distributed as χ² with k − 1 degrees of freedom, k being the
# number of groups; its tail has a closed form (:func:`chi_square_tail`), so that nothing is simulated and
# the same requests always give the same p-value.
#
# - Counts against equal shares: Pearson's χ². It needs 5 requests a replica to be expected.
# - Latencies: Kruskal and Wallis' H of ranks. A TTFT is skewed and has a long tail, of which a test of means
#   would see little else; a permutation test would say the same at a thousand times the work.
#
# A median's interval is distribution-free: of n samples those of ranks n/2 − 0.98 √n and n/2 + 0.98 √n + 1,
# rounded outwards, hold it in 95 % of cases (Conover, Practical Nonparametric Statistics, 3.2).
#
# All three take requests as independent. Neighbours in time are alike, so that a p-value is too small
# rather than too large, and of many thousand requests any difference is beyond chance: read it beside its
# size.
# --------------------


#: Fewest expected requests a replica for which Pearson's statistic is a χ².
LEAST_EXPECTED = 5


@dataclass(frozen=True, slots=True)
class Significance:
    """``p`` is the chance of groups at least as different as these, did they not differ."""

    statistic: float
    p: float


def chi_square_tail(x: float, freedom: int) -> float:
    """P(χ² ≥ x) with ``freedom`` degrees of freedom.

    Even: e^(−x/2) Σ (x/2)^i / i!, i < freedom/2. Odd: erfc(√(x/2)) + e^(−x/2) Σ (x/2)^(i−½) / Γ(i+½),
    0 < i < (freedom+1)/2. Summed as logarithms, so that no power overflows.
    """
    half = x / 2
    if half <= 0:
        return 1.0
    start = 0.0 if freedom % 2 == 0 else 0.5
    terms = [
        math.exp(-half + (i + start) * math.log(half) - math.lgamma(i + start + 1))
        for i in range(freedom // 2)
    ]
    return min(1.0, math.fsum(terms) + (math.erfc(math.sqrt(half)) if start else 0.0))


def hypergeometric_at_most(k: int, drawn: int, marked: int, n: int) -> float:
    """P(at most ``k`` marked ones among ``drawn`` of ``n``, of which so many are ``marked``)."""

    def log_choose(n: int, k: int) -> float:
        return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)

    all_ways = log_choose(n, drawn)
    ways = (
        log_choose(marked, i) + log_choose(n - marked, drawn - i) - all_ways
        for i in range(max(0, drawn + marked - n), min(k, drawn, marked) + 1)
    )
    return min(1.0, math.fsum(map(math.exp, ways)))


def equal_shares(counts: Sequence[int]) -> Significance | None:
    """Pearson's Σ (n_r − n/k)² / (n/k). None for fewer than two groups, or fewer than
    :data:`LEAST_EXPECTED` expected in each."""
    k, n = len(counts), sum(counts)
    if k < 2 or n < LEAST_EXPECTED * k:
        return None
    expected = n / k
    return _tested(sum((count - expected) ** 2 for count in counts) / expected, k)


def same_distribution(groups: Sequence[Floats]) -> Significance | None:
    """Kruskal and Wallis' H = 12 / (n(n+1)) Σ n_r (R_r − (n+1)/2)², ties corrected, of the defined values.

    None for fewer than two groups that have :data:`LEAST_EXPECTED` values, and where all values are one.
    """
    known = [values[~np.isnan(values)] for values in groups]
    known = [values for values in known if len(values) >= LEAST_EXPECTED]
    if len(known) < 2:
        return None
    ranks, ties = _ranks(np.concatenate(known))
    n = len(ranks)
    untied = 1 - float((ties**3 - ties).sum()) / (n**3 - n)
    if untied <= 0:
        return None
    ends = np.cumsum([len(values) for values in known])
    means = [(len(part), float(part.mean())) for part in np.split(ranks, ends[:-1])]
    between = sum(size * (mean - (n + 1) / 2) ** 2 for size, mean in means)
    return _tested(12 / (n * (n + 1)) * between / untied, len(known))


def _tested(statistic: float, groups: int) -> Significance:
    return Significance(statistic, chi_square_tail(statistic, groups - 1))


def _ranks(values: Floats) -> tuple[Floats, NDArray[np.float64]]:
    """Mean ranks from 1 on, and how many values share each."""
    _, place, sizes = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    return (last - (sizes - 1) / 2)[place], sizes.astype(np.float64)


def median_interval(values: Floats) -> tuple[float, float] | None:
    """The 95 % interval of the median of independent samples, NaN being none; None for fewer than 6."""
    return median_bounds(np.sort(values[~np.isnan(values)]))


def median_bounds(ascending: Floats | Ascending) -> tuple[float, float] | None:
    """The same of samples in ascending order."""
    n = len(ascending)
    reach = 0.98 * math.sqrt(n)
    low, high = math.floor(n / 2 - reach), math.ceil(n / 2 + reach)  # before the first, and the last, rank
    return None if n < 6 else (float(ascending[max(low, 1) - 1]), float(ascending[min(high + 1, n) - 1]))
