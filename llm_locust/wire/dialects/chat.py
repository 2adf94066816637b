"""Chat completions and legacy completions: their rows, chunks of a stream, and whole bodies.

A chunk that holds nothing but the next piece of text takes the short way, which is most of what
a client ever reads. Typed decoding makes no object of what is not asked for, such as log probabilities,
and few of what is. What is odd, but still has its text where it belongs, is read again leniently; the
rest is recorded as invalid.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from llm_locust.wire.dialects.choices import (
    Carrier,
    Delta,
    ToolPiece,
    add_delta,
    add_tool_calls,
    lenient_delta,
    other_texts,
    typed_call,
    typed_delta,
)
from llm_locust.wire.dialects.dialect import LIMIT_FIELDS, Dialect, model_and_stream
from llm_locust.wire.draft import DeltaKind, Draft, Pieces, read_leniently, run_of
from llm_locust.wire.ends import error_in, says_error, worse
from llm_locust.wire.payload import (
    DECODE_ERRORS,
    AtMost4,
    AtMost16,
    Count,
    PayloadError,
    Sent,
    count_of,
    error_text,
    excerpt,
    explained,
    objects,
    parse_object,
    whole_object,
)
from llm_locust.wire.sse import SseEvent
from llm_locust.wire.usage import Running, output_of

C = TypeVar("C")


class _Choice(msgspec.Struct, gc=False):
    index: Count = 0
    delta: Delta | None = None
    finish_reason: str | int | None = None
    native_finish_reason: str | int | None = None
    error: None = None


class _TextChoice(msgspec.Struct, gc=False):
    index: Count = 0
    text: str | None = None
    finish_reason: str | int | None = None
    native_finish_reason: str | int | None = None
    error: None = None


class _Result(msgspec.Struct, gc=False):
    code: Literal[0, 200] | None = None
    status_code: Literal[0, 200] | None = None


class _Chunk(msgspec.Struct, Generic[C], gc=False):
    """A chunk of a stream. One with an error, in whichever part, is read leniently."""

    choices: AtMost4[C] | UnsetType | None = UNSET
    usage: Running | None = None
    model: str | None = None
    error: None = None
    code: Literal[0, 200] | None = None
    base_resp: _Result | None = None
    header: _Result | None = None


class _WholeFunction(msgspec.Struct, gc=False):
    name: Sent = UNSET
    arguments: Sent = UNSET
    input: Sent = UNSET


class _WholeCall(msgspec.Struct, gc=False):
    id: Sent = UNSET
    function: _WholeFunction | UnsetType | None = UNSET
    custom: _WholeFunction | UnsetType | None = UNSET


class _Message(msgspec.Struct, gc=False):
    content: Sent = UNSET
    reasoning_content: Sent = UNSET
    reasoning: Sent = UNSET
    refusal: Sent = UNSET
    tool_calls: AtMost16[_WholeCall] | UnsetType | None = UNSET
    function_call: _WholeFunction | UnsetType | None = UNSET
    error: Sent = UNSET


class _WholeChoice(msgspec.Struct, gc=False):
    index: Sent = UNSET
    message: _Message | UnsetType | None = UNSET
    text: Sent = UNSET
    finish_reason: Sent = UNSET
    error: Sent = UNSET


class _Whole(msgspec.Struct, gc=False):
    """The skeleton of an answer that was not streamed."""

    choices: AtMost16[_WholeChoice] | UnsetType | None = UNSET
    usage: Sent = UNSET
    model: Sent = UNSET
    error: Sent = UNSET
    object: Sent = UNSET


#: What stands in a whole answer with reasoning that its skeleton does not have.
_SKIPPED_REASONING = (b"think", b"reasoning_", b"thought")

#: A longer answer is not read again for it.
_MAX_SEEN_BYTES = 256 << 10

_decode_chat = msgspec.json.Decoder(_Chunk[_Choice]).decode
_decode_text = msgspec.json.Decoder(_Chunk[_TextChoice]).decode
_decode_whole = msgspec.json.Decoder(_Whole).decode


def read_chat(draft: Draft, events: Sequence[SseEvent]) -> None:
    """Chunks of ``/v1/chat/completions``."""
    first, token_ends = draft.choices[0], draft.token_ends
    left, plain = iter(events), None
    _read_scattered(draft, left, "delta")
    for event in left:
        try:
            chunk = _decode_chat(event.data)
        except DECODE_ERRORS:
            _read_odd(draft, event, "delta")
            continue
        choices = chunk.choices
        if (
            not choices
            or (choice := choices.first) is UNSET
            or choices.second is not UNSET
            or choice.index
            or choice.finish_reason
            or (delta := choice.delta) is None
            or delta.refusal
            or delta.function_call
        ):
            _read_chunk(draft, chunk, event, "delta", left)
            continue
        text, reasoning = delta.content, delta.reasoning_content or delta.reasoning
        if (calls := delta.tool_calls) and (call := calls.first) is not UNSET:
            piece = typed_call(call, count_of(call.index))
            odd = text or reasoning or calls.second is not UNSET or not first.named
            if odd or not piece[-1] or draft.first_answer is None:
                _read_chunk(draft, chunk, event, "delta", left)
                continue
            add_tool_calls(draft, 0, (piece,))
        elif text and not reasoning and draft.first_answer is not None:
            first.text.append(text)
            plain = event, text, first.text, _content
        elif reasoning and not text and token_ends:
            first.reasoning.append(reasoning)
            plain = event, reasoning, first.reasoning, _reasoning
        else:
            _read_chunk(draft, chunk, event, "delta", left)
            continue
        token_ends.append(event.end)
        if chunk.usage is not None or draft.model is None:
            _note_more(draft, chunk, event)
            plain = None
    if plain is not None:
        _note_run(draft, read_chat, *plain)


def read_completions(draft: Draft, events: Sequence[SseEvent]) -> None:
    """Chunks of ``/v1/completions``."""
    first, token_ends = draft.choices[0], draft.token_ends
    left, plain = iter(events), None
    _read_scattered(draft, left, "text")
    for event in left:
        try:
            chunk = _decode_text(event.data)
        except DECODE_ERRORS:
            _read_odd(draft, event, "text")
            continue
        choices = chunk.choices
        if (
            not choices
            or (choice := choices.first) is UNSET
            or choices.second is not UNSET
            or choice.index
            or choice.finish_reason
            or not (text := choice.text)
            or draft.first_answer is None
        ):
            _read_chunk(draft, chunk, event, "text", left)
            continue
        first.text.append(text)
        plain = event, text, first.text, _text
        token_ends.append(event.end)
        if chunk.usage is not None or draft.model is None:
            _note_more(draft, chunk, event)
            plain = None
    if plain is not None:
        _note_run(draft, read_completions, *plain)


def _note_more(draft: Draft, chunk: _Chunk[Any], event: SseEvent) -> None:
    """Note what an event has beside a piece of text: its counts, or the answer's model."""
    usage = chunk.usage
    if usage is None or usage.completion_tokens is None or draft.model is None:
        draft.note(chunk.model)
        draft.find_usage(event)
    elif usage.follows(draft.running):  # a tenth of the cost: some servers count in every chunk
        draft.running, draft.running_end = usage, event.end
    else:
        draft.note_running(event.end, usage)


def _note_run(
    draft: Draft,
    reader: Callable[..., None],
    event: SseEvent,
    text: str,
    texts: Pieces,
    read: Callable[[bytes], str | None],
) -> None:
    """Note what the next events may be like: the last one that had nothing but a piece of text."""
    run = draft.run
    if run is None or run.texts is not texts or not run.fits(event.data):
        draft.run = run_of(reader, event.data, text, texts, read)


def _content(data: bytes) -> str | None:
    return _delta(data).content


def _reasoning(data: bytes) -> str | None:
    delta = _delta(data)
    return delta.reasoning_content or delta.reasoning


def _delta(data: bytes) -> Delta:
    choices = _decode_chat(data).choices
    return (choices and choices.first is not UNSET and choices.first.delta) or Delta()


def _text(data: bytes) -> str | None:
    choices = _decode_text(data).choices
    return choices.first.text if choices and choices.first is not UNSET else None


def _read_body(draft: Draft, body: bytes, carrier: Carrier) -> None:
    """A whole completion, as one event."""
    try:
        answer, event = whole_object(_decode_whole, body, needed="choices"), SseEvent(body, len(body))
        _read_payload(draft, answer, event, carrier)
        if "choices" not in answer and draft.error is None and draft.invalid is None:
            raise PayloadError(f'no "choices" in {excerpt(body)}')
        if output_of(draft.counts) is None:
            draft.find_usage(event)
        draft.fail_beside(body)
        seen = len(body) <= _MAX_SEEN_BYTES and any(word in body for word in _SKIPPED_REASONING)
        if seen and not draft.choices[0].reasoning:
            with suppress(PayloadError):
                other_texts(draft, parse_object(body), carrier)
    except PayloadError as e:
        draft.reject(explained(e, body))
    draft.closed = draft.error is None and draft.invalid is None


def _read_scattered(draft: Draft, left: Iterator[SseEvent], carrier: Carrier) -> None:
    """Read all events that are left, if each may have counts at a place that typed decoding skips."""
    if draft.scattered:
        for event in left:
            _read_odd(draft, event, carrier)


def _read_chunk(
    draft: Draft, chunk: _Chunk[Any], event: SseEvent, carrier: Carrier, left: Iterator[SseEvent]
) -> None:
    """A payload that typed decoding took; and those that are ``left``, if it says that they need more."""
    has_choices = chunk.choices and chunk.choices.first is not UNSET
    if not (has_choices or chunk.usage) or event.event == b"error":
        _read_odd(draft, event, carrier)
        return
    try:
        choices = chunk.choices.all() if chunk.choices else []
        texts = [Delta(choice.text) if carrier == "text" else choice.delta for choice in choices]
        deltas = [typed_delta(text) for text in texts]
    except PayloadError:  # more of them than are made
        _read_odd(draft, event, carrier)
        return
    draft.note(chunk.model)
    ends = [(each.index, worse(each.finish_reason, each.native_finish_reason)) for each in choices]
    found = _note_choices(draft, event, ends, deltas)
    usage = chunk.usage
    if usage is None or usage.completion_tokens is None or found.finished or found.kind is DeltaKind.NOTHING:
        if found.finished or found.kind is DeltaKind.NOTHING:
            draft.fail_beside(event.data)
        _note_rest(draft, event, carrier, found, usage_at_hand=usage is not None)
        _read_scattered(draft, left, carrier)
    else:
        draft.note_running(event.end, usage)
        draft.token(event.end, found.kind)


def _read_odd(draft: Draft, event: SseEvent, carrier: Carrier) -> None:
    """A payload that typed decoding refused, or one without choices."""
    read_leniently(draft, event, partial(_read_payload, carrier=carrier))


def _read_payload(draft: Draft, payload: dict[str, Any], event: SseEvent, carrier: Carrier) -> None:
    """The same of a payload in another form: content may come in parts, and only what is read matters."""
    _note_error(draft, payload)
    choices = objects(payload.get("choices"), "choices")
    deltas = [lenient_delta(draft, choice.get(carrier), carrier) for choice in choices]
    usage = payload.get("usage")
    draft.note(payload.get("model"))
    for choice in choices:
        _note_error(draft, choice)
        _note_error(draft, choice.get(carrier))
    private = not (choices or usage) and ("choices" not in payload or error_in(payload) is not None)
    if event.event == b"error" or private:
        draft.strange(payload, event, f'no "choices" in {excerpt(event.data)}')
    ends = [
        (choice.get("index"), worse(choice.get("finish_reason"), choice.get("native_finish_reason")))
        for choice in choices
    ]
    found = _note_choices(draft, event, ends, deltas)
    _note_rest(draft, event, carrier, found, payload, usage_at_hand=isinstance(usage, dict))


@dataclass(frozen=True, slots=True)
class _Found:
    """What an event's choices had; ``choices`` is how many there were."""

    kind: DeltaKind
    choices: int
    finished: bool


def _note_error(draft: Draft, value: Any) -> None:
    if isinstance(value, dict) and (says_error(value.get("error")) or says_error(value.get("errors"))):
        draft.fail(error_text(value))


def _note_choices(
    draft: Draft,
    event: SseEvent,
    ends: Sequence[tuple[Any, Any]],
    deltas: Sequence[tuple[Delta | None, Sequence[ToolPiece]]],
) -> _Found:
    """Write an event's choices into the draft: of each its index and finish reason, and its delta."""
    kind, finished = DeltaKind.NOTHING, False
    for (number, reason), (delta, calls) in zip(ends, deltas, strict=True):
        index = count_of(number) or 0
        draft.note_index(index)
        kind = max(kind, add_delta(draft, index, delta), add_tool_calls(draft, index, calls))
        finished |= draft.choice(index).finish(reason)
    return _Found(kind, len(ends), finished)


def _note_rest(
    draft: Draft,
    event: SseEvent,
    carrier: Carrier,
    found: _Found,
    payload: dict[str, Any] | None = None,
    *,
    usage_at_hand: bool,
) -> None:
    """Note an event's token, if it has one anywhere, its usage, and that it is the end."""
    kind, seeks_text = found.kind, found.choices and found.kind is DeltaKind.NOTHING and not found.finished
    if seeks_text and payload is None:
        with suppress(PayloadError):
            payload = parse_object(event.data)
    if seeks_text and payload is not None:
        kind = other_texts(draft, payload, carrier)
    if draft.find_usage(event, payload) and kind is not DeltaKind.NOTHING and not found.finished:
        draft.scattered = draft.scattered or not usage_at_hand
    if found.finished:
        draft.note_reason(event.end, with_token=kind is not DeltaKind.NOTHING)
    if kind is not DeltaKind.NOTHING:
        draft.token(event.end, kind)
    elif found.choices:
        draft.without_token(event.end, finished=found.finished)
    if found.finished and draft.closed:  # the end was said first
        draft.decide(event.end)


def _run_fields(model: str, stream: bool) -> dict[str, Any]:
    usage = {"stream_options": {"include_usage": True}} if stream else {}
    return model_and_stream(model, stream) | usage


CHAT = Dialect(
    name="chat",
    path="/chat/completions",
    body=lambda messages, fields: {"messages": messages, **fields},
    run_fields=_run_fields,
    read_events=read_chat,
    read_body=partial(_read_body, carrier="message"),
    line_limits=LIMIT_FIELDS,
    vllm_backend="openai-chat",
)

COMPLETIONS = Dialect(
    name="completions",
    path="/completions",
    body=lambda messages, fields: {"prompt": messages[0]["content"], **fields},
    run_fields=_run_fields,
    read_events=read_completions,
    read_body=partial(_read_body, carrier="text"),
    text_only=True,
    line_limits=LIMIT_FIELDS,
    template_tokens=0,
    operation="text_completion",
    vllm_backend="openai",
)
