"""Jobs an hour, of the work that agents did in the window.

A job is one walk through a trajectory of the pool. The jobs that came to their end in the window are more
often short ones than long ones: their mean duration is too short, and 3,600 / it too high, the more so the
shorter the window. But the turns of a job are known: by the renewal-reward theorem an agent that did W
turns in the time T does W / T / E[turns of a job] jobs in each unit of time, whatever was cut. E[turns of a
job] is the pool's mean, because each agent walks through all of it. That assumes that turns that came up in
the window last as long on average as those that did not; ``turns_seen`` is the share of the pool's turns
that did.

Turns of walks that failed are no work. The time of their agents is.
"""

from typing import Any

import numpy as np

from llm_locust.core.run_facts import TrajectoryFacts
from llm_locust.metrics.agents.walks import PerTurn, Walks
from llm_locust.metrics.columns import Columns, Floats, Mask
from llm_locust.metrics.window import Window


def jobs(
    c: Columns, walks: Walks, window: Window, facts: TrajectoryFacts, gpus: float | None
) -> dict[str, Any]:
    """The work done in the window, and the walks of the pool, without sub-agents, that ended in it.

    Args:
        gpus: serving GPUs; None if that is not known.
    """
    failing = (walks.session >= 0) & ~c.ok & ~c.cancelled
    broken = np.isin(walks.session, walks.session[failing])
    ended = window.inside(c, c.ended_s)
    pauses_s = tool_s(walks, facts.roots, PerTurn.of(facts.pauses_s))
    done = (walks.session >= 0) & c.ok & ~broken & ended
    of_pool = sum(map(len, facts.possible))
    turns_of_job = of_pool / facts.roots if facts.roots else 0.0
    worked = int(done.sum()) / turns_of_job if turns_of_job else None
    agent_s = _agent_s(c, walks, window)
    per_h = None if worked is None or not window.seconds > 0 else worked / window.seconds * 3600
    per_user = None if worked is None or not agent_s else worked / agent_s * 3600
    return {
        **_finished(c, walks, window, facts, pauses_s),
        "jobs_failed": len(np.unique(walks.session[failing & ended & (walks.trajectory < facts.roots)])),
        "jobs_worked": worked,
        "turns_seen": _seen(walks, done) / of_pool if of_pool else None,
        "agent_s": agent_s,
        "between_turns_share": _between(c, walks, window, facts, agent_s),
        **_tools(c, window, pauses_s, agent_s),
        "jobs_per_h_per_user": per_user,
        "jobs_per_h": per_h,
        "jobs_per_h_per_gpu": None if per_h is None or not gpus else per_h / gpus,
    }


def tool_s(walks: Walks, roots: int, pauses: PerTurn) -> Floats:
    """The recorded pause after each turn of an agent itself: the time of its tools, 0 after its last turn."""
    own = (walks.trajectory >= 0) & (walks.trajectory < roots) & (walks.turn + 1 < walks.planned)
    return np.where(own, np.nan_to_num(pauses.at(walks.trajectory, walks.turn)), 0.0)


def _tools(c: Columns, window: Window, pauses_s: Floats, agent_s: float) -> dict[str, float | None]:
    """The time in tools: all of it that began in the window, and the share of the agents' time there."""
    begun = np.flatnonzero(c.ok & (pauses_s > 0))
    inside = _inside(c, window, c.ended_s[begun], c.ended_s[begun] + pauses_s[begun])
    return {
        "tools_s": float(pauses_s[begun][window.inside(c, c.ended_s[begun])].sum()),
        "tools_share": float(inside.sum()) / agent_s if agent_s else None,
    }


def _finished(
    c: Columns, walks: Walks, window: Window, facts: TrajectoryFacts, pauses_s: Floats
) -> dict[str, Any]:
    """The jobs that came to their end in the window; one that was cut or failed is none."""
    rows = np.flatnonzero((walks.session >= 0) & (walks.trajectory < facts.roots) & c.ok)
    sessions, session = np.unique(walks.session[rows], return_inverse=True)
    n = len(sessions)
    planned = np.zeros(n, dtype=np.int64)
    planned[session] = walks.planned[rows]
    begun, ended = np.full(n, np.inf), np.full(n, -np.inf)
    np.minimum.at(begun, session, c.scheduled_s[rows])
    np.maximum.at(ended, session, c.ended_s[rows])
    served = np.bincount(session, weights=(c.ended_s - c.scheduled_s)[rows], minlength=n)
    tools = np.bincount(session, weights=pauses_s[rows], minlength=n)
    complete = (np.bincount(session, minlength=n) == planned) & window.inside(c, ended)
    lasted = (ended - begun)[complete]
    return {
        "jobs": len(lasted),
        "job_s_mean": float(lasted.mean()) if len(lasted) else None,
        "between_turns_s_mean": float((lasted - served[complete]).mean()) if len(lasted) else None,
        "tools_s_mean": float(tools[complete].mean()) if len(lasted) else None,
    }


def _seen(walks: Walks, done: Mask) -> int:
    """How many different turns of the pool these are."""
    return len(np.unique(np.stack([walks.trajectory[done], walks.turn[done]]), axis=1).T)


def _agent_s(c: Columns, walks: Walks, window: Window) -> float:
    """Time of all agents with a turn in the window.

    An agent is there from its first turn on; before it, if that is a later turn of its walk, which follows a
    pause. It is there to the window's end: that of one that was stopped earlier counts too.
    """
    touching = (c.scheduled_s < window.end_s(c)) & ~(c.ended_s < window.start_s(c))
    known = (walks.session >= 0) & np.isin(walks.agent, walks.agent[touching & (walks.session >= 0)])
    rows = np.flatnonzero(known)
    order = np.lexsort((c.scheduled_s[rows], walks.agent[rows]))
    _, at = np.unique(walks.agent[rows][order], return_index=True)
    first = rows[order[at]]
    begun = np.where(walks.turn[first] > 0, -np.inf, c.scheduled_s[first])
    return float(_inside(c, window, begun, np.full(len(first), np.inf)).sum())


def _between(
    c: Columns, walks: Walks, window: Window, facts: TrajectoryFacts, agent_s: float
) -> float | None:
    """Share of the agents' time in which no turn of their own was due or answered."""
    if not agent_s:
        return None
    own = (walks.session >= 0) & (walks.trajectory < facts.roots)
    busy = _inside(c, window, c.scheduled_s[own], np.nan_to_num(c.ended_s[own], nan=np.inf))
    return max(0.0, 1 - float(busy.sum()) / agent_s)


def _inside(c: Columns, window: Window, begun: Floats, ended: Floats) -> Floats:
    """The part of each span that is in the window, in seconds."""
    found = np.zeros(len(begun))
    for span in window.spans:
        found += np.maximum(0.0, np.minimum(ended, span.end_s(c)) - np.maximum(begun, span.start_s(c)))
    return found
