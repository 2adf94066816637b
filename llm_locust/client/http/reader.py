"""Readers of sockets: bytes with the time of each read, taken where no interpreter can be in the way.

A reader waits for sockets, reads them, and keeps their bytes until :meth:`~SocketReader.take`. It calls back
when there is something to do. There are two, behind the same contract:

- :class:`ThreadReader`, over ``_reader.c``: a thread of its own, without the interpreter's lock. However busy
  Python is, each packet is read when it comes.
- :class:`LoopReader`, in Python, on gevent's loop: where the C module was not built, and for debugging
  (``LLM_LOCUST_READER=python``). While the loop is busy packets wait, and several are read as one.

The reads of some bytes come packed (:data:`~llm_locust.client.http.clock.READ`).
"""

import errno
import os
import re
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import gevent

from llm_locust.client.http.clock import ANCILLARY_BYTES, READ, stamp_ns
from llm_locust.core.manifest import StampFacts
from llm_locust.host import NO_THREAD

try:
    from llm_locust.client import _reader
except ImportError:  # no compiler, or no Linux
    _NATIVE = False
else:
    _NATIVE = True

if TYPE_CHECKING:
    import _socket

    from gevent._types import _IoWatcher, _TimerWatcher
    from gevent.hub import Hub

#: How a body ends: after a number of bytes, with the last of its chunks, with the connection.
BY_LENGTH, BY_CHUNKS, BY_END = range(3)

#: Bytes unread of one connection, with 24 for each read, at which Python is called though nothing has ended.
RING_AT_BYTES = 64 << 10

#: At this many the connection is not read until they are taken, so that TCP holds its server back.
MOST_UNREAD_BYTES = 256 << 10

#: The same of all connections of a reader together.
MOST_HELD_BYTES = 256 << 20

#: Longest time in one turn of the event loop for connections that have something to do.
_TURN_S = 0.005

_READ_BYTES = 65_536
_MOST_UNBODIED = 256 << 10

#: The error of a :class:`Framing` whose framing outgrows this. The others say what is no HTTP.
TOO_MUCH_FRAMING = "chunk extensions or trailers have more than 256 KiB"


class Unread(NamedTuple):
    """Unread bytes of a connection, and their reads.

    ``over``, which counts after the bytes, is 0 while the connection is open, 1 after the peer's end of it,
    and the negative ``errno`` if it broke.
    """

    data: bytes
    reads: bytes
    over: int


class Framing(Protocol):
    """Where one response ends, and its body: ``done`` once it ended, ``error`` why it never will."""

    @property
    def done(self) -> bool: ...

    @property
    def error(self) -> str | None: ...

    def copied(self) -> "Framing":
        """A copy that goes on from here."""

    def feed(self, data: bytes, begin: int, reads: bytes, /) -> tuple[bytes, bytes, int]:
        """Take bytes from ``begin`` on.

        Returns the part of the body in them; the reads, with the number of body bytes since the first call as
        the end of each; and how many bytes up to the end of the response, or to what breaks it, else all.
        """


class SocketReader(Protocol):
    """Reads connected sockets that do not block.

    ``on_ready`` of a socket is called from the event loop when it has bytes or an end: see :meth:`expect`.
    """

    name: str

    def add(self, sock: "_socket.socket", on_ready: Callable[[], None]) -> int:
        """Read a socket from now on; return its slot (raises OSError)."""

    def expect(self, slot: int, framing: Framing | None) -> None:
        """Call when the response ends whose bytes up to here were fed to ``framing``, when its connection
        ends,
        or with :data:`RING_AT_BYTES`; None: at every read."""

    def take(self, slot: int, *, drain: bool = False) -> Unread:
        """Take what is unread; ``drain`` reads what the socket has, first."""

    def last_ns(self, slot: int) -> int:
        """When the last of what is unread was read (monotonic); 0 if nothing is."""

    def drop(self, slot: int) -> None:
        """Read the socket no longer, whose descriptor is about to be closed."""


_SIZE_FIRST, _SIZE, _EXTENSION, _SIZE_LF, _DATA, _DATA_CR, _DATA_LF, _TRAILER_FIRST, _TRAILER = range(9)
_TRAILER_LF, _LAST_LF, _DONE, _BROKEN = range(9, 13)
_DIGITS = {ord(c): int(c, 16) for c in "0123456789abcdefABCDEF"}
_CR, _LF = b"\r\n"
_SIZE_LINE = re.compile(rb"([0-9a-fA-F]{1,14})\r\n")

#: In these states one byte alone is right. The state after it, and what any other byte means.
_EXPECTED = {
    _DATA_CR: (_CR, _DATA_LF, "a chunk is longer than its size"),
    _DATA_LF: (_LF, _SIZE_FIRST, "a chunk is longer than its size"),
    _TRAILER_LF: (_LF, _TRAILER_FIRST, "invalid trailer"),
    _LAST_LF: (_LF, _DONE, "invalid trailer"),
}


class PythonFraming:
    """:class:`Framing` in Python: the same states as in ``_reader.c``."""

    __slots__ = ("_body_bytes", "_kind", "_left", "_state", "_unbodied", "error")

    def __init__(self, kind: int, length: int = 0) -> None:
        if kind not in (BY_LENGTH, BY_CHUNKS, BY_END) or length < 0:
            raise ValueError("no such framing")
        self._kind = kind
        self._state = _SIZE_FIRST if kind == BY_CHUNKS else _DATA
        if kind == BY_LENGTH and length == 0:
            self._state = _DONE
        self._left = length  # of the body, or of the chunk
        self._unbodied = 0  # bytes of framing since the last byte of the body
        self._body_bytes = 0
        self.error: str | None = None

    @property
    def done(self) -> bool:
        return self._state == _DONE

    def feed(self, data: bytes, begin: int, reads: bytes, /) -> tuple[bytes, bytes, int]:
        if not 0 <= begin <= len(data) or len(reads) % READ.size:
            raise ValueError("the reads are not those of these bytes")
        marks = array("q", reads)
        parts: list[bytes] = []
        at = begin
        for index in range(0, len(marks), 3):
            end = min(marks[index], len(data))
            while at < end and self._state < _DONE:
                at = (
                    self._take_body(data, at, end, parts)
                    if self._state == _DATA
                    else self._step(data, at, end)
                )
            marks[index] = self._body_bytes
        return b"".join(parts), marks.tobytes(), at

    def copied(self) -> "PythonFraming":
        copy = PythonFraming(self._kind)
        for name in self.__slots__:
            setattr(copy, name, getattr(self, name))
        return copy

    def _take_body(self, data: bytes, at: int, end: int, parts: list[bytes]) -> int:
        size = end - at if self._kind == BY_END else min(end - at, self._left)
        parts.append(data[at : at + size])
        self._body_bytes, self._unbodied = self._body_bytes + size, 0
        if self._kind != BY_END:
            self._left -= size
            if not self._left:
                self._state = _DATA_CR if self._kind == BY_CHUNKS else _DONE
        return at + size

    def _step(self, data: bytes, at: int, end: int) -> int:
        """A byte of framing, or several at once; return where they end."""
        state, after = self._state, at + 1
        if state == _SIZE_FIRST and (line := _SIZE_LINE.match(data, at, end)):
            self._left, after = int(line[1], 16), line.end()
            self._state = _DATA if self._left else _TRAILER_FIRST
        elif state in (_EXTENSION, _TRAILER):
            after = min(
                found + 1
                for found in (data.find(b"\r", at, end), data.find(b"\n", at, end), end - 1)
                if found >= 0
            )
            if data[after - 1] == _CR:
                self._state = _SIZE_LF if state == _EXTENSION else _TRAILER_LF
            elif data[after - 1] == _LF:
                self._break("invalid chunk extension" if state == _EXTENSION else "invalid trailer")
        else:
            self._step_byte(data[at])
        self._unbodied += after - at
        if self._unbodied > _MOST_UNBODIED:
            self._break(TOO_MUCH_FRAMING)
        return after

    def _step_byte(self, byte: int) -> None:
        state = self._state
        if state in _EXPECTED:
            right, after, otherwise = _EXPECTED[state]
            self._state = after
            if byte != right:
                self._break(otherwise)
        elif state == _TRAILER_FIRST:
            self._state = _LAST_LF if byte == _CR else _TRAILER
            if byte == _LF:
                self._break("invalid trailer")
        elif state == _SIZE_LF and byte == _LF:
            self._state = _DATA if self._left else _TRAILER_FIRST
        elif state != _SIZE_LF and byte in _DIGITS:
            self._left = _DIGITS[byte] if state == _SIZE_FIRST else self._left * 16 + _DIGITS[byte]
            self._state = _SIZE
            if self._left >> 59:
                self._break("invalid chunk size")
        elif state == _SIZE and byte in b"\r; \t":
            self._state = _SIZE_LF if byte == _CR else _EXTENSION
        else:
            self._break("invalid chunk size")

    def _break(self, error: str) -> None:
        self._state, self.error = _BROKEN, error


@dataclass(slots=True)
class _Slot:
    sock: "_socket.socket"
    on_ready: Callable[[], None]
    watcher: "_IoWatcher"
    framing: Framing | None = None
    data: bytearray = field(default_factory=bytearray)
    reads: bytearray = field(default_factory=bytearray)
    over: int = 0

    @property
    def weight(self) -> int:
        return len(self.data) + len(self.reads)


class LoopReader:
    """:class:`SocketReader` on gevent's loop."""

    name = "python"

    def __init__(self, hub: "Hub") -> None:
        self._loop = hub.loop
        self._slots: dict[int, _Slot] = {}
        self._next = 0
        self._held = 0

    def add(self, sock: "_socket.socket", on_ready: Callable[[], None]) -> int:
        slot, self._next = self._next, self._next + 1
        found = self._slots[slot] = _Slot(sock, on_ready, self._loop.io(sock.fileno(), 1))
        found.watcher.start(self._on_readable, slot)
        return slot

    def expect(self, slot: int, framing: Framing | None) -> None:
        found = self._slots[slot]
        found.framing = None if framing is None else framing.copied()
        due = bool(found.over)
        if found.framing is None:
            due = due or bool(found.data)
        else:
            whole = READ.pack(len(found.data), 0, 0)
            used = found.framing.feed(bytes(found.data), 0, whole)[2]
            due = due or found.framing.done or used < len(found.data) or found.weight >= RING_AT_BYTES
        if due:
            self._loop.run_callback(self._call, slot)

    def take(self, slot: int, *, drain: bool = False) -> Unread:
        found = self._slots[slot]
        while drain and not found.over and found.weight < MOST_UNREAD_BYTES and self._read(found):
            pass
        taken = Unread(bytes(found.data), bytes(found.reads), found.over)
        self._held -= found.weight
        found.data.clear()
        found.reads.clear()
        if not found.over:
            found.watcher.start(self._on_readable, slot)
        return taken

    def last_ns(self, slot: int) -> int:
        reads = self._slots[slot].reads
        return int(READ.unpack_from(reads, len(reads) - READ.size)[2]) if reads else 0

    def drop(self, slot: int) -> None:
        found = self._slots.pop(slot, None)
        if found is not None:
            self._held -= found.weight
            found.watcher.stop()
            found.watcher.close()

    def _on_readable(self, slot: int) -> None:
        found = self._slots.get(slot)
        if found is None or found.over or not (self._read(found) or found.over):
            return
        framing = found.framing
        full = found.weight >= MOST_UNREAD_BYTES or self._held >= MOST_HELD_BYTES
        if full or found.over:
            found.watcher.stop()
        ended = framing is None or framing.done or framing.error is not None
        if full or found.over or ended or found.weight >= RING_AT_BYTES:
            found.on_ready()

    def _call(self, slot: int) -> None:
        found = self._slots.get(slot)
        if found is not None:
            found.on_ready()

    def _read(self, found: _Slot) -> bool:
        """Read once; return whether there was something."""
        try:
            data, ancillary, _, _ = found.sock.recvmsg(_READ_BYTES, ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as e:
            found.over = -(e.errno or errno.EIO)
            return False
        now = time.monotonic_ns()
        if not data:
            found.over = 1
            return False
        before = found.weight
        found.data += data
        stamp = stamp_ns(ancillary[0][2]) if ancillary else 0
        found.reads += READ.pack(len(found.data), stamp, now)
        self._held += found.weight - before
        if found.framing is not None:
            found.framing.feed(data, 0, READ.pack(len(data), 0, 0))
        return True


class ThreadReader:
    """:class:`SocketReader` over a thread in C."""

    name = "c"

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub
        try:
            self._reader = _reader.Reader(RING_AT_BYTES, MOST_UNREAD_BYTES, MOST_HELD_BYTES)
        except BlockingIOError:  # of its thread: no server is to be blamed for it
            raise RuntimeError(NO_THREAD) from None
        self._calls: dict[int, Callable[[], None]] = {}
        self._due: deque[int] = deque()  # slots whose call waits for its turn
        self._bell: _IoWatcher = hub.loop.io(self._reader.bell, 1)
        self._next_turn: _TimerWatcher | None = None
        self.expect: Callable[[int, Framing | None], None] = self._reader.expect
        self.last_ns: Callable[[int], int] = self._reader.last_ns

    def add(self, sock: "_socket.socket", on_ready: Callable[[], None]) -> int:
        slot: int = self._reader.add(sock.fileno())
        self._calls[slot] = on_ready
        if len(self._calls) == 1:
            self._bell.start(self._on_bell)
        return slot

    def take(self, slot: int, *, drain: bool = False) -> Unread:
        return Unread(*self._reader.take(slot, drain))

    def drop(self, slot: int) -> None:
        if self._calls.pop(slot, None) is not None:
            self._reader.drop(slot)
        if not self._calls:
            self._bell.stop()

    def forget(self) -> None:
        """Give up what belongs to the parent process, in a child of it."""
        self._bell.stop()
        self._calls.clear()
        self._reader.forget()

    def _on_bell(self) -> None:
        self._due += self._reader.ready()
        if self._next_turn is None:
            self._call_due()

    def _call_due(self) -> None:
        """Call as many as this turn of the loop has time for; the rest in the next one."""
        if self._next_turn is not None:
            self._next_turn.close()
            self._next_turn = None
        until_s = time.monotonic() + _TURN_S
        while self._due:
            call = self._calls.get(self._due.popleft())
            if call is not None:
                try:
                    call()
                except BaseException:
                    self._hub.handle_error(self, *sys.exc_info())
            if time.monotonic() > until_s and self._due:
                self._next_turn = timer = self._hub.loop.timer(0.0)
                timer.start(self._call_due)
                return


_READERS: "WeakKeyDictionary[Hub, ThreadReader | LoopReader]" = WeakKeyDictionary()


def why_python() -> str | None:
    """Why Python reads the sockets, in words; None if the thread in C does."""
    if os.environ.get("LLM_LOCUST_READER", "") == "python":
        return "LLM_LOCUST_READER=python asks for it"
    if not _NATIVE:
        return "the C module was not built; `pip install .` with a C compiler and Python's headers builds it"
    return None


def new_framing(kind: int, length: int = 0) -> Framing:
    """A :class:`Framing` of :data:`BY_LENGTH` (of so many bytes), :data:`BY_CHUNKS` or :data:`BY_END`."""
    return _reader.Framing(kind, length) if _NATIVE else PythonFraming(kind, length)


def hub_reader() -> SocketReader:
    """The reader of this thread's event loop, started with the first call."""
    hub = gevent.get_hub()
    found = _READERS.get(hub)
    if found is None:
        found = _READERS[hub] = LoopReader(hub) if why_python() else ThreadReader(hub)
    return found


def _forget_readers() -> None:
    for reader in list(_READERS.values()):
        if isinstance(reader, ThreadReader):
            reader.forget()
    _READERS.clear()


os.register_at_fork(after_in_child=_forget_readers)


def stamp_facts(source: str) -> StampFacts:
    """Source of the time stamps, ``--stamps`` says, and the reader of this process."""
    kernel = source == "kernel" and bool(ANCILLARY_BYTES)
    return StampFacts(source="kernel" if kernel else "program", reader="python" if why_python() else "c")
