"""Agents over trajectories: the speed of their turns, their jobs, and prefix-cache hits beside possible ones.

A job is one walk through a trajectory that came to its end. The name of its session has the trajectory's
place in the pool (:func:`walk_name`), by which the manifest's facts of the pool belong to a request.
"""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_locust.core.batch import RecordBatch, Requests
from llm_locust.core.trajectory_facts import TrajectoryFacts
from llm_locust.metrics.catalogue import e2el, tpot
from llm_locust.metrics.columns import Columns, Floats, Mask
from llm_locust.metrics.window import Window

_COLUMNS = ("session", "turn", "cached_tokens", "worker", "user")
_WALK = re.compile(r"-t([0-9]{1,7})-of([0-9]{1,7})$")


def walk_name(unique: str, trajectory: int) -> str:
    """The name of a walk, before its planned number of turns."""
    return f"{unique}-t{trajectory}"


@dataclass(frozen=True, slots=True)
class Walks:
    """One value per request, -1 where it belongs to no walk.

    ``session`` is a number of its walk, ``agent`` of its user, ``trajectory`` the place in the pool, ``turn``
    its turn, ``planned`` the turns of the walk.
    """

    session: NDArray[np.int64]
    agent: NDArray[np.int64]
    trajectory: NDArray[np.int64]
    planned: NDArray[np.int64]
    turn: NDArray[np.int64]
    cached_tokens: Floats

    @classmethod
    def of(cls, requests: Requests) -> "Walks":
        """Read part by part."""
        walks: dict[str, tuple[int, int, int]] = {}
        agents: dict[tuple[str | None, int], int] = {}
        found = [_part(batch, walks, agents) for batch in requests.parts(_COLUMNS)]
        whole = np.concatenate([numbers for numbers, _ in found], axis=1)
        session, agent, trajectory, planned, turn = whole
        cached = np.concatenate([cached for _, cached in found])
        return cls(session, agent, trajectory, planned, turn, cached)


def _part(
    batch: RecordBatch, walks: dict[str, tuple[int, int, int]], agents: dict[tuple[str | None, int], int]
) -> tuple[NDArray[np.int64], Floats]:
    turns = np.nan_to_num(batch.floats("turn"), nan=-1).astype(np.int64)
    users = np.nan_to_num(batch.floats("user"), nan=-1).astype(np.int64)
    rows = []
    names = zip(batch.texts("session"), batch.texts("worker"), users.tolist(), strict=True)
    for session, worker, user in names:
        walk = None if session is None else walks.get(session)
        if walk is None and session is not None and (match := _WALK.search(session)):
            walk = walks[session] = (len(walks), int(match[1]), int(match[2]))
        agent = agents.setdefault((worker, user), len(agents))
        rows.append((-1, agent, -1, -1) if walk is None else (walk[0], agent, walk[1], walk[2]))
    numbers = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    return np.vstack([numbers, turns]), batch.floats("cached_tokens")


def agents(
    requests: Requests, c: Columns, window: Window, facts: TrajectoryFacts, gpus: float | None
) -> dict[str, Any]:
    """Figures of the agents' requests that were scheduled in the window, and of the jobs that ended in it.

    Args:
        gpus: serving GPUs; None if that is not known.
    """
    walks = Walks.of(requests)
    of_walk = (walks.session >= 0) & window.scheduled(c)
    ok = of_walk & c.ok
    speed = _inverse(tpot(c)[ok])
    tokens, took_s = c.output_tokens[ok], e2el(c)[ok]
    known = ~np.isnan(tokens) & (took_s > 0)
    return {
        "agents": len(np.unique(walks.agent[of_walk])),
        "turns": int(of_walk.sum()),
        "ok": int(ok.sum()),
        "output_tokens_per_s_p25": _quantile(speed, 0.25),
        "output_tokens_per_s_p50": _quantile(speed, 0.5),
        "e2e_tokens_per_s_p25": _quantile(tokens[known] / took_s[known], 0.25),
        "e2e_tokens_per_s_p50": _quantile(tokens[known] / took_s[known], 0.5),
        "e2e_tokens_per_s_mean": _ratio(tokens[known].sum(), took_s[known].sum()),
        **_jobs(c, walks, window, facts, gpus),
        "cache": _cache(c, walks, ok, facts),
    }


def _jobs(
    c: Columns, walks: Walks, window: Window, facts: TrajectoryFacts, gpus: float | None
) -> dict[str, Any]:
    """The walks through trajectories of the pool, without sub-agents, that ended in the window.

    A walk fails with its first turn that does: none follows. One that was cut is neither.
    """
    roots = (walks.session >= 0) & (walks.trajectory < facts.roots)
    failing = roots & ~c.ok & ~c.cancelled
    failed = len(np.unique(walks.session[failing & window.inside(c, c.ended_s)]))
    rows = np.flatnonzero(roots & c.ok)
    sessions, session = np.unique(walks.session[rows], return_inverse=True)
    n = len(sessions)
    done = np.bincount(session, minlength=n)
    planned = np.zeros(n, dtype=np.int64)
    planned[session] = walks.planned[rows]
    begun, ended = np.full(n, np.inf), np.full(n, -np.inf)
    np.minimum.at(begun, session, c.scheduled_s[rows])
    np.maximum.at(ended, session, c.ended_s[rows])
    served = np.bincount(session, weights=(c.ended_s - c.scheduled_s)[rows], minlength=n)
    complete = (done == planned) & window.inside(c, ended)
    lasted = (ended - begun)[complete]
    mean_s = float(lasted.mean()) if len(lasted) else None
    per_h = len(lasted) / window.seconds * 3600 if window.seconds > 0 else None
    return {
        "jobs": len(lasted),
        "jobs_failed": failed,
        "job_s_mean": mean_s,
        "between_turns_s_mean": float((lasted - served[complete]).mean()) if len(lasted) else None,
        "jobs_per_h_per_user": None if not mean_s else 3600 / mean_s,
        "jobs_per_h": per_h,
        "jobs_per_h_per_gpu": None if per_h is None or not gpus else per_h / gpus,
    }


def _cache(c: Columns, walks: Walks, ok: Mask, facts: TrajectoryFacts) -> dict[str, Any]:
    """Over the turns whose prompt's and cached tokens the server counted: the same for both shares."""
    known = ok & ~np.isnan(walks.cached_tokens) & ~np.isnan(c.input_tokens)
    rows = np.flatnonzero(known)
    possible = _possible(facts, walks.trajectory[rows], walks.turn[rows])
    told = ~np.isnan(possible)
    rows, possible = rows[told], possible[told]
    inputs = c.input_tokens[rows]
    return {
        "turns": len(rows),
        "achieved": _ratio(walks.cached_tokens[rows].sum(), inputs.sum()),
        "possible": _ratio((possible * inputs).sum(), inputs.sum()),
    }


def _possible(facts: TrajectoryFacts, trajectory: NDArray[np.int64], turn: NDArray[np.int64]) -> Floats:
    """The share of each turn's prompt, NaN where the pool has no such turn."""
    lengths = np.array([len(shares) for shares in facts.possible], dtype=np.int64)
    begins = np.concatenate([[0], np.cumsum(lengths)])
    flat = np.array([share for shares in facts.possible for share in shares] or [np.nan])
    inside = (trajectory >= 0) & (trajectory < len(lengths)) & (turn >= 0)
    inside[inside] &= turn[inside] < lengths[trajectory[inside]]
    at = np.where(inside, begins[np.where(inside, trajectory, 0)] + turn, 0)
    return np.where(inside, flat[at], np.nan)


def _inverse(values: Floats) -> Floats:
    """1 / value of those above 0."""
    return 1 / values[values > 0]


def _quantile(values: Floats, q: float) -> float | None:
    return float(np.quantile(values, q)) if len(values) else None


def _ratio(a: float, b: float) -> float | None:
    return float(a) / float(b) if b else None
