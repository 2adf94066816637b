"""Processes of a Python module that start in milliseconds: forks of one that has imported it.

A whole run has up to nine processes. Each would import Locust, Arrow and this package, which takes more CPU
time than a short run itself. From the command line on, a warm start is a cold one; that a cold one works is
shown by the runs of ``make test``, which ask for it.
"""

import atexit
import json
import os
import random
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any

#: What is imported before a module's first process starts.
PRELOADED = {
    "locust": (
        *("locust.main", "llm_locust.swarm.plugin", "llm_locust.swarm.users.scenario_user"),
        *("llm_locust.swarm.users.openai_user", "llm_locust.swarm.users.open_loop"),
        *("llm_locust.swarm.users.conversation", "llm_locust.swarm.roles.master"),
    ),
    "llm_locust": ("llm_locust.cli.report", "llm_locust.cli.compare", "llm_locust.cli.merge", "pandas"),
    "llm_locust.sim": ("llm_locust.sim.command", "llm_locust.sim.gateway"),
}

#: What a module drew for its process as it was imported, and how a fork draws its own.
_OWN = (
    ("llm_locust.swarm.channel.securing", "_PARENT", os.getpid),
    ("llm_locust.swarm.channel.securing", "_FAMILY_SECRET", lambda: secrets.token_bytes(32)),
    ("llm_locust.core.replacing", "_STARTED_S", time.time),
)

_LENGTH = 4

#: As they are before gevent is imported, whose own wait for its event loop.
_FORK, _WAITPID, _CLOSE, _POLL = os.fork, os.waitpid, os.close, select.poll

#: A run that the tests have left has this long to end by SIGTERM.
_LEAVING_MS = 10_000


class WarmProcess:
    """A forked process with the part of ``subprocess.Popen`` that the tests use; its stderr is a pipe."""

    def __init__(
        self,
        module: str,
        words: Sequence[str],
        cwd: Path,
        environ: Mapping[str, str],
        stdout: IO[bytes],
    ) -> None:
        asked = {"words": [*words], "cwd": str(cwd), "environ": dict(environ)}
        self._news, theirs = socket.socketpair()
        read, write = os.pipe()
        try:
            _start(module, asked, [stdout.fileno(), write, theirs.fileno()])
        finally:
            theirs.close()
            os.close(write)
        self.stderr = os.fdopen(read, errors="replace")
        told = self._news.recv(_LENGTH)
        if not told:  # a process 0 would be all of the tests' own group
            raise ChildProcessError(f"the process that has imported {module} could not start another one")
        self.pid = int.from_bytes(told)
        self._code: int | None = None
        self._reading = threading.Lock()

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout_s: float) -> int:
        with self._reading:
            if self._code is None:
                self._news.settimeout(max(timeout_s, 1e-3))
                try:
                    came = self._news.recv(_LENGTH)
                except TimeoutError:
                    raise subprocess.TimeoutExpired(str(self.pid), timeout_s) from None
                if not came:
                    raise ChildProcessError(f"who waits for process {self.pid} was killed")
                self._code = int.from_bytes(came, signed=True)
                self._news.close()
        return self._code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


_sources: dict[str, tuple[subprocess.Popen[bytes], socket.socket]] = {}
_starting = threading.Lock()


def _start(module: str, asked: dict[str, Any], descriptors: list[int]) -> None:
    with _starting:
        if module not in _sources:
            ours, theirs = socket.socketpair()
            with theirs:
                command = [sys.executable, __file__, module, str(theirs.fileno())]
                source = subprocess.Popen(
                    command,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,  # a Ctrl-C of the terminal is for the tests
                )
            _sources[module] = source, ours
            atexit.register(_end, source, ours)
        told = json.dumps(asked).encode()
        connection = _sources[module][1]
        socket.send_fds(connection, [len(told).to_bytes(_LENGTH)], descriptors)
        connection.sendall(told)


def _end(source: subprocess.Popen[bytes], connection: socket.socket) -> None:
    connection.close()
    source.wait()


def _serve(connection: socket.socket) -> list[str] | None:
    """Fork for each request; gives the words of its command in the forked process, None at the end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        length, descriptors, _, _ = socket.recv_fds(connection, _LENGTH, 3)
        if not length:
            return None
        told = b""
        while len(told) < int.from_bytes(length):
            told += connection.recv(int.from_bytes(length) - len(told))
        if _FORK() == 0:
            break
        for descriptor in descriptors:
            _CLOSE(descriptor)
    # One process waits for the end of the other and tells it: only a parent can.
    connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    stdout, stderr, news = descriptors
    asked = json.loads(told)
    pid = _FORK()
    if pid:
        os.write(news, pid.to_bytes(_LENGTH))
        for descriptor in (stdout, stderr):
            _CLOSE(descriptor)
        _end_without_tests(pid, news)
        _, status = _WAITPID(pid, 0)
        with suppress(BrokenPipeError):
            os.write(news, os.waitstatus_to_exitcode(status).to_bytes(_LENGTH, signed=True))
        os._exit(0)
    _CLOSE(news)
    _become(asked, stdout, stderr)
    return list(asked["words"])


def _end_without_tests(pid: int, news: int) -> None:
    """Wait for the end of a process; end it, and all of its group, if the tests are gone before."""
    ended = os.pidfd_open(pid)
    both = _POLL()
    both.register(ended, select.POLLIN)
    both.register(news, select.POLLIN)  # readable only at its end: nothing is sent this way
    if any(descriptor == ended for descriptor, _ in both.poll()):
        return
    both.unregister(news)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(pid, number)
        if both.poll(_LEAVING_MS):
            break
    with suppress(ProcessLookupError):  # what the process itself has left
        os.killpg(pid, signal.SIGKILL)


def _become(asked: dict[str, Any], stdout: int, stderr: int) -> None:
    os.setsid()
    for descriptor, number in ((stdout, 1), (stderr, 2)):
        os.dup2(descriptor, number)
        _CLOSE(descriptor)
    os.chdir(asked["cwd"])
    sys.path[0] = asked["cwd"]
    os.environ.clear()
    os.environ.update(asked["environ"])
    random.seed()
    for module, name, draw in _OWN:
        if module in sys.modules:
            setattr(sys.modules[module], name, draw())
    if "gevent" in sys.modules:
        import_module("gevent").reinit()


if __name__ == "__main__":
    _module, _descriptor = sys.argv[1:]
    _connection = socket.socket(fileno=int(_descriptor))  # before gevent makes all others its own
    for _each in PRELOADED[_module]:
        import_module(_each)
    _words = _serve(_connection)
    if _words is not None:
        import runpy

        sys.argv = ["", *_words]
        sys.orig_argv = [sys.executable, "-m", _module, *_words]  # a worker starts itself anew with it
        runpy.run_module(_module, run_name="__main__", alter_sys=True)
