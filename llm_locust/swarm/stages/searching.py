"""The plan of a search: each load is chosen by what the stages before it show."""

import logging
from collections.abc import Callable, Sequence

from llm_locust.core.manifest import StageFacts
from llm_locust.metrics.curves.objective import Objective
from llm_locust.metrics.curves.probe import Probe
from llm_locust.metrics.curves.search import next_step
from llm_locust.metrics.curves.searched import KINDS
from llm_locust.metrics.curves.steps import Bounds, SearchResult
from llm_locust.swarm.stages.plan import Load

logger = logging.getLogger(__name__)


class SearchPlan:
    """The loads of ``--find``.

    Attributes:
        found: the answer, once there is no next load.
        why: why the last load was chosen.

    Args:
        read: returns what a finished stage shows; it may take seconds, in which nothing is sent.
    """

    def __init__(
        self, objective: Objective, bounds: Bounds, read: Callable[[Sequence[StageFacts]], Probe]
    ) -> None:
        self.found: SearchResult | None = None
        self.why = ""
        self._objective = objective
        self._bounds = bounds
        self._read = read
        self._probes: list[Probe] = []

    @property
    def most(self) -> int:
        return self._bounds.most_stages

    def next(self, done: Sequence[StageFacts]) -> Load | None:
        """The load to try next; None: the search has ended."""
        for at in range(len(self._probes), len(done)):
            self._probes.append(self._read(done[: at + 1]))
        step = next_step(self._objective, self._bounds, self._probes)
        if isinstance(step, SearchResult):
            self.found = step
            logger.info("the search has ended: %s", step.why)
            return None
        logger.info("next: %g, %s", step.load, step.why)
        self.why = step.why
        repeat = sum(stage.asked == step.load for stage in done)
        return Load(KINDS[self._objective.axis], step.load, repeat)
