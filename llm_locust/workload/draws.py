"""Random draws by key, and the order in which a data set's lines are sent."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import count
from typing import Any, Literal, get_args

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

# --- Random generators by key: equal keys draw the same, different ones independently


#: Third number of a key: the purpose of the draws. A user's lengths have a key of two numbers: its worker and
#: itself. Draws shared by all workers have worker 0 and user 0.
OWN_OUTPUTS, TEXT, LINE, REPLAY, PREFIX, BLOCK, ORDER, BACKOFF, INPUTS, MODELS, PRIMER, IMAGES = range(1, 13)


def digest(*key: object, size: int = 8) -> bytes:
    """The hash of a key, of ``size`` bytes: equal for equal keys only."""
    return blake2b("/".join(map(str, key)).encode(), digest_size=size).digest()


def seed_of(seed: int, stream: str) -> int:
    """A seed whose draws are apart from those of ``seed`` and of its other streams."""
    return int.from_bytes(digest(seed, stream, size=7))


class _Key(ISeedSequence):
    """State of a generator by a hash: a tenth of the time of numpy's own ``SeedSequence``."""

    def __init__(self, key: tuple[int, ...]) -> None:
        self._key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        return np.frombuffer(digest(*self._key, size=n_words * np.dtype(dtype).itemsize), dtype)


def generator(seed: int, *key: int) -> np.random.Generator:
    """Create the generator of ``key`` under ``seed``, both non-negative integers. Takes about 2 µs."""
    state: Any = _Key((seed, *key))  # numpy's types know no sequences of one's own
    return np.random.Generator(np.random.PCG64(state))


def swarm_generator(seed: int, purpose: int, *key: int) -> np.random.Generator:
    """Create a generator for draws that are equal on every worker."""
    return generator(seed, 0, 0, purpose, *key)


# --- Order in which a dataset's lines are sent, and their distribution among the workers


Order = Literal["sequential", "shuffled", "weighted"]

ORDERS: tuple[Order, ...] = get_args(Order)

_BLOCK = 64


def sequential(lines: int, worker_index: int, worker_count: int) -> Iterator[int]:
    """Lines i, i + W, i + 2W .. of worker i of W, repeated: each line belongs to one worker.

    Only with more workers than lines do some share one.
    """
    while True:
        yield from range(worker_index % lines, lines, worker_count)


def shuffled(lines: int, worker_index: int, worker_count: int, seed: int) -> Iterator[int]:
    """All lines in a random order, a new one each epoch; shared out as in :func:`sequential`.

    Every worker draws the same order: within an epoch each line is sent by exactly one worker.
    """
    for epoch in count():
        order = swarm_generator(seed, ORDER, epoch).permutation(lines)
        yield from order[worker_index % lines :: worker_count].tolist()


def weighted(weights: Sequence[float], worker_index: int, seed: int) -> Iterator[int]:
    """Lines drawn with replacement, with probabilities proportional to their weights.

    Every worker draws from all lines, so that the shares are right for any number of workers.
    """
    rng = generator(seed, worker_index, 0, ORDER)
    total = np.cumsum(np.asarray(weights, dtype=np.float64))
    while True:
        drawn = np.searchsorted(total, rng.random(_BLOCK) * total[-1], side="right")
        yield from np.minimum(drawn, len(total) - 1).tolist()
