"""An answer as a value, and the draft that it is written into while its events are read."""

import re
from array import array
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from msgspec.structs import asdict

from llm_locust.wire.ends import (
    AnswerEnd,
    end_of,
    error_among,
    error_in,
    failure_beside,
    has_content,
    is_idle,
    reason_of,
)
from llm_locust.wire.foreign_text import clean_name
from llm_locust.wire.payload import (
    DECODE_ERRORS,
    MAX_PARTS,
    PayloadError,
    Results,
    error_text,
    excerpt,
    explained,
    name_of,
    parse,
    parse_object,
    well_formed,
)
from llm_locust.wire.sse import SseEvent
from llm_locust.wire.usage import (
    NOT_COUNTED,
    Came,
    EventCount,
    OutputCount,
    Running,
    Usage,
    add_counts,
    checked,
    deliveries,
    gather,
    lacks_counts,
    may_have_counts,
    merge,
    output_of,
    usage_of,
)

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


# --- Events that differ in nothing but their text: most of what a client ever reads
#
# Once typed decoding has read one event of a stream, the bytes before and after its text are known. A later
# event that has the same bytes around a text without quotes, escapes or control characters says the same but
# for that text: no JSON need be decoded for it, and all such events in a row are read at once.


#: No string of JSON has these.
_CONTROL = re.compile(rb"[\x00-\x1f]")
_CONTROLS = re.compile(rb"[\x00-\x09\x0b-\x1f]")  # in texts that are joined by line feeds

#: Bytes of an event that may be a template: they are kept.
_MOST_BYTES = 4096

#: Events that are read at once at most: what is read of those that are refused at their end is bounded.
_MOST_EVENTS = 64

_PROBE = "\u00b7probe\u00b7"


class EventTemplate:
    """The bytes around the text of one event, which the next ones may have too.

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
        """Read the first whole events from ``begin`` on, as far as they are alike: their texts and ends.

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


def template_of(
    reader: Callable[..., Any], data: bytes, text: str, texts: Pieces, read: Callable[[bytes], str | None]
) -> EventTemplate | None:
    """The template that an event with this text gives; None where its text is not found for sure.

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
                return EventTemplate(reader, texts, before, after)
    return None


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- Parts of an answer while its events are read: a choice's texts, a tool call, and what an event carried


class DeltaKind(IntEnum):
    """What a delta carried. The greater counts for its event."""

    NOTHING = 0
    REASONING = 1
    ANSWER = 2


@dataclass(slots=True)
class ChoiceDraft:
    """One choice's texts, in pieces."""

    text: Pieces = field(default_factory=Pieces)
    reasoning: Pieces = field(default_factory=Pieces)
    refusal: Pieces = field(default_factory=Pieces)
    finish_reason: str | None = None
    said: str = ""  # what the server says beside its finish reason
    named: bool = False  # by an event that was more than the next piece of text

    @property
    def seen(self) -> bool:
        return self.named or bool(self.text or self.reasoning)

    def add(self, *, text: str = "", reasoning: str = "", refusal: str = "") -> DeltaKind:
        self.named = True
        if text:
            self.text.append(text)
        if reasoning:
            self.reasoning.append(reasoning)
        if refusal:
            self.refusal.append(refusal)
        return (
            DeltaKind.ANSWER if text or refusal else DeltaKind.REASONING if reasoning else DeltaKind.NOTHING
        )

    def finish(self, reason: Any) -> bool:
        """Take a finish reason as sent; return whether it is one. No later one takes a failure back."""
        self.named = True
        found, said = reason_of(reason)
        if found is not None and end_of(self.finish_reason) is not AnswerEnd.FAILED:
            self.finish_reason, self.said = found, said
        return found is not None


@dataclass(slots=True)
class ToolDraft:
    """One tool call, its arguments in pieces."""

    id: str | None = None
    name: str | None = None
    arguments: Pieces = field(default_factory=Pieces)

    def add(self, arguments: str, id_: Any = None, name: Any = None) -> DeltaKind:
        """A call without arguments is an answer too: its name is one."""
        self.id = self.id or name_of(id_)
        named = self.name is None and (name := name_of(name)) is not None
        if named:
            self.name = name
        if arguments:
            self.arguments.append(arguments)
        return DeltaKind.ANSWER if arguments or named else DeltaKind.NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call that the model asked for. ``arguments`` is as generated, JSON or not."""

    id: str | None
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """All that an answer's bytes say. Offsets count bytes of the decoded body from its start.

    A token event is an event whose delta carries non-empty text: content, reasoning, refusal, tool-call
    arguments or the name of a tool call; or one without text whose count of output tokens has grown (see
    :func:`~llm_locust.wire.usage.deliveries`). Texts of several choices (``n`` > 1) stand one after another,
    in the order of their index.
    """

    token_ends: "array[int]"  # offset at which each token event was complete
    first_answer: int | None  # index into token_ends: the first token event that is not reasoning only
    text: str
    reasoning: str
    refusal: str
    tool_calls: list[ToolCall]
    output_chars: int  # of text, reasoning, refusal, and names and arguments of tool calls
    finish_reason: str | None  # of the choice with the lowest index that has one
    end: AnswerEnd  # what the finish reasons say
    done: bool  # every choice seen has its finish reason, or the server said that it is the end
    decided: bool  # both: whatever follows changes nothing
    usage: Usage | None  # as the server sent it: of each count the largest
    error: str | None  # message of the first error object
    invalid: str | None  # what was wrong with the first payload that is not what the API promises
    model: str | None
    choices: int = 1  # how many were seen
    opening_end: int | None = None  # of the first event with choices, where it came before any token event
    finish_end: int | None = None  # of the event with the finish reason, where it came after the last token
    closing_end: int | None = None  # of the last event with choices, where it came after the last token
    count: OutputCount = NOT_COUNTED  # its output tokens by usage, as far as they can be true
    unread: str | None = None  # a field with text that is not read, where no other text was
    results: Results | None = None  # of an API that gives one for each input, and generates nothing
    beside: str = ""  # what came that is no part of an answer, and no error: its start


#: Most characters of one answer's texts together.
MAX_TEXT_CHARS = 4 << 20

#: An answer with so many events whose only text is in a field that is not read is said to have one; without
#: a token event one is enough.
_UNREAD_EVENTS = 2

#: Events of one answer that are given a second try though the first ones of this number had failed.
MAX_SECOND_TRIES = 1000


#: The end of an answer has fewer bytes, but for what may follow ``[DONE]``.
_MOST_END_BYTES = 64

#: Events after the end of an answer that may have its usage.
_MOST_LATE_EVENTS = 4

#: More choices than that may be the tokens of one.
_MOST_CHOICES = 2

#: What may stand around the ``DONE`` of an end: quotes, and its brackets, which some servers leave out.
_AROUND_DONE = b"\"'[]<> \t\r\n"


class Decided(Exception):  # noqa: N818
    """The answer is whole, and the server has said that it is the end: nothing that follows is read."""


@dataclass(slots=True)
class Draft:
    """One answer so far. Readers write into it; :meth:`finish` makes the value."""

    token_ends: "array[int]" = field(default_factory=lambda: array("q"))
    last_event_end: int = 0
    first_answer: int | None = None
    choices: dict[int, ChoiceDraft] = field(default_factory=lambda: {0: ChoiceDraft()})
    first_number: int | None = None  # the index of the first choice
    numbered: bool = True  # so far each event's index was one more than the last one's
    tools: dict[tuple[int, int | str], ToolDraft] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)  # of usage, see wire/usage.py
    running: Running | None = None  # output tokens so far, by the last event with text that has them
    running_end: int = 0  # of this event
    event_counts: list[EventCount] = field(default_factory=list)  # of events not read the short way
    so_far: int = 0  # the largest of both
    held_ends: "array[int]" = field(default_factory=lambda: array("q"))  # neither text nor finish reason
    scattered: bool = False  # events with text have counts at another place than expected
    unread: dict[str, int] = field(default_factory=dict)  # events by the field with their only text
    unread_bytes: int = 0
    model: str | None = None
    error: str | None = None
    invalid: str | None = None
    closed: bool = False
    reason_end: int | None = None  # of the last event with a finish reason, where the reader says it
    reasons_early: bool = False  # a token came after a finish reason: these do not say that it is the end
    opening_end: int | None = None
    finish_end: int | None = None
    closing_end: int | None = None
    refused: int = 0  # events that could not be read
    withholds: bool = False  # the server said that it keeps reasoning back
    summarised: bool = False  # all reasoning that came is a summary, whose tokens usage does not count
    results: Results | None = None
    decided_end: int | None = None  # of the event that ended the reading
    late_events: int = 0  # after it, that were read for their usage
    beside: str = ""  # the start of the first object of the server's own
    template: EventTemplate | None = None  # that the next events may have

    def choice(self, index: int) -> ChoiceDraft:
        found = self.choices.get(index)
        if found is None:
            if len(self.choices) >= MAX_PARTS:
                if self.numbered:
                    return self.choices[next(reversed(self.choices))]
                self.reject(f"more than {MAX_PARTS:,} choices")
                return self.choices[0]
            found = self.choices[index] = ChoiceDraft()
        return found

    def note_index(self, index: int) -> None:
        """Notes the index of a choice before what the event has of it."""
        expected = len(self.token_ends) + len(self.held_ends)
        if self.first_number is None:
            self.first_number = index - expected
        self.numbered &= index == self.first_number + expected

    def _seen(self) -> list[ChoiceDraft]:
        """The choices of which anything came, in the order in which they came.

        Only the last, where their indexes are numbers of tokens: from the first event on each is one more
        than the last, and no event but the last has a finish reason.
        """
        seen = [c for c in self.choices.values() if c.seen]
        are_tokens = self.numbered and len(seen) > _MOST_CHOICES
        return seen if not are_tokens or any(c.finish_reason for c in seen[:-1]) else seen[-1:]

    def _take(self) -> list[ChoiceDraft]:
        """The same at the end, by their index. The last has the texts of those that are tokens of it."""
        self.choices = dict(sorted(self.choices.items()))
        seen = self._seen()
        if len(self.choices) > _MOST_CHOICES and len(seen) == 1:
            for name in ("text", "reasoning", "refusal"):
                whole = Pieces(piece for c in self.choices.values() for piece in getattr(c, name))
                setattr(seen[0], name, whole)
            self.choices = {0: seen[0]}
        return seen

    def tool(self, choice: int, key: int | str) -> ToolDraft:
        found = self.tools.get((choice, key))
        if found is None:
            if len(self.tools) >= MAX_PARTS:
                self.reject(f"more than {MAX_PARTS:,} tool calls")
                return next(iter(self.tools.values()))
            found = self.tools[choice, key] = ToolDraft()
        return found

    def token(self, end: int, kind: DeltaKind) -> None:
        """Notes that the event which ends at ``end`` carried this."""
        if kind is DeltaKind.NOTHING:
            return
        if kind is DeltaKind.ANSWER and self.first_answer is None:
            self.first_answer = len(self.token_ends)
        self.token_ends.append(end)

    def without_token(self, end: int, *, finished: bool) -> None:
        """Notes an event with choices that carried no token: a role delta, or a finish reason alone."""
        if not finished:
            self.held_ends.append(end)
        if not self.token_ends:
            self.opening_end = self.opening_end or end
            return
        self.closing_end = end
        if finished and (self.finish_end or 0) < self.token_ends[-1]:  # some gateways send it again
            self.finish_end = end

    def note_reason(self, end: int, *, with_token: bool) -> None:
        """Note that the event which ends at ``end`` had a finish reason."""
        if self.reason_end is not None and (with_token or self._goes_on):
            self.reasons_early = True
        self.reason_end = end

    @property
    def _goes_on(self) -> bool:
        """A token came after the last finish reason."""
        return bool(self.reason_end and self.token_ends and self.token_ends[-1] > self.reason_end)

    def note(self, model: Any, usage: Any = None) -> None:
        """The first model named counts, and of each count of usage the largest."""
        self.model = self.model or name_of(model)
        if isinstance(usage, dict):
            add_counts(self.counts, usage)

    def find_usage(self, event: SseEvent, payload: Any = None) -> bool:
        """Notes the counts of an event, wherever they stand; gives whether output tokens are among them.

        Args:
            payload: the event, if it was read already.
        """
        if lacks_counts(event.data):
            return False
        if payload is None and may_have_counts(event.data):
            with suppress(PayloadError):
                payload = parse(event.data)
        if payload is None:
            return False
        news: dict[str, int] = {}
        gather(news, payload)
        merge(self.counts, news)
        if (found := output_of(news)) is None:
            return False
        self._note_count(event.end, found)
        return True

    @property
    def seeks_usage(self) -> bool:
        """No output tokens were counted, and the end was said a moment ago."""
        return self.late_events < _MOST_LATE_EVENTS and output_of(self.counts) is None

    def find_late_usage(self, events: Iterable[SseEvent]) -> None:
        """Notes the counts of events after the end, if none came before it."""
        for event in events:
            if self.seeks_usage:
                self.late_events += 1
                self.find_usage(event)

    def note_running(self, end: int, running: Running) -> None:
        """Notes the counts of an event with text."""
        self._keep_running()
        add_counts(self.counts, asdict(running))
        self._note_count(end, running.tokens)
        self.running, self.running_end = running, end

    def _keep_running(self) -> None:
        if self.running is not None:
            add_counts(self.counts, asdict(self.running))

    def _note_count(self, end: int, tokens: int) -> None:
        if self.running is not None:
            self.so_far = max(self.so_far, self.running.tokens)
        self.event_counts.append(EventCount(end, tokens, grew=tokens > self.so_far))
        self.so_far = max(self.so_far, tokens)

    def unknown_text(self, name: str, text: str) -> None:
        """Notes an event whose only text is in a field that is not read."""
        if name in self.unread or len(self.unread) < MAX_PARTS:
            self.unread[name] = self.unread.get(name, 0) + 1
        self.unread_bytes += len(text.encode("utf-8", "replace"))

    def fail(self, message: str) -> None:
        if self.error is None:
            self.error = message or "the server sent an error without a message"

    def fail_beside(self, data: bytes, payload: Any = None) -> None:
        """Fails if the event tells of a failure beside a part of an answer."""
        if self.error is None and (said := failure_beside(data, payload)) is not None:
            self.fail(said)

    def reject(self, what: str) -> None:
        if self.invalid is None:
            self.invalid = what

    def refuse(self, event: SseEvent, what: str) -> None:
        """An event without anything that the API has: an error, by its name; a server's private event,
        which is let pass; else ``what`` is wrong with it."""
        if event.event == b"error":
            self.fail(event.data.decode("utf-8", "replace")[:1000])
        elif event.event in (b"", b"message"):
            self.reject(what)

    def strange(self, payload: dict[str, Any], event: SseEvent, what: str) -> None:
        """An object without what the API has: an error in any form; what may be a part of an answer, which is
        refused as :meth:`refuse` does; else data of the server's own, which is let pass."""
        if (error := error_in(payload)) is not None:
            self.fail(error)
        elif event.event == b"error":
            self.fail(error_text(payload))
        elif has_content(payload):
            self.refuse(event, what)
        elif payload:
            self.beside = self.beside or excerpt(event.data)

    @property
    def done(self) -> bool:
        """The server said that it is the end, or every choice seen has its finish reason."""
        return self.closed or self._is_finished

    @property
    def decided(self) -> bool:
        """The server said that it is the end, and every choice seen has its finish reason."""
        return self.closed and self._is_finished

    @property
    def _is_finished(self) -> bool:
        """Every choice seen has its finish reason, and no token came after one without the end being said."""
        seen = self._seen()
        if not seen or not all(c.finish_reason for c in seen):
            return False
        return self.closed or not (self.reasons_early or self._goes_on)

    def finish(self, usual: Collection[str] = (), *, streamed: bool = True) -> Reply:
        """The answer as it is now. ``usual`` are the good ends of its API."""
        seen = self._take()
        self._cut_texts(seen)
        reason = next((c.finish_reason for c in seen if c.finish_reason), None)
        text = _joined(c.text for c in seen)
        reasoning = _joined(c.reasoning for c in seen)
        refusal = _joined(c.refusal for c in seen)
        calls = [
            ToolCall(
                id=_well_formed(tool.id), name=_well_formed(tool.name), arguments=_joined([tool.arguments])
            )
            for tool in self.tools.values()
        ]
        ends = [end_of(c.finish_reason, tuple(usual)) for c in seen] or [AnswerEnd.MISSING]
        if AnswerEnd.FAILED in ends:
            failed = seen[ends.index(AnswerEnd.FAILED)]
            said = f": {failed.said}" if failed.said else ""
            self.fail(f"the server ended the answer with finish reason '{failed.finish_reason}'{said}")
        last = self.token_ends[-1] if self.token_ends else 0
        spelled = "".join((text, reasoning, refusal, *(f"{c.name or ''}{c.arguments}" for c in calls)))
        token_ends, first_answer, usage, count = self._counted(spelled, reasoning, streamed)
        return Reply(
            token_ends=token_ends,
            first_answer=first_answer,
            text=text,
            reasoning=reasoning,
            refusal=refusal,
            tool_calls=calls,
            output_chars=len(spelled),
            finish_reason=None if reason is None else clean_name(reason),
            end=max(ends),
            done=self.done,
            decided=self.decided,
            error=_well_formed(self.error),
            invalid=_well_formed(self.invalid),
            model=None if self.model is None else clean_name(self.model),
            choices=len(seen),
            opening_end=self.opening_end,
            finish_end=_after(self.finish_end, last),
            closing_end=_after(self.closing_end, last),
            results=self.results,
            beside=self.beside,
            unread=self._unread(),
            usage=usage,
            count=count,
        )

    def decide(self, end: int) -> None:
        """End the reading of the stream, with the event that ends at this offset, if the answer is decided.

        Raises:
            Decided: it is.
        """
        if self.decided:
            self.decided_end = end
            raise Decided

    def _counted(
        self, spelled: str, reasoning: str, streamed: bool
    ) -> tuple["array[int]", int | None, Usage | None, OutputCount]:
        """The token events, and their tokens by the server, as far as these can be true."""
        self._keep_running()
        if self.running is not None and self.event_counts[-1].end != self.running_end:
            self._note_count(self.running_end, self.running.tokens)
        usage, first, ends = usage_of(self.counts), self.first_answer, self.token_ends
        events, hides = len(ends), self.summarised or not reasoning
        by_event = deliveries(ends, first, self.event_counts, self.held_ends, done=self.done)
        if by_event is not None:
            ends, first = by_event.ends, by_event.first_answer
            events = len(ends)
        came = Came(
            streamed=streamed,
            events=events,
            reasoning_events=min(events if first is None else first, len(reasoning)),
            text=spelled,
            reasoning=reasoning,
            unread_events=sum(self.unread.values()) if self._unread() else 0,
            unread_bytes=self.unread_bytes,
            tool_calls=len(self.tools),
            hides_reasoning=hides,
            withholds=self.withholds,
        )
        count = checked(usage, self.counts, came, by_event=by_event is not None)
        if by_event is not None and count.tokens is not None and count.tokens >= by_event.last:
            opening = by_event.answer - count.hidden if count.hidden else by_event.first
            count = replace(count, opening=max(1, opening), came=by_event.last)
        return ends[:], first, usage, count

    def _unread(self) -> str | None:
        most = max(self.unread, key=lambda name: self.unread[name], default=None)
        least = _UNREAD_EVENTS if self.token_ends else 1
        return None if most is None or self.unread[most] < least else clean_name(most)

    def fold(self) -> None:
        """Join the texts that have come so far: what is left to do at the end does not grow with them."""
        for pieces in self._texts(self.choices.values()):
            pieces.fold()

    def _texts(self, choices: Iterable[ChoiceDraft]) -> list[Pieces]:
        texts = [text for c in choices for text in (c.text, c.reasoning, c.refusal)]
        return [*texts, *(tool.arguments for tool in self.tools.values())]

    def _cut_texts(self, choices: Iterable[ChoiceDraft]) -> None:
        """Make all texts well formed, and keep of them together the first :data:`MAX_TEXT_CHARS`."""
        left = MAX_TEXT_CHARS
        for pieces in self._texts(choices):
            pieces.finish()
            if pieces.cut(left):
                self.reject(f"more than {MAX_TEXT_CHARS:,} characters of text")
            left -= sum(map(len, pieces))


def read_leniently(
    draft: Draft, event: SseEvent, read: Callable[..., None], parse: Callable[..., Any] = parse_object
) -> None:
    """An event that is not just the next piece of text: its end, or an object for ``read``.

    What is no object, or holds what ``read`` cannot use (PayloadError), is refused. Of an answer that is
    refused already it costs little, for a server can send thousands of such events in one packet.
    """
    data = event.data
    begin = data[:_MOST_END_BYTES].lstrip().upper()  # an event may have a mebibyte
    if begin.startswith(b"[DONE]") or (len(data) < _MOST_END_BYTES and begin.strip(_AROUND_DONE) == b"DONE"):
        draft.closed = True
        draft.decide(event.end)
        return
    if is_idle(data) and event.event != b"error":
        return
    known = draft.invalid is not None and event.event != b"error"
    if known and not data.lstrip().startswith(b"{"):
        return
    try:
        payload = parse(data, retry=draft.refused < MAX_SECOND_TRIES)
        read(draft, payload, event)
        draft.fail_beside(data, payload)
    except PayloadError as e:
        draft.refused += 1
        if not known and (said := error_among(data)) is not None:  # in a list, or cut off
            draft.fail(said)
        elif not known:
            draft.refuse(event, explained(e, data))
    if draft.closed:
        draft.decide(event.end)


def _after(end: int | None, last: int) -> int | None:
    return end if end is not None and end > last else None


def _joined(texts: Iterable[Pieces]) -> str:
    return "".join(["".join(pieces) for pieces in texts])


def _well_formed(text: str | None) -> str | None:
    return None if text is None else well_formed(text)
