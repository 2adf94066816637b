"""Conversations: how they ended, how long they were, and what a turn's number did to its latency."""

from collections.abc import Iterator, Mapping
from typing import Any

from llm_locust.report.section import Column, Line, Row, Section, Table, Tone
from llm_locust.report.text import count, number, percent, plural, seconds, sentence

Part = Mapping[str, Any]


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
    return Section("Sessions", (Line(sentence(ends), tone), *_lengths(part), *_left(summary)))


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
        figures = [f"{seconds(lasted.get(key))} {key}" for key in ("p50", "p95", "p99")]
        yield Line(f"completed in {', '.join(figures)}")


def _left(summary: Part) -> Iterator[Line]:
    abandoned = (summary.get("requests") or {}).get("abandoned")
    if abandoned:
        text = f"{plural(abandoned, 'request')} abandoned before the first token: in no latency above"
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
        Column("p50", over="TTFT ms"),
        Column("p95", over="TTFT ms", wide=True),
        Column("p99", over="TTFT ms"),
        Column("p50", over="TPOT ms"),
        Column("p99", over="TPOT ms", wide=True),
        Column("p50", over="E2EL ms", wide=True),
        Column("p99", over="E2EL ms", wide=True),
        Column("mean", over="input"),
        Column("cached"),
    )
    return Section("By turn", table=Table(columns, tuple(map(_turn_row, turns))))


def _turn_row(turn: Part) -> Row:
    ttft, tpot, e2el = (turn.get(key) or {} for key in ("ttft_ms", "tpot_ms", "e2el_ms"))
    first = count(turn.get("turn"))
    return Row(
        (
            f"{first} and later" if turn.get("from_here_on") else first,
            count(turn.get("requests")),
            count(turn.get("abandoned")),
            number(ttft.get("p50")),
            number(ttft.get("p95")),
            number(ttft.get("p99")),
            number(tpot.get("p50")),
            number(tpot.get("p99")),
            number(e2el.get("p50")),
            number(e2el.get("p99")),
            number((turn.get("input_tokens") or {}).get("mean")),
            percent(turn.get("cached_share")),
        )
    )
