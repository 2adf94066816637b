"""Figures of a span: counts of its requests as those of a table's row or a chart's point."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from llm_locust.live.counts import METRICS, Counts
from llm_locust.metrics.columns import OUTCOMES
from llm_locust.metrics.requests.judgement import Limits

#: The percentiles of each latency.
LIVE_PLACES = {"p50": 50.0, "p95": 95.0, "p99": 99.0}


@dataclass(frozen=True, slots=True)
class LiveLatency:
    """Percentiles in milliseconds of the ``n`` samples of requests that ended ok."""

    n: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None

    def at_ms(self, place: str) -> float | None:
        """The percentile of a place such as ``p50``."""
        value: float | None = getattr(self, f"{place}_ms")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFigures:
    """Turns and jobs of agents that ended, as in the report's ``agents``: ``jobs`` are those that finished.

    ``tools_s`` are the recorded pauses that began, ``output_tokens_per_s_p25`` is 1 / p75 of TPOT.
    """

    turns: int
    ok: int
    jobs: int
    jobs_failed: int
    tools_s: float
    output_tokens_per_s_p25: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Requests that ended in a span of ``seconds``. Rates are None if it is empty.

    ``requests`` are the ok and the failed ones. ``goodput`` is the share of good ones among these and those
    that were cancelled after they had exceeded a limit, None without any limit. ``attainment`` is, for each
    limit, the share of the requests it applies to that met it. ``latencies`` has each of
    :data:`~llm_locust.live.counts.METRICS`. Tokens and inputs are counted when their request ends;
    ``inputs_per_s`` is None where no request had inputs, ``images_per_s`` where none had images,
    ``agents`` where none was a turn of an agent.
    ``concurrency`` is the mean number of requests between sent and ended, computed from their durations
    (Little's law): those still in flight are not in it.
    """

    seconds: float
    requests: int
    failures: int
    cancelled: int
    outcomes: Mapping[str, int]
    goodput: float | None
    attainment: Mapping[str, float | None]
    latencies: Mapping[str, LiveLatency]
    requests_per_s: float | None
    failures_per_s: float | None
    good_requests_per_s: float | None
    input_tokens_per_s: float | None
    output_tokens_per_s: float | None
    good_output_tokens_per_s: float | None
    inputs_per_s: float | None
    agents: AgentFigures | None
    images_per_s: float | None
    concurrency: float | None


def figures(counts: Counts, seconds: float, limits: Limits) -> Figures:
    """Figures of requests that ended in ``seconds``."""

    def per_s(amount: float) -> float | None:
        return amount / seconds if seconds > 0 else None

    def share(amount: int, of: int) -> float | None:
        return amount / of if of else None

    return Figures(
        seconds=seconds,
        requests=counts.judged,
        failures=counts.failed,
        cancelled=counts.cancelled,
        outcomes={outcome.value: counts.outcome(outcome) for outcome in OUTCOMES},
        goodput=share(counts["good"], counts["good_or_bad"]),
        attainment={
            metric: share(counts[f"held_{metric}"], counts[f"limited_{metric}"]) for metric in limits.metrics
        },
        latencies={metric: latency(counts, metric) for metric in METRICS},
        requests_per_s=per_s(counts.ok),
        failures_per_s=per_s(counts.failed),
        good_requests_per_s=per_s(counts["good"]) if limits else None,
        input_tokens_per_s=per_s(counts["input_tokens"]),
        output_tokens_per_s=per_s(counts["output_tokens"]),
        good_output_tokens_per_s=per_s(counts["good_output_tokens"]) if limits else None,
        inputs_per_s=per_s(counts["inputs"]) if counts["inputs"] else None,
        agents=_agents(counts) if counts["turns"] else None,
        images_per_s=per_s(counts["images"]) if counts["images"] else None,
        concurrency=per_s(counts["busy_ns"] * 1e-9),
    )


def _agents(counts: Counts) -> AgentFigures:
    slow_s = counts.sketch("tpot").percentile(75.0) if len(counts.sketch("tpot")) else 0.0
    return AgentFigures(
        turns=counts["turns"],
        ok=counts["turns_ok"],
        jobs=counts["jobs"],
        jobs_failed=counts["jobs_failed"],
        tools_s=counts["tools_ns"] * 1e-9,
        output_tokens_per_s_p25=1 / slow_s if slow_s else None,
    )


def latency(counts: Counts, metric: str) -> LiveLatency:
    """Percentiles of one of :data:`~llm_locust.live.counts.METRICS`."""
    sketch = counts.sketch(metric)
    if not len(sketch):
        return LiveLatency(0, None, None, None)
    p50, p95, p99 = (value_s * 1e3 for value_s in sketch.percentiles([*LIVE_PLACES.values()]))
    return LiveLatency(len(sketch), p50, p95, p99)


def rounded(value: float | None, digits: int = 4) -> float | None:
    """Round to this many significant digits, to keep pages small."""
    if value is None or not np.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")
