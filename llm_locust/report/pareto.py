"""``compare --pareto``: tokens/s per user and per GPU of every load of several runs."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llm_locust.core.texts import UNDEFINED
from llm_locust.figures.charts import OperatingPoint, front, operating_points
from llm_locust.figures.text import (
    Column,
    Line,
    Section,
    Table,
    TableRow,
    Tone,
    clean,
    number,
    percent,
    plural,
)
from llm_locust.metrics.question import Prices, Question
from llm_locust.report.analysis import analyse
from llm_locust.report.html.shell import Axis, Chart, Data, Kind, Series, Values, figures, labels, whole_page
from llm_locust.report.inputs import Source

_COLOURS = ("c1", "c2", "c3", "c4", "c5", "c6")
_USER, _GPU = "tokens/s per user", "output tokens/s per GPU"
_HEADS = (
    "run",
    "stage",
    "load",
    "lengths",
    "user_tokens_per_s",
    "gpu_output_tokens_per_s",
    "goodput",
    "is_best",
)


@dataclass(frozen=True, slots=True)
class Pareto:
    """All points of the runs in their order, the best ones marked, and how many loads of each have none."""

    points: tuple[OperatingPoint, ...]
    left_out: dict[str, int]

    @property
    def best(self) -> list[OperatingPoint]:
        """The points that no other one of their lengths is better than, by rising rate of a user."""
        return sorted((p for p in self.points if p.is_best), key=lambda p: p.user_tps)

    @property
    def lengths(self) -> list[str]:
        """The pairs of lengths of sweeps over them; empty text for the points of other runs."""
        return list(dict.fromkeys(p.lengths for p in self.points))


def pareto_of(paths: Sequence[Path], slo: str | None = None, gpus: float | None = None) -> Pareto:
    """The points of each run.

    Args:
        slo: limits that all runs are judged by.
        gpus: of each run; None: as its own options say.

    Raises:
        StoreError: a run cannot be read.
        ValueError: a run without a number of GPUs, or no point at all.
    """
    found: list[OperatingPoint] = []
    left_out: dict[str, int] = {}
    names = labels([clean(path.name or path.resolve().name) for path in paths])
    for path, name in zip(paths, names, strict=True):
        analysis = analyse(Source.of(path), Question(slo=slo))
        of_run = gpus or Prices.of_options(analysis.manifest.options).gpus
        if not of_run:
            raise ValueError(f"{str(path)!r} does not say how many GPUs it had: give --gpus N for all runs")
        points, without = operating_points(name, analysis.summary, of_run)
        found += points
        left_out |= {name: without} if without else {}
    if not found:
        raise ValueError("no load of these runs has both a TPOT and a rate: nothing to draw")
    best: set[int] = set()
    for lengths in dict.fromkeys(point.lengths for point in found):
        places = [i for i, point in enumerate(found) if point.lengths == lengths]
        best |= {places[i] for i in front([found[i] for i in places])}
    return Pareto(tuple(replace(p, is_best=i in best) for i, p in enumerate(found)), left_out)


def sections(found: Pareto) -> list[Section]:
    """A table of all points, the best of them marked."""
    columns = (
        Column("Run", left=True, verbatim=True),
        Column("stage"),
        Column("load"),
        Column("lengths", left=True),
        Column("per user", over="tokens/s"),
        Column("per GPU", over="tokens/s"),
        Column("goodput"),
        Column("", left=True),
    )
    rows = tuple(
        TableRow(
            (
                p.run,
                UNDEFINED if p.stage is None else str(p.stage),
                p.load or UNDEFINED,
                p.lengths,
                number(p.user_tps),
                number(p.gpu_tps),
                percent(p.goodput),
                "best" if p.is_best else "",
            ),
            Tone.GOOD if p.is_best else Tone.PLAIN,
        )
        for p in found.points
    )
    same = " of the same lengths" if any(found.lengths) else ""
    notes = [
        Line(f"best: no other point{same} has as much of both rates, and more of one", Tone.FAINT),
        Line("a user's tokens/s are 1 / median TPOT; the points have no intervals here", Tone.FAINT),
        *(
            Line(f"{name}: {plural(n, 'load')} left out, not a result or without a rate", Tone.WARN)
            for name, n in found.left_out.items()
        ),
    ]
    title = "Tokens/s per user and per GPU"
    return [Section(title, table=Table(columns, rows).without_empty(), notes=tuple(notes), stacked=True)]


def pareto_csv(found: Pareto) -> str:
    """A line for each point; undefined is empty."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(_HEADS)
    for p in found.points:
        writer.writerow((p.run, p.stage, p.load, p.lengths, p.user_tps, p.gpu_tps, p.goodput, p.is_best))
    return sink.getvalue()


def chart(found: Pareto) -> Chart:
    """One line a run and pair of lengths along its loads, and the front over all of each pair."""
    tables, series = [], []
    for i, (run, lengths) in enumerate(dict.fromkeys((p.run, p.lengths) for p in found.points)):
        points = [p for p in found.points if (p.run, p.lengths) == (run, lengths)]
        name = f"{run} {lengths}".rstrip()
        tables.append(_data(name, points))
        series.append(Series(name, _USER, _GPU, _COLOURS[i % len(_COLOURS)], Kind.MARKS, table=i))
    for lengths in found.lengths:
        tables.append(_data(f"best {lengths}".rstrip(), [p for p in found.best if p.lengths == lengths]))
        name = f"best of {lengths or 'all'}"
        series.append(Series(name, _USER, _GPU, "bad", Kind.DASHED, table=len(tables) - 1))
    return Chart(
        id="pareto",
        title="Tokens/s per user and per GPU",
        reading="One point a load; up and to the right is better. Dashed: those that none is better than.",
        data=tuple(tables),
        series=tuple(series),
        x=Axis(_USER),
        y=Axis(_GPU),
        wide=True,
    )


def _data(name: str, points: Sequence[OperatingPoint]) -> Data:
    columns: dict[str, Values] = {
        "load": [p.load for p in points],
        _USER: figures(p.user_tps for p in points),
        _GPU: figures(p.gpu_tps for p in points),
    }
    return Data(name, columns)


def pareto_page(found: Pareto) -> bytes:
    """The page, in UTF-8: the chart and the table, in the look of ``report.html``."""
    drawn = chart(found)
    return whole_page(
        "compare.html.j2",
        {"run": "pareto", "charts": [drawn.payload()]},
        tiles=[],
        title=f"{len({p.run for p in found.points})} runs, per user and per GPU",
        first=[],
        last=sections(found),
        charts=[drawn],
    )
