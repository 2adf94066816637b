"""What a run reached of its GPUs' bandwidth and arithmetic, where these are known."""

from collections.abc import Iterator, Mapping
from typing import Any

from llm_locust.report.section import Line, Section, Tone
from llm_locust.report.text import clean, count, is_defined, number, percent, plural, sentence

Part = Mapping[str, Any]

_TERA = 1e12


def roofline(summary: Part) -> Section | None:
    """MFU, MBU, and the latencies beside their bounds; None where no GPU and no model was given."""
    part = summary.get("roofline") or {}
    if not part:
        return None
    if part.get("missing"):
        return Section("Roofline", (Line(f"no figures: {clean(part['missing'])}", Tone.WARN),))
    what = f"{clean(part.get('model'))} ({clean(part.get('weights'))}) on {number_of_gpus(part)}"
    lines = (
        Line(f"{what}, by data sheet"),
        Line(_mfu(part)),
        Line(_mbu(part)),
        Line(_steps(part)),
        Line(_latency(summary, part, "tpot")),
        Line(_latency(summary, part, "ttft")),
    )
    return Section("Roofline", tuple(line for line in lines if line.text), notes=tuple(_doubts(part)))


def number_of_gpus(part: Part) -> str:
    """``4 × H100 SXM``."""
    return f"{part.get('gpus') or 0:g} × {clean(part.get('gpu'))}"


def _mfu(part: Part) -> str:
    if not is_defined(part.get("mfu")):
        return "MFU not known: no length of a prompt is"
    share = part.get("prompt_flops_share")
    return sentence(
        [
            f"MFU {percent(part['mfu'])}",
            f"{number(part['flops_per_s'] / _TERA)} of {number(part['peak_flops'] / _TERA)} TFLOP/s",
            "" if share is None else f"{percent(share)} of it for prompts",
        ]
    )


def _mbu(part: Part) -> str:
    if not is_defined(part.get("mbu")):
        return "MBU not known: no answer came as a stream"
    share = part.get("kv_share")
    reached, most = (part[key] / _TERA for key in ("bytes_per_s", "bandwidth_bytes_per_s"))
    return sentence(
        [
            f"MBU {percent(part['mbu'])} at least",
            f"{number(reached)} of {number(most)} TB/s",
            "" if share is None else f"{percent(share)} of it for keys and values",
        ]
    )


def _steps(part: Part) -> str:
    if part.get("batch_mean") is None or part.get("steps_per_s") is None:
        return ""
    return sentence(
        [
            f"{plural(part.get('engines'), 'engine')}, {number(part['steps_per_s'])} decode steps/s at least",
            f"{number(part['batch_mean'])} sequences a step",
            "" if part.get("context_mean") is None else f"{count(part['context_mean'])} tokens each",
        ]
    )


def _latency(summary: Part, part: Part, name: str) -> str:
    reached = ((summary.get("latency_ms") or {}).get(name) or {}).get("p50")
    bound = part.get(f"{name}_bound_ms")
    if reached is None or not bound:
        return ""
    by = {"memory": "bandwidth", "compute": "FLOP/s"}.get(str(part.get(f"{name}_bound_by")), "")
    return (
        f"{name.upper()} p50 {number(reached)} ms, {number(reached / bound)} × its bound of "
        f"{number(bound)} ms by {by}"
    )


def _doubts(part: Part) -> Iterator[Line]:
    for key in ("mfu", "mbu"):
        if (part.get(key) or 0) > 1:
            yield Line(
                f"{key.upper()} over 100 %: the GPU, their number or the model is another one", Tone.WARN
            )
    unknown, untold = part.get("prompts_unknown") or 0, part.get("prompts_cache_unknown") or 0
    if unknown:
        yield Line(f"{plural(unknown, 'prompt')} of unknown length left out", Tone.WARN)
    if untold:
        yield Line(
            f"of {plural(untold, 'prompt')} usage does not say how much was cached: counted as computed, "
            "which a prefix cache would make too much",
            Tone.FAINT,
        )
