"""What every page is made with: templates, scripts, charts as data, and what keeps foreign text text."""

import base64
import gzip
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import resources
from itertools import groupby
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from msgspec import to_builtins

from llm_locust.figures.text import Column

_PACKAGE = "llm_locust.report.html"

#: What would end a script block, or be no text of JavaScript, as an escape that JSON has.
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


@cache
def _templates() -> Environment:
    """What is put in is escaped, and has to be there."""
    made = Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["heads"] = _heads
    return made


def whole_page(template: str, payload: object, *, drawn: bool = True, **values: Any) -> bytes:
    """A page that loads nothing, in UTF-8: a template and its values, with the pages' style and scripts.

    Scripts of other origins, and any but the page's own, are refused by its content security policy, so that
    text of a server that found a way into the markup could still not run.

    Args:
        payload: JSON for the scripts.
        drawn: whether there are charts, for which plotly is needed.
    """
    charts = _own("charts.js")
    # plotly is packed in the page, and its own script unpacks it: a page is a quarter of the size.
    packed = base64.b64encode(packed_plotly()).decode() if drawn else ""
    page = (
        _templates()
        .get_template(template)
        .render(
            policy=_policy([*([plotly()] if drawn else []), charts]),
            # The package's own files.
            style=Markup(_own("style.css").decode()),
            plotly=Markup(packed),
            script=Markup(charts.decode()),
            # For a script block of a data type: no text in it can end the block or begin a comment.
            payload=Markup(msgspec.json.encode(payload).decode().translate(_ESCAPES)),
            **values,
        )
    )
    return page.encode()


def _own(name: str) -> bytes:
    """A file that lies beside the report's templates."""
    return (resources.files(_PACKAGE) / "templates" / name).read_bytes()


def _policy(scripts: Iterable[bytes]) -> str:
    """Only these scripts run, and nothing is fetched from anywhere.

    Styles may be inline, because plotly sets them; images may be data, for its picture of a chart.
    """
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'" for script in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _heads(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """The common heads with the number of columns that each stands over."""
    spans: list[tuple[str, int]] = []
    for over, group in groupby(columns, key=lambda column: column.over):
        width = len(list(group))
        spans += [(over, width)] if over else [("", 1)] * width
    return spans


@cache
def packed_plotly() -> bytes:
    """The script that draws the charts of all pages, packed by gzip: plotly.js's cartesian bundle.

    It has every kind of trace that a chart here uses (scatter, bar, heatmap), in a third of the whole size.
    ``make plotly`` fetches it. Its licence, MIT, lies beside it.
    """
    return (resources.files("llm_locust.report") / "plotly/plotly-cartesian.min.js.gz").read_bytes()


def plotly() -> bytes:
    """The script itself: 1.5 MB of UTF-8."""
    return gzip.decompress(packed_plotly())


# --- A chart as data: columns that are drawn, and that the page hands out as CSV.
#
# How it is drawn is in ``templates/charts.js``; no colour and no size is said here, so that the same
# chart fits a dark page, a phone and a sheet of paper.


Values = list[float | None] | list[str]

_DIGITS = 5


class Kind(StrEnum):
    """How a series is drawn. ``HEAT`` takes every column but the first as one row of cells.

    ``BOUND`` is an end of an interval: dashed, and in no legend.
    """

    LINE = "line"
    DASHED = "dashed"
    BOUND = "bound"
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


def figures(values: Iterable[float | None], scale: float = 1.0) -> list[float | None]:
    """Values times ``scale`` to five significant digits; what is undefined or infinite is None."""
    return [None if value is None else _figure(float(value) * scale) for value in values]


def _figure(value: float) -> float | None:
    if not math.isfinite(value):
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
