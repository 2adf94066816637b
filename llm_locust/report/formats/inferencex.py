"""The aggregate JSON of InferenceX (InferenceMAX): its keys, filled by vLLM's formulas from our records.

A latency ``*_ms`` of ``vllm bench serve`` is in seconds there, without that ending; a TPOT also as
interactivity, ``*_intvty``, in tokens/s. What a run does not know of the deployment, such as its framework,
is null.
"""

from typing import Any

from llm_locust.metrics.peers.vllm_bench import vllm_bench
from llm_locust.report.formats.asked import asked_number, asked_options
from llm_locust.report.output import shown_json
from llm_locust.report.run.analysis import Analysis

_PLACES = {"p90": 90.0, "p99": 99.0, "p99_9": 99.9}

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
    found = vllm_bench(analysis.measured, analysis.requests, _PLACES)
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
