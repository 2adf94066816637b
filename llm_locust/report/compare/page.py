"""A comparison as one HTML page that loads nothing, in the look of ``report.html``."""

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from itertools import groupby
from typing import Any

import msgspec
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from llm_locust.report.compare.charts import charts
from llm_locust.report.compare.outcome import Outcome
from llm_locust.report.compare.tables import sections
from llm_locust.report.section import Column

_REPORT = "llm_locust.report.html"

#: What would end a script block, or be no text of JavaScript, as an escape that JSON has.
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}

#: Sections that stand behind the charts.
_LAST = frozenset({"Figures", "Over time", "Changes"})


def page(outcome: Outcome) -> str:
    """The page: runs, warnings, gates, verdict, charts, tables.

    Its content security policy lets only its own two scripts run, so that a text of a server or a user
    that found a way into the markup could not.
    """
    parts, drawn = sections(outcome), charts(outcome)
    scripts = [get_plotlyjs(), _own("charts.js")]
    names = [run.label for run in outcome.runs]
    return (
        _environment()
        .get_template("compare.html.j2")
        .render(
            title=f"{names[0]} and {names[1]}" if outcome.is_pair else f"{len(names)} runs",
            first=[part for part in parts if part.title not in _LAST],
            last=[part for part in parts if part.title in _LAST],
            charts=drawn,
            policy=_policy(scripts),
            style=Markup(_own("style.css")),  # the package's own file
            scripts=[Markup(script) for script in scripts],  # the packages' own files
            payload=_script_json({"run": "comparison", "charts": [chart.payload() for chart in drawn]}),
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("llm_locust.report.compare"), PackageLoader(_REPORT)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["heads"] = _heads
    return environment


def _heads(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """The common heads with the number of columns that each stands over."""
    return [(over, len(list(group))) for over, group in groupby(columns, key=lambda column: column.over)]


def _own(name: str) -> str:
    return (resources.files(_REPORT) / "templates" / name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str]) -> str:
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _script_json(value: Any) -> Markup:
    """JSON for a script block of a data type: no text in it can end the block or begin a comment."""
    return Markup(msgspec.json.encode(value).decode().translate(_ESCAPES))
