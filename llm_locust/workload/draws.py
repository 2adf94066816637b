"""Random draws: generators by key, orders of a dataset's lines, and lengths and times by distributions.

The texts of lengths and times that users write are parsed here, too.
"""

import csv
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

from llm_locust.core.arrow import MAGIC, parquet_batches, parquet_input
from llm_locust.core.files import LENGTHS, FileReading, InputError, first_bytes, text_lines
from llm_locust.core.record import MAX_TOKENS
from llm_locust.core.texts import listed, named_values, parse_duration, plain_number
from llm_locust.figures.text import plural

# --- Random generators by key: equal keys draw the same, different ones independently


#: Third number of a key: the purpose of the draws. A user's lengths have a key of two numbers: its worker and
#: itself. Draws shared by all workers have worker 0 and user 0.
OWN_OUTPUTS, TEXT, LINE, REPLAY, PREFIX, BLOCK, ORDER, BACKOFF, INPUTS, MODELS, PRIMER, IMAGES = range(1, 13)


def digest(*key: object, size: int = 8) -> bytes:
    """The hash of a key, of ``size`` bytes: equal for equal keys only."""
    return blake2b("/".join(map(str, key)).encode(), digest_size=size).digest()


def seed_of(seed: int, stream: str) -> int:
    """A seed whose draws are apart from those of ``seed`` and of its other streams."""
    return int.from_bytes(digest(seed, stream, size=7))


class _Key(ISeedSequence):
    """State of a generator by a hash: a tenth of the time of numpy's own ``SeedSequence``."""

    def __init__(self, key: tuple[int, ...]) -> None:
        self._key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        return np.frombuffer(digest(*self._key, size=n_words * np.dtype(dtype).itemsize), dtype)


def generator(seed: int, *key: int) -> np.random.Generator:
    """Create the generator of ``key`` under ``seed``, both non-negative integers. Takes about 2 µs."""
    state: Any = _Key((seed, *key))  # numpy's types know no sequences of one's own
    return np.random.Generator(np.random.PCG64(state))


def swarm_generator(seed: int, purpose: int, *key: int) -> np.random.Generator:
    """Create a generator for draws that are equal on every worker."""
    return generator(seed, 0, 0, purpose, *key)


# --- Order in which a dataset's lines are sent, and their distribution among the workers


Order = Literal["sequential", "shuffled", "weighted"]

ORDERS: tuple[Order, ...] = get_args(Order)

_BLOCK = 64


def sequential(lines: int, worker_index: int, worker_count: int) -> Iterator[int]:
    """Lines i, i + W, i + 2W .. of worker i of W, repeated: each line belongs to one worker.

    Only with more workers than lines do some share one.
    """
    while True:
        yield from range(worker_index % lines, lines, worker_count)


def shuffled(lines: int, worker_index: int, worker_count: int, seed: int) -> Iterator[int]:
    """All lines in a random order, a new one each epoch; shared out as in :func:`sequential`.

    Every worker draws the same order: within an epoch each line is sent by exactly one worker.
    """
    for epoch in count():
        order = swarm_generator(seed, ORDER, epoch).permutation(lines)
        yield from order[worker_index % lines :: worker_count].tolist()


def weighted(weights: Sequence[float], worker_index: int, seed: int) -> Iterator[int]:
    """Lines drawn with replacement, with probabilities proportional to their weights.

    Every worker draws from all lines, so that the shares are right for any number of workers.
    """
    rng = generator(seed, worker_index, 0, ORDER)
    total = np.cumsum(np.asarray(weights, dtype=np.float64))
    while True:
        drawn = np.searchsorted(total, rng.random(_BLOCK) * total[-1], side="right")
        yield from np.minimum(drawn, len(total) - 1).tolist()


# --- Token lengths from a file: rows of one length, or of an input and an output length
#
# CSV (a first row without a number is its header), also gzip-compressed, or Parquet of one or two columns
# of integers.


_FILE_ROWS = 1 << 16
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


def _of_csv(path: Path) -> NDArray[np.int64]:
    rows: list[list[int]] = []
    reader = csv.reader(text_lines(path, FileReading(LENGTHS, path)))
    filled = (cells for cells in reader if any(cell.strip() for cell in cells))
    for i, cells in enumerate(filled):
        if i == 0 and all(math.isnan(plain_number(cell)) for cell in cells):
            continue
        where = f"{path}:{reader.line_num}"
        rows.append(_row(where, cells))
        if len(rows[-1]) != len(rows[0]):
            raise LengthError(f"{where}: {plural(len(cells), 'column')}, {len(rows[0])} in the rows before")
    return np.array(rows, dtype=np.int64)


def _row(where: str, cells: list[str]) -> list[int]:
    if len(cells) > 2:
        raise LengthError(f"{where}: {len(cells)} columns; expected an input length, or input,output")
    lengths = []
    for cell in cells:
        value = plain_number(cell)
        if not (value.is_integer() and 1 <= value <= MAX_TOKENS):
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
            kind = file.schema_arrow.field(name).type
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
                raise LengthError(f"{path}: column {name!r} is of type {kind}; {_COLUMNS}")
        batches = list(parquet_batches(file, FileReading(LENGTHS, path), _FILE_ROWS))
        table = pa.Table.from_batches(batches, file.schema_arrow)
    return np.column_stack([_column(path, name, table.column(name)) for name in names])


def _column(path: Path, name: str, column: pa.ChunkedArray) -> NDArray[np.int64]:
    values = np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)
    wrong = ~((values >= 1) & (values <= MAX_TOKENS) & (values == np.rint(values)))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise _no_length(f"{path}: row {row + 1} of column {name!r}", str(column[row].as_py()))
    return values.astype(np.int64)


def _no_length(where: str, value: str) -> LengthError:
    return LengthError(f"{where}: {value!r} is not a length; expected a whole number in 1 .. {MAX_TOKENS:,}")


# --- Token lengths as distributions: ``512``, ``uniform:100,1000``, ``lognormal:512,1.2``
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


#: Forms for error texts.
ALLOWED_LENGTHS = (
    "512, uniform:LOW,HIGH, normal:MEAN,SD, lognormal:MEDIAN,SIGMA, lognormal:mean=M,sd=SD, exponential:MEAN "
    "(these three also with ,min=N,max=N), file:PATH (CSV, Parquet), or a mixture: 0.7*512 + 0.3*uniform:1,9"
)

#: ``0.7*`` before a part of a mixture, and what is between two parts.
_SHARE = re.compile(r"\s*([0-9.]+%?)\s*\*")
_PLUS = re.compile(r"\s\+\s(?=\s*[0-9.]+%?\s*\*)")

#: Factors of a median above e to this are as this: beyond all lengths and times.
_MOST_EXPONENT = 50.0

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
    """Parse the distribution in ``text``, in the grammar above.

    Raises:
        LengthError: unknown name, a parameter that is missing, unknown or out of range, shares that are not 1
            in sum, or a file that cannot be read or has an invalid row.
    """
    try:
        return _mixture(text) if _SHARE.match(text) else _single(text)
    except ValueError as e:
        raise LengthError(f"lengths {text!r}: {e}") from e


def _mixture(text: str) -> Lengths:
    """``0.7*512 + 0.3*uniform:1,9``."""
    shares, parts = [], []
    for part in _PLUS.split(text):
        found = _SHARE.match(part)
        if found is None:
            raise ValueError(f"{part!r} has no share before it; allowed are {ALLOWED_LENGTHS}")
        share = plain_number(found[1].removesuffix("%"))
        if math.isnan(share):
            raise ValueError(f"{found[1]!r} is not a share, as 0.7 or 70%")
        shares.append(share / 100 if found[1].endswith("%") else share)
        parts.append(_single(part[found.end() :]))
    whole = sum(shares)
    if abs(whole - 1) > _ROUNDING:
        raise ValueError(f"the shares are {whole:g} in sum, not 1")
    if len({part.joint for part in parts}) > 1:
        raise ValueError("a file with two columns is mixed only with such files")
    law = partial(_mixed, [share / whole for share in shares], [part.law for part in parts])
    return Lengths(text, law, max(part.most for part in parts), joint=parts[0].joint)


def _single(text: str) -> Lengths:
    name, colon, rest = text.strip().partition(":")
    if not colon:
        tokens = _whole(_tokens("the length", name, 1))
        return Lengths(text, partial(_uniform, tokens, tokens), tokens)
    if name == "file":
        rows = read_lengths(Path(rest))
        return Lengths(text, partial(_resample, rows), int(rows[:, 0].max()), joint=rows.shape[1] == 2)
    if name == "uniform":
        low, high = (_whole(value) for value in _ends(_TOKENS, rest.split(",")))
        return Lengths(text, partial(_uniform, low, high), high)
    real = _real_law(_TOKENS, name, rest.split(","))
    least, most = _whole(real.least), _whole(real.most)
    return Lengths(text, partial(_rounded, real.law, least, most), most)


def _uniform(low: int, high: int, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    if low == high:
        return np.full((n, 1), low, dtype=np.int64)
    return rng.integers(low, high, size=(n, 1), endpoint=True, dtype=np.int64)


def _rounded(law: Reals, least: int, most: int, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    return np.clip(np.rint(law(rng, n)), least, most).astype(np.int64)


def _mixed(shares: list[float], laws: list[Law], rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    chosen = rng.choice(len(laws), size=n, p=shares)
    # All of one law at once; those that are not chosen are drawn and left out.
    drawn = [law(rng, n) for law in laws]
    return np.stack(drawn)[chosen, np.arange(n)]


def _resample(rows: NDArray[np.int64], rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    return rows[rng.integers(len(rows), size=n)]


# --- Times as distributions: ``2s``, ``uniform:1s,5s``, ``exponential:3s``, ``lognormal:4s,0.8``
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


#: Forms for error texts.
ALLOWED_TIMES = (
    "2s, uniform:LOW,HIGH, exponential:MEAN, normal:MEAN,SD, lognormal:MEDIAN,SIGMA or "
    "lognormal:mean=M,sd=SD (these four also with ,min=T,max=T)"
)

#: A day. An extreme draw must not keep a user away forever.
LONGEST_S = 86_400.0


class TimesError(ValueError):
    """A text that is not a distribution of times; has the value and what is allowed."""


@dataclass(frozen=True, slots=True)
class TimeDistribution:
    """A distribution of times in ``least_s`` .. ``most_s`` seconds. Equal when their texts are equal."""

    text: str
    law: Reals = field(compare=False, repr=False)
    least_s: float = 0.0
    most_s: float = LONGEST_S

    def draw_s(self, rng: np.random.Generator) -> float:
        """Draw one time, in seconds."""
        return max(self.least_s, min(float(self.law(rng, 1)[0, 0]), self.most_s))


def parse_times(text: str) -> TimeDistribution:
    """Parse the distribution in ``text``, in the grammar above.

    Raises:
        TimesError: unknown name, or a parameter that is missing, not a time, or out of range.
    """
    name, colon, rest = text.strip().partition(":")
    words = [word.strip() for word in rest.split(",")]
    try:
        if not colon:
            time_s = _seconds("the time", name)
            return TimeDistribution(text, partial(_real_uniform, time_s, time_s))
        if name == "uniform":
            return TimeDistribution(text, partial(_real_uniform, *_ends(_TIMES, words)))
        real = _real_law(_TIMES, name, words)
    except ValueError as e:
        raise TimesError(f"times {text!r}: {e}") from e
    return TimeDistribution(text, real.law, real.least, real.most)


# --- Laws of real numbers, of tokens or of seconds: what both grammars have in common


@dataclass(frozen=True, slots=True)
class _Unit:
    """What the parameters of a law are in.

    Attributes:
        read: the value of a parameter's name, its word and the least that it may be; raises ValueError.
        least: of a mean or a median.
        limits: of draws, where none are given.
    """

    read: Callable[[str, str, float], float]
    allowed: str
    least: float
    limits: tuple[str, str]
    most_sigma: float


@dataclass(frozen=True, slots=True)
class _RealLaw:
    law: Reals
    least: float
    most: float


def _tokens(name: str, word: str, least: float) -> float:
    value = plain_number(word)
    if math.isnan(value):
        raise ValueError(f"{name} {word.strip()!r} is not a number; allowed are {ALLOWED_LENGTHS}")
    if not least <= value <= MAX_TOKENS:
        raise ValueError(f"{name} {word.strip()!r} is not in {least:g} .. {MAX_TOKENS:,}")
    return value


def _whole(value: float) -> int:
    if not value.is_integer():
        raise ValueError(f"{value:g} is not a whole number of tokens")
    return int(value)


def _seconds(name: str, word: str, least: float = 0.0) -> float:
    try:
        time_s = parse_duration(word)
    except ValueError as e:
        raise ValueError(f"{name} {word!r}: {e}; allowed are {ALLOWED_TIMES}") from e
    if time_s > LONGEST_S:
        raise ValueError(f"{name} {word!r} is longer than a day")
    return time_s


_TOKENS = _Unit(_tokens, ALLOWED_LENGTHS, 1, ("1", f"{MAX_TOKENS}"), MAX_TOKENS)
_TIMES = _Unit(_seconds, ALLOWED_TIMES, 0, ("0s", f"{LONGEST_S:g}s"), 10)


def _words(unit: _Unit, words: Sequence[str], *names: str) -> Sequence[str]:
    if len(words) != len(names):
        raise ValueError(f"{','.join(words)!r} should be {','.join(names)}; allowed are {unit.allowed}")
    return words


def _ends(unit: _Unit, words: Sequence[str]) -> tuple[float, float]:
    """The ends of a uniform distribution."""
    low, high = _words(unit, words, "LOW", "HIGH")
    ends = unit.read("LOW", low, unit.least), unit.read("HIGH", high, unit.least)
    if ends[1] < ends[0]:
        raise ValueError(f"HIGH {high} is below LOW {low}")
    return ends


def _real_law(unit: _Unit, name: str, words: Sequence[str]) -> _RealLaw:
    """A law that has no limits of its own, between those that are given."""
    if name not in ("exponential", "normal", "lognormal"):
        raise ValueError(f"no distribution {name!r}; allowed are {unit.allowed}")
    named, words = named_values(words)
    low, high = (named.pop(limit, usual) for limit, usual in zip(("min", "max"), unit.limits, strict=True))
    least, most = unit.read("min", low, unit.least), unit.read("max", high, unit.least)
    if most < least:
        raise ValueError(f"max {high} is below min {low}")
    law: Reals
    if name == "lognormal" and named:
        if words:
            raise ValueError(f"leave out {','.join(words)!r} before mean= and sd=")
        mean = unit.read("mean", named.pop("mean", ""), unit.least)
        deviation = unit.read("sd", named.pop("sd", ""), 0)
        if not mean:
            raise ValueError("mean must be above 0")
        variance = math.log1p((deviation / mean) ** 2)
        law = partial(_lognormal, mean * math.exp(-variance / 2), math.sqrt(variance))
    elif name == "lognormal":
        median, sigma = _words(unit, words, "MEDIAN", "SIGMA")
        law = partial(_lognormal, unit.read("MEDIAN", median, unit.least), _sigma(sigma, unit.most_sigma))
    elif name == "normal":
        mean_word, sd = _words(unit, words, "MEAN", "SD")
        law = partial(_normal, unit.read("MEAN", mean_word, unit.least), unit.read("SD", sd, 0))
    else:
        (mean_word,) = _words(unit, words, "MEAN")
        law = partial(_exponential, unit.read("MEAN", mean_word, unit.least))
    if named:
        raise ValueError(f"{name} has no {listed(named)}; allowed are {unit.allowed}")
    return _RealLaw(law, least, most)


def _sigma(word: str, most: float) -> float:
    sigma = plain_number(word)
    if not 0 <= sigma <= most:
        raise ValueError(f"SIGMA {word.strip()!r} is not a number in 0 .. {most:,.0f}")
    return sigma


def _real_uniform(low: float, high: float, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    return rng.uniform(low, high, (n, 1))


def _exponential(mean: float, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    return rng.exponential(mean, (n, 1))


def _normal(mean: float, deviation: float, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    return rng.normal(mean, deviation, (n, 1))


def _lognormal(median: float, sigma: float, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    # Clipped before exp, which would otherwise overflow for a large sigma.
    return median * np.exp(np.minimum(rng.normal(0.0, sigma, (n, 1)), _MOST_EXPONENT))
