"""Stages of a run: their list, the next load, and the gate at which users wait between two."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gevent.event import Event

from llm_locust.core.manifest import MOST_STAGES, PrefixShare, StageFacts
from llm_locust.core.record import LengthPair
from llm_locust.figures.edge import Bounds, SearchResult
from llm_locust.figures.objective import Objective, Probe
from llm_locust.figures.search import KINDS, next_step
from llm_locust.options.arrivals import LoadSettings
from llm_locust.options.run import OVERSATURATION
from llm_locust.options.settings import Settings
from llm_locust.swarm.delivery.unacked import Offset
from llm_locust.workload.arrivals import Profile, RateSegment, Sweep
from llm_locust.workload.arrivals.parse import Kind

# --- The gate at which users of a closed loop wait between two stages, and the warm-up of what passes it


class StageGate:
    """Open during a stage's load, closed between two stages; in a run without a sweep always open.

    Attributes:
        phase: number of times that it was opened after it had been closed.
        measured_ns: end of the current stage's warm-up on the run's clock; None: not known yet.
        lengths: of the current stage's prompts and answers, from before its load begins; None: as the run
            says.
        prefix: what the current stage's prompts share, and its number, from then; None: as the run says.

    Args:
        origin_ns: start of an open loop's schedule, on the run's clock.
        clock: returns this process's clock against the run's time.
    """

    def __init__(self, settings: Settings, origin_ns: int, clock: Callable[[], Offset]) -> None:
        self.measured_ns: int | None = None
        self.lengths: LengthPair | None = None
        self.prefix: tuple[PrefixShare, int] | None = None
        self.phase = 0
        self._sweep = settings.load.sweep
        self._warmup_s = settings.run.warmup_s
        self._origin_ns = origin_ns
        self._clock = clock
        self._began_s = time.monotonic()
        self._opened = Event()
        if self._sweep is None or self._sweep.kind == "rate":
            self._opened.set()

    def open(self) -> None:
        self.phase += not self._opened.is_set()
        self._opened.set()

    def close(self) -> None:
        self._opened.clear()

    @property
    def is_open(self) -> bool:
        return self._opened.is_set()

    def wait(self) -> None:
        """Return at once if the gate is open, else when it opens."""
        if not self._opened.is_set():
            self._opened.wait()

    @property
    def is_warm_up_now(self) -> bool:
        """Whether the measured part of the run, or of the stage, has not begun; for a closed loop."""
        if self._sweep is None:
            return time.monotonic() - self._began_s < self._warmup_s
        offset_ns, _ = self._clock() or (0, 0)
        return self._is_before(time.time_ns() + offset_ns)

    def is_warm_up_at(self, at_s: float) -> bool:
        """Whether a request due ``at_s`` after the schedule's start is due before the measured part."""
        if self._sweep is None:
            return at_s < self._warmup_s
        return self._is_before(self._origin_ns + round(at_s * 1e9))

    def _is_before(self, at_ns: int) -> bool:
        return self.measured_ns is None or at_ns < self.measured_ns


# --- Stages of a run as its manifest has them: those of a profile of steps, those of a sweep


def steps_of(profile: Profile | None) -> tuple[RateSegment, ...]:
    """The spans of constant rate of a profile that has nothing else, and more than one of them.

    Empty for all other profiles, and for one of more than ``MOST_STAGES`` spans.
    """
    segments = () if profile is None else profile.segments
    if not 2 <= len(segments) <= MOST_STAGES or any(s.slope or s.amplitude for s in segments):
        return ()
    return segments


def looks_for(load: LoadSettings, reason: str) -> bool:
    """Whether a stop rule's ``reason`` is what a run of several loads is to find, and no fault of the run.

    A sweep judges each of its stages. Steps of the rate go up until the server is saturated.
    """
    return load.sweep is not None or (reason.startswith(OVERSATURATION) and bool(steps_of(load.profile)))


def stages_of(
    profile: Profile | None, origin_ns: int | None, warmup_s: float, stopped_ns: int | None
) -> list[StageFacts]:
    """A stage for each of :func:`steps_of` a profile.

    There is no drain between them: requests of one stage may end in the next. A warm-up is left out of the
    first ones.

    Args:
        origin_ns: start of the schedule; None: not known yet, which gives no stages.
        stopped_ns: end of the load; stages that would begin later are left out. None: not yet.
    """
    if origin_ns is None:
        return []
    steps = steps_of(profile)
    begins_ns = [origin_ns + round(step.start_s * 1e9) for step in steps]
    measured_from_ns = origin_ns + round(warmup_s * 1e9)
    return [
        StageFacts(
            number=number,
            kind="rate",
            asked=step.rate,
            begun_ns=begun_ns,
            measured_ns=max(begun_ns, measured_from_ns),
            ended_ns=next_ns,
        )
        for number, (step, begun_ns, next_ns) in enumerate(
            zip(steps, begins_ns, [*begins_ns[1:], None], strict=False)
        )
        if stopped_ns is None or begun_ns < stopped_ns
    ]


def closed(stages: Sequence[StageFacts], stopped_ns: int | None) -> list[StageFacts]:
    """A sweep's stages; the one that the end of the run's load interrupted is marked so."""
    found = list(stages)
    if found and stopped_ns is not None and found[-1].drained_ns is None and not found[-1].fault:
        what = "the stage did" if found[-1].ended_ns is None else "its requests had"
        found[-1] = replace(
            found[-1],
            ended_ns=stopped_ns if found[-1].ended_ns is None else found[-1].ended_ns,
            fault=f"the run ended before {what}",
        )
    return found


# --- Which load a sweep applies next


@dataclass(frozen=True, slots=True)
class Load:
    """A load to apply: a number of users, or a rate in requests/s; ``repeat`` counts how often before.

    ``lengths``: of its prompts and answers, ``prefix``: what the prompts share; None: as the run says.
    """

    kind: Kind
    value: float
    repeat: int = 0
    lengths: LengthPair | None = None
    prefix: PrefixShare | None = None


class Plan(Protocol):
    """Source of the loads of a sweep."""

    @property
    def most(self) -> int:
        """Most stages that it can have."""
        ...

    def next(self, done: Sequence[StageFacts]) -> Load | None:
        """The next load after the stages that are done; None: there is none."""
        ...


@dataclass(frozen=True, slots=True)
class ListedLoads:
    """The loads of ``--sweep``, one after the other, and all of them again for each repeat.

    Each pair of lengths has all loads before the next pair has any; ``prefixes`` are those of its shares.

    Repeats are not measured in a row: what changes during the run then differs between repeats of one load,
    and is in their interval, instead of between loads.
    """

    sweep: Sweep
    repeats: int = 1
    prefixes: Sequence[PrefixShare] = ()

    @property
    def most(self) -> int:
        return self.sweep.stages * self.repeats

    def next(self, done: Sequence[StageFacts]) -> Load | None:
        if len(done) >= self.most:
            return None
        values, lengths = self.sweep.values, self.sweep.lengths
        repeat, place = divmod(len(done), self.sweep.stages)
        pair, at = divmod(place, len(values))
        if self.prefixes:
            return Load(self.sweep.kind, values[0], repeat, prefix=self.prefixes[place])
        return Load(self.sweep.kind, values[at], repeat, lengths[pair] if lengths else None)


# --- The plan of a search: each load is chosen by what the stages before it show


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
