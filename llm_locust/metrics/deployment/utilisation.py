"""How much of its GPUs' bandwidth and arithmetic a run made use of, as far as a client can know.

Every prompt and every token needs its operations, whatever the engine does: they are counted. What was read
is a lower bound: see :mod:`llm_locust.metrics.deployment.decode_steps`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest
from llm_locust.metrics.columns import Floats
from llm_locust.metrics.deployment.decode_steps import DecodeWork, Engines, decode_work
from llm_locust.metrics.deployment.routing import Carriers, replica_labels
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.question import Question
from llm_locust.metrics.requests.throughput import prefilled_s
from llm_locust.roofline.bounds import Bound, decode_bound, prefill_bound
from llm_locust.roofline.model import ModelShape
from llm_locust.roofline.roof import Roof


def roofline(
    requests: Requests,
    m: Measured,
    manifest: Manifest,
    question: Question,
    pools: Mapping[str, int],
    *,
    of_selection: bool,
) -> dict[str, Any]:
    """The ``roofline`` of a summary: nothing without a roof, and why where there are no figures.

    Args:
        pools: how many servers have each role in disaggregated serving.
    """
    roof = question.roof_of(manifest)
    if roof is None and question.lacks_shape(manifest):
        return {"missing": "the run has only the name of a file for the model's shape: give --model-shape"}
    if roof is None:
        return {}
    if len({arm.model for arm in manifest.arms if arm.model}) > 1:
        return {"missing": "the arms have several models, and the GPUs are given with the shape of one"}
    if of_selection:
        return {"missing": "only some of the requests are looked at, and GPUs cannot be shared out"}
    return utilisation(requests, m, roof, sum(pools.values()))


def utilisation(requests: Requests, m: Measured, roof: Roof, servers: int = 0) -> dict[str, Any]:
    """What the run reached of what ``roof`` allows, in the window.

    - ``mfu`` = operations of the prompts computed and the tokens generated / (peak × seconds). A prompt
      counts whole at its first token, without what usage says came from a cache; a token where it arrived.
    - ``mbu`` = bytes read by decode steps / (bandwidth × seconds), a lower bound.
    - ``engines``: replicas that are told apart; 1 where they are not, or where more names than GPUs show
      that a name is no engine's. ``steps_per_s`` of all together; ``batch_mean`` sequences a step;
      ``context_mean`` tokens that a decoded token attended to.
    - ``models_asked``: different models that the requests named. All are counted by the shape of ``roof``,
      which is right only for adapters of its model.
    - ``tpot_bound_ms`` of a step of that batch and context, ``ttft_bound_ms`` of the median of what had to
      be computed of a prompt, each on one engine's share of the GPUs; ``_by`` says what binds. With prefill
      and decode apart, answers name only those that decode: the share is then that of one of ``servers``.

    None is what is not known: all for an empty window, ``mfu`` without a prompt of known length, ``mbu``
    where answers came and none of them as events.
    """
    labels, _ = replica_labels(m.c, Carriers.of(requests))
    engines = Engines.of(m.c, labels, roof.gpus)
    prompts = _Prompts.of(requests, m)
    work = decode_work(requests, m, engines, roof.model)
    output_flops = work.flops + _unseen_flops(m, roof.model)
    seconds = m.window.seconds if m.window.seconds > 0 else None
    return {
        "model": roof.model.name,
        "weights": roof.model.weights,
        "gpu": roof.gpu.name,
        "gpus": roof.gpus,
        "models_asked": _models_asked(requests),
        "peak_flops": roof.peak_flops,
        "bandwidth_bytes_per_s": roof.bandwidth_bytes_per_s,
        **_arithmetic(prompts.flops(roof.model), output_flops, roof, seconds if prompts.are_known else None),
        **_reads(work, roof, seconds if work.events or not prompts.answered else None),
        "engines": engines.count,
        "batch_mean": _over(work.events, work.steps),
        "context_mean": _over(work.contexts, work.decoded),
        **_bounds(work, prompts, Roof(roof.model, roof.gpu, roof.gpus / (servers or engines.count))),
        "prompts": prompts.answered,
        "prompts_unknown": prompts.answered - len(prompts.tokens),
        "prompts_cache_unknown": int(np.isnan(prompts.cached).sum()),
        "cached_share": _over(float(np.nansum(prompts.cached)), float(prompts.tokens.sum())),
    }


def _models_asked(requests: Requests) -> int:
    found: set[str] = set()
    for part in requests.parts(["model"]):
        models = part.labels("model")
        found.update(models.names[code] for code in np.unique(models.codes) if code >= 0)
    return len(found)


def _arithmetic(prompts: float, outputs: float, roof: Roof, seconds: float | None) -> dict[str, Any]:
    if seconds is None:
        return dict.fromkeys(("mfu", "flops_per_s", "prompt_flops_share"))
    rate = (prompts + outputs) / seconds
    share = _over(prompts, prompts + outputs)
    return {"mfu": rate / roof.peak_flops, "flops_per_s": rate, "prompt_flops_share": share}


def _reads(work: DecodeWork, roof: Roof, seconds: float | None) -> dict[str, Any]:
    if seconds is None:
        return dict.fromkeys(("mbu", "bytes_per_s", "kv_share", "steps_per_s"))
    kv_bytes = work.contexts * roof.model.kv_bytes_per_token
    rate = (work.weights_bytes + kv_bytes) / seconds
    return {
        "mbu": rate / roof.bandwidth_bytes_per_s,
        "bytes_per_s": rate,
        "kv_share": _over(kv_bytes, work.weights_bytes + kv_bytes),
        "steps_per_s": work.steps / seconds,
    }


def _bounds(work: DecodeWork, prompts: "_Prompts", engine: Roof) -> dict[str, Any]:
    batch, context = _over(work.events, work.steps), _over(work.contexts, work.decoded)
    computed = prompts.tokens - np.nan_to_num(prompts.cached)
    step = None if batch is None or context is None else decode_bound(engine, batch, context)
    prompt = prefill_bound(engine, float(np.median(computed))) if len(computed) else None
    return {**_told("tpot", step), **_told("ttft", prompt)}


def _told(name: str, bound: Bound | None) -> dict[str, Any]:
    return {
        f"{name}_bound_ms": None if bound is None else bound.seconds * 1e3,
        f"{name}_bound_by": None if bound is None else bound.binds,
    }


@dataclass(frozen=True, slots=True)
class _Prompts:
    """The prompts whose first token came in the window: ``answered`` of them, and of those of known length
    their tokens and how many of these usage says were cached (NaN where it does not)."""

    answered: int
    tokens: Floats
    cached: Floats

    @classmethod
    def of(cls, requests: Requests, m: Measured) -> "_Prompts":
        c = m.c
        inside = m.window.inside(c, prefilled_s(c))
        known = inside & ~np.isnan(c.input_tokens)
        cached = np.concatenate([part.floats("cached_tokens") for part in requests.parts(["cached_tokens"])])
        tokens = c.input_tokens[known]
        return cls(int(inside.sum()), tokens, np.minimum(cached[known], tokens))

    @property
    def are_known(self) -> bool:
        return bool(len(self.tokens)) or not self.answered

    def flops(self, model: ModelShape) -> float:
        return float(model.prompt_flops(self.tokens, np.nan_to_num(self.cached)).sum())


def _unseen_flops(m: Measured, model: ModelShape) -> float:
    """Of answers that came whole, at their end."""
    c = m.c
    rows = np.flatnonzero((c.events == 0) & c.ok & m.window.ended(c) & (c.output_tokens > 1))
    tokens = c.output_tokens[rows]
    context = np.nan_to_num(c.input_tokens[rows]) + tokens / 2
    return float((tokens - 1) @ model.flops_per_token(context))


def _over(amount: float, by: float) -> float | None:
    return amount / by if by else None
