"""Checks of answers: requirements, and the answers that are expected."""

import importlib
import math
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from unicodedata import normalize

import jsonschema_rs
import msgspec
import regex

from llm_locust.workload.prompts import Prompt

# --- Requirements on an answer: one that does not meet them is ``rejected``, however fast it was
#
# A validator runs in the event loop after the request's end: no time of a record includes it, but other
# streams wait for it. So each is bounded. A regular expression is aborted after :data:`REGEX_LIMIT_S` of
# CPU time, whatever the pattern; repetition is measured over the last :data:`REPETITION_WORDS` words; the
# rest is one pass over the answer. Each takes at most 2 ms for an answer of 100 kB, and some 3 to 30 µs for
# one of 2 kB. Only a user's own function has no bound: it must neither block nor compute for long.


REGEX_LIMIT_S = 0.002
REPETITION_WORDS = 1 << 12

#: Number of consecutive words that are compared with earlier ones.
REPETITION_GRAM = 4

#: A user's function: True (or an empty text) if the answer is valid, else False or a reason.
OwnFunction = Callable[[str, Prompt | None], bool | str]

_NAME_LENGTH = 60


class ValidatorError(ValueError):
    """A validator that cannot be used; the text says why, and what is expected."""


@dataclass(frozen=True, slots=True)
class Validator:
    """A requirement on an answer; one that does not meet it is ``rejected``.

    ``kind`` and the type of ``argument``: ``regex`` a pattern that must be found in it, ``contains`` a tuple
    of texts that must all be in it, ``json_schema`` a dict, ``max_repetition`` the largest share 0 .. 1 of it
    that may be repetition, ``function`` the text ``module:function``.
    """

    kind: str
    argument: Any


@dataclass(frozen=True, slots=True)
class CompiledValidator:
    """A compiled validator. ``why_not`` returns what is wrong with (answer, prompt), or None.

    ``why_not`` of a user's function raises what the function raises.
    """

    name: str
    why_not: Callable[[str, Prompt | None], str | None]


def check_of(validator: Validator | OwnFunction) -> CompiledValidator:
    """Compile a validator of a scenario, or a user's own function.

    Raises:
        ValidatorError: there is no such kind, its argument is invalid, or the function cannot be imported.
    """
    if not isinstance(validator, Validator):
        own: object = validator
        if not callable(own):
            raise ValidatorError(
                f"validator {own!r}: expected a Validator, or a function of answer and prompt"
            )
        name = getattr(own, "__qualname__", type(own).__qualname__)
        return CompiledValidator(f"function {name}"[:_NAME_LENGTH], partial(_own_why_not, own))
    kind, argument = validator.kind, validator.argument
    if kind not in _MADE_BY:
        raise ValidatorError(f"no validator {kind!r}; there are {', '.join(_MADE_BY)}")
    return _MADE_BY[kind](argument)


def checks_of(validators: Sequence[Validator | OwnFunction]) -> tuple[CompiledValidator, ...]:
    """Compile each validator, in order (raises ValidatorError)."""
    return tuple(map(check_of, validators))


def compiled_pattern(pattern: object) -> "regex.Pattern[str]":
    """Compile a pattern for :func:`found` (raises ValidatorError)."""
    if not isinstance(pattern, str) or not pattern:
        raise ValidatorError(f"pattern {pattern!r}: expected a regular expression as text")
    try:
        return regex.compile(pattern)
    except (regex.error, OverflowError, RecursionError) as e:
        raise ValidatorError(f"pattern {pattern!r}: {e}; expected a regular expression") from e


def found(pattern: "regex.Pattern[str]", text: str) -> bool:
    """Whether the pattern occurs in ``text``.

    Raises:
        TimeoutError: there was no result after :data:`REGEX_LIMIT_S` of CPU time.
    """
    return pattern.search(text, timeout=REGEX_LIMIT_S) is not None


def repetition(text: str) -> float | None:
    """Share of the text's 4-grams of words that are repeated: (n − distinct) / n, n = words − 3.

    Words are separated by white space; the last :data:`REPETITION_WORDS` are used. Ordinary prose is below
    0.1, an answer that goes round in circles near 1. None for fewer than 4 words.
    """
    words = text.rsplit(None, REPETITION_WORDS)[-REPETITION_WORDS:]
    n = len(words) - REPETITION_GRAM + 1
    if n < 1:
        return None
    return (n - len(set(zip(*(words[i:] for i in range(REPETITION_GRAM)), strict=False)))) / n


def _regex_check(argument: object) -> CompiledValidator:
    pattern = compiled_pattern(argument)

    def why_not(text: str, _: Prompt | None) -> str | None:
        try:
            return None if found(pattern, text) else "not found in the answer"
        except TimeoutError:
            return f"gave up after {REGEX_LIMIT_S * 1e3:g} ms; write a pattern that backtracks less"

    return CompiledValidator(f"regex {_short(argument)}", why_not)


def _contains_check(argument: object) -> CompiledValidator:
    texts = (argument,) if isinstance(argument, str) else argument
    if not isinstance(texts, Sequence) or not texts or not all(isinstance(t, str) and t for t in texts):
        raise ValidatorError(f"contains {argument!r}: expected a text, or a list of texts")

    def why_not(text: str, _: Prompt | None) -> str | None:
        missing = [t for t in texts if t not in text]
        return f"{', '.join(map(_short, missing))} is not in the answer" if missing else None

    return CompiledValidator(f"contains {', '.join(map(repr, texts))}"[:_NAME_LENGTH], why_not)


def _schema_check(argument: object) -> CompiledValidator:
    if not isinstance(argument, dict):
        raise ValidatorError(f"json_schema {_short(argument)}: expected a JSON schema as a mapping")
    try:
        schema = jsonschema_rs.validator_for(argument, retriever=_no_retrieval)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as e:
        raise ValidatorError(f"json_schema: {str(e).splitlines()[0]}; expected a JSON schema") from e

    def why_not(text: str, _: Prompt | None) -> str | None:
        try:
            value = msgspec.json.decode(text)
            error = next(iter(schema.iter_errors(value)), None)
        except (msgspec.DecodeError, RecursionError):
            return "the answer is not JSON"
        except (ValueError, OverflowError):
            return "the answer is JSON that cannot be checked: too deep, or a number too large"
        # The schema's location and not the value: one kind of failure has one text.
        return (
            None if error is None else f"does not fit the schema at /{'/'.join(map(str, error.schema_path))}"
        )

    return CompiledValidator("json_schema", why_not)


def _no_retrieval(uri: str) -> Any:
    raise ValueError(f"$ref {uri!r} is not fetched; put what it names into the schema ($defs)")


def _repetition_check(argument: object) -> CompiledValidator:
    if isinstance(argument, bool) or not isinstance(argument, int | float) or not 0 <= argument <= 1:
        raise ValidatorError(f"max_repetition {argument!r}: expected a share from 0 to 1")
    limit = float(argument)

    def why_not(text: str, _: Prompt | None) -> str | None:
        share = repetition(text)
        return (
            f"over {limit:.0%} of the answer is repetition" if share is not None and share > limit else None
        )

    return CompiledValidator(f"max_repetition {limit:g}", why_not)


def _named_function_check(argument: object) -> CompiledValidator:
    module, colon, name = argument.partition(":") if isinstance(argument, str) else ("", "", "")
    if not (module and colon and name):
        raise ValidatorError(f"function {argument!r}: expected module:function")
    try:
        own = getattr(importlib.import_module(module), name, None)
    except Exception as e:  # a module of the user may raise anything
        raise ValidatorError(f"function {argument!r}: importing {module!r} failed: {e!r}") from e
    if not callable(own):
        raise ValidatorError(f"function {argument!r}: {module!r} has no function {name!r}")
    return CompiledValidator(f"function {argument}"[:_NAME_LENGTH], partial(_own_why_not, own))


def _own_why_not(own: OwnFunction, text: str, prompt: Prompt | None) -> str | None:
    said: object = own(text, prompt)
    if isinstance(said, str):
        return said or None
    if not isinstance(said, bool):
        raise TypeError(f"it returned {type(said).__name__}; a validator returns True, False or a text")
    return None if said else "said no"


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= _NAME_LENGTH else shown[: _NAME_LENGTH - 1] + "…"


_MADE_BY: Mapping[str, Callable[[object], CompiledValidator]] = {
    "regex": _regex_check,
    "contains": _contains_check,
    "json_schema": _schema_check,
    "max_repetition": _repetition_check,
    "function": _named_function_check,
}


# --- Comparison of an answer with the expected one
#
# ========== ==========================================================================================
# ``exact``  the whole answer, ignoring case, white space, and quotes, emphasis or a full stop around it
# ``choice`` the letter A .. E that the answer chooses, see :func:`choice_of`
# ``number`` the last number in the answer, see :func:`number_of`
# ``regex``  a pattern that occurs in the answer
# ========== ==========================================================================================
#
# Like validators, this runs in the event loop after the request's end, and is bounded: some microseconds
# for an answer of 2 kB, under 2 ms for one of 100 kB.


#: Comparisons of an answer with the expected one.
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
