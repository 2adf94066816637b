"""A comparison as one HTML page that loads nothing, in the look of ``report.html``."""

from markupsafe import Markup
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from llm_locust.report.compare.charts import charts
from llm_locust.report.compare.outcome import ComparedRuns
from llm_locust.report.compare.tables import FIGURES, sections
from llm_locust.report.html.shell import environment, own, policy, script_json


def page(outcome: ComparedRuns) -> str:
    """The page: runs, warnings, gates, verdict, charts, tables.

    Its content security policy lets only its own two scripts run, so that a text of a server or a user
    that found a way into the markup could not.
    """
    parts, drawn = sections(outcome), charts(outcome)
    scripts = [get_plotlyjs(), own("charts.js")]
    names = [run.label for run in outcome.runs]
    return (
        environment("llm_locust.report.compare")
        .get_template("compare.html.j2")
        .render(
            title=f"{names[0]} and {names[1]}" if outcome.is_pair else f"{len(names)} runs",
            first=[part for part in parts if part.chapter != FIGURES],
            last=[part for part in parts if part.chapter == FIGURES],
            charts=drawn,
            policy=policy(scripts),
            style=Markup(own("style.css")),  # the package's own file
            scripts=[Markup(script) for script in scripts],  # the packages' own files
            payload=script_json({"run": "comparison", "charts": [chart.payload() for chart in drawn]}),
        )
    )
