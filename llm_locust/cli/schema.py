"""``llm-locust schema``: the JSON schema of ``summary.json``."""

import argparse
import sys

from llm_locust.metrics.summary_types.reference import schema_text
from llm_locust.report.output import printing

DESCRIPTION = (
    "Print the JSON schema of summary.json: every key with its type, and what it means in one sentence. "
    "docs/summary.schema.json has the same."
)


def add_arguments(_: argparse.ArgumentParser) -> None:
    """None."""


def run(_: argparse.Namespace) -> int:
    """Print the schema. Return the exit code, 0."""
    with printing():
        sys.stdout.write(schema_text())
    return 0
