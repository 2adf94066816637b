"""Upper bounds of a deployment: its steps' times, its throughput, and a profile for the simulator."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_locust.roofline.gpus import Gpu, RooflineError, gpu_named
from llm_locust.roofline.model import ModelShape, model_of

# --- A model on its GPUs: upper bounds of a deployment


_OPTIONS = ("gpu_type", "model_shape", "gpus")


@dataclass(frozen=True, slots=True)
class Roof:
    """One model on ``gpus`` GPUs that divide its work without loss and without communication.

    Raises:
        RooflineError: no GPU.
    """

    model: ModelShape
    gpu: Gpu
    gpus: float = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.gpus) and self.gpus > 0):
            raise RooflineError(f"gpus is {self.gpus:g}: write how many GPUs serve")

    @property
    def bandwidth_bytes_per_s(self) -> float:
        return self.gpu.bandwidth_bytes_per_s * self.gpus

    @property
    def peak_flops(self) -> float:
        """Operations per second, in the arithmetic of the model."""
        return self.gpu.peak_flops(self.model.computed_in) * self.gpus

    @property
    def memory_bytes(self) -> float:
        return self.gpu.memory_bytes * self.gpus

    def __str__(self) -> str:
        return f"{self.model.name} ({self.model.weights}) on {self.gpus:g} × {self.gpu.name}"


def roof_of_options(options: Mapping[str, Any]) -> Roof | None:
    """Roofline from a run's options ``gpu_type``, ``model_shape`` and ``gpus``; None without the first two.

    ``model_shape`` is the document of a shape (see :func:`~llm_locust.roofline.model.model_of`). It is
    never a path: the options may come from the manifest of a stranger's run, which names no file to open.

    Raises:
        RooflineError: one of the three is missing or invalid.
    """
    gpu_type, shape, gpus = (options.get(name) or None for name in _OPTIONS)
    if gpu_type is None and shape is None:
        return None
    missing = [name for name in _OPTIONS if not options.get(name)]
    if missing:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise RooflineError(f"a roofline needs --gpu-type, --model-shape and --gpus: give {flags} too")
    if not isinstance(shape, Mapping):
        raise RooflineError("model_shape is no model's shape: give the file of one by --model-shape")
    model = model_of(shape, "model_shape")
    try:
        number = float(str(gpus))
    except ValueError:
        raise RooflineError(f'gpus is "{gpus}": write how many GPUs serve, as 4') from None
    return Roof(model, gpu_named(str(gpu_type)), number)


# --- Lower bounds of an engine's step, in the form of the simulator's engines


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


# --------------------
# Lower bounds of step times on these GPUs for any engine: bytes over bandwidth, operations over peak.
#
# A step has to read its weights and its sequences' keys and values, and to do its operations. Both can run
# in parallel, so it lasts at least as long as the longer of them (Williams et al. 2009, Pope et al. 2022).
# Communication between GPUs, activations, and the launch of kernels are left out: these are bounds.
# --------------------


#: Largest batch considered.
_MOST_BATCH = 1 << 40


@dataclass(frozen=True, slots=True)
class Bound:
    """Lower bound of a step: bytes that must be read, operations that must be done."""

    weights_bytes: float
    kv_bytes: float
    flops: float
    memory_s: float
    compute_s: float

    @property
    def seconds(self) -> float:
        return max(self.memory_s, self.compute_s)

    @property
    def binds(self) -> str:
        """``memory`` or ``compute``, whichever takes longer."""
        return "memory" if self.memory_s >= self.compute_s else "compute"


@dataclass(frozen=True, slots=True)
class Saturation:
    """Upper bound of a deployment: ``batch`` sequences, all that fit, and their mean step."""

    batch: int
    kv_cache_tokens: int
    step: Bound
    output_tokens_per_s: float
    requests_per_s: float


def decode_bound(roof: Roof, batch: float, context: float) -> Bound:
    """One decode step of ``batch`` sequences of ``context`` tokens each: a lower bound of TPOT."""
    model = roof.model
    return _bound(
        roof,
        model.read_bytes(batch),
        batch * context * model.kv_bytes_per_token,
        batch * model.flops_per_token(context),
    )


def prefill_bound(roof: Roof, tokens: float) -> Bound:
    """A prompt of ``tokens`` that must be computed, alone: a lower bound of TTFT."""
    return _bound(roof, roof.model.read_bytes(tokens), 0.0, roof.model.prompt_flops(tokens))


def mean_context(input_tokens: float, output_tokens: float) -> float:
    """Mean number of tokens that a token of an answer attends to: the prompt and half of the answer."""
    return input_tokens + output_tokens / 2


def ridge_batch(roof: Roof, context: float) -> int | None:
    """Smallest batch whose operations take as long as its reads.

    Below it a larger batch takes hardly longer, above it tokens/s do not grow. None if there is no such
    batch: each sequence's own keys and values take longer to read than to compute with.
    """

    def computes(batch: int) -> bool:
        bound = decode_bound(roof, batch, context)
        return bound.compute_s >= bound.memory_s

    # Reads grow ever more slowly with the batch, operations linearly: beyond the ridge this does not change.
    high = 1
    while not computes(high):
        high *= 2
        if high > _MOST_BATCH:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if computes(middle) else (middle, high)
    return high


def saturation(
    roof: Roof, input_tokens: float, output_tokens: float, *, memory_utilization: float = 0.9
) -> Saturation:
    """A continuous stream of requests of one length, as many at a time as fit into the memory besides the
    weights.

    They are at different positions in their answers, so that one takes input + output / 2 tokens of the KV
    cache. Each step gives each of them a token: the first of an answer by computing its whole prompt at the
    same time.

    Raises:
        RooflineError: the weights, or one request, do not fit.
    """
    model = roof.model
    held = kv_cache_tokens(model, roof.gpu, gpus=roof.gpus, memory_utilization=memory_utilization)
    if input_tokens + output_tokens > held:
        raise RooflineError(
            f"a request of {input_tokens + output_tokens:,.0f} tokens does not fit into the KV cache of "
            f"{held:,} tokens: give more GPUs, or fewer tokens"
        )
    context = mean_context(input_tokens, output_tokens)
    batch = math.floor(held / context)
    begun = batch / output_tokens
    decoding = batch - begun
    step = _bound(
        roof,
        model.read_bytes(decoding + begun * input_tokens),
        decoding * context * model.kv_bytes_per_token,
        decoding * model.flops_per_token(context) + begun * model.prompt_flops(input_tokens),
    )
    rate = batch / step.seconds
    return Saturation(batch, held, step, rate, rate / output_tokens)


def _bound(roof: Roof, weights_bytes: float, kv_bytes: float, flops: float) -> Bound:
    memory_s = (weights_bytes + kv_bytes) / roof.bandwidth_bytes_per_s
    return Bound(weights_bytes, kv_bytes, flops, memory_s, flops / roof.peak_flops)


# --- Bounds of one deployment at one load, with all their terms


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
        "prefill": {"tokens": input_tokens, **_step("ttft", prefill_bound(roof, input_tokens))},
        "decode": [_decode(roof, batch, context, full.batch) for batch in batches],
        "ridge_batch": ridge_batch(roof, context),
        "saturated": {
            "batch": full.batch,
            **_step("tpot", full.step),
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
        **_step("tpot", bound),
        "user_tps": 1 / bound.seconds,
        "output_tokens_per_s": batch / bound.seconds,
    }


def _step(name: str, bound: Bound) -> dict[str, Any]:
    return {
        "weights_bytes": bound.weights_bytes,
        "kv_bytes": bound.kv_bytes,
        "flops": bound.flops,
        "memory_ms": bound.memory_s * 1e3,
        "compute_ms": bound.compute_s * 1e3,
        f"{name}_ms": bound.seconds * 1e3,
        "bound_by": bound.binds,
    }
