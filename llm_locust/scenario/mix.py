"""Which class a request belongs to, drawn by the classes' weights, reproducibly."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Generic, Protocol, TypeVar

import numpy as np

#: Sets these draws apart from every other use of the same seed.
_KEY = int.from_bytes(b"mix", "big")

_BLOCK = 64


class Weighted(Protocol):
    """A class; ``weight`` is None where it has a rate of its own."""

    @property
    def weight(self) -> float | None: ...


T = TypeVar("T", bound=Weighted)


class Mix(Generic[T]):
    """Classes in the shares of their weights.

    Raises:
        ValueError: no class, one with a rate of its own, or weights without one above 0.
    """

    def __init__(self, classes: Sequence[T]) -> None:
        weights = np.array([c.weight for c in classes if c.weight is not None], dtype=np.float64)
        if len(weights) < len(classes):
            raise ValueError("a class with a rate of its own has arrivals of its own, and is in no mix")
        if not (len(weights) and np.all(weights >= 0) and 0 < weights.sum() < np.inf):
            raise ValueError(f"weights {weights.tolist()}: none may be negative, and one must be above 0")
        self.classes = tuple(classes)
        edges = np.cumsum(weights)
        self._edges = edges / edges[-1]  # the last one is exactly 1, which no draw reaches

    def shares(self) -> tuple[float, ...]:
        """Of each class: weight / sum of all weights."""
        return tuple(np.diff(self._edges, prepend=0.0).tolist())

    def choose(self, rng: np.random.Generator) -> T:
        """One class, by one draw."""
        return self.classes[int(np.searchsorted(self._edges, rng.random(), side="right"))]

    def of_user(self, seed: int, worker: int, user: int) -> Iterator[T]:
        """The classes of a user's requests, one after another without end: a closed loop.

        Every (seed, worker, user) has draws of its own.
        """
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_KEY, worker, user)))
        while True:
            for i in np.searchsorted(self._edges, rng.random(_BLOCK), side="right").tolist():
                yield self.classes[i]

    def of_arrival(self, seed: int, k: int) -> T:
        """The class of arrival ``k`` of all workers: the same whichever worker sends it, and of how many."""
        digest = blake2b(f"{seed}/{_KEY}/{k}".encode(), digest_size=8).digest()
        # 53 bits: what a float in 0 .. 1 holds without being rounded up to 1.
        fraction = (int.from_bytes(digest) >> 11) * 2.0**-53
        return self.classes[int(np.searchsorted(self._edges, fraction, side="right"))]


def choose(classes: Sequence[T], rng: np.random.Generator) -> T:
    """One of ``classes`` by weight; for many draws make one :class:`Mix`."""
    return Mix(classes).choose(rng)
