"""Commands of this package in child processes, which use neither the time nor the memory of the caller."""

import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import Any, Self

import gevent
from gevent import get_hub
from gevent.event import AsyncResult
from gevent.fileobject import FileObjectPosix
from gevent.monkey import get_original
from gevent.os import fork_and_watch, waitpid

from llm_locust.host import reason_of
from llm_locust.swarm.process.event_loop import off_the_hub

#: Search path of the package, appended last, so that neither the working directory nor the package's
#: neighbours can shadow a module of the standard library.
_PLACE = Path(__file__).parents[3]
_COMMAND = """\
import sys
sys.path.append(sys.argv.pop(1))
from llm_locust.report.output import block_pandas_import
block_pandas_import()
from {module} import main
sys.exit(main())
"""

#: Variables that Python, its libraries and the C library read. No other is passed on: it may be a secret.
_PASSED_ON = {"PATH", "HOME", "LANG", "TZ", "TMPDIR", "VIRTUAL_ENV"}
_PASSED_ON_PREFIXES = ("LC_", "LD_", "DYLD_", "PYTHON", "MALLOC_", "ARROW_", "OMP_", "OPENBLAS_")

STDOUT, STDERR = 1, 2

#: Longer than a killed process takes to exit. Without a bound, gevent reports the wait as a deadlock.
_KILLED_S = 60.0

#: Longest wait for the last lines of a process that has ended.
_LAST_WORDS_S = 2.0


#: The module that makes reports.
REPORT_COMMANDS = "llm_locust.report.commands"

#: Variable with the socket of the process that makes reports, in a container of its own.
REPORT_SOCKET = "LLM_LOCUST_REPORT_SOCKET"


class ElsewhereError(ValueError):
    """A process that did not run to its end; the text says why, for a line that begins with "the process"."""


class LateError(ElsewhereError):
    """A process that exceeded its time limit."""


def last_words(output: bytes) -> str:
    """The end of what a process has said, as one line."""
    return " ".join(output.decode(errors="replace").split())[-500:]


def passed_on(environ: Mapping[str, str], prefixes: Sequence[str] = ()) -> dict[str, str]:
    """Environment for a child process; ``prefixes`` name more variables that it needs."""
    wanted = (*_PASSED_ON_PREFIXES, *prefixes)
    return {k: v for k, v in environ.items() if k in _PASSED_ON or k.startswith(wanted)}


def run_elsewhere(
    module: str,
    words: Sequence[str],
    *,
    heard: Collection[int] = (STDOUT,),
    prefixes: Sequence[str] = (),
    within_s: float | None = None,
) -> tuple[int, bytes]:
    """Run ``main()`` of a module of this package with ``words`` while other greenlets run.

    A report is made by the server at :data:`REPORT_SOCKET`, if there is that variable.

    A Ctrl-C in the terminal does not reach the process, and it goes on if this one is killed. Call it in the
    main thread, whose event loop receives the signal that a child has ended.

    Args:
        heard: descriptors whose output is returned; standard output is lost if it is not among them.
        prefixes: of further environment variables that it needs.
        within_s: time limit, after which it is killed.

    Returns:
        The exit code, or minus the number of the signal that ended it, and the output.

    Raises:
        ElsewhereError: it could not be started.
        LateError: it was killed after ``within_s``.
    """
    try:
        if (path := os.environ.get(REPORT_SOCKET)) and module == REPORT_COMMANDS:
            found = _asked_for(Path(path), words, heard, within_s)
            if found is not None:
                return found
        ours, theirs = os.pipe()
        try:
            pid = _spawn(module, words, dict.fromkeys(heard, theirs), passed_on(os.environ, prefixes))
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        late = None if within_s is None else gevent.spawn_later(within_s, _kill, pid)
        try:
            text = off_the_hub(_read_to_end, ours)
        finally:
            if late is not None:
                late.kill()
        code = os.waitstatus_to_exitcode(waitpid(pid, 0)[1])
        if late is not None and late.value is True and code == -SIGKILL:
            raise LateError(f"was killed because it had not ended within {within_s:,.0f} s")
        return code, text
    except OSError as e:
        raise ElsewhereError(f"cannot be started: {reason_of(e)}") from e


def _asked_for(
    path: Path, words: Sequence[str], heard: Collection[int], within_s: float | None
) -> tuple[int, bytes] | None:
    """As :func:`run_elsewhere`, by the server at ``path``; None for a command that it does not run."""
    from llm_locust.report.serving import COMMANDS, ReportRequest, ask  # not on a worker

    if words[0] not in COMMANDS:
        return None
    done = ask(path, ReportRequest(list(words), list(heard)), within_s)
    if done is None:
        raise LateError(f"was killed because it had not ended within {within_s:,.0f} s")
    return done


class Child:
    """A process of this package that runs until it is ended.

    Greenlets read its output line by line. A Ctrl-C in the terminal does not reach it. Create it in the main
    thread, as for :func:`run_elsewhere`.

    Args:
        on_line: called with each line of its standard output, without the line end.
        on_error_line: called with each line of its standard error.
        on_end: called with its exit code, or minus the number of the signal that ended it.
        variables: further environment variables that it needs.

    Raises:
        OSError: it could not be started.
    """

    def __init__(
        self,
        module: str,
        words: Sequence[str],
        *,
        on_line: Callable[[bytes], None],
        on_error_line: Callable[[bytes], None],
        on_end: Callable[[int], None] = lambda _: None,
        variables: Collection[str] = (),
    ) -> None:
        environ = passed_on(os.environ) | {k: v for k, v in os.environ.items() if k in variables}
        self._ended: AsyncResult[int] = AsyncResult()
        self._hear_end = on_end
        with _Pipes((STDOUT, STDERR)) as pipes:
            self.pid = _spawn(module, words, pipes.theirs, environ, self._on_reaped)
            ours = pipes.take_ours()
        hear = {STDOUT: on_line, STDERR: on_error_line}
        self._readers = [gevent.spawn(_read_lines, pipe, hear[fd]) for fd, pipe in ours.items()]

    def wait(self, within_s: float | None = None) -> int | None:
        """Wait for the process and its output; return its exit code, or minus the number of the signal.

        None if it still runs after ``within_s``.
        """
        try:
            code = self._ended.get(timeout=within_s)
        except gevent.Timeout:
            return None
        gevent.joinall(self._readers, timeout=_LAST_WORDS_S)  # a child of its own may hold the pipes open
        return code

    def end(self, within_s: float) -> int:
        """Ask it to end (SIGTERM); kill it after ``within_s``. Returns as :meth:`wait`."""
        self._signal(SIGTERM)
        code = self.wait(within_s)
        if code is None:
            self._signal(SIGKILL)
            code = self.wait(_KILLED_S)
            assert code is not None
        return code

    def _on_reaped(self, watcher: Any) -> None:
        code = os.waitstatus_to_exitcode(watcher.rstatus)
        self._ended.set(code)
        gevent.spawn(self._hear_end, code)  # this is the event loop's own greenlet, which must not block

    def _signal(self, number: Signals) -> None:
        """Send a signal. Until the process is reaped, its id belongs to no other process."""
        if not self._ended.ready():
            os.kill(self.pid, number)


class _Pipes:
    """A pipe for each of a child's descriptors. Ends that nobody has taken are closed with the block."""

    def __init__(self, fds: Collection[int]) -> None:
        made = {fd: os.pipe() for fd in fds}
        self._ours = {fd: ends[0] for fd, ends in made.items()}
        self.theirs = {fd: ends[1] for fd, ends in made.items()}

    def take_ours(self) -> dict[int, int]:
        """Take the read ends, by the child's descriptor."""
        taken, self._ours = self._ours, {}
        return taken

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for end in (*self._ours.values(), *self.theirs.values()):
            os.close(end)


def _spawn(
    module: str,
    words: Sequence[str],
    theirs: Mapping[int, int],
    environ: Mapping[str, str],
    on_end: Callable[[Any], None] | None = None,
) -> int:
    """Start the process with the pipe ends in ``theirs`` as its descriptors; return its id.

    Uses ``posix_spawn``, which starts a program without copying this process. A fork would hold the event
    loop longer the more memory there is, and would run Python with threads cut off midway.
    """
    actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    if STDOUT not in theirs:
        actions.append((os.POSIX_SPAWN_OPEN, STDOUT, os.devnull, os.O_WRONLY, 0))
    spawn = partial(
        get_original("os", "posix_spawn"),
        sys.executable,
        [sys.executable, "-P", "-c", _COMMAND.format(module=module), str(_PLACE), *words],
        environ,
        file_actions=[*actions, *((os.POSIX_SPAWN_DUP2, end, fd) for fd, end in sorted(theirs.items()))],
        setsid=True,
    )
    get_hub().loop.install_sigchld()  # otherwise the end of a child that exits before that would be missed
    return int(fork_and_watch(on_end, fork=spawn))


def _kill(pid: int) -> bool:
    """Kill a process that :func:`_spawn` started, and its children; return whether it existed."""
    try:
        os.killpg(pid, SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _read_lines(pipe: int, hear: Callable[[bytes], None]) -> None:
    with FileObjectPosix(pipe, "rb") as file:
        for line in file:
            hear(line.removesuffix(b"\n"))


def _read_to_end(pipe: int) -> bytes:
    with os.fdopen(pipe, "rb") as file:
        return file.read()
