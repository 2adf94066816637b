"""``python -m llm_locust.report.run.looking RUN UNTIL STAGES``: whether a stage that goes on can end.

A command, so that the process that drives the stages need not read records while others send.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from llm_locust.core.manifest import Manifest, StageFacts
from llm_locust.metrics.measured import measure
from llm_locust.metrics.question import PLAIN
from llm_locust.metrics.stages.figures import touching
from llm_locust.metrics.stages.until import Look, is_enough, look_at, parse_until
from llm_locust.metrics.stats.percentiles import ordered, percentile
from llm_locust.metrics.window import Window
from llm_locust.report.output import one_line
from llm_locust.report.run.so_far import open_stages
from llm_locust.store import StoredRequests

#: Such a share of the requests (in per cent) takes no longer than the time that is left out at the end.
_ENDED_PERCENT = 99.9


class LookAnswer(msgspec.Struct, frozen=True):
    """The command's one line of JSON: whether the stage can end, and its figure; or why it cannot be read."""

    is_enough: bool = False
    half: float | None = None
    error: str | None = None


def look_of(run: Path, text: str, stages: list[StageFacts]) -> tuple[Look, bool]:
    """The figure of the last stage as far as its requests have ended, and whether it is narrow enough.

    Raises:
        ValueError: the run cannot be read, or has no record of the stage yet.
        OSError: a file cannot be read.
    """
    until, stage = parse_until(text), stages[-1]
    with open_stages(run, stages) as (manifest, requests):
        until_ns = _until_ns(requests, stage, manifest)
        if stage.measured_ns is None or until_ns <= stage.measured_ns:
            raise ValueError("no request of its measured part has ended long enough ago")
        window = Window(stage.measured_ns, until_ns, "measured part of the stage, so far")
        m = measure(touching(requests, window), manifest, replace(PLAIN, window=window))
        found = look_at(m, until)
        return found, is_enough(found, until)


def _until_ns(requests: StoredRequests, stage: StageFacts, manifest: Manifest) -> int:
    """The time up to which nearly all requests have ended, and their records are here from every worker.

    Raises:
        ValueError: a worker that takes part has no record of the stage yet. Its share of the load may be the
            slow one.
    """
    ends: dict[str, int] = {}
    took_ns = []
    for part in requests.parts(["scheduled_ns", "ended_ns", "worker"]):
        scheduled_ns, ended_ns = part.ints("scheduled_ns"), part.ints("ended_ns")
        theirs = scheduled_ns >= stage.begun_ns
        labels = part.labels("worker")
        took_ns.append((ended_ns - scheduled_ns)[theirs])
        for code, name in enumerate(labels.names):
            of_worker = ended_ns[theirs & (labels.codes == code)]
            if len(of_worker):
                ends[name] = max(ends.get(name, 0), int(of_worker.max()))
    if not ends:
        raise ValueError("no request of the stage has been recorded yet")
    workers = [worker.id for worker in manifest.workers if not worker.left]
    silent = sorted(set(workers) - ends.keys())
    idle = max(0, len(workers) - round(stage.asked)) if stage.kind == "users" else 0  # those without a user
    if len(silent) > idle:
        raise ValueError(f"no request of the stage has been recorded by {one_line(', '.join(silent))} yet")
    took = percentile(ordered(np.concatenate(took_ns).astype(np.float64)), _ENDED_PERCENT)
    return min(ends.values()) - round(took)


def main(argv: Sequence[str] | None = None) -> int:
    """Look at one stage and print a :class:`LookAnswer`; gives 0 where it could be read, 1 where not."""
    parser = argparse.ArgumentParser(
        prog="python -m llm_locust.report.run.looking",
        description="Print whether the figure of a stage that goes on is known well enough, as JSON.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("until", metavar="UNTIL", help="as of --until")
    parser.add_argument("stages", metavar="STAGES", help="the run's stages as JSON")
    args = parser.parse_args(argv)
    try:
        stages = msgspec.json.decode(args.stages, type=list[StageFacts])
        found, enough = look_of(args.run, args.until, stages)
        answer = LookAnswer(enough, found.half)
    except (OSError, ValueError) as e:
        answer = LookAnswer(error=one_line(e))
    with suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), msgspec.json.encode(answer) + b"\n")
    return 0 if answer.error is None else 1


if __name__ == "__main__":
    sys.exit(main())
