"""The charts of a comparison: distributions on top of each other, and figures over time."""

from llm_locust.metrics.catalogue import shown_in
from llm_locust.metrics.charts.distributions import LEVELS, levels_of
from llm_locust.metrics.compare.comparable import METRICS
from llm_locust.metrics.compare.comparison import CONFIDENCE, FigureOverTime, figures_over_time
from llm_locust.metrics.gates import MetricKind
from llm_locust.metrics.latency_metric import View
from llm_locust.report.compare.outcome import ComparedRuns
from llm_locust.report.html.chart import Axis, Chart, Data, Kind, Series, Values, figures, labels
from llm_locust.report.metric_names import figure_label

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
            columns[head] = figures((float("nan") if v is None else v for v in values), scale)
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
