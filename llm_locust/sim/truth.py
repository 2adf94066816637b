"""The server's own logs of what happened, as JSON Lines: each request, and what was done to replicas."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec


@dataclass(slots=True, kw_only=True)
class TruthEntry:
    """One request as seen by the server, written when it is over.

    Times are CLOCK_REALTIME nanoseconds. ``token_ns`` are the times just before each token's bytes were
    passed to the socket, so that a client cannot have received one earlier; an answer without streaming has
    none. ``eos_ns`` is that of an end without text. ``output_tokens`` were sent, including such an end.
    ``status`` is None if no status line was sent. ``complete``: the whole answer was passed to the socket as
    requested. ``disconnected``: the client left before that. ``scheduled_ns`` is the start of the engine's
    first step with a part of its prompt, by the engine's clock; the time between ``received_ns`` and that is
    the wait in the queue and the engine's base time. ``cached_tokens`` of its prompt were in the prefix cache
    then; None without such a cache. ``preemptions`` is how often it lost its KV cache and was prefilled
    again. A request that no engine started has neither of the first two. ``session_replica`` is the replica
    that its session's header names, None without one. ``prefill_replica`` computed its prompt, up to
    ``prefilled_ns``, when the transfer of its KV cache began; None where ``replica`` did.
    """

    request_id: str
    replica: str | None = None
    path: str
    received_ns: int
    first_token_ns: int | None = None
    token_ns: list[int] = field(default_factory=list)
    eos_ns: int | None = None
    ended_ns: int | None = None
    input_tokens: int | None = None
    output_tokens: int = 0
    status: int | None = None
    fault: str | None = None
    complete: bool = False
    disconnected: bool = False
    scheduled_ns: int | None = None
    cached_tokens: int | None = None
    preemptions: int = 0
    session_replica: str | None = None
    prefill_replica: str | None = None
    prefilled_ns: int | None = None


class TruthError(OSError):
    """The log's file cannot be written; the text says which file and why."""


class JsonLines:
    """Appends objects to a file, each in one write, so that a kill loses no finished one.

    Args:
        path: an existing file is replaced; None: nothing is written.
        what: name of the log in messages.

    Raises:
        TruthError: the file cannot be written.
    """

    def __init__(self, path: Path | None, what: str) -> None:
        self._path = path
        self._what = what
        try:
            self._file: BinaryIO | None = None if path is None else path.open("wb", buffering=0)
        except OSError as e:
            raise TruthError(f"{what} {path}: {e.strerror}; name a file that can be written") from e

    def write(self, entry: object) -> None:
        """Append one line. The first failure to write is reported on stderr and ends the log."""
        if self._file is None:
            return
        try:
            self._file.write(msgspec.json.encode(entry) + b"\n")
        except OSError as e:
            print(f"{self._what} {self._path}: {e.strerror}; nothing more is written to it", file=sys.stderr)
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()


# --- Log of the plan's actions on replicas and the gateway's reactions, as lines and JSON Lines


@dataclass(frozen=True, slots=True)
class Event:
    """One event. ``time_ns`` is CLOCK_REALTIME; ``who`` caused it: the plan, the gateway, or a client."""

    time_ns: int
    who: str
    replica: str
    action: str
    factor: float | None = None  # of ``slow``


#: Text of actions whose name is not a phrase.
_SAID = {
    "kill": "killed",
    "start": "started",
    "drain": "drained",
    "slow": "slowed",
    "normal": "back to its own speed",
    "out": "out of rotation",
    "in": "back in rotation",
}


def events_path(truth: Path) -> Path:
    """Path of the events, next to the truth log: ``<truth>.events.jsonl``."""
    return truth.with_name(truth.name + ".events.jsonl")


class EventLog(JsonLines):
    """Reports each event as one line, ``plan: replica-2 killed at 10.003 s``, and appends it to a file.

    Times in lines count from the last ``begin``.
    """

    def __init__(self, path: Path | None, say: Callable[[str], None]) -> None:
        super().__init__(path, "event log")
        self._say = say
        self._began_ns = time.time_ns()

    def begin(self) -> None:
        """Set the start of the deployment's time to now."""
        self._began_ns = time.time_ns()

    def add(self, who: str, replica: str, action: str, factor: float | None = None) -> None:
        """Record an action that was just taken."""
        event = Event(time.time_ns(), who, replica, action, factor)
        said = _SAID.get(action, action) + (f" {factor:g}x" if factor is not None else "")
        self._say(f"{who}: {replica} {said} at {(event.time_ns - self._began_ns) * 1e-9:.3f} s")
        self.write(event)
