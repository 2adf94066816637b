"""``python -m llm_locust.report.run.probing RUN OBJECTIVE STAGES``: what the last of a run's stages shows.

A command, so that the process that drives a search need not read records while others send.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from llm_locust.core.manifest import StageFacts
from llm_locust.metrics.curves.objective import parse_objective
from llm_locust.metrics.curves.probe import Probe
from llm_locust.metrics.curves.readings import stage_probe
from llm_locust.metrics.question import PLAIN
from llm_locust.report.output import one_line
from llm_locust.report.run.so_far import open_stages


class ProbeAnswer(msgspec.Struct, frozen=True):
    """The command's one line of JSON: what the stage shows, or why it cannot be read."""

    probe: Probe | None
    error: str | None


def probe_of(run: Path, objective: str, stages: list[StageFacts]) -> Probe:
    """What the last of ``stages``, which has ended, shows of an objective.

    Raises:
        ValueError: the run or the objective cannot be read (StoreError, BatchError, ObjectiveError, ...).
        OSError: a file cannot be read.
    """
    with open_stages(run, stages) as (manifest, requests):
        return stage_probe(requests, manifest, PLAIN, parse_objective(objective), stages[-1])


def main(argv: Sequence[str] | None = None) -> int:
    """Read one stage and print a :class:`ProbeAnswer`; gives 0 where it could be read, 1 where not."""
    parser = argparse.ArgumentParser(
        prog="python -m llm_locust.report.run.probing",
        description="Print what the last of a run's stages shows of an objective, as JSON.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("objective", metavar="OBJECTIVE", help="as of --find")
    parser.add_argument("stages", metavar="STAGES", help="the run's stages as JSON")
    args = parser.parse_args(argv)
    try:
        stages = msgspec.json.decode(args.stages, type=list[StageFacts])
        answer = ProbeAnswer(probe_of(args.run, args.objective, stages), None)
    except (OSError, ValueError) as e:
        answer = ProbeAnswer(None, one_line(e))
    with suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), msgspec.json.encode(answer) + b"\n")
    return 0 if answer.error is None else 1


if __name__ == "__main__":
    sys.exit(main())
