"""Agents that walk through trajectories: their turns, their jobs, and their prefix-cache hits."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray

from llm_locust.core.batch import ColumnSource, Requests
from llm_locust.core.manifest import TrajectoryFacts
from llm_locust.figures.figure import Run
from llm_locust.figures.text import (
    Column,
    Line,
    Section,
    Table,
    TableRow,
    Tone,
    count,
    number,
    percent,
    plural,
    seconds,
    sentence,
)
from llm_locust.metrics.catalogue import e2el, schedule_delay, tpot
from llm_locust.metrics.columns import Columns, Floats, Mask, filled
from llm_locust.metrics.stats.censoring import ordered, percentile
from llm_locust.metrics.structs import SummaryPart, key
from llm_locust.metrics.window import Window

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary

_TURNS = "turns of walks, scheduled in the window"
_JOBS = "walks through trajectories of the pool whose last answer ended in the window, all turns ok"
_AFTER_PAUSE = "turns of walks but their first ones, scheduled in the window, that were sent"
_WORK = "the window; turns of all walks, sub-agents included, and the time of their agents"
_CACHE = "ok turns whose prompt and cached tokens the server counted"


class AgentCache(SummaryPart, frozen=True):
    """Prefix-cache hits of agents."""

    turns: Annotated[int, key("number of turns", _CACHE)]
    achieved: Annotated[float | None, key("cached / all prompt tokens", _CACHE)]
    possible: Annotated[
        float | None,
        key(
            "the same share at best, in a cache that forgets nothing; by the characters of each prompt",
            _CACHE,
        ),
    ]


class AgentPauses(SummaryPart, frozen=True):
    """How exactly recorded pauses were kept."""

    n: Annotated[int, key("number of turns", _AFTER_PAUSE)]
    late_ms_p50: Annotated[float | None, key("sent − scheduled, ms: median", _AFTER_PAUSE)]
    late_ms_p99: Annotated[float | None, key("sent − scheduled, ms: p99", _AFTER_PAUSE)]
    late_ms_max: Annotated[float | None, key("sent − scheduled, ms: the most", _AFTER_PAUSE)]
    late: Annotated[int, key("turns that were sent more than 5 ms late", _AFTER_PAUSE)]


class Agents(SummaryPart, frozen=True):
    """Agents that walk through trajectories."""

    agents: Annotated[int, key("number of agents with a turn", _TURNS)]
    turns: Annotated[int, key("number of turns", _TURNS)]
    ok: Annotated[int, key("number of ok turns", _TURNS)]
    output_tokens_per_s_p25: Annotated[float | None, key("1 / TPOT: a quarter is slower", _TURNS)]
    output_tokens_per_s_p50: Annotated[float | None, key("1 / TPOT: median", _TURNS)]
    pauses: AgentPauses
    e2e_tokens_per_s_p10: Annotated[float | None, key("output tokens / E2EL: a tenth is slower", _TURNS)]
    e2e_tokens_per_s_p25: Annotated[float | None, key("output tokens / E2EL: a quarter is slower", _TURNS)]
    e2e_tokens_per_s_p50: Annotated[float | None, key("output tokens / E2EL: median", _TURNS)]
    e2e_tokens_per_s_mean: Annotated[float | None, key("all output tokens / sum of E2EL", _TURNS)]
    jobs: Annotated[int, key("number of jobs", _JOBS)]
    jobs_failed: Annotated[
        int,
        key(
            "number of those that ended with a failed turn, in no other figure of jobs",
            "walks through trajectories of the pool whose failed turn ended in the window",
        ),
    ]
    job_s_mean: Annotated[float | None, key("mean duration of a job, s", _JOBS)]
    between_turns_s_mean: Annotated[
        float | None, key("of it between turns, in tools and sub-agents, s", _JOBS)
    ]
    tools_s_mean: Annotated[float | None, key("of that in tools, the recorded pauses, s", _JOBS)]
    jobs_worked: Annotated[
        float | None, key("ok turns of walks that did not fail / mean turns of a job", _WORK)
    ]
    turns_seen: Annotated[float | None, key("share of the pool's turns that are among them", _WORK)]
    agent_s: Annotated[float, key("time of all agents, s", _WORK)]
    between_turns_share: Annotated[float | None, key("share of it without a turn of the agent itself", _WORK)]
    tools_s: Annotated[
        float,
        key(
            "recorded pauses of tools of agents, s", "ok turns of agents themselves that ended in the window"
        ),
    ]
    tools_share: Annotated[
        float | None,
        key("share of `agent_s` in recorded pauses; the rest of `between_turns_share` is sub-agents", _WORK),
    ]
    jobs_per_h_per_user: Annotated[float | None, key("3,600 × `jobs_worked` / `agent_s`", _WORK)]
    jobs_per_h: Annotated[float | None, key("3,600 × `jobs_worked` / length of the window", _WORK)]
    jobs_per_h_per_gpu: Annotated[float | None, key("the same / `--gpus`", _WORK)]
    cache: AgentCache


# --------------------
# The walks of agents: which requests are turns of one.
#
# The name of a walk's session has the trajectory's place in the pool (:func:`walk_name`), by which the
# manifest's facts of the pool belong to a request.
# --------------------


_COLUMNS = ("session", "turn", "cached_tokens", "worker", "user")
_WALK = re.compile(r"-t([0-9]{1,7})-of([0-9]{1,7})$")


def walk_name(unique: str, trajectory: int) -> str:
    """The name of a walk, before its planned number of turns."""
    return f"{unique}-t{trajectory}"


@dataclass(frozen=True, slots=True)
class PerTurn:
    """A number for each turn of each trajectory of a pool."""

    _begins: NDArray[np.int64]
    _values: Floats

    @classmethod
    def of(cls, numbers: Sequence[Sequence[float]]) -> "PerTurn":
        begins = np.cumsum([0, *map(len, numbers)], dtype=np.int64)
        return cls(begins, np.array([number for each in numbers for number in each] or [np.nan]))

    def at(self, trajectory: NDArray[np.int64], turn: NDArray[np.int64]) -> Floats:
        """The numbers of these turns, NaN where the pool has no such turn."""
        inside = (trajectory >= 0) & (trajectory < len(self._begins) - 1) & (turn >= 0)
        inside[inside] &= turn[inside] < np.diff(self._begins)[trajectory[inside]]
        at = np.where(inside, self._begins[np.where(inside, trajectory, 0)] + turn, 0)
        return np.where(inside, self._values[at], np.nan)


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

    @classmethod
    def of_batch(cls, batch: ColumnSource) -> "Walks":
        """Those of one batch; numbers of walks and agents are its own."""
        (session, agent, trajectory, planned, turn), cached = _part(batch, {}, {})
        return cls(session, agent, trajectory, planned, turn, cached)


def _part(
    batch: ColumnSource, walks: dict[str, tuple[int, int, int]], agents: dict[tuple[str | None, int], int]
) -> tuple[NDArray[np.int64], Floats]:
    turns = filled(batch.floats("turn"), -1).astype(np.int64)
    users = filled(batch.floats("user"), -1).astype(np.int64)
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


# --------------------
# Jobs an hour, of the work that agents did in the window.
#
# A job is one walk through a trajectory of the pool. The jobs that came to their end in the window are more
# often short ones than long ones: their mean duration is too short, and 3,600 / it too high, the more so
# the shorter the window. But the turns of a job are known: by the renewal-reward theorem an agent that did
# W turns in the time T does W / T / E[turns of a job] jobs in each unit of time, whatever was cut. E[turns
# of a job] is the pool's mean, because each agent walks through all of it. That assumes that turns that
# came up in the window last as long on average as those that did not; ``turns_seen`` is the share of the
# pool's turns that did.
#
# Turns of walks that failed are no work. The time of their agents is.
# --------------------


def tool_s(walks: Walks, roots: int, pauses: PerTurn) -> Floats:
    """The recorded pause after each turn of an agent itself: the time of its tools, 0 after its last turn."""
    own = (walks.trajectory >= 0) & (walks.trajectory < roots) & (walks.turn + 1 < walks.planned)
    return np.where(own, np.nan_to_num(pauses.at(walks.trajectory, walks.turn)), 0.0)


def _tools_s(c: Columns, window: Window, pauses_s: Floats) -> tuple[float, float]:
    """The time in tools that began in the window: all of it, and the part inside the window."""
    begun = np.flatnonzero(c.ok & (pauses_s > 0))
    inside = _inside(c, window, c.ended_s[begun], c.ended_s[begun] + pauses_s[begun])
    return float(pauses_s[begun][window.inside(c, c.ended_s[begun])].sum()), float(inside.sum())


@dataclass(frozen=True, slots=True)
class _FinishedJobs:
    """Times of the jobs that came to their end in the window; one that was cut or failed is none."""

    lasted_s: Floats
    served_s: Floats
    tools_s: Floats


def _finished(
    c: Columns, walks: Walks, window: Window, facts: TrajectoryFacts, pauses_s: Floats
) -> _FinishedJobs:
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
    return _FinishedJobs((ended - begun)[complete], served[complete], tools[complete])


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None


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


# --- Agents over trajectories: speed of their turns, their work, and prefix-cache hits beside possible ones


#: A pause that was longer than recorded by more than this is late.
LATE_S = 0.005


def compute(run: Run) -> Agents | None:
    """None of a run that walks through no trajectories."""
    facts = run.manifest.trajectories
    if facts is None:
        return None
    return agents(run.requests, run.m.c, run.m.window, facts, run.question.prices_of(run.manifest).gpus)


def agents(
    requests: Requests, c: Columns, window: Window, facts: TrajectoryFacts, gpus: float | None
) -> Agents:
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
    # The work done, by turns: jobs longer than the run count for their part.
    failing = (walks.session >= 0) & ~c.ok & ~c.cancelled
    broken = np.isin(walks.session, walks.session[failing])
    ended = window.inside(c, c.ended_s)
    pauses_s = tool_s(walks, facts.roots, PerTurn.of(facts.pauses_s))
    done = (walks.session >= 0) & c.ok & ~broken & ended
    of_pool = sum(map(len, facts.possible))
    turns_of_job = of_pool / facts.roots if facts.roots else 0.0
    worked = int(done.sum()) / turns_of_job if turns_of_job else None
    agent_s, job = _agent_s(c, walks, window), _finished(c, walks, window, facts, pauses_s)
    tools_begun_s, tools_inside_s = _tools_s(c, window, pauses_s)
    per_h = None if worked is None or not window.seconds > 0 else worked / window.seconds * 3600
    return Agents(
        agents=len(np.unique(walks.agent[of_walk])),
        turns=int(of_walk.sum()),
        ok=int(ok.sum()),
        output_tokens_per_s_p25=_percentile(speed, 25),
        output_tokens_per_s_p50=_percentile(speed, 50),
        e2e_tokens_per_s_p10=_percentile(e2e_speed, 10),
        e2e_tokens_per_s_p25=_percentile(e2e_speed, 25),
        e2e_tokens_per_s_p50=_percentile(e2e_speed, 50),
        e2e_tokens_per_s_mean=_ratio(tokens[known].sum(), took_s[known].sum()),
        pauses=_pauses(c, of_walk, walks),
        jobs=len(job.lasted_s),
        job_s_mean=_mean(job.lasted_s),
        between_turns_s_mean=_mean(job.lasted_s - job.served_s),
        tools_s_mean=_mean(job.tools_s),
        jobs_failed=len(np.unique(walks.session[failing & ended & (walks.trajectory < facts.roots)])),
        jobs_worked=worked,
        turns_seen=_seen(walks, done) / of_pool if of_pool else None,
        agent_s=agent_s,
        between_turns_share=_between(c, walks, window, facts, agent_s),
        tools_s=tools_begun_s,
        tools_share=tools_inside_s / agent_s if agent_s else None,
        jobs_per_h_per_user=None if worked is None or not agent_s else worked / agent_s * 3600,
        jobs_per_h=per_h,
        jobs_per_h_per_gpu=None if per_h is None or not gpus else per_h / gpus,
        cache=_cache(c, walks, ok, facts),
    )


def _pauses(c: Columns, turns: Mask, walks: Walks) -> AgentPauses:
    """How late turns began that were due at the end of a pause: all but the first of a walk."""
    late = schedule_delay(c)[turns & (walks.turn > 0)]
    late_ms = ordered(late) * 1e3
    return AgentPauses(
        n=len(late_ms),
        late_ms_p50=_percentile(late_ms, 50),
        late_ms_p99=_percentile(late_ms, 99),
        late_ms_max=_percentile(late_ms, 100),
        late=int((late > LATE_S).sum()),
    )


def _cache(c: Columns, walks: Walks, ok: Mask, facts: TrajectoryFacts) -> AgentCache:
    """Over the turns whose prompt's and cached tokens the server counted: the same for both shares."""
    known = ok & ~np.isnan(walks.cached_tokens) & ~np.isnan(c.input_tokens)
    rows = np.flatnonzero(known)
    possible = PerTurn.of(facts.possible).at(walks.trajectory[rows], walks.turn[rows])
    has_value = ~np.isnan(possible)
    rows, possible = rows[has_value], possible[has_value]
    inputs = c.input_tokens[rows]
    return AgentCache(
        turns=len(rows),
        achieved=_ratio(walks.cached_tokens[rows].sum(), inputs.sum()),
        possible=_ratio((possible * inputs).sum(), inputs.sum()),
    )


def _inverse(values: Floats) -> Floats:
    """1 / value of those above 0."""
    return 1 / values[values > 0]


def _percentile(ascending: Floats, percent: float) -> float | None:
    return percentile(ascending, percent) if len(ascending) else None


def _ratio(a: float, b: float) -> float | None:
    return float(a) / float(b) if b else None


# --- Agents: the speed of their turns, their work, and prefix-cache hits beside possible ones


#: Less than this share of the pool's turns came up: what the others take is not known.
_MOST_SEEN = 0.8


def show(summary: "Summary") -> Section | None:
    """Speed, work and prefix-cache hits of agents; None where none walked through trajectories."""
    part = summary.agents
    if part is None:
        return None
    speed = (
        f"output speed {number(part.output_tokens_per_s_p25)} tokens/s p25, "
        f"{number(part.output_tokens_per_s_p50)} median · end to end "
        f"{number(part.e2e_tokens_per_s_p10)} p10, {number(part.e2e_tokens_per_s_p25)} p25, "
        f"{number(part.e2e_tokens_per_s_p50)} median"
    )
    lines = [
        Line(f"{plural(part.agents, 'agent')} · {plural(part.turns, 'turn')} · {count(part.ok)} ok"),
        Line(speed),
        *_jobs(part),
        *_pause_remark(part),
        *_cache_remark(part),
    ]
    return Section("Agents", tuple(lines))


def agents_by_load(summary: "Summary") -> Section | None:
    """The same of each stage of a sweep; None without one over trajectories."""
    rows = []
    for stage in summary.stages or ():
        part = None if stage.figures is None else stage.figures.agents
        if part is None:
            continue
        rows.append(
            TableRow(
                (
                    count(stage.asked),
                    count(part.turns),
                    count(part.jobs),
                    number(part.output_tokens_per_s_p25),
                    number(part.e2e_tokens_per_s_p25),
                    number(part.jobs_per_h_per_user),
                    number(part.jobs_per_h_per_gpu),
                    percent(part.between_turns_share),
                    percent(part.tools_share),
                    percent(part.cache.achieved),
                    percent(part.cache.possible),
                )
            )
        )
    if not rows:
        return None
    columns = (
        Column("Agents", left=True),
        Column("turns"),
        Column("jobs"),
        Column("p25", over="tokens/s"),
        Column("end to end p25", over="tokens/s", wide=True),
        Column("per user", over="jobs/h"),
        Column("per GPU", over="jobs/h", wide=True),
        Column("between turns", over="of the time", wide=True),
        Column("in tools", over="of the time"),
        Column("cached"),
        Column("possible"),
    )
    return Section("Agents by load", table=Table(columns, tuple(rows)), key="agents_by_load")


def _jobs(part: Agents) -> Iterator[Line]:
    if part.jobs_failed:
        ended = part.jobs + part.jobs_failed
        text = f"{count(part.jobs_failed)} of {plural(ended, 'job')} failed: their turns are no work"
        yield Line(text, Tone.WARN)
    if part.jobs_per_h_per_user is None:
        yield Line("no turn ended in the window: jobs/h are not known", Tone.WARN)
        return
    rates = [
        f"{number(part.jobs_per_h_per_user)} jobs/h per user",
        f"{number(part.jobs_per_h_per_gpu)} jobs/h per GPU" if part.jobs_per_h_per_gpu is not None else "",
        f"{percent(part.between_turns_share)} of the agents' time between turns, "
        f"{percent(part.tools_share)} in tools",
    ]
    yield Line(sentence(rates))
    finished = f"{plural(part.jobs, 'job')} finished"
    if part.jobs:
        finished += (
            f", {seconds(part.job_s_mean)} mean, {seconds(part.between_turns_s_mean)} of it between turns, "
            f"{seconds(part.tools_s_mean)} in tools"
        )
    yield Line(finished)
    if part.turns_seen is not None and part.turns_seen < _MOST_SEEN:
        seen = percent(part.turns_seen)
        yield Line(
            f"{seen} of the pool's turns came up: jobs/h assume that the others last as long", Tone.WARN
        )


def _pause_remark(part: Agents) -> Iterator[Line]:
    pauses = part.pauses
    if pauses.n:
        late = f", {count(pauses.late)} by more than 5 ms" if pauses.late else ""
        text = (
            f"turns after a pause were sent {number(pauses.late_ms_p50)} ms late (p50), "
            f"{number(pauses.late_ms_p99)} ms (p99){late}"
        )
        yield Line(text, Tone.FAINT)


def _cache_remark(part: Agents) -> Iterator[Line]:
    cache = part.cache
    if not cache.turns:
        yield Line("prefix-cache hits unknown: the server counts no cached tokens", Tone.FAINT)
        return
    hits = f"prefix-cache hits {percent(cache.achieved)} of prompt tokens, {percent(cache.possible)} possible"
    few = "" if cache.turns == part.ok else f" ({count(cache.turns)} of {count(part.ok)} turns)"
    yield Line(hits + few)
