"""The table of checks, and an examination by it."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from llm_locust.client.http.clock import hold_stamping
from llm_locust.doctor import calibration, kubernetes, machine, network, streams
from llm_locust.doctor.calibration import Calibrated, calibrate, judge_calibration
from llm_locust.doctor.finding import Examination, Finding, Status, TimeLeft
from llm_locust.doctor.kubernetes import Access
from llm_locust.doctor.looks import (
    WHOLE_S,
    HostSeen,
    ServerSeen,
    look_around,
    look_at_host,
    look_at_server,
)
from llm_locust.figures.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.figures.text import clean, plural
from llm_locust.report.console import print_sections


@dataclass(frozen=True, slots=True)
class Seen:
    """All that was looked at; ``server`` is None without a URL, ``calibration`` if it was not asked for."""

    asked: Examination
    host: HostSeen
    kubernetes: Access | None
    server: ServerSeen | None = None
    calibration: Calibrated | str | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """A row: its key in JSON, its label, and the function that judges what was seen."""

    key: str
    label: str
    judge: Callable[[Seen], Finding]


@dataclass(frozen=True, slots=True)
class Result:
    """A check with what it found."""

    check: Check
    finding: Finding


HOST_CHECKS = (
    Check("open_files", "Open files", lambda s: machine.judge_files(s.host.files, s.asked.users)),
    Check("ports", "Local ports", lambda s: machine.judge_ports(s.host.ports, s.asked.users)),
    Check("memory", "Memory", lambda s: machine.judge_memory(s.host.memory_bytes, s.asked.users)),
    Check("cpu_limit", "CPU", lambda s: machine.judge_quota(s.host.cpu)),
    Check("cpu_throttling", "CPU throttling", lambda s: machine.judge_throttling(s.host.cpu)),
    Check("cpu_steal", "CPU steal", lambda s: machine.judge_steal(s.host.cpu)),
    Check("event_loop", "Event loop", lambda s: machine.judge_loop(s.host.loop)),
    Check("kernel_stamps", "Kernel stamps", lambda s: machine.judge_stamps(s.host.stamps)),
    Check("reader", "Reader", lambda s: machine.judge_reader(s.host.why_python_reads)),
    Check("clock_source", "Clock source", lambda s: machine.judge_clock_source(s.host.clock)),
    Check("kubernetes", "Kubernetes", lambda s: kubernetes.judge_kubernetes(s.kubernetes)),
)

#: Made if it is asked for only.
CALIBRATION = Check("calibration", "Calibration", lambda s: judge_calibration(s.calibration))


def _of_server(judge: Callable[[Examination, ServerSeen], Finding]) -> Callable[[Seen], Finding]:
    def check(seen: Seen) -> Finding:
        assert seen.server is not None  # such checks are made with a URL only
        return judge(seen.asked, seen.server)

    return check


def _is_https(asked: Examination) -> bool:
    return asked.target is not None and asked.target.scheme == "https"


#: Made with a URL only.
SERVER_CHECKS = (
    Check("dns", "DNS", _of_server(lambda _, s: network.judge_dns(s.resolved))),
    Check("tcp", "TCP", _of_server(lambda _, s: network.judge_tcp(s.attempts))),
    Check("tls", "TLS", _of_server(lambda a, s: network.judge_tls(s.tls, is_https=_is_https(a)))),
    Check("models", "Models", _of_server(lambda a, s: streams.judge_models(s.listing, a))),
    Check(
        "api_key",
        "API key",
        _of_server(lambda a, s: streams.judge_key(s.listing, s.first, has_key=a.has_key)),
    ),
    Check("first_token", "First token", _of_server(lambda _, s: streams.judge_first_token(s.first))),
    Check("other_models", "Other models", _of_server(lambda _, s: streams.judge_others(s.others))),
    Check("stream", "Stream", _of_server(lambda _, s: streams.judge_streaming(s.stream, s.first))),
    Check("usage", "Usage", _of_server(lambda _, s: streams.judge_usage(s.stream))),
    Check("end", "End of stream", _of_server(lambda a, s: streams.judge_end(s.stream, a.endpoint))),
    Check("keep_alive", "Keep-alive", _of_server(lambda _, s: streams.judge_keep_alive(s.stream))),
    Check("server_clock", "Server's clock", _of_server(lambda _, s: machine.judge_server_clock(s.clock))),
)


def judged(seen: Seen) -> Iterator[Result]:
    """Every check of what was seen."""
    own = (*HOST_CHECKS, CALIBRATION) if seen.asked.calibrate else HOST_CHECKS
    for check in (*own, *(SERVER_CHECKS if seen.server is not None else ())):
        yield Result(check, check.judge(seen))


def examine(asked: Examination, time_left: TimeLeft | None = None) -> list[Result]:
    """Look at this machine and at the target, if there is one, and judge what was seen.

    Takes under 30 s, with a calibration under 50.

    Args:
        time_left: of all looks; default: :data:`WHOLE_S` from now on, and that of a calibration.

    Raises:
        TargetError: a certificate of this machine's cannot be used.
    """
    stamping = hold_stamping()
    if time_left is None:
        time_left = TimeLeft(WHOLE_S + (calibration.WHOLE_S if asked.calibrate else 0.0))
    try:
        access = look_around(dict(os.environ), time_left)
        host = look_at_host()
        calibrated = calibrate(asked.users, time_left) if asked.calibrate else None
        server = None if asked.target is None else look_at_server(asked, asked.target, time_left)
    finally:
        if stamping is not None:
            stamping.close()
    return list(judged(Seen(asked, host, access, server, calibrated)))


# --- Results as a table of the console, and as JSON


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
