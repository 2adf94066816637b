"""A check's question and its result."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from llm_locust.client.http.target import Target
from llm_locust.wire.dialects.chat import CHAT
from llm_locust.wire.dialects.dialect import Dialect

# --- What the doctor is asked, and the time that it has


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Options of one examination.

    Attributes:
        users: of one process on this machine.
        calibrate: hold the client's times against a server of known times, at this number of users.
        target: None examines this machine only.
        others: further models that the run asks for.
        has_key: whether an API key or an ``Authorization`` header is given.
        headers: of every request, the key's among them.
        secrets: texts that no output may have.
    """

    users: int
    calibrate: bool = False
    target: Target | None = None
    model: str | None = None
    others: tuple[str, ...] = ()
    endpoint: Dialect = CHAT
    body: Mapping[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    has_key: bool = False
    secrets: tuple[str, ...] = field(default=(), repr=False)
    ca_cert: Path | None = None
    client_cert: Path | None = None
    tls_name: str | None = None
    insecure: bool = False


NO_TIME = "no time was left"


class OutOfTimeError(Exception):
    """No time is left for another look."""

    def __init__(self) -> None:
        super().__init__(NO_TIME)


class TimeLeft:
    """Time of the whole examination, shared out to its looks.

    Args:
        seconds: of all looks together.
        now_s: source of time; tests use another one.
    """

    def __init__(self, seconds: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._end_s = now_s() + seconds

    def at_most(self, seconds: float) -> float:
        """Time limit of the next look: ``seconds``, or what is left (raises OutOfTimeError if nothing is)."""
        left_s = self._end_s - self._now_s()
        if left_s <= 0.05:
            raise OutOfTimeError
        return min(seconds, left_s)


def why(error: Exception) -> str:
    """Reason of a look that failed, in one line."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


# --- Result of one check


class Status(StrEnum):
    """``WARN``: a run works, and something may limit it or its figures. ``FAIL``: it does not work, or its
    figures would be wrong."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check.

    Attributes:
        figure: what was measured or seen.
        change: what to change; empty where nothing has to be.
    """

    status: Status
    figure: str
    change: str = ""


def ok(figure: str, change: str = "") -> Finding:
    """Nothing has to be changed; ``change`` is what may be."""
    return Finding(Status.OK, figure, change)


def warn(figure: str, change: str) -> Finding:
    return Finding(Status.WARN, figure, change)


def fail(figure: str, change: str) -> Finding:
    return Finding(Status.FAIL, figure, change)


def skipped(why: str) -> Finding:
    return Finding(Status.SKIPPED, why)
