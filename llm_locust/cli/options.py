"""``llm-locust options``: the options of a load test."""

import argparse

from llm_locust.report.output import printing

DESCRIPTION = "List the options that a locustfile has in addition to Locust's own."


def add_arguments(_: argparse.ArgumentParser) -> None:
    """None."""


def run(_: argparse.Namespace) -> int:
    """Print the options. Return the exit code, 0."""
    # Imported here: Locust takes long to import, and patches the standard library.
    from llm_locust.options.settings import options_help

    with printing():
        print(options_help())
    return 0
