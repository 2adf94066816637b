"""Bounds of one deployment at one load, with all their terms."""

from collections.abc import Sequence
from typing import Any

from llm_locust.roofline.bounds import (
    Bound,
    decode_bound,
    mean_context,
    prefill_bound,
    ridge_batch,
    saturation,
)
from llm_locust.roofline.error import RooflineError
from llm_locust.roofline.roof import Roof

DEFAULT_BATCHES = (1, 8, 32, 128)


def answer(
    roof: Roof,
    *,
    input_tokens: int = 512,
    output_tokens: int = 128,
    batches: Sequence[int] = DEFAULT_BATCHES,
    memory_utilization: float = 0.9,
) -> dict[str, Any]:
    """Result of ``llm-locust roofline``, JSON-ready.

    ``decode`` has for each batch one step at the mean context, and whether the batch fits into memory;
    ``prefill`` one prompt alone; ``saturated`` as many requests as fit, with their prompts computed at the
    same time.

    Raises:
        RooflineError: invalid numbers, or a model or a request that does not fit.
    """
    for name, value in (("input_tokens", input_tokens), ("output_tokens", output_tokens)):
        if value < 1:
            raise RooflineError(f"{name} is {value}: write 1 or more")
    if not batches or min(batches) < 1:
        raise RooflineError(
            f"batch is {', '.join(map(str, batches)) or 'empty'}: write numbers from 1, as 1,8"
        )
    if not 0 < memory_utilization <= 1:
        raise RooflineError(
            f"memory_utilization is {memory_utilization:g}: write a number above 0 and at most 1"
        )
    full = saturation(roof, input_tokens, output_tokens, memory_utilization=memory_utilization)
    context = mean_context(input_tokens, output_tokens)
    return {
        "model": _model(roof),
        "gpu": {
            "name": roof.gpu.name,
            "gpus": roof.gpus,
            "memory_bytes": roof.memory_bytes,
            "bandwidth_bytes_per_s": roof.bandwidth_bytes_per_s,
            "peak_flops": roof.peak_flops,
        },
        "load": {"input_tokens": input_tokens, "output_tokens": output_tokens, "context": context},
        "kv_cache": {"memory_utilization": memory_utilization, "tokens": full.kv_cache_tokens},
        "prefill": {"tokens": input_tokens, **_told("ttft", prefill_bound(roof, input_tokens))},
        "decode": [_decode(roof, batch, context, full.batch) for batch in batches],
        "ridge_batch": ridge_batch(roof, context),
        "saturated": {
            "batch": full.batch,
            **_told("tpot", full.step),
            "output_tokens_per_s": full.output_tokens_per_s,
            "requests_per_s": full.requests_per_s,
        },
    }


def _model(roof: Roof) -> dict[str, Any]:
    model = roof.model
    return {
        "name": model.name,
        "parameters": model.parameters,
        "active_parameters": model.active,
        "weights": model.weights,
        "weights_bytes": model.weights_bytes,
        "embedding_bytes": model.embedding_bytes,
        "kv_cache": model.kv_cache,
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "arithmetic": model.computed_in,
        "flops_per_token": model.flops_per_token(0.0),
        "flops_per_context_token": model.attention_flops,
        "experts": model.experts,
        "experts_per_token": model.experts_per_token,
    }


def _decode(roof: Roof, batch: int, context: float, most: int) -> dict[str, Any]:
    bound = decode_bound(roof, batch, context)
    return {
        "batch": batch,
        "fits": batch <= most,
        "experts_touched": roof.model.experts_touched(float(batch)) if roof.model.experts else None,
        **_told("tpot", bound),
        "user_tps": 1 / bound.seconds,
        "output_tokens_per_s": batch / bound.seconds,
    }


def _told(name: str, bound: Bound) -> dict[str, Any]:
    return {
        "weights_bytes": bound.weights_bytes,
        "kv_bytes": bound.kv_bytes,
        "flops": bound.flops,
        "memory_ms": bound.memory_s * 1e3,
        "compute_ms": bound.compute_s * 1e3,
        f"{name}_ms": bound.seconds * 1e3,
        "bound_by": bound.binds,
    }
