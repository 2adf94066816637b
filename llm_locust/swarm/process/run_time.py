"""The run time (``-t``), counted from the first moment of the load.

Locust arms its timer when a run is asked for: the checks before the load, and the delay after which an open
loop's schedule begins on all workers, would be part of the run time. So its timers are taken over here. With
a load shape the run time stays Locust's, which ends such a run by its shape.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from locust.env import Environment


class RunTime:
    """Run time of the runs of one process.

    Args:
        on_web_timer: called when the timer of a run from the web UI has elapsed, which Locust armed.
    """

    def __init__(self, environment: "Environment", on_web_timer: Callable[[], None]) -> None:
        self._environment = environment
        self._taken: Any = None  # as Locust has it: the manifest keeps the options
        if environment.web_ui is not None:
            vars(environment.web_ui)["_stop_runners"] = on_web_timer

    def take(self) -> None:
        """Hide the run time from Locust, which is about to arm its timer for a run that starts at once."""
        options = self._environment.parsed_options
        if self._environment.shape_class is None and options is not None and options.run_time:
            self._taken, options.run_time = options.run_time, None

    def give_back(self) -> float | None:
        """Put the run time back into the options; return that of the run which begins now, or None.

        None also for runs from the web UI, whose timer is armed, and ends in ``on_web_timer``.
        """
        if self._taken is None or self._environment.parsed_options is None:
            return None
        found, self._taken = self._taken, None
        self._environment.parsed_options.run_time = found
        return float(found)

    @property
    def of_web_run_s(self) -> float | None:
        """The run time of the form, which Locust keeps in the options."""
        found = getattr(self._environment.parsed_options, "run_time", None)
        return float(found) if isinstance(found, int | float) else None
