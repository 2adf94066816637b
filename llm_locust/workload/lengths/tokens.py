"""Token lengths as distributions: ``512``, ``uniform:100,1000``, ``lognormal:512,1.2`` ...

============================== =============================================================
``N``                          always N
``uniform:LOW,HIGH``           uniform over the integers from LOW to HIGH, both included
``normal:MEAN,SD``             normal with that mean and standard deviation
``lognormal:MEDIAN,SIGMA``     standard deviation SIGMA of the natural logarithm; the mean is
                               MEDIAN·exp(SIGMA²/2), for ``512,1.2`` 1,052
``lognormal:mean=M,sd=SD``     the same law by the mean and standard deviation of the lengths
``exponential:MEAN``           exponential with that mean
``file:PATH``                  rows of a CSV or Parquet file, drawn with replacement; one
                               column of lengths, or two: an input length and its output
                               length
``0.7*NAME:... + 0.3*NAME:..`` a mixture: each draw is from one of them, with these shares
============================== =============================================================

A normal, lognormal or exponential law may end with limits, as ``normal:512,64,min=16,max=2048``. Draws are
rounded to whole tokens, and those beyond the limits (default 1 and :data:`MAX_TOKENS`) are set to the limit:
mean and standard deviation are those before the limits.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llm_locust.core.record import MAX_TOKENS
from llm_locust.core.terms import listed, named_values
from llm_locust.workload.lengths.file import LengthError, plain_number, read_lengths

__all__ = ["ALLOWED", "MAX_TOKENS", "LengthError", "Lengths", "parse_lengths"]

#: Forms for error texts.
ALLOWED = (
    "512, uniform:LOW,HIGH, normal:MEAN,SD, lognormal:MEDIAN,SIGMA, lognormal:mean=M,sd=SD, exponential:MEAN "
    "(these three also with ,min=N,max=N), file:PATH (CSV, Parquet), or a mixture: 0.7*512 + 0.3*uniform:1,9"
)

#: ``0.7*`` before a part of a mixture, and what is between two parts.
_SHARE = re.compile(r"\s*([0-9.]+%?)\s*\*")
_PLUS = re.compile(r"\s\+\s(?=\s*[0-9.]+%?\s*\*)")

#: The shares of a mixture may differ from 1 in sum by their rounding.
_ROUNDING = 0.005

#: ``(rng, n)`` to n rows: shape (n, 1) of lengths, or (n, 2) of input and output lengths.
Law = Callable[[np.random.Generator, int], NDArray[np.int64]]
#: The same with real numbers, before they are rounded.
Reals = Callable[[np.random.Generator, int], NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts, all in 1 .. most. Equal when their texts are equal."""

    text: str
    law: Law = field(compare=False, repr=False)
    most: int  # of a joint distribution's input lengths
    joint: bool = False  # a row is an input length with its output length

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
        LengthError: unknown name, a parameter that is missing, unknown or out of range, shares that are not 1
            in sum, or a file that cannot be read or has an invalid row.
    """
    return _mixture(text) if _SHARE.match(text) else _single(text, text)


def _mixture(text: str) -> Lengths:
    """``0.7*512 + 0.3*uniform:1,9``."""
    shares, parts = [], []
    for part in _PLUS.split(text):
        share = _SHARE.match(part)
        if share is None:
            raise LengthError(f"lengths {text!r}: {part!r} has no share before it; allowed are {ALLOWED}")
        shares.append(_share(text, share[1]))
        parts.append(_single(text, part[share.end() :]))
    if abs(sum(shares) - 1) > _ROUNDING:
        raise LengthError(f"lengths {text!r}: the shares are {sum(shares):g} in sum, not 1")
    if len({part.joint for part in parts}) > 1:
        raise LengthError(f"lengths {text!r}: a file with two columns is mixed only with such files")
    whole = sum(shares)
    law = partial(_mixed, [share / whole for share in shares], [part.law for part in parts])
    return Lengths(text, law, max(part.most for part in parts), joint=parts[0].joint)


def _share(text: str, word: str) -> float:
    value = plain_number(word.removesuffix("%"))
    if value is None:
        raise LengthError(f"lengths {text!r}: {word!r} is not a share, as 0.7 or 70%")
    return value / 100 if word.endswith("%") else value


def _single(text: str, part: str) -> Lengths:
    name, colon, rest = part.strip().partition(":")
    if not colon:
        tokens = _whole(text, _parameter(text, "the length", name, least=1))
        return Lengths(text, partial(_uniform, tokens, tokens), tokens)
    match name:
        case "uniform":
            low, high = (_whole(text, value) for value in _parameters(text, rest, ("LOW", 1), ("HIGH", 1)))
            if high < low:
                raise LengthError(f"lengths {text!r}: HIGH {high} is below LOW {low}")
            return Lengths(text, partial(_uniform, low, high), high)
        case "normal" | "lognormal" | "exponential":
            return _continuous(text, name, rest)
        case "file":
            return _of_file(text, Path(rest))
    raise LengthError(f"lengths {text!r}: no distribution {name!r}; allowed are {ALLOWED}")


def _continuous(text: str, name: str, rest: str) -> Lengths:
    """A law of real numbers, rounded, between its limits."""
    try:
        named, others = named_values(rest.split(","))
    except ValueError as e:
        raise LengthError(f"lengths {text!r}: {e}") from e
    rest = ",".join(others)
    least, most = (
        _whole(text, _parameter(text, limit, named.pop(limit, str(usual)), 1))
        for limit, usual in (("min", 1), ("max", MAX_TOKENS))
    )
    if most < least:
        raise LengthError(f"lengths {text!r}: max {most} is below min {least}")
    law: Reals
    if name == "lognormal" and named:
        mean, deviation = (
            _parameter(text, key, named.pop(key, ""), bound) for key, bound in (("mean", 1), ("sd", 0))
        )
        variance = math.log1p((deviation / mean) ** 2)
        law = partial(_lognormal, math.log(mean) - variance / 2, math.sqrt(variance))
        if rest:
            raise LengthError(f"lengths {text!r}: leave out {rest!r} before mean= and sd=")
    elif name == "lognormal":
        median, sigma = _parameters(text, rest, ("MEDIAN", 1), ("SIGMA", 0))
        law = partial(_lognormal, math.log(median), sigma)
    elif name == "normal":
        mean, deviation = _parameters(text, rest, ("MEAN", 1), ("SD", 0))
        law = partial(_normal, mean, deviation)
    else:
        (mean,) = _parameters(text, rest, ("MEAN", 1))
        law = partial(_exponential, mean)
    if named:
        raise LengthError(f"lengths {text!r}: {name} has no {listed(named)}; allowed are {ALLOWED}")
    return Lengths(text, partial(_rounded, law, least, most), most)


def _of_file(text: str, path: Path) -> Lengths:
    try:
        rows = read_lengths(path)
    except LengthError as e:
        raise LengthError(f"lengths {text!r}: {e}") from e
    return Lengths(text, partial(_resample, rows), int(rows[:, 0].max()), joint=rows.shape[1] == 2)


def _uniform(low: int, high: int, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    if low == high:
        return np.full((n, 1), low, dtype=np.int64)
    return rng.integers(low, high, size=(n, 1), endpoint=True, dtype=np.int64)


def _normal(mean: float, deviation: float, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    return rng.normal(mean, deviation, size=(n, 1))


def _lognormal(mu: float, sigma: float, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    # Clipped before exp, which would otherwise overflow for a large sigma.
    logarithms: NDArray[np.float64] = np.minimum(rng.normal(mu, sigma, size=(n, 1)), math.log(MAX_TOKENS))
    return np.exp(logarithms)


def _exponential(mean: float, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    return rng.exponential(mean, size=(n, 1))


def _rounded(law: Reals, least: int, most: int, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    return np.clip(np.rint(law(rng, n)), least, most).astype(np.int64)


def _mixed(shares: list[float], laws: list[Law], rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    chosen = rng.choice(len(laws), size=n, p=shares)
    # All of one law at once; those that are not chosen are drawn and left out.
    drawn = [law(rng, n) for law in laws]
    return np.stack(drawn)[chosen, np.arange(n)]


def _resample(rows: NDArray[np.int64], rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    return rows[rng.integers(len(rows), size=n)]


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
