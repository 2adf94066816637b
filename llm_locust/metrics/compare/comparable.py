"""The figures that two runs can be compared by, under the names that gates give them."""

from dataclasses import dataclass

from llm_locust.metrics.gates import Kind
from llm_locust.metrics.requests.slo import SLO_METRICS
from llm_locust.metrics.stats.percentiles import PERCENTILES

#: Latencies that a gate may name, and what tells them apart: the first four are of every table.
LATENCIES = (
    "ttft",
    "tpot",
    "itl",
    "e2el",
    "ttft_started",
    "ttft_scheduled",
    "e2el_scheduled",
    "ttfo",
    "schedule_delay",
    "connect",
)
STATISTICS = ("mean", *PERCENTILES)

#: Figures per token or per event of a stream: with another tokenizer they are of another unit.
_OF_TOKENS = frozenset({"tpot", "itl", "output_tps", "input_tps", "total_tps"})


@dataclass(frozen=True, slots=True)
class Metric:
    """``latency`` and ``statistic`` are set for latencies alone. ``limit`` is the one of an attainment."""

    name: str
    kind: Kind
    lower_is_better: bool = False
    of_tokens: bool = False
    latency: str = ""
    statistic: str = ""
    limit: str = ""


_SHARES = (
    Metric("goodput", Kind.SHARE),
    *(
        Metric(f"attainment_{limit}", Kind.SHARE, limit=limit, of_tokens=limit in _OF_TOKENS)
        for limit in SLO_METRICS
    ),
    Metric("on_time", Kind.SHARE, of_tokens=True),
    Metric("error_rate", Kind.SHARE, lower_is_better=True),
)
_RATES = tuple(
    Metric(name, Kind.NUMBER, of_tokens=name in _OF_TOKENS)
    for name in ("rps", "output_tps", "output_cps", "input_tps", "total_tps", "goodput_rps")
)
_LATENCIES = tuple(
    Metric(
        f"{statistic}_{latency}",
        Kind.LATENCY,
        lower_is_better=True,
        of_tokens=latency in _OF_TOKENS,
        latency=latency,
        statistic=statistic,
    )
    for latency in LATENCIES
    for statistic in STATISTICS
)

#: Every figure that has an interval, by its name.
METRICS = {metric.name: metric for metric in (*_LATENCIES, *_SHARES, *_RATES)}

#: Figures of a run without one, and why.
NOT_COMPARED = {
    "requests": "the number of requests is what was asked for, not a result",
    **{f"max_{latency}": "the largest of many has no interval: gate p99_9 or p99" for latency in LATENCIES},
}

_SHOWN_LATENCIES = ("ttft", "tpot", "itl", "e2el")
_SHOWN_OF_OPEN_LOOP = ("ttft_scheduled",)
_SHOWN_STATISTICS = ("mean", "p50", "p95", "p99")
_SHOWN_RATES = ("rps", "output_tps", "output_cps", "goodput_rps")


def table_metrics(open_loop: bool) -> tuple[Metric, ...]:
    """The rows of a comparison, in their order; few, because each one widens all intervals."""
    latencies = (*_SHOWN_LATENCIES, *(_SHOWN_OF_OPEN_LOOP if open_loop else ()))
    return (
        *(METRICS[f"{statistic}_{latency}"] for latency in latencies for statistic in _SHOWN_STATISTICS),
        *_SHARES,
        *(METRICS[name] for name in _SHOWN_RATES),
    )
