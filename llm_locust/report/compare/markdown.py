"""A comparison as Markdown, made to be put into a pull request."""

import re
from collections.abc import Iterator

from llm_locust.report.compare.outcome import Outcome
from llm_locust.report.compare.tables import sections
from llm_locust.report.section import Column, Line, Section, Table, Tone

_MARKS = {Tone.GOOD: "✅ ", Tone.WARN: "⚠️ ", Tone.BAD: "❌ "}

#: What Markdown or HTML takes for its own; an underscore inside a word is not.
_SPECIAL = re.compile(r"[\\`*\[\]<>|~#&]|(?<!\w)_|_(?!\w)")


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
    heads = [_escaped(f"{column.over} {column.head}".strip()) for column in table.columns]
    rules = [":--" if column.left else "--:" for column in table.columns]
    rows = []
    for row in table.rows:
        first, *rest = (_cell(column, cell) for column, cell in zip(table.columns, row.cells, strict=True))
        rows.append([_MARKS.get(row.tone, "") + first, *rest])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rules, *rows))


def _cell(column: Column, cell: str) -> str:
    # A bar would end the cell, in a code span too.
    return _code(cell).replace("|", r"\|") if column.verbatim else _escaped(cell)


def _marked(line: Line) -> str:
    return _MARKS.get(line.tone, "") + _text(line)


def _text(line: Line) -> str:
    return _code(line.text) if line.verbatim else _escaped(line.text)


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", text)


def _code(text: str) -> str:
    """A code span, its fence longer than any run of backticks in the text."""
    fence = "`" * (1 + max(map(len, re.findall(r"`+", text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"
