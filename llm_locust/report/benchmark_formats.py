"""Results in the formats of other benchmarks and tools, filled from our records.

GenAI-Perf, InferenceX, MLPerf Endpoints, vLLM, llm-d and NVIDIA Dynamo. Their figures are of the completed
requests: those of the window that ended ok.
"""

import io
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np
import yaml

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import StageFacts
from llm_locust.figures.compat import benchmark_seconds, vllm_bench, vllm_details
from llm_locust.figures.stages import Stage, touching
from llm_locust.metrics.columns import Floats, Rows
from llm_locust.metrics.measured import Measured, measure
from llm_locust.metrics.question import PLAIN
from llm_locust.metrics.requests.latency import user_tps
from llm_locust.metrics.stats.censoring import Ascending, Durations, certified, ordered, summarise_ascending
from llm_locust.metrics.window import Population, stage_window
from llm_locust.report.analysis import Analysis
from llm_locust.report.output import shown_json
from llm_locust.wire.dialects import DIALECTS

# --- What was asked of a run, as the files of other tools say it


def asked_options(analysis: Analysis) -> dict[str, Any]:
    """The options of the run, with the load of the only stage of its requests, and the report's GPUs."""
    options, stage = dict(analysis.manifest.options), asked_stage(analysis)
    if stage is not None:
        name, asked = (
            ("num_users", int(stage.asked)) if stage.kind == "users" else ("request_rate", stage.asked)
        )
        options[name] = asked
    cost = analysis.summary.cost
    if cost is not None and cost.prices.gpus is not None:
        options["gpus"] = cost.prices.gpus
    return options


def asked_stage(analysis: Analysis) -> StageFacts | None:
    """The stage that all requests are of; None if they are of several, or of a run without stages."""
    manifest = analysis.manifest
    if not manifest.stages:
        return None
    numbers = {
        int(number)
        for part in analysis.requests.parts(["stage"])
        for number in np.unique(part.floats("stage"))
        if not np.isnan(number)
    }
    found = [stage for stage in manifest.stages if stage.number in numbers]
    return found[0] if len(found) == 1 else None


def asked_number(value: object) -> float | None:
    """The value of an option that is a number; None of a distribution or a profile."""
    try:
        return float(str(value))
    except ValueError:
        return None


@dataclass(frozen=True)
class Completed:
    """Figures of completed requests. Requests that were given up are in none of them, unlike in a report."""

    m: Measured

    @cached_property
    def population(self) -> Population:
        return self.m.population(np.arange(len(self.m.c)))

    @property
    def ok(self) -> Rows:
        return self.population.ok

    @cached_property
    def seconds(self) -> float | None:
        """From the first request sent to the last one's end; None without requests."""
        return benchmark_seconds(self.m.c, self.population.judged)

    def latency_s(self, metric: str) -> Floats | Ascending:
        """A latency of the catalogue in seconds, ascending."""
        return self.m.gaps.ascending() if metric == "itl" else ordered(self.m.values[metric][self.ok])

    def tokens(self, side: str) -> Floats:
        """Numbers of input or output tokens that are known, ascending."""
        counts = self.m.c.input_tokens if side == "input" else self.m.c.output_tokens
        return ordered(counts[self.ok])

    def per_second(self, amount: float) -> float | None:
        return amount / self.seconds if self.seconds else None

    @cached_property
    def rates(self) -> dict[str, float | None]:
        """Per second of :attr:`seconds`: requests, and input, output and all tokens. None if unknown."""
        inputs, outputs = (self.tokens(side) for side in ("input", "output"))
        n, amounts = len(self.ok), (float(np.sum(inputs)), float(np.sum(outputs)))
        is_counted = [len(tokens) == n for tokens in (inputs, outputs)]
        return {
            "requests": self.per_second(n),
            "input": self.per_second(amounts[0]) if is_counted[0] else None,
            "output": self.per_second(amounts[1]) if is_counted[1] else None,
            "total": self.per_second(sum(amounts)) if all(is_counted) else None,
        }


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of one figure; ``ranks`` has ``min``, percentiles by the keys that were asked for, and ``max``."""

    n: int
    mean: float
    std: float
    ranks: dict[str, float]

    @classmethod
    def of(
        cls, ascending: Floats | Ascending, places: Mapping[str, float], scale: float = 1.0
    ) -> "Statistics | None":
        """None without samples."""
        if not len(ascending):
            return None
        found = summarise_ascending(ascending, scale=scale, places=places)
        ranks = {key: found[key] for key in ("min", *places, "max")}
        return cls(found["n"], found["mean"], found["std"], ranks)


# --------------------
# ``profile_export_genai_perf.json`` of GenAI-Perf and AIPerf: its keys, filled from our records.
#
# Times are in milliseconds and of the completed requests of the window. Rates are over the time from the
# first request sent to the last one's end.
# --------------------


_GENAI_PLACES = {
    f"p{percent:.0f}": percent for percent in (1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0)
}
_GENAI_LATENCIES = {"time_to_first_token": "ttft", "inter_token_latency": "tpot", "request_latency": "e2el"}
_GENAI_LENGTHS = {"input_sequence_length": "input", "output_sequence_length": "output"}


def genai_perf(analysis: Analysis) -> str:
    """The text of the file, one JSON object."""
    completed, counts = Completed(analysis.measured), analysis.summary.requests
    rates, options = completed.rates, asked_options(analysis)
    paces = ordered(user_tps(analysis.measured.c)[completed.ok])
    result = {
        "request_throughput": _mean(rates["requests"], "requests/sec"),
        "request_count": _mean(float(len(completed.ok)), "requests"),
        "error_request_count": _mean(float(counts.failed), "requests"),
        **{
            key: _genai_statistic(completed.latency_s(metric), "ms", 1e3)
            for key, metric in _GENAI_LATENCIES.items()
        },
        "output_token_throughput": _mean(rates["output"], "tokens/sec"),
        "total_token_throughput": _mean(rates["total"], "tokens/sec"),
        "output_token_throughput_per_user": _genai_statistic(paces, "tokens/sec/user"),
        **{key: _genai_statistic(completed.tokens(side), "tokens") for key, side in _GENAI_LENGTHS.items()},
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


def _genai_statistic(ascending: Any, unit: str, scale: float = 1.0) -> dict[str, Any] | None:
    found = Statistics.of(ascending, _GENAI_PLACES, scale)
    return None if found is None else {"unit": unit, "avg": found.mean, "std": found.std, **found.ranks}


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
    values: dict[str, float | None] = {}
    for key, value in found.items():
        if not key.endswith("_ms"):
            continue
        name = key.removesuffix("_ms")
        values[name] = None if value is None else value / 1e3
        if name.endswith("tpot"):
            values[name.replace("tpot", "intvty")] = 1e3 / value if value else None
    return values


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
    found = Statistics.of(ascending, _MLPERF_PLACES, scale)
    if found is None:
        return None
    return {
        "total": found.mean * found.n,
        "min": found.ranks["min"],
        "max": found.ranks["max"],
        "median": found.ranks["50.0"],
        "avg": found.mean,
        "std_dev": found.std,
        "percentiles": {key: found.ranks[key] for key in _MLPERF_PLACES},
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
    result = {
        **_setup(analysis),
        **vllm_bench(measured, analysis.requests, percentiles or DEFAULT_PERCENTILES),
    }
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


# --- The Benchmark Report 0.2.1 of llm-d-benchmark, as YAML
#
# What a run does not know is left out, such as the stack that served it. Schema:
# ``llmdbenchmark/analysis/benchmark_report`` of llm-d/llm-d-benchmark.


_LLMD_VERSION = "0.2.1"

#: The schema's names of percentiles.
_LLMD_PLACES = {
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
_LLMD_LATENCIES = {
    "time_to_first_token": ("ttft", "ms"),
    "time_per_output_token": ("tpot", "ms/token"),
    "inter_token_latency": ("itl", "ms/token"),
    "request_latency": ("e2el", "ms"),
}
_LLMD_RATES = {"input_token_rate": "input", "output_token_rate": "output", "total_token_rate": "total"}


def llmd(analysis: Analysis) -> str:
    """The text of the file."""
    completed = Completed(analysis.measured)
    report = {
        "version": _LLMD_VERSION,
        "run": _llmd_run(analysis),
        "scenario": {"load": _llmd_load(analysis, completed)},
        "results": {"request_performance": {"aggregate": _aggregate(analysis, completed)}},
    }
    text: str = yaml.safe_dump(_without_unknown(report), sort_keys=False, allow_unicode=True)
    return text


def _without_unknown(value: Any) -> Any:
    """The same without keys whose value is unknown."""
    if not isinstance(value, dict):
        return value
    return {key: _without_unknown(each) for key, each in value.items() if each is not None}


def _llmd_run(analysis: Analysis) -> dict[str, Any]:
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


def _llmd_load(analysis: Analysis, completed: Completed) -> dict[str, Any] | None:
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
    found = Statistics.of(completed.tokens(side), {})
    return (
        None
        if found is None
        else {
            "distribution": "other",
            "value": found.mean,
            "std_dev": found.std,
            "min": int(found.ranks["min"]),
            "max": max(1, int(found.ranks["max"])),
        }
    )


def _aggregate(analysis: Analysis, completed: Completed) -> dict[str, Any]:
    counts = analysis.summary.requests
    lost = counts.lost or 0
    return {
        "requests": {
            "total": counts.scheduled + lost,
            "failures": counts.failed,
            "incomplete": counts.cancelled + lost,
            "input_length": _llmd_statistic(completed.tokens("input"), "count"),
            "output_length": _llmd_statistic(completed.tokens("output"), "count"),
        },
        "latency": {
            key: _llmd_statistic(completed.latency_s(metric), unit, 1e3)
            for key, (metric, unit) in _LLMD_LATENCIES.items()
        },
        "throughput": {
            **{key: _rate(completed.rates[side], "tokens/s") for key, side in _LLMD_RATES.items()},
            "request_rate": _rate(completed.rates["requests"], "queries/s"),
        },
    }


def _llmd_statistic(ascending: Any, units: str, scale: float = 1.0) -> dict[str, Any] | None:
    found = Statistics.of(ascending, _LLMD_PLACES, scale)
    return None if found is None else {"units": units, "mean": found.mean, "stddev": found.std, **found.ranks}


def _rate(value: float | None, units: str) -> dict[str, Any] | None:
    return None if value is None else {"units": units, "mean": value}


# --- The profile of one engine that the planner and the mocker of NVIDIA Dynamo read, made of a sweep
#
# Prefill is of the stages in which each request was alone, by the length of its prompt. Decode has a point
# for each stage: the share of the KV cache that its requests held, (ISL + OSL / 2) × concurrency / its
# tokens, the context ISL + OSL / 2, the mean TPOT and the output tokens/s of a GPU. The profiler of Dynamo
# keeps prefill out of its decode points by a warm prefix cache; here their TPOT has the prefill of other
# requests in it.
#
# Source: ``components/src/dynamo/profiler/utils/profile_{prefill,decode}.py`` and
# ``planner/monitoring/perf_metrics.py`` of ai-dynamo 1.6.1.


#: Prompt lengths that the planner's cubic interpolation takes at least, and contexts that span its plane.
_LEAST_LENGTHS, _LEAST_CONTEXTS = 4, 2

#: Lengths within this share of each other are one point.
_SAME_LENGTH = 0.25

_FOLDERS = {"prefill": "selected_prefill_interpolation", "decode": "selected_decode_interpolation"}


@dataclass(frozen=True, slots=True)
class _Measure:
    """A stage that is a result: the requests that reach into its measured part, and how many of their prompt
    tokens were cached, as far as usage says."""

    stage: Stage
    m: Measured
    cached: Floats

    @property
    def completed(self) -> Completed:
        return Completed(self.m)


def dynamo(analysis: Analysis, max_kv_tokens: float | None = None) -> str:
    """The text: one JSON object with the arrays of both parts.

    Args:
        max_kv_tokens: tokens that the KV cache of the engine holds.

    Raises:
        ValueError: the run does not know what a part is made of.
    """
    gpus = _gpus(analysis)
    if max_kv_tokens is None:
        raise ValueError(
            "--format dynamo needs --max-kv-tokens N: the tokens that the KV cache of the engine holds; "
            "vLLM logs them as 'GPU KV cache size' and SGLang as max_total_num_tokens"
        )
    if len(analysis.summary.replicas) > 1:
        raise ValueError(
            f"--format dynamo is the profile of one engine, and {len(analysis.summary.replicas)} replicas "
            "answered: sweep one of them"
        )
    measures = list(_results(analysis))
    found = {"prefill": _prefill(measures, gpus), "decode": _decode(measures, gpus, max_kv_tokens)}
    return shown_json(found, indent=2) + "\n"


def dynamo_files(text: str) -> dict[str, bytes]:
    """Both parts as Dynamo's profiler writes them, a NumPy archive each, by the paths of their files."""
    return {f"{_FOLDERS[part]}/raw_data.npz": _npz(arrays) for part, arrays in json.loads(text).items()}


def _npz(arrays: Mapping[str, Any]) -> bytes:
    file = io.BytesIO()
    made: dict[str, Any] = {name: np.asarray(values) for name, values in arrays.items()}
    np.savez(file, **made)
    return file.getvalue()


def _gpus(analysis: Analysis) -> float:
    cost = analysis.summary.cost
    if cost is None or cost.prices.gpus is None:
        raise ValueError("--format dynamo needs --gpus N: its throughput is of one GPU of the engine")
    return cost.prices.gpus


def _results(analysis: Analysis) -> Iterator[_Measure]:
    facts = {stage.number: stage for stage in analysis.manifest.stages}
    for stage in analysis.summary.stages or ():
        window = stage_window(facts[stage.number], analysis.manifest)
        if window is None or not stage.is_result or stage.figures is None:
            continue
        requests = touching(analysis.requests, window)
        parts = requests.parts(["cached_tokens"])
        cached = np.concatenate([part.floats("cached_tokens") for part in parts])
        m = measure(requests, analysis.manifest, replace(PLAIN, window=window))
        yield _Measure(stage, m, cached)


def _prefill(measures: list[_Measure], gpus: float) -> dict[str, Any]:
    lengths, ttfts = _alone(measures)
    if not len(lengths):
        raise ValueError(
            "--format dynamo: its prefill is of requests that are alone, and no stage that is a result has "
            "such ones with prompts that are not cached: begin the sweep with users=1"
        )
    rows = _by_length(lengths)
    if len(rows) < _LEAST_LENGTHS:
        raise ValueError(
            f"--format dynamo: its prefill needs {_LEAST_LENGTHS} prompt lengths, and the requests that were "
            f"alone have {_listed(lengths, rows)}: sweep with --input-tokens uniform:100,8000"
        )
    isl = [round(float(lengths[some].mean())) for some in rows]
    ttft_s = [float(ttfts[some].mean()) for some in rows]
    return {
        "prefill_isl": isl,
        "prefill_ttft": [s * 1e3 for s in ttft_s],
        "prefill_thpt_per_gpu": [tokens / s / gpus for tokens, s in zip(isl, ttft_s, strict=True)],
    }


def _alone(measures: list[_Measure]) -> tuple[Floats, Floats]:
    """Prompt tokens and TTFT of the requests that were alone; none of a prompt that was partly cached."""
    lengths, ttfts = [np.empty(0)], [np.empty(0)]
    for each in measures:
        figures = each.stage.figures
        if figures is None or figures.throughput.concurrency_peak != 1:
            continue
        rows = each.completed.ok
        tokens, ttft = each.m.c.input_tokens[rows], each.m.values["ttft"][rows]
        usable = (tokens > 0) & (ttft > 0) & ~(each.cached[rows] > 0)
        lengths.append(tokens[usable])
        ttfts.append(ttft[usable])
    return np.concatenate(lengths), np.concatenate(ttfts)


def _decode(measures: list[_Measure], gpus: float, max_kv_tokens: float) -> dict[str, Any]:
    points = [point for each in measures if (point := _point(each, gpus, max_kv_tokens)) is not None]
    contexts = np.array([point[1] for point in points])
    kinds = _by_length(contexts)
    if len(kinds) < _LEAST_CONTEXTS:
        raise ValueError(
            f"--format dynamo: its decode needs {_LEAST_CONTEXTS} context lengths (ISL + OSL / 2), and the "
            f"stages that are results and fit into the KV cache have {_listed(contexts, kinds)}: sweep over "
            "lengths too"
        )
    names = ("x_kv_usage", "y_context_length", "z_itl", "z_thpt_per_gpu")
    columns: dict[str, list[float]] = {name: [point[at] for point in points] for at, name in enumerate(names)}
    return columns | {"max_kv_tokens": [round(max_kv_tokens)]}


def _point(each: _Measure, gpus: float, max_kv_tokens: float) -> tuple[float, float, float, float] | None:
    """KV usage, context, ITL in ms and tokens/s a GPU of a stage; None if one is not known, or if its
    requests do not fit into the cache together: some of them waited then."""
    figures, completed = each.stage.figures, each.completed
    inputs, outputs = (completed.tokens(side) for side in ("input", "output"))
    tpots = completed.latency_s("tpot")
    if figures is None or not (len(inputs) and len(outputs) and len(tpots)):
        return None
    rate, concurrency = figures.throughput.output_tokens_per_s, figures.throughput.concurrency_mean
    context = float(np.mean(inputs) + np.mean(outputs) / 2)
    if rate is None or concurrency is None or context * concurrency > max_kv_tokens:
        return None
    itl_ms = float(np.mean(np.asarray(tpots))) * 1e3
    return context * concurrency / max_kv_tokens, context, itl_ms, rate / gpus


def _by_length(lengths: Floats) -> list[Rows]:
    """The rows of each length, ascending; lengths that are about the same are one."""
    if not len(lengths):
        return []
    order = np.argsort(lengths, kind="stable")
    ascending = lengths[order]
    groups, first = [], 0
    for at in range(1, len(order) + 1):
        if at == len(order) or ascending[at] > ascending[first] * (1 + _SAME_LENGTH):
            groups.append(order[first:at])
            first = at
    return groups


def _listed(lengths: Floats, rows: list[Rows]) -> str:
    return ", ".join(f"{lengths[some].mean():,.0f}" for some in rows) or "none"
