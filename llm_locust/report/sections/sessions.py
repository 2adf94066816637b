"""Conversations: how they ended, how long they were, and what a turn's number did to its latency."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llm_locust.report.section import Column, Line, Row, Section, Table, Tone
from llm_locust.report.sections.groups import LATENCY_COLUMNS
from llm_locust.report.text import count, number, percent, plural, seconds, sentence
from llm_locust.report.uncertainty import estimate, mark, meaning, meaning_in

Part = Mapping[str, Any]

_DURATIONS = ("p50", "p95", "p99")


def sessions(summary: Part) -> Section | None:
    """How the sessions of the window ended; None where no request was a turn of one."""
    part = summary.get("sessions") or {}
    if not part:
        return None
    ends = [
        plural(part.get("n"), "session"),
        f"{count(part.get('completed'))} completed",
        *(
            f"{count(part[key])} {words}"
            for key, words in (("abandoned", "abandoned"), ("failed", "failed"), ("cut", "cut by the end"))
            if part.get(key)
        ),
    ]
    tone = Tone.WARN if part.get("failed") or part.get("abandoned") else Tone.PLAIN
    lasted = part.get("duration_s") or {}
    few = meaning(*(mark(lasted, key) for key in _DURATIONS))
    return Section(
        "Sessions", (Line(sentence(ends), tone), *_lengths(part), *_left(summary)), notes=tuple(few)
    )


def _lengths(part: Part) -> Iterator[Line]:
    turns, tokens, lasted = (part.get(key) or {} for key in ("turns", "output_tokens", "duration_s"))
    if turns.get("n"):
        facts = [
            f"turns {number(turns.get('mean'))} mean, {number(turns.get('p50'))} median, "
            f"{count(turns.get('max'))} max",
            f"output tokens {number(tokens.get('mean'))} mean",
        ]
        yield Line(sentence(facts))
    if lasted.get("n"):
        figures = [f"{mark(lasted, key)}{seconds(lasted.get(key))} {key}" for key in _DURATIONS]
        yield Line(f"completed in {', '.join(figures)}")


def _left(summary: Part) -> Iterator[Line]:
    abandoned = (summary.get("requests") or {}).get("abandoned")
    if abandoned:
        text = (
            f"{plural(abandoned, 'request')} abandoned before the first token: lower bounds in TTFT and E2EL"
        )
        yield Line(text, Tone.WARN)


def by_turn(summary: Part) -> Section | None:
    """The figures by turn; None where no session had a second one."""
    turns = (summary.get("sessions") or {}).get("by_turn") or ()
    if len(turns) < 2:
        return None
    columns = (
        Column("Turn", left=True),
        Column("requests"),
        Column("abandoned"),
        LATENCY_COLUMNS[0],
        Column("p95", over="TTFT ms", wide=True),
        *LATENCY_COLUMNS[1:],
        Column("mean", over="input"),
        Column("cached"),
    )
    table = Table(columns, tuple(map(_turn_row, turns)))
    return Section("By turn", table=table, notes=(*_left_out(turns), *meaning_in(table)))


def _left_out(turns: Sequence[Part]) -> Iterator[Line]:
    """How many turns that were long are in no latency of the table."""
    left_out, answered = (sum(turn.get(key) or 0 for turn in turns) for key in ("left_out", "ok"))
    if left_out:
        yield Line(
            f"latencies are of {count(answered)} ok turns and too low: "
            f"{count(left_out)} that were cut, left or timed out are left out",
            Tone.WARN,
        )


def _turn_row(turn: Part) -> Row:
    ttft, tpot, e2el = (turn.get(key) or {} for key in ("ttft_ms", "tpot_ms", "e2el_ms"))
    first = count(turn.get("turn"))
    return Row(
        (
            f"{first} and later" if turn.get("from_here_on") else first,
            count(turn.get("requests")),
            count(turn.get("abandoned")),
            estimate(ttft, "p50"),
            estimate(ttft, "p95"),
            estimate(ttft, "p99"),
            estimate(tpot, "p50"),
            estimate(tpot, "p99"),
            estimate(e2el, "p50"),
            estimate(e2el, "p99"),
            number((turn.get("input_tokens") or {}).get("mean")),
            percent(turn.get("cached_share")),
        )
    )
