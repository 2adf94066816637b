"""Comparison of an answer with the expected one.

========== ==========================================================================================
``exact``  the whole answer, ignoring case, white space, and quotes, emphasis or a full stop around it
``choice`` the letter A .. E that the answer chooses, see :func:`choice_of`
``number`` the last number in the answer, see :func:`number_of`
``regex``  a pattern that occurs in the answer
========== ==========================================================================================

Like validators, this runs in the event loop after the request's end, and is bounded: some microseconds for an
answer of 2 kB, under 2 ms for one of 100 kB.
"""

import math
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from unicodedata import normalize

from llm_locust.workload.answers.validators import ValidatorError, compiled_pattern, found

KINDS = ("exact", "choice", "number", "regex")

#: Number of characters, from the end, that are searched for letters and numbers: a conclusion comes last.
EXAMINED_CHARS = 1 << 14

#: Relative difference up to which numbers are equal.
NUMBER_TOLERANCE = 1e-6

_AROUND = " \t\r\n\"'`*_.“”‘’"
_LETTERS = "ABCDE"
_MINUS = str.maketrans({"−": "-", ",": None, "\u00a0": None, "\u202f": None})
_NUMBER = re.compile(
    r"(?<![\w.])[-+−]?"
    r"(?:(?:[0-9]{1,3}(?:[,\u00a0\u202f][0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
    r"(?:[eE][-+]?[0-9]+)?"
)
_LONE = re.compile(r"[\s*_\"'`$(\[]*([A-Ea-e])[\s*_\"'`$)\].:]*")
_STATED = re.compile(
    r"\b(?i:answer)(?:\s+(?i:is|would\s+be|should\s+be))?"
    r"[\s:=*_\"'`$({\[]{0,8}(?:(?i:option|choice)\s{1,4}|\\boxed|\\text|[({*$]){0,4}([A-E])(?!\w|['’]\w)"
)
_FIRST = re.compile(r"[\s*_(\[]*([A-E])(?:[).:\]]|\*\*)")
_MARKED = re.compile(r"\(([A-E])\)|\*\*\(?([A-E])(?:\*\*|[).:])|\\boxed\{(?:\\text\{)?([A-E])\}")
_NAMED = re.compile(r"\b(?i:option|choice)\s{1,4}[*(]{0,3}([A-E])(?!\w)")
_LONE_LINE = re.compile(r"^[ \t*_(]*([A-E])[ \t*_).]*$", re.MULTILINE)


class ExpectedError(ValueError):
    """An invalid expected answer; the text says why, and what is expected."""


@dataclass(frozen=True, slots=True)
class ExpectedAnswer:
    """The right answer, and the :data:`KINDS` of comparison.

    ``value`` is prepared for the comparison: a normalised text, a letter A .. E, a finite number, a pattern.
    """

    kind: str
    value: str | float


def expected_answer(value: object, kind: str | None = None) -> ExpectedAnswer:
    """Parse a dataset line's ``expected``: a plain value, or ``{kind: value}``.

    Args:
        kind: comparison for a plain value, from the line's class; None: ``exact``.

    Raises:
        ExpectedError: an unknown kind, or a value that is invalid for its kind.
    """
    if isinstance(value, Mapping):
        if len(value) != 1:
            raise ExpectedError(f"expected {value!r}: one key, of {', '.join(KINDS)}")
        ((kind, value),) = value.items()
    kind = kind or "exact"
    if kind not in KINDS:
        raise ExpectedError(f"expected answer of kind {kind!r}: there are {', '.join(KINDS)}")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ExpectedError(f"expected answer {value!r}: a text or a number")
    return ExpectedAnswer(kind, _ready(kind, value))


def is_correct(text: str, expected: ExpectedAnswer) -> bool | None:
    """Whether an answer is the expected one; None if the search for a pattern was aborted, see ``found``."""
    value = expected.value
    if isinstance(value, float):
        number = number_of(text)
        return number is not None and math.isclose(
            number, value, rel_tol=NUMBER_TOLERANCE, abs_tol=NUMBER_TOLERANCE**2
        )
    match expected.kind:
        case "choice":
            return choice_of(text) == value
        case "regex":
            try:
                return found(compiled_pattern(value), text)
            except TimeoutError:
                return None
        case _:
            return normalised(text) == value


def normalised(text: str) -> str:
    """The text in NFKC and lower case, white space as single blanks, without surrounding marks."""
    return " ".join(normalize("NFKC", text).casefold().split()).strip(_AROUND)


def choice_of(text: str) -> str | None:
    r"""The letter A .. E that an answer chooses; None if it chooses none.

    The first of these that is present: nothing but a letter (``b``, ``(B)``, ``**B**``); its last ``answer is
    B``, ``Answer: (B)``; a letter at its start (``B) Paris``); its last ``(B)``, ``**B**``, ``\boxed{B}``;
    its last ``option B``; its last line with only a letter.
    """
    text = text[-EXAMINED_CHARS:]
    if lone := _LONE.fullmatch(text):
        return lone[1].upper()
    if stated := _last(_STATED, text):
        return stated
    if first := _FIRST.match(text):
        return first[1]
    return _last(_MARKED, text) or _last(_NAMED, text) or _last(_LONE_LINE, text)


def number_of(text: str) -> float | None:
    """The last number in an answer, ignoring its unit; None without one.

    A comma between groups of three digits separates thousands; the decimal sign is a full stop.
    """
    numbers = deque(_NUMBER.finditer(text[-EXAMINED_CHARS:]), maxlen=1)
    return float(numbers[0][0].translate(_MINUS)) if numbers else None


def _last(pattern: "re.Pattern[str]", text: str) -> str | None:
    """First matching group of the last occurrence."""
    matches = deque(pattern.finditer(text), maxlen=1)
    return next(group for group in matches[0].groups() if group) if matches else None


def _ready(kind: str, value: str | float) -> str | float:
    match kind:
        case "exact":
            ready = normalised(str(value))
            if not ready:
                raise ExpectedError(f"expected answer {value!r}: nothing is left of it to compare")
            return ready
        case "choice":
            letter = str(value).strip(" ().").upper()
            if len(letter) != 1 or letter not in _LETTERS:
                raise ExpectedError(f"expected choice {value!r}: a letter from A to E")
            return letter
        case "number":
            number = number_of(value) if isinstance(value, str) else float(value)
            if number is None or not math.isfinite(number):
                raise ExpectedError(f"expected number {value!r}: a finite number")
            return number
    try:
        compiled_pattern(value)
    except ValidatorError as e:
        raise ExpectedError(f"expected answer: {e}") from e
    return str(value)
