"""Texts for people and from people: numbers, durations, terms such as ``name op value``, command lines."""

import argparse
import difflib
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeVar

# --- Numbers in sentences and tables, for people: no exponents, no more digits than mean something


#: A figure that is not defined, and never 0.
UNDEFINED = "–"

#: A smaller probability is told as that: nobody believes in its digits.
_LEAST_P = 0.001


def figure(value: float | None, apart_from: float | None = None) -> str:
    """Three significant digits, or all digits of the integer part: ``0.0123``, ``12.3``, ``1,235``; a dash if
    it is not defined.

    Args:
        apart_from: another value, such as a limit that is held against this one: where both would be the
            same text although they differ, this one gets as many digits more as tell them apart.
    """
    if value is None or math.isnan(value):
        return UNDEFINED
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    text = _rounded(value, 0)
    if apart_from is None or value == apart_from or not math.isfinite(apart_from):
        return text
    more = 0
    while text == _rounded(apart_from, more) and more < 12:
        more += 1
        text = _rounded(value, more)
    return text


def _rounded(value: float, more: int) -> str:
    if value == 0:
        return "0"
    # Rounded first: 9.996 has two digits before the point, once it is 10.0.
    magnitude = math.floor(math.log10(abs(float(f"{value:.3g}"))))
    digits = 1 if magnitude < -3 else 2  # below 0.001 two say enough
    text = f"{value:,.{max(0, digits - magnitude) + more}f}"
    return text.rstrip("0") if magnitude < -2 else text  # 0.008: nobody believes in more zeros


def quantity(value: float | None, apart_from: float | None = None) -> str:
    """A figure in a sentence, without zeros at its end: ``20``, ``1.5``, ``1,235``."""
    text = figure(value, apart_from)
    return text.rstrip("0").rstrip(".") if "." in text else text


def probability(p: float) -> str:
    """A p-value: ``p 0.012``, ``p < 0.001``."""
    return f"p < {_LEAST_P:g}" if p < _LEAST_P else f"p {p:.2g}"


# --- Texts of the form ``name op value name op value ...``, and errors with the position of a word


_TERM = re.compile(r"[\s,]*(?P<name>[^\s,<>=!]*)\s*(?P<op>[<>=!]*)\s*")
_VALUE = re.compile(r"[^\s,<>=!]*")


@dataclass(frozen=True, slots=True)
class Word:
    """A part of a text with the position of its first character, counted from 1."""

    text: str
    position: int

    def error_at(self, why: str) -> str:
        """Error line: where the word is, the word, and ``why`` it is wrong."""
        word = f', "{self.text}"' if self.text else ""
        return f"at character {self.position}{word}: {why}"


@dataclass(frozen=True, slots=True)
class Term:
    """One ``name op value``. A missing part is an empty word at the position where it belongs."""

    name: Word
    op: Word
    value: Word

    @property
    def text(self) -> str:
        return self.name.text + self.op.text + self.value.text


def split_terms(text: str) -> list[Term]:
    """Split ``text`` into terms. Terms are separated by spaces or commas; spaces may surround an operator."""
    terms, at, end = [], 0, len(text)
    while end and (text[end - 1] == "," or text[end - 1].isspace()):
        end -= 1
    while at < end:
        head = _TERM.match(text, at)
        assert head is not None  # every part of the pattern may be empty
        op = Word(head["op"], (head.start("op") if head["op"] else head.end("name")) + 1)
        # Without an operator, the next word belongs to the next term, not to this one.
        value = _VALUE.match(text, head.end()) if head["op"] else None
        found = value[0] if value else ""
        after = head.end("op") if head["op"] else head.end("name")
        value_at = head.end() if found else after
        terms.append(Term(Word(head["name"], head.start("name") + 1), op, Word(found, value_at + 1)))
        at = value_at + len(found)
    return terms


def nearest(word: str, known: Iterable[str]) -> str:
    """Suggestion ``did you mean "x"? ``, or an empty text if no known word is similar."""
    matches = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.5)
    return f'did you mean "{matches[0]}"? ' if matches else ""


def plain_number(word: str) -> float:
    """A plain decimal number; NaN of any other text, also of ``inf`` and ``1_0``, which ``float`` takes."""
    try:
        value = float(word)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) and "_" not in word else math.nan


def named_values(words: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """The words of the form ``KEY=VALUE`` by key, and the others (raises ValueError for a repeated key)."""
    named: dict[str, str] = {}
    others = []
    for word in words:
        key, equals, value = word.strip().partition("=")
        if not equals:
            others.append(word)
        elif key in named:
            raise ValueError(f"{key}= is given twice, with {named[key]!r} and {value!r}; leave one out")
        else:
            named[key] = value
    return named, others


def listed(words: Iterable[str]) -> str:
    return ", ".join(words)


# --- Durations as text: ``500ms``, ``1.5s``, ``1h``, ``1m30s``. The one grammar of all options and files


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


# --- Types of arguments on a command line


T = TypeVar("T")


def argument(read: Callable[[str], T]) -> Callable[[str], T]:
    """A type of argparse that reports what is wrong with a text: why ``read`` raised ValueError."""

    def parse(text: str) -> T:
        try:
            return read(text)
        except ValueError as e:
            raise argparse.ArgumentTypeError(str(e)) from e

    return parse


ON_OFF = ("on", "off")


def is_on(text: str) -> bool:
    """Whether a text of :data:`ON_OFF` is ``on`` (raises ValueError)."""
    if text not in ON_OFF:
        raise ValueError(f"{text!r} is neither on nor off")
    return text == "on"


def positive(text: str) -> int:
    """A whole number of at least 1, as a type of argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)
