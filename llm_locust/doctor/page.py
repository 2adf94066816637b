"""Results as a table of the console, and as JSON."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO

from llm_locust.doctor.checks import HOST_CHECKS, SERVER_CHECKS, Result
from llm_locust.doctor.finding import Status
from llm_locust.report.render.console import print_sections
from llm_locust.report.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.report.text import clean, plural

#: Most characters of a figure or a change: some of it is a server's.
_MOST_CHARS = 400

_TONES = {
    Status.OK: Tone.GOOD,
    Status.WARN: Tone.WARN,
    Status.FAIL: Tone.BAD,
    Status.SKIPPED: Tone.FAINT,
}
_SHOWN = {Status.OK: "ok", Status.WARN: "WARN", Status.FAIL: "FAIL", Status.SKIPPED: "skipped"}


def exit_code(results: Iterable[Result]) -> int:
    """2 if a check failed, else 0."""
    return 2 if any(result.finding.status is Status.FAIL for result in results) else 0


def print_results(results: Sequence[Result], url: str | None, file: TextIO, width: int | None = None) -> None:
    """Print the results for this machine and for the server at ``url``, what to change, and the verdict."""
    print_sections(_sections(results, url), file, width)


def _sections(results: Sequence[Result], url: str | None) -> Iterator[Section]:
    own = [result for result in results if result.check not in SERVER_CHECKS]
    yield _table("This machine", own)
    if url is not None:
        yield _table(clean(url), [result for result in results if result.check in SERVER_CHECKS])
    changes = tuple(
        TableRow((r.check.label, _text(r.finding.change)), _TONES[r.finding.status])
        for r in sorted(results, key=lambda r: r.finding.status is not Status.FAIL)
        if r.finding.change
    )
    if changes:
        columns = (Column("Check", left=True), Column("Change", left=True, wraps=True))
        yield Section("What to change", table=Table(columns, changes), stacked=True)
    yield Section("Verdict", (_verdict(results),))


def _table(title: str, results: Sequence[Result]) -> Section:
    columns = (
        Column("Check", left=True),
        Column("Result", left=True, toned=True),
        Column("Measured", left=True, wraps=True),
    )
    width = max(len(check.label) for check in (*HOST_CHECKS, *SERVER_CHECKS))
    rows = tuple(
        TableRow(
            (f"{r.check.label:{width}}", f"{_SHOWN[r.finding.status]:7}", _text(r.finding.figure)),
            _TONES[r.finding.status],
        )
        for r in results
    )
    return Section(title, table=Table(columns, rows), stacked=True)


def _verdict(results: Sequence[Result]) -> Line:
    counts = {status: sum(r.finding.status is status for r in results) for status in Status}
    warned = plural(counts[Status.WARN], "warning")
    if failed := counts[Status.FAIL]:
        return Line(f"{plural(failed, 'check')} failed, {warned}: a run would fail, or mislead", Tone.BAD)
    if counts[Status.WARN]:
        return Line(f"{warned}: a run works", Tone.WARN)
    return Line("ready for a run", Tone.GOOD)


def as_json(results: Sequence[Result]) -> str:
    """One JSON object: ``exit_code``, and ``checks`` with ``key``, ``status``, ``figure`` and ``change``."""
    checks = [
        {
            "key": r.check.key,
            "status": str(r.finding.status),
            "figure": _text(r.finding.figure),
            "change": _text(r.finding.change),
        }
        for r in results
    ]
    found: dict[str, Any] = {"exit_code": exit_code(results), "checks": checks}
    return json.dumps(found, indent=2)


def _text(text: str) -> str:
    """One line, without control characters, of bounded length."""
    line = clean(text)
    return line if len(line) <= _MOST_CHARS else line[: _MOST_CHARS - 1] + "…"
