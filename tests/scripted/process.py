"""The test's side: start the server's process, ask it for its log, end it; addresses without one."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from scripted.script import (
    Command,
    Log,
    Options,
    RefuseBy,
    Script,
    ServedConnection,
    ServedRequest,
    SlowRead,
    TlsFiles,
)


@contextmanager
def refusing_port(host: str = "127.0.0.1") -> Iterator[int]:
    """A port that is held but not listened on: a connection to it is refused at once."""
    with socket.socket(_family(host)) as holder:
        holder.bind((host, 0))
        yield holder.getsockname()[1]


@contextmanager
def silent_port(host: str = "127.0.0.1") -> Iterator[int]:
    """A port whose accept queue is full: a connection to it is neither made nor refused (Linux)."""
    with socket.socket(_family(host)) as listener, socket.socket(_family(host)) as only_place:
        listener.bind((host, 0))
        listener.listen(0)
        only_place.connect(listener.getsockname())
        yield listener.getsockname()[1]


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


_FOLDER = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class ScriptedServer:
    """A server in a process of its own. Made by :func:`scripted_server`."""

    host: str
    port: int
    tls: TlsFiles | None
    _process: "subprocess.Popen[bytes]"

    @property
    def url(self) -> str:
        """The base URL, without a path."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    def log(self) -> list[ServedRequest]:
        """The requests so far, as of now: a client may know a response's end before ``ended_ns`` is set."""
        return self._ask(Command("log")).requests

    def connections(self) -> list[ServedConnection]:
        """The connections so far."""
        return self._ask(Command("log")).connections

    def wait_ended(self, count: int, timeout_s: float = 120) -> list[ServedRequest]:
        """The log once ``count`` requests have ended.

        Raises:
            TimeoutError: they have not within ``timeout_s``.
        """
        log = self._ask(Command("wait", ended=count, timeout_s=timeout_s))
        if log.ended < count:
            raise TimeoutError(
                f"{log.ended} of {count} requests have ended after {timeout_s} s: {log.requests}"
            )
        return log.requests

    def wait_closed(self, count: int, timeout_s: float = 120) -> list[ServedConnection]:
        """The connections once ``count`` of them are closed.

        Raises:
            TimeoutError: they are not within ``timeout_s``.
        """
        log = self._ask(Command("wait", closed=count, timeout_s=timeout_s))
        if log.closed < count:
            raise TimeoutError(f"{log.closed} of {count} connections are closed after {timeout_s} s")
        return log.connections

    def forget(self) -> None:
        """Close every connection and empty the log, as if the server had just started."""
        self._ask(Command("forget"))

    def _ask(self, command: Command) -> Log:
        _tell(self._process, msgspec.json.encode(command))
        return msgspec.json.decode(_answer(self._process), type=Log)


@contextmanager
def scripted_server(
    *,
    tls: TlsFiles | None = None,
    mutual: bool = False,
    host: str = "127.0.0.1",
    port: int = 0,
    routes: Mapping[str, Script] | None = None,
    refuse: int = 0,
    refuse_by: RefuseBy = "reset",
    slow_read: SlowRead | None = None,
    nodelay: bool = True,
) -> Iterator[ScriptedServer]:
    """A server on ``host``, ended with the block.

    Args:
        tls: serve HTTPS with these files; with ``mutual`` only to clients that have a certificate.
        port: 0 takes a free one.
        routes: scripts for requests that bring none, by path without query, ``*`` for any other path.
        refuse: so many first connections are, right after they are accepted, reset, closed, or left
            without a word (``refuse_by``); a reset may come so soon that connecting itself fails.
            For a refusal by the kernel see ``refusing_port``.
        slow_read: read requests slowly, so that a sender has to wait.
        nodelay: set TCP_NODELAY; without it a small packet waits for the acknowledgement of the one before.
    """
    scripts = {path: list(script) for path, script in (routes or {}).items()}
    options = Options(host, port, tls, mutual, scripts, refuse, refuse_by, slow_read, nodelay)
    environment = os.environ | {"PYTHONPATH": str(_FOLDER)}
    command = [sys.executable, "-m", "scripted.server"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment) as process:
        try:
            _tell(process, msgspec.json.encode(options))
            yield ScriptedServer(host, int(_answer(process)), tls, process)
        finally:
            _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    with suppress(BrokenPipeError):
        _stdin(process).close()
    try:
        process.wait(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()


def _tell(process: "subprocess.Popen[bytes]", line: bytes) -> None:
    with suppress(BrokenPipeError):  # a dead server is reported where its answer is missing
        _stdin(process).write(line + b"\n")
        _stdin(process).flush()


def _stdin(process: "subprocess.Popen[bytes]") -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin


def _answer(process: "subprocess.Popen[bytes]") -> bytes:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the scripted server died with status {process.wait()}: see its standard error")
    return line
