"""What a report says, before any format: titled sections of lines and tables of text.

Console, Markdown and HTML lay out the same sections, of a run and of a comparison alike. Cells are finished
text, cleaned but not escaped: escaping belongs to the format."""

from dataclasses import dataclass, replace
from enum import StrEnum


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
