"""The stages of a run that goes on: where each is, and what those that have ended show."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from llm_locust.core.manifest import StageFacts
from llm_locust.metrics.summary_types.search import SearchAnswer
from llm_locust.metrics.summary_types.stages import Stage

State = Literal["to come", "ramp", "measuring", "draining", "drained", "over"]


@dataclass(slots=True)
class LiveStages:
    """The stages of one run.

    Attributes:
        run: the run's id, and ``path`` its directory.
        facts: returns what is known of them now; those of a profile are there before they begin.
        planned: most stages that there can be.
        is_sweep: each ends with a drain. Otherwise requests of one may end in the next.
        objective: what a search looks for; empty in another run.
        whys: why the search chose the load of a stage, by its number.
        reading: number of the stage that the search reads now, before it chooses the next load.
        answer: of the search, once it has ended.
        has_records: returns whether all records of the drained stages are in the run directory.
        figures: those that have been read, as the report has them, by their number.
    """

    run: str
    path: Path
    facts: Callable[[], Sequence[StageFacts]]
    planned: int = 0
    is_sweep: bool = False
    objective: str = ""
    whys: dict[int, str] = field(default_factory=dict)
    reading: int | None = None
    answer: SearchAnswer | None = None
    has_records: Callable[[], bool] = lambda: True
    figures: dict[int, Stage] = field(default_factory=dict)


def state_of(stage: StageFacts, now_ns: int, *, is_sweep: bool) -> State:
    """Where a stage is; ``over`` is one that ended and was not drained, as all of a profile."""
    if now_ns < stage.begun_ns:
        return "to come"
    if stage.ended_ns is not None and (now_ns >= stage.ended_ns or stage.fault):
        if stage.drained_ns is not None:
            return "drained"
        return "over" if stage.fault or not is_sweep else "draining"
    return "ramp" if stage.measured_ns is None or now_ns < stage.measured_ns else "measuring"
