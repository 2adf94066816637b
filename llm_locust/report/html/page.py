"""The page: templates filled in, everything that it needs inside."""

from collections.abc import Sequence

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest
from llm_locust.metrics.charts import RunCharts, run_charts
from llm_locust.metrics.charts.distributions import LEVELS
from llm_locust.metrics.charts.relations import MOST_DRAWN
from llm_locust.metrics.charts.servers import ServerCurves, axis_window, server_curves
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.report.html import overview
from llm_locust.report.html.chapters import Chapter, chapters
from llm_locust.report.html.shell import whole_page
from llm_locust.report.inputs.scraped import Scraped
from llm_locust.report.sections.contents import heading
from llm_locust.report.sections.findings import boxes
from llm_locust.report.sections.headline import Headline, verdict
from llm_locust.report.text import clean, count, seconds
from llm_locust.report.uncertainty import cut_note


def html_report(
    requests: Requests,
    manifest: Manifest,
    summary: Summary,
    measured: Measured,
    scraped: Scraped | None = None,
    found: Headline | None = None,
) -> bytes:
    """The whole report as one HTML page that loads nothing, in UTF-8.

    Args:
        summary: what was made of the same requests.
        measured: what :func:`~llm_locust.metrics.measured.measure` gave for them, with the same limits and
            window.
        scraped: what its servers said of themselves, where they were asked.
        found: the verdict, if the caller knows more than the summary says.
    """
    found = found or verdict(summary)
    counted = summary.requests
    missing = (counted.lost or 0) + (counted.unsent or 0) + counted.stuck
    run = run_charts(requests, manifest, measured, missing)
    contents = chapters(run, manifest, summary, _curves(run, measured, scraped))
    charts = [chart for chapter in contents for chart in chapter.charts]
    latencies = overview.latencies(summary, run.measured_from)
    return whole_page(
        "page.html.j2",
        {"run": clean(manifest.id), "charts": [chart.payload() for chart in charts]},
        drawn=bool(charts),
        head=heading(summary),
        alarms=boxes(found.findings),
        tiles=overview.tiles(summary, found),
        slo_line=overview.slo_line(summary, run.measured_from),
        latencies=latencies,
        latency_notes=overview.meaning(latencies),
        places=[head for _, head in overview.PLACES],
        facts=overview.facts(summary),
        cut_note=cut_note(counted.cut_share),
        chapters=contents,
        made_of=_made_of(run, contents),
        version=clean(manifest.versions.get("llm-locust", "")),
    )


def _curves(run: RunCharts, m: Measured, scraped: Scraped | None) -> ServerCurves | None:
    if scraped is None:
        return None
    series = scraped.series(axis_window(run.axis, m.c), run.axis.bins)
    return server_curves(series, run.axis, m.c)


def _made_of(run: RunCharts, contents: Sequence[Chapter]) -> str:
    """What of the records is on the page, in words."""
    text = (
        f"Made of {count(run.requests)} records. Tables and percentiles are of all requests in the window. "
        f"Charts over time are of the whole run, in {count(run.axis.bins)} spans of "
        f"{seconds(run.axis.width_s)}; distributions are drawn at {len(LEVELS)} levels; scatter plots show a "
        f"random sample of at most {count(MOST_DRAWN)} requests, the same each time."
    )
    if run.itl_relative_error:
        text += f" ITL percentiles were counted in bins, within {100 * run.itl_relative_error:.2f} %."
    return text
