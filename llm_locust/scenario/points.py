"""Points of MLPerf Endpoints: the numbers of concurrent requests at which a server is measured.

Between the lowest and the highest concurrency lie three regions of equal ratio, counted from the lowest. A
set has the lowest (Ultra-Low), at least one point in each region and three more in any, the highest being one
of them. Source: mlcommons/endpoints_policies, v1.0.
"""

import math
from dataclasses import dataclass

#: The lowest concurrency is one of these, and the highest is above all of them.
ULTRA_LOW = range(1, 33)

#: The highest point may be this much above the highest concurrency that was declared.
MARGIN = 1.10

_MOST = 1_000_000


@dataclass(frozen=True, slots=True)
class Points:
    """Regions as (first, last), and a set of points, seven if no region is narrower than two of them.

    A narrow range may leave a region empty, its first above its last. ``highest`` is the margin's end.
    """

    low: tuple[int, int]
    medium: tuple[int, int]
    high: tuple[int, int]
    highest: int
    planned: tuple[int, ...]


def plan_points(c_min: int, c_max: int) -> Points:
    """Plan the points from ``c_min`` to ``c_max``: of each region the geometric middle and the end.

    Raises:
        ValueError: ``c_min`` is not in 1 .. 32, or ``c_max`` not above 32.
    """
    if c_min not in ULTRA_LOW:
        raise ValueError(f"the lowest concurrency is one of 1 .. {ULTRA_LOW[-1]}, not {c_min}")
    if not ULTRA_LOW[-1] < c_max <= _MOST:
        raise ValueError(
            f"the highest concurrency is above {ULTRA_LOW[-1]} and at most {_MOST:,}, not {c_max}"
        )
    third = math.log2(c_max - c_min) / 3
    ends = (round(c_min + 2**third), round(c_min + 2 ** (2 * third)), c_max)
    firsts = (c_min + 1, ends[0] + 1, ends[1] + 1)
    planned = {c_min}
    for first, end in zip(firsts, ends, strict=True):
        planned |= {round(math.sqrt(first * end)), end} if first <= end else set()
    low, medium, high = zip(firsts, ends, strict=True)
    # Rounded before: 1.1 * 1,000 is 1,100.0000000000002 in binary.
    return Points(low, medium, high, math.ceil(round(MARGIN * c_max, 6)), tuple(sorted(planned)))
