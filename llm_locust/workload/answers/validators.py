"""Requirements on an answer: one that does not meet them is ``rejected``, however fast it was.

A validator runs in the event loop after the request's end: no time of a record includes it, but other streams
wait for it. So each is bounded. A regular expression is aborted after :data:`REGEX_LIMIT_S` of CPU time,
whatever the pattern; repetition is measured over the last :data:`REPETITION_WORDS` words; the rest is one
pass over the answer. Each takes at most 2 ms for an answer of 100 kB, and some 3 to 30 µs for one of 2 kB.
Only a user's own function has no bound: it must neither block nor compute for long.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jsonschema_rs
import msgspec
import regex

from llm_locust.workload.parts import Validator
from llm_locust.workload.text.prompts import Prompt

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
        return _function_check(validator)
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
        return None if error is None else f"does not fit the schema at {_place(error.schema_path)}"

    return CompiledValidator("json_schema", why_not)


def _no_retrieval(uri: str) -> Any:
    raise ValueError(f"$ref {uri!r} is not fetched; put what it names into the schema ($defs)")


def _place(path: Sequence[str | int]) -> str:
    return "/" + "/".join(map(str, path))


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


def _function_check(own: object) -> CompiledValidator:
    if not callable(own):
        raise ValidatorError(f"validator {own!r}: expected a Validator, or a function of answer and prompt")
    name = getattr(own, "__qualname__", type(own).__qualname__)
    return CompiledValidator(f"function {name}"[:_NAME_LENGTH], partial(_own_why_not, own))


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
