"""The ``llm-locust`` command: tools for runs that were made."""

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from llm_locust.cli import compare as compare_command
from llm_locust.cli import report as report_command
from llm_locust.cli import roofline as roofline_command
from llm_locust.cli import schema as schema_command
from llm_locust.report.inputs.scraped import carry_over
from llm_locust.report.output import one_line, printing
from llm_locust.report.render.console import print_report
from llm_locust.report.run.build import build_report
from llm_locust.store import merge


class _CommandParser(argparse.ArgumentParser):
    """Reports in one line what is wrong with the arguments; ``--help`` has the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 success, 1 a gate broke, 2 usage error, 3 measurement
    invalid, 4 records missing or the run cut short.

    Raises:
        SystemExit: by argparse, for ``--help``, ``--version`` and wrong arguments.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = _parser(arguments[0] if arguments else "").parse_args(arguments)
    code: int = args.run_command(args)
    return code


def _parser(command: str) -> argparse.ArgumentParser:
    """Make the parser, with the options of ``command`` if these need a library to be imported."""
    parser = _CommandParser(prog="llm-locust", description="Load tests of LLM inference: reports and tools.")
    parser.add_argument("--version", action="version", version=f"llm-locust {version('llm-locust')}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    again = commands.add_parser(
        "report", help="compute a run's report again", description=report_command.DESCRIPTION
    )
    report_command.add_arguments(again)
    again.set_defaults(run_command=report_command.run)
    between = commands.add_parser(
        "compare", help="what changed between runs, beyond noise", description=compare_command.DESCRIPTION
    )
    compare_command.add_arguments(between)
    between.set_defaults(run_command=compare_command.run)
    _add_merge(commands.add_parser("merge", help="merge what a run's master and workers have left"))
    bounds = commands.add_parser(
        "roofline",
        help="bounds of any engine on given GPUs",
        description=roofline_command.DESCRIPTION,
    )
    roofline_command.add_arguments(bounds)
    bounds.set_defaults(run_command=roofline_command.run)
    keys = commands.add_parser(
        "schema", help="JSON schema of summary.json", description=schema_command.DESCRIPTION
    )
    keys.set_defaults(run_command=schema_command.run)
    options = commands.add_parser(
        "options", help="list the options that a locustfile has in addition to Locust's own"
    )
    options.set_defaults(run_command=_options)
    k8s = commands.add_parser("k8s", help="manifests for Kubernetes, made from a scenario")
    if command == "k8s":
        _add_k8s(k8s)
    upload = commands.add_parser("upload", help="copy a run to an object store, or continue an upload")
    if command == "upload":
        _add_upload(upload)
    sim = commands.add_parser("sim", help="serve a simulated deployment to test against")
    if command == "sim":
        _add_sim(sim)
    return parser


def _add_merge(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Make a run directory from what is left of a run whose master died, or that lacks batches: run "
        "directories and workers' spools, in any order, searched recursively. Then report on it."
    )
    parser.add_argument(
        "sources", type=Path, nargs="+", metavar="DIR", help="run directory, spool, or file of frames"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="run directory to make")
    parser.add_argument("--run", metavar="ID", help="id of the run, where there are batches of several")
    parser.add_argument(
        "--allow-incomplete", action="store_true", help="missing records do not make the exit code 4"
    )
    parser.set_defaults(run_command=_merge)


def _add_sim(parser: argparse.ArgumentParser) -> None:
    # Imported here: aiohttp takes longer to import than a report takes to make.
    from llm_locust.sim import command

    parser.description = command.DESCRIPTION
    command.add_arguments(parser)
    parser.set_defaults(run_command=command.run)


def _add_k8s(parser: argparse.ArgumentParser) -> None:
    from llm_locust.cli import k8s as command

    parser.description = command.DESCRIPTION
    command.add_arguments(parser)
    parser.set_defaults(run_command=command.run)


def _add_upload(parser: argparse.ArgumentParser) -> None:
    # Imported here: object stores' clients start threads on import.
    from llm_locust.cli import upload as upload_command

    parser.description = upload_command.DESCRIPTION
    upload_command.add_arguments(parser)
    parser.set_defaults(run_command=upload_command.run)


def _merge(args: argparse.Namespace) -> int:
    try:
        merged = merge(args.sources, args.out, args.run)
        for line in merged.unreadable:
            print(f"llm-locust merge: warning: {one_line(line)}", file=sys.stderr)
        carry_over(args.sources, args.out, merged.manifest.id)
        report = build_report(args.out, allow_incomplete=args.allow_incomplete)
    except (ValueError, OSError) as e:
        return _refuse("merge", e)
    with printing():
        print_report(report.summary, args.out, sys.stdout)
    return report.exit_code or 0


def _refuse(command: str, reason: Exception | str) -> int:
    print(f"llm-locust {command}: {one_line(reason)}", file=sys.stderr)
    return 2


def _options(args: argparse.Namespace) -> int:
    # Imported here: Locust takes long to import, and patches the standard library.
    from llm_locust.options.parser import options_help

    with printing():
        print(options_help())
    return 0
