"""Completeness of a run: whether every request that was sent is in it, and what is missing, by worker.

A request is *lost* if it was sent, as far as is known, and the run has no record of it: it was in flight when
its worker last reported, or its record was not received. The unrecorded requests of a worker are those that
it announced and those in flight, less those received; see
:attr:`~llm_locust.core.manifest.WorkerFacts.unrecorded`.
"""

import math
from collections import Counter
from collections.abc import Iterable

from llm_locust.core.manifest import Manifest


def requests_lost(manifest: Manifest, rows: int) -> int:
    """Requests of the whole run without a record: lost at the workers, or received but neither in ``rows``
    nor dropped."""
    return manifest.records_lost + max(0, manifest.records_received - _rows_and_dropped(manifest, rows))


def _rows_and_dropped(manifest: Manifest, rows: int) -> int:
    return rows + (0 if manifest.dropped is None else manifest.dropped.records)


def requests_unsent(manifest: Manifest, warmup_s: float) -> int:
    """Requests of a schedule that were due after the warm-up, and were never sent.

    For those in the run's own warm-up the time is unknown: if less is left out, all of them count.
    """
    shorter = warmup_s < manifest.warmup_s
    return sum(w.unsent - (0 if shorter else w.unsent_warmup) for w in manifest.workers)


def unsent_by_class(manifest: Manifest, warmup_s: float) -> dict[str, int] | None:
    """The same by class; None if the class of some is unknown."""
    counts: Counter[str] = Counter()
    for worker in manifest.workers:
        counts.update(worker.unsent_by_class)
    return dict(counts) if counts.total() == requests_unsent(manifest, warmup_s) else None


def largest(values: Iterable[float | None]) -> float | None:
    """Largest known value; None without any."""
    return max((v for v in map(known, values) if v is not None), default=None)


def known(value: float | None) -> float | None:
    """The value, or None if it is not a finite number."""
    return value if value is not None and math.isfinite(value) else None
