"""Order in which a dataset's lines are sent, and their distribution among the workers."""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Literal, get_args

import numpy as np

from llm_locust.workload.draws import ORDER, generator, swarm_generator

Order = Literal["sequential", "shuffled", "weighted"]

ORDERS: tuple[str, ...] = get_args(Order)

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
