"""Lower bounds of an engine's step, in the form of the simulator's engines."""

import math
from dataclasses import dataclass

from llm_locust.roofline.error import RooflineError
from llm_locust.roofline.gpus import Gpu
from llm_locust.roofline.gpus import gpu_named as gpu_named
from llm_locust.roofline.model import ModelShape
from llm_locust.roofline.model_file import read_model as read_model

_NS = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Cost of an engine's step:

        max(step_base + context_per_token · context tokens held by decoding sequences,
            prefill_per_token · tokens computed in the step)

    plus overheads, which no data sheet contains. ``step_base_ns`` is the time to read all weights; for a
    mixture of experts it applies to a step of many tokens. ``source`` says what it was computed from.
    """

    step_base_ns: float
    prefill_per_token_ns: float
    context_per_token_ns: float
    kv_cache_tokens: int
    weights_bytes: int
    source: str


def step_costs(
    model: ModelShape,
    gpu: Gpu,
    *,
    gpus: int = 1,
    memory_efficiency: float = 1.0,
    compute_efficiency: float = 1.0,
    memory_utilization: float = 0.9,
) -> StepCosts:
    """Costs of one replica's steps, on ``gpus`` GPUs that divide the work without loss.

    step_base = weights / bandwidth; context_per_token = KV bytes of a token / bandwidth; prefill_per_token =
    2 · (multiplied parameters − output head) / peak, without attention, which grows with the context;
    kv_cache_tokens = (memory · memory_utilization − weights) / KV bytes of a token.

    Args:
        memory_efficiency: achieved share of the bandwidth, above 0 and at most 1.
        compute_efficiency: achieved share of the peak.
        memory_utilization: share of memory that the engine uses for weights and KV cache.

    Raises:
        RooflineError: no GPU, a share out of range, or weights that leave no room for a KV cache.
    """
    for name, share in (
        ("memory_efficiency", memory_efficiency),
        ("compute_efficiency", compute_efficiency),
        ("memory_utilization", memory_utilization),
    ):
        if not 0 < share <= 1:
            raise RooflineError(f"{name} is {share:g}: write a number above 0 and at most 1")
    bandwidth = gpu.bandwidth_bytes_per_s * gpus * memory_efficiency
    peak = gpu.peak_flops(model.computed_in) * gpus * compute_efficiency
    held = kv_cache_tokens(model, gpu, gpus=gpus, memory_utilization=memory_utilization)
    return StepCosts(
        step_base_ns=(model.weights_bytes - model.embedding_bytes) / bandwidth * _NS,
        prefill_per_token_ns=model.prompt_token_flops / peak * _NS,
        context_per_token_ns=model.kv_bytes_per_token / bandwidth * _NS,
        kv_cache_tokens=held,
        weights_bytes=round(model.weights_bytes),
        source=(
            f"roofline of {model.name} ({model.weights}) on {gpus} × {gpu.name} by data sheet, at "
            f"{memory_efficiency:.0%} of its bandwidth and {compute_efficiency:.0%} of its FLOP/s"
        ),
    )


def kv_cache_tokens(model: ModelShape, gpu: Gpu, *, gpus: float = 1, memory_utilization: float = 0.9) -> int:
    """Number of tokens whose keys and values fit into memory with the weights.

    Raises:
        RooflineError: no GPU, or not even one token fits.
    """
    if not (math.isfinite(gpus) and gpus > 0):
        raise RooflineError(f"gpus is {gpus:g}: write how many GPUs one copy of the model has")
    free = gpu.memory_bytes * gpus * memory_utilization - model.weights_bytes
    tokens = math.floor(free / model.kv_bytes_per_token)
    if tokens < 1:
        needed = math.ceil(model.weights_bytes / (gpu.memory_bytes * memory_utilization))
        raise RooflineError(
            f"the {model.weights_bytes / _NS:.1f} GB of {model.name} do not fit into "
            f"{memory_utilization:.0%} of {gpus:g} × {gpu.name} ({gpu.memory_bytes * gpus / _NS:.1f} GB): "
            f"give {needed} GPUs or more, or weights of fewer bytes"
        )
    return tokens
