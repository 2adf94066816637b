"""A run's report, made by a process of its own: neither its work nor its memory is the master's."""

import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from signal import SIGKILL, strsignal
from typing import Any

import msgspec
from gevent import get_hub
from gevent.monkey import get_original
from gevent.os import fork_and_watch, waitpid

from llm_locust.report.build import Report
from llm_locust.report.finish import FinishAnswer, advice
from llm_locust.store import SUMMARY_FILE
from llm_locust.swarm.offload import off_the_hub

#: The package is looked for in this place last, so that neither the directory that this process was
#: started in nor the package's neighbours can hide a module of the standard library.
_PLACE = Path(__file__).parents[2]
_COMMAND = (
    "import sys; sys.path.append(sys.argv.pop(1)); "
    "from llm_locust.report.finish import main; sys.exit(main())"
)

#: What Python, its libraries and the C library read. Nothing else goes along: it may be a secret.
_PASSED_ON = {"PATH", "HOME", "LANG", "TZ", "TMPDIR", "VIRTUAL_ENV"}
_PASSED_ON_PREFIXES = ("LC_", "LD_", "DYLD_", "PYTHON", "MALLOC_", "ARROW_", "OMP_", "OPENBLAS_")


class FinishError(ValueError):
    """There is no report; the text says why and what to do."""


def finish_elsewhere(run: Path, *, allow_incomplete: bool = False) -> Report:
    """:func:`llm_locust.report.finish.finish_run` in a process of its own; other greenlets run on.

    A Ctrl-C in the terminal does not reach that process, and it goes on when this one is killed. To be
    called in the main thread, whose event loop is the one that hears of processes that end.

    Raises:
        FinishError: it could not be started, was killed, or said why there is no report.
    """
    try:
        pid, answers = _spawn(run, allow_incomplete)
    except OSError as e:
        raise FinishError(
            f"the process that makes it cannot be started: {e.strerror or e}; {advice(run)}"
        ) from e
    said = off_the_hub(_read_to_end, answers)
    code = os.waitstatus_to_exitcode(waitpid(pid, 0)[1])
    exit_code = _judge(code, said, run)
    return Report(off_the_hub(_read_summary, run), exit_code)


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that the report's process gets."""
    return {k: v for k, v in environ.items() if k in _PASSED_ON or k.startswith(_PASSED_ON_PREFIXES)}


def _spawn(run: Path, allow_incomplete: bool) -> tuple[int, int]:
    """Start the process; gives its id, and the end of a pipe that its answer comes from.

    By ``posix_spawn``: it starts a program without copying this process, which would hold the event
    loop the longer the more memory there is, and run Python where threads have been cut off midway.
    """
    words = [sys.executable, "-P", "-c", _COMMAND, str(_PLACE)]
    words += ["--allow-incomplete"] * allow_incomplete
    answers, theirs = os.pipe()
    spawn = partial(
        get_original("os", "posix_spawn"),
        sys.executable,
        [*words, "--", str(run)],
        passed_on(os.environ),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, theirs, 1),
        ],
        setsid=True,
    )
    get_hub().loop.install_sigchld()  # a child that ended before it would never be heard of
    try:
        return fork_and_watch(fork=spawn), answers
    except BaseException:
        os.close(answers)
        raise
    finally:
        os.close(theirs)


def _read_to_end(pipe: int) -> bytes:
    with os.fdopen(pipe, "rb") as file:
        return file.read()


def _read_summary(run: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode((run / SUMMARY_FILE).read_bytes(), type=dict[str, Any])
    except (OSError, ValueError) as e:
        raise FinishError(f"its {SUMMARY_FILE} was written and cannot be read: {e}") from e


def _judge(code: int, said: bytes, run: Path) -> int | None:
    """The report's exit code (raises FinishError where there is no report)."""
    try:
        answer = msgspec.json.decode(said, type=FinishAnswer)
    except ValueError:
        what_to_do = advice(run, out_of_memory=code == -SIGKILL)
        raise FinishError(f"the process that makes it {_end(code)}; {what_to_do}") from None
    if answer.error is not None:
        raise FinishError(answer.error)
    return answer.exit_code


def _end(code: int) -> str:
    if code >= 0:
        return f"ended with {code} before it was done"
    reason = "as when memory has run out" if -code == SIGKILL else strsignal(-code)
    return f"was ended by signal {-code} ({reason})"
