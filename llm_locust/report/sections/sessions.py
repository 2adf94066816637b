"""Conversations, agents, and the quality of the answers."""

from collections.abc import Iterator, Mapping, Sequence

from llm_locust.core.record import Doubt
from llm_locust.core.texts import UNDEFINED
from llm_locust.figures.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.figures.summary import Summary
from llm_locust.figures.text import (
    clean,
    count,
    estimate,
    mark,
    meaning,
    meaning_in,
    number,
    percent,
    plural,
    seconds,
    sentence,
    short,
)
from llm_locust.metrics.summary_types.resources import (
    AnswerLengths,
    BesideBaseline,
    Consistency,
    Quality,
    Rejected,
    RightAnswers,
    RightDifference,
    RightOverTime,
)
from llm_locust.metrics.summary_types.tokens import Agents, Sessions, TurnPart
from llm_locust.report.sections.groups import LATENCY_COLUMNS
from llm_locust.wire.dialects.table import DIALECTS
from llm_locust.wire.ends import AnswerEnd, end_of

# --------------------
# Conversations: how they ended, how long they were, and what a turn's number did to its latency.
# --------------------


_DURATIONS = ("p50", "p95", "p99")


def sessions(summary: Summary) -> Section | None:
    """How the sessions of the window ended; None where no request was a turn of one."""
    part = summary.sessions
    if part is None:
        return None
    ends = [
        plural(part.n, "session"),
        f"{count(part.completed)} completed",
        f"{count(part.abandoned)} abandoned" if part.abandoned else "",
        f"{count(part.failed)} failed" if part.failed else "",
        f"{count(part.cut)} cut by the end" if part.cut else "",
    ]
    tone = Tone.WARN if part.failed or part.abandoned else Tone.PLAIN
    few = meaning(*(mark(part.duration_s, key) for key in _DURATIONS))
    return Section(
        "Sessions",
        (Line(sentence(ends), tone), *_lengths(part), *_header(part), *_left(summary)),
        notes=tuple(few),
    )


def _header(part: Sessions) -> Iterator[Line]:
    """Follow-up turns with and without the header that they should give back."""
    header = part.header
    if header is None:
        return
    following = header.echoed + header.missing + header.refused
    facts = [
        f"{clean(header.name)}: {count(header.echoed)} of {plural(following, 'follow-up turn')} gave it back",
        f"{count(header.missing)} had none" if header.missing else "",
        f"{count(header.refused)} had one that cannot be sent" if header.refused else "",
    ]
    if header.placed:
        facts.append(f"{percent(header.same_replica)} of them stayed at their replica")
    tone = Tone.PLAIN if header.echoed == following else Tone.WARN
    yield Line(sentence(facts), tone, verbatim=True)


def _lengths(part: Sessions) -> Iterator[Line]:
    turns, lasted = part.turns, part.duration_s
    if turns.n:
        facts = [
            f"turns {number(turns.mean)} mean, {number(turns.p50)} median, {count(turns.max)} max",
            f"output tokens {number(part.output_tokens.mean)} mean",
        ]
        yield Line(sentence(facts))
    if lasted.n:
        figures = [f"{mark(lasted, key)}{seconds(lasted.figure(key))} {key}" for key in _DURATIONS]
        yield Line(f"completed in {', '.join(figures)}")


def _left(summary: Summary) -> Iterator[Line]:
    if abandoned := summary.requests.abandoned:
        text = (
            f"{plural(abandoned, 'request')} abandoned before the first token: lower bounds in TTFT and E2EL"
        )
        yield Line(text, Tone.WARN)


def by_turn(summary: Summary) -> Section | None:
    """The figures by turn; None where no session had a second one."""
    turns = summary.sessions.by_turn if summary.sessions else ()
    if len(turns) < 2:
        return None
    columns = (
        Column("Turn", left=True),
        Column("requests"),
        Column("abandoned"),
        LATENCY_COLUMNS["ttft", "p50"],
        Column("p95", over="TTFT ms", wide=True),
        LATENCY_COLUMNS["ttft", "p99"],
        *(LATENCY_COLUMNS[key, place] for key in ("tpot", "e2el") for place in ("p50", "p99")),
        Column("mean", over="input"),
        Column("cached"),
    )
    table = Table(columns, tuple(map(_turn_row, turns)))
    return Section("By turn", table=table, notes=(*_left_out(turns), *meaning_in(table)))


def _left_out(turns: Sequence[TurnPart]) -> Iterator[Line]:
    """How many turns that were long are in no latency of the table."""
    if left_out := sum(turn.left_out for turn in turns):
        yield Line(
            f"latencies cover {count(sum(turn.ok for turn in turns))} ok turns and are too low: "
            f"{count(left_out)} unfinished ones excluded",
            Tone.WARN,
        )


def _turn_row(turn: TurnPart) -> TableRow:
    ttft, tpot, e2el = turn.ttft_ms, turn.tpot_ms, turn.e2el_ms
    first = count(turn.turn)
    return TableRow(
        (
            f"{first} and later" if turn.from_here_on else first,
            count(turn.requests),
            count(turn.abandoned),
            estimate(ttft, "p50"),
            estimate(ttft, "p95"),
            estimate(ttft, "p99"),
            estimate(tpot, "p50"),
            estimate(tpot, "p99"),
            estimate(e2el, "p50"),
            estimate(e2el, "p99"),
            number(turn.input_tokens.mean),
            percent(turn.cached_share),
        )
    )


# --------------------
# Agents: the speed of their turns, their work, and prefix-cache hits beside possible ones.
# --------------------


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


# --------------------
# Whether the answers were any good, where the run has something to say of that.
# --------------------


#: Ends of answers that are nothing to remark on.
_USUAL_FINISHES = tuple(
    dict.fromkeys(reason for dialect in DIALECTS.values() for reason in dialect.usual_finishes)
)

_NAME_LENGTH = 60

#: A share of doubtful answers that has to be known before any number.
_ALARMING = 0.01

#: What is said of doubtful answers of each kind after their number, and what that means.
_DOUBTS = {
    Doubt.CONTENT_FILTER: ("cut by a content filter, or refused", "not good in goodput"),
    Doubt.NO_ANSWER: (
        "with reasoning and no answer",
        "not good in goodput; allow more tokens or less reasoning",
    ),
    Doubt.NO_FINISH_REASON: (
        "ended without a finish reason",
        "whole or cut is unknown; not good in goodput",
    ),
    Doubt.UNKNOWN_FINISH_REASON: (
        "with a finish reason that the API does not have",
        "whole or cut is unknown",
    ),
}


def doubtful(summary: Summary) -> Section | None:
    """Answers that ended ok and may not be what was asked for; None without any.

    The most frequent kind comes first. It is an alarm if they are more than a few.
    """
    part = summary.requests
    found = sorted(((n, doubt) for doubt in Doubt if (n := part.doubtful.get(doubt.value))), reverse=True)
    if not found:
        return None
    lines = [
        Line(f"{plural(n, 'answer')} ({percent(n / part.population)}) {': '.join(_DOUBTS[doubt])}", Tone.WARN)
        for n, doubt in found
    ]
    unknown = {
        reason: n
        for reason, n in summary.quality.finish_reasons.items()
        if end_of(reason, _USUAL_FINISHES) is AnswerEnd.UNKNOWN
    }
    if unknown and part.doubtful.get(Doubt.UNKNOWN_FINISH_REASON.value):
        lines.append(Line(_named(unknown), Tone.WARN, verbatim=True))
    limited = any("doubtful_rate" in gate.text for gate in summary.gates)
    notes = () if limited else (Line('--gate "doubtful_rate<1%" limits their share', Tone.FAINT),)
    is_alarm = (part.doubtful_rate or 0.0) >= _ALARMING
    return Section("Doubtful answers", tuple(lines), notes=notes, alarm=is_alarm)


def few_doubtful(summary: Summary) -> Section | None:
    """The same of a few among many, which is no alarm."""
    found = doubtful(summary)
    return None if found is None or found.alarm else found


#: Answers that are shorter than asked by this share, on average, are hardly the load that was meant.
_HARDLY_ANY = 0.9


def quality(summary: Summary) -> Section | None:
    """Accuracy, rejections, consistency, finish reasons that are not usual, and answers of which hardly
    anything came; None without any of them.

    How long other answers were and how they usually ended goes with it, and makes no section of its own.
    """
    part = summary.quality
    accuracy, rejected = part.accuracy, part.rejected
    repeated, finishes = part.consistency, part.finish_reasons
    unusual = [reason for reason in finishes if end_of(reason, _USUAL_FINISHES) > AnswerEnd.LENGTH]
    is_short = (part.length.mean_relative or 0.0) <= -_HARDLY_ANY
    if not (accuracy.n or rejected.n or repeated.prompts or unusual or is_short):
        return None
    lines = [
        *_accuracy(accuracy),
        *_baseline(part.baseline),
        *_load_effect(part),
        *_rejected(rejected),
        *_consistency(repeated),
    ]
    notes = [*_length(part.length), *_finishes(finishes, bool(unusual))]
    return Section("Quality", tuple(lines), _over_time(part.over_time), tuple(notes))


def _accuracy(accuracy: RightAnswers) -> Iterator[Line]:
    if accuracy.n:
        yield Line(
            f"{percent(accuracy.ratio)} correct of {plural(accuracy.n, 'answer')} compared "
            f"(95 %: {_interval(accuracy.ci95)})"
        )


def _baseline(beside: BesideBaseline | None) -> Iterator[Line]:
    if beside is None:
        return
    there, ends = beside.baseline, beside.ci95
    worse = ends is not None and ends[1] < 0
    text = (
        f"baseline, the same {plural(beside.prompts, 'prompt')}: {percent(there.ratio)} correct; "
        f"{'WORSE:' if worse else 'difference'} {_change(beside)}"
    )
    yield Line(text, Tone.BAD if worse else Tone.PLAIN)


def _load_effect(part: Quality) -> Iterator[Line]:
    """The highest third of the load against the lowest."""
    effect, thirds = part.load_effect, part.by_load
    if effect is None or effect.ci95 is None or len(thirds) < 2:
        return
    low, high = (f"{percent(t.ratio)} at {_range(t.concurrency)}" for t in (thirds[0], thirds[-1]))
    worse = effect.ci95[1] < 0
    text = f"by load: {low} in flight, {high}; {'WORSE:' if worse else 'difference'} {_change(effect)}"
    yield Line(text, Tone.WARN if worse else Tone.FAINT)


def _rejected(rejected: Rejected) -> Iterator[Line]:
    if not rejected.n:
        return
    by = rejected.by
    yield Line(
        f"{plural(rejected.n, 'answer')} rejected ({percent(rejected.ratio)} of the complete answers)",
        Tone.WARN,
    )
    for name, n in by.items():
        yield Line(f"{count(n)} by {short(clean(name), _NAME_LENGTH)}", verbatim=True)


def _consistency(repeated: Consistency) -> Iterator[Line]:
    if repeated.prompts:
        yield Line(
            f"same prompt, same answer: {percent(repeated.prompts_equal)} of "
            f"{plural(repeated.prompts, 'repeated prompt')}, "
            f"{percent(repeated.pairs_equal)} of the pairs of {count(repeated.answers)} answers"
        )


def _length(length: AnswerLengths) -> Iterator[Line]:
    mean = length.mean_relative or 0.0
    if mean <= -_HARDLY_ANY:
        yield Line(f"answers were {percent(-mean)} shorter than asked, on average", Tone.WARN)
    elif length.n:
        yield Line(
            sentence(
                [
                    f"length: {percent(length.at_limit)} exactly as requested",
                    f"{percent(length.over)} longer" if length.over else "",
                    f"{number(_times_100(length.mean_relative))} % off on average (n {count(length.n)})",
                ]
            ),
            Tone.FAINT,
        )


def _finishes(finishes: Mapping[str, int], unusual: bool) -> Iterator[Line]:
    if finishes:
        yield Line(_named(finishes), Tone.WARN if unusual else Tone.FAINT, verbatim=unusual)


def _named(finishes: Mapping[str, int]) -> str:
    named = [f"{clean(short(str(reason), _NAME_LENGTH))} {count(n)}" for reason, n in finishes.items()]
    return f"ended by: {sentence(named)}"


def _over_time(parts: Sequence[RightOverTime]) -> Table | None:
    rows = tuple(
        TableRow(
            (
                f"{seconds(part.start_s)} .. {seconds(part.end_s)}",
                percent(part.ratio),
                _interval(part.ci95),
                count(part.n),
            )
        )
        for part in parts
        if part.n
    )
    columns = (Column("Window", left=True), Column("right"), Column("95 %"), Column("n"))
    return Table(columns, rows) if len(rows) > 1 else None


def _interval(ends: tuple[float, float] | None) -> str:
    return UNDEFINED if ends is None else f"{percent(ends[0])} .. {percent(ends[1])}"


def _change(found: BesideBaseline | RightDifference) -> str:
    """A difference of shares in percentage points, with its interval."""
    low, high = (number(_times_100(end)) for end in found.ci95 or (None, None))
    return f"{number(_times_100(found.difference))} points (95 %: {low} .. {high})"


def _times_100(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _range(concurrency: tuple[int, int]) -> str:
    low, high = concurrency
    return count(low) if low == high else f"{count(low)} .. {count(high)}"
