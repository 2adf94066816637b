"""Durations as text: ``500ms``, ``1.5s``, ``1h``, ``1m30s``. The one grammar of all options and files."""

import re
from decimal import Decimal

from llm_locust.core.terms import listed

UNITS_NS = {
    "ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000, "h": 3_600_000_000_000,
}  # fmt: skip

_LONG_UNITS = {
    "s": ("sec", "secs", "second", "seconds"),
    "m": ("mins", "minute", "minutes"),
    "h": ("hr", "hrs", "hour", "hours"),
}

LONGEST_S = 10 * 365 * 86_400
_MOST_CHARACTERS = 100

_PART = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?P<unit>[^0-9.]*)")


def parse_duration(text: str) -> float:
    """A duration in seconds.

    Raises:
        ValueError: says what is wrong without repeating ``text``, for errors that point at it.
    """
    return float(_nanoseconds(text).scaleb(-9))  # decimal, so that 50ms is the float nearest to 0.05


def parse_time(text: str) -> float:
    """Parse a duration, in seconds.

    Raises:
        ValueError: names ``text`` and says what is wrong with it.
    """
    try:
        return parse_duration(text)
    except ValueError as e:
        raise ValueError(f"{text!r}: {e}") from e


def parse_time_ns(text: str) -> int:
    """Parse a duration, in whole nanoseconds; raises as :func:`parse_time`."""
    parse_time(text)
    return round(_nanoseconds(text))


def _nanoseconds(text: str) -> Decimal:
    text = text.strip()
    if text == "0":
        return Decimal(0)
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"too long: at most {_MOST_CHARACTERS} characters")
    parts = [(found["number"], found["unit"]) for found in _PART.finditer(text)]
    if (joined := "".join(text.split())) != text:
        _nanoseconds(joined)  # something else may be wrong
        raise ValueError(f"a duration has no blanks: write {joined}")
    if not parts or "".join(map("".join, parts)) != text:
        raise ValueError("not a duration: write a number with its unit, as 500ms or 1h30m")
    total, below = Decimal(0), None
    for number, unit in parts:
        if not unit:
            raise ValueError(f"a number without a unit: add one, as {number}ms or {number}s")
        unit_ns = UNITS_NS.get("m" if unit == "min" else unit)
        if unit_ns is None:
            meant = next((short for short in ("s", "m", "h") if unit.lower() in _LONG_UNITS[short]), None)
            advice = f"write {number}{meant}" if meant else f"write one of {listed(tuple(UNITS_NS))}"
            raise ValueError(f'unknown unit "{unit}": {advice}')
        if below is not None and unit_ns >= below:
            raise ValueError("units must go from the largest to the smallest, as in 1h30m")
        total, below = total + Decimal(number) * unit_ns, unit_ns
    if total > LONGEST_S * UNITS_NS["s"]:
        raise ValueError("too long: at most ten years")
    return total
