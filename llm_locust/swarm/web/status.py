"""State of a run for the head of the page of charts: tiles, workers, the client's verdict."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from llm_locust.core.record import Outcome
from llm_locust.figures.text import clean
from llm_locust.live.figures import Figures, rounded
from llm_locust.live.snapshot import Snapshot, snapshot
from llm_locust.live.state import LiveRun, WorkerState
from llm_locust.live.store import LiveStore
from llm_locust.metrics.catalogue import LIVE
from llm_locust.metrics.server_series import FIGURES

#: Length of the recent span of tables and tiles.
RECENT_S = 30.0


@dataclass(frozen=True, slots=True)
class Look:
    """A run at one time: its numbers since the start, and those of the last :data:`RECENT_S`. ``silent`` are
    the servers that had no page of metrics at the last scrape."""

    run: LiveRun
    whole: Snapshot
    recent: Snapshot
    running: bool
    silent: tuple[str, ...] = ()


def look_at(store: LiveStore) -> Look:
    """Compute the snapshots of a store that does not change; with many keys it takes tens of milliseconds."""
    running = bool(store.run.id) and store.content.stopped_s is None
    silent = tuple(sorted(name for name, up in store.content.servers.items() if not up))
    return Look(store.run, snapshot(store), snapshot(store, RECENT_S), running, silent)


#: Most workers listed: those that are lost or gone come first, then the busiest.
MOST_WORKERS = 100


class ListedWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker in the list of the page."""

    id: str
    state: str
    users: int
    in_flight: int | None
    cpu_percent: float | None
    hub_lag_ms: float | None


def status(look: Look, alarms: Iterable[str]) -> dict[str, Any]:
    """Data of the page besides the series. Undefined values are None."""
    whole, recent = look.whole, look.recent
    seen = recent.observation
    workers = sorted(seen.workers, key=lambda w: (not w.lost, w.here, -(w.cpu_percent or 0.0), w.id))
    return {
        "run": look.run.id,
        "model": clean(look.run.model),
        "running": look.running,
        "open_loop": look.run.open_loop,
        "of_agents": look.run.pauses_s is not None,
        "elapsed_s": round(whole.elapsed_s, 1),
        "recent_s": RECENT_S,
        "users": seen.users,
        "target": seen.target,
        "rate": rounded(seen.rate),
        "in_flight": seen.in_flight,
        # Those that hold for every class.
        "limits_ms": {name: round(limit * 1e3, 6) for name, limit in look.run.limits.slo.limits.items()},
        "whole": _figures(whole.total),
        "recent": _figures(recent.total),
        "verdict": recent.validity.severity,
        "reasons": list(recent.validity.reasons),
        "cause": recent.validity.cause,
        "hung": whole.hung.text(seen.users),
        "slow": [clean(text) for text in recent.slow],
        "alarms": list(alarms),
        "missed": whole.missed,
        "relative_error": whole.relative_error,
        "workers_here": sum(w.here for w in workers),
        "workers_lost": sum(w.lost for w in workers),
        "workers": [_listed(worker) for worker in workers[:MOST_WORKERS]],
        "servers_silent": [clean(name) for name in look.silent],
        "workers_hidden": max(0, len(workers) - MOST_WORKERS),
    }


def _listed(worker: WorkerState) -> ListedWorker:
    return ListedWorker(
        id=clean(worker.id),
        state=worker.state,
        users=worker.users,
        in_flight=worker.in_flight,
        cpu_percent=worker.cpu_percent,
        hub_lag_ms=worker.hub_lag_ms,
    )


def _figures(of_span: Figures) -> dict[str, Any]:
    return {
        "requests": of_span.requests,
        "failures": of_span.failures,
        "requests_per_s": rounded(of_span.requests_per_s),
        "input_tokens_per_s": rounded(of_span.input_tokens_per_s, 5),
        "output_tokens_per_s": rounded(of_span.output_tokens_per_s, 5),
        "inputs_per_s": rounded(of_span.inputs_per_s, 5),
        "agents": None if of_span.agents is None else asdict(of_span.agents),
        "images_per_s": rounded(of_span.images_per_s, 5),
        "goodput": rounded(of_span.goodput),
        "good_requests_per_s": rounded(of_span.good_requests_per_s),
        **{
            f"{metric.key}_{place}_ms": rounded(of_span.latencies[metric.key].at_ms(place))
            for metric in LIVE
            if metric.live and metric.live.tile
            for place in ("p50", "p99")
        },
    }


def catalogue() -> dict[str, Any]:
    """What the page has charts and tiles of: latencies, outcomes but ``ok``, figures of servers."""
    return {
        "latencies": [
            {
                "key": metric.key,
                "label": metric.label,
                "unit": metric.unit,
                "chart": metric.live.chart,
                "tile": metric.live.tile,
            }
            for metric in LIVE
            if metric.live
        ],
        "outcomes": [outcome for outcome in Outcome if outcome not in (Outcome.OK, Outcome.RESENT)],
        "servers": FIGURES,
    }
