"""Sections as Markdown, made to be put into a pull request: of a report and of a comparison."""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from llm_locust.core.manifest import Manifest
from llm_locust.core.texts import UNDEFINED
from llm_locust.figures.summary import Summary
from llm_locust.figures.text import Column, Line, Section, Table, TableRow, Tone, clean
from llm_locust.report.contents import heading, sections
from llm_locust.report.headline import Headline, boxes, headline_of
from llm_locust.store import REPORT_HTML_FILE

# --- Foreign text and marks in Markdown


MARKS = {Tone.GOOD: "✅ ", Tone.WARN: "⚠️ ", Tone.BAD: "❌ "}

#: What Markdown or HTML takes for its own; an underscore inside a word is not.
_SPECIAL = re.compile(r"[\\`*\[\]<>|~#&]|(?<!\w)_|_(?!\w)")


def escaped(text: str) -> str:
    """Our own text: nothing in it is markup."""
    return _SPECIAL.sub(r"\\\g<0>", text)


def code(text: str) -> str:
    """Foreign text as a code span, its fence longer than any run of backticks in the text."""
    fence = "`" * (1 + max(map(len, re.findall(r"`+", text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


#: Digits of a commit that name it to a person.
_COMMIT_DIGITS = 12

_ALERTS = {Tone.WARN: "[!WARNING]", Tone.BAD: "[!CAUTION]"}

#: Tables that are folded once more among all figures.
_FOLDED = {"intervals", "tokens", "errors", "by_name", "by_class", "replicas", "nodes"}


def markdown(summary: Summary, found: Headline | None = None, manifest: Manifest | None = None) -> str:
    """The report of one summary, made for a pull request: result, cause, gates, what ran; the rest is folded.

    Args:
        found: the verdict, if the caller knows more than the summary says.
        manifest: for the command, the commit and the pipeline of the run.
    """
    found = found or headline_of(summary)
    every = sections(summary)
    shown = [section for section in every if section.key == "gates" or section.chapter == "arms"]
    rest = [*boxes(found.findings), *(section for section in every if section not in shown)]
    blocks = [
        *_verdict(found),
        # Gates without their title: the result has said how many broke.
        *(
            block
            for section in shown
            for block in _section(replace(section, lines=()) if section.key == "gates" else section)
        ),
        *_ran(summary, manifest),
    ]
    folded = [block for section in rest for block in _section(section.without_wide())]
    blocks += ["<details><summary>All figures</summary>", *folded, "</details>"]
    return "\n\n".join(blocks) + "\n"


def _verdict(found: Headline) -> Iterator[str]:
    """Result, cause, and what else was found."""
    yield f"## {MARKS.get(found.tone, '')}{escaped(found.headline.text)}"
    if found.cause:
        yield f"**{found.cause_label.capitalize()}:** {code(found.cause)}"
    head = f"{found.result} {found.cause}"
    others = [each for each in found.findings if each.box is not None and each.text not in head]
    if others:
        yield "\n".join(f"- also: {code(each.text)}" for each in others)


def _ran(summary: Summary, manifest: Manifest | None) -> Iterator[str]:
    """What ran, when, on which commit and by which command, and where the whole report is."""
    head = heading(summary)
    links = [f"[{REPORT_HTML_FILE}]({REPORT_HTML_FILE})"]
    if manifest is not None and manifest.pipeline.url:
        links.insert(0, f"[pipeline](<{manifest.pipeline.url}>)")
    facts = [code(head.title), *map(_line, head.lines)]
    if manifest is not None and manifest.pipeline.commit:
        facts.append(f"commit {code(manifest.pipeline.commit[:_COMMIT_DIGITS])}")
    yield "  \n".join([*facts, " · ".join(links)])
    if manifest is not None and manifest.command:
        yield code(clean(shlex.join(manifest.command)))


def markdown_of(title: str, blocks: Sequence[str], parts: Iterable[Section]) -> str:
    """Sections as GitHub-flavoured Markdown, below a heading and blocks that are Markdown already.

    Text of a server or a user stands in code spans: nothing in it is markup, a link, a mention or
    a reference there.
    """
    found = [block for section in parts for block in _section(section.without_wide())]
    return "\n\n".join([f"## {title}", *blocks, *found]) + "\n"


def _section(section: Section) -> Iterator[str]:
    if section.stacked:
        yield from _stacked(section)
        return
    if section.alarm:
        yield _alarm(section)
        return
    if section.lines:
        yield f"**{section.title}** " + "  \n".join(_marked(line) for line in section.lines)
    content = [_table(section.table)] if section.table is not None else []
    content += [_line(note) for note in section.notes]
    if section.key in _FOLDED:
        content = [f"<details><summary>{section.title}</summary>", *content, "</details>"]
    yield from content


def _stacked(section: Section) -> Iterator[str]:
    """A section below its title: its lines are a list, and its notes small print."""
    if section.alarm:
        lines = [_ALERTS[Tone.WARN], f"**{section.title}**", *(f"- {_line(line)}" for line in section.lines)]
        yield "\n".join(f"> {line}" for line in lines)
        return
    if section.lines:
        yield f"**{section.title}**\n\n" + "\n".join(f"- {_marked(line)}" for line in section.lines)
    if section.table is not None:
        yield _table(section.table)
    if section.notes:
        yield "\n".join(f"<sub>{_line(note)}</sub>  " for note in section.notes).rstrip()


def _alarm(section: Section) -> str:
    headline, *rest = section.lines
    lines = [
        _ALERTS.get(headline.tone, "[!NOTE]"),
        f"**{section.title}** {_line(headline)}  ",
        *(f"{_line(line)}  " for line in rest),
    ]
    return "\n".join(f"> {line}" for line in lines)


def _table(table: Table) -> str:
    heads = [escaped(f"{column.over} {column.head}".strip()) for column in table.columns]
    rules = [":--" if column.left else "--:" for column in table.columns]
    rows = [_cells(table.columns, row) for row in table.rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rules, *rows))


def _cells(columns: tuple[Column, ...], row: TableRow) -> list[str]:
    cells = [
        # A bar would end the cell, in a code span too.
        code(cell).replace("|", r"\|") if column.verbatim and cell not in ("", UNDEFINED) else escaped(cell)
        for column, cell in zip(columns, row.cells, strict=True)
    ]
    return [MARKS.get(row.tone, "") + cells[0], *cells[1:]]


def _marked(line: Line) -> str:
    return MARKS.get(line.tone, "") + _line(line)


def _line(line: Line) -> str:
    return code(line.text) if line.verbatim else escaped(line.text)
