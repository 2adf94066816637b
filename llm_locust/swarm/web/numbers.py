"""Live numbers for the pages: computed off the event loop, at most once a second."""

import copy
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from gevent.lock import BoundedSemaphore

from llm_locust.live.rings import Ring
from llm_locust.live.snapshot import Snapshot, snapshot
from llm_locust.live.state import LiveRun, LoadMark
from llm_locust.live.store import LiveStore
from llm_locust.swarm.process.offload import off_the_hub

T = TypeVar("T")

#: Length of the recent span of tables and tiles.
RECENT_S = 30.0

KEEP_S = 1.0


@dataclass(frozen=True, slots=True)
class Look:
    """A run at one time: its numbers since the start, and those of the last :data:`RECENT_S`. ``silent`` are
    the servers that had no page of metrics at the last scrape."""

    run: LiveRun
    whole: Snapshot
    recent: Snapshot
    marks: tuple[LoadMark, ...]
    running: bool
    silent: tuple[str, ...] = ()


class Fresh(Generic[T]):
    """A value that is computed on request, by one greenlet at a time, and cached for a while."""

    def __init__(self, make: Callable[[], T], keep_s: float = KEEP_S) -> None:
        self._make = make
        self._keep_s = keep_s
        self._lock = BoundedSemaphore(1)
        self._kept: tuple[float, T] | None = None

    def __call__(self) -> T:
        with self._lock:
            if self._kept is None or time.monotonic() - self._kept[0] >= self._keep_s:
                self._kept = None
                value = self._make()
                self._kept = time.monotonic(), value
            return self._kept[1]


def at_rest(store: LiveStore) -> LiveStore:
    """Snapshot of the store for a thread to read while the event loop goes on filling it.

    Counts, cells and keys are shared: they are immutable values.
    """
    still, content, now_s = copy.copy(store), store.content, store.clock_s()
    still.clock_s = lambda: now_s
    still.marks = deque(store.marks)
    still.content = replace(
        content,
        keyed=_copied(content.keyed),
        recent=_copied(content.recent),
        hour=_copied(content.hour),
        run=_copied(content.run),
        senders={name: copy.copy(sender) for name, sender in content.senders.items()},
        servers=dict(content.servers),
    )
    return still


def look_at(store: LiveStore) -> Look:
    """Compute the snapshots of a store that does not change; with many keys it takes tens of milliseconds."""
    running = bool(store.run.id) and store.content.stopped_s is None
    silent = tuple(sorted(name for name, up in store.content.servers.items() if not up))
    return Look(store.run, snapshot(store), snapshot(store, RECENT_S), tuple(store.marks), running, silent)


def fresh_look(store: LiveStore) -> Fresh[Look]:
    return Fresh(lambda: off_the_hub(look_at, at_rest(store)))


def _copied(ring: Ring[T]) -> Ring[T]:
    cells = list(ring.cells(float("-inf"), float("inf")))
    copied: Ring[T] = Ring(ring.width_s, len(cells) + 1, _never, whole=True)
    for at_s, value in cells:
        copied.add(at_s, value)
    return copied


def _never(a: T, b: T) -> T:
    raise AssertionError("a copy has no two values in one cell")
