"""What was asked of a run, as the files of other tools say it."""

from typing import Any

import numpy as np

from llm_locust.core.manifest import StageFacts
from llm_locust.report.run.analysis import Analysis


def asked_options(analysis: Analysis) -> dict[str, Any]:
    """The options of the run, with the load of the only stage of its requests, and the report's GPUs."""
    options, stage = dict(analysis.manifest.options), asked_stage(analysis)
    if stage is not None:
        name, asked = (
            ("num_users", int(stage.asked)) if stage.kind == "users" else ("request_rate", stage.asked)
        )
        options[name] = asked
    cost = analysis.summary.cost
    if cost is not None and cost.prices.gpus is not None:
        options["gpus"] = cost.prices.gpus
    return options


def asked_stage(analysis: Analysis) -> StageFacts | None:
    """The stage that all requests are of; None if they are of several, or of a run without stages."""
    manifest = analysis.manifest
    if not manifest.stages:
        return None
    numbers = {
        int(number)
        for part in analysis.requests.parts(["stage"])
        for number in np.unique(part.floats("stage"))
        if not np.isnan(number)
    }
    found = [stage for stage in manifest.stages if stage.number in numbers]
    return found[0] if len(found) == 1 else None


def asked_number(value: object) -> float | None:
    """The value of an option that is a number; None of a distribution or a profile."""
    try:
        return float(str(value))
    except ValueError:
        return None
