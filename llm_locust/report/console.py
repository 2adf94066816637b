"""Text for a terminal, a pipe and a log: sections of a report or a comparison, the progress of a run."""

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

from llm_locust.core.manifest import StageFacts
from llm_locust.core.texts import UNDEFINED
from llm_locust.deployment.server_metrics import SERVER_METRICS_FILE
from llm_locust.figures.summary import Summary
from llm_locust.figures.text import (
    SEPARATOR,
    Column,
    Line,
    Section,
    Table,
    TableRow,
    Tone,
    clean,
    count,
    number,
    percent,
    plural,
    sentence,
    short,
)
from llm_locust.live.figures import Figures
from llm_locust.live.snapshot import Snapshot
from llm_locust.live.state import LiveRun, State
from llm_locust.metrics.catalogue import LATENCY
from llm_locust.report.contents import brief, brief_boxes, brief_heading, heading, sections
from llm_locust.report.headline import Headline, boxes, headline_of
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
    found = found or headline_of(summary)
    if full:
        head, lines = heading(summary), found.lines
        rest = [*boxes(found.findings), *sections(summary)]
    else:
        head = brief_heading(heading(summary), found.result)
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
            yield _rich_table(section.table, options.max_width)
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
            yield _rich_table(section.table, options.max_width)
        yield from map(_Flowing, section.notes)


def _fitting(section: Section, options: ConsoleOptions) -> Section:
    return section if options.max_width >= _WIDE_FROM else section.without_wide()


def _rich_table(table: Table, room: int) -> RichTable:
    """A table, with one space between its columns where two make it wider than ``room``."""
    heads = [*_heads(table.columns)]
    cells = ([*head.split("\n"), *(row.cells[i] for row in table.rows)] for i, head in enumerate(heads))
    widths = [max(map(cell_len, texts)) for texts in cells]
    apart = 2 if sum(widths) + 2 * (len(widths) - 1) <= room or any(c.wraps for c in table.columns) else 1
    rich_table = RichTable(box=None, padding=(0, apart, 0, 0), pad_edge=False, header_style="bold")
    for column, head, longest in zip(table.columns, heads, widths, strict=True):
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


# --- A running load test in a few lines: a panel on a terminal, one line in a log


#: The recent span that is shown beside the whole.
RECENT_S = 10.0

#: Of what is wrong with the client.
_REASON_LENGTH = 100

#: Characters of the panel's frame on both sides of its text.
_FRAME = 4

_SEVERITY_STYLES = {"ok": "green", "suspect": "yellow", "invalid": "bold red"}


@dataclass(frozen=True, slots=True)
class PresentStage:
    """The stage that has begun last.

    Attributes:
        most: the most stages that the run can have.
        is_bound: the run may have fewer than ``most``.
        goodput: of the requests that have ended since its measured part began; None before that, or without
            an SLO.
    """

    facts: StageFacts
    state: State
    most: int
    is_bound: bool
    goodput: float | None


@dataclass(frozen=True, slots=True)
class Progress:
    """A run now: its numbers since the start, and those of the last :data:`RECENT_S`.

    ``stage`` is None in a run without stages, and before the first one.
    """

    run: LiveRun
    whole: Snapshot
    recent: Snapshot
    stage: PresentStage | None = None


@dataclass(frozen=True, slots=True)
class _Column:
    head: str
    cell: Callable[[Figures], str]
    goes: int = 0  # where there is no room, columns go from the highest number on; those of 0 stay
    of_inputs: bool | None = None  # shown only where requests have inputs, or where they generate tokens
    of_agents: bool = False  # shown only where agents walk through trajectories


_COLUMNS = (
    _Column("req/s", lambda f: number(f.requests_per_s)),
    _Column("errors", lambda f: count(f.failures if f.seconds else None)),
    _Column("in tok/s", lambda f: number(f.input_tokens_per_s), goes=7),
    _Column("inputs/s", lambda f: number(f.inputs_per_s), of_inputs=True, goes=1),
    _Column("jobs", lambda f: count(f.agents.jobs if f.agents else None), of_agents=True),
    _Column("failed", lambda f: count(f.agents.jobs_failed if f.agents else None), of_agents=True, goes=6),
    _Column(
        "p25 tok/s",
        lambda f: number(f.agents.output_tokens_per_s_p25 if f.agents else None),
        of_agents=True,
        goes=8,
    ),
    _Column("out tok/s", lambda f: number(f.output_tokens_per_s), of_inputs=False, goes=2),
    _Column("TTFT p50", lambda f: number(f.latencies["ttft"].p50_ms), of_inputs=False),
    _Column("p99 ms", lambda f: number(f.latencies["ttft"].p99_ms), of_inputs=False),
    _Column("TPOT p50", lambda f: number(f.latencies["tpot"].p50_ms), goes=9, of_inputs=False),
    _Column("p99 ms", lambda f: number(f.latencies["tpot"].p99_ms), goes=10, of_inputs=False),
    _Column("E2EL p50", lambda f: number(f.latencies["e2el"].p50_ms), of_inputs=True, goes=3),
    _Column("p99 ms", lambda f: number(f.latencies["e2el"].p99_ms), of_inputs=True, goes=4),
    _Column("E2EL p95", lambda f: number(f.latencies["e2el"].p95_ms), goes=11, of_inputs=False),
    _Column("goodput", lambda f: percent(f.goodput)),
)


def progress_line(progress: Progress) -> str:
    """One line for a log: rates and latencies of the last seconds, goodput and errors since the start.

    In a run with stages goodput is that of the present stage.
    """
    whole, recent = progress.whole.total, progress.recent.total
    judged = whole.goodput is not None and progress.stage is None
    return sentence(
        [
            _time(progress),
            _stage(progress),
            *_load(progress),
            *_pace(whole, recent),
            *_jobs(whole),
            f"goodput {percent(whole.goodput)}" if judged else "",
            plural(whole.failures, "error"),
            _hung(progress),
            _missed(progress),
            _verdict(progress),
        ]
    )


def _has_inputs(whole: Figures) -> bool:
    return whole.inputs_per_s is not None


def _generates(whole: Figures) -> bool:
    return not _has_inputs(whole) or bool(whole.output_tokens_per_s)


def _pace(whole: Figures, recent: Figures) -> Iterator[str]:
    """The rates and the latency of what the requests ask for: results of inputs, tokens, or both.

    Tokens are counted when their request ends: while none does, what is streamed is unknown, not 0.
    """
    if recent.seconds and not (recent.requests or recent.cancelled):
        yield f"no request ended in the last {number(recent.seconds)} s"
        return
    if _has_inputs(whole):
        yield f"{number(recent.inputs_per_s)} inputs/s"
    if _generates(whole):
        yield f"{number(recent.output_tokens_per_s)} tokens/s"
    metric = LATENCY["ttft" if _generates(whole) else "e2el"]
    found = recent.latencies[metric.key]
    yield f"{metric.short} p50 {number(found.p50_ms)} p99 {number(found.p99_ms)} ms"


def _jobs(whole: Figures) -> Iterator[str]:
    """The work of agents since the start."""
    if whole.agents is not None:
        failed = whole.agents.jobs_failed
        yield f"{plural(whole.agents.jobs, 'job')}" + (f", {count(failed)} failed" if failed else "")


@dataclass(frozen=True, slots=True)
class ProgressPanel:
    """The same as a panel for rich, fitted to the width that it is printed in."""

    progress: Progress

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        progress = self.progress
        severity = progress.recent.validity.severity
        body = Group(
            *([Text(stage)] if (stage := _stage(progress)) else []),
            Text(sentence(_load(progress))),
            _table(progress, options.max_width - _FRAME),
            *([Text(hung, style="bold red")] if (hung := _hung(progress)) else []),
            Text(sentence([_verdict(progress), _missed(progress)]), style=_SEVERITY_STYLES[severity]),
        )
        yield Panel(
            body, title=Text(_time(progress)), title_align="left", box=box.ROUNDED, border_style="dim"
        )
        yield Text()  # for a terminal's ^C, which would wrap after a line as wide as itself


def _time(progress: Progress) -> str:
    total_s = progress.run.run_time_s
    passed_s = progress.whole.elapsed_s
    if total_s is None:
        return _clock(passed_s)
    return f"{_clock(min(passed_s, total_s))} of {_clock(total_s)}"  # the start of a run is no run time


def _clock(seconds: float) -> str:
    """``0:05``, ``12:30``, ``26:03:00``: of one width while it runs."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def load_of(stage: StageFacts) -> str:
    """The load of a stage: ``4 users``, ``2.50 requests/s, 256:128 tokens``."""
    load = plural(stage.asked, "user") if stage.kind == "users" else f"{number(stage.asked)} requests/s"
    load += "" if stage.lengths is None else f", {stage.lengths} tokens"
    return load if stage.prefix is None else f"{load}, {stage.prefix} shared prefix"


def place_of(stage: StageFacts, most: int, *, is_bound: bool) -> str:
    """Which of the stages it is: ``stage 3 (4 of 8)``. Their numbers begin with 0, as in the report."""
    return f"stage {stage.number} ({stage.number + 1} of {'at most ' if is_bound else ''}{most})"


def _stage(progress: Progress) -> str:
    stage = progress.stage
    if stage is None:
        return ""
    goodput = "" if stage.goodput is None else f", goodput {percent(stage.goodput)}"
    place = place_of(stage.facts, stage.most, is_bound=stage.is_bound)
    return f"{place}: {load_of(stage.facts)}, {stage.state}{goodput}"


def _load(progress: Progress) -> list[str]:
    seen = progress.whole.observation
    here = sum(w.here for w in seen.workers)
    if seen.draining:
        load = "draining"
    elif seen.rate is not None:
        load = f"{number(seen.rate)} requests/s asked for"
    elif progress.run.open_loop:
        load = "open loop"
    else:
        of_target = f" of {count(seen.target)}" if seen.target != seen.users else ""
        word = "user" if progress.run.pauses_s is None else "agent"
        load = f"{count(seen.users)}{of_target} {word if seen.target == 1 else f'{word}s'}"
    lost = sum(w.lost for w in seen.workers)
    return [
        load,
        f"{count(seen.in_flight)} in flight",
        plural(here, "worker") if len(seen.workers) > 1 else "",
        f"{plural(lost, 'worker')} lost" if lost else "",
    ]


def _table(progress: Progress, room: int) -> Text:
    """The figures in all columns that there are, or in fewer where these do not fit.

    They are aligned here, because a table of rich's takes 6 ms of the event loop's time.
    """
    whole, recent = progress.whole.total, progress.recent.total
    kinds = {None: True, True: _has_inputs(whole), False: _generates(whole)}
    rows = ["", f"last {recent.seconds or RECENT_S:.2g} s", "since start"]
    width = max(map(len, rows))
    shown = []
    for column in _COLUMNS:
        if kinds[column.of_inputs] and (whole.agents is not None or not column.of_agents):
            cells = [column.head, column.cell(recent), column.cell(whole)]
            most = max(map(len, cells))
            shown.append((column.goes, [cell.rjust(most) for cell in cells]))
    while width + sum(2 + len(cells[0]) for _, cells in shown) > room and any(goes for goes, _ in shown):
        shown.remove(max(shown, key=lambda each: each[0]))
    lines = [
        "  ".join([row.ljust(width), *cells])
        for row, *cells in zip(rows, *(c for _, c in shown), strict=True)
    ]
    table = Text("\n".join(lines), no_wrap=True, overflow="ellipsis")
    table.stylize("bold", 0, len(lines[0]))
    return table


def _verdict(progress: Progress) -> str:
    validity = progress.recent.validity
    if not progress.recent.total.requests:
        return f"client {UNDEFINED}"
    # Of the first reason the first sentence: the live page and the report have the rest.
    reasons = [short(clean(reason).partition(". ")[0], _REASON_LENGTH) for reason in validity.reasons[:1]]
    return ": ".join([f"client {validity.severity}", *reasons])


def _hung(progress: Progress) -> str:
    whole = progress.whole
    return whole.hung.text(whole.observation.users)


def _missed(progress: Progress) -> str:
    missed, full = progress.whole.missed, progress.whole.full
    found = [f"{plural(missed, 'request')} not in these numbers"] if missed else []
    if full:
        found.append(f"{', '.join(full)}: larger than is shown")
    return "; ".join(found)
