"""Cost of the answers, and how much of the GPUs' bandwidth and arithmetic they took."""

from collections.abc import Callable, Iterator, Mapping

from llm_locust.figures.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.figures.summary import Summary
from llm_locust.figures.text import clean, count, number, percent, plural, seconds, sentence
from llm_locust.metrics.summary_types.resources import (
    Bottleneck,
    Cost,
    CostFigures,
    GivenPrices,
    Roofline,
    SlopeFigures,
)

# --------------------
# What the answers cost, and what one GPU gave, where a price or a number of GPUs is known.
# --------------------


#: Key of summary.json, what it is per, and how many of them: a price of one request has few digits.
_FIGURES = (
    ("total", "the window", 1),
    ("per_request", "1,000 requests", 1000),
    ("per_good_request", "1,000 good requests", 1000),
    ("per_million_input_tokens", "1M input tokens", 1),
    ("per_million_output_tokens", "1M output tokens", 1),
    ("per_million_good_output_tokens", "1M good output tokens", 1),
    ("per_session", "a session", 1),
)
_BASES = (
    ("gpu", "by GPU", ("gpu_hour_cost", "gpus")),
    ("api", "by API", ("input_token_price", "output_token_price")),
)

#: What is missing is worth a line where somebody may have expected the figure.
_EXPECTED = {"per_good_request": "no cost of good requests"}


def cost(summary: Summary) -> Section | None:
    """The whole cost over what came out, by GPU hours and by token prices; None where neither is given."""
    part = summary.cost
    if part is None:
        return None
    prices = part.prices
    shown = [
        (key, head) for key, head, names in _BASES if any(prices.figure(name) is not None for name in names)
    ]
    of_basis = {"gpu": part.gpu, "api": part.api}
    figures = [(key, head) for key, head in shown if of_basis[key].total is not None]
    columns = (Column("For", left=True), *(Column(head) for _, head in figures))
    rows = tuple(_rows([of_basis[key] for key, _ in figures]))
    return Section(
        "Cost",
        tuple(_lines(summary, part, prices)),
        Table(columns, rows) if rows else None,
        tuple(_missing(part.missing, [key for key, _ in shown], bool(figures))),
    )


def _lines(summary: Summary, part: Cost, prices: GivenPrices) -> Iterator[Line]:
    gpus = plural(prices.gpus, "GPU") if prices.gpus is not None else ""
    if gpus and prices.gpu_hour_cost is not None:
        window = seconds(summary.window.seconds)
        yield Line(f"{gpus} at {number(prices.gpu_hour_cost)} per hour, over the {window} of the window")
    inputs, outputs = prices.input_token_price, prices.output_token_price
    if inputs is not None and outputs is not None:
        yield Line(f"API: {number(inputs)} for 1M input tokens · {number(outputs)} for 1M output tokens")
    per_gpu = part.per_gpu
    given = [
        f"{number(per_gpu.figure(key))} {unit}"
        for key, unit in (
            ("goodput_requests_per_s", "good requests/s"),
            ("goodput_output_tokens_per_s", "good output tokens/s"),
            ("output_tokens_per_s", "output tokens/s"),
        )
        if per_gpu.figure(key) is not None
    ]
    if given:
        yield Line(f"each of {gpus}: {sentence(given)}")


def _rows(bases: list[CostFigures]) -> Iterator[TableRow]:
    for key, label, times in _FIGURES:
        values = [base.figure(key) for base in bases]
        if any(value is not None for value in values):
            yield TableRow((label, *(number(None if value is None else times * value) for value in values)))


def _missing(missing: Mapping[str, str], bases: list[str], has_figures: bool) -> Iterator[Line]:
    for base in bases:
        if base in missing:
            yield Line(f"no cost by {base.upper()}: {missing[base]}", Tone.WARN)
    for key, what in _EXPECTED.items():
        if has_figures and key in missing:
            yield Line(f"{what}: {missing[key]}", Tone.FAINT)


# --------------------
# Where the time of a run went, and what it reached of its GPUs' bandwidth and arithmetic.
# --------------------


_TERA = 1e12

_PARTS = ("connection", "fixed", "prefill", "queue", "decode")


def bottleneck(summary: Summary) -> Section | None:
    """Where the time of answers went, with its evidence, and what shortens it."""
    part = summary.bottleneck
    if isinstance(part, str):
        return None
    remedy = f"{'what to do' if part.verdict == 'client' else 'to shorten it'}: {_remedy(summary, part)}"
    lines = (Line(_VERDICTS[part.verdict](summary, part)), Line(remedy), *_of_the_bounds(summary))
    rows = tuple(
        TableRow(
            (
                name,
                number(getattr(part.parts_ms, name)),
                percent(getattr(part.shares, name)),
                _evidence(part, name),
            )
        )
        for name in _PARTS
    )
    columns = (
        Column("Time of an answer", left=True),
        Column("mean ms"),
        Column("share"),
        Column("seen in", left=True, wraps=True),
    )
    return Section(
        "Where the time goes", lines, Table(columns, rows), tuple(_reservations(part)), stacked=True
    )


def _of_the_bounds(summary: Summary) -> Iterator[Line]:
    """What prefill and decode reach of the roofline, medians beside medians; nothing without a roofline."""
    roof = summary.roofline
    if roof is None or isinstance(roof, str):
        return
    ttft, tpot = summary.latency_ms["ttft"].known.p50, summary.latency_ms["tpot"].known.p50
    yield from _reached("prefill", "TTFT", ", its queue included", ttft, roof.ttft_bound_ms)
    yield from _reached("decode", "TPOT", "", tpot, roof.tpot_bound_ms)


def _reached(part: str, metric: str, more: str, p50: float | None, bound: float | None) -> Iterator[Line]:
    if not p50 or not bound:
        return
    beside = f"{metric} p50 {number(p50)} ms{more}, {number(bound)} ms by the roofline"
    if bound > p50:
        text = "the given GPU, number of GPUs or model is wrong, or tokens are not made one a step"
        yield Line(f"{part} is faster than its bound: {beside}: {text}", Tone.WARN)
        return
    yield Line(f"{part} reaches {percent(bound / p50)} of its bound: {beside}")


def _largest(name: str, words: str) -> Callable[[Summary, Bottleneck], str]:
    def verdict(_summary: Summary, part: Bottleneck) -> str:
        return f"mostly {name}: {percent(getattr(part.shares, name))} of the time of an answer is {words}"

    return verdict


def _client_bound(summary: Summary, _part: Bottleneck) -> str:
    why = "".join(f": {clean(reason)}" for reason in summary.client.reasons[:1])
    return f"not known: the client is invalid, and its own delays are in these times{why}"


def _prefill_bound(summary: Summary, part: Bottleneck) -> str:
    own = f"mostly prefill: {percent(part.shares.prefill)} of the time of an answer is its own prompt"
    if part.prefill_busy is None or (summary.server is not None and summary.server.pools is not None):
        return own
    return f"{own}; an engine spends {percent(part.prefill_busy)} of its time on prompts, which delays others"


_VERDICTS: Mapping[str, Callable[[Summary, Bottleneck], str]] = {
    "client": _client_bound,
    "balancer": lambda _, part: f"mostly balancer: {clean(part.cause or '')}",
    "connection": _largest("connection", "connecting and the round trip of the network"),
    "fixed": _largest("fixed", "the same for every request, whatever its length and the load"),
    "prefill": _prefill_bound,
    "queue": _largest("queue", "waiting before the prompt is begun"),
    "decode": _largest("decode", "from its first to its last token"),
}

_REMEDIES = {
    "client": "more workers, or less load for each; then measure again",
    "balancer": "take that replica out of rotation, or balance by requests in flight",
    "connection": "keep connections open, and run client and server nearer to each other",
    "fixed": "look at gateway, tokenizer and authentication, which come before the engine",
    "prefill": "a prefix cache, shorter prompts, separate replicas for prefill, or more FLOP/s",
    "queue": "a larger batch limit (max_num_seqs) if the KV cache has room, or more replicas",
    "decode": "smaller or quantised weights, more memory bandwidth, speculative decoding, or shorter answers",
}


_WITH_POOLS = "a prefix cache, shorter prompts, or more prefill servers"


def _remedy(summary: Summary, part: Bottleneck) -> str:
    """What would help; of prefill and decode servers they tell more than the client can."""
    pools = None if summary.server is None else summary.server.pools
    if pools is not None and part.verdict == "prefill":
        return _WITH_POOLS
    parts = None if pools is None else pools.ttft
    if parts is None or part.verdict != "fixed":
        return _REMEDIES[part.verdict]
    known = {"prefill": parts.prefill_ms, "the KV transfer": parts.transfer_ms}
    rest = {"gateway, tokenizer and authentication": parts.client_ms - sum(known.values())}
    shares = [
        f"{name} {number(ms)} ms" for name, ms in sorted((known | rest).items(), key=lambda each: -each[1])
    ]
    return f"of {number(parts.client_ms)} ms of TTFT {', '.join(shares)}: begin with the first"


def _evidence(part: Bottleneck, name: str) -> str:
    if name == "connection":
        return f"{percent(part.new_connections)} of requests opened a connection"
    if name == "fixed":
        return "the fastest request" if part.always_queued else "requests that were alone"
    if name == "prefill":
        if part.prefill_us_per_token is None:
            return "prompts of about one length: it is part of fixed"
        return _slope(part.prefill_us_per_token, "µs per prompt token") or "TTFT does not grow beyond noise"
    if name == "queue":
        return f"{number(part.waiting_mean)} others waited on average"
    found = [
        _slope(part.tpot_us_per_request, "µs of TPOT per request in flight"),
        _slope(part.tpot_us_per_context_token, "µs of TPOT per token of context"),
    ]
    return sentence(found) or "TPOT changes with neither load nor context, beyond noise"


def _slope(line: SlopeFigures | None, unit: str) -> str:
    """The slope with its interval; empty where it is not beyond noise."""
    if line is None or line.ci95[0] <= 0 <= line.ci95[1]:
        return ""
    return f"{number(line.slope)} {unit} ({number(line.ci95[0])} to {number(line.ci95[1])})"


def _reservations(part: Bottleneck) -> Iterator[Line]:
    if part.always_queued:
        yield Line(
            "hardly any request was alone: how much of fixed and queue is which is uncertain", Tone.WARN
        )
    if part.left_out:
        yield Line(
            f"without {plural(part.left_out, 'request')} that failed, were cut or not streamed", Tone.WARN
        )


def roofline(summary: Summary) -> Section | None:
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
