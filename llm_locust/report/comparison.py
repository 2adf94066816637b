"""From run directories to all that a comparison of them says."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from llm_locust.core import EXIT_GATE, EXIT_INVALID
from llm_locust.core.manifest import Manifest
from llm_locust.core.texts import UNDEFINED
from llm_locust.figures.comparison import (
    Comparison,
    Row,
    Verdict,
    compare_in_turn,
    doubts,
    models_differ,
    unlike,
)
from llm_locust.figures.relative_gates import (
    Finding,
    GateResult,
    RelativeGate,
    State,
    Unknown,
    doubt_on,
    evaluate_relative,
    resolution,
)
from llm_locust.figures.sides import Compared, Metric, figure_label, measure_for_comparison
from llm_locust.figures.text import Line, Tone, clean, number, percent, plural, sentence
from llm_locust.metrics.limits import MetricKind, Slo
from llm_locust.metrics.question import PLAIN, Question
from llm_locust.metrics.stats.estimates import Difference
from llm_locust.store import open_requests, read_manifest

# --- How figures, changes and gates of a comparison are written


TONES = {
    Verdict.BETTER: Tone.GOOD,
    Verdict.WORSE: Tone.BAD,
    Verdict.NO_DIFFERENCE: Tone.PLAIN,
    Verdict.TOO_FEW: Tone.FAINT,
    Verdict.UNDETERMINED: Tone.WARN,
}
_SHORT = {Verdict.NO_DIFFERENCE: "no difference"}


def figure(metric: Metric, value: float | None) -> str:
    """Latencies in milliseconds, shares in per cent."""
    if metric.kind is MetricKind.SHARE:
        return percent(value)
    return number(None if value is None else shown(metric, value))


def shown(metric: Metric, value: float) -> float:
    """The value in its report's unit: milliseconds for latencies."""
    return value * 1e3 if metric.kind is MetricKind.LATENCY else value


def change(row: Row) -> str:
    """``+10.7 %`` of base's figure; of a share ``-1.20 pp``."""
    relative = _relative(row)
    unit = "pp" if row.metric.kind is MetricKind.SHARE else "%"
    return UNDEFINED if relative is None else f"{_signed(relative.value)} {unit}"


def change_interval(row: Row) -> str:
    """``+8.1 … +13.2``, in the unit of the change; a dash where neither end is known."""
    relative = _relative(row)
    if relative is None or not (math.isfinite(relative.low) or math.isfinite(relative.high)):
        return UNDEFINED
    return f"{_signed(relative.low)} … {_signed(relative.high)}"


def absolute(row: Row) -> str:
    """The difference in the figure's own unit."""
    if row.difference is None:
        return UNDEFINED
    value = row.difference.value
    if row.metric.kind is MetricKind.SHARE:
        return f"{_signed(100 * value)} pp"
    text = number(abs(shown(row.metric, value)))
    return text if text == "0" else ("-" if value < 0 else "+") + text


def row_verdict(row: Row) -> str:
    if row.why_open is not None:
        return why_open(row)
    return _SHORT.get(row.verdict, str(row.verdict))


def why_open(row: Row) -> str:
    """Which run has no figure though it has samples, and why."""
    return f"undetermined in {row.missing}: {row.why_open}"


def gate_tone(result: GateResult) -> Tone:
    """Of what the gate came to; a change that is over the limit within noise is marked too."""
    if result.state.finding == "broken":
        return Tone.BAD
    return Tone.GOOD if result.state in (State.HELD, State.HELD_APART) else Tone.WARN


def gate_text(result: GateResult) -> str:
    """What a gate asked, what it came to and why, and the figures."""
    row, metric = result.row, result.row.metric
    finding = result.state.finding
    head = f"{result.gate.text}  {finding if finding == 'held' else finding.upper()}"
    reason = gate_reason(result)
    if result.state is State.BROKEN:
        head += " beyond noise"
    elif reason is not None:
        head += f": {reason}"
    if result.state is State.NO_SAMPLES:
        return head
    figures = f"{figure(metric, row.base)} → {figure(metric, row.new)}{_gate_interval(result)}"
    if result.change is None:
        return f"{head} ({figures})"
    note = gate_note(result)
    return f"{head}: {gate_change(result)} ({figures})" + ("" if note is None else f" {note}")


def gate_reason(result: GateResult) -> str | None:
    """Why a gate broke or is unknown, or held in spite of the figure; None where it held."""
    row, metric = result.row, result.row.metric
    lacking = f"no samples, {row.missing} has no value for {metric.name}"
    if row.why_open is not None:
        lacking = why_open(row)
    reason = {
        State.HELD: None,
        State.HELD_APART: "not one request of new is far enough from base's",
        State.WITHIN_NOISE: "over the limit, but within noise",
        State.BROKEN: "the change is over the limit by more than noise",
        State.BROKEN_APART: "every request of new is further from every one of base than the limit",
        State.BROKEN_BY_RANKS: f"more samples than expected are above the limit on {metric.statistic}",
        State.BROKEN_BY_FAILURES: _of_failures(result),
        State.BROKEN_BESIDE: result.beside,
        State.NO_SAMPLES: lacking,
        State.FAILED_IN_BASE: f"cannot tell: {_of_failures(result)}",
        State.TOO_NOISY: f"noise could hide a change of {_twice_the_limit(result)}",
        State.OVER: "over the limit, though not beyond noise",
        State.AMONG_GATES: "broken if it were the only gate, but one of several may look so by chance",
        State.TOO_FEW: "too few independent samples to know the noise",
        State.OF_A_PART: "cannot tell: base or new is a part of a run (see the warnings)",
        State.CLIENT_INVALID: "cannot tell: the client of base or new was too slow (see the warnings)",
        State.OPEN: "requests that were given up or failed leave no "
        f"{'upper' if result.gate.is_upper else 'lower'} bound of the change",
    }[result.state]
    if reason is None or result.times is None:
        return reason
    return f"{reason}; {requests_needed(result.times)}"


#: Of more times the requests it is said that they are many.
_MOST_TIMES = 100.0


def requests_needed(times: float) -> str:
    """``about 3 times the requests would tell``."""
    if times > _MOST_TIMES:
        return f"more than {_MOST_TIMES:.0f} times the requests would be needed to tell"
    return f"about {max(1.1, times):.2g} times the requests would tell"


def _twice_the_limit(result: GateResult) -> str:
    gate, base = result.gate, result.row.base or 0.0
    limit = abs(gate.limit) + resolution(gate, base)
    unit = "pp" if gate.in_points or not base else "%"
    return f"{'+' if gate.is_upper else '-'}{100 * limit:.3g} {unit}"


def gate_limit(result: GateResult) -> str:
    """``at most +5 %``, ``at least -1 %``; of points ``at most +0.5 pp``."""
    words = {"<=": "at most", "<": "less than", ">=": "at least", ">": "more than"}
    return f"{words[result.gate.op]} {100 * result.gate.limit:+.4g} {_gate_unit(result)}".replace("+0 ", "0 ")


def _of_failures(result: GateResult) -> str:
    """What failed requests do to the figure."""
    if result.gate.metric.statistic == "mean":
        return f"{_failed(result)}, and a mean cannot include them; limit a percentile"
    if result.gate.metric.name == "on_time":
        return f"{_failed(result)}, and on_time is of answers alone; limit goodput"
    statistic = result.gate.metric.statistic.replace("_", ".")
    runs = [name for name, value in (("base", result.row.base), ("new", result.row.new)) if value == math.inf]
    return f"{_failed(result)}: the {statistic} of all requests falls on a failed one in {' and '.join(runs)}"


def _failed(result: GateResult) -> str:
    base, new = result.failed or (0.0, 0.0)
    return f"{percent(base)} failed in base, {percent(new)} in new"


def gate_note(result: GateResult) -> str | None:
    """How many requests failed, and whether they are in the figures; None where it does not matter."""
    if result.failed is None:
        return None
    of = "all requests" if result.gate.is_adjusted else "requests with an answer"
    return f"of {of}: {_failed(result)}"


def gate_change(result: GateResult) -> str:
    """In the limit's unit; from 0 in the figure's own."""
    if result.interval is None:
        return f"{absolute(result.row)} from 0"
    return f"{_signed(100 * result.interval.value)} {_gate_unit(result)}"


def _gate_interval(result: GateResult) -> str:
    found = result.interval
    if found is None or not (math.isfinite(found.low) or math.isfinite(found.high)):
        return ""
    return f", interval {_signed(100 * found.low)} … {_signed(100 * found.high)} {_gate_unit(result)}"


def _gate_unit(result: GateResult) -> str:
    return "pp" if result.gate.in_points else "%"


def _relative(row: Row) -> Difference | None:
    """The change in per cent; of a share in points."""
    found = row.difference if row.metric.kind is MetricKind.SHARE else row.change
    if found is None:
        return None
    return Difference(100 * found.value, 100 * found.low, 100 * found.high)


def _signed(value: float) -> str:
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    text = f"{value:+.1f}" if abs(value) >= 0.1 else f"{value:+.2f}"
    return "0.0" if float(text) == 0 else text


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run directory and what is compared of it; ``label`` is foreign text, cleaned."""

    label: str
    path: Path
    compared: Compared


@dataclass(frozen=True, slots=True)
class ComparedRuns:
    """Runs, each compared with the one before.

    Two are base and new, as they were given; several are in the order of their starts, and gates are on
    the last against the first.
    """

    runs: tuple[ComparedRun, ...]
    comparisons: tuple[Comparison, ...]
    gates: tuple[GateResult, ...]
    warnings: tuple[str, ...]
    slo: Slo
    gate_unknown: Unknown = "fail"

    @property
    def is_pair(self) -> bool:
        return len(self.runs) == 2

    @property
    def models_differ(self) -> bool:
        return any(models_differ(c.base, c.new) for c in self.comparisons)

    @property
    def finding(self) -> Finding:
        """Broken where one gate is, else unknown where one is, else held; so without gates."""
        found = {gate.state.finding for gate in self.gates}
        return "broken" if "broken" in found else "unknown" if "unknown" in found else "held"

    @property
    def exit_code(self) -> int:
        """1 when a gate broke, 3 when the runs cannot show whether one held, unless such a one passes."""
        if self.finding == "broken":
            return EXIT_GATE
        return EXIT_INVALID if self.finding == "unknown" and self.gate_unknown == "fail" else 0


def compare_runs(
    paths: Sequence[Path],
    question: Question = PLAIN,
    *,
    gates: tuple[RelativeGate, ...] = (),
    gate_unknown: Unknown = "fail",
    not_load: frozenset[str] = frozenset(),
) -> ComparedRuns:
    """Read the runs one after the other and compare them.

    Args:
        question: the SLO that all runs are judged by, without it that of the first run that has one; the
            window and the warm-up of each. Nothing else of it can be asked here.
        not_load: options in which the runs may differ, see :func:`unlike`.
        gate_unknown: what becomes of a gate where the runs cannot show whether it held.

    Raises:
        StoreError: a run cannot be read.
        ValueError: a run that is given twice, an SLO that is none, more than can be asked, or a run without a
            request in its window.
    """
    if question != Question(slo=question.slo, window=question.window, warmup_s=question.warmup_s):
        raise ValueError("a comparison is asked for an SLO, a window and a warm-up: leave out the rest")
    manifests = [read_manifest(path) for path in paths]
    _refuse_copies(paths, manifests)
    swept = next((path for path, manifest in zip(paths, manifests, strict=True) if manifest.is_sweep), None)
    if swept is not None and isinstance(question.window, str):
        raise ValueError(
            f"{str(swept)!r} is a sweep, which has several loads: `llm-locust compare RUN RUN --pareto` sets "
            "the loads of several runs side by side, `llm-locust report RUN --where stage==0` reports one"
        )
    if question.slo is None:
        question = replace(question, slo=next(filter(None, (m.slo for m in manifests)), ""))
    runs = []
    for path, manifest in zip(paths, manifests, strict=True):
        compared = measure_for_comparison(open_requests(path).held_if_small(), manifest, question)
        if not len(compared.population.judged):
            raise ValueError(f"{str(path)!r} has no finished request in its window: nothing to compare")
        runs.append(ComparedRun(clean(path.name or path.resolve().name), path, compared))
    if len(runs) > 2:
        runs.sort(key=lambda run: run.compared.manifest.started_ns)
    measured = [run.compared for run in runs]
    first, last = measured[0], measured[-1]
    return ComparedRuns(
        tuple(runs),
        tuple(compare_in_turn(measured)),
        tuple(evaluate_relative(gates, first, last)),
        tuple(_warnings(runs, not_load)),
        question.slo_of(manifests[0]),
        gate_unknown,
    )


def _refuse_copies(paths: Sequence[Path], manifests: Sequence[Manifest]) -> None:
    """A run and its copy differ in nothing, which would hold every gate (raises ValueError)."""
    first: dict[str, Path] = {}
    for path, manifest in zip(paths, manifests, strict=True):
        if manifest.id in first:
            same = f"{str(first[manifest.id])!r} and {str(path)!r}"
            raise ValueError(f"{same} are the same run, {manifest.id}: compare it with another one")
        first[manifest.id] = path


def _warnings(runs: Sequence[ComparedRun], not_load: frozenset[str]) -> list[str]:
    """What stands against single runs, then against each pair of neighbours."""
    names = ["base", "new"] if len(runs) == 2 else [run.label for run in runs]
    alone = [
        f"{name}: {text}" for name, run in zip(names, runs, strict=True) for text in doubts(run.compared)
    ]
    pairs = [
        ("" if len(runs) == 2 else f"{base.label} and {new.label}: ") + text
        for base, new in pairwise(runs)
        for text in unlike(base.compared, new.compared, not_load)
    ]
    return [clean(text) for text in alone + pairs]


# --- The answer of a comparison: better, worse or unknown, why, and its exit code, in one line


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
    """Gates in words, unknown ones of one reason together."""
    names: dict[str, list[str]] = {}
    for gate in gates[:_MOST]:
        is_beside = gate.state is State.BROKEN_BESIDE
        is_told = gate.change is None or gate.state.finding == "unknown" or is_beside
        change = "" if gate.change is None else f" {gate_change(gate)}"
        # E2EL mean +87.3 % (at most +5 %)
        text = f"{figure_label(gate.gate.metric)}{change} ({gate_limit(gate)})"
        names.setdefault((gate_reason(gate) or "") if is_told else "", []).append(text)
    for reason, those in names.items():
        yield from [f"{', '.join(those)}: {reason}"] if reason else those
    if (more := len(gates) - _MOST) > 0:
        yield plural(more, "more gate")


def _by_figures(outcome: ComparedRuns) -> Conclusion:
    moved = [row for comparison in outcome.comparisons[-1:] for row in in_order(comparison.rows)]
    worse, better = (
        [row for row in moved if row.verdict is verdict] for verdict in (Verdict.WORSE, Verdict.BETTER)
    )
    why = "" if outcome.is_pair else "the last run against the one before"
    last = outcome.comparisons[-1]
    doubt = doubt_on(last.base, last.new)
    if doubt is None and last.new.unserved and not last.base.unserved:
        parts = (why, f"in new {last.new.unserved}")
        return Conclusion("WORSE", tuple(filter(None, parts)), Tone.BAD, 0, ", as no gate was given")
    if worse or better:
        word = "MIXED" if worse and better else "WORSE" if worse else "BETTER"
        tone = Tone.BAD if worse and not better else Tone.GOOD if not worse else Tone.WARN
        named = _figures(worse or better)
        if word == "MIXED":
            named = f"worse: {_figures(worse)}; better: {_figures(better)}"
        return Conclusion(word, tuple(filter(None, [why, named])), tone, 0, ", as no gate was given")
    if doubt is not None:
        return Conclusion("UNKNOWN", (_DOUBTS[doubt],), Tone.WARN, 0, ", as no gate was given")
    decided = {row.metric.name for row in moved if row.verdict is Verdict.NO_DIFFERENCE}
    if decided & set(TELLING):
        same = f"{len(decided)} of {plural(len(moved), 'figure')} do not differ by more than noise"
        few = f"{len(moved) - len(decided)} cannot be told" if len(decided) < len(moved) else ""
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
    named = [f"{figure_label(row.metric)} {change(row)}" for row in rows[:_MOST]]
    more = len(rows) - _MOST
    return ", ".join([*named, *([plural(more, "more figure")] if more > 0 else [])])
