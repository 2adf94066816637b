"""Life of a run where its directory is: its states, and the code that the process ends with."""

from dataclasses import dataclass, replace
from enum import IntEnum

from llm_locust.core import EXIT_GATE, EXIT_INCOMPLETE, EXIT_USAGE
from llm_locust.figures.verdict import RunVerdict


class State(IntEnum):
    """States of a run, in their order. ``docs/run-states.md`` has what leads from one to the next."""

    LOADING = 1  # requests start
    DRAINING = 2  # those in flight end, and the last records arrive
    FINISHING = 3  # all records are in, or given up: the report is being made
    REPORTED = 4  # there is a report, or the reason why there is none


# --- What only the process that ran a load knows of its outcome, beside the verdict on its records


def without_gates(failed: int, still: str = "") -> RunVerdict:
    """Verdict on a run without gates: no request may fail.

    Args:
        still: that the server stood still, which is a failure too; empty if it did not.
    """
    if failed:
        still = f"{failed} requests failed, and no --gate says how many may"
    return RunVerdict(EXIT_GATE, still, is_of_failures=True) if still else RunVerdict(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """What decides the exit code of the process that has run a load.

    Attributes:
        is_refused: the last run that was requested was refused.
        has_run: a load was begun.
        was_to_run: one was requested by the command.
        judged: the verdict on its records; None without a report.
        code_on_error: of ``--exit-code-on-error``.
        part_failed: a part of Locust or of this package ended by an exception.
        is_uploaded: whether the run was copied to where it was to be; None if that was not asked for.
        given: the code that a listener of the locustfile has set.
    """

    is_refused: bool = False
    has_run: bool = True
    was_to_run: bool = True
    judged: RunVerdict | None
    code_on_error: int = 1
    part_failed: bool = False
    is_uploaded: bool | None = None
    given: int | None = None


def exit_verdict(end: RunEnd) -> RunVerdict:
    """Verdict whose code the process ends with: the first that applies, in the order below.

    A refusal, no load, and what went wrong around the records come before the verdict on them.
    ``--exit-code-on-error`` is the code where only failed requests made it; 0 accepts them. A locustfile's
    own code counts where the run's would be 0.
    """
    found = end.judged
    if end.is_refused:
        return RunVerdict(EXIT_USAGE, "the run was refused: the log says why")
    if not end.has_run and end.was_to_run:
        return RunVerdict(EXIT_USAGE, "no load was sent")
    if not end.has_run:
        found = RunVerdict(0)
    elif found is None:
        return RunVerdict(EXIT_INCOMPLETE, "there is no report")
    elif found.code == EXIT_INCOMPLETE:
        return found
    elif end.part_failed:
        return RunVerdict(EXIT_INCOMPLETE, "a part of the load or of the harness failed: see the log")
    elif end.is_uploaded is False:
        return RunVerdict(EXIT_INCOMPLETE, "the run was not copied to the destination of --upload")
    elif found.is_of_failures:
        found = replace(found, code=end.code_on_error) if end.code_on_error else RunVerdict(0)
    if not found.code and end.given:
        return RunVerdict(end.given, "the locustfile has set it (process_exit_code)")
    return found
