"""What a finished stage of a run that goes on shows, read in a process of its own."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from llm_locust.core.manifest import StageFacts
from llm_locust.metrics.curves.objective import Objective
from llm_locust.metrics.curves.probe import Probe
from llm_locust.report.run.probing import ProbeAnswer
from llm_locust.swarm.process.children import LateError, run_elsewhere
from llm_locust.swarm.run.finishing import patience_s


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
