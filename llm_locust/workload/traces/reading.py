"""Lines of a file, rows of lines; every error names the file and the line."""

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from llm_locust.core.files import FileReading, InputError, input_lines, text_lines
from llm_locust.core.record import MAX_TOKENS
from llm_locust.wire.foreign_text import one_line

# --- One recorded request: as in a file, and for replay


#: Prompt tokens that one of a Mooncake trace's hash ids stands for, and one of Bailian's (Qwen).
MOONCAKE_BLOCK_TOKENS, BAILIAN_BLOCK_TOKENS = 512, 16


class TraceError(ValueError):
    """A trace, or a line of it, that cannot be read; one line: where, the value, and what is expected."""

    def __init__(self, what: str) -> None:
        super().__init__(one_line(what))


class TraceRow(NamedTuple):
    """One line of a trace. Rows order by time, then by line.

    ``at_ns`` is the recorded time in nanoseconds, of whatever epoch the format has. ``blocks`` is the number
    of hash ids in the file, of which ``hash_ids`` are those that the prompt's length has room for.
    """

    at_ns: int
    line: int
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    session: str | None = None
    id: str | None = None
    after: tuple[str, ...] = ()
    gap_s: float = 0.0
    turn: int | None = None
    blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEntry:
    """One request of a trace.

    Attributes:
        k: its index among the slice's requests in order of time, from 0.
        at_s: seconds after the slice's start, scaled.
        input_tokens, output_tokens: as recorded. 0 is possible, for requests that failed then.
        hash_ids: one id for each ``block_tokens`` tokens of the prompt, from its start; prompts with the same
            leading ids have the same leading tokens.
        session: what keeps requests on one worker, ``None`` for a single one.
        id: its name within the trace, for references.
        after: ids of the requests of its session that must end before it starts.
        gap_s: idle time after the last of these, scaled.
        turn: its depth in its session, from 0, if the trace has dependencies.
        line: its line in the file.
    """

    k: int
    at_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    block_tokens: int = MOONCAKE_BLOCK_TOKENS
    session: str | None = None
    id: str | None = None
    after: tuple[str, ...] = ()
    gap_s: float = 0.0
    turn: int | None = None
    line: int = 0

    def due_s(self, ended_s: Iterable[float]) -> float:
        """Time at which it may start: ``at_s``, but not before ``gap_s`` after the last of ``ended_s``.

        ``ended_s`` are the end times of the requests in ``after``. They blocked it for ``due_s - at_s`` of
        its delay; only the time after ``due_s`` is the sender's.
        """
        last_s = max(ended_s, default=None)
        return self.at_s if last_s is None else max(self.at_s, last_s + self.gap_s)


#: Largest distance in seconds of recorded times from their epoch.
MAX_SECONDS = 1e11

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class TraceSource:
    """A file, and what its numbers mean.

    Attributes:
        unit_ns: of its times, in nanoseconds.
        block_tokens: that a hash id stands for.
        most_skipped: how many lines that cannot be read are skipped.
    """

    path: Path
    unit_ns: int
    block_tokens: int
    most_skipped: int = 0

    def most_blocks(self, tokens: int) -> int:
        """Blocks that a prompt of so many tokens has at most: more of its hash ids are of no use."""
        return -(-tokens // self.block_tokens)


def table_rows(
    file: TraceSource,
    reading: FileReading,
    names: Sequence[str],
    optional: Sequence[str],
    build: Callable[[int, list[str]], TraceRow],
) -> Iterator[TraceRow]:
    """Rows of a CSV file with a header.

    ``build`` gets the line's number and the cells of ``names`` and ``optional``, in that order whatever the
    file's is; a missing column of ``optional`` is empty. It raises ValueError for an invalid cell.
    """
    cells_of = csv.reader(text_lines(file.path, reading))

    def error(what: object) -> TraceError:
        return TraceError(f"{file.path}:{max(1, cells_of.line_num)}: {what}")

    try:
        header = next((cells for cells in cells_of if any(map(str.strip, cells))), [])
    except csv.Error as e:
        raise error(e) from None
    places = {plain(name): place for place, name in enumerate(header)}
    lacking = [name for name in names if plain(name) not in places]
    if lacking:
        raise error(
            f"no column {', '.join(map(repr, lacking))} in {_excerpt(','.join(header))}; "
            f"expected {', '.join(names)}"
        )
    # The index past the last cell stands for missing columns and is empty.
    wanted = [places.get(plain(name), len(header)) for name in (*names, *optional)]
    while True:
        try:
            cells = next(cells_of)
            if not any(map(str.strip, cells)):
                continue
            if len(cells) < len(header):
                raise ValueError(f"{len(cells)} cells in {_excerpt(','.join(cells))}; expected {len(header)}")
            cells[len(header) :] = [""]
            row = build(cells_of.line_num, [cells[place] for place in wanted])
        except StopIteration:
            return
        except InputError:
            raise
        except (ValueError, csv.Error) as e:
            reading.skip(error(e))
            continue
        yield row


def json_rows(
    file: TraceSource,
    reading: FileReading,
    decoder: msgspec.json.Decoder[S],
    build: Callable[[int, S], TraceRow],
    expected: str,
) -> Iterator[TraceRow]:
    """Rows of JSON lines; ``expected`` is the form of a line, for errors."""
    for number, raw in enumerate(input_lines(file.path, reading), 1):
        if raw.isspace():
            continue
        try:
            row = build(number, decoder.decode(raw))
        except (ValueError, RecursionError) as e:
            text = raw[:240].decode(errors="replace")
            what = f"{file.path}:{number}: {e}, in {_excerpt(text)}; expected {expected}"
            reading.skip(TraceError(what))
            continue
        yield row


def plain(name: str) -> str:
    """A column's name for comparison: ``Session ID`` and ``session_id`` are the same."""
    return name.strip().casefold().replace(" ", "").replace("_", "")


def tokens(name: str, text: str) -> int:
    """Token count in a cell of the column ``name``; ``512.0`` is valid."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value.is_integer() and 0 <= value <= MAX_TOKENS) or "_" in text:
        raise ValueError(
            f"{name} {text[:60]!r} is not a token count; expected a whole number in 0 .. {MAX_TOKENS:,}"
        )
    return int(value)


def nanoseconds(name: str, value: str | float, unit_ns: int) -> int:
    """Nanoseconds of a time in the column or key ``name``."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not abs(number) * unit_ns <= MAX_SECONDS * 1e9 or (isinstance(value, str) and "_" in value):
        raise ValueError(f"{name} {str(value)[:60]!r} is not a time; expected a number")
    return round(number * unit_ns)


def _excerpt(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= 60 else text[:60] + "…")
