"""A comparison as one HTML page that loads nothing, in the look of ``report.html``."""

from llm_locust.report.compare.charts import charts
from llm_locust.report.compare.outcome import ComparedRuns
from llm_locust.report.compare.tables import FIGURES, sections
from llm_locust.report.html.shell import whole_page


def page(outcome: ComparedRuns) -> bytes:
    """The page, in UTF-8: runs, warnings, gates, verdict, charts, tables."""
    parts, drawn = sections(outcome), charts(outcome)
    names = [run.label for run in outcome.runs]
    return whole_page(
        "compare.html.j2",
        {"run": "comparison", "charts": [chart.payload() for chart in drawn]},
        "llm_locust.report.compare",
        title=f"{names[0]} and {names[1]}" if outcome.is_pair else f"{len(names)} runs",
        first=[part for part in parts if part.chapter != FIGURES],
        last=[part for part in parts if part.chapter == FIGURES],
        charts=drawn,
    )
