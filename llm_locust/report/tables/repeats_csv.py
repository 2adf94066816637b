"""``repeats.csv``: each load that was measured more than once, with its figures over the repeats."""

from typing import Any

from llm_locust.metrics.summary_types.stages import Repeats
from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.report.tables.csv_text import csv_text


def repeats_csv(summary: Summary) -> str | None:
    """A row a load, with the mean of each figure and the ends of its interval; None without repeats."""
    if not summary.repeats:
        return None
    return csv_text([_row(load) for load in summary.repeats])


def _row(load: Repeats) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kind": load.kind,
        "asked": load.asked,
        "lengths": load.pair,
        "repeats": len(load.stages),
        "results": load.results,
    }
    for name, over in load.figures.items():
        low, high = over.ci95 or (None, None)
        found |= {name: over.mean, f"{name}_low": low, f"{name}_high": high}
    return found
