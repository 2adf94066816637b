"""A store's numbers for Prometheus: totals since the start, in seconds and tokens."""

from collections.abc import Iterable, Iterator
from typing import get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from llm_locust.figures.client_rules import Cause
from llm_locust.live.counts import Counts
from llm_locust.live.snapshot import snapshot
from llm_locust.live.state import WorkerState
from llm_locust.live.store import LiveStore
from llm_locust.metrics.catalogue import LIVE, LatencyMetric
from llm_locust.metrics.columns import OUTCOMES
from llm_locust.metrics.stats.sketch import SKETCH_ERROR, Sketch

_LABELS = ("name", "class", "replica", "model")
_VERDICTS = ("ok", "suspect", "invalid")

#: Span of the verdict: short, so that an alarm ends with its cause.
_VERDICT_S = 30.0


#: Names in Prometheus are a contract with dashboards: ``llm_locust_<key>_seconds``.
_HISTOGRAMS = [(metric, metric.live.buckets_s) for metric in LIVE if metric.live and metric.live.buckets_s]


_AGENTS = {
    "turns_ok": "Turns of agents that ended ok",
    "jobs": "Trajectories that an agent walked through to their end",
    "jobs_failed": "Trajectories that ended with a failed turn",
    "tools_ns": "Recorded pauses of tools that began",
}
_NAMES = {
    "good": "good_requests",
    "turns_ok": "agent_turns_ok",
    "jobs": "agent_jobs",
    "jobs_failed": "agent_jobs_failed",
    "tools_ns": "agent_tools_seconds",
}


class LiveCollector(Collector):
    """Exposes the store's content at each scrape. Nothing before the first run.

    Counters and histograms restart with each run and each reset, which Prometheus treats as a process
    restart. Histograms cover requests that ended ok; a bucket's limit is exact to 0.8 %.
    """

    def __init__(self, store: LiveStore) -> None:
        self._store = store

    def describe(self) -> Iterable[Metric]:
        """Nothing: the metrics depend on the run, and the registry need not scrape to learn them."""
        return ()

    def collect(self) -> Iterator[Metric]:
        store = self._store
        if not store.run.id:
            return
        series = [([*key, store.run.model], counts) for key, counts in sorted(store.content.totals.items())]
        for metric, buckets_s in _HISTOGRAMS:
            yield _histogram(metric, buckets_s, series)
        yield _requests(series)
        yield from _counters(series, judged=bool(store.run.limits))
        yield from self._load()
        yield from self._client()

    def _load(self) -> Iterator[Metric]:
        run, seen = self._store.run, self._store.observation
        yield InfoMetricFamily("llm_locust_run", "The present run", {"run": run.id, "model": run.model})
        missed = CounterMetricFamily(
            "llm_locust_missed_requests", "Requests that are in no number: their report was lost"
        )
        missed.add_metric([], self._store.missed)
        yield missed
        if seen is None:
            return
        if seen.in_flight is not None:
            yield _gauge("concurrency", "Requests under way", seen.in_flight)
        yield _gauge("users", "Users that run", seen.users)
        yield _gauge("workers", "Workers that are there", sum(w.here for w in seen.workers))
        yield _gauge("workers_lost", "Workers that are not heard any more", sum(w.lost for w in seen.workers))
        if seen.rate is not None:
            yield _gauge("request_rate", "Requests per second that are asked for", seen.rate)

    def _client(self) -> Iterator[Metric]:
        recent = snapshot(self._store, _VERDICT_S, rows=False)
        if not self._store.run.open_loop:
            about = "Users whose request is silent for longer than is usual"
            yield _gauge("hung_users", about, recent.hung.n)
        lag_ms = recent.total.latencies["client_lag"].p99_ms
        if lag_ms is not None:
            about = "How late the client read, p99 of the last 30 s"
            yield _gauge("client_lag_seconds", about, lag_ms * 1e-3)
        workers = recent.observation.workers
        yield from _of_workers(workers)
        verdicts = GaugeMetricFamily(
            "llm_locust_client_verdict", "1 for the client's verdict on the last 30 s", labels=["verdict"]
        )
        for name in _VERDICTS:
            verdicts.add_metric([name], float(name == recent.validity.severity))
        yield verdicts
        causes = GaugeMetricFamily(
            "llm_locust_client_late", "1 for why the client was late in the last 30 s", labels=["cause"]
        )
        for name in get_args(Cause):
            causes.add_metric([name], float(name == recent.validity.cause))
        yield causes


def registry(store: LiveStore) -> CollectorRegistry:
    """Registry of only this store's metrics."""
    own = CollectorRegistry(auto_describe=False)
    own.register(LiveCollector(store))
    return own


Series = list[tuple[list[str], Counts]]


def _histogram(metric: LatencyMetric, buckets_s: tuple[float, ...], series: Series) -> Metric:
    family = HistogramMetricFamily(
        f"llm_locust_{metric.key}_seconds",
        f"{metric.definition}; limits are met to {SKETCH_ERROR:.1%}",
        labels=_LABELS,
    )
    for labels, counts in series:
        sketch = counts.sketch(metric.key)
        if len(sketch):
            family.add_metric(labels, _buckets(sketch, buckets_s), sketch.sum_s)
    return family


def _buckets(sketch: Sketch, limits_s: tuple[float, ...]) -> list[tuple[str, float]]:
    below = zip(limits_s, sketch.at_most(limits_s), strict=True)
    return [*((str(limit), float(n)) for limit, n in below), ("+Inf", float(len(sketch)))]


def _requests(series: Series) -> Metric:
    family = CounterMetricFamily(
        "llm_locust_requests", "Requests that ended, by outcome", labels=[*_LABELS, "outcome"]
    )
    for labels, counts in series:
        for outcome in OUTCOMES:
            if amount := counts.outcome(outcome):
                family.add_metric([*labels, outcome.value], amount)
    return family


def _counters(series: Series, *, judged: bool) -> Iterator[Metric]:
    what = {
        "input_tokens": "Prompt tokens of requests that were answered",
        "output_tokens": "Tokens that came, counted when their request ends",
    }
    if any(counts["inputs"] for _, counts in series):
        what["inputs"] = "Texts embedded and documents ranked"
    if any(counts["turns"] for _, counts in series):
        what |= _AGENTS
    if any(counts["images"] for _, counts in series):
        what["images"] = "Images of requests that were answered"
    if judged:
        what |= {
            "good": "Requests that ended ok and held every limit of the SLO",
            "good_output_tokens": "Tokens of good requests",
        }
    for scalar, text in what.items():
        name = _NAMES.get(scalar, scalar)
        family = CounterMetricFamily(f"llm_locust_{name}", text, labels=_LABELS)
        for labels, counts in series:
            family.add_metric(labels, counts[scalar] * (1e-9 if scalar == "tools_ns" else 1))
        yield family


def _of_workers(workers: tuple[WorkerState, ...]) -> Iterator[Metric]:
    """Maxima over the workers: one series each, however many join and leave."""
    here = [w for w in workers if w.here]
    cpu = [w.cpu_percent for w in here if w.cpu_percent is not None]
    lag = [w.hub_lag_ms for w in here if w.hub_lag_ms is not None]
    if cpu:
        yield _gauge("worker_cpu_max_ratio", "CPU of the busiest worker, of one core", max(cpu) / 100)
    if lag:
        about = "How late a worker's event loop was, p99 of the worst"
        yield _gauge("worker_hub_lag_seconds", about, max(lag) * 1e-3)


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(f"llm_locust_{name}", about, value=float(value))
