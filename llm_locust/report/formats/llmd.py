"""The Benchmark Report 0.2.1 of llm-d-benchmark, as YAML.

Figures are of the completed requests of the window. What a run does not know is left out, such as the stack
that served it. Schema: ``llmdbenchmark/analysis/benchmark_report`` of llm-d/llm-d-benchmark.
"""

from datetime import UTC, datetime
from typing import Any

import yaml

from llm_locust.report.analysis import Analysis
from llm_locust.report.formats.completed import Completed, asked_number, asked_options, asked_stage, figures

VERSION = "0.2.1"

#: The schema's names of percentiles.
_PLACES = {
    "p0p1": 0.1,
    "p1": 1.0,
    "p5": 5.0,
    "p10": 10.0,
    "p25": 25.0,
    "p50": 50.0,
    "p75": 75.0,
    "p90": 90.0,
    "p95": 95.0,
    "p99": 99.0,
    "p99p9": 99.9,
}
_LATENCIES = {
    "time_to_first_token": ("ttft", "ms"),
    "time_per_output_token": ("tpot", "ms/token"),
    "inter_token_latency": ("itl", "ms/token"),
    "request_latency": ("e2el", "ms"),
}
_RATES = {"input_token_rate": "input", "output_token_rate": "output", "total_token_rate": "total"}


def llmd(analysis: Analysis) -> str:
    """The text of the file."""
    completed = Completed(analysis.measured)
    report = {
        "version": VERSION,
        "run": _run(analysis),
        "scenario": {"load": _load(analysis, completed)},
        "results": {"request_performance": {"aggregate": _aggregate(analysis, completed)}},
    }
    text: str = yaml.safe_dump(_known(report), sort_keys=False, allow_unicode=True)
    return text


def _known(value: Any) -> Any:
    """The same without keys whose value is unknown."""
    if not isinstance(value, dict):
        return value
    return {key: _known(each) for key, each in value.items() if each is not None}


def _run(analysis: Analysis) -> dict[str, Any]:
    manifest, window = analysis.manifest, analysis.measured.window
    note = manifest.options.get("note")
    return {
        "uid": manifest.id,
        "time": {
            "start": _iso(window.start_ns),
            "end": _iso(window.end_ns),
            "duration": f"PT{window.seconds:.6f}S",
        },
        "description": str(note) if note else None,
        "keywords": ["llm-locust", manifest.name],
    }


def _iso(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _load(analysis: Analysis, completed: Completed) -> dict[str, Any] | None:
    """What was asked; None if no input length is known, which the schema demands."""
    inputs = _lengths(completed, "input")
    if inputs is None:
        return None
    manifest, options, stage = analysis.manifest, asked_options(analysis), asked_stage(analysis)
    return {
        "metadata": {"cfg_id": manifest.scenario},
        "standardized": {
            "tool": "llm-locust",
            "tool_version": manifest.versions.get("llm-locust", "unknown"),
            "parallelism": max(1, len(manifest.workers)),
            "source": "sampled" if options.get("dataset") else "random",
            "stage": 0 if stage is None else stage.number,
            "input_seq_len": inputs,
            "output_seq_len": _lengths(completed, "output"),
            "rate_qps": _positive(options.get("request_rate")),
            "concurrency": _positive(options.get("num_users")),
        },
        "native": {"args": {key: str(value) for key, value in options.items() if value is not None}},
    }


def _positive(value: object) -> float | None:
    """A number above 0; None of a profile such as ``ramp:1..10,60s``."""
    number = asked_number(value)
    return number if number is not None and number > 0 else None


def _lengths(completed: Completed, side: str) -> dict[str, Any] | None:
    """Lengths as they were counted, whatever law they were drawn from."""
    found = figures(completed.tokens(side), {})
    if found is None:
        return None
    return {
        "distribution": "other",
        "value": found["mean"],
        "std_dev": found["std"],
        "min": int(found["min"]),
        "max": max(1, int(found["max"])),
    }


def _aggregate(analysis: Analysis, completed: Completed) -> dict[str, Any]:
    counts = analysis.summary.requests
    lost = counts.lost or 0
    return {
        "requests": {
            "total": counts.scheduled + lost,
            "failures": counts.failed,
            "incomplete": counts.cancelled + lost,
            "input_length": _statistic(completed.tokens("input"), "count"),
            "output_length": _statistic(completed.tokens("output"), "count"),
        },
        "latency": {
            key: _statistic(completed.latency_s(metric), unit, 1e3)
            for key, (metric, unit) in _LATENCIES.items()
        },
        "throughput": {
            **{key: _rate(completed.rates[side], "tokens/s") for key, side in _RATES.items()},
            "request_rate": _rate(completed.rates["requests"], "queries/s"),
        },
    }


def _statistic(ascending: Any, units: str, scale: float = 1.0) -> dict[str, Any] | None:
    found = figures(ascending, _PLACES, scale)
    if found is None:
        return None
    return {
        "units": units,
        "mean": found["mean"],
        "stddev": found["std"],
        **{key: found[key] for key in ("min", *_PLACES, "max")},
    }


def _rate(value: float | None, units: str) -> dict[str, Any] | None:
    return None if value is None else {"units": units, "mean": value}
