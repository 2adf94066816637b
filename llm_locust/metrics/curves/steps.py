"""What a search may try, and what it does next: a stage, or its answer."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llm_locust.metrics.curves.objective import UNITS, Objective
from llm_locust.metrics.curves.probe import Probe

#: A load is multiplied or divided by this until both sides of what is searched for have been tried.
GROWTH = 2.0

#: Successive stages without a result after which nothing more is tried.
_MOST_SILENT = 2


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
class SearchResult:
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


def said(objective: Objective, load: float) -> str:
    """The load with its unit."""
    return f"{load:g} {UNITS[objective.axis]}"


def _limited(probes: Sequence[Probe]) -> Probe | None:
    """A stage at the lowest load of which the client was the limit each time; None without one."""
    shown = {probe.load for probe in probes if probe.counts}
    limited = [probe for probe in probes if probe.client and probe.load not in shown]
    return min(limited, key=lambda probe: probe.load, default=None)


def next_of(
    objective: Objective,
    bounds: Bounds,
    probes: Sequence[Probe],
    wanted: Callable[[], NextStage | SearchResult],
    ended: Callable[[str], SearchResult],
) -> NextStage | SearchResult:
    """What to do after ``probes``, in the order in which they ran.

    ``wanted`` is what would be next if neither the client nor the number of stages were a limit; ``ended``
    what the stages show where the search ends for the reason given.
    """
    if not probes:
        return NextStage(possible(objective, bounds.start), "the first load")
    left = len(probes) < bounds.most_stages
    results = [i for i, probe in enumerate(probes) if not probe.no_result]
    silent = len(probes) - (results[-1] + 1 if results else 0)
    if silent and silent < _MOST_SILENT and left:
        return NextStage(probes[-1].load, f"again: {probes[-1].no_result}")
    if silent:
        return ended(f"{silent} stages in succession gave no result: {probes[-1].no_result}")
    limited = _limited(probes)
    step = wanted()
    ends = isinstance(step, SearchResult) or not left
    last = [probe for probe in probes if probe.load == probes[-1].load and not probe.no_result]
    if last[0].client and len(last) == 1 and left:  # a busy second of the client is none of its limits
        return NextStage(last[0].load, f"again: the client was the limit: {last[0].client}")
    counted = any(probe.counts for probe in probes)
    beyond = limited is not None and isinstance(step, NextStage) and step.load >= limited.load
    if limited is not None and (beyond or (ends and not counted)):
        return ended(f"the client is the limit from {said(objective, limited.load)} on: {limited.client}")
    return ended(f"{len(probes)} stages were allowed") if ends and isinstance(step, NextStage) else step
