"""JSON as servers really send it, read without surprises.

Everything here takes any value that JSON can hold and raises nothing but :class:`PayloadError`.
"""

import json
from typing import Any

import msgspec

_EXCERPT_CHARS = 80
_ERROR_CHARS = 1000
_COUNT_MAX = 2**53

#: What msgspec raises on bytes that it cannot read as the asked type.
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_decode = msgspec.json.Decoder().decode

#: Most bytes of one JSON document, most objects and lists in it, and most commas. Decoding cannot be
#: broken off: a document of this size holds the event loop for 20 ms. Text counts too, as if it were JSON.
MAX_DOCUMENT_BYTES = 4 << 20
_MAX_CONTAINERS = 150_000
_MAX_COMMAS = 300_000

_LONG_TEXT_CHARS = 1_000_000

#: Most choices, tool calls or items of one answer, and of one event.
MAX_PARTS = 1024


class PayloadError(ValueError):
    """A payload is not what the API promises; the text says what was wrong and shows its start."""


def excess(data: bytes) -> str | None:
    """What a JSON document has too much of to be decoded at once; None where it can be."""
    if len(data) > MAX_DOCUMENT_BYTES:
        return f"more than {MAX_DOCUMENT_BYTES >> 20} MiB in one JSON document"
    if data.count(b"{") + data.count(b"[") > _MAX_CONTAINERS:
        return f"more than {_MAX_CONTAINERS:,} JSON objects and lists"
    if data.count(b",") > _MAX_COMMAS:
        return f"more than {_MAX_COMMAS:,} JSON values"
    return None


def excerpt(data: bytes) -> str:
    """The payload's first 80 characters, quoted."""
    return repr(data[: 4 * _EXCERPT_CHARS].decode("utf-8", "replace")[:_EXCERPT_CHARS])


def parse_object(data: bytes) -> dict[str, Any]:
    """A JSON object.

    Python's own parser has the second try: it takes the NaN and Infinity that Python servers put
    into log probabilities, integers beyond 64 bits, and lone surrogates. Bytes that are not UTF-8
    become U+FFFD.

    Raises:
        PayloadError: not JSON, or JSON but no object.
    """
    try:
        value = _decode(data)
    except DECODE_ERRORS:
        try:
            value = json.loads(data.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            raise PayloadError(f"not JSON: {excerpt(data)}") from None
    if not isinstance(value, dict):
        raise PayloadError(f"not a JSON object: {excerpt(data)}")
    return value


def optional_object(value: Any, what: str) -> dict[str, Any] | None:
    """An object or nothing; ``what`` names the field in the error."""
    if value is None or isinstance(value, dict):
        return value
    raise PayloadError(f"{what} is not an object")


def objects(value: Any, what: str) -> list[dict[str, Any]]:
    """A list of objects; null is an empty one."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
        raise PayloadError(f"{what} is not a list of objects")
    if len(value) > MAX_PARTS:
        raise PayloadError(f"{what} has more than {MAX_PARTS:,} objects")
    return value


def text_of(value: Any, what: str) -> str:
    """A text, or the texts of a list of content parts, joined; null is empty."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise PayloadError(f"{what} is not text")
    texts = (part.get("text") if isinstance(part, dict) else part for part in value)
    return "".join(text for text in texts if isinstance(text, str))


def thinking_of(content: Any) -> str:
    """The reasoning that some servers put among the content's parts, under ``thinking``."""
    parts = content if isinstance(content, list) else []
    return "".join(text_of(p.get("thinking"), "thinking") for p in parts if isinstance(p, dict))


def explained(error: PayloadError, data: bytes) -> str:
    """The error's text, which shows the payload's start in any case."""
    shown = excerpt(data)
    return str(error) if shown in str(error) else f"{error}: {shown}"


def json_text(value: Any) -> str:
    """A text as it is, nothing as an empty one, anything else as JSON.

    Some servers send a tool call's arguments as an object, not as its JSON text.
    """
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return repr(type(value))


def name_of(value: Any) -> str | None:
    """A text that is not empty, else nothing."""
    return value if isinstance(value, str) and value else None


def count_of(value: Any) -> int | None:
    """A number of things: a whole number from 0 on, else nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value <= _COUNT_MAX and value == int(value) else None


def error_text(value: Any) -> str:
    """The message of an error, in whatever form the server gave it."""
    while isinstance(value, dict):
        inner = next((value[k] for k in ("error", "message", "detail", "code") if value.get(k)), None)
        if inner is None:
            break
        value = inner
    return json_text(value)[:_ERROR_CHARS]


def well_formed(text: str) -> str:
    """Text that can be encoded: surrogate pairs joined, lone surrogates as U+FFFD.

    Applied to whole texts, because a server may split a pair over two events. In a text of more than a
    million characters each surrogate becomes ``?``, those of a pair too.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        if len(text) > _LONG_TEXT_CHARS:  # millions of surrogates would take seconds below
            return text.encode("utf-8", "replace").decode()
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
