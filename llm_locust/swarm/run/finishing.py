"""Report of a run, made in a process of its own, which uses neither the time nor the memory of the master."""

import logging
from pathlib import Path
from signal import SIGKILL, strsignal

import msgspec

from llm_locust.live.ending import live_end
from llm_locust.live.store import LiveStore
from llm_locust.metrics.summary_types.summary import Summary, read_summary
from llm_locust.metrics.verdict import RunVerdict
from llm_locust.report.inputs.live_figures import write_live_end
from llm_locust.report.run.build import Report
from llm_locust.report.run.finish import FinishAnswer, advice
from llm_locust.store import REQUESTS_FILE, SUMMARY_FILE
from llm_locust.store.parts import parts_of
from llm_locust.store.segments import kept_bytes
from llm_locust.swarm.process.children import LateError, run_elsewhere
from llm_locust.swarm.process.offload import off_the_hub

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
        logger.warning("could not write the last live figures: %s", e.strerror or e)


def finish_elsewhere(run: Path, *, allow_incomplete: bool = False) -> Report:
    """Run :func:`llm_locust.report.run.finish.finish_run` in its own process while other greenlets run.

    Call it in the main thread, see :func:`~llm_locust.swarm.process.children.run_elsewhere`.

    Raises:
        FinishError: it could not be started, was killed, took longer than :func:`patience_s`, or reported why
            there is no report.
    """
    return _report_elsewhere("llm_locust.report.run.finish", run, allow_incomplete, patience_s(run))


def join_elsewhere(folder: Path, *, allow_incomplete: bool = False) -> Report:
    """As :func:`finish_elsewhere`, one report of all parts of a restartable run (raises FinishError)."""
    within_s = sum(map(patience_s, parts_of(folder)), PATIENCE_S)
    return _report_elsewhere("llm_locust.report.run.join", folder, allow_incomplete, within_s)


def _report_elsewhere(module: str, run: Path, allow_incomplete: bool, within_s: float) -> Report:
    words = ["--allow-incomplete"] * allow_incomplete
    try:
        code, said = run_elsewhere(module, [*words, "--", str(run)], within_s=within_s)
    except LateError as e:
        raise FinishError(f"the process that makes it {e}; {advice(run)}") from e
    except OSError as e:
        raise FinishError(
            f"the process that makes it cannot be started: {e.strerror or e}; {advice(run)}"
        ) from e
    found = _judge(code, said, run)
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


def _judge(code: int, said: bytes, run: Path) -> RunVerdict | None:
    """Verdict on the run (raises FinishError if there is no report)."""
    try:
        answer = msgspec.json.decode(said, type=FinishAnswer)
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
