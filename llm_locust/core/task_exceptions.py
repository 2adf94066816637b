"""Exceptions of a locustfile's tasks, as the manifest lists them."""

from collections import Counter
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

#: Most kinds that are kept apart, the entry for the rest included.
MOST_TASK_EXCEPTIONS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskException:
    """An exception that a task of the locustfile raised ``count`` times.

    ``error`` is its type and text, ``where`` the innermost line of its traceback that is the locustfile's, as
    ``file:line in function``.
    """

    error: Annotated[str, Meta(max_length=500)]
    where: Annotated[str, Meta(max_length=300)] = ""
    count: Annotated[int, Meta(ge=0, le=2**53)] = 1


def task_exceptions(kinds: Counter[tuple[str, str]]) -> list[TaskException]:
    """The counts of (error, where) as the manifest lists them: most frequent first, the rest as one entry."""
    ranked = sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0]))
    most = MOST_TASK_EXCEPTIONS if len(ranked) <= MOST_TASK_EXCEPTIONS else MOST_TASK_EXCEPTIONS - 1
    found = [TaskException(error=error, where=where, count=n) for (error, where), n in ranked[:most]]
    if rest := sum(n for _, n in ranked[most:]):
        found.append(TaskException(error="other exceptions", count=rest))
    return found
