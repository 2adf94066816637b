"""``profile_export_genai_perf.json`` of GenAI-Perf and AIPerf: its keys, filled from our records.

Times are in milliseconds and of the completed requests of the window. Rates are over the time from the first
request sent to the last one's end.
"""

from typing import Any

import numpy as np

from llm_locust.metrics.requests.latency import user_tps
from llm_locust.metrics.stats.percentiles import ordered
from llm_locust.report.formats.asked import asked_options
from llm_locust.report.formats.completed import Completed, figures
from llm_locust.report.output import shown_json
from llm_locust.report.run.analysis import Analysis

_PLACES = {f"p{percent:.0f}": percent for percent in (1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0)}
_LATENCIES = {"time_to_first_token": "ttft", "inter_token_latency": "tpot", "request_latency": "e2el"}
_LENGTHS = {"input_sequence_length": "input", "output_sequence_length": "output"}


def genai_perf(analysis: Analysis) -> str:
    """The text of the file, one JSON object."""
    completed, counts = Completed(analysis.measured), analysis.summary.requests
    rates, options = completed.rates, asked_options(analysis)
    paces = ordered(user_tps(analysis.measured.c)[completed.ok])
    result = {
        "request_throughput": _mean(rates["requests"], "requests/sec"),
        "request_count": _mean(float(len(completed.ok)), "requests"),
        "error_request_count": _mean(float(counts.failed), "requests"),
        **{key: _statistic(completed.latency_s(metric), "ms", 1e3) for key, metric in _LATENCIES.items()},
        "output_token_throughput": _mean(rates["output"], "tokens/sec"),
        "total_token_throughput": _mean(rates["total"], "tokens/sec"),
        "output_token_throughput_per_user": _statistic(paces, "tokens/sec/user"),
        **{key: _statistic(completed.tokens(side), "tokens") for key, side in _LENGTHS.items()},
        "benchmark_duration": _mean(completed.seconds, "sec"),
        "was_cancelled": bool(analysis.summary.completeness.cut_short),
        "input_config": {
            "endpoint": {"model_names": [analysis.manifest.model], "url": analysis.manifest.host},
            "loadgen": {key: str(value) for key, value in options.items() if value is not None},
        },
    }
    return shown_json(result, indent=2) + "\n"


def _mean(value: float | None, unit: str) -> dict[str, Any] | None:
    return None if value is None or not np.isfinite(value) else {"unit": unit, "avg": value}


def _statistic(ascending: Any, unit: str, scale: float = 1.0) -> dict[str, Any] | None:
    found = figures(ascending, _PLACES, scale)
    if found is None:
        return None
    ranks = {key: found[key] for key in ("min", *_PLACES, "max")}
    return {"unit": unit, "avg": found["mean"], "std": found["std"], **ranks}
