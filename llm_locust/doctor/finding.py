"""Result of one check."""

from dataclasses import dataclass
from enum import StrEnum


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
