"""The figures that two runs can be compared by, under the names that gates give them."""

from dataclasses import dataclass

from llm_locust.metrics.catalogue import LATENCIES, shown_in
from llm_locust.metrics.gates import MetricKind
from llm_locust.metrics.latency_metric import View
from llm_locust.metrics.requests.slo import SLO_METRICS
from llm_locust.metrics.stats.percentiles import PERCENTILES

_GATED = tuple(metric for metric in LATENCIES if metric.is_gated)
STATISTICS = ("mean", *PERCENTILES)

#: Figures per token or per event of a stream: with another tokenizer they are of another unit.
_OF_TOKENS = frozenset(
    {*(metric.key for metric in LATENCIES if metric.is_of_tokens), "output_tps", "input_tps", "total_tps"}
)


@dataclass(frozen=True, slots=True)
class Metric:
    """``latency`` and ``statistic`` are set for latencies alone. ``limit`` is the one of an attainment."""

    name: str
    kind: MetricKind
    lower_is_better: bool = False
    of_tokens: bool = False
    latency: str = ""
    statistic: str = ""
    limit: str = ""


_SHARES = (
    Metric("goodput", MetricKind.SHARE),
    *(
        Metric(f"attainment_{limit}", MetricKind.SHARE, limit=limit, of_tokens=limit in _OF_TOKENS)
        for limit in SLO_METRICS
    ),
    Metric("on_time", MetricKind.SHARE, of_tokens=True),
    Metric("error_rate", MetricKind.SHARE, lower_is_better=True),
)
_RATES = tuple(
    Metric(name, MetricKind.NUMBER, of_tokens=name in _OF_TOKENS)
    for name in ("rps", "output_tps", "output_cps", "input_tps", "total_tps", "goodput_rps", "inputs_per_s")
)
_LATENCIES = tuple(
    Metric(
        f"{statistic}_{latency.key}",
        MetricKind.LATENCY,
        lower_is_better=True,
        of_tokens=latency.is_of_tokens,
        latency=latency.key,
        statistic=statistic,
    )
    for latency in _GATED
    for statistic in STATISTICS
)

#: Every figure that has an interval, by its name.
METRICS = {metric.name: metric for metric in (*_LATENCIES, *_SHARES, *_RATES)}

#: Figures of a run without one, and why.
NOT_COMPARED = {
    "requests": "the number of requests is what was asked for, not a result",
    **{f"max_{each.key}": "the largest of many has no interval: gate p99_9 or p99" for each in _GATED},
}

_SHOWN_STATISTICS = ("mean", "p50", "p95", "p99")
_SHOWN_RATES = ("rps", "output_tps", "output_cps", "goodput_rps", "inputs_per_s")


def table_metrics(open_loop: bool) -> tuple[Metric, ...]:
    """The rows of a comparison, in their order; few, because each one widens all intervals."""
    latencies = (each for each in shown_in(View.COMPARISON) if open_loop or not each.is_from_scheduled)
    return (
        *(METRICS[f"{statistic}_{latency.key}"] for latency in latencies for statistic in _SHOWN_STATISTICS),
        *_SHARES,
        *(METRICS[name] for name in _SHOWN_RATES),
    )
