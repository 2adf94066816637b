"""The answer of a comparison: better, worse or unknown, why, and its exit code, in one line."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from llm_locust.metrics.compare.comparison import Row, Verdict
from llm_locust.metrics.compare.relative_gates import GateResult, State, doubt_on
from llm_locust.report.compare import words
from llm_locust.report.compare.outcome import ComparedRuns
from llm_locust.report.metric_names import figure_label
from llm_locust.report.section import Line, Tone
from llm_locust.report.text import plural, sentence

#: Gates and figures that the answer names; the tables have all.
_MOST = 3

#: Figures whose verdicts say most, in the order in which they are named.
_FIRST = (
    "error_rate",
    "goodput",
    "p50_e2el",
    "p50_ttft",
    "p99_e2el",
    "p99_ttft",
    "output_tps",
    "rps",
    "mean_tpot",
    "p50_tpot",
)

#: Without one of these a comparison is not called free of differences.
TELLING = ("p50_e2el", "p50_ttft", "p50_tpot")


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What a comparison came to.

    ``word`` is PASS, FAIL or UNKNOWN by its gates, and WORSE, BETTER, MIXED, NO DIFFERENCE or UNKNOWN without
    any. ``parts`` say why, one by one. ``but`` is the gravest thing that stands against comparing the runs,
    empty where nothing does.
    """

    word: str
    parts: tuple[str, ...]
    tone: Tone
    code: int
    why_code: str = ""
    but: str = ""

    @property
    def headline(self) -> Line:
        """The answer without its exit code."""
        return Line(f"{self.word}: {sentence(self.parts, ', ')}", self.tone)

    @property
    def line(self) -> Line:
        """All of it: ``FAIL: E2EL mean +87.3 % (at most +5 %) · exit 1``."""
        but = f"but: {self.but}" if self.but else ""
        return Line(sentence([self.headline.text, but, f"exit {self.code}{self.why_code}"]), self.tone)


def answer(outcome: ComparedRuns) -> Conclusion:
    """By the gates; without any by the differences of the last two runs that are beyond noise."""
    found = _by_gates(outcome) if outcome.gates else _by_figures(outcome)
    warnings = grave(outcome)
    if not warnings:
        return found
    more = len(warnings) - 1
    but = first_clause(warnings[0])
    return replace(found, but=but + (f", and {plural(more, 'more warning')}" if more else ""))


def _by_gates(outcome: ComparedRuns) -> Conclusion:
    code, finding = outcome.exit_code, outcome.finding
    those = [gate for gate in outcome.gates if gate.state.finding == finding]
    if finding == "broken":
        return Conclusion("FAIL", tuple(_named(those)), Tone.BAD, code)
    if finding == "held":
        return Conclusion("PASS", tuple(_named(those)), Tone.GOOD, code)
    why = "" if code else ", as --gate-unknown pass asks"
    return Conclusion("UNKNOWN", tuple(_named(those)), Tone.WARN, code, why)


def _named(gates: Sequence[GateResult]) -> Iterator[str]:
    yield from (_gate(gate) for gate in gates[:_MOST])
    if (more := len(gates) - _MOST) > 0:
        yield plural(more, "more gate")


def _gate(result: GateResult) -> str:
    """``E2EL mean +87.3 % (at most +5 %)``, and why where it is unknown."""
    name = figure_label(result.gate.metric)
    reason = words.gate_reason(result) or ""
    if result.change is None:
        return f"{name} ({words.gate_limit(result)}): {reason}"
    told = f"{name} {words.gate_change(result)} ({words.gate_limit(result)})"
    return f"{told}: {reason}" if result.state.finding == "unknown" else told


def _by_figures(outcome: ComparedRuns) -> Conclusion:
    moved = [row for comparison in outcome.comparisons[-1:] for row in in_order(comparison.rows)]
    worse, better = (
        [row for row in moved if row.verdict is verdict] for verdict in (Verdict.WORSE, Verdict.BETTER)
    )
    why = "" if outcome.is_pair else "the last run against the one before"
    if worse or better:
        word = "MIXED" if worse and better else "WORSE" if worse else "BETTER"
        tone = Tone.BAD if worse and not better else Tone.GOOD if not worse else Tone.WARN
        named = _figures(worse or better)
        if word == "MIXED":
            named = f"worse: {_figures(worse)}; better: {_figures(better)}"
        return Conclusion(word, tuple(filter(None, [why, named])), tone, 0, ", as no gate was given")
    last = outcome.comparisons[-1]
    if (doubt := doubt_on(last.base, last.new)) is not None:
        return Conclusion("UNKNOWN", (_DOUBTS[doubt],), Tone.WARN, 0, ", as no gate was given")
    told = {row.metric.name for row in moved if row.verdict is Verdict.NO_DIFFERENCE}
    if told & set(TELLING):
        same = f"{len(told)} of {plural(len(moved), 'figure')} do not differ by more than noise"
        few = f"{len(moved) - len(told)} cannot be told" if len(told) < len(moved) else ""
        return Conclusion("NO DIFFERENCE", tuple(filter(None, [why, same, few])), Tone.GOOD, 0)
    few = "the runs are too short: noise could hide a difference of a quarter in every latency"
    return Conclusion("UNKNOWN", tuple(filter(None, [why, few])), Tone.WARN, 0, ", as no gate was given")


#: Why runs without a difference are not called alike.
_DOUBTS = {
    State.OF_A_PART: "nothing moved beyond noise, but base or new is a part of a run",
    State.CLIENT_INVALID: "nothing moved beyond noise, but the client of base or new was too slow",
}


def grave(outcome: ComparedRuns) -> list[str]:
    """The warnings but for other seeds, which runs have unless they are asked for one: that is noise."""
    return [text for text in outcome.warnings if "different seeds: " not in text]


def first_clause(text: str) -> str:
    """A warning up to its first semicolon or full stop."""
    return re.split(r"[.;] ", text, maxsplit=1)[0]


def in_order(rows: Sequence[Row]) -> list[Row]:
    """Figures, those that say most first."""
    names = {name: place for place, name in enumerate(_FIRST)}
    return sorted(rows, key=lambda row: names.get(row.metric.name, len(_FIRST)))


def _figures(rows: Sequence[Row]) -> str:
    named = [f"{figure_label(row.metric)} {words.change(row)}" for row in rows[:_MOST]]
    more = len(rows) - _MOST
    return ", ".join([*named, *([plural(more, "more figure")] if more > 0 else [])])
