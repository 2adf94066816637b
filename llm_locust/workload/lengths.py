"""Token lengths as distributions: ``512``, ``uniform:100,1000``, ``lognormal:512,1.2`` ...

====================== =====================================================================
``N``                  always N
``uniform:LOW,HIGH``   every whole number from LOW to HIGH, both included, equally often
``normal:MEAN,SD``     normal of that mean and standard deviation, before the bounds below
``lognormal:M,SIGMA``  median M, standard deviation SIGMA of the natural logarithm; the mean
                       is M·exp(SIGMA²/2), for ``512,1.2`` 1,052
``file:PATH``          rows of a CSV file, drawn with replacement; one column of lengths, or
                       two: an input length and the output length that belongs to it
====================== =====================================================================

Draws are rounded to whole tokens and brought into 1 .. :data:`MAX_TOKENS`.
"""

import csv
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

#: No draw is longer: a typing error in a distribution must not fill the memory.
MAX_TOKENS = 10_000_000

#: The forms that error texts name.
ALLOWED = "512, uniform:LOW,HIGH, normal:MEAN,SD, lognormal:MEDIAN,SIGMA or file:PATH.csv"

#: ``(rng, n)`` to n rows: shape (n, 1) of lengths, or (n, 2) of input and output lengths.
Law = Callable[[np.random.Generator, int], NDArray[np.int64]]


class LengthError(ValueError):
    """A text that is no distribution of lengths; says the value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts. Equal when their texts are equal."""

    text: str
    law: Law = field(compare=False, repr=False)
    joint: bool = False  # a row is an input length with its output length

    def rows(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
        """n independent draws, shape (n, 2) where ``joint``, else (n, 1)."""
        return self.law(rng, n)

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
        """n independent lengths, each >= 1; of a joint distribution the input lengths."""
        return self.law(rng, n)[:, 0]

    def sample(self, rng: np.random.Generator) -> int:
        """One length, >= 1."""
        return int(self.draw(rng, 1)[0])


def parse_lengths(text: str) -> Lengths:
    """The distribution that ``text`` names, in the module's grammar.

    Raises:
        LengthError: unknown name, a parameter that is missing or out of bounds, a file that
            cannot be read or has a row that is not a length.
    """
    name, colon, rest = text.strip().partition(":")
    if not colon:
        tokens = _parameter(text, "the length", name, least=1)
        return Lengths(text, partial(_uniform, _whole(text, tokens), _whole(text, tokens)))
    match name:
        case "uniform":
            low, high = _parameters(text, rest, ("LOW", 1), ("HIGH", 1))
            if high < low:
                raise LengthError(f"lengths {text!r}: HIGH {high:g} is below LOW {low:g}")
            return Lengths(text, partial(_uniform, _whole(text, low), _whole(text, high)))
        case "normal":
            mean, deviation = _parameters(text, rest, ("MEAN", 1), ("SD", 0))
            return Lengths(text, partial(_normal, mean, deviation))
        case "lognormal":
            median, sigma = _parameters(text, rest, ("MEDIAN", 1), ("SIGMA", 0))
            return Lengths(text, partial(_lognormal, math.log(median), sigma))
        case "file":
            rows = _read(text, Path(rest))
            return Lengths(text, partial(_resample, rows), joint=rows.shape[1] == 2)
    raise LengthError(f"lengths {text!r}: no distribution {name!r}; allowed are {ALLOWED}")


def _uniform(low: int, high: int, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    if low == high:
        return np.full((n, 1), low, dtype=np.int64)
    return rng.integers(low, high, size=(n, 1), endpoint=True, dtype=np.int64)


def _normal(mean: float, deviation: float, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    return _tokens(rng.normal(mean, deviation, size=(n, 1)))


def _lognormal(mu: float, sigma: float, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    # Bounded before exp, which would otherwise overflow for a large sigma.
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
    value = _number(word)
    if value is None:
        raise LengthError(f"lengths {text!r}: {name} {word.strip()!r} is not a number; allowed are {ALLOWED}")
    if not least <= value <= MAX_TOKENS:
        raise LengthError(f"lengths {text!r}: {name} {word.strip()!r} is not in {least:g} .. {MAX_TOKENS:,}")
    return value


def _whole(text: str, value: float) -> int:
    if not value.is_integer():
        raise LengthError(f"lengths {text!r}: {value:g} is not a whole number of tokens")
    return int(value)


def _number(word: str) -> float | None:
    """The plain decimal number that ``word`` is: ``float`` would take ``nan`` and ``1_0`` too."""
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in word else None


def _read(text: str, path: Path) -> NDArray[np.int64]:
    """The file's rows of one or two lengths; a first row without a number is its header."""
    rows: list[list[int]] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            filled = (cells for cells in reader if any(cell.strip() for cell in cells))
            for i, cells in enumerate(filled):
                if i == 0 and all(_number(cell) is None for cell in cells):
                    continue
                where = f"{path}:{reader.line_num}"
                rows.append(_row(where, cells))
                if len(rows[-1]) != len(rows[0]):
                    raise LengthError(f"{where}: {len(cells)} columns, {len(rows[0])} in the rows before")
    except LengthError:
        raise
    except OSError as e:
        raise LengthError(f"lengths {text!r}: {str(path)!r} cannot be read: {e.strerror or e}") from e
    except (ValueError, csv.Error) as e:
        raise LengthError(f"lengths {text!r}: {str(path)!r} is not a CSV file in UTF-8: {e}") from e
    if not rows:
        raise LengthError(f"lengths {text!r}: {str(path)!r} has no row; expected one or two lengths a row")
    return np.array(rows, dtype=np.int64)


def _row(where: str, cells: list[str]) -> list[int]:
    if len(cells) > 2:
        raise LengthError(f"{where}: {len(cells)} columns; expected an input length, or input,output")
    lengths = []
    for cell in cells:
        value = _number(cell)
        if value is None or not value.is_integer() or not 1 <= value <= MAX_TOKENS:
            raise LengthError(
                f"{where}: {cell.strip()[:60]!r} is no length; expected a whole number in 1 .. {MAX_TOKENS:,}"
            )
        lengths.append(int(value))
    return lengths
