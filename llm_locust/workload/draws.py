"""Random generators by key: equal keys draw the same, different ones independently."""

from hashlib import blake2b

import numpy as np

#: Third number of a key: the purpose of the draws. A user's lengths have a key of two numbers: its worker and
#: itself. Draws shared by all workers have worker 0 and user 0.
OWN_OUTPUTS, TEXT, LINE, REPLAY, PREFIX, BLOCK, ORDER, BACKOFF, INPUTS, MODELS, PRIMER, IMAGES = range(1, 13)


def seed_of(seed: int, stream: str) -> int:
    """A seed whose draws are apart from those of ``seed`` and of its other streams."""
    return int.from_bytes(blake2b(f"{seed}/{stream}".encode(), digest_size=7).digest())


def generator(seed: int, *key: int) -> np.random.Generator:
    """Create the generator of ``key`` under ``seed``, both non-negative integers. Takes about 15 µs."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))


def swarm_generator(seed: int, purpose: int, *key: int) -> np.random.Generator:
    """Create a generator for draws that are equal on every worker."""
    return generator(seed, 0, 0, purpose, *key)
