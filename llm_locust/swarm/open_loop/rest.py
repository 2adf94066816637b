"""How much of a schedule one worker had to send in a span of it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from llm_locust.options.arrivals import LoadSettings
from llm_locust.swarm.channel.messages import RunInfo
from llm_locust.swarm.open_loop.load import timetable
from llm_locust.workload.arrivals import Schedule, Timetable
from llm_locust.workload.traces import TraceError

#: Span of a schedule that is drawn at a time.
_SPAN_S = 60.0


class Span(NamedTuple):
    """A part of a schedule: after ``from_s``, before ``until_s``, which is infinite for one that ends."""

    from_s: float
    until_s: float


class Scheduled(NamedTuple):
    """A number of requests, and how many of them were due before the measured phase."""

    requests: int = 0
    warmup: int = 0


def scheduled(
    load: LoadSettings, run: RunInfo, index: int, rates: Mapping[int, float], span: Span, measured_s: float
) -> Scheduled:
    """What the schedule has for worker ``index`` in a span; of a trace, as far as it can be read.

    Args:
        rates: the rate as it was changed, by the time of the run's axis from which on it held.
        measured_s: begin of the measured phase, in the schedule's time.
    """
    requests = warmup = 0
    try:
        found = timetable(load, run, index)
        for at_ns, rate in sorted(rates.items()):
            if isinstance(found, Schedule):
                found.change_rate((at_ns - run["origin_ns"]) * 1e-9, rate)
        until_s = 0.0
        while until_s < span.until_s and not found.ended:
            until_s = min(until_s + _SPAN_S, span.until_s)
            due_s = [at_s for at_s in _due(found, until_s) if at_s > span.from_s]
            requests += len(due_s)
            warmup += sum(at_s < measured_s for at_s in due_s)
    except TraceError:
        pass  # the workers have said so
    return Scheduled(requests, warmup)


def _due(found: Timetable[Any], until_s: float) -> Sequence[float]:
    if isinstance(found, Schedule):
        due_s: list[float] = found.times(until_s).at_s.tolist()
        return due_s
    return [arrival.at_s for arrival in found.before(until_s)]
