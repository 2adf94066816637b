"""A store's numbers at one time: since the start, for the last seconds, and the last ones of a run."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from llm_locust.figures.latency import METRICS, PLACES, LastLatency, LiveEnd
from llm_locust.figures.user_time import HungUsers
from llm_locust.live.counts import AGENTS, NOTHING, OTHERS, ByKey, Counts, LiveKey, merged
from llm_locust.live.figures import Figures, figures
from llm_locust.live.findings import LiveValidity, hung_users, live_validity, slow_replicas
from llm_locust.live.state import Observation
from llm_locust.live.store import KEYED_CELLS, RECENT_WIDTH_S, LiveStore
from llm_locust.metrics.stats.sketch import SKETCH_ERROR

#: Longest span with counts by key.
MOST_SECONDS = RECENT_WIDTH_S * KEYED_CELLS

_NOBODY = Observation(users=0, target=0)


@dataclass(frozen=True, slots=True)
class LiveRow:
    """A table's row. In a row by name the key has no replica, in one by replica it has only that."""

    key: LiveKey
    figures: Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Numbers of a span that ended at ``end_s``, a little before now because reports may be in transit.

    ``names`` has a row for each name and class, ``replicas`` one for each known replica, both in alphabetical
    order. ``missed`` is the number of finished requests that are not counted, because their report was lost.
    ``hung`` are the users that hang now, ``slow`` replicas that are slower than the others, in words.
    ``full`` are sums that are larger than can be told, see :attr:`~llm_locust.live.store.LiveStore.full`.
    """

    end_s: float
    elapsed_s: float
    total: Figures
    names: tuple[LiveRow, ...]
    replicas: tuple[LiveRow, ...]
    observation: Observation
    validity: LiveValidity
    missed: int
    hung: HungUsers
    slow: tuple[str, ...] = ()
    full: tuple[str, ...] = ()
    relative_error: float = SKETCH_ERROR


def snapshot(store: LiveStore, seconds: float | None = None, *, rows: bool = True) -> Snapshot:
    """The store's numbers since the start (or the last reset), or of the last ``seconds``.

    A recent span consists of whole cells of 2 s, and is :data:`MOST_SECONDS` at most; its real length is in
    the figures.

    Args:
        rows: make those by name and by replica, which take most of the time; else there are none.
    """
    if seconds is None:
        span_s, by_key = store.elapsed_s, store.content.totals
        end_s = store.content.started_s + span_s
    else:
        by_key, end_s, span_s = _recent(store, seconds)
    total = Counts.merge(by_key.values())
    seen = store.observation or _NOBODY
    limits = store.run.limits

    by_replica = _by(lambda key: LiveKey("", "", key.replica), by_key)
    replicas = {key.replica: counts for key, counts in by_replica.items() if key.replica not in ("", OTHERS)}

    def table(kind: Callable[[LiveKey], LiveKey]) -> tuple[LiveRow, ...]:
        if not rows:
            return ()
        return tuple(LiveRow(key, figures(c, span_s, limits)) for key, c in sorted(_by(kind, by_key).items()))

    return Snapshot(
        end_s=end_s,
        elapsed_s=store.elapsed_s,
        total=figures(total, span_s, limits),
        names=table(lambda key: key._replace(replica="")),
        replicas=tuple(row for row in table(lambda key: LiveKey("", "", key.replica)) if row.key.replica),
        observation=seen,
        validity=live_validity(total, seen.workers, open_loop=store.run.open_loop, seconds=span_s),
        missed=store.missed,
        hung=hung_users(store.content.totals, seen, store.began_s + store.run.warmup_s),
        slow=slow_replicas(replicas) if rows else (),
        full=store.full,
    )


def figures_since(store: LiveStore, since_s: float) -> Figures:
    """Live figures of the requests that ended since a time, in whole cells of the finest width there is."""
    content, end_s = store.content, store.settled_s
    begin_s, cells = since_s, []
    for of_width in (content.recent, content.hour, content.run):
        cells, width_s = list(of_width.between(-math.inf, end_s)), of_width.width_s
        begin_s = math.ceil(since_s / width_s) * width_s
        if cells and cells[0][0] <= since_s:
            break  # an older cell is there: none since then has been forgotten
    ours = [(at_s, cell.counts) for at_s, cell in cells if at_s >= begin_s]
    seconds = ours[-1][0] + width_s - begin_s if ours else 0.0
    counts = Counts.merge(counts for _, counts in ours if counts is not NOTHING)
    return figures(counts, seconds, store.run.limits)


def _recent(store: LiveStore, seconds: float) -> tuple[ByKey, float, float]:
    content, keyed = store.content, store.content.keyed
    end_s = store.settled_s // keyed.width_s * keyed.width_s
    if content.stopped_s is not None:
        end_s += keyed.width_s  # no more will arrive: the last cell is complete
    begin_s = end_s - max(keyed.width_s, min(seconds, MOST_SECONDS) // keyed.width_s * keyed.width_s)
    by_key: ByKey = {}
    for _, counts in keyed.between(begin_s, end_s):
        by_key = merged(by_key, counts)
    end_s = min(end_s, store.settled_s)
    return by_key, end_s, max(0.0, end_s - max(begin_s, content.started_s))


def _by(kind: Callable[[LiveKey], LiveKey], by_key: ByKey) -> ByKey:
    groups: dict[LiveKey, list[Counts]] = {}
    for key, counts in by_key.items():
        groups.setdefault(kind(key), []).append(counts)
    return {key: Counts.merge(some) for key, some in groups.items()}


# --- Last live figures of a run, stored for the report, which compares them with the records


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
        relative_error=SKETCH_ERROR,
        latency_ms={metric: _figures(total, metric) for metric in METRICS},
        agents={name: total[name] for name in AGENTS} if total["turns"] else None,
    )


def _figures(total: Counts, metric: str) -> LastLatency:
    sketch = total.sketch(metric)
    n = len(sketch)
    return LastLatency(n=n, **{key: sketch.percentile(p) * 1e3 for key, p in PLACES.items() if n})
