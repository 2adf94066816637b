"""Lengths as distributions: in tokens, in time, or from a file."""

import csv
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from llm_locust.core.files import LENGTHS, FileReading, InputError, first_bytes, text_lines
from llm_locust.core.parquet_input import MAGIC, parquet_batches, parquet_input
from llm_locust.core.record import MAX_TOKENS
from llm_locust.core.texts import listed, named_values, parse_duration

__all__ = ["ALLOWED", "Lengths", "parse_lengths"]


# --------------------
# Token lengths from a file: rows of one length, or of an input and an output length.
#
# CSV (a first row without a number is its header), also gzip-compressed, or Parquet of one or two columns
# of integers.
# --------------------


_BATCH_ROWS = 1 << 16
_COLUMNS = "expected one column of lengths, or two: input,output"


class LengthError(ValueError):
    """A text that is not a distribution of lengths; has the value and what is allowed."""


def read_lengths(path: Path) -> NDArray[np.int64]:
    """Rows of the file, shape (n, 1) or (n, 2), n > 0.

    Raises:
        LengthError: the file cannot be read, is neither CSV nor Parquet, has no row, or a row that is not of
            lengths in 1 .. :data:`MAX_TOKENS`.
    """
    try:
        parquet = first_bytes(path, LENGTHS.name, len(MAGIC)) == MAGIC or path.suffix == ".parquet"
        rows = _of_parquet(path) if parquet else _of_csv(path)
    except LengthError:
        raise
    except InputError as e:
        raise LengthError(str(e)) from e
    except (ValueError, csv.Error) as e:
        raise LengthError(f"{str(path)!r} is not a CSV file: {e}") from e
    if not len(rows):
        raise LengthError(f"{str(path)!r} has no row; expected one or two lengths a row")
    return rows


def plain_number(word: str) -> float | None:
    """Parse a plain decimal number: ``float`` would accept ``nan`` and ``1_0`` too."""
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in word else None


def _of_csv(path: Path) -> NDArray[np.int64]:
    rows: list[list[int]] = []
    reader = csv.reader(text_lines(path, FileReading(LENGTHS, path)))
    filled = (cells for cells in reader if any(cell.strip() for cell in cells))
    for i, cells in enumerate(filled):
        if i == 0 and all(plain_number(cell) is None for cell in cells):
            continue
        where = f"{path}:{reader.line_num}"
        rows.append(_row(where, cells))
        if len(rows[-1]) != len(rows[0]):
            raise LengthError(f"{where}: {len(cells)} columns, {len(rows[0])} in the rows before")
    return np.array(rows, dtype=np.int64)


def _row(where: str, cells: list[str]) -> list[int]:
    if len(cells) > 2:
        raise LengthError(f"{where}: {len(cells)} columns; expected an input length, or input,output")
    lengths = []
    for cell in cells:
        value = plain_number(cell)
        if value is None or not value.is_integer() or not 1 <= value <= MAX_TOKENS:
            raise _no_length(where, cell.strip()[:60])
        lengths.append(int(value))
    return lengths


def _of_parquet(path: Path) -> NDArray[np.int64]:
    with parquet_input(path, LENGTHS) as file:
        names = file.schema_arrow.names
        if len(names) not in (1, 2):
            shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
            raise LengthError(f"{path}: {len(names)} columns ({shown}); {_COLUMNS}")
        for name in names:
            _check_type(path, name, file.schema_arrow.field(name).type)
        batches = list(parquet_batches(file, FileReading(LENGTHS, path), _BATCH_ROWS))
        table = pa.Table.from_batches(batches, file.schema_arrow)
    return np.column_stack([_column(path, name, table.column(name)) for name in names])


def _check_type(path: Path, name: str, kind: pa.DataType) -> None:
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise LengthError(f"{path}: column {name!r} is of type {kind}; {_COLUMNS}")


def _column(path: Path, name: str, column: pa.ChunkedArray) -> NDArray[np.int64]:
    values = np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)
    wrong = ~((values >= 1) & (values <= MAX_TOKENS) & (values == np.rint(values)))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise _no_length(f"{path}: row {row + 1} of column {name!r}", str(column[row].as_py()))
    return values.astype(np.int64)


def _no_length(where: str, value: str) -> LengthError:
    return LengthError(f"{where}: {value!r} is not a length; expected a whole number in 1 .. {MAX_TOKENS:,}")


# --------------------
# Token lengths as distributions: ``512``, ``uniform:100,1000``, ``lognormal:512,1.2`` ...
#
# ============================== =============================================================
# ``N``                          always N
# ``uniform:LOW,HIGH``           uniform over the integers from LOW to HIGH, both included
# ``normal:MEAN,SD``             normal with that mean and standard deviation
# ``lognormal:MEDIAN,SIGMA``     standard deviation SIGMA of the natural logarithm; the mean is
#                                MEDIAN·exp(SIGMA²/2), for ``512,1.2`` 1,052
# ``lognormal:mean=M,sd=SD``     the same law by the mean and standard deviation of the lengths
# ``exponential:MEAN``           exponential with that mean
# ``file:PATH``                  rows of a CSV or Parquet file, drawn with replacement; one
#                                column of lengths, or two: an input length and its output
#                                length
# ``0.7*NAME:... + 0.3*NAME:..`` a mixture: each draw is from one of them, with these shares
# ============================== =============================================================
#
# A normal, lognormal or exponential law may end with limits, as ``normal:512,64,min=16,max=2048``. Draws
# are rounded to whole tokens, and those beyond the limits (default 1 and :data:`MAX_TOKENS`) are set to the
# limit: mean and standard deviation are those before the limits.
# --------------------


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


# --------------------
# Times as distributions: ``2s``, ``uniform:1s,5s``, ``exponential:3s``, ``lognormal:4s,0.8``.
#
# ========================== =================================================================
# ``T``                      always T
# ``uniform:LOW,HIGH``       uniform from LOW to HIGH
# ``exponential:MEAN``       exponential with that mean
# ``normal:MEAN,SD``         normal with that mean and standard deviation
# ``lognormal:M,SIGMA``      median M, standard deviation SIGMA of the natural logarithm; the
#                            mean is M·exp(SIGMA²/2)
# ``lognormal:mean=M,sd=SD`` the same law by the mean and standard deviation of the times
# ========================== =================================================================
#
# An exponential, normal or lognormal law may end with limits, as ``lognormal:4s,0.8,min=1s,max=1m``: a draw
# beyond a limit is set to the limit. A time has a unit, as in ``500ms``. No draw is below 0 or longer than
# :data:`LONGEST_S`.
# --------------------


#: Forms for error texts.
ALLOWED_TIMES = (
    "2s, uniform:LOW,HIGH, exponential:MEAN, normal:MEAN,SD, lognormal:MEDIAN,SIGMA or "
    "lognormal:mean=M,sd=SD (these four also with ,min=T,max=T)"
)

#: A day. An extreme draw must not keep a user away forever.
LONGEST_S = 86_400.0

_MOST_SIGMA = 10.0

TimeLaw = Callable[[np.random.Generator], float]


class TimesError(ValueError):
    """A text that is not a distribution of times; has the value and what is allowed."""


@dataclass(frozen=True, slots=True)
class TimeDistribution:
    """A distribution of times in ``least_s`` .. ``most_s`` seconds. Equal when their texts are equal."""

    text: str
    law: TimeLaw = field(compare=False, repr=False)
    least_s: float = 0.0
    most_s: float = LONGEST_S

    def draw_s(self, rng: np.random.Generator) -> float:
        """Draw one time, in seconds."""
        return max(self.least_s, min(self.law(rng), self.most_s))


def parse_times(text: str) -> TimeDistribution:
    """Parse the distribution in ``text``, in the module's grammar.

    Raises:
        TimesError: unknown name, or a parameter that is missing, not a time, or out of range.
    """
    name, colon, rest = text.strip().partition(":")
    words = [word.strip() for word in rest.split(",")] if colon else []
    match name:
        case _ if not colon:
            return TimeDistribution(text, partial(_always, _time_s(text, "the time", name)))
        case "uniform":
            low, high = _times_parameters(text, words, "LOW", "HIGH")
            low_s, high_s = _time_s(text, "LOW", low), _time_s(text, "HIGH", high)
            if high_s < low_s:
                raise TimesError(f"times {text!r}: HIGH {high} is below LOW {low}")
            return TimeDistribution(text, partial(_times_uniform, low_s, high_s))
        case "exponential" | "normal" | "lognormal":
            return _unbounded(text, name, words)
    raise TimesError(f"times {text!r}: no distribution {name!r}; allowed are {ALLOWED_TIMES}")


def _unbounded(text: str, name: str, words: list[str]) -> TimeDistribution:
    """A law that has no limits of its own, between those that are given."""
    try:
        named, words = named_values(words)
    except ValueError as e:
        raise TimesError(f"times {text!r}: {e}") from e
    least_s = _time_s(text, "min", named.pop("min", "0s"))
    most_s = _time_s(text, "max", named.pop("max", f"{LONGEST_S:g}s"))
    if most_s < least_s:
        raise TimesError(f"times {text!r}: max is below min")
    law: TimeLaw
    if name == "lognormal" and named:
        mean_s, deviation_s = (_time_s(text, key, named.pop(key, "")) for key in ("mean", "sd"))
        if not mean_s:
            raise TimesError(f"times {text!r}: mean must be above 0")
        variance = math.log1p((deviation_s / mean_s) ** 2)
        _times_parameters(text, words)
        law = partial(_times_lognormal, mean_s * math.exp(-variance / 2), math.sqrt(variance))
    elif name == "lognormal":
        median, sigma = _times_parameters(text, words, "MEDIAN", "SIGMA")
        law = partial(_times_lognormal, _time_s(text, "MEDIAN", median), _sigma(text, sigma))
    elif name == "normal":
        mean, deviation = _times_parameters(text, words, "MEAN", "SD")
        law = partial(_times_normal, _time_s(text, "MEAN", mean), _time_s(text, "SD", deviation))
    else:
        (mean,) = _times_parameters(text, words, "MEAN")
        law = partial(_times_exponential, _time_s(text, "MEAN", mean))
    if named:
        raise TimesError(f"times {text!r}: {name} has no {listed(named)}; allowed are {ALLOWED_TIMES}")
    return TimeDistribution(text, law, least_s, most_s)


def _always(time_s: float, rng: np.random.Generator) -> float:
    return time_s


def _times_uniform(low_s: float, high_s: float, rng: np.random.Generator) -> float:
    return float(rng.uniform(low_s, high_s))


def _times_exponential(mean_s: float, rng: np.random.Generator) -> float:
    return float(rng.exponential(mean_s))


def _times_normal(mean_s: float, deviation_s: float, rng: np.random.Generator) -> float:
    return float(rng.normal(mean_s, deviation_s))


def _times_lognormal(median_s: float, sigma: float, rng: np.random.Generator) -> float:
    return median_s * math.exp(float(rng.normal(0.0, sigma)))


def _times_parameters(text: str, words: list[str], *names: str) -> list[str]:
    if len(words) != len(names):
        given, wanted = ",".join(words), ",".join(names) or "left out"
        raise TimesError(f"times {text!r}: {given!r} should be {wanted}; allowed are {ALLOWED_TIMES}")
    return words


def _time_s(text: str, name: str, word: str) -> float:
    try:
        time_s = parse_duration(word)
    except ValueError as e:
        raise TimesError(f"times {text!r}: {name} {word!r}: {e}; allowed are {ALLOWED_TIMES}") from e
    if time_s > LONGEST_S:
        raise TimesError(f"times {text!r}: {name} {word!r} is longer than a day")
    return time_s


def _sigma(text: str, word: str) -> float:
    sigma = plain_number(word)
    if sigma is None or not 0 <= sigma <= _MOST_SIGMA:
        raise TimesError(f"times {text!r}: SIGMA {word!r} is not a number in 0 .. {_MOST_SIGMA:g}")
    return sigma
