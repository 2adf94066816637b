"""``stages.csv``: the table of stages with a column for each figure and each end of its interval."""

from collections.abc import Iterable
from typing import Any

from llm_locust.metrics.catalogue import shown_in
from llm_locust.metrics.latency_metric import View
from llm_locust.metrics.summary_types.search import StagePrefix
from llm_locust.metrics.summary_types.stages import Stage, StageFigures
from llm_locust.report.tables.csv_text import csv_text

_PLACES = ("p50", "p90", "p99")
_METRICS = tuple(metric.key for metric in shown_in(View.GROUPS))


def stages_csv(stages: Iterable[Stage] | None) -> str | None:
    """The stages as CSV text with a head line; None without any. Undefined is an empty cell."""
    rows = [_row(stage) for stage in stages or ()]
    return csv_text(rows) if rows else None


def _row(stage: Stage) -> dict[str, Any]:
    window = stage.window
    found: dict[str, Any] = {
        "stage": stage.number,
        "kind": stage.kind,
        "asked": stage.asked,
        "offered": stage.offered,
        "repeat": stage.repeat,
        "lengths": stage.pair,
        "input_tokens_p50": None if stage.lengths is None else stage.lengths.input_tokens_p50,
        "output_tokens_p50": None if stage.lengths is None else stage.lengths.output_tokens_p50,
        **({} if stage.prefix is None else _prefix(stage.prefix)),
        "repeated_as": stage.repeated_as,
        "is_result": stage.is_result,
        "steady": stage.steady,
        "all_failed": stage.all_failed,
        "saturated": stage.saturated,
        "client": stage.client,
        "reasons": "; ".join(stage.reasons),
        "ended_early": None if stage.until is None else stage.until.is_early,
        "start_s": None if window is None else window.start_s,
        "seconds": None if window is None else window.seconds,
    }
    return found | ({} if stage.figures is None else _figures(stage.figures))


def _prefix(part: StagePrefix) -> dict[str, Any]:
    return {
        "prefix_asked": part.asked,
        "prefix_tokens": part.tokens,
        "prefix_possible": part.possible,
        "prefix_achieved": part.achieved,
        "prefix_source": part.source,
    }


def _figures(part: StageFigures) -> dict[str, Any]:
    low, high = part.goodput.intervals().get("ratio") or (None, None)
    found: dict[str, Any] = {
        "requests": part.requests.scheduled,
        "ok": part.requests.ok,
        "failed": part.requests.failed,
        "error_rate": part.requests.error_rate,
        "requests_per_s": part.throughput.requests_per_s,
        "output_tokens_per_s": part.throughput.output_tokens_per_s,
        "inputs_per_s": part.throughput.inputs_per_s,
        "goodput": part.goodput.ratio,
        "goodput_low": low,
        "goodput_high": high,
        "good_requests_per_s": part.goodput.requests_per_s,
    }
    for metric in _METRICS:
        for place in _PLACES:
            stats = part.latency_ms[metric]
            low, high = stats.intervals().get(place) or (None, None)
            name = f"{metric}_{place}_ms"
            found |= {name: stats.figure(place), f"{name}_low": low, f"{name}_high": high}
    return found
