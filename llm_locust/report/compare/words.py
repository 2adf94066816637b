"""How figures, changes and gates of a comparison are written."""

import math

from llm_locust.metrics.comparable import Metric
from llm_locust.metrics.comparison import Row, Verdict
from llm_locust.metrics.estimates import Difference
from llm_locust.metrics.gates import Kind
from llm_locust.metrics.relative_gates import GateResult, State
from llm_locust.report.section import Tone
from llm_locust.report.text import UNDEFINED, number, percent

_LATENCIES = {
    "ttft": "TTFT",
    "ttfo": "TTFO",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2el": "E2EL",
    "ttft_started": "TTFT conn.",
    "ttft_scheduled": "TTFT sched.",
    "e2el_scheduled": "E2EL sched.",
    "schedule_delay": "Delay",
    "connect": "Connect",
}
_OTHERS = {
    "goodput": "Goodput ratio",
    "on_time": "Tokens on time",
    "error_rate": "Error rate",
    "rps": "Requests/s",
    "output_tps": "Output tokens/s",
    "output_cps": "Output chars/s",
    "input_tps": "Input tokens/s",
    "total_tps": "Tokens/s",
    "goodput_rps": "Good requests/s",
}

TONES = {
    Verdict.BETTER: Tone.GOOD,
    Verdict.WORSE: Tone.BAD,
    Verdict.NO_DIFFERENCE: Tone.PLAIN,
    Verdict.TOO_FEW: Tone.FAINT,
}
GATE_TONES = {
    State.HELD: Tone.GOOD,
    State.WITHIN_NOISE: Tone.WARN,
    State.TOO_FEW: Tone.WARN,
    State.BROKEN: Tone.BAD,
    State.NO_SAMPLES: Tone.BAD,
}
_SHORT = {Verdict.NO_DIFFERENCE: "no difference"}


def label(metric: Metric, marked: bool = False) -> str:
    """``TTFT p99``; ``marked`` puts † behind figures of tokens."""
    if metric.kind is Kind.LATENCY:
        text = f"{_LATENCIES[metric.latency]} {metric.statistic.replace('_', '.')}"
    else:
        text = f"Held {metric.limit}" if metric.limit else _OTHERS[metric.name]
    return text + (" †" if marked and metric.of_tokens else "")


def figure(metric: Metric, value: float | None) -> str:
    """Latencies in milliseconds, shares in per cent."""
    if metric.kind is Kind.SHARE:
        return percent(value)
    return number(None if value is None else shown(metric, value))


def shown(metric: Metric, value: float) -> float:
    """The value in its report's unit: milliseconds for latencies."""
    return value * 1e3 if metric.kind is Kind.LATENCY else value


def change(row: Row) -> str:
    """``+10.7 %`` of base's figure; of a share ``-1.20 pp``."""
    relative = _relative(row)
    return UNDEFINED if relative is None else f"{_signed(relative.value)} {_unit(row)}"


def change_interval(row: Row) -> str:
    """``+8.1 … +13.2``, in the unit of the change; a dash where neither end is known."""
    relative = _relative(row)
    if relative is None or not (math.isfinite(relative.low) or math.isfinite(relative.high)):
        return UNDEFINED
    return f"{_signed(relative.low)} … {_signed(relative.high)}"


def absolute(row: Row) -> str:
    """The difference in the figure's own unit."""
    if row.difference is None:
        return UNDEFINED
    value = row.difference.value
    if row.metric.kind is Kind.SHARE:
        return f"{_signed(100 * value)} pp"
    text = number(abs(shown(row.metric, value)))
    return text if text == "0" else ("-" if value < 0 else "+") + text


def verdict(row: Row) -> str:
    return _SHORT.get(row.verdict, str(row.verdict))


def gate_text(result: GateResult) -> str:
    """What a gate asked, what was found, and what follows."""
    row, metric = result.row, result.row.metric
    if result.state is State.NO_SAMPLES:
        missing = "base" if row.base is None else "new"
        return f"{result.gate.text}  BROKEN: no samples, {missing} has no value of {metric.name}"
    found = f"{change(row)}" if row.change or metric.kind is Kind.SHARE else f"{absolute(row)} from 0"
    interval = change_interval(row)
    known = "" if interval == UNDEFINED else f", interval {interval} {_unit(row)}"
    said = {
        State.HELD: "held",
        State.WITHIN_NOISE: "not broken: over the limit, but within noise",
        State.TOO_FEW: "not broken: over the limit, but too few samples to tell it from noise",
        State.BROKEN: "BROKEN beyond noise",
    }[result.state]
    figures = f"{figure(metric, row.base)} → {figure(metric, row.new)}"
    return f"{result.gate.text}  {said}: {found} ({figures}{known})"


def _relative(row: Row) -> Difference | None:
    """The change in per cent; of a share in points."""
    found = row.difference if row.metric.kind is Kind.SHARE else row.change
    if found is None:
        return None
    return Difference(100 * found.value, 100 * found.low, 100 * found.high)


def _unit(row: Row) -> str:
    return "pp" if row.metric.kind is Kind.SHARE else "%"


def _signed(value: float) -> str:
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    text = f"{value:+.1f}" if abs(value) >= 0.1 else f"{value:+.2f}"
    return "0.0" if float(text) == 0 else text
