"""Charts of a sweep or a search: figures of its stages along their load."""

from collections.abc import Callable, Mapping, Sequence

from llm_locust.figures.over_load import Estimate, LoadPoint, by_lengths, load_points
from llm_locust.figures.stages import LOADS
from llm_locust.figures.summary import Summary
from llm_locust.figures.text import number, plural
from llm_locust.metrics.catalogue import LATENCY
from llm_locust.metrics.prices import Prices
from llm_locust.report.html.chart import Axis, Chart, Data, Kind, Mark, Series, Values, known

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


def _over_lengths_latency(metric: str, told: tuple[Groups, str, str]) -> Chart:
    columns = [
        (place, "ms", 1.0, lambda p, place=place: p.latencies_ms[metric, place]) for place in ("p50", "p99")
    ]
    title = f"{LATENCY[metric].label} over load, ms"
    return _chart((f"{metric}-over-load", title, "ms"), columns, told)


def _chart(
    names: tuple[str, str, str],
    columns: Sequence[tuple[str, str, float, Callable[[LoadPoint], Estimate]]],
    told: tuple[Groups, str, str],
) -> Chart:
    """A line for each column of each pair of lengths, the first with marks; intervals are in the tables."""
    (id_, title, y), (groups, unit, note) = names, told
    tables, series = [], []
    x = f"asked ({unit})"
    for at, (lengths, points) in enumerate(groups.items()):
        found: dict[str, Values] = {x: known([p.load for p in points])}
        for name, of, scale, value in columns:
            for i, word in enumerate(("", " low", " high")):
                found[f"{name}{word} ({of})"] = known([value(p)[i] for p in points], scale)
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
            f"asked ({unit})": known([p.load for p in points]),
            x: known([p.user_tps for p in points]),
            y: known([p.output_tps if p.gpu_tps is None else p.gpu_tps for p in points]),
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
        f"asked ({unit})": known([p.load for p in points]),
        f"offered ({unit})": known([p.offered for p in points]),
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
        f"asked ({unit})": known([p.load for p in points]),
        x: known([p.inputs_per_s if metric == "e2el" else p.output_tps for p in points]),
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
    columns: dict[str, Values] = {x: known([p.hits for p in points], 100.0)}
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
        f"asked ({unit})": known([p.load for p in points]),
        x: known([p.user_tps for p in points]),
        y: known([p.gpu_tps if gpus else p.output_tps for p in points]),
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
    for i, (word, kind) in enumerate((("", Kind.MARKS), (" low", Kind.DASHED), (" high", Kind.DASHED))):
        head = f"{name}{word} ({unit})"
        columns[head] = known([value[i] for value in values], scale)
        if any(value[i] is not None for value in values):
            found.append(Series(f"{name}{word}", x, head, colour, kind))
    return found
