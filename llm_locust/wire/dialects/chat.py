"""Chat completions and legacy completions: their rows, chunks of a stream, and whole bodies.

A chunk that holds nothing but the next piece of text takes the short way, which is most of what
a client ever reads. Typed decoding makes no object of what is not asked for, such as log probabilities,
and few of what is. What is odd, but still has its text where it belongs, is read again leniently; the
rest is recorded as invalid.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from llm_locust.wire.dialects.dialect import LIMIT_FIELDS, Dialect, model_and_stream
from llm_locust.wire.draft import DeltaKind, Draft, Pieces, read_leniently, template_of
from llm_locust.wire.ends import error_in, says_error, worse
from llm_locust.wire.foreign_text import clean_name
from llm_locust.wire.payload import (
    DECODE_ERRORS,
    MAX_PARTS,
    AtMost4,
    AtMost16,
    Count,
    PayloadError,
    Sent,
    count_of,
    error_text,
    excerpt,
    explained,
    json_text,
    name_of,
    objects,
    optional_object,
    parse_object,
    text_of,
    whole_object,
)
from llm_locust.wire.sse import SseEvent
from llm_locust.wire.usage import Running, output_of

# --- What a choice holds: texts and tool calls, typed or read leniently
#
# ``content``, ``reasoning_content`` and ``reasoning`` are read from every event. Where these hold nothing,
# :func:`other_texts` looks at the rest: reasoning under any other name is read, any other text is noted as
# one that is not read.


#: The field of a choice that holds its text.
Carrier = Literal["delta", "message", "text"]


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None
    input: str | None = None


_NO_FUNCTION = _Function()


class _ToolCall(msgspec.Struct, gc=False):
    id: str | None = None
    index: Count = None
    function: _Function | None = None
    custom: _Function | None = None


class Delta(msgspec.Struct, gc=False):
    """What is new in a choice; of a whole answer the message."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: AtMost4[_ToolCall] | None = None
    function_call: _Function | None = None
    error: None = None


#: A piece of a tool call: the key of the call (None: not sent), its id, its name, a piece of its arguments.
ToolPiece = tuple[int | str | None, Any, Any, str]


def typed_call(call: _ToolCall, key: int | None) -> ToolPiece:
    """A tool call's piece, under this key."""
    function = call.function or call.custom or _NO_FUNCTION
    return key, call.id, function.name, function.arguments or function.input or ""


def typed_delta(delta: Delta | None) -> tuple[Delta | None, list[ToolPiece]]:
    """Texts and tool calls of a typed delta."""
    if delta is None:
        return None, []
    sent = delta.tool_calls.all() if delta.tool_calls else ()
    calls = [typed_call(call, count_of(call.index)) for call in sent]
    if legacy := delta.function_call:
        calls.append(("function_call", None, legacy.name, legacy.arguments or ""))
    return delta, calls


def lenient_delta(draft: Draft, value: Any, carrier: Carrier) -> tuple[Delta | None, list[ToolPiece]]:
    """The same of a choice's ``delta``, ``message`` or ``text`` as any value; a message's calls have their
    places as keys."""
    if carrier == "text":
        return Delta(text_of(value, carrier)), []
    delta = optional_object(value, carrier)
    if delta is None:
        return None, []
    content, thoughts = _divided(delta.get("content"))
    texts = Delta(
        text_of(content, "content"),
        text_in(delta.get("reasoning_content")) or thoughts,
        text_in(delta.get("reasoning")),
        text_of(delta.get("refusal"), "refusal"),
    )
    return texts, _lenient_calls(draft, delta, carrier)


def _divided(content: Any) -> tuple[Any, str]:
    """A content without its parts of reasoning, and the text of these."""
    parts = [content] if isinstance(content, dict) else content
    if not isinstance(parts, list) or len(parts) > MAX_PARTS:
        return content, ""
    left, thoughts = [], ""
    for part in parts:
        thought = ""
        if isinstance(part, dict):
            is_one = _REASONING.search(name_of(part.get("type")) or "") is not None
            thought = text_in(part) if is_one else "".join(text_in(each) for _, each in _thoughts(part))
        thoughts += thought
        left += [] if thought else [part]
    return left, thoughts


def _thoughts(value: dict[str, Any]) -> list[tuple[str, Any]]:
    """Fields with the name of reasoning."""
    fields = list(value.items())[:MAX_PARTS]
    return [(name, each) for name, each in fields if _REASONING.search(name) and not _ABOUT.search(name)]


def _lenient_calls(draft: Draft, delta: dict[str, Any], carrier: Carrier) -> list[ToolPiece]:
    given = delta.get("tool_calls")
    given = [call for call in given if isinstance(call, dict)] if isinstance(given, list) else []
    if len(given) > MAX_PARTS:
        draft.reject(f"more than {MAX_PARTS:,} tool calls in one event")
    calls: list[ToolPiece] = []
    for place, call in enumerate(given[:MAX_PARTS]):
        function = call.get("function") or call.get("custom")
        function = function if isinstance(function, dict) else {}
        arguments = json_text(function.get("arguments", function.get("input")))
        key = place if carrier == "message" else count_of(call.get("index"))
        calls.append((key, call.get("id"), function.get("name"), arguments))
    if isinstance(legacy := delta.get("function_call"), dict):
        calls.append(("function_call", None, legacy.get("name"), json_text(legacy.get("arguments"))))
    return calls


def add_delta(draft: Draft, index: int, delta: Delta | None) -> DeltaKind:
    """Write the texts into the draft."""
    if delta is None:
        return DeltaKind.NOTHING
    return draft.choice(index).add(
        text=delta.content or "",
        reasoning=delta.reasoning_content or delta.reasoning or "",  # some servers send both, the same
        refusal=delta.refusal or "",
    )


#: Names of reasoning, and of what is about it.
_REASONING = re.compile(r"reason|think|thought|(?:^|_)cot(?:_|$)", re.IGNORECASE)
_ABOUT = re.compile(
    r"sign|token|finish|stop|effort|time|duration|status|type|count|crypt|budget|(?:^|_)ids?$", re.IGNORECASE
)

#: Fields of a delta or a choice that are no text, or are read elsewhere.
_NO_TEXT = frozenset(
    (
        *("role", "name", "index", "object", "model", "provider", "created", "status", "state", "phase"),
        *("service_tier", "system_fingerprint", "language", "annotations", "citations", "tool_calls"),
        *("function_call", "logprobs", "prompt_logprobs", "provider_specific_fields", "usage", "error"),
        *("content", "refusal", "reasoning_content", "reasoning", "delta", "metadata", "matched_stop"),
        *("channel", "recipient", "modality", "author", "agent", "node", "voice"),
    )
)

#: Fields beside the delta that may have its text. Others are a server's own.
_BESIDE = frozenset({"text", "message", "output_text", "generated_text", "content", "delta"})

#: Where the text is in an object.
_TEXT_KEYS = ("text", "content", "thinking", "summary", "reasoning", "value", "output_text", "transcript")


def text_in(value: Any, depth: int = 3) -> str:
    """The text of a text, of an object, or of a list of these; of anything else there is none."""
    if isinstance(value, str):
        return value
    if not depth:
        return ""
    if isinstance(value, list):
        return "".join(text_in(item, depth - 1) for item in value[:MAX_PARTS])
    if isinstance(value, dict):
        return next((text for key in _TEXT_KEYS if (text := text_in(value.get(key), depth - 1))), "")
    return ""


def other_texts(draft: Draft, payload: dict[str, Any], carrier: Carrier) -> DeltaKind:
    """Read an event that has no text where an API has it.

    Reasoning goes into the draft. Any other text is noted with the name of its field.
    """
    kind = DeltaKind.NOTHING
    for choice in objects(payload.get("choices"), "choices"):
        for name, value in _others(choice, carrier):
            text = text_in(value)
            if not text:
                continue
            if not _REASONING.search(name):
                draft.unknown_text(name, text)
                continue
            drafted = draft.choice(count_of(choice.get("index")) or 0)
            if not drafted.reasoning:
                draft.summarised = "summar" in name.lower() or _is_summary(value)
            kind = max(kind, drafted.add(reasoning=text))
            break  # the same again, under a further name
        else:
            draft.beside = draft.beside or _named_object(choice.get(carrier))
    return kind


def _named_object(held: Any) -> str:
    """The name of the first field with an object or a list, such as ``audio``; empty without one."""
    fields = list(held.items())[:MAX_PARTS] if isinstance(held, dict) else []
    found = next((name for name, value in fields if value and isinstance(value, dict | list)), None)
    return "" if found is None else f'"{clean_name(found)}"'


def _others(choice: dict[str, Any], carrier: Carrier) -> Iterator[tuple[str, Any]]:
    """Fields of a choice that may have a text and are not read elsewhere, those of reasoning first."""
    held = choice.get(carrier)
    fields = list(held.items())[:MAX_PARTS] if isinstance(held, dict) else []
    beside = [(name, value) for name, value in choice.items() if name in _BESIDE and name != carrier]
    inner = [field for _, value in fields + beside if isinstance(value, dict) for field in _thoughts(value)]
    others = [field for field in fields if field[0] not in _NO_TEXT and not _ABOUT.search(field[0])]
    known = [*others, *_thoughts(choice), *inner, *beside]
    return iter(sorted(known, key=lambda field: _REASONING.search(field[0]) is None))


def _is_summary(value: Any) -> bool:
    first = value[0] if isinstance(value, list) and value else value
    return isinstance(first, dict) and "summar" in str(first.get("type")).lower()


def add_tool_calls(draft: Draft, index: int, calls: Sequence[ToolPiece]) -> DeltaKind:
    """A piece belongs to the call of its ``index``, else of its ``id``, else to the last one.

    One with another id and a name begins a call: Gemini gives all of them the same index.
    """
    kind = DeltaKind.NOTHING
    for key, id_, name, arguments in calls:
        known = None if key is None or not name else draft.tools.get((index, key))
        if known is not None and known.id and name_of(id_) not in (None, known.id):
            key = name_of(id_)
        if key is None:
            key = name_of(id_)
        if key is None:
            key = next((k for i, k in reversed(draft.tools) if i == index), 0)
        kind = max(kind, draft.tool(index, key).add(arguments, id_, name))
    return kind


# --- Chunks and whole bodies


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
        _note_template(draft, read_chat, *plain)


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
        _note_template(draft, read_completions, *plain)


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


def _note_template(
    draft: Draft,
    reader: Callable[..., None],
    event: SseEvent,
    text: str,
    texts: Pieces,
    read: Callable[[bytes], str | None],
) -> None:
    """Note what the next events may be like: the last one that had nothing but a piece of text."""
    template = draft.template
    if template is None or template.texts is not texts or not template.fits(event.data):
        draft.template = template_of(reader, event.data, text, texts, read)


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
    if found.kind is DeltaKind.REASONING and not draft.token_ends:
        draft.summarised = b'"reasoning.summary"' in event.data
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
    kind, is_last = found.kind, found.finished and draft.token_ends
    seeks_text = found.choices and kind is DeltaKind.NOTHING and not is_last
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
