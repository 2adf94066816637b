"""Agents: the speed of their turns, their work, and prefix-cache hits beside possible ones."""

from collections.abc import Iterator

from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.metrics.summary_types.tokens import Agents
from llm_locust.report.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.report.text import count, number, percent, plural, seconds, sentence

#: Less than this share of the pool's turns came up: what the others take is not known.
_MOST_SEEN = 0.8


def agents(summary: Summary) -> Section | None:
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
        *_pauses(part),
        *_cache(part),
    ]
    return Section("Agents", tuple(lines))


def agents_by_load(summary: Summary) -> Section | None:
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
    return Section("Agents by load", table=Table(columns, tuple(rows)))


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


def _pauses(part: Agents) -> Iterator[Line]:
    pauses = part.pauses
    if pauses.n:
        late = f", {count(pauses.late)} by more than 5 ms" if pauses.late else ""
        text = (
            f"turns after a pause were sent {number(pauses.late_ms_p50)} ms late (p50), "
            f"{number(pauses.late_ms_p99)} ms (p99){late}"
        )
        yield Line(text, Tone.FAINT)


def _cache(part: Agents) -> Iterator[Line]:
    cache = part.cache
    if not cache.turns:
        yield Line("prefix-cache hits unknown: the server counts no cached tokens", Tone.FAINT)
        return
    shown = (
        f"prefix-cache hits {percent(cache.achieved)} of prompt tokens, {percent(cache.possible)} possible"
    )
    few = "" if cache.turns == part.ok else f" ({count(cache.turns)} of {count(part.ok)} turns)"
    yield Line(shown + few)
