"""The next load to try, or the answer, from the stages so far: a pure function without a clock or a server.

First the load is doubled until a limit breaks (halved, where the first load breaks one), and never beyond
twice the lowest load that broke one. Then each stage goes to where the edge is most likely, inside the part
that the stages so far leave open; near the edge stages repeat its neighbourhood from both sides, because one
stage's share is uncertain. The search ends when the 95 % interval of the edge is within the precision asked
for, when the client is the limit, when stages give no results, or when no stages are left.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from llm_locust.metrics.curves.edge import Edge, find_edge
from llm_locust.metrics.curves.maximum import next_of_maximum
from llm_locust.metrics.curves.objective import Objective
from llm_locust.metrics.curves.probe import Probe, Shown
from llm_locust.metrics.curves.steps import GROWTH, Bounds, NextStage, SearchResult, next_of, possible, said
from llm_locust.metrics.stats.worth import FEWEST_BEYOND

#: A stage is kept away from both ends of the open part by this share of it, in logarithms.
_INSIDE = 0.25


def next_step(objective: Objective, bounds: Bounds, probes: Sequence[Probe]) -> NextStage | SearchResult:
    """What to do after ``probes``, in the order in which they ran.

    A search over concurrency is in whole users.
    """
    if objective.is_maximum:
        return next_of_maximum(objective, bounds, probes)
    return _Search(objective, bounds, tuple(probes)).step()


def last_answer(objective: Objective, bounds: Bounds, probes: Sequence[Probe]) -> SearchResult:
    """The answer of ``probes``, one at least, where no further stage can be run."""
    step = next_step(objective, bounds, probes)
    if isinstance(step, SearchResult):
        return step
    ended = next_step(objective, replace(bounds, most_stages=len(probes)), probes)
    assert isinstance(ended, SearchResult)
    wanted = said(objective, step.load)
    return replace(ended, why=f"the run ended before the search did, which would go on with {wanted}")


@dataclass(frozen=True, slots=True)
class _Search:
    objective: Objective
    bounds: Bounds
    probes: tuple[Probe, ...]

    def step(self) -> NextStage | SearchResult:
        return next_of(self.objective, self.bounds, self.probes, self._wanted, self._ended)

    def _wanted(self) -> NextStage | SearchResult:
        """What would be next if neither the client nor the number of stages were a limit."""
        if not self._counted:
            # Only stages that the client limited: it is lower loads that show the server.
            return self._lower(min(probe.load for probe in self.probes))
        held, broken = self._held(), self._broken()
        if not broken:
            return self._higher(max(held))
        if not held:
            return self._lower(min(broken))
        edge = self._edge()
        if edge.is_told and edge.reach <= self.bounds.precision:
            return self._answer(edge, "the interval is as narrow as asked for", is_resolved=True)
        if self.objective.axis == "concurrency" and (last := self._last_that_holds()) is not None:
            return self._between_neighbours(last, edge)
        return NextStage(self._near(edge), "near the edge")

    def _higher(self, load: float) -> NextStage | SearchResult:
        if load >= self.bounds.most:
            return self._ended(f"{self._said(load)} is the most that may be tried")
        return NextStage(
            self._possible(min(GROWTH * load, self.bounds.most)), f"all limits hold at {self._said(load)}"
        )

    def _lower(self, load: float) -> NextStage | SearchResult:
        if self.objective.axis == "concurrency" and load <= 1:
            return self._ended("a single user breaks a limit")
        why = "a limit is broken" if self._counted else "the client was the limit"
        return NextStage(self._possible(load / GROWTH), f"{why} at {self._said(load)}")

    def _near(self, edge: Edge) -> float:
        """A load near the edge, inside what is open: on the side that fewer requests have shown."""
        low, high = max(self._held_below()), min(self._broken())
        precision = self.bounds.precision
        if high / low > (1 + precision) ** 3:
            width = math.log(high / low)
            first, last = low * math.exp(_INSIDE * width), high * math.exp(-_INSIDE * width)
            middle = edge.load if 0 < edge.load < math.inf else math.sqrt(low * high)
            return self._possible(min(max(middle, first), last))
        if not 0 < edge.load < math.inf:
            return self._possible(math.sqrt(low * high))
        below = sum(1 for probe in self._counted if edge.load * (1 - 2 * precision) <= probe.load < edge.load)
        above = sum(
            1 for probe in self._counted if edge.load <= probe.load <= edge.load * (1 + 2 * precision)
        )
        side = -1 if below <= above else 1
        wanted = edge.load * (1 + side * precision / 2)
        return self._possible(min(wanted, GROWTH * min(self._broken())))

    def _last_that_holds(self) -> float | None:
        """The number of users that is shown to hold where one more is shown to break; None if none is."""
        shown = {probe.load: probe.shows(self._required) for probe in self._counted}
        return next(
            (
                load
                for load, seen in shown.items()
                if seen == Shown.HOLDS and shown.get(load + 1) == Shown.BROKEN
            ),
            None,
        )

    def _between_neighbours(self, last: float, edge: Edge) -> SearchResult:
        """The answer where the intervals of two successive numbers of users show both sides of the edge."""
        why = "one user more breaks a limit"
        if edge.is_told:
            return self._answer(edge, why, is_resolved=True)
        limit = self.objective.limits[edge.limit].text
        return SearchResult(why, load=last, low=last, high=last, limit=limit, is_resolved=True)

    @property
    def _required(self) -> tuple[float, ...]:
        return tuple(limit.required for limit in self.objective.limits)

    @property
    def _counted(self) -> list[Probe]:
        return [probe for probe in self.probes if probe.counts]

    def _held(self) -> list[float]:
        """Loads whose shares are as required, by what was counted alone."""
        return [probe.load for probe in self._counted if self._is_within(probe)]

    def _broken(self) -> list[float]:
        return [probe.load for probe in self._counted if not self._is_within(probe)]

    def _held_below(self) -> list[float]:
        lowest = min(self._broken())
        return [load for load in self._held() if load < lowest] or [lowest / GROWTH]

    def _is_within(self, probe: Probe) -> bool:
        return not probe.breaks(self._required)

    def _edge(self) -> Edge:
        return find_edge(self._counted, self._required, self.bounds.seed)

    def _ended(self, why: str) -> SearchResult:
        """What the stages show where the search cannot go on."""
        return self._answer(self._edge(), why) if self._counted else SearchResult(why)

    def _answer(self, edge: Edge, why: str, *, is_resolved: bool = False) -> SearchResult:
        if math.isinf(edge.load):
            return SearchResult(why, at_least=self._whole(self._shown_to_hold()))
        limit = self.objective.limits[edge.limit].text
        if not edge.load:
            return SearchResult(why, at_most=min(probe.load for probe in self._counted), limit=limit)
        if not edge.is_told:
            return SearchResult(f"{why}; {self._too_few(edge)}", load=self._whole(edge.load), limit=limit)
        return SearchResult(
            why,
            load=self._whole(edge.load),
            low=self._whole(edge.low) if edge.low else None,
            high=self._whole(edge.high) if math.isfinite(edge.high) else None,
            limit=limit,
            is_resolved=is_resolved,
        )

    def _too_few(self, edge: Edge) -> str:
        tail = 1 - self._required[edge.limit]
        return (
            f"the stages near the edge are worth {edge.beyond / tail:.0f} independent requests, and "
            f"{self.objective.limits[edge.limit].text} needs {FEWEST_BEYOND / tail:.0f}: make stages longer"
        )

    def _shown_to_hold(self) -> float | None:
        """The highest load at which the intervals of all shares are as required; None without one."""
        return max((p.load for p in self._counted if p.shows(self._required) == "holds"), default=None)

    def _possible(self, load: float) -> float:
        return possible(self.objective, load)

    def _whole(self, load: float | None) -> float | None:
        """Whole users below an edge: the next one breaks it."""
        return float(math.floor(load)) if load is not None and self.objective.axis == "concurrency" else load

    def _said(self, load: float) -> str:
        return said(self.objective, load)
