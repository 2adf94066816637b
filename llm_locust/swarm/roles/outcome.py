"""What only the process that ran a load knows of its outcome, beside the verdict on its records."""

from dataclasses import replace

from llm_locust.core.exit_codes import EXIT_GATE, EXIT_INCOMPLETE
from llm_locust.figures.verdict import RunVerdict


def without_gates(failed: int, still: str = "") -> RunVerdict:
    """Verdict on a run without gates: no request may fail.

    Args:
        still: that the server stood still, which is a failure too; empty if it did not.
    """
    if failed:
        still = f"{failed} requests failed, and no --gate says how many may"
    return RunVerdict(EXIT_GATE, still, is_of_failures=True) if still else RunVerdict(0)


def with_code_on_error(found: RunVerdict, code: int) -> RunVerdict:
    """The verdict with ``--exit-code-on-error`` in place of its code, where only failed requests made it; 0
    accepts them."""
    if not found.is_of_failures:
        return found
    return replace(found, code=code) if code else RunVerdict(0)


def with_faults(found: RunVerdict, *, part_failed: bool, uploaded: bool | None) -> RunVerdict:
    """The verdict on a run, with what went wrong around its records: that comes before any other code.

    Args:
        found: the verdict on the records.
        part_failed: whether a part of Locust or of this package ended by an exception.
        uploaded: whether the run was copied to where it was to be; None if that was not asked for.
    """
    if found.code == EXIT_INCOMPLETE:
        return found
    if part_failed:
        return RunVerdict(EXIT_INCOMPLETE, "a part of the load or of the harness failed: see the log")
    if uploaded is False:
        return RunVerdict(EXIT_INCOMPLETE, "the run was not copied to the destination of --upload")
    return found
