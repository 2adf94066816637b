"""What an endpoint answered: events or a body in, a :class:`Reply` out.

Nothing that a server can send raises: what is not as the API promises is in ``Reply.invalid``,
what the server calls an error in ``Reply.error``, and the tokens that came are kept in any case.
"""

from array import array
from collections.abc import Sequence

from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.draft import Decided, Draft, Reply
from llm_locust.wire.ends import said_in
from llm_locust.wire.sse import SseEvent

#: The texts of so many bytes of a stream are joined at a time, in about 1 ms.
FOLD_BYTES = 256 << 10


class ReplyReader:
    """Reads one streamed answer, in as many slices as wished."""

    __slots__ = ("_dialect", "_draft", "_fold_at", "_read")

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._draft = Draft()
        self._fold_at = FOLD_BYTES
        self._read = dialect.read_events

    def feed(self, events: Sequence[SseEvent], errors: Sequence[SseEvent] = ()) -> None:
        """The next events, and the errors that came between them. Never raises for what they hold.

        An error that is an event too is read as that first: the API's own words go before. None counts after
        the end of the answer: there only usage is looked for, if none came before.
        """
        if errors:
            self._feed_between(events, errors)
            return
        draft = self._draft
        if events and draft.decided_end is None:
            try:
                self._read(draft, events)
            except Decided:
                pass
            except Exception as e:  # of a dialect of the user's own
                _note_failure(draft, self._dialect, e)
            self._note_end(events[-1].end)
        if draft.decided_end is not None:
            draft.find_late_usage([event for event in events if event.end > draft.decided_end])

    def read_run(self, data: bytes, begin: int, start: int, most: int) -> tuple[int, int]:
        """Read the first whole events from ``begin`` on that are like the last one but for their text.

        That decodes none of them.

        Args:
            start: the offset of the first one's start in the stream.
            most: no more events.

        Returns:
            How many there are, and their bytes.
        """
        draft, run = self._draft, self._draft.run
        if run is None or run.reader is not self._read or draft.scattered or draft.decided_end is not None:
            return 0, 0
        texts, ends = run.read(data, begin, most)
        if not texts:
            return 0, 0
        run.texts.append(b"".join(texts).decode())
        moved = start - begin
        draft.token_ends.extend([end + moved for end in ends] if moved else ends)
        self._note_end(ends[-1] + moved)
        return len(texts), ends[-1] - begin

    def _note_end(self, end: int) -> None:
        self._draft.last_event_end = end
        if end >= self._fold_at:
            self._fold_at = end + FOLD_BYTES
            self._draft.fold()

    def _feed_between(self, events: Sequence[SseEvent], errors: Sequence[SseEvent]) -> None:
        for error in errors:
            before = sum(event.end <= error.end for event in events)
            self.feed(events[:before])
            events = events[before:]
            if self._draft.decided_end is None or error.end <= self._draft.decided_end:
                self._draft.fail(said_in(error.data))
        self.feed(events)

    @property
    def token_ends(self) -> "array[int]":
        """The offset at which each token event so far was complete. Not to be changed."""
        return self._draft.token_ends

    @property
    def last_event_end(self) -> int:
        """The offset at which the last event of any kind was complete; 0 before the first."""
        return self._draft.last_event_end

    @property
    def done(self) -> bool:
        """The events so far make a whole answer."""
        return self._draft.done

    @property
    def decided_end(self) -> int | None:
        """The offset at which the answer was whole, and its end said: no later event is read. None before."""
        return self._draft.decided_end

    @property
    def ended(self) -> bool:
        """Nothing that follows is looked at."""
        return self._draft.decided_end is not None and not self._draft.seeks_usage

    @property
    def closed(self) -> bool:
        """The server has said that it is the end."""
        return self._draft.closed

    @property
    def failed(self) -> bool:
        """An event so far was an error."""
        return self._draft.error is not None

    def finish(self) -> Reply:
        """The answer as far as it came."""
        return self._draft.finish(self._dialect.usual_finishes)


def read_body(dialect: Dialect, body: bytes) -> Reply:
    """An answer that was not streamed. The whole body is one token event if it carries any text."""
    draft = Draft()
    try:
        dialect.read_body(draft, body)
    except Exception as e:  # of a dialect of the user's own
        _note_failure(draft, dialect, e)
    return draft.finish(dialect.usual_finishes, streamed=False)


def _note_failure(draft: Draft, dialect: Dialect, error: Exception) -> None:
    draft.closed = False
    draft.reject(f"the reader of dialect {dialect.name!r} raised {error!r:.300}")
