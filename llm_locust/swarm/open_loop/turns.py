"""Turns of a replayed session that wait for turns they depend on."""

from collections import OrderedDict, defaultdict
from typing import NamedTuple

from llm_locust.workload.traces import TraceEntry

#: Most ended turns remembered: twice as many as a trace may refer back, because some end out of order.
MEMORY = 200_000


class Freed(NamedTuple):
    """A turn that may start at ``due_s``."""

    due_s: float
    entry: TraceEntry


class TurnOrder:
    """Order of the turns of one worker's sessions. Times are seconds of the schedule."""

    def __init__(self) -> None:
        self._ended_s: OrderedDict[str, float] = OrderedDict()
        self._followers: defaultdict[str, list[TraceEntry]] = defaultdict(list)
        self._missing: dict[
            int, int
        ] = {}  # k of a waiting turn: how many of those it waits for have not ended

    def __len__(self) -> int:
        """Number of turns that wait for others."""
        return len(self._missing)

    def due_s(self, entry: TraceEntry) -> float | None:
        """Time at which the turn may start; None if others must end first, see :meth:`over`."""
        missing = [id_ for id_ in entry.after if id_ not in self._ended_s]
        if not missing:
            return self._due_s(entry)
        self._missing[entry.k] = len(missing)
        for id_ in missing:
            self._followers[id_].append(entry)
        return None

    def over(self, entry: TraceEntry, ended_s: float) -> list[Freed]:
        """Note the end of a turn; return the turns that waited for nothing else."""
        if entry.id is None:
            return []
        self._ended_s[entry.id] = ended_s
        freed = []
        for follower in self._followers.pop(entry.id, ()):
            self._missing[follower.k] -= 1
            if not self._missing[follower.k]:
                del self._missing[follower.k]
                freed.append(Freed(self._due_s(follower), follower))
        if len(self._ended_s) > MEMORY:
            self._ended_s.popitem(last=False)
        return freed

    def _due_s(self, entry: TraceEntry) -> float:
        return entry.due_s([self._ended_s[id_] for id_ in entry.after if id_ in self._ended_s])
