"""The profile of one engine that the planner and the mocker of NVIDIA Dynamo read, made of a sweep.

Prefill is of the stages in which each request was alone, by the length of its prompt. Decode has a point for
each stage: the share of the KV cache that its requests held, (ISL + OSL / 2) × concurrency / its tokens, the
context ISL + OSL / 2, the mean TPOT and the output tokens/s of a GPU. Dynamo's own profiler keeps prefill out
of its decode points by a warm prefix cache; here their TPOT has the prefill of other requests in it.

Source: ``components/src/dynamo/profiler/utils/profile_{prefill,decode}.py`` and
``planner/monitoring/perf_metrics.py`` of ai-dynamo 1.6.1.
"""

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from llm_locust.figures.stages import Stage, touching
from llm_locust.metrics.columns import Floats, Rows
from llm_locust.metrics.measured import Measured, measure
from llm_locust.metrics.question import PLAIN
from llm_locust.metrics.window import stage_window
from llm_locust.report.analysis import Analysis
from llm_locust.report.formats.completed import Completed
from llm_locust.report.output import shown_json

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
