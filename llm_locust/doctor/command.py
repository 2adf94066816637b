"""``llm-locust doctor``: the table of checks of this machine and of a server, and an examination by it."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from llm_locust.client.http.clock import hold_stamping
from llm_locust.client.http.target import Target
from llm_locust.doctor import calibration, machine, server as server_checks, stream
from llm_locust.doctor.calibration import Calibrated, calibrate, judge_calibration
from llm_locust.doctor.finding import Examination, Finding, Status, TimeLeft
from llm_locust.doctor.machine import Access, HostSeen, look_around, look_at_host
from llm_locust.doctor.server import ServerSeen, look_at_server
from llm_locust.figures.text import Column, Line, Section, Table, TableRow, Tone, clean, plural
from llm_locust.options.requests import AccessSettings, access_headers, access_secrets, take_default_key
from llm_locust.report.console import print_sections
from llm_locust.report.output import printing
from llm_locust.wire.dialects import DIALECTS, GENERATING
from llm_locust.wire.foreign_text import is_key_name
from llm_locust.workload.body import body_template, parse_body
from llm_locust.workload.plan import parse_models

#: Time of all looks together: none begins after it, and none has a limit beyond it, but for a request that
#: does not end by its limits (2.5 s more). The rest of the 30 s is the start of the process.
WHOLE_S = 24.0


@dataclass(frozen=True, slots=True)
class Seen:
    """All that was looked at; ``server`` is None without a URL, ``calibration`` if it was not asked for."""

    options: Examination
    host: HostSeen
    kubernetes: Access | None
    server: ServerSeen | None = None
    calibration: Calibrated | str | None = None

    @property
    def reached(self) -> ServerSeen:
        """The server, of a check that is made with a URL only."""
        assert self.server is not None
        return self.server


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
    Check("open_files", "Open files", lambda s: machine.judge_files(s.host.files, s.options.users)),
    Check("ports", "Local ports", lambda s: machine.judge_ports(s.host.ports, s.options.users)),
    Check("memory", "Memory", lambda s: machine.judge_memory(s.host.memory_bytes, s.options.users)),
    Check("cpu_limit", "CPU", lambda s: machine.judge_quota(s.host.cpu)),
    Check("cpu_throttling", "CPU throttling", lambda s: machine.judge_throttling(s.host.cpu)),
    Check("cpu_steal", "CPU steal", lambda s: machine.judge_steal(s.host.cpu)),
    Check("event_loop", "Event loop", lambda s: machine.judge_loop(s.host.loop)),
    Check("kernel_stamps", "Kernel stamps", lambda s: machine.judge_stamps(s.host.stamps)),
    Check("reader", "Reader", lambda s: machine.judge_reader(s.host.why_python_reads)),
    Check("clock_source", "Clock source", lambda s: machine.judge_clock_source(s.host.clock)),
    Check("kubernetes", "Kubernetes", lambda s: machine.judge_kubernetes(s.kubernetes)),
)

#: Made if it is asked for only.
CALIBRATION = Check("calibration", "Calibration", lambda s: judge_calibration(s.calibration))


def _is_https(options: Examination) -> bool:
    return options.target is not None and options.target.scheme == "https"


#: Made with a URL only.
SERVER_CHECKS = (
    Check("dns", "DNS", lambda s: server_checks.judge_dns(s.reached.resolved)),
    Check("tcp", "TCP", lambda s: server_checks.judge_tcp(s.reached.attempts)),
    Check("tls", "TLS", lambda s: server_checks.judge_tls(s.reached.tls, is_https=_is_https(s.options))),
    Check("models", "Models", lambda s: server_checks.judge_models(s.reached.listing, s.options)),
    Check(
        "api_key",
        "API key",
        lambda s: server_checks.judge_key(s.reached.listing, s.reached.first, has_key=s.options.has_key),
    ),
    Check("first_token", "First token", lambda s: stream.judge_first_token(s.reached.first)),
    Check("other_models", "Other models", lambda s: stream.judge_others(s.reached.others)),
    Check("stream", "Stream", lambda s: stream.judge_streaming(s.reached.stream, s.reached.first)),
    Check("usage", "Usage", lambda s: stream.judge_usage(s.reached.stream)),
    Check("end", "End of stream", lambda s: stream.judge_end(s.reached.stream, s.options.endpoint)),
    Check("keep_alive", "Keep-alive", lambda s: stream.judge_keep_alive(s.reached.stream)),
    Check("server_clock", "Server's clock", lambda s: server_checks.judge_server_clock(s.reached.clock)),
)


def judged(seen: Seen) -> Iterator[Result]:
    """Every check of what was seen."""
    own = (*HOST_CHECKS, CALIBRATION) if seen.options.calibrate else HOST_CHECKS
    for check in (*own, *(SERVER_CHECKS if seen.server is not None else ())):
        yield Result(check, check.judge(seen))


def examine(options: Examination, time_left: TimeLeft | None = None) -> list[Result]:
    """Look at this machine and at the target, if there is one, and judge what was seen.

    Takes under 30 s, with a calibration under 50.

    Args:
        time_left: of all looks; default: :data:`WHOLE_S` from now on, and that of a calibration.

    Raises:
        TargetError: a certificate of this machine's cannot be used.
    """
    stamping = hold_stamping()
    if time_left is None:
        time_left = TimeLeft(WHOLE_S + (calibration.WHOLE_S if options.calibrate else 0.0))
    try:
        access = look_around(dict(os.environ), time_left)
        host = look_at_host()
        calibrated = calibrate(options.users, time_left) if options.calibrate else None
        server = None if options.target is None else look_at_server(options, options.target, time_left)
    finally:
        if stamping is not None:
            stamping.close()
    return list(judged(Seen(options, host, access, server, calibrated)))


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


# --- Options of ``llm-locust doctor``, and its run


DESCRIPTION = (
    "Check this machine, and the server at URL if one is given: each check is ok, warn, fail or skipped, "
    "with what to change. Sends two short requests. Takes at most 30 s (with --calibrate 50 s). "
    "Exit code 2 if a check fails, else 0."
)

#: Users of one process by default: those of `llm-locust run`.
USERS = 10
_MOST_USERS = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llm-locust doctor``."""
    parser.add_argument("url", nargs="?", metavar="URL", help="the server, such as http://localhost:8000")
    parser.add_argument(
        "--users", type=_users, default=USERS, metavar="N", help="users of one process here (%(default)s)"
    )
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="stream from a server of known times on this machine, at --users, and show the client's error",
    )
    parser.add_argument(
        "--model", metavar="NAME", help="the model of the run (default: the first of the server's)"
    )
    parser.add_argument(
        "--models",
        metavar="SPLIT",
        help="several models or adapters, as in the run: each is asked for one token, the first as --model",
    )
    parser.add_argument(
        "--endpoint", choices=GENERATING, default="chat", help="the API of the requests (%(default)s)"
    )
    parser.add_argument(
        "--body", metavar="JSON", help="further fields of the requests, such as '{\"temperature\": 0}'"
    )
    for row in AccessSettings.rows().values():
        if row.kind == "truth":
            parser.add_argument(row.flag, action="store_true", help=row.help)
        else:
            action = "append" if row.kind == "list" else "store"
            parser.add_argument(row.flag, metavar=row.metavar, action=action, help=row.help)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def run(args: argparse.Namespace) -> int:
    """Make the checks, and print their results. Return the exit code (raises ValueError or OSError)."""
    options = _examination(args)
    results = examine(options)
    with printing():
        if args.json:
            print(as_json(results))
        else:
            print_results(results, None if options.target is None else options.target.url, sys.stdout)
    return exit_code(results)


def _models(model: str | None, split: str | None) -> tuple[str | None, tuple[str, ...]]:
    """The model of all requests, and the further ones that are asked for one token each."""
    names = () if split is None else parse_models(split).names
    first, *others = names if model is None and names else (model, *names)
    return first, tuple(name for name in dict.fromkeys(others) if name is not None and name != first)


def _examination(args: argparse.Namespace) -> Examination:
    """The options' values (raises ValueError, which shows no secret)."""
    endpoint = DIALECTS[args.endpoint]
    take_default_key(args, os.environ)
    access = AccessSettings.of(args)
    key, own = access.api_key(os.environ), access.headers(os.environ)
    target = None if args.url is None else Target.parse(args.url)
    versioned = target is not None and bool(target.query)
    headers = access_headers(key, own, (endpoint,), versioned=versioned)
    body = {} if args.body is None else parse_body(args.body)
    body_template(endpoint, "", extra_body=body)
    model, others = _models(args.model, args.models)
    return Examination(
        users=args.users,
        calibrate=args.calibrate,
        target=target,
        model=model,
        others=others,
        endpoint=endpoint,
        body=body,
        headers=headers,
        has_key=key is not None or any(map(is_key_name, own)),
        secrets=access_secrets(key, own),
        ca_cert=access.ca_cert,
        client_cert=access.client_cert,
        tls_name=access.tls_name,
        insecure=access.insecure,
    )


def _users(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_USERS:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {_MOST_USERS:,}, got {text!r}")
    return int(text)
