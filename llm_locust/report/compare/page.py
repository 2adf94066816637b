"""A comparison as one HTML page that loads nothing, in the look of ``report.html``."""

import math
from collections.abc import Iterator, Sequence

from llm_locust.figures.charts.distributions import LEVELS, levels_of
from llm_locust.figures.compare.comparison import CONFIDENCE, FigureOverTime, Row, Verdict, figures_over_time
from llm_locust.figures.compare.sides import METRICS, figure_label
from llm_locust.figures.section import Tone
from llm_locust.figures.text import count, plural, short
from llm_locust.metrics.catalogue import View, shown_in
from llm_locust.metrics.limits import MetricKind
from llm_locust.report.compare.outcome import (
    TELLING,
    ComparedRuns,
    answer,
    change,
    first_clause,
    grave,
    in_order,
)
from llm_locust.report.compare.tables import ANSWER, FIGURES, sections
from llm_locust.report.html.page import Tile
from llm_locust.report.html.shell import Axis, Chart, Data, Kind, Series, Values, figures, labels, whole_page

# --- The charts of a comparison: distributions on top of each other, and figures over time


#: Of requests, which the gaps of ITL are not; open and closed loops have them alike.
_DISTRIBUTIONS = tuple(
    metric for metric in shown_in(View.COMPARISON) if metric.formula and not metric.is_from_scheduled
)

#: Colours of the style sheet that are told apart best; further runs have them again, dashed.
_COLOURS = ("c1", "c2", "c3", "c4", "c5", "c6")

_SHARE = "at or below (%)"
_TIME = "hours after the first run"

#: Charts over time: a title, and the figures that share its axis.
_OVER_TIME = {
    **{f"{each.label}, {each.unit}": (f"p50_{each.key}", f"p99_{each.key}") for each in _DISTRIBUTIONS},
    "Share of requests, %": ("goodput", "error_rate"),
    "Requests per second": ("rps", "goodput_rps"),
    "Output tokens per second": ("output_tps",),
    "Output characters per second": ("output_cps",),
}


def charts(outcome: ComparedRuns) -> list[Chart]:
    """Distributions of latencies; of several runs the figures over time before them."""
    over_time = [] if outcome.is_pair else _over_time(outcome)
    return over_time + [
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


def _over_time(outcome: ComparedRuns) -> list[Chart]:
    first_ns = outcome.runs[0].compared.manifest.started_ns
    hours = [(run.compared.manifest.started_ns - first_ns) / 3.6e12 for run in outcome.runs]
    names = [name for shown in _OVER_TIME.values() for name in shown]
    measured = [run.compared for run in outcome.runs]
    found = figures_over_time(measured, [METRICS[name] for name in names])
    charts = []
    for title, shown in _OVER_TIME.items():
        known = [found[name] for name in shown if any(v is not None for v in found[name].values)]
        if known:
            charts.append(_trend(title, known, hours, labels([run.label for run in outcome.runs])))
    return charts


def _trend(title: str, shown: list[FigureOverTime], hours: list[float], names: list[str]) -> Chart:
    columns: dict[str, Values] = {_TIME: figures(hours), "run": names}
    series = []
    for figure, colour in zip(shown, _COLOURS, strict=False):
        name = figure_label(figure.metric)
        scale = {MetricKind.LATENCY: 1e3, MetricKind.SHARE: 100.0}.get(figure.metric.kind, 1.0)
        for head, values, kind in (
            (name, figure.values, Kind.LINE),
            (f"{name} low", figure.lows, Kind.DASHED),
            (f"{name} high", figure.highs, Kind.DASHED),
        ):
            columns[head] = figures(values, scale)
            series.append(Series(head, _TIME, head, colour, kind))
    return Chart(
        id="trend-" + shown[0].metric.name.replace("_", "-"),
        title=f"{title}, over time",
        reading=f"One point a run; dashed: the {100 * CONFIDENCE:.0f} % interval of each.",
        data=(Data("trend", columns),),
        series=tuple(series),
        x=Axis(_TIME),
        y=Axis(title.rpartition(", ")[2]),
    )


#: Lines of a tile, and characters of one.
_MOST_LINES, _LONGEST = 4, 110


def page(outcome: ComparedRuns) -> bytes:
    """The page, in UTF-8: the answer in tiles, gates, warnings, verdict, runs, charts, tables."""
    parts, drawn = sections(outcome), charts(outcome)
    names = [run.label for run in outcome.runs]
    return whole_page(
        "compare.html.j2",
        {"run": "comparison", "charts": [chart.payload() for chart in drawn]},
        "llm_locust.report.compare",
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
        told = f"{few} of {plural(len(rows), 'figure')} cannot be told: too few samples" if few else ""
        return Tile("Moved beyond noise", "nothing", tuple(filter(None, [told])), Tone.FAINT)
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
    known = [(row, reach) for row, reach in reaches if math.isfinite(reach)]
    if not known:
        told = "Too few requests to know the noise: run longer."
        return Tile("Noise", "unknown", (told,), Tone.WARN)
    lines = [f"{figure_label(row.metric)} ± {100 * reach:.2g} %" for row, reach in known]
    told = "A smaller difference cannot be told from none."
    return Tile("Noise", f"± {100 * known[0][1]:.2g} %", (*lines, told), Tone.PLAIN)


def _reach(row: Row) -> float:
    """Half of the interval of the change, as a share of base."""
    if row.change is None or row.metric.kind is MetricKind.SHARE:
        return math.inf
    return (row.change.high - row.change.low) / 2


def _alike(outcome: ComparedRuns) -> Tile:
    warnings = grave(outcome)
    if not warnings:
        told = "Same load, same model, whole runs, a client that was fast enough."
        return Tile("Runs alike", "yes", (told, *_clipped(outcome.warnings)), Tone.GOOD)
    return Tile("Runs alike", plural(len(warnings), "warning"), tuple(_clipped(warnings)), Tone.WARN)


def _clipped(warnings: Sequence[str]) -> Iterator[str]:
    yield from (short(first_clause(text), _LONGEST) for text in warnings[: _MOST_LINES - 1])
    if (more := len(warnings) - _MOST_LINES + 1) > 0:
        yield f"and {count(more)} more below"
