"""What a comparison says, before any format: sections of lines and tables."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from llm_locust.metrics.compare.comparison import CONFIDENCE, Comparison, Row, Verdict
from llm_locust.metrics.sections.failures import iso
from llm_locust.metrics.stats.blocks import MOST
from llm_locust.metrics.stats.bootstrap import CELLS
from llm_locust.report.compare import scaling, words
from llm_locust.report.compare.headline import answer
from llm_locust.report.compare.outcome import ComparedRun, ComparedRuns
from llm_locust.report.metric_names import figure_label
from llm_locust.report.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.report.text import UNDEFINED, clean, count, moment, percent, seconds, sentence

#: Columns of the table over time: a metric, its head on two lines, and whether it needs a wide page.
_TREND = (
    ("p50_ttft", "TTFT", "p50", False),
    ("p99_ttft", "TTFT", "p99", False),
    ("p50_tpot", "TPOT", "p50", False),
    ("p99_tpot", "TPOT", "p99", True),
    ("p50_e2el", "E2EL", "p50", False),
    ("p99_e2el", "E2EL", "p99", True),
    ("goodput", "Goodput", "ratio", False),
    ("error_rate", "Error", "rate", True),
    ("rps", "Requests", "/s", True),
    ("output_tps", "Output", "tokens/s", False),
    ("output_cps", "Output", "chars/s", True),
)

#: The chapters of sections behind the charts of the page, and of the answer, which the page has in tiles.
FIGURES, ANSWER = "figures", "answer"

_UP, _DOWN = "▲", "▼"


def sections(outcome: ComparedRuns, *, full: bool = True) -> list[Section]:
    """The answer, the gates, what stands against comparing the runs, what moved, the runs, the figures.

    Args:
        full: all figures, not only those that moved and the main ones.
    """
    found = [
        Section("Answer", (answer(outcome).headline,), chapter=ANSWER),
        gates(outcome),
        warnings(outcome),
    ]
    if outcome.is_pair:
        found += [verdict(outcome.comparisons[0]), runs(outcome), figures(outcome, full=full)]
    else:
        found.append(runs(outcome))
        found += [over_time(outcome), changes(outcome)]
    found.append(scaling.section(outcome))
    return [replace(section, stacked=True) for section in found if section is not None]


def runs(outcome: ComparedRuns) -> Section:
    names = ("base", "new") if outcome.is_pair else [f"{i + 1}" for i in range(len(outcome.runs))]
    limits = sentence([f"{key} ≤ {value * 1e3:g} ms" for key, value in outcome.slo.limits.items()])
    lines = [
        Line(f"{name}: {_run(run)}", verbatim=True) for name, run in zip(names, outcome.runs, strict=True)
    ]
    own = sorted({label for run in outcome.runs for label in run.compared.manifest.class_slos})
    judged = [
        f"judged by {limits}" if limits else "",
        f"limits of their own: {', '.join(own)}" if own else "",
    ]
    return Section("Runs", (*lines, Line(clean(sentence(judged) or "no SLO"), Tone.FAINT)))


def _run(run: ComparedRun) -> str:
    manifest, population = run.compared.manifest, run.compared.population
    target = sentence([clean(manifest.model or ""), clean(manifest.host or "")], " at ")
    facts = [
        run.label,
        target,
        moment(iso(manifest.started_ns)),
        f"window {seconds(run.compared.window.seconds)}",
        f"{count(len(population.ok))} ok, {count(len(population.failed))} failed",
    ]
    return sentence(facts)


def warnings(outcome: ComparedRuns) -> Section | None:
    if not outcome.warnings:
        return None
    lines = (Line(text, Tone.WARN, verbatim=True) for text in outcome.warnings)
    return Section("Not alike", tuple(lines), alarm=True)


def gates(outcome: ComparedRuns) -> Section | None:
    if not outcome.gates:
        return None
    lines = [Line(words.gate_text(gate), words.gate_tone(gate)) for gate in outcome.gates]
    if any(gate.state.finding == "unknown" for gate in outcome.gates):
        passed = outcome.gate_unknown == "pass"
        text = (
            "an unknown gate passes, as --gate-unknown pass asks"
            if passed
            else "an unknown gate does not pass: run longer, or see why it cannot be told"
        )
        lines.append(Line(text, Tone.FAINT))
    return Section("Gates", tuple(lines))


def verdict(comparison: Comparison) -> Section:
    """In one look: what became worse, what better."""
    worse, better = (comparison.having(v) for v in (Verdict.WORSE, Verdict.BETTER))
    same, few, left_open = (
        len(comparison.having(v)) for v in (Verdict.NO_DIFFERENCE, Verdict.TOO_FEW, Verdict.UNDETERMINED)
    )
    lines = [*_named("worse", worse, Tone.BAD), *_named("better", better, Tone.GOOD)]
    if not lines:
        tone = Tone.PLAIN if few + left_open else Tone.GOOD
        lines.append(Line("no difference beyond noise in any figure", tone))
    rest = sentence(
        [
            f"{same} of {len(comparison.rows)} figures without a difference beyond noise",
            f"{few} with too few samples" if few else "",
            f"{left_open} left open by requests that were given up" if left_open else "",
        ]
    )
    return Section("Verdict", (*lines, Line(rest, Tone.FAINT)))


def _named(word: str, rows: Sequence[Row], tone: Tone) -> Iterator[Line]:
    if rows:
        named = ", ".join(f"{figure_label(row.metric)} {words.change(row)}" for row in rows)
        yield Line(f"{word}: {named}", tone)


#: Figures that are shown whether they moved or not.
_MAIN = frozenset(
    {"p50_ttft", "p99_ttft", "p50_tpot", "p50_e2el", "p99_e2el", "goodput", "error_rate", "rps", "output_tps"}
)


def figures(outcome: ComparedRuns, *, full: bool = True) -> Section:
    """The figures of the two runs, each with its interval and verdict."""
    (comparison,) = outcome.comparisons
    moved = (Verdict.WORSE, Verdict.BETTER)
    shown = [row for row in comparison.rows if full or row.metric.name in _MAIN or row.verdict in moved]
    columns = (
        Column("Figure", left=True),
        Column("base"),
        Column("new"),
        Column("difference", wide=True),
        Column("change"),
        Column("interval, %/pp"),
        Column("verdict", left=True, wraps=True, toned=True),
    )
    rows = tuple(
        TableRow(
            (
                figure_label(row.metric, outcome.models_differ),
                words.figure(row.metric, row.base),
                words.figure(row.metric, row.new),
                words.absolute(row),
                words.change(row),
                words.change_interval(row),
                words.verdict(row),
            ),
            words.TONES[row.verdict],
        )
        for row in shown
    )
    left = len(comparison.rows) - len(shown)
    more = (Line(f"{left} more figures that did not move beyond noise: --full", Tone.FAINT),) if left else ()
    return Section("Figures", table=Table(columns, rows), notes=(*more, *_notes(outcome)), chapter=FIGURES)


def _notes(outcome: ComparedRuns) -> Iterator[Line]:
    tested = sum(row.difference is not None for c in outcome.comparisons for row in c.rows)
    each = percent(outcome.comparisons[0].confidence)
    yield Line(
        f"Latencies in ms. Intervals hold together with {100 * CONFIDENCE:.0f} %: {tested} of {each} each "
        "(Bonferroni)",
        Tone.FAINT,
    )
    yield Line(
        f"Block bootstrap over {CELLS} cells of each run; of a short run {MOST} blocks and Student's t. "
        "Noise is the variation within a run; only repeated runs show the variation between runs.",
        Tone.FAINT,
    )
    if outcome.models_differ:
        yield Line("† figures in tokens, which are not comparable across models", Tone.WARN)


def over_time(outcome: ComparedRuns) -> Section:
    """One row a run: the main figures, and which moved beyond noise since the run before."""
    columns = (
        Column("Run", left=True, verbatim=True, wraps=True),
        Column("started (UTC)", left=True, wide=True),
        *(Column(head, over=over, wide=wide) for _, over, head, wide in _TREND),
    )
    # The first run stands as the base of the first comparison, all others as the new one of theirs.
    comparisons = [outcome.comparisons[0], *outcome.comparisons]
    rows = tuple(
        TableRow((run.label, _minute(run), *_moved(comparisons[i], i > 0)))
        for i, run in enumerate(outcome.runs)
    )
    moved = Line(f"{_UP} {_DOWN} up or down beyond noise since the run before", Tone.FAINT)
    notes = (moved, *_notes(outcome))
    return Section("Over time", table=Table(columns, rows), notes=notes, chapter=FIGURES)


def _minute(run: ComparedRun) -> str:
    """``2026-11-21 09:30``"""
    return moment(iso(run.compared.manifest.started_ns))[:16]


def _moved(comparison: Comparison, as_new: bool) -> Iterator[str]:
    """The cells of one run."""
    by_name = {row.metric.name: row for row in comparison.rows}
    for name, *_ in _TREND:
        row = by_name.get(name)
        if row is None:
            yield UNDEFINED
            continue
        mark = ""
        if as_new and row.difference and row.verdict in (Verdict.BETTER, Verdict.WORSE):
            mark = f" {_UP if row.difference.value > 0 else _DOWN}"
        yield words.figure(row.metric, row.new if as_new else row.base) + mark


def changes(outcome: ComparedRuns) -> Section:
    """For each step between two runs what became worse and what better."""
    lines: list[Line] = []
    for run, comparison in zip(outcome.runs[1:], outcome.comparisons, strict=True):
        named = [
            line
            for v, tone in ((Verdict.WORSE, Tone.BAD), (Verdict.BETTER, Tone.GOOD))
            for line in _named(f"{run.label}: {v}", comparison.having(v), tone)
        ]
        lines += named or [Line(f"{run.label}: no difference beyond noise")]
    found = tuple(Line(line.text, line.tone, verbatim=True) for line in lines)
    return Section("Changes", found, chapter=FIGURES)
