"""Requests of a run to its servers besides the load: readiness, cache resets, profiling."""

from itertools import groupby

from llm_locust.core.manifest import Manifest, ServerCall
from llm_locust.metrics.summary_types.course import CallToServers, FailedCall, Interventions
from llm_locust.metrics.window import Window

#: The paths between which a server's profiler runs.
_START, _STOP = "/start_profile", "/stop_profile"


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
