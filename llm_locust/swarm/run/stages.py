"""Stages of a run on the master: their list, the next load, the driver of a sweep.

A stage begins with its load. Users are spawned, the warm-up passes, the measured part begins; its end ends
the load; the workers confirm that no request of it is in flight any more; the next stage begins. Times are
those of the run's clock.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from llm_locust.core.manifest import MOST_STAGES, PrefixShare, ReplicaCache, StageFacts
from llm_locust.core.record import LengthPair
from llm_locust.core.stages import finished
from llm_locust.figures.edge import Bounds, SearchResult
from llm_locust.figures.objective import Objective, Probe
from llm_locust.figures.search import KINDS, next_step
from llm_locust.figures.text import plural, seconds
from llm_locust.options.load import Kind, LoadSettings, Sweep
from llm_locust.options.run import OVERSATURATION
from llm_locust.swarm.channel.messages import StagedMessage, StageMessage
from llm_locust.workload.arrivals import Profile, RateSegment

logger = logging.getLogger(__name__)

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
    last = stages[-1] if stages else None
    if last is None or stopped_ns is None or last.drained_ns is not None or last.fault:
        return list(stages)
    what = "the stage did" if last.ended_ns is None else "its requests had"
    ended_ns = stopped_ns if last.ended_ns is None else last.ended_ns
    return [*stages[:-1], replace(last, ended_ns=ended_ns, fault=f"the run ended before {what}")]


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


class SearchPlan:
    """The loads of ``--find``.

    Attributes:
        result: the answer, once there is no next load.
        why: why the last load was chosen.

    Args:
        read: returns what a finished stage shows; it may take seconds, in which nothing is sent.
    """

    def __init__(
        self, objective: Objective, bounds: Bounds, read: Callable[[Sequence[StageFacts]], Probe]
    ) -> None:
        self.result: SearchResult | None = None
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
            self.result = step
            logger.info("the search has ended: %s", step.why)
            return None
        logger.info("next: %g, %s", step.load, step.why)
        self.why = step.why
        repeat = sum(stage.asked == step.load for stage in done)
        return Load(KINDS[self._objective.axis], step.load, repeat)


# --- The driver of a sweep, in the process with the run directory: one stage after the other, in one run


#: Notice with which a step is sent before it takes effect.
NOTICE_S = 1.0

#: Interval at which a step is sent again to workers that have not confirmed it.
AGAIN_S = 2.0

#: Longest wait for the confirmation of a step, beyond what the step itself takes.
PATIENCE_S = 10.0

Step = Literal["load", "drain"]


class Swarm(Protocol):
    """What the driver does with the swarm."""

    def now_ns(self) -> int:
        """The run's clock."""
        ...

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Let others run until the condition holds; return whether it did."""
        ...

    def is_over(self) -> bool:
        """Whether the run's load has ended."""
        ...

    def workers(self) -> frozenset[str]:
        """The workers that take part in the run and are connected."""
        ...

    def users(self) -> int:
        """The number of users that is asked for now."""
        ...

    def set_users(self, users: int) -> None:
        """Change the number of users; return when all have been spawned."""
        ...

    def tell(self, step: StageMessage, workers: Iterable[str]) -> None:
        """Send a step to workers."""
        ...

    def keep(self, stages: list[StageFacts]) -> None:
        """Keep what is known of the stages in the run directory."""
        ...

    def prepare(self, prefix: PrefixShare, stage: int) -> list[ReplicaCache]:
        """Empty the servers' prefix caches, and fill them for a stage; return what came of it."""
        ...

    def counted(self, caches: list[ReplicaCache]) -> list[ReplicaCache]:
        """The same with what the servers have counted since."""
        ...

    def is_enough(self, stages: list[StageFacts], within_s: float) -> bool:
        """Whether the last of the stages, which goes on, has been measured for long enough.

        False if that is not known ``within_s``.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Lengths of a stage's parts. The drain's is its longest, and the measured part's if it can end early.

    ``looks`` are shares of the measured part at which it may end. ``ramp_s`` is the longest time in which a
    stage's users are spawned. ``beside`` names what takes time besides and is not known beforehand.
    """

    warmup_s: float
    measured_s: float
    drain_s: float
    looks: tuple[float, ...] = ()
    ramp_s: float = 0.0
    beside: tuple[str, ...] = ()

    def foreseen(self, stages: int) -> str:
        """How long so many stages take at most, and how long without drains, for a person."""
        each_s = NOTICE_S + self.ramp_s + self.warmup_s + self.measured_s
        beside = f"; besides, {' and '.join(self.beside)}" if self.beside else ""
        return (
            f"{plural(stages, 'stage')} at most, in at most {seconds(stages * (each_s + self.drain_s))} "
            f"({seconds(stages * each_s)} where nothing is left to drain): each has "
            f"{seconds(self.warmup_s)} of warm-up, {seconds(self.measured_s)} measured, "
            f"and up to {seconds(self.drain_s)} of drain{beside}"
        )


class SweepDriver:
    """Driver of one run's stages.

    Attributes:
        stages: those of this run that have begun, in order.

    Args:
        origin_ns: no load may begin before.
        earlier: stages of the run's earlier parts; those that are finished are not run again.
    """

    def __init__(
        self,
        run: str,
        swarm: Swarm,
        plan: Plan,
        times: StageTimes,
        *,
        origin_ns: int = 0,
        earlier: Sequence[StageFacts] = (),
    ) -> None:
        self.stages: list[StageFacts] = []
        self._earlier = earlier
        self._run = run
        self._swarm = swarm
        self._plan = plan
        self._times = times
        self._origin_ns = origin_ns
        self._confirmed: dict[tuple[int, Step], dict[str, StagedMessage]] = {}

    def drive(self) -> bool:
        """Run all stages; return whether the plan was completed before the run's load ended."""
        left = self._plan.most - len(finished(self._earlier))
        logger.info("%s", self._times.foreseen(max(left, 1)))
        while not self._swarm.is_over():
            load = self._plan.next([*finished(self._earlier), *self.stages])
            if load is None:
                return True
            self._perform(load)
        return False

    def confirmed(self, worker: str, staged: StagedMessage) -> None:
        """Note a worker's confirmation."""
        if staged.run == self._run:
            self._confirmed.setdefault((staged.stage, staged.step), {})[worker] = staged

    def _perform(self, load: Load) -> None:
        swarm, number = self._swarm, len(self._earlier) + len(self.stages)
        if load.kind == "users" and load.value < swarm.users():
            swarm.set_users(round(load.value))  # while nobody sends
        most = self._plan.most + len(self._earlier) - len(finished(self._earlier))
        logger.info("stage %d (%d of at most %d): %s", number, number + 1, most, _text(load))
        caches = [] if load.prefix is None else swarm.prepare(load.prefix, number)
        if caches and swarm.is_over():
            return  # nothing was sent: a resumed run has this stage yet to come
        workers = swarm.workers()
        begun_ns = max(swarm.now_ns() + _ns(NOTICE_S), self._origin_ns)
        stage = StageFacts(
            number=number,
            kind=load.kind,
            asked=load.value,
            repeat=load.repeat,
            lengths=load.lengths,
            prefix=load.prefix,
            caches=caches,
            begun_ns=begun_ns,
        )
        if fault := self._cache_fault(caches, workers):
            logger.warning("stage %d has no load: %s", number, fault)
            self._note(replace(stage, ended_ns=begun_ns, drained_ns=begun_ns, fault=fault))
            return
        self._note(stage)
        if load.kind == "rate":
            stage = replace(stage, measured_ns=begun_ns + _ns(self._times.warmup_s))
        self._step(self._message(stage, "load"), workers, NOTICE_S)
        if load.kind == "users":
            self._wait_to(begun_ns)
            if load.value > swarm.users():
                swarm.set_users(round(load.value))
            stage = replace(stage, measured_ns=swarm.now_ns() + _ns(self._times.warmup_s))
            self._step(self._message(stage, "load"), workers, 0.0)
        self._note(stage)
        self._end(*self._measure(stage), workers)

    def _cache_fault(self, caches: Sequence[ReplicaCache], workers: frozenset[str]) -> str:
        """Why the caches are not as the stage needs them; empty if they are."""
        last = next((stage for stage in reversed(self.stages) if stage.ended_ns != stage.begun_ns), None)
        drained = last is None or self._confirmed.get((last.number, "drain"), {}).keys() >= workers
        if caches and last is not None and last.drained_ns is None and not drained:
            return "requests of the stage before may have been in flight when the prefix caches were emptied"
        faults = [cache.fault for cache in caches if cache.fault]
        more = f"; so {len(faults) - 1} more of {len(caches)} replicas" if len(faults) > 1 else ""
        return f"{faults[0]}{more}" if faults else ""

    def _measure(self, stage: StageFacts) -> tuple[StageFacts, int]:
        """Wait until the load is about to end; return when it is to end."""
        swarm, times = self._swarm, self._times
        assert stage.measured_ns is not None
        planned_ns = stage.measured_ns + _ns(times.measured_s)
        for share in times.looks:
            self._wait_to(stage.measured_ns + _ns(share * times.measured_s))
            left_s = (planned_ns - swarm.now_ns()) * 1e-9 - NOTICE_S
            if swarm.is_over() or left_s <= 0:
                break
            stages = [*self.stages[:-1], replace(stage, ended_ns=swarm.now_ns())]
            if swarm.is_enough(stages, left_s) and swarm.now_ns() + _ns(NOTICE_S) < planned_ns:
                return replace(stage, is_early=True), swarm.now_ns() + _ns(NOTICE_S)
        self._wait_to(planned_ns - _ns(NOTICE_S))
        return stage, planned_ns

    def _end(self, stage: StageFacts, planned_ns: int, workers: frozenset[str]) -> None:
        """End the stage's load, wait for the drain, and note what came of it."""
        swarm, times = self._swarm, self._times
        if swarm.is_over():
            short = swarm.now_ns() < planned_ns
            fault = "the run ended before this stage did" if short else ""
            self._note(replace(stage, ended_ns=min(planned_ns, swarm.now_ns()), fault=fault))
            return
        stage = replace(stage, ended_ns=max(planned_ns, swarm.now_ns()))
        self._note(stage)
        message = self._message(stage, "drain")
        self._step(message, workers, max(0.0, (message.at_ns - swarm.now_ns()) * 1e-9) + times.drain_s)
        done = self._confirmed.get((stage.number, "drain"), {})
        self._note(
            replace(
                stage,
                drained_ns=swarm.now_ns() if done.keys() >= workers else None,
                cut=sum(staged.cut for staged in done.values()),
                unsent=sum(staged.unsent for staged in done.values()),
                made={worker: s.finished for worker, s in done.items()} if done.keys() >= workers else {},
                caches=swarm.counted(stage.caches) if stage.caches else [],
                fault=self._fault(stage, workers),
            )
        )

    def _fault(self, stage: StageFacts, workers: frozenset[str]) -> str:
        """Why the stage is not a result; empty if nothing went wrong."""
        done = self._confirmed.get((stage.number, "drain"), {})
        if not workers:
            return "no worker was connected"
        silent = workers - done.keys()
        if silent:
            return f"{len(silent)} of {len(workers)} workers did not confirm that their requests had ended"
        if now := workers ^ self._swarm.workers():
            return f"{len(now)} workers joined or were lost during the stage"
        late = sum(not done[worker].loaded for worker in workers)
        if late:
            return f"{late} of {len(workers)} workers did not begin its load"
        return ""

    def _message(self, stage: StageFacts, step: Step) -> StageMessage:
        at_ns = stage.begun_ns if step == "load" else stage.ended_ns
        assert at_ns is not None
        return StageMessage(
            run=self._run,
            stage=stage.number,
            step=step,
            at_ns=at_ns,
            measured_ns=stage.measured_ns,
            rate=stage.asked if stage.kind == "rate" else None,
            lengths=stage.lengths,
            prefix=stage.prefix,
            drain_s=self._times.drain_s,
        )

    def _step(self, message: StageMessage, workers: frozenset[str], takes_s: float) -> None:
        """Send a step to the workers, and again, until all have confirmed it or time is up."""
        swarm, key = self._swarm, (message.stage, message.step)
        self._confirmed.pop(key, None)
        until_ns = swarm.now_ns() + _ns(takes_s + PATIENCE_S)

        def missing() -> frozenset[str]:
            return workers - self._confirmed.get(key, {}).keys()

        while missing() and swarm.now_ns() < until_ns and not swarm.is_over():
            swarm.tell(message, sorted(missing()))
            swarm.wait_until(lambda: not missing() or swarm.is_over(), AGAIN_S)

    def _wait_to(self, at_ns: int) -> None:
        """Wait until a time, or the end of the run's load."""
        swarm = self._swarm
        swarm.wait_until(swarm.is_over, max(0.0, (at_ns - swarm.now_ns()) * 1e-9))

    def _note(self, stage: StageFacts) -> None:
        """Put the newest facts of a stage in their place, and keep them."""
        self.stages[stage.number - len(self._earlier) :] = [stage]
        self._swarm.keep(self.stages)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _text(load: Load) -> str:
    text = plural(load.value, "user") if load.kind == "users" else f"{load.value:g} requests/s"
    if load.prefix is not None:
        return f"{text}, {load.prefix} shared prefix"
    return text if load.lengths is None else f"{text}, {load.lengths} tokens"
