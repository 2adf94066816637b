"""The walks of agents: which requests are turns of one.

The name of a walk's session has the trajectory's place in the pool (:func:`walk_name`), by which the
manifest's facts of the pool belong to a request.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llm_locust.core.batch import Requests
from llm_locust.core.rows import ColumnSource
from llm_locust.metrics.columns import Floats, filled

_COLUMNS = ("session", "turn", "cached_tokens", "worker", "user")
_WALK = re.compile(r"-t([0-9]{1,7})-of([0-9]{1,7})$")


def walk_name(unique: str, trajectory: int) -> str:
    """The name of a walk, before its planned number of turns."""
    return f"{unique}-t{trajectory}"


@dataclass(frozen=True, slots=True)
class PerTurn:
    """A number for each turn of each trajectory of a pool."""

    _begins: NDArray[np.int64]
    _values: Floats

    @classmethod
    def of(cls, numbers: Sequence[Sequence[float]]) -> "PerTurn":
        begins = np.cumsum([0, *map(len, numbers)], dtype=np.int64)
        return cls(begins, np.array([number for each in numbers for number in each] or [np.nan]))

    def at(self, trajectory: NDArray[np.int64], turn: NDArray[np.int64]) -> Floats:
        """The numbers of these turns, NaN where the pool has no such turn."""
        inside = (trajectory >= 0) & (trajectory < len(self._begins) - 1) & (turn >= 0)
        inside[inside] &= turn[inside] < np.diff(self._begins)[trajectory[inside]]
        at = np.where(inside, self._begins[np.where(inside, trajectory, 0)] + turn, 0)
        return np.where(inside, self._values[at], np.nan)


@dataclass(frozen=True, slots=True)
class Walks:
    """One value per request, -1 where it belongs to no walk.

    ``session`` is a number of its walk, ``agent`` of its user, ``trajectory`` the place in the pool, ``turn``
    its turn, ``planned`` the turns of the walk.
    """

    session: NDArray[np.int64]
    agent: NDArray[np.int64]
    trajectory: NDArray[np.int64]
    planned: NDArray[np.int64]
    turn: NDArray[np.int64]
    cached_tokens: Floats

    @classmethod
    def of(cls, requests: Requests) -> "Walks":
        """Read part by part."""
        walks: dict[str, tuple[int, int, int]] = {}
        agents: dict[tuple[str | None, int], int] = {}
        found = [_part(batch, walks, agents) for batch in requests.parts(_COLUMNS)]
        whole = np.concatenate([numbers for numbers, _ in found], axis=1)
        session, agent, trajectory, planned, turn = whole
        cached = np.concatenate([cached for _, cached in found])
        return cls(session, agent, trajectory, planned, turn, cached)

    @classmethod
    def of_batch(cls, batch: ColumnSource) -> "Walks":
        """Those of one batch; numbers of walks and agents are its own."""
        (session, agent, trajectory, planned, turn), cached = _part(batch, {}, {})
        return cls(session, agent, trajectory, planned, turn, cached)


def _part(
    batch: ColumnSource, walks: dict[str, tuple[int, int, int]], agents: dict[tuple[str | None, int], int]
) -> tuple[NDArray[np.int64], Floats]:
    turns = filled(batch.floats("turn"), -1).astype(np.int64)
    users = filled(batch.floats("user"), -1).astype(np.int64)
    rows = []
    names = zip(batch.texts("session"), batch.texts("worker"), users.tolist(), strict=True)
    for session, worker, user in names:
        walk = None if session is None else walks.get(session)
        if walk is None and session is not None and (match := _WALK.search(session)):
            walk = walks[session] = (len(walks), int(match[1]), int(match[2]))
        agent = agents.setdefault((worker, user), len(agents))
        rows.append((-1, agent, -1, -1) if walk is None else (walk[0], agent, walk[1], walk[2]))
    numbers = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    return np.vstack([numbers, turns]), batch.floats("cached_tokens")
