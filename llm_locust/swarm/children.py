"""Commands of this package in processes of their own: neither their work nor their memory is the caller's."""

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from gevent import get_hub
from gevent.monkey import get_original
from gevent.os import fork_and_watch, waitpid

from llm_locust.swarm.offload import off_the_hub

#: The package is looked for in this place last, so that neither the directory that this process was
#: started in nor the package's neighbours can hide a module of the standard library.
_PLACE = Path(__file__).parents[2]
_COMMAND = "import sys; sys.path.append(sys.argv.pop(1)); from {module} import main; sys.exit(main())"

#: What Python, its libraries and the C library read. Nothing else goes along: it may be a secret.
_PASSED_ON = {"PATH", "HOME", "LANG", "TZ", "TMPDIR", "VIRTUAL_ENV"}
_PASSED_ON_PREFIXES = ("LC_", "LD_", "DYLD_", "PYTHON", "MALLOC_", "ARROW_", "OMP_", "OPENBLAS_")

STDOUT, STDERR = 1, 2


def passed_on(environ: Mapping[str, str], prefixes: Sequence[str] = ()) -> dict[str, str]:
    """The part of an environment that a child gets; ``prefixes`` name more variables that it needs."""
    wanted = (*_PASSED_ON_PREFIXES, *prefixes)
    return {k: v for k, v in environ.items() if k in _PASSED_ON or k.startswith(wanted)}


def run_elsewhere(
    module: str,
    words: Sequence[str],
    *,
    heard: Collection[int] = (STDOUT,),
    prefixes: Sequence[str] = (),
) -> tuple[int, bytes]:
    """Run ``main()`` of a module of this package with ``words``; other greenlets run on.

    A Ctrl-C in the terminal does not reach that process, and it goes on when this one is killed. To be
    called in the main thread, whose event loop is the one that hears of processes that end.

    Args:
        heard: what it writes there is given back; standard output is lost where it is not heard.
        prefixes: of variables of the environment that it needs beside the usual ones.

    Returns:
        The exit code, below 0 the signal that ended it, and what it said.

    Raises:
        OSError: it could not be started.
    """
    pid, said = _start(module, words, heard, passed_on(os.environ, prefixes))
    text = off_the_hub(_read_to_end, said)
    return os.waitstatus_to_exitcode(waitpid(pid, 0)[1]), text


def _start(
    module: str, words: Sequence[str], heard: Collection[int], environ: Mapping[str, str]
) -> tuple[int, int]:
    """Start the process; gives its id, and the end of a pipe that its words come from.

    By ``posix_spawn``: it starts a program without copying this process, which would hold the event
    loop the longer the more memory there is, and run Python where threads have been cut off midway.
    """
    said, theirs = os.pipe()
    actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    if STDOUT not in heard:
        actions.append((os.POSIX_SPAWN_OPEN, STDOUT, os.devnull, os.O_WRONLY, 0))
    spawn = partial(
        get_original("os", "posix_spawn"),
        sys.executable,
        [sys.executable, "-P", "-c", _COMMAND.format(module=module), str(_PLACE), *words],
        environ,
        file_actions=[*actions, *((os.POSIX_SPAWN_DUP2, theirs, fd) for fd in sorted(heard))],
        setsid=True,
    )
    get_hub().loop.install_sigchld()  # a child that ended before it would never be heard of
    try:
        return fork_and_watch(fork=spawn), said
    except BaseException:
        os.close(said)
        raise
    finally:
        os.close(theirs)


def _read_to_end(pipe: int) -> bytes:
    with os.fdopen(pipe, "rb") as file:
        return file.read()
