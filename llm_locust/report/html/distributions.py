"""Charts of whole distributions, and of how latencies go with length and load."""

from itertools import cycle

from llm_locust.metrics.catalogue import from_scheduled, shown_in
from llm_locust.metrics.charts import RunCharts
from llm_locust.metrics.charts.distributions import LEVELS
from llm_locust.metrics.charts.relations import MOST_DRAWN, Relation
from llm_locust.metrics.latency_metric import View
from llm_locust.report.html.chart import Axis, Chart, Data, Kind, Mark, Series, Values, figures
from llm_locust.report.text import UNDEFINED, count, number, percent

#: In the order of the catalogue. A latency from scheduled has the colour of the one from sent, and dashes.
_COLOURS = ("c1", "c3", "c6", "c4", "c2", "c5")
_FROM_SENT = [metric for metric in shown_in(View.DISTRIBUTIONS) if not metric.is_from_scheduled]
_SHOWN = {
    **{m.key: (m.label, colour, Kind.LINE) for m, colour in zip(_FROM_SENT, cycle(_COLOURS), strict=False)},
    **{
        late.key: (late.label, colour, Kind.DASHED)
        for m, colour in zip(_FROM_SENT, cycle(_COLOURS), strict=False)
        if (late := from_scheduled(m)) is not None and View.DISTRIBUTIONS in late.views
    },
}


def distributions(run: RunCharts, limits_ms: dict[str, float]) -> list[Chart]:
    """The cumulative distributions, and their tails; none without a sample."""
    shown = {metric: look for metric, look in _SHOWN.items() if metric in run.distributions}
    if not shown:
        return []
    columns: dict[str, Values] = {
        "at or below (%)": figures(LEVELS),
        # Counted from the top: 100 − 99.999 would lose the digits that a tail is about.
        "above (%)": [None if level == 100 else float(f"{100 - level:.4g}") for level in LEVELS],
        **{f"{name} (ms)": figures(run.distributions[key], 1e3) for key, (name, *_) in shown.items()},
    }
    data = (Data("distribution", columns),)
    marks = tuple(
        Mark("x", limits_ms[key], f"{_SHOWN[key][0]} ≤ {limits_ms[key]:,g} ms")
        for key in limits_ms
        if key in shown
    )

    def series(share: str) -> tuple[Series, ...]:
        return tuple(
            Series(name, f"{name} (ms)", share, colour, kind) for name, colour, kind in shown.values()
        )

    return [
        Chart(
            id="cdf",
            title="Cumulative distribution, % of requests (ITL: of gaps)",
            reading="The share at or below each latency. A step is a mode; a wide curve is variance.",
            data=data,
            series=series("at or below (%)"),
            x=Axis("ms", log=True),
            y=Axis("at or below, %", most=100),
            marks=marks,
        ),
        Chart(
            id="tail",
            title="Tail, % of requests (ITL: of gaps)",
            reading="The share above each latency: 1 % is the p99. A straight line is a heavy tail.",
            data=data,
            series=series("above (%)"),
            x=Axis("ms", log=True),
            y=Axis("above, %", log=True),
            marks=marks,
        ),
    ]


def relations(run: RunCharts) -> list[Chart]:
    """TTFT against input tokens, TPOT against concurrency; each only where it is known of requests."""
    charts = [
        _relation(
            run.ttft_by_input,
            "ttft-by-input",
            "TTFT against input tokens, ms",
            ("input tokens", "TTFT (ms)"),
            _prefill(run.ttft_by_input),
        ),
        _relation(
            run.tpot_by_load,
            "tpot-by-concurrency",
            "TPOT against concurrency, ms",
            ("mean concurrency while streaming", "TPOT (ms)"),
            _batching(run.tpot_by_load),
        ),
    ]
    return [chart for chart in charts if chart is not None]


def _relation(found: Relation, id_: str, title: str, heads: tuple[str, str], meaning: str) -> Chart | None:
    if not found.n:
        return None
    head_x, head_y = heads
    groups: dict[str, Values] = {
        head_x: figures(found.group_x),
        "n": figures(found.group_n),
        "p50 (ms)": figures(found.group_p50, 1e3),
        "p95 (ms)": figures(found.group_p95, 1e3),
    }
    sample: dict[str, Values] = {head_x: figures(found.x), head_y: figures(found.y, 1e3)}
    data = [Data("requests", sample), Data("groups", groups)]
    series = [
        Series("request", head_x, head_y, "c1", Kind.POINTS),
        Series("p50 of group", head_x, "p50 (ms)", "p50", Kind.MARKS, 1),
        Series("p95 of group", head_x, "p95 (ms)", "p95", Kind.MARKS, 1),
    ]
    if found.line is not None and not found.is_narrow:
        ends = (found.low_x, found.high_x)
        at = [found.line.intercept + found.line.slope * x for x in ends]
        data.append(Data("line", {head_x: figures(ends), head_y: figures(at, 1e3)}))
        series.append(Series("fitted line", head_x, head_y, "p99", Kind.LINE, 2))
    return Chart(
        id=id_,
        title=title,
        reading=f"{_drawn(found)} Squares: percentiles of groups of about equal size, of all requests.",
        data=tuple(data),
        series=tuple(series),
        x=Axis(head_x),
        y=Axis("ms", log_choice=True),
        notes=(meaning,),
    )


def _drawn(found: Relation) -> str:
    if found.n <= MOST_DRAWN:
        return f"All {count(found.n)} ok requests."
    return f"A random sample of {count(MOST_DRAWN)} of {count(found.n)} ok requests."


def _prefill(found: Relation) -> str:
    """What the slope of TTFT over input tokens means."""
    if found.line is None or found.is_narrow:
        return _no_line(found, "prompts", "tokens")
    line = found.line
    slope = f"{_signed(1e6 * line.slope)} ms per 1,000 input tokens {_interval(line.low, line.high, 1e6)}"
    if line.is_flat:
        return f"No slope beyond noise ({slope}): prompt length does not show in TTFT."
    if line.slope < 0:
        return f"{slope}: longer prompts were faster, so something else than their length sets TTFT."
    base = f", on top of {number(1e3 * line.intercept)} ms" if line.intercept > 0 else ""
    return f"{slope}{base}: a marginal prefill speed of {number(1 / line.slope)} tokens/s. {_method(found)}"


def _batching(found: Relation) -> str:
    """What the slope of TPOT over concurrency means."""
    if found.line is None or found.is_narrow:
        return _no_line(found, "concurrency", "requests")
    line = found.line
    slope = f"{_signed(1e3 * line.slope)} ms per further request {_interval(line.low, line.high, 1e3)}"
    if line.is_flat:
        return f"No slope beyond noise ({slope}): the pace of decoding did not depend on the load."
    if line.slope < 0:
        return f"{slope}: the pace was better under more load, so something else sets it."
    at_low, at_high = (line.intercept + line.slope * x for x in (found.low_x, found.high_x))
    growth = f", {percent(at_high / at_low - 1)} slower" if at_low > 0 else ""
    return (
        f"{slope}: from {number(found.low_x)} to {number(found.high_x)} in flight a token takes "
        f"{number(1e3 * at_high)} instead of {number(1e3 * at_low)} ms{growth}. {_method(found)}"
    )


def _no_line(found: Relation, what: str, unit: str) -> str:
    if found.line is None and not found.is_narrow:
        return f"{count(found.n)} requests are too few for a line."
    span = (
        UNDEFINED if found.low_x != found.low_x else f"{number(found.low_x)} to {number(found.high_x)} {unit}"
    )
    return f"No line: {what} hardly varied in this run ({span})."


def _method(found: Relation) -> str:
    n = found.line.n if found.line else 0
    of = f"of {count(n)} sampled requests" if n < found.n else f"of {count(n)} requests"
    return f"Theil–Sen line {of}, drawn between the 5th and 95th percentile of x."


def _interval(low: float, high: float, scale: float) -> str:
    return f"(95 %: {number(low * scale)} .. {number(high * scale)})"


def _signed(value: float) -> str:
    return f"+{number(value)}" if value > 0 else number(value)
