"""``python -m llm_locust.report.run.stage_reading RUN QUESTION``: what stages of a run that goes on show.

A command, so that the process that drives the stages need not read records while others send.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from llm_locust.core.manifest import Manifest, StageFacts
from llm_locust.core.stages import records_missing
from llm_locust.figures.objective import Probe, parse_objective, stage_probe
from llm_locust.figures.stages import stages, touching
from llm_locust.metrics.measured import measure
from llm_locust.metrics.question import PLAIN
from llm_locust.metrics.stage_course import FigureEstimate, is_enough, look_at, parse_until
from llm_locust.metrics.stats.censoring import ordered, percentile
from llm_locust.metrics.window import Window
from llm_locust.report.output import one_line
from llm_locust.report.run.totals import open_stages
from llm_locust.store import StoredRequests, StoreError

#: Such a share of the requests (in per cent) takes no longer than the time that is left out at the end.
_ENDED_PERCENT = 99.9

#: Lower priority of a reading of figures, which nothing waits for while the load goes on.
_NICE = 10


class StageQuestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is asked of a run with these stages, as far as they are known.

    ``find`` and ``until`` (as the options) are about the last one; ``figures`` are numbers of stages. Those
    in ``undrained`` have ended without a drain: they are left out until nearly all their requests have ended.
    """

    stages: list[StageFacts]
    find: str = ""
    until: str = ""
    figures: list[int] = []
    undrained: list[int] = []


class StageAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The command's one line of JSON: what was asked for, or why it cannot be read.

    ``probe`` answers ``find``; ``is_enough`` and ``half``, of a figure's interval, ``until``. ``figures`` are
    as in the ``stages`` of a summary.
    """

    probe: Probe | None = None
    is_enough: bool = False
    half: float | None = None
    figures: list[dict[str, Any]] = []
    error: str | None = None


def answer_of(run: Path, question: StageQuestion) -> StageAnswer:
    """The answer, from the records that have come.

    Raises:
        ValueError: the run or the question cannot be read, or has no record of the stage yet (StoreError,
            BatchError, ObjectiveError, ...).
        OSError: a file cannot be read.
    """
    with open_stages(run, question.stages) as (manifest, requests):
        probe, look, enough, last = None, None, False, question.stages[-1]
        if question.find:
            missing = _missing(requests, last)
            probe = (
                Probe(last.asked, no_result=f"{missing:,} records of it and of earlier stages are missing")
                if missing
                else stage_probe(requests, manifest, PLAIN, parse_objective(question.find), last)
            )
        if question.until:
            look, enough = _look(requests, manifest, question.until)
        early = {
            stage.number
            for stage in question.stages
            if stage.number in question.undrained and not _has_ended(requests, stage, manifest)
        }
        wanted = frozenset(question.figures) - early
        found = stages(requests, manifest, PLAIN, len(requests), wanted) if wanted else []
        return StageAnswer(probe, enough, None if look is None else look.half, msgspec.to_builtins(found))


def _missing(requests: StoredRequests, stage: StageFacts) -> int:
    """Records that the workers had when a stage had drained, and that are not here; 0 where it is unknown.

    What a master that was killed had not yet received is in the spools, and in no other count.
    """
    return 0 if stage.drained_ns is None else records_missing(requests, stage.made, stage.drained_ns)


def _look(requests: StoredRequests, manifest: Manifest, text: str) -> tuple[FigureEstimate, bool]:
    """The figure of the last stage as far as its requests have ended, and whether it is narrow enough."""
    until, stage = parse_until(text), manifest.stages[-1]
    until_ns = _until_ns(requests, stage, manifest)
    if stage.measured_ns is None or until_ns <= stage.measured_ns:
        raise ValueError("no request of its measured part has ended long enough ago")
    window = Window(stage.measured_ns, until_ns, "measured part of the stage, so far")
    m = measure(touching(requests, window), manifest, replace(PLAIN, window=window))
    found = look_at(m, until)
    return found, is_enough(found, until)


def _has_ended(requests: StoredRequests, stage: StageFacts, manifest: Manifest) -> bool:
    """Whether nearly all requests of a stage that has no drain have ended."""
    try:
        return stage.ended_ns is not None and _until_ns(requests, stage, manifest) >= stage.ended_ns
    except StoreError:
        return False


def _until_ns(requests: StoredRequests, stage: StageFacts, manifest: Manifest) -> int:
    """The time up to which nearly all requests have ended, and their records are here from every worker.

    Raises:
        StoreError: a worker that takes part has no record of the stage yet. Its share of the load may be the
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
        raise StoreError("no request of the stage has been recorded yet")
    workers = [worker.id for worker in manifest.workers if not worker.left]
    silent = sorted(set(workers) - ends.keys())
    idle = max(0, len(workers) - round(stage.asked)) if stage.kind == "users" else 0  # those without a user
    if len(silent) > idle:
        raise StoreError(f"no request of the stage has been recorded by {one_line(', '.join(silent))} yet")
    took = percentile(ordered(np.concatenate(took_ns).astype(np.float64)), _ENDED_PERCENT)
    return min(ends.values()) - round(took)


def main(argv: Sequence[str] | None = None) -> int:
    """Read stages and print a :class:`StageAnswer`; gives 0 where they could be read, 1 where not."""
    parser = argparse.ArgumentParser(
        prog="python -m llm_locust.report.run.stage_reading",
        description="Print what stages of a run that goes on show, as JSON.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("question", metavar="QUESTION", help="what is asked of which stages, as JSON")
    args = parser.parse_args(argv)
    try:
        question = msgspec.json.decode(args.question, type=StageQuestion)
        if not (question.find or question.until):
            os.nice(_NICE)
        answer = answer_of(args.run, question)
    except (OSError, ValueError) as e:
        answer = StageAnswer(error=one_line(e))
    with suppress(BrokenPipeError):
        _write(msgspec.json.encode(answer) + b"\n")
    return 0 if answer.error is None else 1


def _write(line: bytes) -> None:
    """Write all of it: a pipe takes less than the figures of many stages at once."""
    with open(sys.stdout.fileno(), "wb", closefd=False) as out:
        out.write(line)


if __name__ == "__main__":
    sys.exit(main())
