"""Runs of events that differ in nothing but their text: most of what a client ever reads.

Once typed decoding has read one event of a stream, the bytes before and after its text are known. A later
event that has the same bytes around a text without quotes, escapes or control characters says the same but
for that text: no JSON need be decoded for it, and all events of a run are read at once.
"""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from llm_locust.wire.payload import DECODE_ERRORS, well_formed

# --- A text that comes in pieces


class Pieces(list[str]):
    """The pieces of one text, in order. A reader appends to it; :meth:`fold` keeps them few.

    However a text was cut and folded, :meth:`finish` leaves the same: surrogate pairs joined over pieces,
    lone surrogates as U+FFFD.
    """

    __slots__ = ("_folded",)

    def __init__(self, pieces: Iterable[str] = ()) -> None:
        super().__init__(pieces)
        self._folded = 0  # pieces that are well formed, and are not joined again

    def fold(self) -> None:
        """Join the pieces that have come since the last time."""
        begin = self._folded
        if begin == len(self):
            return
        text = "".join(self[begin:])
        rest = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""  # its other half may follow
        whole = well_formed(text[: len(text) - len(rest)])
        self[begin:] = [piece for piece in (whole, rest) if piece]
        self._folded = begin + bool(whole)

    def finish(self) -> None:
        """Nothing follows."""
        self.fold()
        self[self._folded :] = [well_formed(piece) for piece in self[self._folded :]]
        self._folded = len(self)

    def cut(self, most: int) -> bool:
        """Keep the first ``most`` characters; gives whether there were more."""
        for place, piece in enumerate(self):
            if len(piece) > most:
                self[place:] = [piece[:most]]
                return True
            most -= len(piece)
        return False


#: No string of JSON has these.
_CONTROL = re.compile(rb"[\x00-\x1f]")
_CONTROLS = re.compile(rb"[\x00-\x09\x0b-\x1f]")  # in texts that are joined by line feeds

#: Bytes of an event that may begin a run: they are kept.
_MOST_BYTES = 4096

#: Events of one run at most: what is read of one that is refused at its end is bounded.
_MOST_EVENTS = 64

_PROBE = "\u00b7probe\u00b7"


class EventRun:
    """Events of a stream that have the same bytes around their text.

    Args:
        reader: the reader of events that has read the first one.
        texts: what their texts belong to.
    """

    __slots__ = ("_lead", "_tail", "reader", "texts")

    def __init__(self, reader: Callable[..., Any], texts: Pieces, before: bytes, after: bytes) -> None:
        self.reader = reader
        self.texts = texts
        self._lead = b"data: " + before
        self._tail = after + b"\n\n"

    def fits(self, data: bytes) -> bool:
        """Whether an event's data has the same bytes around its text."""
        return data.startswith(self._lead[6:]) and data.endswith(self._tail[:-2])

    def read(self, data: bytes, begin: int, most: int) -> tuple[list[bytes], list[int]]:
        """Read the first whole events from ``begin`` on, as far as they are a run: their texts and ends.

        Args:
            most: no more events.
        """
        texts: list[bytes] = []
        ends: list[int] = []
        lead, tail, joint = self._lead, self._tail, self._tail + self._lead
        if not data.startswith(lead, begin):
            return texts, ends
        find, starts = data.find, data.startswith
        at = begin + len(lead)
        escape = find(b"\\", at)
        for _ in range(min(most, _MOST_EVENTS)):
            end = find(b'"', at)
            if end <= at or 0 <= escape < end:
                break
            if starts(joint, end):
                texts.append(data[at:end])
                at = end + len(joint)
                ends.append(at - len(lead))
            else:
                if starts(tail, end):
                    texts.append(data[at:end])
                    ends.append(end + len(tail))
                break
        joined = b"\n".join(texts)
        if _CONTROLS.search(joined) or joined.count(b"\n") >= max(1, len(texts)) or not _is_text(joined):
            clean = next(n for n, text in enumerate(texts) if _CONTROL.search(text) or not _is_text(text))
            del texts[clean:], ends[clean:]
        return texts, ends


def run_of(
    reader: Callable[..., Any], data: bytes, text: str, texts: Pieces, read: Callable[[bytes], str | None]
) -> EventRun | None:
    """The run that an event with this text may begin; None where its text is not found for sure.

    Args:
        read: typed decoding of an event's data: its text.
    """
    sent = text.encode("utf-8", "replace")
    quoted = b'"%b"' % sent
    if len(data) > _MOST_BYTES or b"\n" in data or b"\r" in data:
        return None
    for place in (data.find(quoted), data.rfind(quoted)):
        before, after = data[: place + 1], data[place + 1 + len(sent) :]
        # It is the text, and nothing else that is spelled so, if another one in its place is read there. What
        # stands between two names may be spelled so too, as a comma, and is no JSON then.
        with suppress(*DECODE_ERRORS):
            if place >= 0 and read(before + _PROBE.encode() + after) == _PROBE:
                return EventRun(reader, texts, before, after)
    return None


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
