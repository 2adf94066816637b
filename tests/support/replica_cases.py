"""Requests to several replicas, as balancers of known kinds would share them out."""

import random
from collections.abc import Callable
from typing import Any

from metrics_cases import request

from llm_locust.core.record import RequestRecord

NAMES = ("a", "b", "c", "d")


def served(
    pick: Callable[[int], str | None], n: int = 800, every_s: float = 0.1, **fields: Any
) -> list[RequestRecord]:
    """``n`` requests of three tokens, one after the other on one connection; ``pick`` names the replica."""
    known: dict[str, Any] = {"peer": "10.0.0.1:80", "local_port": 40_000} | fields
    return [request(i * every_s, replica=pick(i), reused=i > 0, **known) for i in range(n)]


def at_random(seed: int = 0, names: tuple[str, ...] = NAMES) -> Callable[[int], str]:
    source = random.Random(seed)
    return lambda _: source.choice(names)


def in_turn(names: tuple[str, ...] = NAMES) -> Callable[[int], str]:
    return lambda i: names[i % len(names)]
