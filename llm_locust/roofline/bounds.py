"""Lower bounds of step times on these GPUs for any engine: bytes over bandwidth, operations over peak.

A step has to read its weights and its sequences' keys and values, and to do its operations. Both can run in
parallel, so it lasts at least as long as the longer of them (Williams et al. 2009, Pope et al. 2022).
Communication between GPUs, activations, and the launch of kernels are left out: these are bounds.
"""

import math
from dataclasses import dataclass

from llm_locust.roofline.error import RooflineError
from llm_locust.roofline.profile import kv_cache_tokens
from llm_locust.roofline.roof import Roof

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
