"""How much of its GPUs' bandwidth and arithmetic a run made use of, as far as a client can know.

Every prompt and every token needs its operations, whatever the engine does: they are counted. What was read
is a lower bound."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np

from llm_locust.core.batch import Labels, Ragged, Requests
from llm_locust.figures.figure import Run
from llm_locust.figures.routing import Carriers, replica_labels
from llm_locust.figures.text import Line, Section, Tone, clean, count, number, percent, plural, sentence
from llm_locust.metrics.columns import Columns, Floats, Mask, Rows, pieces
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.requests.rates import prefilled_s
from llm_locust.metrics.server_roles import pool_sizes
from llm_locust.metrics.structs import SummaryPart, key
from llm_locust.roofline import Bound, ModelShape, Roof, decode_bound, prefill_bound

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary

_WINDOW = "the window"


_DEPLOYMENT = key("model and GPUs: [roofline.md](roofline.md)")
_USE = key("use of arithmetic and bandwidth", _WINDOW)
_STEPS = key("engines told apart, mean batch and context, bounds of TPOT and TTFT and what binds", _WINDOW)
_FIRST = "first token in the window"


class Roofline(SummaryPart, frozen=True):
    """What the run reached of its GPUs' bandwidth and arithmetic."""

    model: Annotated[str, _DEPLOYMENT]
    weights: Annotated[str, _DEPLOYMENT]
    gpu: Annotated[str, _DEPLOYMENT]
    gpus: Annotated[int | float, _DEPLOYMENT]
    models_asked: Annotated[int, key("different models that requests named, all counted as `model`")]
    peak_flops: Annotated[float, _DEPLOYMENT]
    bandwidth_bytes_per_s: Annotated[float, _DEPLOYMENT]
    mfu: Annotated[float | None, _USE]
    flops_per_s: Annotated[float | None, _USE]
    prompt_flops_share: Annotated[float | None, _USE]
    mbu: Annotated[float | None, _USE]
    bytes_per_s: Annotated[float | None, _USE]
    kv_share: Annotated[float | None, _USE]
    steps_per_s: Annotated[float | None, _USE]
    engines: Annotated[int, _STEPS]
    batch_mean: Annotated[float | None, _STEPS]
    context_mean: Annotated[float | None, _STEPS]
    tpot_bound_ms: Annotated[float | None, _STEPS]
    tpot_bound_by: Annotated[str | None, _STEPS]
    ttft_bound_ms: Annotated[float | None, _STEPS]
    ttft_bound_by: Annotated[str | None, _STEPS]
    prompts: Annotated[int, key("prompts answered", _FIRST)]
    prompts_unknown: Annotated[int, key("prompts of unknown length", _FIRST)]
    prompts_cache_unknown: Annotated[int, key("prompts of unknown caching", _FIRST)]
    cached_share: Annotated[float | None, key("share of prompt tokens that were cached", _FIRST)]


# --------------------
# What an engine read to decode its answers, as far as a client's events tell.
#
# A step of an engine gives each sequence that it decodes one event at most. So where ``n`` of them are
# known to be under way on an engine, an event stands for ``1/n`` of a step at least, and for ``1/n`` of the
# weights that this step read; and for its own sequence's keys and values. Steps and reads are lower bounds:
# steps that gave this client nothing (prompts alone, answers of others) are not in them, and where replicas
# are not told apart the steps of all count as if they were one's.
# --------------------


#: Events of one step reach the client within this time of each other.
SKEW_S = 1e-3

#: Events of one answer that are no further apart are of one step, whose tokens were sent one by one.
SAME_STEP_NS = 100_000


@dataclass(frozen=True, slots=True)
class Engines:
    """Which engine each request was at, -1 where that is not known and others are; and when each engine's
    sequences gave their first and their last event, ascending."""

    of_request: Rows
    first_s: list[Floats]
    last_s: list[Floats]

    @classmethod
    def of(cls, c: Columns, replica: Labels, gpus: float) -> "Engines":
        named = np.unique(replica.codes[replica.codes >= 0])
        # An engine has a GPU at least. One that is not named may be any of them: alone it is the only one.
        codes, count = np.zeros(len(c), dtype=np.int64), 1
        if 1 < len(named) <= gpus:
            codes, count = np.where(replica.codes < 0, -1, np.searchsorted(named, replica.codes)), len(named)
        streams = (c.events > 0) & ~np.isnan(c.sent_s)
        rows = [np.flatnonzero(streams & (codes == i)) for i in range(count)]
        return cls(
            codes,
            [np.sort(c.sent_s[r] + c.first_event_s[r]) for r in rows],
            [np.sort(c.sent_s[r] + c.last_event_s[r]) for r in rows],
        )

    @property
    def count(self) -> int:
        return len(self.first_s)

    def decoding(self, events: "_Events") -> Rows:
        """How many sequences its engine decodes at each event, its own included; 0 where it is not known.

        Counted generously, within :data:`SKEW_S`: too few would make too many steps.
        """
        engine, found = self.of_request[events.row], np.zeros(len(events.row), dtype=np.int64)
        for i, (first_s, last_s) in enumerate(zip(self.first_s, self.last_s, strict=True)):
            at_s = events.at_s[engine == i]
            begun = np.searchsorted(first_s, at_s + SKEW_S, side="right")
            found[engine == i] = begun - np.searchsorted(last_s, at_s - SKEW_S, side="left")
        return found


@dataclass(frozen=True, slots=True)
class _Events:
    """Token events: the request of each (``row``), its ``place`` in that, and its time. ``distinct`` ones are
    of another step than the one before."""

    row: Rows
    place: Rows
    at_s: Floats
    distinct: Mask

    @classmethod
    def of(cls, c: Columns, rows: Rows, lists: Ragged) -> "_Events":
        counts = np.diff(lists.offsets)
        row = np.repeat(rows, counts)
        place = np.arange(len(lists.values)) - np.repeat(lists.offsets[:-1], counts)
        apart = np.diff(lists.values, prepend=lists.values[:1]) > SAME_STEP_NS
        return cls(row, place, c.sent_s[row] + lists.values * 1e-9, apart | (place == 0))

    def where(self, mask: Mask) -> "_Events":
        return _Events(self.row[mask], self.place[mask], self.at_s[mask], self.distinct[mask])


@dataclass(frozen=True, slots=True)
class DecodeWork:
    """What the tokens that arrived in the window took.

    ``flops`` are those of all but each answer's first, which came with the prompt. ``contexts`` is the
    sum of the tokens that the sequences of ``decoded`` events held. ``events`` are those of known engines,
    for which ``steps`` read ``weights_bytes``.
    """

    flops: float
    contexts: float
    decoded: int
    events: int
    steps: float
    weights_bytes: float


def decode_work(requests: Requests, m: Measured, engines: Engines, model: ModelShape) -> DecodeWork:
    """The work of the streamed answers of all requests, whatever became of them, in the window of ``m``."""
    flops, contexts, decoded = 0.0, 0.0, 0
    by_batch = np.zeros(1, dtype=np.int64)
    for events in _in_window(requests, m):
        tokens, context = _tokens_and_contexts(m.c, events)
        flops += float(tokens @ model.flops_per_token(context))
        reads = events.distinct & (events.place > 0)
        contexts += float(context[reads].sum())
        decoded += int(reads.sum())
        found = np.bincount(engines.decoding(events.where(events.distinct)))
        short, long = sorted((by_batch, found), key=len)
        by_batch = long + np.pad(short, (0, len(long) - len(short)))
    batch, count = np.arange(1.0, len(by_batch)), by_batch[1:]
    steps = count / batch
    read_bytes = float((steps * model.read_bytes(batch)).sum())
    return DecodeWork(flops, contexts, decoded, int(count.sum()), float(steps.sum()), read_bytes)


def _in_window(requests: Requests, m: Measured) -> Iterator[_Events]:
    """The events that arrived in the window, some MiB at a time."""
    before = 0
    for part in requests.parts(["arrivals_ns"]):
        rows = before + np.arange(len(part))
        sent = ~np.isnan(m.c.sent_s[rows])
        for found, lists in pieces(part.arrivals(), np.flatnonzero(sent)):
            events = _Events.of(m.c, before + found, lists)
            yield events.where(m.window.inside(m.c, events.at_s))
        before += len(part)


def _tokens_and_contexts(c: Columns, events: _Events) -> tuple[Floats, Floats]:
    """How many tokens were decoded for each event, and what each attended to.

    A request's tokens are spread over its events evenly; the first of them came with the prompt. Of a
    prompt of unknown length the answer alone is attended to.
    """
    tokens = c.output_tokens[events.row] / c.events[events.row]
    tokens = np.where(np.isnan(tokens), 1.0, tokens)
    context = np.nan_to_num(c.input_tokens[events.row]) + events.place * tokens
    return np.maximum(0.0, tokens - (events.place == 0)), context


def compute(run: Run) -> Roofline | str | None:
    """None without a roof, and why where there are no figures."""
    manifest, question = run.manifest, run.question
    roof = question.roof_of(manifest)
    if roof is None and question.lacks_shape(manifest):
        return "the run has only the name of a file for the model's shape: give --model-shape"
    if roof is None:
        return None
    if len({arm.model for arm in manifest.arms if arm.model}) > 1:
        return "the arms have several models, and the GPUs are given with the shape of one"
    if run.of_selection:
        return "only some of the requests are looked at, and GPUs cannot be shared out"
    return utilisation(run.requests, run.m, roof, sum(pool_sizes(run.server).values()))


def utilisation(requests: Requests, m: Measured, roof: Roof, servers: int = 0) -> Roofline:
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
    step, prompt = _bounds(work, prompts, Roof(roof.model, roof.gpu, roof.gpus / (servers or engines.count)))
    return Roofline(
        model=roof.model.name,
        weights=roof.model.weights,
        gpu=roof.gpu.name,
        gpus=roof.gpus,
        models_asked=_models_asked(requests),
        peak_flops=roof.peak_flops,
        bandwidth_bytes_per_s=roof.bandwidth_bytes_per_s,
        **_arithmetic(prompts.flops(roof.model), output_flops, roof, seconds if prompts.are_known else None),
        **_reads(work, roof, seconds if work.events or not prompts.answered else None),
        engines=engines.count,
        batch_mean=_over(work.events, work.steps),
        context_mean=_over(work.contexts, work.decoded),
        tpot_bound_ms=None if step is None else step.seconds * 1e3,
        tpot_bound_by=None if step is None else step.binds,
        ttft_bound_ms=None if prompt is None else prompt.seconds * 1e3,
        ttft_bound_by=None if prompt is None else prompt.binds,
        prompts=prompts.answered,
        prompts_unknown=prompts.answered - len(prompts.tokens),
        prompts_cache_unknown=int(np.isnan(prompts.cached).sum()),
        cached_share=_over(float(np.nansum(prompts.cached)), float(prompts.tokens.sum())),
    )


def _models_asked(requests: Requests) -> int:
    found: set[str] = set()
    for part in requests.parts(["model"]):
        models = part.labels("model")
        found.update(models.names[code] for code in np.unique(models.codes) if code >= 0)
    return len(found)


def _arithmetic(prompts: float, outputs: float, roof: Roof, seconds: float | None) -> dict[str, float | None]:
    if seconds is None:
        return dict.fromkeys(("mfu", "flops_per_s", "prompt_flops_share"))
    rate = (prompts + outputs) / seconds
    share = _over(prompts, prompts + outputs)
    return {"mfu": rate / roof.peak_flops, "flops_per_s": rate, "prompt_flops_share": share}


def _reads(work: DecodeWork, roof: Roof, seconds: float | None) -> dict[str, float | None]:
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


def _bounds(work: DecodeWork, prompts: "_Prompts", engine: Roof) -> tuple[Bound | None, Bound | None]:
    """Those of a decode step, and of a prompt's first token."""
    batch, context = _over(work.events, work.steps), _over(work.contexts, work.decoded)
    computed = prompts.tokens - np.nan_to_num(prompts.cached)
    step = None if batch is None or context is None else decode_bound(engine, batch, context)
    prompt = prefill_bound(engine, float(np.median(computed))) if len(computed) else None
    return step, prompt


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


# --- Where the time of a run went, and what it reached of its GPUs' bandwidth and arithmetic


_TERA = 1e12


def show(summary: "Summary") -> Section | None:
    """MFU, MBU, and the latencies beside their bounds; None where no GPU and no model was given."""
    part = summary.roofline
    if part is None:
        return None
    if isinstance(part, str):
        return Section("Roofline", (Line(f"no figures: {clean(part)}", Tone.WARN),))
    what = f"{clean(part.model)} ({clean(part.weights)}) on {number_of_gpus(part)}"
    tpot, ttft = summary.latency_ms["tpot"].known, summary.latency_ms["ttft"].known
    lines = (
        Line(f"{what}, by data sheet"),
        Line(_mfu(part)),
        Line(_mbu(part)),
        Line(_steps(part)),
        Line(_latency(tpot.p50, part.tpot_bound_ms, part.tpot_bound_by, "TPOT")),
        Line(_latency(ttft.p50, part.ttft_bound_ms, part.ttft_bound_by, "TTFT")),
    )
    return Section("Roofline", tuple(line for line in lines if line.text), notes=tuple(_doubts(part)))


def number_of_gpus(part: Roofline) -> str:
    """``4 × H100 SXM``."""
    return f"{part.gpus:g} × {clean(part.gpu)}"


def _mfu(part: Roofline) -> str:
    if part.mfu is None or part.flops_per_s is None:
        return "MFU unknown: no prompt length is known"
    share = part.prompt_flops_share
    return sentence(
        [
            f"MFU {percent(part.mfu)}",
            f"{number(part.flops_per_s / _TERA)} of {number(part.peak_flops / _TERA)} TFLOP/s",
            "" if share is None else f"{percent(share)} of it for prompts",
        ]
    )


def _mbu(part: Roofline) -> str:
    if part.mbu is None or part.bytes_per_s is None:
        return "MBU unknown: no answer was streamed"
    share = part.kv_share
    reached, most = (part.bytes_per_s / _TERA, part.bandwidth_bytes_per_s / _TERA)
    return sentence(
        [
            f"MBU {percent(part.mbu)} at least",
            f"{number(reached)} of {number(most)} TB/s",
            "" if share is None else f"{percent(share)} of it for keys and values",
        ]
    )


def _steps(part: Roofline) -> str:
    if part.batch_mean is None or part.steps_per_s is None:
        return ""
    return sentence(
        [
            f"{plural(part.engines, 'engine')}, {number(part.steps_per_s)} decode steps/s at least",
            f"{number(part.batch_mean)} sequences per step",
            "" if part.context_mean is None else f"{count(part.context_mean)} tokens each",
        ]
    )


def _latency(reached: float | None, bound: float | None, bound_by: str | None, name: str) -> str:
    if reached is None or not bound:
        return ""
    by = {"memory": "bandwidth", "compute": "FLOP/s"}.get(bound_by or "", "")
    return (
        f"{name} p50 {number(reached)} ms, {number(reached / bound)} × its bound of "
        f"{number(bound)} ms by {by}"
    )


def _doubts(part: Roofline) -> Iterator[Line]:
    for name, share in (("MFU", part.mfu), ("MBU", part.mbu)):
        if (share or 0) > 1:
            yield Line(f"{name} over 100 %: the given GPU, number of GPUs or model is wrong", Tone.WARN)
    if part.models_asked > 1:
        yield Line(
            f"requests named {part.models_asked} models, each counted as {clean(part.model)}: right for its "
            "adapters, wrong for any other model",
            Tone.WARN,
        )
    unknown, untold = part.prompts_unknown, part.prompts_cache_unknown
    if unknown:
        yield Line(f"{plural(unknown, 'prompt')} of unknown length left out", Tone.WARN)
    if untold:
        yield Line(
            f"usage does not report cached tokens for {plural(untold, 'prompt')}: counted as computed, "
            "which is too much with a prefix cache",
            Tone.FAINT,
        )
