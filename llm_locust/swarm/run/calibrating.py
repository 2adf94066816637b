"""The client's error on this machine, measured before the load of a run."""

import logging
import math
from typing import TYPE_CHECKING

from llm_locust.client.http.clock import hold_stamping
from llm_locust.core.manifest import CalibrationFacts
from llm_locust.doctor.asked import TimeLeft
from llm_locust.doctor.calibration import WHOLE_S, calibrate, facts
from llm_locust.options.settings import Settings, UsageError
from llm_locust.report.sections.calibration import calibration_text
from llm_locust.swarm.open_loop.load import open_loop_class

if TYPE_CHECKING:
    from locust.env import Environment

logger = logging.getLogger(__name__)


def calibrate_run(
    environment: "Environment", settings: Settings, *, at_once: bool
) -> CalibrationFacts | None:
    """Measure the client at the streams of one worker; None if that was not asked for.

    It is this process's client, on this machine: that of the users if the run has no workers, or if they are
    here. It never ends the run: what could not be measured is said.

    Raises:
        UsageError: it is not known how many streams the run has.
    """
    if not settings.calibrate:
        return None
    options = environment.parsed_options
    workers = max(1, int(getattr(options, "expect_workers", 1) or 1))
    asked = settings.calibrate
    streams = math.ceil(_users(environment, settings, at_once) / workers) if asked is True else int(asked)
    logger.info("calibrating the client at %d streams, before the load", streams)
    stamping = hold_stamping()
    try:
        found = facts(calibrate(streams, TimeLeft(WHOLE_S + 1.0)), streams, workers)
    finally:
        if stamping is not None:
            stamping.close()
    logger.info("calibrated: %s", calibration_text(found))
    return found


def _users(environment: "Environment", settings: Settings, at_once: bool) -> int:
    """Users of a closed loop, each with a stream at most."""
    load, options = settings.load, environment.parsed_options
    if open_loop_class(environment.user_classes, settings) is not None:
        why = "an open loop has as many streams as the answers last"
    elif load.sweep is not None or environment.shape_class is not None:
        why = "the load changes"
    elif not at_once:
        why = "the web UI says later how many users there are"
    else:
        return max(1, int(getattr(options, "num_users", None) or 1))
    raise UsageError(f"--calibrate: {why}: give --calibrate-streams N, those of one worker")
