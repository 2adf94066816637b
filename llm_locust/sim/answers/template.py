"""Server-sent events as templates in which only a token's text and a count change."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"
GARBAGE = b'data: {"id": "chatcmpl-, "choices": [{"delta"\n\n'
FAULT_MESSAGE = "A simulated fault: the engine died."

#: Placeholder of a token's text in an event that is rendered to be split. Neither a command line, the source
#: of the models' names, nor a header, the source of the id, can contain the null character.
TEXT_MARK = "\x00text"
_TEXT_SLOT = rb"\u0000text"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTemplate:
    """All events of one streamed answer, each as its SSE bytes.

    A token's event is ``before + escaped text + after``; ``last_after`` has the finish reason. An end without
    text has such an event too, unless ``silent_end``. If ``counts`` is not empty, both are printf templates
    for the token's number, from 1, plus each of ``counts``. ``closing`` takes the prompt tokens from the
    prefix cache for usage, or None to leave them out.
    """

    opening: tuple[bytes, ...]  # before the first token, without text
    before: bytes
    after: bytes
    last_after: bytes
    counts: tuple[int, ...] = ()
    silent_end: bool = False
    error: Callable[[int], bytes]  # an error object after that many tokens, and the end of the stream
    closing: Callable[[int | None], bytes]  # from the last token to the end of the stream

    def token(self, escaped: bytes, number: int, last: bool) -> bytes:
        """Event of the ``number``-th token."""
        after = self.last_after if last else self.after
        if self.counts:
            after = after % tuple(number + count for count in self.counts)
        return self.before + escaped + after

    def end(self, number: int) -> bytes:
        """Event of an end without text, as the ``number``-th token; empty if there is none."""
        return b"" if self.silent_end else self.token(b"", number, last=True)


def error_object(status: int, kind: str, message: str) -> dict[str, Any]:
    """Error in the form of OpenAI-compatible servers."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def data_event(content: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


def split_at_text(event: bytes) -> tuple[bytes, bytes]:
    """The parts before and after :data:`TEXT_MARK` in a rendered event."""
    before, _, after = event.partition(_TEXT_SLOT)
    return before, after
