"""How figures, changes and gates of a comparison are written."""

import math

from llm_locust.metrics.compare.comparable import Metric
from llm_locust.metrics.compare.comparison import Row, Verdict
from llm_locust.metrics.compare.relative_gates import GateResult, State, resolution
from llm_locust.metrics.gates import MetricKind
from llm_locust.metrics.stats.estimates import Difference
from llm_locust.report.section import Tone
from llm_locust.report.text import UNDEFINED, number, percent

TONES = {
    Verdict.BETTER: Tone.GOOD,
    Verdict.WORSE: Tone.BAD,
    Verdict.NO_DIFFERENCE: Tone.PLAIN,
    Verdict.TOO_FEW: Tone.FAINT,
    Verdict.UNDETERMINED: Tone.WARN,
}
_SHORT = {Verdict.NO_DIFFERENCE: "no difference"}


def figure(metric: Metric, value: float | None) -> str:
    """Latencies in milliseconds, shares in per cent."""
    if metric.kind is MetricKind.SHARE:
        return percent(value)
    return number(None if value is None else shown(metric, value))


def shown(metric: Metric, value: float) -> float:
    """The value in its report's unit: milliseconds for latencies."""
    return value * 1e3 if metric.kind is MetricKind.LATENCY else value


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
    if row.metric.kind is MetricKind.SHARE:
        return f"{_signed(100 * value)} pp"
    text = number(abs(shown(row.metric, value)))
    return text if text == "0" else ("-" if value < 0 else "+") + text


def verdict(row: Row) -> str:
    if row.why_open is not None:
        return why_open(row)
    return _SHORT.get(row.verdict, str(row.verdict))


def why_open(row: Row) -> str:
    """Which run has no figure though it has samples, and why."""
    return f"undetermined in {row.missing}: {row.why_open}"


def gate_tone(result: GateResult) -> Tone:
    """Of what the gate came to; a change that is over the limit within noise is marked too."""
    if result.state.finding == "broken":
        return Tone.BAD
    return Tone.GOOD if result.state in (State.HELD, State.HELD_APART) else Tone.WARN


def gate_text(result: GateResult) -> str:
    """What a gate asked, what it came to and why, and the figures."""
    row, metric = result.row, result.row.metric
    finding = result.state.finding
    head = f"{result.gate.text}  {finding if finding == 'held' else finding.upper()}"
    reason = gate_reason(result)
    if result.state is State.BROKEN:
        head += " beyond noise"
    elif reason is not None:
        head += f": {reason}"
    if result.state is State.NO_SAMPLES:
        return head
    figures = f"{figure(metric, row.base)} → {figure(metric, row.new)}"
    figures = f"{figures}{_gate_interval(result)}"
    if result.change is None:
        return f"{head} ({figures})"
    note = gate_note(result)
    return f"{head}: {gate_change(result)} ({figures})" + ("" if note is None else f" {note}")


def gate_reason(result: GateResult) -> str | None:
    """Why a gate broke or is unknown, or held in spite of the figure; None where it held."""
    row, metric = result.row, result.row.metric
    lacking = f"no samples, {row.missing} has no value for {metric.name}"
    if row.why_open is not None:
        lacking = why_open(row)
    reason = {
        State.HELD: None,
        State.HELD_APART: "not one request of new is far enough from base's",
        State.WITHIN_NOISE: "over the limit, but within noise",
        State.BROKEN: "the change is over the limit by more than noise",
        State.BROKEN_APART: "every request of new is further from every one of base than the limit",
        State.BROKEN_BY_RANKS: f"more samples than expected are above the limit on {metric.statistic}",
        State.BROKEN_BY_FAILURES: _of_failures(result),
        State.NO_SAMPLES: lacking,
        State.FAILED_IN_BASE: f"cannot tell: {_of_failures(result)}",
        State.TOO_NOISY: f"noise could hide a change of {_twice_the_limit(result)}",
        State.OVER: "over the limit, though not beyond noise",
        State.AMONG_GATES: "broken if it were the only gate, but one of several may look so by chance",
        State.TOO_FEW: "too few independent samples to know the noise",
        State.OF_A_PART: "cannot tell: base or new is a part of a run (see the warnings)",
        State.CLIENT_INVALID: "cannot tell: the client of base or new was too slow (see the warnings)",
        State.OPEN: f"requests that were given up or failed leave no {_open_end(result)} bound of the change",
    }[result.state]
    if reason is None or result.times is None:
        return reason
    return f"{reason}; {requests_needed(result.times)}"


#: Of more times the requests it is said that they are many.
_MOST_TIMES = 100.0


def requests_needed(times: float) -> str:
    """``about 3 times the requests would tell``."""
    if times > _MOST_TIMES:
        return f"more than {_MOST_TIMES:.0f} times the requests would be needed to tell"
    return f"about {max(1.1, times):.2g} times the requests would tell"


def _twice_the_limit(result: GateResult) -> str:
    gate, base = result.gate, result.row.base or 0.0
    limit = abs(gate.limit) + resolution(gate, base)
    unit = "pp" if gate.in_points or not base else "%"
    return f"{'+' if gate.is_upper else '-'}{100 * limit:.3g} {unit}"


def gate_limit(result: GateResult) -> str:
    """``at most +5 %``, ``at least -1 %``; of points ``at most +0.5 pp``."""
    words = {"<=": "at most", "<": "less than", ">=": "at least", ">": "more than"}
    return f"{words[result.gate.op]} {100 * result.gate.limit:+.4g} {_gate_unit(result)}".replace("+0 ", "0 ")


def _open_end(result: GateResult) -> str:
    return "upper" if result.gate.is_upper else "lower"


def _of_failures(result: GateResult) -> str:
    """What failed requests do to the figure."""
    if result.gate.metric.statistic == "mean":
        return f"{_failed(result)}, and a mean cannot include them; limit a percentile"
    if result.gate.metric.name == "on_time":
        return f"{_failed(result)}, and on_time is of answers alone; limit goodput"
    statistic = result.gate.metric.statistic.replace("_", ".")
    runs = [name for name, value in (("base", result.row.base), ("new", result.row.new)) if value == math.inf]
    return f"{_failed(result)}: the {statistic} of all requests falls on a failed one in {' and '.join(runs)}"


def _failed(result: GateResult) -> str:
    base, new = result.failed or (0.0, 0.0)
    return f"{percent(base)} failed in base, {percent(new)} in new"


def gate_note(result: GateResult) -> str | None:
    """How many requests failed, and whether they are in the figures; None where it does not matter."""
    if result.failed is None:
        return None
    of = "all requests" if result.gate.is_adjusted else "requests with an answer"
    return f"of {of}: {_failed(result)}"


def gate_change(result: GateResult) -> str:
    """In the limit's unit; from 0 in the figure's own."""
    if result.interval is None:
        return f"{absolute(result.row)} from 0"
    return f"{_signed(100 * result.interval.value)} {_gate_unit(result)}"


def _gate_interval(result: GateResult) -> str:
    found = result.interval
    if found is None or not (math.isfinite(found.low) or math.isfinite(found.high)):
        return ""
    return f", interval {_signed(100 * found.low)} … {_signed(100 * found.high)} {_gate_unit(result)}"


def _gate_unit(result: GateResult) -> str:
    return "pp" if result.gate.in_points else "%"


def _relative(row: Row) -> Difference | None:
    """The change in per cent; of a share in points."""
    found = row.difference if row.metric.kind is MetricKind.SHARE else row.change
    if found is None:
        return None
    return Difference(100 * found.value, 100 * found.low, 100 * found.high)


def _unit(row: Row) -> str:
    return "pp" if row.metric.kind is MetricKind.SHARE else "%"


def _signed(value: float) -> str:
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    text = f"{value:+.1f}" if abs(value) >= 0.1 else f"{value:+.2f}"
    return "0.0" if float(text) == 0 else text
