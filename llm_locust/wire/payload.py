"""JSON as servers really send it, read without surprises.

Everything here takes any value that JSON can hold and raises nothing but :class:`PayloadError`.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

#: A number of things, as servers send it.
Count = int | float | None

_EXCERPT_CHARS = 80
_ERROR_CHARS = 1000

#: Names of what an error says, the most telling first.
_SAID_KEYS = (
    *("error", "errors", "message", "detail", "msg", "error_message", "error_msg", "errorMessage"),
    *("errmsg", "status_msg", "code"),
)

_COUNT_MAX = 2**53

#: What msgspec raises on bytes that it cannot read as the asked type.
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_decode = msgspec.json.Decoder().decode

#: A document up to this size is decoded in 5 ms, whatever is in it.
_SMALL_BYTES = 64 << 10

#: Most bytes of one document that is decoded into values of any type, most objects and lists in it, most
#: commas, and most digits of an integer. Decoding cannot be broken off: a document of this size holds the
#: event loop for 10 ms. Text counts too, as if it were JSON.
_MAX_UNTYPED_BYTES = 1 << 20
_MAX_CONTAINERS = 20_000
_MAX_COMMAS = 30_000
_MAX_DIGITS = 100

#: A longer document that msgspec refuses is not given to Python's parser, which takes twice as long.
_MAX_SECOND_TRY_BYTES = 128 << 10

#: Most bytes of one event of a stream, unless it may repeat the whole answer.
MAX_EVENT_BYTES = 1 << 20

#: Most bytes of one document that is decoded into typed structs, most commas and backslashes in it, and most
#: colons, those behind names of log probabilities not counted.
MAX_DOCUMENT_BYTES = 7 << 20
_MAX_MARKS = 1_000_000
_MAX_NAMES = 30_000
_LOGPROB_NAMES = (b'"token":', b'"logprob":', b'"bytes":', b'"top_logprobs":')

#: Legacy completions have tokens as names, of negative log probabilities. So many of them are not counted.
_NEGATIVES = (b'":-', b'": -')
_MAX_NEGATIVES = 100_000

_DIGITS = bytes(ord("0") if byte in b"0123456789" else ord(" ") for byte in range(256))
_MANY_DIGITS = b"0" * (_MAX_DIGITS + 1)
_BEFORE_NUMBERS = b"[:, \t\r\n-"

#: Most choices, tool calls or items of one answer, and of one event.
MAX_PARTS = 1024


class PayloadError(ValueError):
    """A payload is not what the API promises; the text says what was wrong and shows its start."""


def excess(data: bytes) -> str | None:
    """What a JSON document has too much of to be decoded into values of any type; None where it can be."""
    if len(data) <= _SMALL_BYTES:
        return None
    if len(data) > _MAX_UNTYPED_BYTES:
        return f"more than {_MAX_UNTYPED_BYTES >> 20} MiB in one JSON document of unexpected form"
    if data.count(b"{") + data.count(b"[") > _MAX_CONTAINERS:
        return f"more than {_MAX_CONTAINERS:,} JSON objects and lists"
    if data.count(b",") > _MAX_COMMAS:
        return f"more than {_MAX_COMMAS:,} JSON values"
    if _has_long_integer(data):
        return f"an integer of more than {_MAX_DIGITS:,} digits"
    return None


def _has_long_integer(data: bytes) -> bool:
    """Whether there may be one: an integer takes the square of its length to read."""
    digits = data.translate(_DIGITS)
    at = digits.find(_MANY_DIGITS)
    while at > 0 and data[at - 1] not in _BEFORE_NUMBERS:
        end = digits.find(b" ", at)
        at = -1 if end < 0 else digits.find(_MANY_DIGITS, end)
    return at > 0


def excerpt(data: bytes) -> str:
    """The payload's first 80 characters, quoted."""
    return repr(data[: 4 * _EXCERPT_CHARS].decode("utf-8", "replace")[:_EXCERPT_CHARS])


class DocumentSize:
    """What decoding a document into typed structs costs, counted while its bytes come.

    Typed decoding makes no object of what it does not look for. What is left to bound are bytes, values, and
    names, each of which may be one that it looks for.
    """

    __slots__ = ("_logprobs", "_marks", "_names", "_negatives", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = self._marks = self._names = self._logprobs = self._negatives = 0

    def add(self, data: bytes) -> None:
        """The document's next bytes."""
        self.size_bytes += len(data)
        self._marks += data.count(b",") + data.count(b"\\")
        self._names += data.count(b":")
        self._logprobs += sum(map(data.count, _LOGPROB_NAMES))
        self._negatives += sum(map(data.count, _NEGATIVES))

    @property
    def excess(self) -> str | None:
        """What the document has too much of to be decoded in 10 ms; None where it can be."""
        if self.size_bytes > MAX_DOCUMENT_BYTES:
            return f"more than {MAX_DOCUMENT_BYTES >> 20} MiB in one JSON document"
        if self._marks > _MAX_MARKS:
            return f"more than {_MAX_MARKS:,} JSON values"
        skipped = max(self._logprobs, min(self._negatives, _MAX_NEGATIVES))  # one name may be among both
        if self.size_bytes > _MAX_UNTYPED_BYTES and self._names - skipped > _MAX_NAMES:
            return f"more than {_MAX_NAMES:,} names beside those of log probabilities"
        return None


def parse(data: bytes, *, retry: bool = True) -> Any:
    """A JSON value of any type.

    Python's own parser has the second try: it takes the NaN and Infinity that Python servers put
    into log probabilities, integers beyond 64 bits, and lone surrogates. Bytes that are not UTF-8
    become U+FFFD.

    Args:
        retry: give it a second try. A document above 128 KiB has none.

    Raises:
        PayloadError: not JSON, or more than can be decoded at once.
    """
    if (what := excess(data)) is not None:
        raise PayloadError(what)
    try:
        return _decode(data)
    except DECODE_ERRORS:
        if not retry or len(data) > _MAX_SECOND_TRY_BYTES:
            raise PayloadError("not JSON") from None
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise PayloadError("not JSON") from None


def parse_object(data: bytes, *, retry: bool = True) -> dict[str, Any]:
    """A JSON object, read as :func:`parse` does.

    Raises:
        PayloadError: as there, or no object.
    """
    value = parse(data, retry=retry)
    if not isinstance(value, dict):
        raise PayloadError("not a JSON object")
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
    """A text, or the texts of a content part or of a list of such, joined; null is empty."""
    if value is None or isinstance(value, str):
        return value or ""
    value = [value] if isinstance(value, dict) else value
    if not isinstance(value, list):
        raise PayloadError(f"{what} is not text")
    texts = (part.get("text") if isinstance(part, dict) else part for part in value)
    return "".join(text for text in texts if isinstance(text, str))


def explained(error: PayloadError, data: bytes) -> str:
    """The error's text, which shows the payload's start in any case."""
    shown = excerpt(data)
    return str(error) if shown in str(error) else f"{error}: {shown}"


def json_text(value: Any) -> str:
    """A text as it is, nothing as an empty one, anything else as JSON without blanks.

    Some servers send a tool call's arguments as an object, not as its JSON text. What only Python's parser
    reads (NaN, lone surrogates) only Python's encoder writes: it takes ten times as long, and a document with
    such values is small.
    """
    if value is None or isinstance(value, str):
        return value or ""
    with suppress(ValueError, RecursionError):
        text = msgspec.json.encode(value).decode()
        if "null" not in text or len(text) > 2 * _MAX_SECOND_TRY_BYTES:  # null may have been NaN
            return text
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
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
    while isinstance(value, dict | list):
        if isinstance(value, list):
            if not value or not isinstance(value[0], dict):
                break
            value = value[0]
            continue
        said = [value[key] for key in _SAID_KEYS if value.get(key) and value[key] is not True]
        if not said:
            break
        where = value.get("loc")  # of FastAPI
        if isinstance(said[0], str) and isinstance(where, list):
            value = f"{'.'.join(map(json_text, where[:8]))}: {said[0]}"
        elif isinstance(said[0], str) and (more := name_of(value.get("message"))) not in (None, said[0]):
            value = f"{said[0]}: {more}"  # a short name, and what it means
        else:
            value = said[0]
    return json_text(value)[:_ERROR_CHARS]


def well_formed(text: str) -> str:
    """Text that can be encoded: surrogate pairs joined, lone surrogates as U+FFFD.

    A server may split a pair over two events: what ends with the first half of one is to be continued.
    """
    if text.isascii():
        return text
    try:
        for begin in range(0, len(text), _SMALL_BYTES):  # in one go it would take fresh memory
            text[begin : begin + _SMALL_BYTES].encode()
    except UnicodeEncodeError:
        return _without_surrogates(text)
    return text


def _without_surrogates(text: str) -> str:
    """The same by columns: Python's own codecs take 1 µs for each surrogate, and there may be 100,000."""
    raw = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8).copy()
    at = np.flatnonzero((raw[:-2] == 0xED) & (raw[1:-1] >= 0xA0))  # of a surrogate's three bytes
    unit = (raw[at + 1] & 0x3F).astype(np.uint32) << 6 | raw[at + 2] & 0x3F
    high = unit < 0xC00
    pairs = np.flatnonzero(high[:-1] & ~high[1:] & (np.diff(at) == 3))
    lone = np.delete(at, np.concatenate([pairs, pairs + 1]))
    for place, byte in enumerate(b"\xef\xbf\xbd"):
        raw[lone + place] = byte
    code = 0x10000 + ((unit[pairs] & 0x3FF) << 10) + (unit[pairs + 1] & 0x3FF)
    for place, shift in enumerate((18, 12, 6, 0)):
        raw[at[pairs] + place] = (0xF0 if place == 0 else 0x80) | (code >> shift) & 0x3F
    kept = np.ones(len(raw), np.bool_)
    kept[at[pairs] + 4] = kept[at[pairs] + 5] = False  # six bytes have become four
    return raw[kept].tobytes().decode()


# --- JSON lists of typed objects, of which no more than a few are made, however many a server sends


T = TypeVar("T")


class AtMost4(msgspec.Struct, Generic[T], array_like=True, gc=False):
    """Up to four objects. Five are made: the rest of the list is skipped."""

    first: T | msgspec.UnsetType = msgspec.UNSET
    second: T | msgspec.UnsetType = msgspec.UNSET
    third: T | msgspec.UnsetType = msgspec.UNSET
    fourth: T | msgspec.UnsetType = msgspec.UNSET
    fifth: T | msgspec.UnsetType = msgspec.UNSET

    def all(self) -> list[T]:
        """The objects.

        Raises:
            PayloadError: there are more.
        """
        found: tuple[T | msgspec.UnsetType, ...] = msgspec.structs.astuple(self)
        if found[-1] is not msgspec.UNSET:
            raise PayloadError(f"more than {len(found) - 1} objects")
        return [item for item in found if not isinstance(item, msgspec.UnsetType)]


class AtMost16(AtMost4[T], Generic[T], array_like=True, gc=False):
    """Up to 16 objects. To make 17 takes no longer than to make five, in a document that comes once."""

    o6: T | msgspec.UnsetType = msgspec.UNSET
    o7: T | msgspec.UnsetType = msgspec.UNSET
    o8: T | msgspec.UnsetType = msgspec.UNSET
    o9: T | msgspec.UnsetType = msgspec.UNSET
    o10: T | msgspec.UnsetType = msgspec.UNSET
    o11: T | msgspec.UnsetType = msgspec.UNSET
    o12: T | msgspec.UnsetType = msgspec.UNSET
    o13: T | msgspec.UnsetType = msgspec.UNSET
    o14: T | msgspec.UnsetType = msgspec.UNSET
    o15: T | msgspec.UnsetType = msgspec.UNSET
    o16: T | msgspec.UnsetType = msgspec.UNSET
    o17: T | msgspec.UnsetType = msgspec.UNSET


# --- Whole answers: JSON objects of known form, of which little is read and much may be skipped
#
# A skeleton is decoded first: structs for the objects that lead to the fields that are read, and ``Raw``
# for these. Of all else, log probabilities above all, nothing is made. So the size of what is to be read is
# known in advance.


#: A field of a skeleton: its JSON, or not sent.
Sent = msgspec.Raw | msgspec.UnsetType

#: Most bytes of what is read, as it stands in the JSON.
MAX_READ_BYTES = 2 << 20

_decode_text = msgspec.json.Decoder(str).decode


def whole_object(
    decode: Callable[[bytes], msgspec.Struct], data: bytes, *, needed: str = "", retry: bool = True
) -> dict[str, Any]:
    """What the skeleton that ``decode`` gives has of a JSON object, fields that were not sent left out.

    An object that does not fit it (more than 16 objects in a list, a list where an object should be) is read
    as :func:`~llm_locust.wire.payload.parse_object` does, within the bounds of that.

    Args:
        needed: an object without this field does not fit.

    Raises:
        PayloadError: no JSON object, or more than can be read at once.
    """
    leaves: list[tuple[Any, Any]] = []
    try:
        found: dict[str, Any] = _outline(decode(data), leaves)
    except (*DECODE_ERRORS, PayloadError):
        return parse_object(data, retry=retry)
    if needed and needed not in found:
        return parse_object(data, retry=retry)
    if sum(len(memoryview(where[key])) for where, key in leaves) > MAX_READ_BYTES:
        raise PayloadError(f"more than {MAX_READ_BYTES >> 20} MiB of text in one JSON document")
    for where, key in leaves:
        where[key] = _value(where[key])
    return found


def _outline(value: Any, leaves: list[tuple[Any, Any]]) -> Any:
    """A skeleton as dicts and lists, and where in it there is JSON that was not read."""
    if isinstance(value, AtMost4):
        return [_outline(item, leaves) for item in value.all()]
    if not isinstance(value, msgspec.Struct):
        return value
    sent = {key: item for key, item in msgspec.structs.asdict(value).items() if item is not msgspec.UNSET}
    for key, item in sent.items():
        if isinstance(item, msgspec.Raw):
            leaves.append((sent, key))
        else:
            sent[key] = _outline(item, leaves)
    return sent


def _value(sent: msgspec.Raw) -> Any:
    with suppress(*DECODE_ERRORS):
        return _decode_text(sent)  # of any length, and with any number of commas
    return parse(bytes(sent))


# --- Answers of APIs that give a result for each input (a vector, a score) and generate no token


#: Most inputs of one request, as in OpenAI's API.
MAX_INPUTS = 2048


@dataclass(frozen=True, slots=True)
class AskedResults:
    """What a request asks for.

    Attributes:
        inputs: its texts, documents.
        results: the number of results that its answer must have.
        dimensions: of each vector, where the request says so.
    """

    inputs: int
    results: int
    dimensions: int | None = None


@dataclass(frozen=True, slots=True)
class Results:
    """What an answer has: ``count`` results, the largest index among them, and the vectors' dimensions."""

    count: int
    last: int
    dimensions: int | None = None


def mismatch(asked: AskedResults, got: Results) -> str | None:
    """How an answer differs from what was asked for; None where it does not."""
    if got.count != asked.results:
        return (
            f"the answer has {got.count:,} result{'s' * (got.count != 1)}, {asked.results:,} were asked for"
        )
    if got.last >= asked.inputs:
        inputs = f"{asked.inputs:,} input{'s' * (asked.inputs != 1)}"
        return f"a result has index {got.last}, the request has {inputs}"
    if asked.dimensions is not None and got.dimensions != asked.dimensions:
        return f"vectors of {got.dimensions:,} dimensions, {asked.dimensions:,} were asked for"
    return None
