"""Log of the plan's actions on replicas and the gateway's reactions, as lines and JSON Lines."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llm_locust.sim.truth import JsonLines


@dataclass(frozen=True, slots=True)
class Event:
    """One event. ``time_ns`` is CLOCK_REALTIME; ``who`` caused it: the plan, the gateway, or a client."""

    time_ns: int
    who: str
    replica: str
    action: str
    factor: float | None = None  # of ``slow``


#: Text of actions whose name is not a phrase.
_SAID = {
    "kill": "killed",
    "start": "started",
    "drain": "drained",
    "slow": "slowed",
    "normal": "back to its own speed",
    "out": "out of rotation",
    "in": "back in rotation",
}


def events_path(truth: Path) -> Path:
    """Path of the events, next to the truth log: ``<truth>.events.jsonl``."""
    return truth.with_name(truth.name + ".events.jsonl")


class EventLog(JsonLines):
    """Reports each event as one line, ``plan: replica-2 killed at 10.003 s``, and appends it to a file.

    Times in lines count from the last ``begin``.
    """

    def __init__(self, path: Path | None, say: Callable[[str], None]) -> None:
        super().__init__(path, "event log")
        self._say = say
        self._began_ns = time.time_ns()

    def begin(self) -> None:
        """Set the start of the deployment's time to now."""
        self._began_ns = time.time_ns()

    def add(self, who: str, replica: str, action: str, factor: float | None = None) -> None:
        """Record an action that was just taken."""
        event = Event(time.time_ns(), who, replica, action, factor)
        said = _SAID.get(action, action) + (f" {factor:g}x" if factor is not None else "")
        self._say(f"{who}: {replica} {said} at {(event.time_ns - self._began_ns) * 1e-9:.3f} s")
        self.write(event)
