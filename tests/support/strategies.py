"""Hypothesis strategies that several test modules share."""

from typing import Any

from hypothesis import strategies as st

#: What makes event streams hard: line ends, field names, a BOM, characters that end a line elsewhere.
_LINE_ENDS = [b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r", b"\r\n\r\n"]
_FIELDS = [b"data", b"data:", b"data: ", b"event:", b"event: error", b"id: 7", b"retry: 10", b"unknown: x"]
_OTHER = [b":", b" ", b"x", b": comment", b"data: {}\n\n", b"[DONE]", b"\xef\xbb\xbf", b"\xef", b"\xff"]
_NO_LINE_ENDS = [b"\f", b"\v", b"\0", "\u2028".encode(), "\u0085".encode(), "é😀".encode()]
_PIECES = [*_LINE_ENDS, *_FIELDS, *_OTHER, *_NO_LINE_ENDS]


def streams() -> st.SearchStrategy[bytes]:
    """Bytes that look much like an event stream, whole or not, and any other bytes among them."""
    return st.lists(st.sampled_from(_PIECES) | st.binary(max_size=4), max_size=40).map(b"".join)


@st.composite
def cuts(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The data cut into pieces at any places; some may be empty."""
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


_LINE_TEXT = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)


@st.composite
def complete_streams(draw: st.DrawFn) -> bytes:
    """Valid UTF-8 without a BOM whose every event is ended; line ends and fields mixed freely."""
    fields = st.sampled_from(["data: ", "data:", "data: ", ": ", "event: ", "id: ", "other: "])
    lines: list[str] = []
    for _ in range(draw(st.integers(0, 6))):
        lines += [draw(fields) + draw(_LINE_TEXT) for _ in range(draw(st.integers(0, 4)))] + [""]
    ends = draw(st.sampled_from(["\n", "\r", "\r\n"])) if draw(st.booleans()) else None
    ended = (line + (ends or draw(st.sampled_from(["\n", "\r", "\r\n"]))) for line in lines)
    return "".join(ended).encode()


_KEYS = [
    *("choices", "index", "delta", "message", "content", "text", "reasoning", "refusal", "finish_reason"),
    *("tool_calls", "function", "function_call", "arguments", "id", "name", "error", "usage", "model"),
    *("type", "response", "output", "item", "item_id", "summary", "object", "thinking", "status"),
]

#: JSON values, with what Python servers write although JSON does not have it.
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4),
    max_leaves=12,
)


@st.composite
def spoiled(draw: st.DrawFn, payload: Any) -> Any:
    """The payload with one of its values, at any depth, replaced by any other."""
    places = list(payload) if isinstance(payload, dict) else [*range(len(payload))]
    if not places:
        return draw(json_values)
    place = draw(st.sampled_from(places))
    inner = payload[place]
    deeper = isinstance(inner, dict | list) and draw(st.integers(0, 4)) > 0
    value = draw(spoiled(inner)) if deeper else draw(json_values)
    if isinstance(payload, dict):
        return {**payload, place: value}
    return [*payload[:place], value, *payload[place + 1 :]]


_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5) | st.none()
_deltas = st.fixed_dictionaries(
    {},
    optional={
        "role": st.just("assistant"),
        "content": _texts,
        "reasoning_content": _texts,
        "refusal": _texts,
        "tool_calls": st.lists(
            st.fixed_dictionaries(
                {"index": st.integers(0, 1), "function": st.fixed_dictionaries({"arguments": _texts})}
            ),
            max_size=2,
        ),
    },
)
_choices = st.fixed_dictionaries(
    {
        "index": st.integers(0, 1),
        "delta": _deltas,
        "finish_reason": st.sampled_from([None, None, None, "stop"]),
    }
)
_usages = st.fixed_dictionaries(
    {name: st.integers(0, 9) for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
)

#: Chunks as the API describes them, each with up to two choices.
chat_chunks = st.fixed_dictionaries(
    {
        "id": st.just("c"),
        "object": st.just("chat.completion.chunk"),
        "created": st.just(1),
        "model": st.just("m"),
        "choices": st.lists(_choices, max_size=2),
        "usage": st.none() | _usages,
    }
)
