"""Stand-in for Python and this package's commands: asks a warm process for a fork, and is it to others.

It is copied to where the sockets of the warm processes are, under the names that it stands for. What no warm
process has imported is run by Python itself. It imports as little as it can: it is started a thousand times.
"""

import marshal
import os
import resource
import signal
import socket
import sys

_PLACE = os.path.dirname(os.path.abspath(__file__))
_LENGTH = 4

#: Who has imported what runs a module.
_OF_MODULE = {
    "llm_locust": "llm_locust",
    "llm_locust.sim": "llm_locust.sim",
    "llm_locust.swarm.main": "locust",
    "llm_locust.report.commands": "report",
}

#: What a name in the search path of programs stands for.
_OF_NAME = {"llm-locust": "llm_locust", "locust": "locust"}

#: What a process inherits.
_LIMITS = (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def _asked(name: str, words: list[str]) -> tuple[str, dict[str, object]] | None:
    """The warm process that can run Python's arguments, and what it is to run."""
    safe = words[:1] == ["-P"]
    flag, what = [*words[safe:], "", ""][:2]
    asked: dict[str, object] = {
        "words": words[safe + 2 :],
        "safe": safe,
        "cwd": os.getcwd(),
        "environ": dict(os.environ),
        "leaving_ms": 0,
        "stand_in": os.getpid(),
        "limits": {number: resource.getrlimit(number) for number in _LIMITS},
    }
    if name == "locust-code":
        return "locust", asked | {"words": words[1:], "code": words[0]}
    if name in _OF_NAME:
        return what, asked | {"module": what}
    if flag == "-m" and what in _OF_MODULE:
        return _OF_MODULE[what], asked | {"module": what}
    if flag == "-c" and "block_pandas_import()\n" in what:
        return "report", asked | {"code": what}
    return None


def _proxy(source: str, asked: dict[str, object]) -> int | None:
    """Exit code of the fork, or minus the signal that ended it; None if there is no such warm process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(os.path.join(_PLACE, f"{source}.sock"))
        except OSError:
            return None
        told = marshal.dumps(asked)
        socket.send_fds(connection, [len(told).to_bytes(_LENGTH)], [0, 1, 2])
        connection.sendall(told)
        pid = _told(connection)
        for number in _FORWARDED:
            signal.signal(number, lambda number, _: os.kill(pid, number))
        return _told(connection)


def _told(connection: socket.socket) -> int:
    """A number of the fork. Without one it would pass for the process group 0, or for one that ended well."""
    heard = connection.recv(_LENGTH, socket.MSG_WAITALL)
    if len(heard) < _LENGTH:
        sys.exit("who waits for the fork of a warm process was killed")
    return int.from_bytes(heard, signed=True)


def main() -> None:
    name = os.path.basename(sys.argv[0])
    words = [*(["-m", _OF_NAME[name]] if name in _OF_NAME else []), *sys.argv[1:]]
    asked = _asked(name, words)
    code = None if asked is None else _proxy(*asked)
    if code is None:
        os.execv(sys.executable, [sys.executable, *words])
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
