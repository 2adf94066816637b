"""What a search may try, and what it does next: a stage, or its answer."""

import math
from dataclasses import dataclass

from llm_locust.metrics.curves.objective import Objective


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a search begins, what it may try, and when it has enough.

    ``precision`` is half the interval over the edge. Concurrency is tried in whole users.
    """

    start: float
    most: float = math.inf
    precision: float = 0.05
    most_stages: int = 12
    seed: int = 0

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: one is out of its range; the message says which.
        """
        if not (math.isfinite(self.start) and 0 < self.start <= self.most):
            raise ValueError(
                f"the first load is {self.start:g}; it must be above 0 and at most {self.most:g}"
            )
        if not 0 < self.precision < 1:
            raise ValueError(f"the precision is {self.precision:g}; write a share between 0 and 1, as 5%")
        if self.most_stages < 1:
            raise ValueError(f"{self.most_stages} stages find nothing: allow at least 1")


@dataclass(frozen=True, slots=True)
class NextStage:
    """The load to try next, and why."""

    load: float
    why: str


@dataclass(frozen=True, slots=True)
class Found:
    """The answer of a search.

    ``load`` is the highest load under which the limits hold, with its 95 % interval from ``low`` to ``high``;
    None where it is not known. ``at_least`` is a lower bound, where stages show only that. ``at_most`` is an
    upper bound. ``is_resolved``: the interval is within the precision. ``why`` says why the search ended.

    Of ``max-goodput``, ``load`` is the load that was tried with the most good requests/s, ``good_per_s`` with
    the interval ``good_low`` to ``good_high``; the best load of all lies between ``low`` and ``high``.
    """

    why: str
    load: float | None = None
    low: float | None = None
    high: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    limit: str | None = None
    good_per_s: float | None = None
    good_low: float | None = None
    good_high: float | None = None
    is_resolved: bool = False


def possible(objective: Objective, load: float) -> float:
    """The nearest load that can be asked for: whole users, or a rate of four digits."""
    return max(1.0, float(round(load))) if objective.axis == "concurrency" else float(f"{load:.4g}")
