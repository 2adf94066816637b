"""Charts that are not over time: of a sweep along its load, of distributions, of limits, of slow requests."""

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, pairwise

from llm_locust.core.texts import UNDEFINED
from llm_locust.figures.charts import (
    LEVELS,
    MOST_DRAWN,
    PHASES,
    Estimate,
    LimitCurve,
    LimitSurface,
    LoadPoint,
    Relation,
    RunCharts,
    SlowRequest,
    by_lengths,
    load_points,
)
from llm_locust.figures.stages import LOADS
from llm_locust.figures.summary import Summary
from llm_locust.figures.text import (
    Column,
    Line,
    Section,
    Table,
    TableRow,
    Tone,
    clean,
    count,
    number,
    percent,
    plural,
    seconds,
    short,
)
from llm_locust.metrics.catalogue import LATENCY, View, from_scheduled, shown_in
from llm_locust.metrics.question import Prices
from llm_locust.report.html.shell import Axis, Chart, Data, Heat, Kind, Mark, Series, Values, figures, labels

# --- Charts of a sweep over lengths: figures along the load, one line for each pair of lengths


_COLOURS = ("c1", "c2", "c3", "c4", "c5", "c6")

#: Points by rising load, by their lengths.
Groups = Mapping[str, Sequence[LoadPoint]]


def over_lengths(groups: Groups, unit: str, per: str, note: str) -> list[Chart]:
    """Goodput and latencies over load, and the rate of a user by that of a GPU.

    Args:
        per: of what the output tokens/s are: ``per GPU``, or of the deployment.
        note: what is left out.
    """
    judged = any(point.goodput[0] is not None for points in groups.values() for point in points)
    goodput = _chart(
        ("goodput-over-load", "Goodput over load, % of requests", "good, %"),
        [("goodput", "%", 100.0, lambda p: p.goodput)],
        (groups, unit, note),
    )
    return [
        *([goodput] if judged else []),
        *(_over_lengths_latency(metric, (groups, unit, note)) for metric in ("ttft", "tpot")),
        _over_lengths_rates(groups, unit, per, note),
    ]


def _over_lengths_latency(metric: str, groups_of: tuple[Groups, str, str]) -> Chart:
    columns = [
        (place, "ms", 1.0, lambda p, place=place: p.latencies_ms[metric, place]) for place in ("p50", "p99")
    ]
    title = f"{LATENCY[metric].label} over load, ms"
    return _chart((f"{metric}-over-load", title, "ms"), columns, groups_of)


def _chart(
    names: tuple[str, str, str],
    columns: Sequence[tuple[str, str, float, Callable[[LoadPoint], Estimate]]],
    groups_of: tuple[Groups, str, str],
) -> Chart:
    """A line for each column of each pair of lengths, the first with marks; intervals are in the tables."""
    (id_, title, y), (groups, unit, note) = names, groups_of
    tables, series = [], []
    x = f"asked ({unit})"
    for at, (lengths, points) in enumerate(groups.items()):
        found: dict[str, Values] = {x: figures([p.load for p in points])}
        for name, of, scale, value in columns:
            for i, word in enumerate(("", " low", " high")):
                found[f"{name}{word} ({of})"] = figures([value(p)[i] for p in points], scale)
            kind = Kind.MARKS if name == columns[0][0] else Kind.DASHED
            label = f"{lengths} {name}" if len(columns) > 1 else lengths
            series.append(Series(label, x, f"{name} ({of})", _COLOURS[at % len(_COLOURS)], kind, table=at))
        tables.append(Data(_table(lengths), found))
    dashed = " Dashed: p99." if len(columns) > 1 else ""
    return Chart(
        id=id_,
        title=title,
        reading=f"A line for each pair of lengths (input:output tokens), a point a stage.{dashed}{note}",
        data=tuple(tables),
        series=tuple(series),
        x=Axis(f"load, {unit}"),
        y=Axis(y, most=100) if y.endswith("%") else Axis(y, log_choice=True),
    )


def _over_lengths_rates(groups: Groups, unit: str, per: str, note: str) -> Chart:
    x, y = "tokens/s per user", f"output tokens/s {per}"
    tables, series = [], []
    for at, (lengths, points) in enumerate(groups.items()):
        columns: dict[str, Values] = {
            f"asked ({unit})": figures([p.load for p in points]),
            x: figures([p.user_tps for p in points]),
            y: figures([p.output_tps if p.gpu_tps is None else p.gpu_tps for p in points]),
        }
        tables.append(Data(_table(lengths), columns))
        series.append(Series(lengths, x, y, _COLOURS[at % len(_COLOURS)], Kind.MARKS, table=at))
    return Chart(
        id="user-and-gpu",
        title=f"Tokens/s per user and {per}",
        reading=f"A line for each pair of lengths, by rising load; a user's: 1 / median TPOT.{note}",
        data=tuple(tables),
        series=tuple(series),
        x=Axis(x),
        y=Axis(y),
    )


def _table(lengths: str) -> str:
    """A name that a file may have."""
    return lengths.replace(":", "-")


_LATENCIES = (("ttft", "c1", "c2"), ("tpot", "c3", "c4"))
_OF_RESULTS = (("e2el", "c1", "c2"),)


def over_load(summary: Summary, options: dict[str, object]) -> list[Chart]:
    """Goodput over load with its edge, latencies over throughput, and the rate of a user by that of a GPU.

    Where nothing was generated, throughput is that of inputs, and no user sees tokens.

    Latencies over the achieved hits in a prefix-cache experiment. Empty with fewer than two stages of the
    same lengths that are a result; those that are not are left out.

    Args:
        options: those of the run, which may say how many GPUs there are.
    """
    stages = summary.stages or []
    gpus = Prices.of_options(options).gpus
    points = load_points(stages, gpus)
    left = len(stages) - len(points)
    note = f" {plural(left, 'stage')} without a result left out." if left else ""
    if stages and stages[0].prefix is not None:
        return over_hits(points, note)
    groups = by_lengths(points)
    if max(map(len, groups.values()), default=0) < 2:
        return []
    unit = LOADS[stages[0].kind]
    if "" not in groups:
        return over_lengths(groups, unit, "per GPU" if gpus else "of the deployment", note)
    of_inputs = all(point.inputs_per_s is not None and point.user_tps is None for point in points)
    judged = any(point.goodput[0] is not None for point in points)
    found = [_goodput(points, unit, summary, note)] if judged else []
    return [
        *found,
        *(_latency(points, unit, *each, note) for each in (_OF_RESULTS if of_inputs else _LATENCIES)),
        *([] if of_inputs else [_rates(points, unit, gpus, note)]),
    ]


def _goodput(points: Sequence[LoadPoint], unit: str, summary: Summary, note: str) -> Chart:
    columns: dict[str, Values] = {
        f"asked ({unit})": figures([p.load for p in points]),
        f"offered ({unit})": figures([p.offered for p in points]),
    }
    x = f"asked ({unit})"
    series = _estimates(columns, "goodput", "%", [p.goodput for p in points], x, "c1", 100.0)
    return Chart(
        id="goodput-over-load",
        title="Goodput over load, % of requests",
        reading=f"One point a stage; dashed: its 95 % interval.{_edge_in_words(summary)}{note}",
        data=(Data("goodput", columns),),
        series=tuple(series),
        x=Axis(f"load, {unit}"),
        y=Axis("good, %", most=100),
        marks=_edge(summary),
    )


def _edge(summary: Summary) -> tuple[Mark, ...]:
    """The edge of a search and the ends of its interval."""
    if summary.search is None:
        return ()
    answer = summary.search.answer
    ends = ((answer.load, "edge"), (answer.low, "low"), (answer.high, "high"))
    return tuple(Mark("x", at, f"{word} {number(at)}") for at, word in ends if at is not None)


def _edge_in_words(summary: Summary) -> str:
    if summary.search is None or summary.search.answer.load is None:
        return ""
    return " Lines across: the edge that the search found, and its 95 % interval."


def _latency(
    points: Sequence[LoadPoint], unit: str, metric: str, of_p50: str, of_p99: str, note: str
) -> Chart:
    name, x = LATENCY[metric].label, "inputs/s" if metric == "e2el" else "output tokens/s"
    columns: dict[str, Values] = {
        f"asked ({unit})": figures([p.load for p in points]),
        x: figures([p.inputs_per_s if metric == "e2el" else p.output_tps for p in points]),
    }
    series = _percentiles(columns, points, metric, x, (of_p50, of_p99))
    return Chart(
        id=f"{metric}-over-throughput",
        title=f"{name} over throughput, ms",
        reading=f"One point a stage, by rising load; dashed: the 95 % interval.{note}",
        data=(Data("latency", columns),),
        series=series,
        x=Axis(x),
        y=Axis("ms", log_choice=True),
    )


def over_hits(points: Sequence[LoadPoint], note: str) -> list[Chart]:
    """Latencies of a prefix-cache experiment, whose stages have one load, by the hits that were achieved."""
    found = sorted((p for p in points if p.hits is not None), key=lambda p: (p.hits, p.stage))
    return [_over_hits(found, *each, note) for each in _LATENCIES] if len(found) > 1 else []


def _over_hits(points: Sequence[LoadPoint], metric: str, of_p50: str, of_p99: str, note: str) -> Chart:
    x = "prefix-cache hits (% of prompts' tokens)"
    columns: dict[str, Values] = {x: figures([p.hits for p in points], 100.0)}
    series = _percentiles(columns, points, metric, x, (of_p50, of_p99))
    return Chart(
        id=f"{metric}-over-hits",
        title=f"{LATENCY[metric].label} over prefix-cache hits, ms",
        reading=f"One point a stage, by what was found of its prompts; dashed: the 95 % interval.{note}",
        data=(Data("latency", columns),),
        series=series,
        x=Axis("hits, % of the prompts' tokens", most=100),
        y=Axis("ms", log_choice=True),
    )


def _rates(points: Sequence[LoadPoint], unit: str, gpus: float | None, note: str) -> Chart:
    per = "per GPU" if gpus else "of the deployment"
    x, y = "tokens/s per user", f"output tokens/s {per}"
    columns: dict[str, Values] = {
        f"asked ({unit})": figures([p.load for p in points]),
        x: figures([p.user_tps for p in points]),
        y: figures([p.gpu_tps if gpus else p.output_tps for p in points]),
    }
    unknown = "" if gpus else " --gpus says how many GPUs there are."
    return Chart(
        id="user-and-gpu",
        title=f"Tokens/s per user and {per}",
        reading=f"One point a stage; a user's: 1 / median TPOT. Up and right is better.{unknown}{note}",
        data=(Data("rates", columns),),
        series=(Series("stages", x, y, "c1", Kind.MARKS),),
        x=Axis(x),
        y=Axis(y),
    )


def _percentiles(
    columns: dict[str, Values], points: Sequence[LoadPoint], metric: str, x: str, colours: tuple[str, str]
) -> tuple[Series, ...]:
    """Add p50 and p99 of a latency, with their intervals, to the columns; the lines that show them."""
    return tuple(
        line
        for place, colour in zip(("p50", "p99"), colours, strict=True)
        for line in _estimates(
            columns, place, "ms", [p.latencies_ms[metric, place] for p in points], x, colour
        )
    )


def _estimates(
    columns: dict[str, Values],
    name: str,
    unit: str,
    values: Sequence[Estimate],
    x: str,
    colour: str,
    scale: float = 1.0,
) -> list[Series]:
    """Add a figure and the ends of its interval to the columns; the lines that show them."""
    found = []
    for i, (word, kind) in enumerate((("", Kind.MARKS), (" low", Kind.BOUND), (" high", Kind.BOUND))):
        head = f"{name}{word} ({unit})"
        columns[head] = figures([value[i] for value in values], scale)
        # Lines without marks need two values side by side to be seen.
        neighbours = pairwise(values) if i else zip(values, values, strict=True)
        if any(None not in (a[i], b[i]) for a, b in neighbours):
            found.append(Series(f"{name}{word}", x, head, colour, kind))
    return found


# --- Whole distributions, and how latencies go with length and load


#: In the order of the catalogue. A latency from scheduled has the colour of the one from sent, and dashes.
_METRIC_COLOURS = ("c1", "c3", "c6", "c4", "c2", "c5")
_FROM_SENT = [metric for metric in shown_in(View.DISTRIBUTIONS) if not metric.is_from_scheduled]
_SHOWN = {
    **{
        m.key: (m.label, colour, Kind.LINE)
        for m, colour in zip(_FROM_SENT, cycle(_METRIC_COLOURS), strict=False)
    },
    **{
        late.key: (late.label, colour, Kind.DASHED)
        for m, colour in zip(_FROM_SENT, cycle(_METRIC_COLOURS), strict=False)
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


# --- Charts of goodput at any limit, so that nobody has to run again for another SLO


def limits(run: RunCharts) -> list[Chart]:
    """A curve for each of TTFT, TPOT and E2EL, and the surface of the first two."""
    charts = [_curve(run, curve) for curve in run.curves]
    return charts if run.surface is None else [*charts, _surface(run.surface)]


def _curve(run: RunCharts, curve: LimitCurve) -> Chart:
    name, head = LATENCY[curve.metric].label, f"{LATENCY[curve.metric].label} limit (ms)"
    columns: dict[str, Values] = {head: figures(curve.limits_s, 1e3), "alone (%)": figures(curve.alone, 100)}
    series = [Series("this limit alone", head, "alone (%)", "c1")]
    if curve.others:
        columns["all limits (%)"] = figures(curve.good, 100)
        series.append(Series("with the other limits as they are", head, "all limits (%)", "c2"))
    counted = "" if LATENCY[curve.metric].end is None else f", counted from {run.measured_from}"
    return Chart(
        id=f"goodput-by-{curve.metric}",
        title=f"Goodput at any {name} limit, % of requests",
        reading=f"The share of good requests were this the {name} limit{counted}.",
        data=(Data("goodput", columns),),
        series=tuple(series),
        x=Axis(f"{name} limit, ms", log=True),
        y=Axis("good, %", most=100),
        marks=_own("x", curve.limit_s, "SLO "),
    )


def _own(axis: str, limit_s: float | None, text: str) -> tuple[Mark, ...]:
    """The limit that the SLO has, where all requests have the same."""
    return () if limit_s is None else (Mark(axis, limit_s * 1e3, f"{text}{limit_s * 1e3:,g} ms"),)


def _surface(found: LimitSurface) -> Chart:
    others = " and ".join(LATENCY[metric].label for metric in found.others)
    kept = f" The limit of {others} holds too." if others else ""
    rows: dict[str, Values] = {
        f"TPOT ≤ {limit_s * 1e3:.5g} ms (%)": figures(row, 100)
        for limit_s, row in zip(found.tpot_s, found.good, strict=True)
    }
    return Chart(
        id="goodput-surface",
        title="Goodput at any pair of TTFT and TPOT limits, % of requests",
        reading=f"Each cell is the share that meets both limits; lines are the SLO's own.{kept}",
        data=(Data("goodput", {"TTFT limit (ms)": figures(found.ttft_s, 1e3), **rows}),),
        series=(Series("good", "TTFT limit (ms)", "", "c1", Kind.HEAT),),
        x=Axis("TTFT limit, ms", log=True),
        y=Axis("TPOT limit, ms", log=True),
        heat=Heat(figures(found.tpot_s, 1e3), "good, %"),
        marks=_own("x", found.ttft_limit_s, "TTFT ≤ ") + _own("y", found.tpot_limit_s, "TPOT ≤ "),
    )


# --- The slowest requests: what their time went to, and who they were


_SLOWEST_COLOURS = ("c5", "c2", "c6", "c1", "c3", "faint")
_LABEL_LENGTH, _NAME_LENGTH = 24, 24

_NOTES = (Line("requests.parquet has the whole of each, by its request_id.", Tone.FAINT),)


def timeline(run: RunCharts) -> list[Chart]:
    """One bar a request, longest on top; none without a request."""
    if not run.slowest:
        return []
    names = labels([short(clean(request.request_id), _LABEL_LENGTH) for request in run.slowest])
    columns: dict[str, Values] = {"request": names}
    columns |= {f"{phase} (ms)": figures((r.phases[phase] for r in run.slowest), 1e3) for phase in PHASES}
    chart = Chart(
        id="slowest",
        title=f"The {len(run.slowest)} slowest requests, ms from scheduled",
        reading=(
            "Queue: until a worker began. Connect: until it was sent. First byte: until the headers. "
            "First token: until the first token event. Tokens: until the last one. End: until it was over."
        ),
        data=(Data("phases", columns),),
        series=tuple(
            Series(phase, f"{phase} (ms)", "request", colour, Kind.TIMELINE)
            for phase, colour in zip(PHASES, _SLOWEST_COLOURS, strict=True)
        ),
        x=Axis("ms"),
        y=Axis(""),
        wide=True,
    )
    return [chart]


def table(run: RunCharts) -> Section | None:
    if not run.slowest:
        return None
    columns = (
        Column("Request", left=True, verbatim=True),
        Column("Outcome", left=True),
        Column("Name", left=True, verbatim=True),
        Column("Class", left=True, verbatim=True),
        Column("Replica", left=True, verbatim=True),
        Column("Scheduled"),
        *(Column(phase, over="ms") for phase in PHASES),
        Column("total", over="ms"),
        Column("longest gap", over="ms"),
        Column("in", over="tokens"),
        Column("out", over="tokens"),
    )
    rows = tuple(map(_row, run.slowest))
    return Section("Slowest requests", table=Table(columns, rows).without_empty(), notes=_NOTES)


def _row(request: SlowRequest) -> TableRow:
    texts = (request.name, request.slo_class, request.replica)
    return TableRow(
        (
            short(clean(request.request_id), _LABEL_LENGTH),
            request.outcome,
            *(short(clean(text), _NAME_LENGTH) for text in texts),
            f"+{seconds(request.scheduled_s)}" if request.scheduled_s >= 0 else UNDEFINED,
            *(number(1e3 * request.phases[phase]) for phase in PHASES),
            number(1e3 * request.total_s),
            number(1e3 * request.longest_gap_s),
            count(request.input_tokens),
            count(request.output_tokens),
        ),
        Tone.PLAIN if request.outcome == "ok" else Tone.BAD,
    )
