"""A comparison as Markdown, made to be put into a pull request."""

from collections.abc import Iterator

from llm_locust.report.compare.outcome import Outcome
from llm_locust.report.compare.tables import sections
from llm_locust.report.render.marks import MARKS, code, escaped
from llm_locust.report.section import Column, Line, Section, Table


def markdown(outcome: Outcome) -> str:
    """GitHub-flavoured. Text of a server or a user stands in code spans: nothing in it is markup there."""
    blocks = ["## Comparison of runs"]
    for section in sections(outcome):
        blocks += _section(section.without_wide())
    return "\n\n".join(blocks) + "\n"


def _section(section: Section) -> Iterator[str]:
    if section.alarm:
        lines = ["[!WARNING]", f"**{section.title}**", *(f"- {_text(line)}" for line in section.lines)]
        yield "\n".join(f"> {line}" for line in lines)
        return
    if section.lines:
        yield f"**{section.title}**\n\n" + "\n".join(f"- {_marked(line)}" for line in section.lines)
    if section.table is not None:
        yield _table(section.table)
    if section.notes:
        yield "\n".join(f"<sub>{_text(note)}</sub>  " for note in section.notes).rstrip()


def _table(table: Table) -> str:
    heads = [escaped(f"{column.over} {column.head}".strip()) for column in table.columns]
    rules = [":--" if column.left else "--:" for column in table.columns]
    rows = []
    for row in table.rows:
        first, *rest = (_cell(column, cell) for column, cell in zip(table.columns, row.cells, strict=True))
        rows.append([MARKS.get(row.tone, "") + first, *rest])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rules, *rows))


def _cell(column: Column, cell: str) -> str:
    # A bar would end the cell, in a code span too.
    return code(cell).replace("|", r"\|") if column.verbatim else escaped(cell)


def _marked(line: Line) -> str:
    return MARKS.get(line.tone, "") + _text(line)


def _text(line: Line) -> str:
    return code(line.text) if line.verbatim else escaped(line.text)
