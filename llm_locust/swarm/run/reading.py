"""What stages of a run that goes on show, read in a process of its own."""

import logging
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from llm_locust.core.manifest import StageFacts
from llm_locust.metrics.curves.objective import Objective
from llm_locust.metrics.curves.probe import Probe
from llm_locust.metrics.stages.until import Until
from llm_locust.metrics.summary_types.stages import Stage
from llm_locust.metrics.summary_types.summary import typed_stages
from llm_locust.report.run.stage_reading import StageAnswer, StageQuestion
from llm_locust.swarm.process.children import LateError, run_elsewhere
from llm_locust.swarm.process.offload import off_the_hub
from llm_locust.swarm.run.finishing import patience_s

logger = logging.getLogger(__name__)


def read_stage(
    run: Path, objective: Objective, stages: Sequence[StageFacts], *, with_figures: bool = False
) -> tuple[Probe, list[Stage]]:
    """What the last of ``stages`` shows. A stage that cannot be read is no result, and says why.

    Call it in the main thread, see :func:`~llm_locust.swarm.process.children.run_elsewhere`.

    Args:
        with_figures: its figures are read too.
    """
    load, wanted = stages[-1].asked, [stages[-1].number] if with_figures else []
    question = StageQuestion(list(stages), find=objective.text, figures=wanted)
    answer = _answer(run, question, patience_s(run))
    probe = answer.probe or Probe(load, no_result=answer.error or "it cannot be read")
    return probe, _figures(answer)


def look_at_stage(run: Path, until: Until, stages: Sequence[StageFacts], within_s: float) -> bool:
    """Whether the last of ``stages``, which goes on, is known well enough; False if that takes too long.

    Call it in the main thread, as :func:`read_stage`.
    """
    answer, number = _answer(run, StageQuestion(list(stages), until=until.text), within_s), stages[-1].number
    if answer.error is not None:
        logger.info("stage %d goes on: %s", number, answer.error)
    elif answer.half is None:
        logger.info("stage %d goes on: its requests give no interval yet", number)
    else:
        what = "ends early" if answer.is_enough else "goes on"
        logger.info("stage %d %s: %s, now ±%.1f %%", number, what, until.text, 100 * answer.half)
    return answer.is_enough


def read_figures(
    run: Path, stages: Sequence[StageFacts], numbers: Sequence[int], undrained: Collection[int]
) -> list[Stage]:
    """The figures of the stages with these numbers, as far as their requests have ended.

    Call it in the main thread, as :func:`read_stage`.

    Args:
        undrained: numbers of stages that have ended without a drain.
    """
    question = StageQuestion(list(stages), figures=list(numbers), undrained=sorted(undrained))
    answer = _answer(run, question, patience_s(run))
    if answer.error is not None:
        logger.debug("the stages' figures were not read: %s", answer.error)
    return _figures(answer)


def _answer(run: Path, question: StageQuestion, within_s: float) -> StageAnswer:
    """The answer of the process that reads; of one that gave none, why."""
    words = ["--", str(run), msgspec.json.encode(question).decode()]
    try:
        _, said = run_elsewhere("llm_locust.report.run.stage_reading", words, within_s=within_s)
        return off_the_hub(msgspec.json.decode, said, type=StageAnswer)
    except LateError as e:
        return StageAnswer(error=f"the process that reads it {e}")
    except OSError as e:
        return StageAnswer(error=f"the process that reads it cannot be started: {e.strerror or e}")
    except ValueError:
        return StageAnswer(error="the process that reads it ended before it was done")


def _figures(answer: StageAnswer) -> list[Stage]:
    return off_the_hub(typed_stages, answer.figures) if answer.figures else []
