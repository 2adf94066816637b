"""Token lengths as distributions: ``512``, ``uniform:100,1000``, ``lognormal:512,1.2`` ...

====================== =====================================================================
``N``                  always N
``uniform:LOW,HIGH``   uniform over the integers from LOW to HIGH, both included
``normal:MEAN,SD``     normal with that mean and standard deviation, before the limits below
``lognormal:M,SIGMA``  median M, standard deviation SIGMA of the natural logarithm; the mean
                       is M·exp(SIGMA²/2), for ``512,1.2`` 1,052
``file:PATH``          rows of a CSV or Parquet file, drawn with replacement; one column of
                       lengths, or two: an input length and its output length
====================== =====================================================================

Draws are rounded to whole tokens and clipped to 1 .. :data:`MAX_TOKENS`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llm_locust.workload.lengths.file import MAX_TOKENS, LengthError, plain_number, read_lengths

__all__ = ["ALLOWED", "MAX_TOKENS", "LengthError", "Lengths", "parse_lengths"]

#: Forms for error texts.
ALLOWED = "512, uniform:LOW,HIGH, normal:MEAN,SD, lognormal:MEDIAN,SIGMA or file:PATH (CSV, Parquet)"

#: ``(rng, n)`` to n rows: shape (n, 1) of lengths, or (n, 2) of input and output lengths.
Law = Callable[[np.random.Generator, int], NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts, all in least .. most. Equal when their texts are equal."""

    text: str
    law: Law = field(compare=False, repr=False)
    joint: bool = False  # a row is an input length with its output length
    least: int = 1  # of a joint distribution's input lengths; so is most
    most: int = MAX_TOKENS

    def rows(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
        """Draw n independent rows, shape (n, 2) if ``joint``, else (n, 1)."""
        return self.law(rng, n)

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
        """Draw n independent lengths, each >= 1; of a joint distribution the input lengths."""
        return self.law(rng, n)[:, 0]

    def sample(self, rng: np.random.Generator) -> int:
        """Draw one length, >= 1."""
        return int(self.draw(rng, 1)[0])


def parse_lengths(text: str) -> Lengths:
    """Parse the distribution in ``text``, in the module's grammar.

    Raises:
        LengthError: unknown name, a parameter that is missing or out of range, or a file that cannot be read
            or has an invalid row.
    """
    name, colon, rest = text.strip().partition(":")
    if not colon:
        tokens = _whole(text, _parameter(text, "the length", name, least=1))
        return Lengths(text, partial(_uniform, tokens, tokens), least=tokens, most=tokens)
    match name:
        case "uniform":
            low, high = (_whole(text, value) for value in _parameters(text, rest, ("LOW", 1), ("HIGH", 1)))
            if high < low:
                raise LengthError(f"lengths {text!r}: HIGH {high} is below LOW {low}")
            return Lengths(text, partial(_uniform, low, high), least=low, most=high)
        case "normal":
            mean, deviation = _parameters(text, rest, ("MEAN", 1), ("SD", 0))
            return Lengths(text, partial(_normal, mean, deviation))
        case "lognormal":
            median, sigma = _parameters(text, rest, ("MEDIAN", 1), ("SIGMA", 0))
            return Lengths(text, partial(_lognormal, math.log(median), sigma))
        case "file":
            return _of_file(text, Path(rest))
    raise LengthError(f"lengths {text!r}: no distribution {name!r}; allowed are {ALLOWED}")


def _of_file(text: str, path: Path) -> Lengths:
    try:
        rows = read_lengths(path)
    except LengthError as e:
        raise LengthError(f"lengths {text!r}: {e}") from e
    least, most = int(rows[:, 0].min()), int(rows[:, 0].max())
    return Lengths(text, partial(_resample, rows), joint=rows.shape[1] == 2, least=least, most=most)


def _uniform(low: int, high: int, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    if low == high:
        return np.full((n, 1), low, dtype=np.int64)
    return rng.integers(low, high, size=(n, 1), endpoint=True, dtype=np.int64)


def _normal(mean: float, deviation: float, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    return _tokens(rng.normal(mean, deviation, size=(n, 1)))


def _lognormal(mu: float, sigma: float, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    # Clipped before exp, which would otherwise overflow for a large sigma.
    logarithms = np.minimum(rng.normal(mu, sigma, size=(n, 1)), math.log(MAX_TOKENS))
    return _tokens(np.exp(logarithms))


def _resample(rows: NDArray[np.int64], rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    return rows[rng.integers(len(rows), size=n)]


def _tokens(values: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.clip(np.rint(values), 1, MAX_TOKENS).astype(np.int64)


def _parameters(text: str, rest: str, *wanted: tuple[str, float]) -> list[float]:
    words = rest.split(",")
    if len(words) != len(wanted):
        names = ",".join(name for name, _ in wanted)
        raise LengthError(f"lengths {text!r}: {rest!r} should be {names}; allowed are {ALLOWED}")
    return [_parameter(text, name, word, least) for word, (name, least) in zip(words, wanted, strict=True)]


def _parameter(text: str, name: str, word: str, least: float) -> float:
    value = plain_number(word)
    if value is None:
        raise LengthError(f"lengths {text!r}: {name} {word.strip()!r} is not a number; allowed are {ALLOWED}")
    if not least <= value <= MAX_TOKENS:
        raise LengthError(f"lengths {text!r}: {name} {word.strip()!r} is not in {least:g} .. {MAX_TOKENS:,}")
    return value


def _whole(text: str, value: float) -> int:
    if not value.is_integer():
        raise LengthError(f"lengths {text!r}: {value:g} is not a whole number of tokens")
    return int(value)
