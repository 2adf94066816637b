"""Results in the formats of other benchmarks: GenAI-Perf, InferenceX, MLPerf Endpoints, vLLM."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import numpy as np

from llm_locust.core.batch import Requests
from llm_locust.figures.compat import vllm_bench, vllm_details
from llm_locust.metrics.requests.latency import user_tps
from llm_locust.metrics.stats.censoring import Durations, certified, ordered
from llm_locust.report.analysis import Analysis
from llm_locust.report.formats.completed import Completed, asked_number, asked_options, figures
from llm_locust.report.output import shown_json
from llm_locust.wire.dialects import DIALECTS

# --------------------
# ``profile_export_genai_perf.json`` of GenAI-Perf and AIPerf: its keys, filled from our records.
#
# Times are in milliseconds and of the completed requests of the window. Rates are over the time from the
# first request sent to the last one's end.
# --------------------


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


# --------------------
# The aggregate JSON of InferenceX (InferenceMAX): its keys, filled by vLLM's formulas from our records.
#
# A latency ``*_ms`` of ``vllm bench serve`` is in seconds there, without that ending; a TPOT also as
# interactivity, ``*_intvty``, in tokens/s. What a run does not know of the deployment, such as its
# framework, is null.
# --------------------


_INFERENCEX_PLACES = {"p90": 90.0, "p99": 99.0, "p99_9": 99.9}

#: Facts of the deployment that no run knows; filled in by whoever publishes.
_UNKNOWN = (
    "image",
    "infmax_model_prefix",
    "framework",
    "precision",
    "spec_decoding",
    "disagg",
    "is_multinode",
)

_SHARES = {
    "tput_per_gpu": "total_token_throughput",
    "output_tput_per_gpu": "output_throughput",
}


def inferencex(analysis: Analysis) -> str:
    """The text of the file, one JSON object."""
    options = asked_options(analysis)
    found = vllm_bench(analysis.measured, analysis.requests, _INFERENCEX_PLACES)
    gpus = asked_number(options.get("gpus"))
    result = {
        "hw": options.get("gpu_type"),
        "conc": asked_number(options.get("max_in_flight") or options.get("num_users")),
        "model": analysis.manifest.model,
        **dict.fromkeys(_UNKNOWN),
        "num_gpus": gpus,
        "isl": asked_number(options.get("input_tokens")),
        "osl": asked_number(options.get("output_tokens")),
        **{key: _per_gpu(found[total], gpus) for key, total in _SHARES.items()},
        "input_tput_per_gpu": _per_gpu(_inputs_per_s(found), gpus),
        **_in_seconds(found),
    }
    return shown_json(result, indent=2) + "\n"


def _in_seconds(found: dict[str, Any]) -> dict[str, float | None]:
    told: dict[str, float | None] = {}
    for key, value in found.items():
        if not key.endswith("_ms"):
            continue
        name = key.removesuffix("_ms")
        told[name] = None if value is None else value / 1e3
        if name.endswith("tpot"):
            told[name.replace("tpot", "intvty")] = 1e3 / value if value else None
    return told


def _inputs_per_s(found: dict[str, Any]) -> float | None:
    total, output = found["total_token_throughput"], found["output_throughput"]
    return None if total is None or output is None else total - output


def _per_gpu(value: float | None, gpus: float | None) -> float | None:
    return value / gpus if value is not None and gpus else None


# --------------------
# ``result_summary.json`` of MLPerf Endpoints: its keys, filled from our records. Not an official result.
#
# Times are in nanoseconds and of the completed requests of the window. ``early_stopping_percentiles`` are
# the upper bounds of :mod:`llm_locust.metrics.stats.censoring`; too few samples for a bound give null.
# --------------------


_MLPERF_PLACES = {str(percent): percent for percent in (50.0, 75.0, 80.0, 90.0, 95.0, 97.0, 99.0, 99.9)}
_MLPERF_LATENCIES = {"ttft": "ttft", "tpot": "tpot", "latency": "e2el"}
_MLPERF_LENGTHS = {"input_sequence_lengths": "input", "output_sequence_lengths": "output"}

#: Bins of a histogram, equal in width from the least to the largest value.
_BINS = 20


def mlperf(analysis: Analysis) -> str:
    """The text of the file, one JSON object."""
    completed, counts = Completed(analysis.measured), analysis.summary.requests
    manifest, whole = analysis.manifest, analysis.summary.completeness
    options = asked_options(analysis)
    result = {
        "version": manifest.versions.get("llm-locust"),
        "git_sha": None,
        "test_started_at": manifest.started_ns,
        "n_samples_issued": counts.scheduled + (counts.lost or 0),
        "n_samples_completed": len(completed.ok),
        "n_samples_failed": counts.failed + counts.cancelled + (counts.lost or 0),
        "duration_ns": None if completed.seconds is None else round(completed.seconds * 1e9),
        "state": "complete" if whole.complete else "incomplete",
        "complete": whole.complete,
        **{key: _metric(completed.latency_s(metric), 1e9) for key, metric in _MLPERF_LATENCIES.items()},
        **{key: _metric(completed.tokens(side), 1.0) for key, side in _MLPERF_LENGTHS.items()},
        "qps": completed.rates["requests"],
        "tps": completed.rates["output"],
        "run_config": {key: str(value) for key, value in options.items() if value is not None},
    }
    return shown_json(result, indent=2) + "\n"


def _metric(ascending: Any, scale: float) -> dict[str, Any] | None:
    """The block of one figure; None without samples."""
    found = figures(ascending, _MLPERF_PLACES, scale)
    if found is None:
        return None
    return {
        "total": found["mean"] * found["n"],
        "min": found["min"],
        "max": found["max"],
        "median": found["50.0"],
        "avg": found["mean"],
        "std_dev": found["std"],
        "percentiles": {key: found[key] for key in _MLPERF_PLACES},
        "early_stopping_percentiles": {
            key: _bound(ascending, percent, scale) for key, percent in _MLPERF_PLACES.items()
        },
        "histogram": _histogram(ascending, scale),
    }


def _bound(ascending: Any, percent: float, scale: float) -> float | None:
    bound = certified(Durations(ascending), percent)
    return bound * scale if math.isfinite(bound) else None


def _histogram(ascending: Any, scale: float) -> dict[str, Any] | None:
    """Counts between edges; None where not every value was kept."""
    if not isinstance(ascending, np.ndarray):
        return None
    counts, edges = np.histogram(ascending, bins=_BINS)
    low, high = edges[:-1] * scale, edges[1:] * scale
    return {
        "buckets": [list(pair) for pair in zip(low.tolist(), high.tolist(), strict=True)],
        "counts": counts.tolist(),
    }


# --------------------
# The result file of ``vllm bench serve``: its keys, filled by its formulas from our records.
#
# What differs from a file that vLLM wrote: requests are those scheduled in the window, which has no warm-
# up; the duration is from the first of them sent to the last one's end; times are the kernel's stamps where
# there are any; and what vLLM writes as 0 for want of a value is null.
# --------------------


#: What vLLM tells without being asked for others.
DEFAULT_PERCENTILES = {"p99": 99.0}


def vllm_json(
    analysis: Analysis, percentiles: Mapping[str, float] | None = None, *, detailed: bool = False
) -> str:
    """The text of the file, one JSON object.

    Args:
        percentiles: of each latency, key to percent; p99 without it.
        detailed: with the lists of every request, as ``--save-detailed`` of vLLM.
    """
    measured = analysis.measured
    figures = vllm_bench(measured, analysis.requests, percentiles or DEFAULT_PERCENTILES)
    result = {**_setup(analysis), **figures}
    if detailed:
        details = asdict(vllm_details(measured, analysis.requests))
        result |= {**details, "generated_texts": [""] * len(details["errors"])}
    return shown_json(result, indent=2) + "\n"


def _setup(analysis: Analysis) -> dict[str, Any]:
    manifest, requests = analysis.manifest, analysis.requests
    began = datetime.fromtimestamp(manifest.started_ns // 1_000_000_000, UTC)
    backend = _backend(requests)
    return {
        "date": began.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": backend,
        "backend": backend,
        "label": manifest.name,
        "model_id": manifest.model,
        "tokenizer_id": manifest.options.get("tokenizer") or manifest.model,
        "num_prompts": None,  # its place in the file; the figures have it
        **_traffic(asked_options(analysis), manifest.open_loop),
    }


def _backend(requests: Requests) -> str:
    """vLLM's names of the endpoints that were asked, our own where it has none."""
    asked = sorted({name for part in requests.parts(["endpoint"]) for name in part.labels("endpoint").names})
    return ",".join(DIALECTS[name].vllm_backend or name if name in DIALECTS else name for name in asked)


def _traffic(options: Mapping[str, Any], open_loop: bool) -> dict[str, Any]:
    """The load in vLLM's words. Its burstiness is the gamma distribution's shape, 1 / CV²; a closed loop
    is an infinite rate with bounded concurrency. Null for what it has no word for: a profile, a trace."""
    if not open_loop:
        return {"request_rate": "inf", "burstiness": 1.0, "max_concurrency": options.get("num_users")}
    arrival = str(options.get("arrival") or "poisson")
    return {
        "request_rate": asked_number(options.get("request_rate")),
        "burstiness": _burstiness(arrival),
        "max_concurrency": options.get("max_in_flight"),
    }


def _burstiness(arrival: str) -> float | str | None:
    name, _, parameter = arrival.partition(":")
    cv = {"poisson": 1.0, "constant": 0.0, "gamma": asked_number(parameter)}.get(name)
    return None if cv is None else 1 / cv**2 if cv else "inf"
