"""What a run reached of its GPUs' bandwidth and arithmetic, where these are known."""

from collections.abc import Iterator

from llm_locust.metrics.summary_types.resources import Roofline
from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.report.section import Line, Section, Tone
from llm_locust.report.text import clean, count, number, percent, plural, sentence

_TERA = 1e12


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
    unknown, untold = part.prompts_unknown, part.prompts_cache_unknown
    if unknown:
        yield Line(f"{plural(unknown, 'prompt')} of unknown length left out", Tone.WARN)
    if untold:
        yield Line(
            f"usage does not report cached tokens for {plural(untold, 'prompt')}: counted as computed, "
            "which is too much with a prefix cache",
            Tone.FAINT,
        )
