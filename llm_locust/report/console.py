"""Sections on a terminal, in a pipe and in a log, laid out with rich: of a report and of a comparison."""

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table as RichTable
from rich.text import Text

from llm_locust.deployment.samples import SERVER_METRICS_FILE
from llm_locust.figures.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.figures.summary import Summary
from llm_locust.figures.text import SEPARATOR, clean
from llm_locust.report.contents import brief, brief_boxes, brief_heading, heading, sections
from llm_locust.report.headline import Headline, boxes, verdict
from llm_locust.report.inputs import LIVE_FILE
from llm_locust.store import (
    ARMS_FILE,
    CURVE_FILE,
    MANIFEST_FILE,
    REPEATS_FILE,
    REPORT_HTML_FILE,
    REPORT_MD_FILE,
    REQUESTS_FILE,
    STAGES_FILE,
    SUMMARY_FILE,
    TIMESERIES_FILE,
)

#: Where there is room for them, tables get their ``wide`` columns.
_WIDE_FROM = 120
#: Below this tables would lose digits: a narrower terminal wraps the lines instead.
NARROWEST = 80

_LABEL_WIDTH = 12
_NARROWEST_TEXT = 12
_NO_BREAK = "\N{NO-BREAK SPACE}"
#: A fact that is longer than a line is broken anywhere but here: ``1.5 %``, ``34 ms``.
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|[nµm]?s)(?!\w))")
_STYLES = {
    Tone.PLAIN: "",
    Tone.GOOD: "green",
    Tone.WARN: "yellow",
    Tone.BAD: "bold red",
    Tone.FAINT: "dim",
}
_FILES = (REPORT_HTML_FILE, SUMMARY_FILE, REPORT_MD_FILE, TIMESERIES_FILE, REQUESTS_FILE, MANIFEST_FILE)
#: There where the run has stages, loads, repeats or arms, servers were scraped, or somebody could watch.
_MAYBE = (STAGES_FILE, REPEATS_FILE, CURVE_FILE, ARMS_FILE, SERVER_METRICS_FILE, LIVE_FILE)

#: For an output whose encoding has not got them.
_PLAIN_SIGNS = str.maketrans(
    {"–": "-", "·": "|", "≤": "<=", "≥": ">=", "×": "x", "†": "*", "…": "...", "∞": "inf"}
    | {"→": "to", "▲": "^", "▼": "v"}
)


def print_report(
    summary: Summary,
    run_dir: Path | None,
    file: TextIO,
    width: int | None = None,
    *,
    found: Headline | None = None,
    full: bool = False,
) -> None:
    """Print the report of one summary: the verdict first, what it rests on, and the verdict again with its
    exit code as the last line.

    Args:
        run_dir: whose files are named; None where there are none.
        found: the verdict, if the caller knows more than the summary says.
        full: all sections, not only those of the first 20 seconds.
    """
    found = found or verdict(summary)
    if full:
        head, lines = heading(summary), found.lines
        rest = [*boxes(found.findings), *sections(summary)]
    else:
        head = brief_heading(heading(summary))
        lines = found.lines if found.is_boxless else (found.headline,)
        rest = [*brief_boxes(found), *brief(summary, found)]
    files = () if run_dir is None else (Text(), _files(run_dir, full))
    last = _Flowing(Line(found.line, found.tone))
    first = Text(head.title, style="bold"), *map(_Flowing, head.lines), Text(), *map(_Flowing, lines), Text()
    parts = *first, *_laid_out(rest), *files, Text(), last
    print_parts(lambda _: parts, file, width)


def print_sections(
    parts: Iterable[Section], file: TextIO, width: int | None = None, *, last: Line | None = None
) -> None:
    """Print sections that need no heading, and a ``last`` line apart from them."""
    laid_out = (*_laid_out(parts), *(() if last is None else (Text(), _Flowing(last))))
    print_parts(lambda _: laid_out, file, width)


def print_parts(
    parts: Callable[[bool], Iterable[RenderableType]], file: TextIO, width: int | None = None
) -> None:
    """Print to ``file``: coloured on a terminal, plain text elsewhere.

    Args:
        parts: what is printed, given whether there is room for ``wide`` columns.
        width: columns; None takes the terminal's, or 80 where there is none.
    """
    console = Console(file=file, width=width, highlight=False, emoji=False, markup=False)
    console.width = max(console.width, NARROWEST)
    with console.capture() as captured:
        console.print(Group(*parts(console.width >= _WIDE_FROM)), crop=False)
    lines = (line.rstrip() for line in captured.get().splitlines())
    file.write(_encodable("\n".join(lines) + "\n", file))
    file.flush()


def _laid_out(parts: Iterable[Section]) -> Iterator[RenderableType]:
    """The sections, an empty line around each that has more than lines beside its title."""
    before: bool | None = None
    for section in parts:
        stands_apart = section.table is not None or section.alarm or section.stacked
        if before is not None and (stands_apart or before):
            yield Text()
        yield _section(section)
        before = stands_apart


def _encodable(text: str, file: TextIO) -> str:
    """The text as ``file`` can have it: with plain signs where its encoding lacks some."""
    encoding = getattr(file, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_PLAIN_SIGNS).encode(encoding, "replace").decode(encoding)
    return text


def _section(section: Section) -> RenderableType:
    if section.stacked:
        return _Stacked(section)
    if section.alarm:
        style = _STYLES[section.lines[0].tone]
        text = Group(*map(_Flowing, section.lines))
        return Panel(text, title=Text(section.title), title_align="left", box=box.HEAVY, border_style=style)
    body = _Fitted(section)
    return _labelled(section.title, body) if section.lines else body


def _labelled(label: str, body: RenderableType) -> RenderableType:
    grid = RichTable.grid()
    # A label that fills its column would touch the text.
    grid.add_column(width=max(_LABEL_WIDTH, cell_len(label) + 1), style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(label), body)
    return grid


def _files(run_dir: Path, full: bool) -> RenderableType:
    """Where the report is; with ``full`` all files, else how to get everything that they say."""
    if not full:
        page = _unbroken("Report", clean(run_dir / REPORT_HTML_FILE))
        return Group(page, _unbroken("", f"llm-locust report {clean(quote(str(run_dir)))} --full"))
    names = [*_FILES, *(name for name in _MAYBE if (run_dir / name).exists())]
    where = _unbroken("Files", clean(run_dir))
    return Group(where, _labelled("", Text(" ".join(names), style=_STYLES[Tone.FAINT])))


def _unbroken(label: str, text: str) -> RenderableType:
    """A text that is to be copied: whole, however narrow the page is."""
    found = Text(label.ljust(_LABEL_WIDTH), style="bold", no_wrap=True, overflow="ignore")
    return found.append(text, style="not bold")


@dataclass(frozen=True, slots=True)
class _Flowing:
    """A line of facts, broken between facts and not between a number and its unit."""

    line: Line

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        facts = [
            fact.replace(" ", _NO_BREAK)
            if len(fact) <= options.max_width
            else _BEFORE_UNIT.sub(_NO_BREAK, fact)
            for fact in self.line.text.split(SEPARATOR)
        ]
        # The separator stays with the fact before it; textwrap does not break at a no-break space.
        text = f"{_NO_BREAK}{SEPARATOR.strip()} ".join(facts)
        for wrapped in textwrap.wrap(text, options.max_width, break_on_hyphens=False):
            yield Text(wrapped.replace(_NO_BREAK, " "), style=_STYLES[self.line.tone])


@dataclass(frozen=True, slots=True)
class _Fitted:
    """A section's content, without its ``wide`` columns where there is no room for them."""

    section: Section

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        section = _fitting(self.section, options)
        yield from map(_Flowing, section.lines)
        if section.table is not None:
            yield _rich_table(section.table)
        indent = 0 if section.lines else 2
        yield from (Padding(_Flowing(note), (0, 0, 0, indent)) for note in section.notes)


@dataclass(frozen=True, slots=True)
class _Stacked:
    """A section below its title."""

    section: Section

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        section = _fitting(self.section, options)
        yield Text(section.title, style="bold yellow" if section.alarm else "bold")
        yield from (Padding(_Flowing(line), (0, 0, 0, 2)) for line in section.lines)
        if section.table is not None:
            yield _rich_table(section.table)
        yield from map(_Flowing, section.notes)


def _fitting(section: Section, options: ConsoleOptions) -> Section:
    return section if options.max_width >= _WIDE_FROM else section.without_wide()


def _rich_table(table: Table) -> RichTable:
    rich_table = RichTable(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for i, (column, head) in enumerate(zip(table.columns, _heads(table.columns), strict=True)):
        texts = [*head.split("\n"), *(row.cells[i] for row in table.rows)]
        longest = max(map(cell_len, texts))
        rich_table.add_column(
            Text(head),
            justify="left" if column.left else "right",
            no_wrap=not column.wraps,
            # A figure that lost a digit is a wrong one: such a table is wider than the page instead.
            min_width=min(longest, _NARROWEST_TEXT) if column.wraps else longest,
        )
    for row in table.rows:
        rich_table.add_row(*_cells(table.columns, row))
    return rich_table


def _heads(columns: tuple[Column, ...]) -> Iterator[str]:
    """The heads, on two lines where there is a common one; that stands over its first column."""
    if not any(column.over for column in columns):
        yield from (column.head for column in columns)
        return
    before = ""
    for column in columns:
        yield f"{column.over if column.over != before else ''}\n{column.head}"
        before = column.over


def _cells(columns: tuple[Column, ...], row: TableRow) -> Iterator[Text]:
    """Cells in the row's tone, but for figures, which stay in the terminal's own colour."""
    for i, (column, cell) in enumerate(zip(columns, row.cells, strict=True)):
        style = _STYLES[row.tone] if i == 0 or column.toned else ""
        yield Text(cell, style=style, overflow="fold", justify="left" if column.left else "right")
