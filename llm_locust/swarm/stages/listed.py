"""Stages of a run as its manifest has them: those of a profile of steps, those of a sweep."""

from collections.abc import Sequence
from dataclasses import replace

from llm_locust.core.manifest import MOST_STAGES, StageFacts
from llm_locust.options.arrivals import LoadSettings
from llm_locust.options.stop_rules import OVERSATURATION
from llm_locust.workload.arrivals import Profile, RateSegment


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
