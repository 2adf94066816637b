"""Conversations: how they ended, how long they were, and what a turn's number did to its latency."""

from collections.abc import Iterator, Sequence

from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.metrics.summary_types.tokens import Sessions, TurnPart
from llm_locust.report.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.report.sections.groups import LATENCY_COLUMNS
from llm_locust.report.text import clean, count, number, percent, plural, seconds, sentence
from llm_locust.report.uncertainty import estimate, mark, meaning, meaning_in

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
            f"{count(left_out)} cut, abandoned or timed out are left out",
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
