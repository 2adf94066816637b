"""The ``llm-locust`` command: what is done with runs beside making them."""

import argparse
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from llm_locust.metrics.slo import parse_duration
from llm_locust.metrics.summary import WINDOWS
from llm_locust.report.build import build_report
from llm_locust.report.console import print_report
from llm_locust.store import REQUESTS_FILE, holds_frames, merge


class _Parser(argparse.ArgumentParser):
    """Says in one line what was wrong with the arguments; ``--help`` has the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code: 0 fine, 1 a gate broke, 2 usage error or records
    missing, 3 measurement invalid.

    Raises:
        SystemExit: by argparse, for ``--help``, ``--version`` and wrong arguments.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = _parser(arguments[0] if arguments else "").parse_args(arguments)
    code: int = args.run_command(args)
    return code


@contextmanager
def _printing() -> Iterator[None]:
    """Let the reader of standard output, such as head, leave when it has seen enough."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser(command: str) -> argparse.ArgumentParser:
    """The parser, with the options of ``command`` where these need a library to be imported."""
    parser = _Parser(prog="llm-locust", description="Load tests of LLM inference: reports and tools.")
    parser.add_argument("--version", action="version", version=f"llm-locust {version('llm-locust')}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_report(commands.add_parser("report", help="compute and print a run's report again"))
    _add_merge(commands.add_parser("merge", help="make a run of what its master and workers have left"))
    options = commands.add_parser(
        "options", help="list the options that a locustfile has beside Locust's own"
    )
    options.set_defaults(run_command=_options)
    sim = commands.add_parser("sim", help="serve a simulated deployment to test against")
    if command == "sim":
        _add_sim(sim)
    return parser


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compute a run's report from its records, with other limits or another window where given, "
        "print it, and write it into the run directory."
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory, such as runs/demo")
    parser.add_argument("--slo", metavar="TEXT", help='limits of a request: "ttft=500ms tpot=50ms"')
    parser.add_argument("--gate", metavar="TEXT", help='limits of the run: "goodput>=95%% p99_ttft<800ms"')
    parser.add_argument(
        "--warmup", type=_duration_s, metavar="TIME", help="left out at the start, such as 30s"
    )
    parser.add_argument(
        "--window",
        choices=WINDOWS,
        default="run",
        help="the run without warm-up and drain, or the longest span of steady concurrency (%(default)s)",
    )
    _add_allow_incomplete(parser)
    parser.set_defaults(run_command=_report)


def _add_merge(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Make a run directory of what is left of a run whose master died, or that lacks batches: run "
        "directories and workers' spools, in any order, with all below them. Then report on it."
    )
    parser.add_argument(
        "sources", type=Path, nargs="+", metavar="DIR", help="run directory, spool, or file of frames"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="run directory to make")
    parser.add_argument("--run", metavar="ID", help="id of the run, where there are batches of several")
    _add_allow_incomplete(parser)
    parser.set_defaults(run_command=_merge)


def _add_allow_incomplete(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow-incomplete", action="store_true", help="missing records do not make the exit code 2"
    )


def _add_sim(parser: argparse.ArgumentParser) -> None:
    # Here and not above: aiohttp takes longer to import than a report takes to make.
    from llm_locust.sim import command

    parser.description = command.DESCRIPTION
    command.add_arguments(parser)
    parser.set_defaults(run_command=command.run)


def _report(args: argparse.Namespace) -> int:
    try:
        report = build_report(
            args.run,
            slo=args.slo,
            gates=args.gate,
            warmup_s=args.warmup,
            window=args.window,
            allow_incomplete=args.allow_incomplete,
        )
    except (ValueError, OSError) as e:
        return _refuse("report", _unmerged(args.run) or e)
    with _printing():
        print_report(report.summary, args.run, sys.stdout)
    return report.exit_code or 0


def _unmerged(run: Path) -> str | None:
    """What to do with a directory that holds batches and not yet the requests made of them."""
    if (run / REQUESTS_FILE).exists() or not holds_frames(run):
        return None
    return (
        f"{str(run)!r} holds batches of a run that was not finished: make one of them, by "
        f"`llm-locust merge {shlex.quote(str(run))} --out NEW`"
    )


def _merge(args: argparse.Namespace) -> int:
    try:
        merged = merge(args.sources, args.out, args.run)
        for line in merged.unreadable:
            print(f"llm-locust merge: warning: {_one_line(line)}", file=sys.stderr)
        report = build_report(args.out, allow_incomplete=args.allow_incomplete)
    except (ValueError, OSError) as e:
        return _refuse("merge", e)
    with _printing():
        print_report(report.summary, args.out, sys.stdout)
    return report.exit_code or 0


def _refuse(command: str, reason: Exception | str) -> int:
    print(f"llm-locust {command}: {_one_line(reason)}", file=sys.stderr)
    return 2


def _options(args: argparse.Namespace) -> int:
    # Here and not above: Locust takes long to import, and patches the standard library.
    from llm_locust.swarm.options import options_help

    with _printing():
        print(options_help())
    return 0


def _duration_s(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(f'"{text}": {e}') from e


def _one_line(error: Exception | str) -> str:
    return " ".join(str(error).split())
