"""``python -m llm_locust.report.serving SOCKET``: makes the reports that another process asks for.

In a container of its own, beside the process that has the run: a report that runs out of memory then takes
neither that process nor the run with it. Both ends are here. One request is a line of JSON, as is its answer;
a connection that ends without an answer is a report that was killed, with the server or by it.
"""

import argparse
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from types import FrameType

import msgspec

#: Of :mod:`llm_locust.report.commands` those that may be asked for: they only read and write run directories.
COMMANDS = frozenset({"finish", "join", "so-far", "compare"})

#: Longest wait for a server that is not there: its container may have to be restarted first.
CONNECT_WITHIN_S = 60.0

_RETRY_S = 0.5
_LOOK_S = 0.5

#: Longest line of a request; an answer has a verdict and some reasons.
_MOST_BYTES = 1 << 20


class ReportRequest(msgspec.Struct, frozen=True):
    """A command of :data:`COMMANDS` and its words, and the descriptors whose output is wanted."""

    words: list[str]
    heard: list[int]


class ReportAnswer(msgspec.Struct, frozen=True):
    """The command's exit code, or minus the number of the signal that ended it, and its output."""

    code: int
    said: bytes


_REQUEST = msgspec.json.Decoder(ReportRequest)
_ANSWER = msgspec.json.Decoder(ReportAnswer)


def ask(path: Path, request: ReportRequest, within_s: float | None) -> tuple[int, bytes] | None:
    """Have a command run by the server at ``path``; other greenlets run meanwhile if sockets are patched.

    Returns:
        Its exit code and its output; minus SIGKILL if server and command were killed. None if it was not
        done within ``within_s``: it is killed then.

    Raises:
        OSError: no server is there within :data:`CONNECT_WITHIN_S`, or its answer cannot be read.
    """
    until = None if within_s is None else monotonic() + within_s
    with _connected(path) as connection:
        connection.sendall(msgspec.json.encode(request) + b"\n")
        try:
            line = _line(connection, until)
        except TimeoutError:
            return None
        except ConnectionError:
            line = b""
    if not line:
        return -signal.SIGKILL, b""
    try:
        answer = _ANSWER.decode(line)
    except msgspec.MsgspecError as e:
        raise OSError(f"the answer at {str(path)!r} is not one of a report: {e}") from e
    return answer.code, answer.said


def _connected(path: Path) -> socket.socket:
    deadline = monotonic() + CONNECT_WITHIN_S
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(path))
            return connection
        except OSError as e:
            connection.close()
            if monotonic() > deadline:
                raise OSError(e.errno, f"no process makes reports at {str(path)!r}: {e.strerror or e}") from e
        sleep(_RETRY_S)


def _line(connection: socket.socket, until: float | None) -> bytes:
    """The peer's line; empty if it closes the connection before its end (raises OSError, TimeoutError)."""
    line = b""
    while not line.endswith(b"\n"):
        connection.settimeout(None if until is None else max(0.001, until - monotonic()))
        more = connection.recv(1 << 16)
        if not more or len(line) > _MOST_BYTES:
            return b""
        line += more
    return line


def serve(path: Path) -> None:
    """Run what is asked for, until the process is ended (raises OSError).

    What is left of an earlier server is removed; any other file at the path stays, and is an error.
    """
    if path.is_socket():
        path.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen()
        while True:
            connection, _ = listener.accept()
            Thread(target=_handle, args=(connection,), daemon=True).start()


def _handle(connection: socket.socket) -> None:
    with connection, suppress(OSError):
        try:
            asked = _REQUEST.decode(_line(connection, None))
        except msgspec.MsgspecError:
            return
        if not COMMANDS.issuperset(asked.words[:1]):
            answer = ReportAnswer(2, b"")
        elif (found := _run(connection, asked)) is None:
            return
        else:
            answer = found
        connection.settimeout(None)
        connection.sendall(msgspec.json.encode(answer) + b"\n")


def _run(connection: socket.socket, asked: ReportRequest) -> ReportAnswer | None:
    """Run a command; None if who asked has gone, with which it is killed."""
    command = [sys.executable, "-P", "-m", "llm_locust.report.commands", *asked.words]
    out, err = (subprocess.PIPE if fd in asked.heard else None for fd in (1, 2))
    with (
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err) as process,
        selectors.DefaultSelector() as peer,
    ):
        peer.register(connection, selectors.EVENT_READ)
        while True:
            try:
                outputs = process.communicate(timeout=_LOOK_S)
            except subprocess.TimeoutExpired:
                if peer.select(0):  # it sends nothing more: the end of the connection
                    process.kill()
                    return None
            else:
                return ReportAnswer(process.returncode, b"".join(text for text in outputs if text))


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM, which gives 0; 1 where the socket cannot be made."""
    parser = argparse.ArgumentParser(
        prog="python -m llm_locust.report.serving",
        description="Make the reports that another process on this machine asks for, as another container.",
    )
    parser.add_argument("socket", type=Path, metavar="SOCKET", help="path of the socket to listen on")
    args = parser.parse_args(argv)

    def leave(number: int, frame: FrameType | None) -> None:
        os._exit(0)  # its commands are waited for by nobody any more

    signal.signal(signal.SIGTERM, leave)  # process 1 of a container is not ended by it otherwise
    try:
        serve(args.socket)
    except OSError as e:
        print(f"no reports at {str(args.socket)!r}: {e.strerror or e}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
