"""Lengths of time as a person writes them: ``20ms``, ``1.5s``, ``50us``, ``2m``."""

import re

_UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|ms|s|m)")
_LONGEST_NS = 10 * 365 * 86_400 * _UNITS_NS["s"]


def parse_duration_ns(text: str) -> int:
    """The duration in nanoseconds. A bare ``0`` needs no unit, everything else does.

    Raises:
        ValueError: not a duration; the text names the value and shows a right one.
    """
    if text.strip() == "0":
        return 0
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration: write a number and ns, us, ms, s or m, such as 20ms")
    duration_ns = float(match[1]) * _UNITS_NS[match[2]]
    if duration_ns > _LONGEST_NS:
        raise ValueError(f"{text!r} is too long: at most ten years")
    return round(duration_ns)
