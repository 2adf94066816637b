"""Numbers and foreign text as a report prints them: the same in every format.

A number has three significant digits or all of its integer part, a thing that is not defined
is a dash and never 0, a share is never rounded up to all nor down to none. Text that came from
a server or a user is cleaned here and escaped by the format that prints it.
"""

import math
import re
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeGuard

from llm_locust.core.figures import UNDEFINED as UNDEFINED
from llm_locust.core.figures import figure

SEPARATOR = " · "

#: Colours and cursor moves of a terminal: without their ESC the rest would stand as litter.
_ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_CONTROLS = {"Cc", "Cf", "Cs", "Co", "Cn"}
#: Cf characters that shape letters of real scripts and emoji, and cannot reorder a line.
_JOINERS = {"\u200c", "\u200d"}


def is_defined(value: float | None) -> TypeGuard[float]:
    """Whether a figure is a number. None and NaN are not; +∞ is one."""
    return value is not None and not math.isnan(value)


def number(value: float | None) -> str:
    """A figure as :func:`~llm_locust.core.figures.figure` has it, a dash if it is not defined."""
    return figure(value)


def count(value: float | None) -> str:
    """A whole number with separators of thousands."""
    return f"{value:,.0f}" if is_defined(value) else UNDEFINED


def load(value: float | None) -> str:
    """A number of users or a rate that was asked for: ``8``, ``2.50``."""
    return count(value) if is_defined(value) and value.is_integer() else number(value)


def percent(ratio: float | None) -> str:
    """A share as per cent: ``100 %`` only for all of them, ``0 %`` only for none."""
    if not is_defined(ratio):
        return UNDEFINED
    value = 100 * ratio
    if value in (0, 100):
        return f"{value:.0f} %"
    if 99.9 < value < 100:
        return ">99.999 %" if value > 99.999 else f"{math.floor(value * 1000) / 1000:.3f} %"
    if 0 < value < 1:
        return "<0.001 %" if value < 0.001 else f"{value:.2g} %"
    return f"{value:.1f} %"


def seconds(value: float | None) -> str:
    """A span of the run: ``58.2 s``, ``12 min 5 s``, ``26 h 3 min``."""
    if not is_defined(value) or math.isinf(value):
        return UNDEFINED
    if value < 120:
        return f"{number(value)} s"
    if value < 7200:
        return f"{value // 60:.0f} min {value % 60:.0f} s"
    return f"{value // 3600:.0f} h {value % 3600 // 60:.0f} min"


def plural(n: float | None, noun: str, nouns: str = "") -> str:
    """``1 worker``, ``3 workers``; ``nouns`` is the plural where it is not made with an s."""
    return f"{count(n)} {noun if n == 1 else nouns or f'{noun}s'}"


def clean(value: object) -> str:
    """Foreign text as one line without control characters.

    White space becomes single blanks. Escape sequences, control and format characters, lone
    surrogates and unassigned code points are dropped: they could colour, reorder or break a line.
    """
    text = _ESCAPE_SEQUENCE.sub("", str(value))
    return " ".join("".join(" " if c.isspace() else c for c in text if _is_shown(c)).split())


def _is_shown(c: str) -> bool:
    return c.isspace() or c in _JOINERS or unicodedata.category(c) not in _CONTROLS


def short(text: str, most: int) -> str:
    """At most ``most`` characters, the cut shown as ``…``."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def sentence(parts: Sequence[str], separator: str = SEPARATOR) -> str:
    """The parts that are not empty, in one line."""
    return separator.join(p for p in parts if p)


def moment(iso: str) -> str:
    """An ISO 8601 time as ``2026-11-21 09:30:02 UTC``."""
    return datetime.fromisoformat(iso).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def after(iso: str, origin_iso: str) -> str:
    """How long after ``origin_iso`` a time is: ``+3.10 s``."""
    passed = (datetime.fromisoformat(iso) - datetime.fromisoformat(origin_iso)).total_seconds()
    return f"{'-' if passed < 0 else '+'}{seconds(abs(passed))}"
