"""A comparison on a terminal, in a pipe and in a log."""

from typing import TextIO

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from llm_locust.report.compare.outcome import Outcome
from llm_locust.report.compare.tables import sections
from llm_locust.report.render.console import NARROWEST, STYLES, WIDE_FROM, encodable
from llm_locust.report.section import Line, Section, Table

_NARROWEST_TEXT = 12

#: For an output whose encoding has not got them.
_PLAIN_SIGNS = str.maketrans(
    {"–": "-", "·": "|", "≤": "<=", "…": "..", "∞": "inf", "→": "to", "†": "*", "▲": "^", "▼": "v"}
)


def print_comparison(outcome: Outcome, file: TextIO, width: int | None = None) -> None:
    """Print to ``file``: coloured on a terminal, plain text elsewhere.

    Args:
        width: columns; None takes the terminal's, or 80 where there is none.
    """
    console = Console(file=file, width=width, highlight=False, emoji=False, markup=False)
    console.width = max(console.width, NARROWEST)
    wide = console.width >= WIDE_FROM
    found = [section if wide else section.without_wide() for section in sections(outcome)]
    with console.capture() as captured:
        console.print(Group(*(_section(section) for section in found)), crop=False)
    text = "\n".join(line.rstrip() for line in captured.get().rstrip().splitlines()) + "\n"
    file.write(encodable(text, file, _PLAIN_SIGNS))
    file.flush()


def _section(section: Section) -> RenderableType:
    style = "bold yellow" if section.alarm else "bold"
    body: list[RenderableType] = [Padding(_line(line), (0, 0, 0, 2)) for line in section.lines]
    if section.table is not None:
        body.append(_rich_table(section.table))
    body += map(_line, section.notes)
    return Group(Text(section.title, style=style), *body, Text())


def _line(line: Line) -> RenderableType:
    return Text(line.text, style=STYLES[line.tone], overflow="fold")


def _rich_table(table: Table) -> RichTable:
    rich_table = RichTable(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    two_lines = any(column.over for column in table.columns)
    for i, column in enumerate(table.columns):
        head = f"{column.over}\n{column.head}" if two_lines else column.head
        longest = max(map(cell_len, [*head.split("\n"), *(row.cells[i] for row in table.rows)]))
        rich_table.add_column(
            Text(head),
            justify="left" if column.left else "right",
            no_wrap=not column.wraps,
            # A figure that lost a digit is a wrong one: such a table is wider than the page instead.
            min_width=min(longest, _NARROWEST_TEXT) if column.wraps else longest,
        )
    for row in table.rows:
        style, last = STYLES[row.tone], len(row.cells) - 1
        cells = (Text(c, style if i in (0, last) else "", overflow="fold") for i, c in enumerate(row.cells))
        rich_table.add_row(*cells)
    return rich_table
