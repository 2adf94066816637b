"""How many replicas a rate needs, from the loads that a deployment took.

The capacity of the deployment under test is shared out among its replicas, and a rate needs as many of them
as the lower end of its interval asks for. That more replicas take proportionally more is an assumption: a
balancer that spreads unevenly, or anything that replicas share, makes it too good.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_high

from llm_locust.metrics.curves.probe import Probe, Shown
from llm_locust.metrics.curves.steps import SearchResult
from llm_locust.metrics.stages.repeats import over
from llm_locust.metrics.summary_types.search import UslFigures
from llm_locust.metrics.summary_types.stages import Stage


class NoCapacityError(ValueError):
    """Loads that show no capacity; one line says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Requests/s that a deployment takes, with the 95 % interval as far as it is known.

    ``is_bracket``: ``low`` and ``high`` are the next loads that held and broke the SLO, because no stage was
    near enough to the edge for an interval. ``basis`` says in words what it rests on. ``is_bound``: it takes
    at least this much. ``is_model``: it is beyond what was measured.
    """

    rate: float
    low: float | None
    high: float | None
    basis: str
    is_bound: bool = False
    is_model: bool = False
    is_bracket: bool = False

    @property
    def sure(self) -> float:
        """What is planned with: the lower end, where there is one."""
        return self.rate if self.low is None else self.low


@dataclass(frozen=True, slots=True)
class CapacityNeed:
    """What to deploy for a rate.

    Attributes:
        replicas: with the spare ones. ``fewest`` and ``most`` are those of both ends of the interval.
        used: share of their capacity that the rate takes with all replicas, and with ``lost`` of them gone.
        gpus, cost_per_hour, cost_per_million: None where GPUs or their price are not known; the last is of
            a million requests at this rate.
    """

    rate: float
    replicas: int
    fewest: int
    most: int
    spare: int
    used: float
    used_after_loss: float
    gpus: float | None
    cost_per_hour: float | None
    cost_per_million: float | None


def capacity_under_slo(
    answer: SearchResult, stages: Sequence[Stage], kind: str, probes: Sequence[Probe], required: float
) -> Capacity:
    """The highest rate under which the SLO holds; of users the throughput of the highest load that holds.

    Raises:
        NoCapacityError: no load is shown to hold it.
    """
    load = answer.at_least if answer.load is None else answer.load
    if load is None:
        less = "" if answer.at_most is None else f": it is less than {answer.at_most:g}"
        raise NoCapacityError(f"the capacity is not known{less}; measure lower loads, and longer stages")
    is_bound = answer.load is None
    low, high, is_bracket = answer.low, answer.high, False
    if not is_bound and low is None:
        (low, high), is_bracket = _bracket(load, probes, required), True
    if kind == "rate":
        held = "no load broke it" if is_bound else f"{answer.limit} breaks first"
        basis = f"the highest rate under the SLO, {held}"
        return Capacity(load, low, high, basis, is_bound, is_bracket=is_bracket)
    sure = load if low is None else low
    held_stages = [s for s in stages if s.is_result and s.figures is not None and s.asked <= sure]
    if not held_stages:
        raise NoCapacityError(f"no stage with a result has {sure:g} users or fewer; measure lower loads")
    users = max(s.asked for s in held_stages)
    rate, low, high = _throughput([s for s in held_stages if s.asked == users])
    if not rate:
        raise NoCapacityError(f"at {users:g} users no request ended")
    basis = f"the throughput at {users:g} users, the most measured that hold the SLO"
    return Capacity(rate, low, high, basis, is_bound)


def _throughput(stages: Sequence[Stage]) -> tuple[float | None, float | None, float | None]:
    """Requests/s of one load: of one stage with its own interval, of repeats with that of their mean."""
    parts = [stage.figures.throughput for stage in stages if stage.figures is not None]
    if len(parts) == 1:
        return (parts[0].requests_per_s, *(parts[0].intervals().get("requests_per_s") or (None, None)))
    found = over([part.requests_per_s for part in parts])
    low, high = found["ci95"] or (None, None)
    return found["mean"], None if low is None else max(0.0, low), high


def _bracket(edge: float, probes: Sequence[Probe], required: float) -> tuple[float, float | None]:
    """The next loads that are shown to hold and to break; raises NoCapacityError without the first.

    A load that holds above one that breaks shows noise, not capacity: it is not planned with.
    """
    shown = [(probe.load, probe.shows((required,))) for probe in probes if probe.counts]
    held = [load for load, seen in shown if seen == Shown.HOLDS and load <= edge]
    broken = [load for load, seen in shown if seen == Shown.BROKEN]
    sure = max((load for load in held if load < min(broken, default=math.inf)), default=None)
    if sure is None and held:
        raise NoCapacityError(
            f"the capacity is not resolved: {max(held):g} held the SLO and {min(broken):g} broke it; "
            "measure lower loads, and longer stages"
        )
    if sure is None:
        raise NoCapacityError("no load is shown to hold the SLO: measure lower loads, and longer stages")
    return sure, min((load for load in broken if load > max(held)), default=None)


def capacity_of_law(usl: UslFigures) -> Capacity:
    """The plateau of the throughput, for a plan without an SLO.

    Raises:
        NoCapacityError: the throughput shows none.
    """
    rate, (low, high) = usl.plateau.value, usl.plateau.ci95
    if rate is None or low is None:
        raise NoCapacityError("the throughput shows no plateau yet: measure higher loads, or give --slo")
    peak, to = usl.peak.value, usl.measured_to
    is_model = peak is None or to is None or peak > to
    return Capacity(rate, low, high, "the plateau of the throughput, without an SLO", is_model=is_model)


def replicas_at_once(in_flight: Sequence[Sequence[float]]) -> int:
    """How many replicas served at a time: one that was restarted under another name counts once.

    Args:
        in_flight: of each name that answered, its concurrency in the same equal parts of the window.

    Returns:
        The median over the parts of how many had begun and not ended; at least 1.

    Raises:
        NoCapacityError: no name answered, so that nothing tells how many there were.
    """
    if not in_flight:
        raise NoCapacityError(
            "no answer named its replica: how many took the load is not known, and if several are taken for "
            "one, the plan has too few; give --replicas N (--replicas 1 if it is one)"
        )
    busy = [[part for part, mean in enumerate(course) if mean > 0] for course in in_flight]
    lives = [(parts[0], parts[-1]) for parts in busy if parts]
    parts = range(max((len(course) for course in in_flight), default=0))
    counts = [sum(first <= part <= last for first, last in lives) for part in parts]
    return max(1, median_high(counts)) if counts else len(in_flight)


def need(
    capacity: Capacity,
    rate: float,
    *,
    measured_replicas: int = 1,
    spare: int = 1,
    gpus_per_replica: float | None = None,
    gpu_hour_price: float | None = None,
) -> CapacityNeed:
    """Replicas, GPUs and cost for ``rate`` requests/s, with ``spare`` replicas that may be lost."""

    def replicas(of_all: float) -> int:
        return max(1, math.ceil(round(rate * measured_replicas / of_all, 9))) + spare

    count = replicas(capacity.sure)
    each = capacity.sure / measured_replicas
    gpus = None if gpus_per_replica is None else count * gpus_per_replica
    cost = None if gpus is None or gpu_hour_price is None else gpus * gpu_hour_price
    return CapacityNeed(
        rate=rate,
        replicas=count,
        fewest=replicas(capacity.rate if capacity.high is None else capacity.high),
        most=count,
        spare=spare,
        used=rate / (count * each),
        used_after_loss=rate / ((count - 1) * each) if count > 1 else math.inf,
        gpus=gpus,
        cost_per_hour=cost,
        cost_per_million=None if cost is None else cost / (rate * 3600) * 1e6,
    )
