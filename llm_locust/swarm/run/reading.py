"""What a stage of a run that goes on shows, read in a process of its own."""

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from llm_locust.core.manifest import StageFacts
from llm_locust.metrics.curves.objective import Objective
from llm_locust.metrics.curves.probe import Probe
from llm_locust.metrics.stages.until import Until
from llm_locust.report.run.looking import LookAnswer
from llm_locust.report.run.probing import ProbeAnswer
from llm_locust.swarm.process.children import LateError, run_elsewhere
from llm_locust.swarm.run.finishing import patience_s

logger = logging.getLogger(__name__)


def read_stage(run: Path, objective: Objective, stages: Sequence[StageFacts]) -> Probe:
    """What the last of ``stages`` shows. A stage that cannot be read is no result, and says why.

    Call it in the main thread, see :func:`~llm_locust.swarm.process.children.run_elsewhere`.
    """
    load = stages[-1].asked
    words = ["--", str(run), objective.text, msgspec.json.encode(list(stages)).decode()]
    try:
        _, said = run_elsewhere("llm_locust.report.run.probing", words, within_s=patience_s(run))
        answer = msgspec.json.decode(said, type=ProbeAnswer)
    except LateError as e:
        return Probe(load, no_result=f"the process that reads it {e}")
    except OSError as e:
        return Probe(load, no_result=f"the process that reads it cannot be started: {e.strerror or e}")
    except ValueError:
        return Probe(load, no_result="the process that reads it ended before it was done")
    return answer.probe or Probe(load, no_result=answer.error or "it cannot be read")


def look_at_stage(run: Path, until: Until, stages: Sequence[StageFacts], within_s: float) -> bool:
    """Whether the last of ``stages``, which goes on, is known well enough; False if that takes too long.

    Call it in the main thread, as :func:`read_stage`.
    """
    words = ["--", str(run), until.text, msgspec.json.encode(list(stages)).decode()]
    try:
        _, said = run_elsewhere("llm_locust.report.run.looking", words, within_s=within_s)
        answer = msgspec.json.decode(said, type=LookAnswer)
    except (LateError, OSError, ValueError) as e:
        logger.warning("the stage was not looked at for --until: %s", e)
        return False
    if answer.error is not None:
        logger.info("stage %d goes on: %s", stages[-1].number, answer.error)
    elif answer.half is None:
        logger.info("stage %d goes on: its requests give no interval yet", stages[-1].number)
    else:
        what = "ends early" if answer.is_enough else "goes on"
        logger.info("stage %d %s: %s, now ±%.1f %%", stages[-1].number, what, until.text, 100 * answer.half)
    return answer.is_enough
