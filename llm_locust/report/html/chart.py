"""A chart as data: columns that are drawn, and that the page hands out as CSV.

How it is drawn is in ``templates/charts.js``; no colour and no size is said here, so that the same
chart fits a dark page, a phone and a sheet of paper.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from msgspec import to_builtins

from llm_locust.figures.text import is_defined

Values = list[float | None] | list[str]

_DIGITS = 5


class Kind(StrEnum):
    """How a series is drawn. ``HEAT`` takes every column but the first as one row of cells."""

    LINE = "line"
    DASHED = "dashed"
    POINTS = "points"
    MARKS = "marks"
    STACKED = "stacked"
    TIMELINE = "timeline"
    HEAT = "heat"


@dataclass(frozen=True, slots=True)
class Data:
    """A table with equally long columns, by their heads."""

    name: str
    columns: Mapping[str, Values]


@dataclass(frozen=True, slots=True)
class Series:
    """Two columns of one of the chart's tables. ``colour`` names a variable of the style sheet."""

    name: str
    x: str
    y: str
    colour: str
    kind: Kind = Kind.LINE
    table: int = 0


@dataclass(frozen=True, slots=True)
class Axis:
    """``log_choice`` gives the reader a button. ``most`` ends a linear axis there."""

    title: str
    log: bool = False
    log_choice: bool = False
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Heat:
    """``levels``: what each row of cells stands for. ``log``: cells are counts over decades."""

    levels: list[float | None]
    title: str
    log: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A limit: a line across the chart at a value of ``axis`` (``x`` or ``y``)."""

    axis: str
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """``title`` says quantity and unit, ``reading`` in one line how to read it, ``notes`` what it says.

    ``bands`` are spans of x that the figures of the run leave out.
    """

    id: str
    title: str
    reading: str
    data: tuple[Data, ...]
    series: tuple[Series, ...]
    x: Axis
    y: Axis
    heat: Heat | None = None
    bands: tuple[tuple[float, float], ...] = ()
    marks: tuple[Mark, ...] = ()
    notes: tuple[str, ...] = field(default=())
    wide: bool = False

    def payload(self) -> dict[str, Any]:
        """What the page's script draws it from."""
        made: dict[str, Any] = to_builtins(self)
        return made


def figures(values: Iterable[float], scale: float = 1.0) -> list[float | None]:
    """Values times ``scale`` to five significant digits; what is undefined or infinite is None."""
    return [_figure(float(value) * scale) for value in values]


def known(values: Sequence[float | None], scale: float = 1.0) -> Values:
    """Values as :func:`figures` has them; None is undefined."""
    return figures((math.nan if value is None else value for value in values), scale)


def _figure(value: float) -> float | None:
    if not is_defined(value) or math.isinf(value):
        return None
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded


def labels(texts: Sequence[str]) -> list[str]:
    """Texts, told apart where two are alike: an axis of names would put those in one place."""
    seen: dict[str, int] = {}
    found = []
    for text in texts:
        seen[text] = seen.get(text, 0) + 1
        found.append(text if seen[text] == 1 else f"{text} ({seen[text]})")
    return found
