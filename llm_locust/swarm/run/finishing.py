"""End of a run: report, uploads and readings of its stages, each in a process of its own; the exit code."""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGKILL, strsignal

import msgspec

from llm_locust.core import EXIT_GATE, EXIT_INCOMPLETE, EXIT_USAGE
from llm_locust.core.manifest import StageFacts
from llm_locust.figures.objective import Objective, Probe
from llm_locust.figures.stages import Stage
from llm_locust.figures.summary import Summary, decode_table, read_summary
from llm_locust.figures.verdict import RunVerdict
from llm_locust.host import reason_of
from llm_locust.live.snapshot import live_end
from llm_locust.live.store import LiveStore
from llm_locust.metrics.stage_course import Until
from llm_locust.options.report import Keep
from llm_locust.report.analysis import Report
from llm_locust.report.commands import FinishAnswer
from llm_locust.report.finish import advice
from llm_locust.report.inputs import write_live_end
from llm_locust.report.so_far import StageAnswer, StageQuestion
from llm_locust.store import REQUESTS_FILE, SUMMARY_FILE
from llm_locust.store.facts import parts_of
from llm_locust.store.files import size_of
from llm_locust.store.frame_log import kept_bytes
from llm_locust.swarm.process.children import (
    REPORT_COMMANDS,
    STDERR,
    STDOUT,
    ElsewhereError,
    LateError,
    last_words,
    run_elsewhere,
)
from llm_locust.swarm.process.event_loop import off_the_hub

# --- Report of a run, made in a process of its own, which uses neither the time nor the memory of the master


logger = logging.getLogger(__name__)

#: Time limits of a report, some hundred times what a slow machine needs: a constant, and by records.
PATIENCE_S = 900.0
_SLOWEST_BYTES_PER_S = 100_000


class FinishError(ValueError):
    """A report that could not be made; the text says why and what to do."""


def keep_live(run: Path, live: LiveStore) -> None:
    """Write the last live figures, which the report compares with the records."""
    try:
        off_the_hub(write_live_end, run, live_end(live))
    except OSError as e:  # the report does not need them
        logger.warning("could not write the last live figures: %s", reason_of(e))


def finish_elsewhere(run: Path, *, allow_incomplete: bool = False) -> Report:
    """Run :func:`llm_locust.report.finish.finish_run` in its own process while other greenlets run.

    Call it in the main thread, see :func:`~llm_locust.swarm.process.children.run_elsewhere`.

    Raises:
        FinishError: it could not be started, was killed, took longer than :func:`patience_s`, or reported why
            there is no report.
    """
    return _report_elsewhere("finish", run, allow_incomplete, patience_s(run))


def join_elsewhere(folder: Path, *, allow_incomplete: bool = False) -> Report:
    """As :func:`finish_elsewhere`, one report of all parts of a restartable run (raises FinishError)."""
    within_s = sum(map(patience_s, parts_of(folder)), PATIENCE_S)
    return _report_elsewhere("join", folder, allow_incomplete, within_s)


def _report_elsewhere(command: str, run: Path, allow_incomplete: bool, within_s: float) -> Report:
    words = [command, *["--allow-incomplete"] * allow_incomplete]
    try:
        code, output = run_elsewhere(REPORT_COMMANDS, [*words, "--", str(run)], within_s=within_s)
    except ElsewhereError as e:
        raise FinishError(f"the process that makes it {e}; {advice(run)}") from e
    found = _judge(code, output, run)
    return Report(off_the_hub(_read_summary, run), found)


def patience_s(run: Path) -> float:
    """Time limit of a run's report, by the size of its records."""
    made = run / REQUESTS_FILE
    size = kept_bytes(run) + (made.stat().st_size if made.is_file() else 0)
    return PATIENCE_S + size / _SLOWEST_BYTES_PER_S


def _read_summary(run: Path) -> Summary:
    try:
        return read_summary((run / SUMMARY_FILE).read_bytes())
    except (OSError, ValueError) as e:
        raise FinishError(f"its {SUMMARY_FILE} was written but cannot be read: {e}") from e


def _judge(code: int, output: bytes, run: Path) -> RunVerdict | None:
    """Verdict on the run (raises FinishError if there is no report)."""
    try:
        answer = msgspec.json.decode(output, type=FinishAnswer)
    except ValueError:
        what_to_do = advice(run, out_of_memory=code == -SIGKILL)
        raise FinishError(f"the process that makes it {_end(code)}; {what_to_do}") from None
    if answer.error is not None:
        raise FinishError(answer.error)
    return answer.verdict


def _end(code: int) -> str:
    if code >= 0:
        return f"ended with {code} before it was done"
    reason = "as when memory has run out" if -code == SIGKILL else strsignal(-code)
    return f"was ended by signal {-code} ({reason})"


# --- What stages of a run that goes on show, read in a process of its own


def read_stage(
    run: Path, objective: Objective, stages: Sequence[StageFacts], *, with_figures: bool = False
) -> tuple[Probe, list[Stage]]:
    """What the last of ``stages`` shows. A stage that cannot be read is no result, and says why.

    Call it in the main thread, see :func:`~llm_locust.swarm.process.children.run_elsewhere`.

    Args:
        with_figures: its figures are read too.
    """
    load, wanted = stages[-1].asked, [stages[-1].number] if with_figures else []
    question = StageQuestion(list(stages), find=objective.text, figures=wanted)
    answer = _answer(run, question, patience_s(run))
    probe = answer.probe or Probe(load, no_result=answer.error or "it cannot be read")
    return probe, answer.figures


def look_at_stage(run: Path, until: Until, stages: Sequence[StageFacts], within_s: float) -> bool:
    """Whether the last of ``stages``, which goes on, is known well enough; False if that takes too long.

    Call it in the main thread, as :func:`read_stage`.
    """
    answer, number = _answer(run, StageQuestion(list(stages), until=until.text), within_s), stages[-1].number
    if answer.error is not None:
        logger.info("stage %d goes on: %s", number, answer.error)
    elif answer.half is None:
        logger.info("stage %d goes on: its requests give no interval yet", number)
    else:
        what = "ends early" if answer.is_enough else "goes on"
        logger.info("stage %d %s: %s, now ±%.1f %%", number, what, until.text, 100 * answer.half)
    return answer.is_enough


def read_figures(
    run: Path, stages: Sequence[StageFacts], numbers: Sequence[int], undrained: Collection[int]
) -> list[Stage]:
    """The figures of the stages with these numbers, as far as their requests have ended.

    Call it in the main thread, as :func:`read_stage`.

    Args:
        undrained: numbers of stages that have ended without a drain.
    """
    question = StageQuestion(list(stages), figures=list(numbers), undrained=sorted(undrained))
    answer = _answer(run, question, patience_s(run))
    if answer.error is not None:
        logger.debug("the stages' figures were not read: %s", answer.error)
    return answer.figures


def _answer(run: Path, question: StageQuestion, within_s: float) -> StageAnswer:
    """The answer of the process that reads; of one that gave none, why."""
    words = ["stages", "--", str(run), msgspec.json.encode(question).decode()]
    try:
        _, output = run_elsewhere(REPORT_COMMANDS, words, within_s=within_s)
        return off_the_hub(msgspec.json.decode, output, type=StageAnswer, dec_hook=decode_table)
    except ElsewhereError as e:
        return StageAnswer(error=f"the process that reads it {e}")
    except ValueError:
        return StageAnswer(error="the process that reads it ended before it was done")


# --- Uploads of a run directory, each in a process of its own: at the run's end, and repeatedly before it


#: Environment variables that an object store's client reads.
CREDENTIALS = (
    *("AWS_", "GOOGLE_", "CLOUDSDK_", "GCE_", "SSL_CERT_"),
    *("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"),
)

#: Time limits of an upload: a constant, and the pace of its files. A longer one hangs.
UPLOAD_PATIENCE_S = 3600.0

#: Attempts of an intermediate upload: few, because the next one makes up for it.
_ATTEMPTS_IN_BETWEEN = 2


def upload_elsewhere(run: Path, to: str, attempts: int | None = None) -> tuple[bool, str]:
    """Copy a run directory to ``to`` while other greenlets run.

    Call it in the main thread, see :func:`~llm_locust.swarm.process.children.run_elsewhere`. If another
    upload of the directory is in progress, it waits for that one.

    Args:
        attempts: attempts of each step; None for the default of
        :class:`~llm_locust.store.upload.RetryPolicy`.

    Returns:
        Whether the copy is complete, and a line that describes the result or the failure.
    """
    words = [] if attempts is None else ["--attempts", str(attempts)]
    try:
        code, output = _with_credentials("llm_locust.cli.main", ["upload", *words, "--", str(run), to], run)
    except ElsewhereError as e:
        return False, f"the process that uploads {e}"
    return code == 0, output or f"the process that uploads ended with {code}"


def drop_elsewhere(run: Path, keep: Keep, to: str, *, ended: bool = False) -> None:
    """Drop what a run directory has had for long enough, after its upload; log the result."""
    words = ["drop", "--older-than", str(keep.least_s), *["--ended"] * ended, "--", str(run), to]
    try:
        code, output = _with_credentials(REPORT_COMMANDS, words, run)
    except ElsewhereError as e:
        logger.warning("--keep: nothing was dropped this time: its process %s", e)
        return
    if code:
        logger.warning("--keep: not all could be dropped: %s", output or f"its process ended with {code}")
    elif output:
        logger.info("--keep: %s", output)


def _with_credentials(module: str, words: Sequence[str], run: Path) -> tuple[int, str]:
    """Exit code and last words of a process that asks an object store for a run (raises ElsewhereError)."""
    within_s = UPLOAD_PATIENCE_S + off_the_hub(size_of, run) / _SLOWEST_BYTES_PER_S
    code, output = run_elsewhere(
        module, words, heard=(STDOUT, STDERR), prefixes=CREDENTIALS, within_s=within_s
    )
    return code, last_words(output)


def upload_so_far(run: Path, to: str) -> bool:
    """Copy what a running run has so far; log the result. A failure is a warning: the next upload goes on
    where this one ended, and the one at the run's end decides."""
    done, output = upload_elsewhere(run, to, _ATTEMPTS_IN_BETWEEN)
    if done:
        logger.info("%s", output)
    else:
        logger.warning("no upload this time: %s", output)
    return done


# --- Whether the destination of an upload answers, before the load


#: Time limit of the question whether an object store answers.
REACH_WITHIN_S = 15.0


def reach_upload(to: str) -> str | None:
    """Why a destination in an object store does not answer, asked by a process of its own; None if it does.

    Call it in the main thread. A folder is looked at when it is opened.
    """
    if not to.startswith(("s3://", "gs://")):
        return None
    try:
        code, output = run_elsewhere(
            "llm_locust.store.upload",
            ["--", to],
            heard=(STDOUT, STDERR),
            prefixes=CREDENTIALS,
            within_s=REACH_WITHIN_S,
        )
    except LateError:
        return f"no answer within {REACH_WITHIN_S:g} s"
    except ElsewhereError as e:
        return f"the process that asks {e}"
    return (last_words(output) or f"the process that asked ended with {code}") if code else None


# --- Exit code of the process that ran a load, by what only it knows beside the verdict on its records


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
        has_crashed: a part of Locust or of this package ended by an exception.
        is_uploaded: whether the run was copied to where it was to be; None if that was not asked for.
        given: the code that a listener of the locustfile has set.
    """

    is_refused: bool = False
    has_run: bool = True
    was_to_run: bool = True
    judged: RunVerdict | None
    code_on_error: int = 1
    has_crashed: bool = False
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
    if not end.has_run and (end.was_to_run or end.has_crashed):
        return RunVerdict(EXIT_USAGE, "no load was sent")
    if not end.has_run:
        found = RunVerdict(0)
    elif found is None:
        return RunVerdict(EXIT_INCOMPLETE, "there is no report")
    elif found.code == EXIT_INCOMPLETE:
        return found
    elif end.has_crashed:
        return RunVerdict(EXIT_INCOMPLETE, "a part of the load or of the harness failed: see the log")
    elif end.is_uploaded is False:
        return RunVerdict(EXIT_INCOMPLETE, "the run was not copied to the destination of --upload")
    elif found.is_of_failures:
        found = replace(found, code=end.code_on_error) if end.code_on_error else RunVerdict(0)
    if not found.code and end.given:
        return RunVerdict(end.given, "the locustfile has set it (process_exit_code)")
    return found
