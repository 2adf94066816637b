"""Loads of a sweep as text: the grammar of ``--sweep``.

============================== ==============================================================
``users=1,2,4,8``              closed loop with so many users, one load after the other
``rate=2,4,8``                 open loop at so many requests/s
``rate=linear:1..10,10``       10 loads from 1 to 10 with equal differences
``agents=1,2,4``               the same as ``users=``, of users that walk through trajectories
``users=geometric:1..256,9``   9 loads from 1 to 256 with equal ratios
============================== ==============================================================
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from llm_locust.core.manifest import MOST_STAGES
from llm_locust.workload.arrivals.parse import MAX_RATE

Kind = Literal["users", "rate"]

#: Most users of a load: Locust keeps each as an object.
MAX_USERS = 1_000_000

ALLOWED = "users=1,2,4,8, rate=2,4,8, rate=linear:1..10,10 or users=geometric:1..256,9"


@dataclass(frozen=True, slots=True)
class Sweep:
    """Loads in the order in which they are applied: numbers of users, or rates in requests/s."""

    kind: Kind
    values: tuple[float, ...]


def parse_sweep(text: str) -> Sweep:
    """Parse the loads in ``text``, in the module's grammar (raises ValueError)."""
    name, equals, rest = text.strip().partition("=")
    try:
        if not equals or name not in ("users", "agents", "rate"):
            raise ValueError("it must begin with users=, agents= or rate=")
        kind: Kind = "rate" if name == "rate" else "users"
        values = tuple(_load(kind, value) for value in _values(rest))
        if len(values) > MOST_STAGES:
            raise ValueError(f"it has {len(values)} loads, at most {MOST_STAGES} are allowed")
        if any(a == b for a, b in pairwise(values)):
            raise ValueError("it has the same load twice in a row: leave one out, or give fewer loads")
    except ValueError as e:
        raise ValueError(f"sweep {text!r}: {e}; allowed are {ALLOWED}") from None
    return Sweep(kind, values)


def _values(text: str) -> Iterator[float]:
    shape, colon, rest = text.partition(":")
    if not colon:
        yield from (_number(word) for word in text.split(","))
        return
    span, comma, count = rest.partition(",")
    first, dots, last = span.partition("..")
    if shape not in ("linear", "geometric") or not comma or not dots or not count.strip().isdecimal():
        raise ValueError(f"{text!r} is not linear:FROM..TO,COUNT or geometric:FROM..TO,COUNT")
    low, high, n = _number(first), _number(last), int(count)
    if not 2 <= n <= MOST_STAGES:
        raise ValueError(f"COUNT {count.strip()!r} is not in 2 .. {MOST_STAGES}")
    if low <= 0:
        raise ValueError(f"FROM {first.strip()!r} is not above 0")
    for i in range(n):
        part = i / (n - 1)
        yield low + (high - low) * part if shape == "linear" else low * (high / low) ** part


def _load(kind: Kind, value: float) -> float:
    if kind == "users":
        value = float(round(value))
        if not 1 <= value <= MAX_USERS:
            raise ValueError(f"{value:g} users are not in 1 .. {MAX_USERS:,}")
        return value
    if not 0 < value <= MAX_RATE:
        raise ValueError(f"{value:g} is not in 0 .. {MAX_RATE:,.0f} requests/s, without 0")
    return float(f"{value:.6g}")


def _number(word: str) -> float:
    """Parse a plain decimal number: ``float`` would accept ``nan`` and ``1_0`` too."""
    text = word.strip()
    if not text or not set(text) <= set("0123456789.") or text.count(".") > 1 or text == ".":
        raise ValueError(f"{text!r} is not a number above 0")
    return float(text)
