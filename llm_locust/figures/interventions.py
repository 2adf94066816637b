"""Interventions: requests of a run to its servers besides the load: readiness, cache resets, profiling."""

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

from llm_locust.core.manifest import Manifest, ServerCall
from llm_locust.figures.figure import Run
from llm_locust.figures.text import Line, Section, Tone, clean, count, plural, seconds
from llm_locust.metrics.structs import SummaryPart, key
from llm_locust.metrics.window import Window

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary


# --- What was asked of the servers beside the load, as a section


TITLE = "Server calls"

#: Replicas that one line names.
MOST_INTERVENTIONS = 5


_WHOLE = "the whole run"
_WINDOW = "the window"


class FailedCall(SummaryPart, frozen=True):
    """A server that did not do what it was asked."""

    target: Annotated[str, key("server that did not do it", _WHOLE)]
    status: Annotated[int | None, key("its HTTP status", _WHOLE)]
    error: Annotated[str | None, key("what went wrong", _WHOLE)]


class CallToServers(SummaryPart, frozen=True):
    """A call to servers, and what came of it."""

    path: Annotated[str, key("path of a call to servers", _WHOLE)]
    at_s: Annotated[float, key("when, s after the run's start", _WHOLE)]
    asked: Annotated[int, key("number of servers", _WHOLE)]
    done: Annotated[int, key("number of them that did it", _WHOLE)]
    failed: list[FailedCall]


class Interventions(SummaryPart, frozen=True):
    """What was asked of the servers beside the load: see :ref:`beside the load`."""

    targets: Annotated[
        list[str],
        key("see [other actions on the servers](definitions.md#other-actions-on-the-servers)", _WHOLE),
    ]
    replicas_ready: Annotated[list[str], key("replicas that were waited for before the load", _WHOLE)]
    ready_s: Annotated[
        float | None, key("how long they were waited for, s; null where nobody asked for that", _WHOLE)
    ]
    calls: list[CallToServers]
    profiled_s: Annotated[float, key("how long a profiler ran, s", _WINDOW)]


# --- Requests of a run to its servers besides the load: readiness, cache resets, profiling


#: The paths between which a server's profiler runs.
_START, _STOP = "/start_profile", "/stop_profile"


def compute(run: Run) -> Interventions:
    return interventions(run.manifest, run.m.window)


def interventions(manifest: Manifest, window: Window) -> Interventions:
    """Interventions of the run; ``profiled_s`` are the seconds of the window in which a replica's profiler
    ran.

    ``calls`` are in order of time, those of one path and moment together: ``at_s`` seconds after the run's
    start, ``asked`` replicas, ``done`` of them, ``failed`` with the status or the error. ``ready_s`` is how
    long the ``replicas_ready`` were waited for before the load, None if that was not requested.
    """
    by_moment = groupby(manifest.server_calls, key=lambda call: (call.at_ns, call.path))
    return Interventions(
        targets=list(manifest.targets),
        replicas_ready=list(manifest.replicas_ready),
        ready_s=manifest.ready_s,
        calls=[_moment(manifest, list(calls)) for _, calls in by_moment],
        profiled_s=_profiled_s(manifest, window),
    )


def _moment(manifest: Manifest, calls: list[ServerCall]) -> CallToServers:
    return CallToServers(
        path=calls[0].path,
        at_s=(calls[0].at_ns - manifest.started_ns) * 1e-9,
        asked=len(calls),
        done=sum(call.done for call in calls),
        failed=[
            FailedCall(target=call.target, status=call.status, error=call.error)
            for call in calls
            if not call.done
        ],
    )


def _profiled_s(manifest: Manifest, window: Window) -> float:
    """From the first profiler's start to the last one's stop; to the window's end if none stopped."""
    done = [call for call in manifest.server_calls if call.done]
    start_ns = min((call.at_ns for call in done if call.path == _START), default=None)
    if start_ns is None:
        return 0.0
    stop_ns = max((call.at_ns for call in done if call.path == _STOP), default=window.end_ns)
    return max(0, min(stop_ns, window.end_ns) - max(start_ns, window.start_ns)) * 1e-9


_WHAT = {
    "/start_profile": "profiler started",
    "/stop_profile": "profiler stopped",
    "/reset_prefix_cache": "prefix cache emptied",
    "/flush_cache": "prefix cache emptied",
}


def show(summary: "Summary") -> Section | None:
    """None where the run asked nothing of its servers but answers."""
    part = summary.interventions
    lines = tuple(_lines(part))
    return Section(TITLE, lines) if lines else None


def _lines(part: Interventions) -> Iterator[Line]:
    if targets := part.targets:
        yield Line(f"directly to {plural(len(targets), 'target')}, without a balancer")
    if (waited_s := part.ready_s) is not None:
        ready = part.replicas_ready
        yield Line(
            f"{plural(len(ready), 'replica')} waited for, ready within {seconds(waited_s)}", Tone.FAINT
        )
    for call in part.calls:
        yield from _call(call)
    if profiled_s := part.profiled_s:
        yield Line(
            f"a profiler ran in {seconds(profiled_s)} of the window: its cost is part of the latencies",
            Tone.WARN,
        )


def _call(call: CallToServers) -> Iterator[Line]:
    path = clean(call.path)
    what, at = _WHAT.get(path, path), seconds(call.at_s)
    asked, failed = call.asked, call.failed
    yield Line(f"{what} at {at} on {count(call.done)} of {plural(asked, 'replica')}")
    if failed:
        named = ", ".join(map(_named, failed[:MOST_INTERVENTIONS]))
        others = f" and {len(failed) - MOST_INTERVENTIONS} more" if len(failed) > MOST_INTERVENTIONS else ""
        yield Line(f"{path} not done by {named}{others}", Tone.WARN, verbatim=True)


def _named(failed: FailedCall) -> str:
    return f"{clean(failed.target)} ({clean(failed.error or failed.status)})"
