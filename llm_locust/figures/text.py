"""What a report says, before any format: titled sections of lines and tables, whose cells are finished text.

Console, Markdown and HTML lay out the same sections, of a run and of a comparison alike. A number has three
significant digits or all of its integer part, a thing that is not defined is a dash and never 0, a share is
never rounded up to all nor down to none. Text that came from a server or a user is cleaned here and escaped
by the format that prints it."""

import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TypeGuard

from llm_locust.core.texts import UNDEFINED as UNDEFINED, figure, quantity
from llm_locust.metrics.structs import Figures


class Tone(StrEnum):
    """How a line is meant. A format may colour it; the words alone must carry it too."""

    PLAIN = "plain"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    FAINT = "faint"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of text.

    A ``verbatim`` one holds text of a server or a user, to be shown letter by letter. A ``wide``
    one speaks of ``wide`` columns only, and goes with them.
    """

    text: str
    tone: Tone = Tone.PLAIN
    verbatim: bool = False
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column. ``left`` aligned columns hold text, others numbers.

    Neighbours of the same ``over`` stand under one common head. ``verbatim`` is as a line's.
    ``wraps``: its cells may be broken over lines where there is no room; all others never are.
    ``wide`` columns are left out where there is no room for them. Cells of the first column and of ``toned``
    ones are in the row's tone.
    """

    head: str
    over: str = ""
    left: bool = False
    verbatim: bool = False
    wraps: bool = False
    wide: bool = False
    toned: bool = False


@dataclass(frozen=True, slots=True)
class TableRow:
    cells: tuple[str, ...]
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]

    def without_wide(self) -> "Table":
        """The same table without its ``wide`` columns."""
        return self._of([i for i, column in enumerate(self.columns) if not column.wide])

    def without_empty(self, *nothing: str) -> "Table":
        """The same table without the columns that no row has anything in, or anything but ``nothing``."""
        empty = {"", *nothing}
        used = [any(row.cells[i] not in empty for row in self.rows) for i in range(len(self.columns))]
        return self._of([i for i, is_used in enumerate(used) if is_used])

    def _of(self, kept: list[int]) -> "Table":
        return Table(
            tuple(self.columns[i] for i in kept),
            tuple(TableRow(tuple(row.cells[i] for i in kept), row.tone) for row in self.rows),
        )


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a report. ``alarm`` marks what has to be read before any number.

    ``key`` is its name in the program, and ``chapter`` the key of its chapter of the page: nothing is placed
    by its title. A ``stacked`` one has its title above its lines, else the title stands beside them.
    """

    title: str
    lines: tuple[Line, ...] = ()
    table: Table | None = None
    notes: tuple[Line, ...] = ()
    alarm: bool = False
    key: str = ""
    chapter: str = ""
    stacked: bool = False

    def without_wide(self) -> "Section":
        """The same section for a narrow page."""
        table = self.table and self.table.without_wide()
        return replace(self, table=table, notes=tuple(note for note in self.notes if not note.wide))


# --- Numbers and foreign text as cells and lines


SEPARATOR = " · "

#: Where a clause ends.
_CLAUSE = re.compile(r"[.,;:] | \(")

#: Colours and cursor moves of a terminal: without their ESC the rest would stand as litter.
_ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_CONTROLS = {"Cc", "Cf", "Cs", "Co", "Cn"}
#: Cf characters that shape letters of real scripts and emoji, and cannot reorder a line.
_JOINERS = {"\u200c", "\u200d"}


def is_defined(value: float | None) -> TypeGuard[float]:
    """Whether a figure is a number. None and NaN are not; +∞ is one."""
    return value is not None and not math.isnan(value)


def number(value: float | None) -> str:
    """A figure as :func:`~llm_locust.core.texts.figure` has it, a dash if it is not defined."""
    return figure(value)


def count(value: float | None) -> str:
    """A whole number with separators of thousands."""
    return f"{value:,.0f}" if is_defined(value) else UNDEFINED


def load(value: float | None) -> str:
    """A number of users or a rate that was asked for: ``8``, ``2.50``."""
    return count(value) if is_defined(value) and value.is_integer() else number(value)


def percent(ratio: float | None) -> str:
    """A share as per cent: ``100 %`` only for all of them, ``0 %`` only for none."""
    if not is_defined(ratio):
        return UNDEFINED
    value = 100 * ratio
    if value in (0, 100):
        return f"{value:.0f} %"
    if 99.9 < value < 100:
        return ">99.999 %" if value > 99.999 else f"{math.floor(value * 1000) / 1000:.3f} %"
    if 0 < value < 1:
        return "<0.001 %" if value < 0.001 else f"{value:.2g} %"
    return f"{value:.1f} %"


def duration_ms(value: float | None) -> str:
    """A short time with its unit: ``1.23 ms``, ``8 µs``."""
    if is_defined(value) and 0 < value < 0.1:
        return f"{quantity(value * 1e3)} µs"
    return f"{number(value)} ms"


def seconds(value: float | None) -> str:
    """A span of the run: ``58.2 s``, ``12 min 5 s``, ``26 h 3 min``."""
    if not is_defined(value) or math.isinf(value):
        return UNDEFINED
    if value < 120:
        return f"{number(value)} s"
    if value < 7200:
        return f"{value // 60:.0f} min {value % 60:.0f} s"
    return f"{value // 3600:.0f} h {value % 3600 // 60:.0f} min"


def plural(n: float | None, noun: str, nouns: str = "") -> str:
    """``1 worker``, ``3 workers``; ``nouns`` is the plural where it is not made with an s."""
    return f"{count(n)} {noun if n == 1 else nouns or f'{noun}s'}"


def clean(value: object) -> str:
    """Foreign text as one line without control characters.

    White space becomes single blanks. Escape sequences, control and format characters, lone
    surrogates and unassigned code points are dropped: they could colour, reorder or break a line.
    """
    text = _ESCAPE_SEQUENCE.sub("", str(value))
    return " ".join("".join(" " if c.isspace() else c for c in text if _is_shown(c)).split())


def _is_shown(c: str) -> bool:
    return c.isspace() or c in _JOINERS or unicodedata.category(c) not in _CONTROLS


def short(text: str, most: int) -> str:
    """At most ``most`` characters, the cut shown as ``…``."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


#: Characters of a name in a table.
NAME_LENGTH = 64


def short_name(name: str) -> str:
    """The name of a group, a replica or a request, as a table has it."""
    return short(clean(name), NAME_LENGTH) if name else "(none)"


#: Rows of one table; a note says how many more are in summary.json.
MOST_ROWS = 20


def rows_left_out(rows: int) -> tuple[Line, ...]:
    more = rows - MOST_ROWS
    return (Line(f"{count(more)} more in summary.json", Tone.FAINT),) if more > 0 else ()


def brief(text: str, most: int) -> str:
    """As many clauses of a text as ``most`` characters have room for; the first one in any case, cut if it
    is longer."""
    ends = [found.start() for found in _CLAUSE.finditer(text) if found.start() <= most]
    return text if len(text) <= most else short(text, most) if not ends else text[: ends[-1]]


def sentence(parts: Sequence[str], separator: str = SEPARATOR) -> str:
    """The parts that are not empty, in one line."""
    return separator.join(p for p in parts if p)


def moment(iso: str) -> str:
    """An ISO 8601 time as ``2026-11-21 09:30:02 UTC``."""
    return datetime.fromisoformat(iso).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def after(iso: str, origin_iso: str) -> str:
    """How long after ``origin_iso`` a time is: ``+3.10 s``."""
    passed = (datetime.fromisoformat(iso) - datetime.fromisoformat(origin_iso)).total_seconds()
    return f"{'-' if passed < 0 else '+'}{seconds(abs(passed))}"


# --- How sure a percentile is: its 95 % interval, a mark where the data cannot tell one, and another where
# many of the requests were cut


MARK = "~"
_LEAST = {"p50": 40, "p99": 1000}
MARK_MEANING = (
    f"{MARK} too few independent samples for a 95 % interval: requests that waited together count as fewer"
)


#: Behind latencies of which more than this share of the requests was cut by the run's end.
CUT_MARK = "†"
NOTABLE_CUT = 0.01
_CUT_MEANING = (
    f"{CUT_MARK} the end of the run cut more than 1 % of the requests: these are estimates that count them "
    "in, > is a lower bound"
)


def is_cut(cut_share: float | None) -> bool:
    """Whether the run's end cut so many of the requests that their latencies are marked."""
    return (cut_share or 0.0) > NOTABLE_CUT


def cut_note(cut_share: float | None) -> Line | None:
    """What the mark of latencies of cut requests means, where these have it."""
    return Line(_CUT_MEANING, Tone.WARN) if is_cut(cut_share) else None


def mark(stats: Figures, key: str) -> str:
    """What stands before a percentile without its interval, which its samples cannot bound."""
    return MARK if stats.figure(key) is not None and stats.intervals().get(key, ()) is None else ""


def counted(value: float | None, key: str, n: int) -> str:
    """A percentile of ``n`` samples whose interval is not known, marked if they are too few for one."""
    return f"{MARK if value is not None and n < _LEAST[key] else ''}{number(value)}"


def estimate(stats: Figures, key: str, *, cut: bool = False) -> str:
    """A percentile with its marks; ``> 28,200`` where cut requests leave it open but for its lower bound.

    Args:
        cut: whether it is marked as one of requests of which many were cut.
    """
    bound, value = stats.bound(key), stats.figure(key)
    behind = CUT_MARK if cut and (value is not None or bound is not None) else ""
    if value is None and bound is not None:
        return f"> {number(bound)}{behind}"
    return f"{mark(stats, key)}{number(value)}{behind}"


def bounds(stats: Figures, key: str) -> str:
    """The interval of a percentile: ``53.9–54.6``."""
    ends = stats.intervals().get(key)
    return UNDEFINED if ends is None else "–".join("∞" if end is None else number(end) for end in ends)


def meaning(*marked: str) -> Iterator[Line]:
    """What the mark means, where one of these texts has it."""
    if any(text.startswith(MARK) for text in marked):
        yield Line(MARK_MEANING, Tone.FAINT)


def meaning_in(table: Table) -> Iterator[Line]:
    """What the mark means, where a figure has it; on a wide page only, where only ``wide`` ones do."""
    marked = [
        column.wide
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
        if not column.left and cell.startswith(MARK)
    ]
    if marked:
        yield Line(MARK_MEANING, Tone.FAINT, wide=all(marked))
    if any(cell.endswith(CUT_MARK) for row in table.rows for cell in row.cells):
        yield Line(_CUT_MEANING, Tone.WARN)


def explained_once(sections: list[Section]) -> list[Section]:
    """The sections with the mark's meaning below the first one only that has it.

    On a page without ``wide`` lines that may be a later one than on a page with them.
    """
    told: set[bool] = set()
    return [replace(section, notes=tuple(_untold(section.notes, told))) for section in sections]


def _untold(notes: tuple[Line, ...], explained: set[bool]) -> Iterator[Line]:
    for note in notes:
        if note.text == MARK_MEANING:
            if False in explained or note.wide in explained:
                continue
            explained.add(note.wide)
        yield note
