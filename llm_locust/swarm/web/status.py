"""State of a run for the head of the page of charts: tiles, workers, the client's verdict."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from llm_locust.core.record import Outcome
from llm_locust.live.figures import Figures, rounded
from llm_locust.live.state import WorkerState
from llm_locust.metrics.catalogue import LIVE
from llm_locust.metrics.deployment.server_now import FIGURES
from llm_locust.metrics.requests.goodput import Limits
from llm_locust.report.text import clean
from llm_locust.swarm.web.numbers import RECENT_S, Look

#: Most workers listed: those that are lost or gone come first, then the busiest.
MOST_WORKERS = 100


def status(look: Look, alarms: Iterable[str]) -> dict[str, Any]:
    """Data of the page besides the series. Undefined values are None."""
    whole, recent = look.whole, look.recent
    seen = recent.observation
    workers = sorted(seen.workers, key=_concern)
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
        "limits_ms": _limits_ms(look.run.limits),
        "whole": _figures(whole.total),
        "recent": _figures(recent.total),
        "verdict": recent.verdict.severity,
        "reasons": list(recent.verdict.reasons),
        "cause": recent.verdict.cause,
        "alarms": list(alarms),
        "missed": whole.missed,
        "relative_error": whole.relative_error,
        "workers_here": sum(w.here for w in workers),
        "workers_lost": sum(w.lost for w in workers),
        "workers": [_worker(worker) for worker in workers[:MOST_WORKERS]],
        "servers_silent": [clean(name) for name in look.silent],
        "workers_hidden": max(0, len(workers) - MOST_WORKERS),
    }


def _worker(worker: WorkerState) -> dict[str, Any]:
    told = ("state", "users", "in_flight", "cpu_percent", "hub_lag_ms")
    return {"id": clean(worker.id)} | {name: getattr(worker, name) for name in told}


def _concern(worker: WorkerState) -> tuple[bool, bool, float, str]:
    return not worker.lost, worker.here, -(worker.cpu_percent or 0.0), worker.id


def _limits_ms(limits: Limits) -> dict[str, float]:
    """Limits that hold for every class."""
    return {metric: round(limit_s * 1e3, 6) for metric, limit_s in limits.slo.limits.items()}


def _figures(told: Figures) -> dict[str, Any]:
    return {
        "requests": told.requests,
        "failures": told.failures,
        "requests_per_s": rounded(told.requests_per_s),
        "input_tokens_per_s": rounded(told.input_tokens_per_s, 5),
        "output_tokens_per_s": rounded(told.output_tokens_per_s, 5),
        "inputs_per_s": rounded(told.inputs_per_s, 5),
        "agents": None if told.agents is None else asdict(told.agents),
        "images_per_s": rounded(told.images_per_s, 5),
        "goodput": rounded(told.goodput),
        "good_requests_per_s": rounded(told.good_requests_per_s),
        **{
            f"{metric.key}_{place}_ms": rounded(told.latencies[metric.key].at_ms(place))
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
