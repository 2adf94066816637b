"""A server-sent event stream (WHATWG HTML, section 9.2) decoded from bytes.

Two ways lead to the same events. Blocks between blank lines are cut in C where a read starts at
an event's start and knows only LF, which is what most servers send; everything else (CR, CRLF,
events larger than a few reads) goes line by line in linear time.

Servers also say why they fail outside of any event: in a field ``error``, in an event of that name without
data, in a comment, in a bare line of JSON or text. A browser drops all of that. Here its start is kept.
"""

import re
from collections.abc import Iterator

import msgspec

from llm_locust.wire.ends import is_error_name, sounds_failed
from llm_locust.wire.payload import DocumentSize

_BOM = b"\xef\xbb\xbf"

#: Blank lines and comments. Between two events they mean nothing.
_NOTHING = re.compile(rb"(?:(?::[^\r\n]*+)?(?:\r\n|\r|\n))++")
_NOTHING_STARTS = (b"\n", b"\r", b":")
_COMMENT = re.compile(rb":[^\r\n]*+")

#: More blank lines in a row than any server has a reason for.
_RUNS = (b"\n" * 8, b"\r" * 8, b"\r\n" * 8)
_RUN = re.compile(rb"(?:\r\n|\r|\n){8,}+")

#: An incomplete event up to this size is kept as it came, and read again with what follows it.
#: A larger one is taken apart line by line, so that its bytes are looked at once only.
_RAW_TAIL_BYTES = 16 * 1024

#: Fields that have no part in an answer. The one without a name is a comment.
_SILENT = frozenset({b"", b"id", b"retry"})

#: So much is kept of what is no event, and so many errors.
MAX_STRAY_BYTES = 4096
_MAX_ERRORS = 8
_COMMENT_BYTES = 512

#: Data of a longer line may be a long document; its bytes are counted as they come.
_LONG_LINE_BYTES = 64 * 1024


class SseEvent(msgspec.Struct, frozen=True, gc=False):
    """One dispatched event.

    ``data`` holds its data lines joined by LF and is never empty. ``end`` is the offset in the
    whole stream just after the byte that completed the event: the first byte of the blank line's
    terminator, because a CR alone ends a line already. It does not depend on how the stream was
    split. ``event`` is the event type, empty where the server named none. That of an error, in whatever
    spelling, is ``error``.
    """

    data: bytes
    end: int
    event: bytes = b""


class SseError(ValueError):
    """The bytes are no event stream that can be kept in memory.

    ``events`` are those that the failing call had completed before.
    """

    def __init__(self, message: str, events: list[SseEvent]) -> None:
        super().__init__(message)
        self.events = events


class SseDecoder:
    """Decodes one stream, fed in any pieces.

    Args:
        max_event_bytes: most bytes from one blank line to the next; more raises :class:`SseError`.
            A comment before an event's first field counts for itself, without its line end.
        long_data: the first data line of an event may be longer: as long as a JSON document may be
            (:class:`~llm_locust.wire.payload.DocumentSize`).

    """

    __slots__ = (
        "_after_cr",
        "_comment",
        "_comment_end",
        "_data",
        "_document",
        "_errors",
        "_event",
        "_finished",
        "_in_lines",
        "_line_bytes",
        "_long_data",
        "_max_event_bytes",
        "_partial",
        "_position",
        "_start",
        "_stray",
        "_stray_bytes",
        "_tail",
        "_usual_name",
    )

    def __init__(self, max_event_bytes: int = 1 << 20, *, long_data: bool = False) -> None:
        self._max_event_bytes = max_event_bytes
        self._long_data = long_data
        self._document: DocumentSize | None = None  # of the event's long data line, if it has one
        self._start = 0  # offset just after the last blank line
        self._tail = b""  # unread bytes from _start on
        self._in_lines = False  # the event at _start is being read line by line; _tail is empty
        self._position = 0  # the offsets up to here were read; meant while _in_lines
        self._after_cr = False  # the last byte read was a CR: an LF now belongs to it
        self._partial: list[bytes] = []  # pieces of a line without its end
        self._line_bytes = 0  # of that line
        self._data: list[bytes] = []
        self._event = b""
        self._errors: list[SseEvent] = []
        self._usual_name = b""  # a name of events that is none of an error
        self._stray: list[tuple[int, bytes]] = []  # lines that are no fields, with the start of their event
        self._stray_bytes = 0
        self._comment = b""  # the last one, and where it ended
        self._comment_end = -1
        self._finished = False

    def feed(self, data: bytes) -> list[SseEvent]:
        """The events that these bytes complete, in order.

        Raises:
            SseError: an event is larger than ``max_event_bytes``. Every later call raises it too.
        """
        if self._in_lines:
            return self._read_lines(data)
        if self._tail:
            data = self._tail + data
        size = len(data)
        named = data.find(b"\n") + 1 if data.startswith(b"event: ") else 0
        if (
            data.startswith(b"data: ", named)
            and data.endswith(b"\n\n")
            and data.find(b"\n", named) == size - 2
            and b"\r" not in data
            and named + 8 < size <= self._max_event_bytes
        ):  # one event in one read: what a server sends that is slower than its client
            self._tail = b""
            self._start += size
            if not named:
                return [SseEvent(data[6:-2], self._start)]
            event = SseEvent(data[named + 6 : -2], self._start, data[7 : named - 1])
            return [event if event.event == self._usual_name else self._named(event)]
        return self._read_events(data)

    @property
    def between_events(self) -> int | None:
        """The offset of the next event's start; None if a part of it was fed."""
        return None if self._tail or self._in_lines else self._start

    def skip(self, size: int) -> None:
        """Take so many bytes from :attr:`between_events` on as read: whole events of a line of data each."""
        self._start += size

    def _read_events(self, data: bytes) -> list[SseEvent]:
        """Data from an event's start on: quick if all events are of one line that ends in LF."""
        if data.startswith(_NOTHING_STARTS) and not (data := self._skip_nothing(data, [])):
            return []
        pieces = data.split(b"\n")
        # [line, b"", line, b"", ..., tail]: every line is an event, and the tail is in its first line.
        if any(pieces[1::2]) or not len(pieces) & 1 or b"\r" in data or len(data) > self._max_event_bytes:
            return self._leave_raw(data)
        self._tail = tail = pieces.pop()
        if len(tail) > _RAW_TAIL_BYTES:
            return self._leave_raw(data)
        events: list[SseEvent] = []
        add, end = events.append, self._start
        for line in pieces[::2]:
            end += len(line) + 2
            if line.startswith(b"data: "):
                if payload := line[6:]:
                    add(SseEvent(payload, end))
            else:
                self._start = end - len(line) - 2
                self._read_field(line.removeprefix(_BOM) if end == len(line) + 2 else line)
                self._dispatch(end, events)
        self._start = end
        return events

    def _skip_nothing(self, data: bytes, events: list[SseEvent]) -> bytes:
        """Data from an event's start on without the blank lines and comments before that event.

        A proxy keeps a stream alive with a few of them, a hostile server sends millions: they are not
        taken line by line. A CR at the end is left, for an LF may follow it.
        """
        match = _NOTHING.match(data)
        end = 0 if match is None else match.end()
        if end > self._max_event_bytes:
            for comment in _COMMENT.finditer(data, 0, end):
                self._check_size(self._start + comment.end() - comment.start(), events)
        if end == len(data) and data.endswith(b"\r"):
            end -= 1
        self._start += end
        if b":" in data[:end]:
            self._note_comments(data[max(0, end - _COMMENT_BYTES) : end])
        self._tail = b""
        return data[end:]

    def _leave_raw(self, data: bytes) -> list[SseEvent]:
        """Reads all that follows the last blank line, line by line."""
        self._tail = b""
        self._position = self._start
        return self._read_lines(data)

    def _read_lines(self, data: bytes) -> list[SseEvent]:
        """Any data, at any place in an event."""
        events: list[SseEvent] = []
        self._in_lines = True
        for part in _cut_in_runs(data) if any(run in data for run in _RUNS) else (data,):
            self._read_part(part, events)
        self._in_lines = self._after_cr or self._position > self._start
        return events

    def _read_part(self, data: bytes, events: list[SseEvent]) -> None:
        self._check_size(self._position, events)
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
            self._start += self._start == self._position
            self._position += 1
            self._after_cr = False
        if self._position == self._start and data.startswith(_NOTHING_STARTS):
            data = self._skip_nothing(data, events)
            self._position, self._after_cr = self._start, False
        # Of bytes, splitlines() knows CR, LF and CRLF as ends, and no others.
        lines = data.splitlines(keepends=True)
        rest = b"" if not lines or lines[-1].endswith((b"\n", b"\r")) else lines.pop()
        for line in lines:
            self._read_line(line, events)
        if rest:
            self._position += len(rest)
            self._keep(rest)
        if data:
            self._after_cr = data.endswith(b"\r")
        self._check_size(self._position, events)

    def _read_line(self, line: bytes, events: list[SseEvent]) -> None:
        """A line with its end, or the end of the line that ``_partial`` began."""
        begun, content = self._line_bytes, line.rstrip(b"\r\n")
        end = self._position + len(content)
        if begun or len(content) > _LONG_LINE_BYTES:
            self._keep(content)
            content = b"".join(self._partial)
            self._partial.clear()
            self._line_bytes = 0
        if self._position == begun:  # the stream's first line
            content = content.removeprefix(_BOM)
        if self._document is not None and not self._data:
            self._check_size(end, events)
            self._data.append(content)
            self._position += len(line)
        elif content.startswith(b":") and self._position - begun == self._start:
            self._check_size(end, events)
            self._position += len(line)
            self._start = self._position
            self._note_comments(content[:_COMMENT_BYTES])
        elif content:
            self._read_field(content)
            self._position += len(line)
        else:
            self._check_size(end + 1, events)
            self._dispatch(end + 1, events)
            self._position += len(line)
            self._start = self._position

    def _keep(self, piece: bytes) -> None:
        """Bytes of a line that came in pieces, or is long."""
        self._partial.append(piece)
        self._line_bytes += len(piece)
        if self._data or not self._long_data or self._line_bytes <= _LONG_LINE_BYTES:
            return
        if self._document is not None:
            self._document.add(piece)
        elif b"".join(self._partial[:5]).startswith(b"data:"):
            begun = b"".join(self._partial)
            self._partial = [begun[5:].removeprefix(b" ")]  # copied here, not when it is long
            self._document = DocumentSize()
            self._document.add(begun)

    def _read_field(self, line: bytes) -> None:
        if line.startswith(b"data: "):
            self._data.append(line[6:])
            return
        if line.startswith(b"event: "):
            self._event = line[7:]
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        elif name == b"event":
            self._event = value.removeprefix(b" ")
        elif name not in _SILENT:
            self._read_stray(name, value.strip(), line)
        elif not name:
            self._note_comments(line[:_COMMENT_BYTES])

    def _read_stray(self, name: bytes, value: bytes, line: bytes) -> None:
        """A line that is no field of an event stream."""
        if is_error_name(name):
            self._note_error(SseEvent(value or line, self._start + 1, b"error"))
        elif self._stray_bytes < MAX_STRAY_BYTES:
            kept = line[: MAX_STRAY_BYTES - self._stray_bytes]
            self._stray.append((self._start, kept))
            self._stray_bytes += len(kept) + 1

    def _note_comments(self, skipped: bytes) -> None:
        """The last of some comments: it may explain an error that follows, or be one."""
        lines = [line for line in skipped.splitlines() if line.startswith(b":")]
        if not lines:
            return
        self._comment, self._comment_end = lines[-1][1:].strip(), self._start
        if self._stray_bytes < MAX_STRAY_BYTES and sounds_failed(self._comment.decode("utf-8", "replace")):
            self._stray.append((self._start, self._comment))
            self._stray_bytes += len(self._comment) + 1

    def _note_error(self, error: SseEvent) -> None:
        if len(self._errors) < _MAX_ERRORS:
            self._errors.append(error)

    def _named(self, event: SseEvent) -> SseEvent:
        """An event with a name, which may be that of an error."""
        if not is_error_name(event.event):
            self._usual_name = event.event
            return event
        error = SseEvent(event.data, event.end, b"error")
        self._note_error(error)
        return error

    def take_errors(self) -> list[SseEvent]:
        """The errors that the stream had by name since the last call: fields named ``error``, and events.

        An event with data is among those of :meth:`feed` too.
        """
        errors = self._errors
        if errors:
            self._errors = []
        return errors

    def stray(self, end: int | None = None) -> bytes:
        """The start of what was no event, before this offset."""
        return b"\n".join([line for start, line in self._stray if end is None or start < end])

    def finish(self) -> bytes:
        """The start of an event that was not ended; nothing follows."""
        if self._finished:
            return b""
        self._finished = True
        begun = b"".join(self._partial[:MAX_STRAY_BYTES]) if self._in_lines else self._tail
        if begun and self._document is None:
            self._read_field(begun[:MAX_STRAY_BYTES])
        data = b"\n".join(self._data)[:MAX_STRAY_BYTES]
        if self._event and is_error_name(self._event):
            self._note_error(SseEvent(data or self._comment_of_event(), self._start + 1, b"error"))
            return b""
        return data

    def _comment_of_event(self) -> bytes:
        """The comment in the event under way, or just before it."""
        return self._comment.strip() if self._comment_end == self._start else b""

    def _dispatch(self, end: int, events: list[SseEvent]) -> None:
        """The blank line: ends the event, which is one only if it has data."""
        lines = self._data
        if data := lines[0] if len(lines) == 1 else b"\n".join(lines):
            event = SseEvent(data, end, self._event)
            events.append(event if self._event == self._usual_name else self._named(event))
        elif self._event and is_error_name(self._event):
            self._note_error(SseEvent(self._comment_of_event(), end, b"error"))
        lines.clear()
        self._event = b""
        self._document = None

    def _check_size(self, position: int, events: list[SseEvent]) -> None:
        document = self._document
        if document is not None and (what := document.excess) is not None:
            self._position = position
            raise SseError(f"an event that began at byte {self._start} of the stream has {what}", events)
        if position - self._start - (document.size_bytes if document else 0) > self._max_event_bytes:
            self._position = position
            raise SseError(
                f"an event of more than {self._max_event_bytes} bytes began at byte {self._start} of the "
                "stream: it is no event stream, or max_event_bytes must be raised",
                events,
            )


def _cut_in_runs(data: bytes) -> Iterator[bytes]:
    """The data, cut behind the first lines of each run of blank ones: the rest of it is then skipped."""
    begin = 0
    for run in _RUN.finditer(data):
        yield data[begin : run.start() + 4]
        begin = run.start() + 4
    yield data[begin:]
