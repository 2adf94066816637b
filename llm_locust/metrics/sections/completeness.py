"""Completeness of a run: whether every request that was sent is in it, and what is missing, by worker.

A request is *lost* if it was sent, as far as is known, and the run has no record of it: it was in flight when
its worker last reported, or its record was not received. The unrecorded requests of a worker are those that
it announced and those in flight, less those received; see
:attr:`~llm_locust.core.manifest.WorkerFacts.unrecorded`.
"""

import math
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from llm_locust.core.manifest import ClockFacts, Manifest, NodeHealth, ServerCall, WorkerFacts
from llm_locust.metrics.summary_types.course import CallToServers, FailedCall, Interventions
from llm_locust.metrics.window import Window


def requests_lost(manifest: Manifest, rows: int) -> int:
    """Requests of the whole run without a record: lost at the workers, or received but neither in ``rows``
    nor dropped."""
    return manifest.records_lost + max(0, manifest.records_received - _rows_and_dropped(manifest, rows))


def _rows_and_dropped(manifest: Manifest, rows: int) -> int:
    return rows + (0 if manifest.dropped is None else manifest.dropped.records)


def requests_unsent(manifest: Manifest, warmup_s: float) -> int:
    """Requests of a schedule that were due after the warm-up, and were never sent.

    For those in the run's own warm-up the time is unknown: if less is left out, all of them count.
    """
    shorter = warmup_s < manifest.warmup_s
    return sum(w.unsent - (0 if shorter else w.unsent_warmup) for w in manifest.workers)


def unsent_by_class(manifest: Manifest, warmup_s: float) -> dict[str, int] | None:
    """The same by class; None if the class of some is unknown."""
    counts: Counter[str] = Counter()
    for worker in manifest.workers:
        counts.update(worker.unsent_by_class)
    return dict(counts) if counts.total() == requests_unsent(manifest, warmup_s) else None


def completeness(manifest: Manifest, rows: int) -> dict[str, Any]:
    """Announced and received records, over all workers and for each one, by index.

    ``missing`` has each worker that lacks records, ``lost`` each lost one. ``in_flight_lost`` are the
    requests that the lost workers had in flight; they are among ``records_lost``. ``held_back`` are those
    that ``--max-in-flight`` delayed, ``unsent`` those that were due and still waited when the load ended:
    these were never sent, and no record of them is missing. A run of fewer ``rows`` than the master received
    and has not dropped is not complete, nor one of which a worker has ``faults``: what makes its count of
    records doubtful.
    ``backoff_s`` is the time of users of a closed loop that waited after a failed request, and
    ``backoff_users_mean`` how many waited at a time, on average: so many fewer were loading the server.
    ``messages_dropped`` are invalid ones and those of unknown senders, ``messages_dropped_by`` by sender and
    kind.
    """
    workers = sorted(manifest.workers, key=lambda w: (w.index, w.id))
    return {
        "complete": manifest.complete and _rows_and_dropped(manifest, rows) >= manifest.records_received,
        "cut_short": manifest.cut_short,
        "workers_expected": manifest.workers_expected,
        "workers_seen": len(workers),
        "workers_late": sum(w.late for w in workers),
        "workers_left": sum(w.left for w in workers),
        "workers_lost": manifest.workers_lost,
        "records_announced": manifest.records_announced,
        "records_received": manifest.records_received,
        "records_stored": rows,
        "records_lost": requests_lost(manifest, rows),
        "records_dropped": sum(w.dropped for w in workers),
        "batches_resent": sum(w.resent for w in workers),
        "held_back": sum(w.held_back for w in workers),
        "held_back_s_max": max((w.longest_held_ns for w in workers), default=0) * 1e-9,
        **_backoff(manifest),
        "unsent": sum(w.unsent for w in workers),
        "in_flight_lost": sum(w.in_flight for w in workers if w.lost),
        "missing": {w.id: w.missing for w in sorted(workers, key=lambda w: w.id) if w.missing},
        "lost": sorted(w.id for w in workers if w.lost),
        "torn": list(manifest.torn),
        "faults": {w.id: list(w.faults) for w in sorted(workers, key=lambda w: w.id) if w.faults},
        "messages_dropped": sum(sum(kinds.values()) for kinds in manifest.messages_dropped.values()),
        "messages_dropped_by": {name: dict(kinds) for name, kinds in manifest.messages_dropped.items()},
        "workers": [_worker(w, manifest) for w in workers],
        "master": {"clock_steps": manifest.clock_steps, **_health(manifest.master)},
    }


def largest(values: Iterable[float | None]) -> float | None:
    """Largest known value; None without any."""
    return max((v for v in map(known, values) if v is not None), default=None)


def known(value: float | None) -> float | None:
    """The value, or None if it is not a finite number."""
    return value if value is not None and math.isfinite(value) else None


def _backoff(manifest: Manifest) -> dict[str, Any]:
    """Waits of users after failed requests: number, sum, and sum / duration of the load."""
    waited_s = sum(w.backoff_ns for w in manifest.workers) * 1e-9
    load_s = math.nan if manifest.stopped_ns is None else (manifest.stopped_ns - manifest.started_ns) * 1e-9
    return {
        "backoff_waits": sum(w.backoff_waits for w in manifest.workers),
        "backoff_s": waited_s,
        "backoff_users_mean": waited_s / load_s if load_s > 0 else None,
    }


def _worker(worker: WorkerFacts, manifest: Manifest) -> dict[str, Any]:
    return {
        "id": worker.id,
        "index": worker.index,
        "state": _state(worker, manifest),
        "late": worker.late,
        "joined_s": _after_start_s(worker.joined_ns, manifest),
        "heard_s": _after_start_s(worker.heard_ns, manifest),
        "announced": worker.announced,
        "received": worker.received,
        "missing": worker.missing,
        "in_flight": worker.in_flight,
        "unrecorded": worker.unrecorded,
        "batches": worker.batches,
        "batches_received": worker.received_seqs or None,
        "resent": worker.resent,
        "dropped": worker.dropped,
        "held_back": worker.held_back,
        "unsent": worker.unsent,
        **_clock(worker.clock),
        **_health(worker.health),
    }


def _state(worker: WorkerFacts, manifest: Manifest) -> str:
    """State of a worker; until the last record is in, one that is neither lost nor gone is running."""
    if worker.lost:
        return "lost"
    if worker.left:
        return "left"
    return "running" if manifest.ended_ns is None else "done"


def _after_start_s(at_ns: int | None, manifest: Manifest) -> float | None:
    """Seconds after the run's start; below 0 for a worker that was there before."""
    return None if at_ns is None else (at_ns - manifest.started_ns) * 1e-9


def _clock(clock: ClockFacts | None) -> dict[str, float | int | None]:
    return {
        "clock_offset_ms": None if clock is None else clock.offset_ns * 1e-6,
        "clock_error_ms": None if clock is None else clock.error_ns * 1e-6,
        "clock_steps": None if clock is None else clock.steps,
    }


def _health(health: NodeHealth) -> dict[str, float | None]:
    return {
        "hub_lag_ms_p99": known(health.hub_lag_ms_p99),
        "hub_lag_ms_max": known(health.hub_lag_ms_max),
        "cpu_percent_max": known(health.cpu_percent_max),
        "rss_mib_max": known(health.rss_mib_max),
        "steal_percent": known(health.steal_percent),
        "throttled_percent": known(health.throttled_percent),
        "run_queue_percent": known(health.run_queue_percent),
    }


# --------------------
# Requests of a run to its servers besides the load: readiness, cache resets, profiling.
# --------------------


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
