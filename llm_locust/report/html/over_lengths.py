"""Charts of a sweep over lengths: figures along the load, one line for each pair of lengths."""

from collections.abc import Callable, Mapping, Sequence

from llm_locust.metrics.catalogue import LATENCY
from llm_locust.metrics.charts.over_load import Estimate, LoadPoint
from llm_locust.report.html.chart import Axis, Chart, Data, Kind, Series, Values, known

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
        *(_latency(metric, (groups, unit, note)) for metric in ("ttft", "tpot")),
        _rates(groups, unit, per, note),
    ]


def _latency(metric: str, told: tuple[Groups, str, str]) -> Chart:
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


def _rates(groups: Groups, unit: str, per: str, note: str) -> Chart:
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
