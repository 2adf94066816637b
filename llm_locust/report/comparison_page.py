"""A comparison as it is shown: sections of lines and tables, plain values, and a page that loads nothing."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

from llm_locust.core.manifest import Manifest
from llm_locust.core.texts import UNDEFINED
from llm_locust.figures.charts import LEVELS, levels_of
from llm_locust.figures.comparison import (
    CONFIDENCE,
    Comparison,
    FigureOverTime,
    Row,
    Scaled,
    ScalingError,
    Verdict,
    figures_over_time,
    scaling,
)
from llm_locust.figures.relative_gates import GateResult, Unknown
from llm_locust.figures.sides import METRICS, figure_label
from llm_locust.figures.text import (
    Column,
    Line,
    Section,
    Table,
    TableRow,
    Tone,
    clean,
    count,
    moment,
    number,
    percent,
    plural,
    seconds,
    sentence,
    short,
)
from llm_locust.metrics.catalogue import View, shown_in
from llm_locust.metrics.limits import MetricKind
from llm_locust.metrics.question import PriceError, Prices
from llm_locust.metrics.stats.bootstrap import CELLS
from llm_locust.metrics.stats.estimates import MOST, Difference
from llm_locust.metrics.window import iso
from llm_locust.report import comparison as words
from llm_locust.report.comparison import (
    TELLING,
    ComparedRun,
    ComparedRuns,
    answer,
    change,
    first_clause,
    gate_note,
    gate_reason,
    grave,
    in_order,
    shown,
    why_open,
)
from llm_locust.report.html.page import Tile
from llm_locust.report.html.shell import Axis, Chart, Data, Kind, Series, Values, figures, labels, whole_page

# --- What more GPUs gave, where runs say how many served them


#: Rate -> what stands over its columns, and its unit.
_RATES = {"output_tps": ("Output", "tokens/s"), "goodput_rps": ("Good", "requests/s")}

_OPEN_LOOP = (
    "an open loop sends every deployment the same load: for one that was not saturated this shows the load, "
    "not the scaling"
)


def scaled(outcome: ComparedRuns) -> dict[str, list[Scaled]]:
    """Rate -> its scaling over the runs; nothing of a rate that a run does not have, nor where fewer than two
    numbers of GPUs are known."""
    gpus = [_gpus(run.compared.manifest) for run in outcome.runs]
    found = {}
    for name in _RATES:
        rates = _rates(outcome, name)
        pairs = [(g, rate) for g, rate in zip(gpus, rates, strict=True) if g is not None and rate is not None]
        try:
            found[name] = scaling(pairs)
        except ScalingError:
            continue
    return found


def _gpus(manifest: Manifest) -> float | None:
    """None also where the manifest has no such numbers, which `llm-locust report` of the run refuses."""
    try:
        return Prices.of_options(manifest.options).gpus
    except PriceError:
        return None


def scaling_section(outcome: ComparedRuns) -> Section | None:
    """A table by number of GPUs; None where there is nothing to say."""
    found = scaled(outcome)
    if not found:
        return None
    by_gpus: dict[float, dict[str, Scaled]] = {}
    for name, entries in found.items():
        for entry in entries:
            by_gpus.setdefault(entry.gpus, {})[name] = entry
    columns = [Column("GPUs")]
    for over, unit in map(_RATES.__getitem__, found):
        columns += [Column(head, over) for head in (unit, "a GPU", "efficiency")]
    columns.append(Column("serial", "Karp-Flatt", wide=True))
    rows = [
        TableRow((f"{gpus:g}", *(cell for name in found for cell in _cells(of.get(name))), _serial(of)))
        for gpus, of in sorted(by_gpus.items())
    ]
    is_open = any(run.compared.manifest.open_loop for run in outcome.runs)
    notes = (Line(_OPEN_LOOP, Tone.WARN),) if is_open else ()
    return Section("Scaling", (), Table(tuple(columns), tuple(rows)), notes)


def scaling_data(outcome: ComparedRuns) -> dict[str, list[dict[str, Any]]]:
    """Plain values, for ``--format json``."""
    return {name: [asdict(entry) for entry in entries] for name, entries in scaled(outcome).items()}


def _rates(outcome: ComparedRuns, name: str) -> list[float | None]:
    first, *_ = outcome.comparisons
    base = next((row.base for row in first.rows if row.metric.name == name), None)
    others = [
        next((row.new for row in comparison.rows if row.metric.name == name), None)
        for comparison in outcome.comparisons
    ]
    return [base, *others]


def _cells(entry: Scaled | None) -> tuple[str, str, str]:
    if entry is None:
        return UNDEFINED, UNDEFINED, UNDEFINED
    return number(entry.rate), number(entry.per_gpu), percent(entry.efficiency)


def _serial(of: Mapping[str, Scaled]) -> str:
    serial = next(iter(of.values())).serial
    return UNDEFINED if serial is None else percent(serial)


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
        found += [verdict_section(outcome.comparisons[0]), runs(outcome), figures_table(outcome, full=full)]
    else:
        found.append(runs(outcome))
        found += [over_time(outcome), changes(outcome)]
    found.append(scaling_section(outcome))
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


def verdict_section(comparison: Comparison) -> Section:
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


def figures_table(outcome: ComparedRuns, *, full: bool = True) -> Section:
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
                words.row_verdict(row),
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
        # 2026-11-21 09:30
        TableRow(
            (run.label, moment(iso(run.compared.manifest.started_ns))[:16], *_marked(comparisons[i], i > 0))
        )
        for i, run in enumerate(outcome.runs)
    )
    moved = Line(f"{_UP} {_DOWN} up or down beyond noise since the run before", Tone.FAINT)
    notes = (moved, *_notes(outcome))
    return Section("Over time", table=Table(columns, rows), notes=notes, chapter=FIGURES)


def _marked(comparison: Comparison, as_new: bool) -> Iterator[str]:
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


# --- A comparison as plain values, for ``--format json``: figures in milliseconds, shares and numbers


SCHEMA = 1

_UNITS = {MetricKind.LATENCY: "ms", MetricKind.SHARE: "share", MetricKind.NUMBER: "number"}


def as_data(outcome: ComparedRuns) -> dict[str, Any]:
    """Stable keys; what is not defined or not known is None.

    ``comparisons[i]`` is run i + 1 against run i. ``change`` is a share of base's figure. ``confidence`` is
    that of each interval, ``joint_confidence`` of all together.
    """
    return {
        "schema": SCHEMA,
        "runs": [_data_run(run) for run in outcome.runs],
        "slo_ms": {metric: limit_s * 1e3 for metric, limit_s in outcome.slo.limits.items()},
        "joint_confidence": CONFIDENCE,
        "warnings": list(outcome.warnings),
        "comparisons": [
            {
                "base": base.label,
                "new": new.label,
                "confidence": comparison.confidence,
                "rows": [_row(row) for row in comparison.rows],
            }
            for (base, new), comparison in zip(pairwise(outcome.runs), outcome.comparisons, strict=True)
        ],
        "finding": outcome.finding if outcome.gates else None,
        "exit_code": outcome.exit_code,
        "scaling": scaling_data(outcome),
        "gates": [_gate(gate, outcome.gate_unknown) for gate in outcome.gates],
    }


def _data_run(run: ComparedRun) -> dict[str, Any]:
    manifest, population = run.compared.manifest, run.compared.population
    return {
        "label": run.label,
        "id": manifest.id,
        "started": iso(manifest.started_ns),
        "model": manifest.model,
        "host": manifest.host,
        "window_s": run.compared.window.seconds,
        "ok": len(population.ok),
        "failed": len(population.failed),
        "client_verdict": run.compared.client().verdict,
    }


def _row(row: Row) -> dict[str, Any]:
    metric, found = row.metric, row.difference
    scale = shown(metric, 1.0)
    return {
        "metric": metric.name,
        "unit": _UNITS[metric.kind],
        "base": None if row.base is None else _known(row.base * scale),
        "new": None if row.new is None else _known(row.new * scale),
        **_interval("difference", found, scale),
        **_interval("change", row.change, 1.0),
        "verdict": str(row.verdict),
        "reason": None if row.why_open is None else why_open(row),
    }


def _interval(key: str, found: Difference | None, scale: float) -> dict[str, Any]:
    if found is None:
        return {key: None, f"{key}_interval": None}
    ends = [_known(end * scale) for end in (found.low, found.high)]
    return {key: _known(found.value * scale), f"{key}_interval": ends}


def _gate(result: GateResult, unknown: Unknown) -> dict[str, Any]:
    interval = result.interval
    return {
        "text": result.gate.text,
        "passed": result.passed(unknown),
        "finding": result.state.finding,
        "state": str(result.state),
        "reason": gate_reason(result),
        "note": gate_note(result),
        "times_the_requests": None if result.times is None else _known(result.times),
        "change": None if result.change is None else _known(result.change),
        "change_interval": interval and [_known(interval.low), _known(interval.high)],
        "in_points": result.gate.in_points,
        "row": _row(result.row),
    }


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


# --- The charts of a comparison: distributions on top of each other, and figures over time


#: Of requests, which the gaps of ITL are not; open and closed loops have them alike.
_DISTRIBUTIONS = tuple(
    metric for metric in shown_in(View.COMPARISON) if metric.formula and not metric.is_from_scheduled
)

#: Colours of the style sheet that are told apart best; further runs have them again, dashed.
_COLOURS = ("c1", "c2", "c3", "c4", "c5", "c6")

_SHARE = "at or below (%)"

#: Units of the time after the first run, the longest first, with their seconds; the first that fits twice.
_TIME_UNITS = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))

#: Charts over time: a title, and the figures that share its axis.
_TRENDS = {
    **{f"{each.label}, {each.unit}": (f"p50_{each.key}", f"p99_{each.key}") for each in _DISTRIBUTIONS},
    "Share of requests, %": ("goodput", "error_rate"),
    "Requests per second": ("rps", "goodput_rps"),
    "Output tokens per second": ("output_tps",),
    "Output characters per second": ("output_cps",),
}


def charts(outcome: ComparedRuns) -> list[Chart]:
    """Distributions of latencies; of several runs the figures over time before them."""
    trends = [] if outcome.is_pair else _trends(outcome)
    return trends + [
        chart for each in _DISTRIBUTIONS if (chart := _distribution(outcome, each.key, each.label))
    ]


def _distribution(outcome: ComparedRuns, metric: str, name: str) -> Chart | None:
    """One curve a run; None where none has a sample."""
    curves = [(run.label, levels_of(run.compared.latencies(metric))) for run in outcome.runs]
    if outcome.is_pair:
        curves = [(f"{role}: {label}", x) for role, (label, x) in zip(("base", "new"), curves, strict=True)]
    heads = [f"{label} (ms)" for label in labels([label for label, _ in curves])]
    columns: dict[str, Values] = {_SHARE: figures(LEVELS)}
    columns |= {head: figures(x, 1e3) for head, (_, x) in zip(heads, curves, strict=True)}
    if not any(value is not None for head in heads for value in columns[head]):
        return None
    series = tuple(
        Series(label, head, _SHARE, _COLOURS[i % len(_COLOURS)], _kind(i))
        for i, (head, (label, _)) in enumerate(zip(heads, curves, strict=True))
    )
    return Chart(
        id=f"cdf-{metric}",
        title=f"{name}, cumulative distribution, % of requests",
        reading="The share at or below each latency; a curve further left is faster.",
        data=(Data("distribution", columns),),
        series=series,
        x=Axis(f"{name}, ms", log=True),
        y=Axis("at or below, %", most=100),
    )


def _kind(index: int) -> Kind:
    return Kind.LINE if index < len(_COLOURS) else Kind.DASHED


def _trends(outcome: ComparedRuns) -> list[Chart]:
    first_ns = outcome.runs[0].compared.manifest.started_ns
    after_s = [(run.compared.manifest.started_ns - first_ns) * 1e-9 for run in outcome.runs]
    unit, of_unit_s = next((each for each in _TIME_UNITS if max(after_s) >= 2 * each[1]), _TIME_UNITS[-1])
    time = f"{unit} after the first run", [each / of_unit_s for each in after_s]
    names = [name for those in _TRENDS.values() for name in those]
    measured = [run.compared for run in outcome.runs]
    found = figures_over_time(measured, [METRICS[name] for name in names])
    charts = []
    for title, those in _TRENDS.items():
        drawn = [found[name] for name in those if any(v is not None for v in found[name].values)]
        if drawn:
            charts.append(_trend(title, drawn, time, labels([run.label for run in outcome.runs])))
    return charts


def _trend(title: str, drawn: list[FigureOverTime], time: tuple[str, list[float]], names: list[str]) -> Chart:
    x, after = time
    columns: dict[str, Values] = {x: figures(after), "run": names}
    series = []
    for figure, colour in zip(drawn, _COLOURS, strict=False):
        name = figure_label(figure.metric)
        scale = {MetricKind.LATENCY: 1e3, MetricKind.SHARE: 100.0}.get(figure.metric.kind, 1.0)
        for head, values, kind in (
            (name, figure.values, Kind.LINE),
            (f"{name} low", figure.lows, Kind.BOUND),
            (f"{name} high", figure.highs, Kind.BOUND),
        ):
            columns[head] = figures(values, scale)
            series.append(Series(head, x, head, colour, kind))
    return Chart(
        id="trend-" + drawn[0].metric.name.replace("_", "-"),
        title=f"{title}, over time",
        reading=f"One point a run; dashed: the {100 * CONFIDENCE:.0f} % interval of each.",
        data=(Data("trend", columns),),
        series=tuple(series),
        x=Axis(x),
        y=Axis(title.rpartition(", ")[2]),
    )


# --- A comparison as one HTML page, in the look of ``report.html``


#: Lines of a tile, and characters of one.
_MOST_LINES, _LONGEST = 4, 110


def page(outcome: ComparedRuns) -> bytes:
    """The page, in UTF-8: the answer in tiles, gates, warnings, verdict, runs, charts, tables."""
    parts, drawn = sections(outcome), charts(outcome)
    names = [run.label for run in outcome.runs]
    return whole_page(
        "compare.html.j2",
        {"run": "comparison", "charts": [chart.payload() for chart in drawn]},
        title=f"{names[0]} and {names[1]}" if outcome.is_pair else f"{len(names)} runs",
        tiles=tiles(outcome),
        first=[part for part in parts if part.chapter not in (ANSWER, FIGURES)],
        last=[part for part in parts if part.chapter == FIGURES],
        charts=drawn,
    )


def tiles(outcome: ComparedRuns) -> list[Tile]:
    """Better, worse or unknown and why; what moved; how far noise reaches; whether the runs are alike."""
    return [_answer(outcome), _moved(outcome), _noise(outcome), _alike(outcome)]


def _answer(outcome: ComparedRuns) -> Tile:
    found = answer(outcome)
    return Tile("Result", found.word, (*found.parts, f"exit code {found.code}{found.why_code}"), found.tone)


def _moved(outcome: ComparedRuns) -> Tile:
    rows = in_order(outcome.comparisons[-1].rows)
    worse, better = ([row for row in rows if row.verdict is v] for v in (Verdict.WORSE, Verdict.BETTER))
    if not worse and not better:
        few = sum(row.verdict is Verdict.TOO_FEW for row in rows)
        text = f"{few} of {plural(len(rows), 'figure')} cannot be told: too few samples" if few else ""
        return Tile("Moved beyond noise", "nothing", tuple(filter(None, [text])), Tone.FAINT)
    value = ", ".join(f"{len(some)} {word}" for some, word in ((worse, "worse"), (better, "better")) if some)
    named = [f"{figure_label(row.metric)} {change(row)}" for row in (worse + better)]
    more = len(named) - _MOST_LINES
    lines = (*named[:_MOST_LINES], *([plural(more, "more figure")] if more > 0 else []))
    tone = Tone.BAD if not better else Tone.GOOD if not worse else Tone.WARN
    return Tile("Moved beyond noise", value, lines, tone)


def _noise(outcome: ComparedRuns) -> Tile:
    """How large a difference could hide in the figures that say most."""
    rows = {row.metric.name: row for row in outcome.comparisons[-1].rows}
    reaches = [(row, _reach(row)) for name in TELLING if (row := rows.get(name)) is not None]
    finite = [(row, reach) for row, reach in reaches if math.isfinite(reach)]
    if not finite:
        text = "Too few requests to know the noise: run longer."
        return Tile("Noise", "unknown", (text,), Tone.WARN)
    lines = [f"{figure_label(row.metric)} ± {100 * reach:.2g} %" for row, reach in finite]
    text = "A smaller difference cannot be told from none."
    return Tile("Noise", f"± {100 * finite[0][1]:.2g} %", (*lines, text), Tone.PLAIN)


def _reach(row: Row) -> float:
    """Half of the interval of the change, as a share of base."""
    if row.change is None or row.metric.kind is MetricKind.SHARE:
        return math.inf
    return (row.change.high - row.change.low) / 2


def _alike(outcome: ComparedRuns) -> Tile:
    warnings = grave(outcome)
    if not warnings:
        text = "Same load, same model, whole runs, a client that was fast enough."
        return Tile("Runs alike", "yes", (text, *_clipped(outcome.warnings)), Tone.GOOD)
    return Tile("Runs alike", plural(len(warnings), "warning"), tuple(_clipped(warnings)), Tone.WARN)


def _clipped(warnings: Sequence[str]) -> Iterator[str]:
    yield from (short(first_clause(text), _LONGEST) for text in warnings[: _MOST_LINES - 1])
    if (more := len(warnings) - _MOST_LINES + 1) > 0:
        yield f"and {count(more)} more below"
