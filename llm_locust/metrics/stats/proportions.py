"""Shares of counted things, with intervals that hold for few of them and near 0 and 1."""

import math
from dataclasses import dataclass
from typing import Any

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


def difference(a: Proportion, b: Proportion) -> dict[str, Any]:
    """a − b of two independent shares, with Newcombe's 95 % interval (his method 10, of Wilson's).

    Lower end d − √((a − l_a)² + (u_b − b)²), upper end d + √((u_a − a)² + (b − l_b)²), where d = a − b
    and [l, u] are Wilson's intervals.

    Returns:
        ``{difference, ci95}``, both None where one share has no n.
    """
    p, q, of_a, of_b = a.ratio, b.ratio, a.interval(), b.interval()
    if p is None or q is None or of_a is None or of_b is None:
        return {"difference": None, "ci95": None}
    d = p - q
    low = d - math.hypot(p - of_a[0], of_b[1] - q)
    high = d + math.hypot(of_a[1] - p, q - of_b[0])
    return {"difference": d, "ci95": [max(-1.0, low), min(1.0, high)]}


def summarise_proportion(p: Proportion, counted: str) -> dict[str, Any]:
    """``{n, <counted>: hits, ratio, ci95}``; ratio and interval are None where n is 0."""
    ends = p.interval()
    return {"n": p.n, counted: p.hits, "ratio": p.ratio, "ci95": None if ends is None else list(ends)}
