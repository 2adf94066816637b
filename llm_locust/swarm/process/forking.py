"""Workers that ``--processes`` forks: they end with their parent, and meet it on a port of their own."""

import ctypes
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any

import gevent

from llm_locust.host.ports import ephemeral_ports
from llm_locust.swarm.process.loops import spawn_loop

logger = logging.getLogger(__name__)

#: Set at import: processes forked by ``--processes`` inherit the parent's value.
_PARENT = os.getpid()

_LOOK_INTERVAL_S = 1.0
_PR_SET_PDEATHSIG = 1

LOOPBACK = "127.0.0.1"

#: Locust's options of the channel, and their defaults.
_CHANNEL = {"master_host": LOOPBACK, "master_port": 5557, "master_bind_host": "*", "master_bind_port": 5557}
_VARIABLES = (
    *("LOCUST_MASTER_NODE_HOST", "LOCUST_MASTER_NODE_PORT"),
    *("LOCUST_MASTER_BIND_HOST", "LOCUST_MASTER_BIND_PORT"),
)

#: Ports to choose from, if the system does not say which it gives to connections.
_FIRST_PORT, _LAST_PORT = 20_000, 30_000
_MOST_TRIES = 100


def forked() -> bool:
    """Whether this process was forked by another one, as ``--processes`` does."""
    return os.getpid() != _PARENT


def fork() -> int:
    """As gevent's; the child is told to end (SIGTERM) as soon as its parent has ended, however it ends."""
    pid: int = gevent.fork()
    if pid == 0 and _told_by_kernel() and os.getppid() != _PARENT:  # it has ended in between
        os.kill(os.getpid(), signal.SIGTERM)
    return pid


def parent_is_gone() -> bool:
    """Whether this process was forked by one that has ended."""
    return forked() and os.getppid() != _PARENT


def end_with_parent() -> None:
    """Let a forked worker end when its parent has ended, where the kernel does not see to it."""
    if forked() and not sys.platform.startswith("linux"):
        spawn_loop(_follow_parent, "the watch on the parent process")


def meet_on_loopback(options: Any, words: Sequence[str]) -> None:
    """Choose a free port of the loopback interface for a master and its forked workers, if nothing is said of
    it, and they alone can know the run's secret.

    Two runs on one machine so do not meet.

    Args:
        options: Locust's, which are changed.
        words: the command line.
    """
    if not getattr(options, "processes", None) or getattr(options, "worker", False):
        return
    said = any(word.startswith(("--master-", "--expect-workers")) for word in words)
    said = said or any(name in os.environ for name in _VARIABLES)
    said = said or any(getattr(options, name, default) != default for name, default in _CHANNEL.items())
    if said or getattr(options, "swarm_secret_env", None):
        return
    options.master_bind_host = LOOPBACK
    options.master_port = options.master_bind_port = free_port()


def free_port() -> int:
    """A port of the loopback interface that is free, and not one that the kernel gives to connections: a
    worker that looks for its master there would be connected to itself."""
    given = ephemeral_ports()
    first, last = (_FIRST_PORT, _LAST_PORT) if given is None else (max(1_024, given.first // 2), given.first)
    if last - first < _MOST_TRIES:
        first, last = _FIRST_PORT, _LAST_PORT
    for _ in range(_MOST_TRIES):
        port = first + secrets.randbelow(last - first)
        with suppress(OSError), closing(socket.socket()) as probe:
            probe.bind((LOOPBACK, port))
            return port
    return _CHANNEL["master_port"]  # type: ignore[return-value]


def _told_by_kernel() -> bool:
    """Let Linux send SIGTERM to this process when its parent ends."""
    if not sys.platform.startswith("linux"):
        return False
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    return True


def _follow_parent() -> None:
    while not parent_is_gone():
        gevent.sleep(_LOOK_INTERVAL_S)
    os.kill(os.getpid(), signal.SIGTERM)
