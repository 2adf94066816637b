"""``llm-locust schema``: the JSON schema of ``summary.json``, or its keys as a table."""

import argparse
import sys

from llm_locust.figures.reference import key_table, schema_text, sections
from llm_locust.report.output import printing

DESCRIPTION = (
    "Print the JSON schema of summary.json: every key with its type, and what it means in one sentence. "
    "With --keys, print the same as a table in Markdown."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keys",
        nargs="*",
        choices=sections(),
        metavar="SECTION",
        help="print a table of the keys of these sections, such as latency_ms; of all if none is named",
    )


def run(args: argparse.Namespace) -> int:
    """Print it. Return the exit code, 0."""
    with printing():
        sys.stdout.write(schema_text() if args.keys is None else key_table(args.keys or sections()))
    return 0
