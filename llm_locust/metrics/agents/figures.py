"""Agents over trajectories: speed of their turns, their work, and prefix-cache hits beside possible ones."""

from typing import Any

import numpy as np

from llm_locust.core.batch import Requests
from llm_locust.core.run_facts import TrajectoryFacts
from llm_locust.metrics.agents.jobs import jobs
from llm_locust.metrics.agents.walks import PerTurn, Walks
from llm_locust.metrics.catalogue import e2el, schedule_delay, tpot
from llm_locust.metrics.columns import Columns, Floats, Mask
from llm_locust.metrics.stats.percentiles import ordered, percentile
from llm_locust.metrics.window import Window

#: A pause that was longer than recorded by more than this is late.
LATE_S = 0.005


def agents(
    requests: Requests, c: Columns, window: Window, facts: TrajectoryFacts, gpus: float | None
) -> dict[str, Any]:
    """Figures of the agents' requests that were scheduled in the window, and of the work done in it.

    Args:
        gpus: serving GPUs; None if that is not known.
    """
    walks = Walks.of(requests)
    of_walk = (walks.session >= 0) & window.scheduled(c)
    ok = of_walk & c.ok
    speed = ordered(_inverse(tpot(c)[ok]))
    tokens, took_s = c.output_tokens[ok], e2el(c)[ok]
    known = ~np.isnan(tokens) & (took_s > 0)
    e2e_speed = ordered(tokens[known] / took_s[known])
    return {
        "agents": len(np.unique(walks.agent[of_walk])),
        "turns": int(of_walk.sum()),
        "ok": int(ok.sum()),
        "output_tokens_per_s_p25": _percentile(speed, 25),
        "output_tokens_per_s_p50": _percentile(speed, 50),
        "e2e_tokens_per_s_p10": _percentile(e2e_speed, 10),
        "e2e_tokens_per_s_p25": _percentile(e2e_speed, 25),
        "e2e_tokens_per_s_p50": _percentile(e2e_speed, 50),
        "e2e_tokens_per_s_mean": _ratio(tokens[known].sum(), took_s[known].sum()),
        "pauses": _pauses(c, of_walk, walks),
        **jobs(c, walks, window, facts, gpus),
        "cache": _cache(c, walks, ok, facts),
    }


def _pauses(c: Columns, turns: Mask, walks: Walks) -> dict[str, Any]:
    """How late turns began that were due at the end of a pause: all but the first of a walk."""
    late = schedule_delay(c)[turns & (walks.turn > 0)]
    late_ms = ordered(late) * 1e3
    return {
        "n": len(late_ms),
        "late_ms_p50": _percentile(late_ms, 50),
        "late_ms_p99": _percentile(late_ms, 99),
        "late_ms_max": _percentile(late_ms, 100),
        "late": int((late > LATE_S).sum()),
    }


def _cache(c: Columns, walks: Walks, ok: Mask, facts: TrajectoryFacts) -> dict[str, Any]:
    """Over the turns whose prompt's and cached tokens the server counted: the same for both shares."""
    known = ok & ~np.isnan(walks.cached_tokens) & ~np.isnan(c.input_tokens)
    rows = np.flatnonzero(known)
    possible = PerTurn.of(facts.possible).at(walks.trajectory[rows], walks.turn[rows])
    told = ~np.isnan(possible)
    rows, possible = rows[told], possible[told]
    inputs = c.input_tokens[rows]
    return {
        "turns": len(rows),
        "achieved": _ratio(walks.cached_tokens[rows].sum(), inputs.sum()),
        "possible": _ratio((possible * inputs).sum(), inputs.sum()),
    }


def _inverse(values: Floats) -> Floats:
    """1 / value of those above 0."""
    return 1 / values[values > 0]


def _percentile(ascending: Floats, percent: float) -> float | None:
    return percentile(ascending, percent) if len(ascending) else None


def _ratio(a: float, b: float) -> float | None:
    return float(a) / float(b) if b else None
