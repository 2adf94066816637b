"""The short report: what a person needs in the first 20 seconds, some 30 lines on a terminal.

It has the sections that answer the question of the run, cut to their deciding rows, and of all others what
they warn of. ``--full`` prints every section.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.report.section import Line, Section, Table, Tone
from llm_locust.report.sections import measures, verdicts
from llm_locust.report.sections.contents import sections
from llm_locust.report.sections.findings import boxes
from llm_locust.report.sections.headline import Headline
from llm_locust.report.text import count, number, percent, plural, sentence

#: Shown as they are, if there are any: each answers what its run was for.
_WHOLE = frozenset(
    {
        "parts",
        "since_start",
        "requests",
        "search",
        "stages",
        "arms",
        "curve",
        "spike",
        "repeats",
        "prefix_cache",
        "agents",
        "cost",
        "other_requests",
    }
)

#: Rows of the table of latencies, and its columns; those that were asked for are shown too.
_LATENCIES = ("TTFT", "TTFO", "TPOT", "ITL", "E2EL", "TTFT from scheduled", "E2EL from scheduled")
_STATISTICS = ("mean", "p50", "p90", "p95", "p99")

_MOST_BOXES, _MOST_ERRORS, _MOST_REMARKS = 3, 3, 4

#: Sections whose warnings are of their own figures, or told otherwise.
_NOT_REMARKED = frozenset({"gates", "client", "records", "bottleneck", "roofline", "cost", "energy"})


def brief(summary: Summary, found: Headline) -> list[Section]:
    """The sections of the short report below the verdict and its boxes, without the run's heading."""
    every = {section.key: section for section in sections(summary)}
    shown = list(_answers(summary, found, every))
    told = {line.text for section in shown for line in _lines(section)}
    told |= {line.text for each in found.findings if each.box is not None for line in _lines(each.box)}
    told |= {
        note.text for section in every.values() if section.table for note in measures.marks(section.table)
    }
    others = (section for key, section in every.items() if key not in _NOT_REMARKED)
    left = [line.text for section in others for line in _warnings(section) if line.text not in told]
    remarks = list(dict.fromkeys(left))
    closing = [every[key] for key in ("client", "records") if key in every]
    return [*shown, *(_first_line(section) for section in closing), *_remarks(remarks)]


def brief_heading(found: Section) -> Section:
    """A heading of two lines: what ran, and when; and what must not be missed."""
    faint = [line.text for line in found.lines if line.tone is Tone.FAINT]
    others = [line for line in found.lines if line.tone is not Tone.FAINT]
    first = sentence([found.title, *(line.text for line in others[:1])])
    return Section(first, (Line(sentence(faint), Tone.FAINT), *others[1:]))


def brief_boxes(found: Headline) -> list[Section]:
    """The boxes without what explains them, and at most so many."""
    every = boxes(found.findings)
    shown = [
        replace(box, lines=tuple(line for line in box.lines if line.tone is not Tone.FAINT))
        for box in every[:_MOST_BOXES]
    ]
    if more := len(every) - len(shown):
        titles = ", ".join(box.title for box in every[_MOST_BOXES:])
        shown.append(Section("", (Line(f"{plural(more, 'more finding')} in the full report: {titles}"),)))
    return shown


def _answers(summary: Summary, found: Headline, every: dict[str, Section]) -> Iterator[Section]:
    """The sections that answer the run's question, lines before tables."""
    blamed = any(each.key == "replicas" for each in found.findings)
    for key, section in every.items():
        if key in _WHOLE or key.removeprefix("by_") in (summary.by or ()):
            yield section
        elif key == "gates":
            yield replace(section, title="", lines=())
        elif key == "goodput":
            yield _goodput(summary, section)
            yield _throughput(summary)
        elif key == "latency":
            yield _latency(summary, section)
        elif key == "errors":
            yield _errors(section)
        elif key == "replicas" and blamed:
            yield replace(section, notes=())


def _goodput(summary: Summary, section: Section) -> Section:
    """Its line, and what each limit was held by in another one."""
    part = summary.goodput
    held = [
        f"{text} held by {percent(part.attainment.get(key))}" for key, text in verdicts.limits(part).items()
    ]
    return Section(section.title, (*section.lines, *([Line(sentence(held))] if held else [])))


def _latency(summary: Summary, section: Section) -> Section:
    table = section.table
    if table is None:
        return section
    asked = summary.analysis.percentiles if summary.analysis is not None else None
    places = {*_STATISTICS, *(key.replace("_", ".") for key in asked or ())}
    kept = [i for i, column in enumerate(table.columns) if not i or column.head in (*places, "n")]
    columns = tuple(replace(table.columns[i], wide=False) for i in kept)
    rows = tuple(
        replace(row, cells=tuple(row.cells[i] for i in kept))
        for row in table.rows
        if row.cells[0] in _LATENCIES
    )
    marked = tuple(note for note in section.notes if note in measures.marks(table))
    return replace(section, table=Table(columns, rows), notes=marked)


def _throughput(summary: Summary) -> Section:
    part = summary.throughput
    seen = summary.tokens.user_tps.p50
    pace = "" if seen is None else f"a user sees {number(seen)} tokens/s"
    rates = [
        f"{number(part.requests_per_s)} requests/s",
        f"{number(part.inputs_per_s)} inputs/s" if part.inputs_per_s is not None else "",
        "" if summary.is_without_output else f"{number(part.output_tokens_per_s)} output tokens/s",
        f"{number(part.input_tokens_per_s)} input tokens/s",
        pace,
        f"{number(part.concurrency_mean)} in flight, {count(part.concurrency_peak)} at most",
    ]
    return Section("Throughput", (Line(sentence(rates)),))


def _errors(section: Section) -> Section:
    table = section.table
    if table is None:
        return section
    more = len(table.rows) - _MOST_ERRORS
    notes = (Line(f"and {plural(more, 'more kind')}", Tone.FAINT),) if more > 0 else ()
    return replace(section, table=Table(table.columns, table.rows[:_MOST_ERRORS]), notes=notes)


def _first_line(section: Section) -> Section:
    return replace(section, lines=section.lines[:1], table=None, notes=())


def _remarks(texts: Sequence[str]) -> Iterator[Section]:
    """What the sections that are left out warn of: it changed no figure above, or is explained there."""
    if not texts:
        return
    more = len(texts) - _MOST_REMARKS
    lines = [Line(text, Tone.WARN, verbatim=True) for text in texts[:_MOST_REMARKS]]
    if more > 0:
        lines.append(Line(f"and {plural(more, 'more remark')} in the full report", Tone.FAINT))
    yield Section("Remarks", tuple(lines))


def _lines(section: Section) -> tuple[Line, ...]:
    return (*section.lines, *section.notes)


def _warnings(section: Section) -> Iterator[Line]:
    return (line for line in _lines(section) if line.tone in (Tone.WARN, Tone.BAD))
