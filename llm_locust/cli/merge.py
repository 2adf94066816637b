"""``llm-locust merge``: a run directory from what is left of a run."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from llm_locust.report.analysis import build_report
from llm_locust.report.console import print_report
from llm_locust.report.inputs import carry_over
from llm_locust.report.output import one_line, printing
from llm_locust.report.sections.headline import verdict
from llm_locust.store import merge

DESCRIPTION = (
    "Make a run directory from what is left of a run whose master died, or that lacks batches: run "
    "directories and workers' spools, in any order, searched recursively. Then report on it."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llm-locust merge``."""
    parser.add_argument(
        "sources", type=Path, nargs="+", metavar="DIR", help="run directory, spool, or file of frames"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="run directory to make")
    parser.add_argument("--run", metavar="ID", help="id of the run, where there are batches of several")
    parser.add_argument(
        "--allow-incomplete", action="store_true", help="missing records do not make the exit code 4"
    )


def run(args: argparse.Namespace) -> int:
    """Merge, and print the report. Return the report's exit code, or 2 if nothing could be merged."""
    try:
        merged = merge(args.sources, args.out, args.run)
        for line in merged.unreadable:
            print(f"llm-locust merge: warning: {one_line(line)}", file=sys.stderr)
        carry_over(args.sources, args.out, merged.manifest.id)
        report = build_report(args.out, allow_incomplete=args.allow_incomplete)
    except (ValueError, OSError) as e:
        print(f"llm-locust merge: {one_line(e)}", file=sys.stderr)
        return 2
    with printing():
        found = verdict(report.summary, report.verdict)
        print_report(report.summary, args.out, sys.stdout, found=replace(found, code=report.exit_code))
    return report.exit_code
