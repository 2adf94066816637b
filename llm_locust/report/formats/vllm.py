"""The result file of ``vllm bench serve``: its keys, filled by its formulas from our records.

What differs from a file that vLLM wrote: requests are those scheduled in the window, which has no
warm-up; the duration is from the first of them sent to the last one's end; times are the kernel's
stamps where there are any; and what vLLM writes as 0 for want of a value is null.
"""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from llm_locust.core.batch import Requests
from llm_locust.metrics.peers.vllm_bench import vllm_bench, vllm_details
from llm_locust.report.formats.asked import asked_number, asked_options
from llm_locust.report.output import shown_json
from llm_locust.report.run.analysis import Analysis
from llm_locust.wire.dialects.table import DIALECTS

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
