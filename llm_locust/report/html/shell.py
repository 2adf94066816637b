"""What every page is made with: templates, files of our own, and what keeps foreign text text."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from itertools import groupby
from typing import Any

import msgspec
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from llm_locust.figures.section import Column
from llm_locust.report.plotly import packed_plotly, plotly

_PACKAGE = "llm_locust.report.html"

#: What would end a script block, or be no text of JavaScript, as an escape that JSON has.
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


@cache
def environment(*packages: str) -> Environment:
    """Templates of ``packages``, then the report's. What is put in is escaped, and has to be there."""
    made = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in (*packages, _PACKAGE)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["heads"] = _heads
    return made


def whole_page(template: str, payload: object, *packages: str, drawn: bool = True, **values: Any) -> bytes:
    """A page that loads nothing, in UTF-8: a template and its values, with the pages' style and scripts.

    Scripts of other origins, and any but the page's own, are refused by its content security policy, so that
    text of a server that found a way into the markup could still not run.

    Args:
        payload: JSON for the scripts.
        packages: as those of :func:`environment`.
        drawn: whether there are charts, for which plotly is needed.
    """
    charts = _own("charts.js")
    # plotly is packed in the page, and its own script unpacks it: a page is a quarter of the size.
    packed = base64.b64encode(packed_plotly()).decode() if drawn else ""
    page = (
        environment(*packages)
        .get_template(template)
        .render(
            policy=_policy([*([plotly()] if drawn else []), charts]),
            # The package's own files.
            style=Markup(_own("style.css").decode()),
            plotly=Markup(packed),
            script=Markup(charts.decode()),
            payload=_script_json(payload),
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


def _script_json(value: object) -> Markup:
    """JSON for a script block of a data type: no text in it can end the block or begin a comment."""
    return Markup(msgspec.json.encode(value).decode().translate(_ESCAPES))


def _heads(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """The common heads with the number of columns that each stands over."""
    spans: list[tuple[str, int]] = []
    for over, group in groupby(columns, key=lambda column: column.over):
        width = len(list(group))
        spans += [(over, width)] if over else [("", 1)] * width
    return spans
