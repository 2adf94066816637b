"""``llm-locust sweep``: several loads in one run, by one command."""

import argparse
import os

from llm_locust.cli import run as run_command
from llm_locust.cli.starting import said_elsewhere

DEFAULT_SWEEP = "users=1,2,4,8,16,32"

DESCRIPTION = (
    "Measure several loads one after the other in one run, and print a row for each. Takes the options of "
    f"`llm-locust run`; --sweep says which loads (default {DEFAULT_SWEEP}), --stage-time how long each is "
    "measured (default 60s), --find that it is to search the highest one under which limits hold."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llm-locust run``, under this command's name."""
    run_command.add_arguments(parser)
    parser.usage = (
        "llm-locust sweep URL [--sweep LOADS | --find OBJECTIVE] [OPTIONS]\n"
        "                        [-- LOCUST OPTIONS]"
    )
    parser.epilog = (
        "examples:\n"
        "  llm-locust sweep --sim --stage-time 10s\n"
        "  llm-locust sweep URL --sweep users=1,4,16,64\n"
        "  llm-locust sweep URL --sweep rate=geometric:1..64,7 --stage-time 2m\n"
        '  llm-locust sweep URL --find "max rate under goodput>=95%" --stage-time 2m'
    )


def run(args: argparse.Namespace) -> int:
    """As :func:`llm_locust.cli.run.run`, with the default loads where nothing else says them."""
    if not hasattr(args, "sweep") and not hasattr(args, "find"):
        try:
            said = said_elsewhere(os.environ, run_command.scenario_given(args, os.environ))
        except (ValueError, OSError):  # which the run itself reports
            return run_command.run(args)
        if "sweep" not in said and "find" not in said:
            args.sweep = DEFAULT_SWEEP
    return run_command.run(args)
