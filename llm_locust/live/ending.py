"""Last live figures of a run, stored for the report, which compares them with the records."""

from llm_locust.live.counts import AGENTS, Counts
from llm_locust.live.store import LiveStore
from llm_locust.metrics.sections.live_check import METRICS, PLACES, LastLatency, LiveEnd
from llm_locust.metrics.stats.sketch import RELATIVE_ERROR


def live_end(store: LiveStore) -> LiveEnd:
    """Counts of a store, once all reports are in."""
    total = store.total
    return LiveEnd(
        run=store.run.id,
        resets=store.epoch,
        missed=store.missed,
        ok=total.ok,
        failed=total.failed,
        cancelled=total.cancelled,
        relative_error=RELATIVE_ERROR,
        latency_ms={metric: _figures(total, metric) for metric in METRICS},
        agents={name: total[name] for name in AGENTS} if total["turns"] else None,
    )


def _figures(total: Counts, metric: str) -> LastLatency:
    sketch = total.sketch(metric)
    n = len(sketch)
    return LastLatency(n=n, **{key: sketch.percentile(p) * 1e3 for key, p in PLACES.items() if n})
