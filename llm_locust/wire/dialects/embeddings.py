"""Embeddings: a vector for each text, as numbers or as base64 of float32."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from llm_locust.wire.dialects.result_lists import UNSET, ResultList, indexes, positive, results_dialect
from llm_locust.wire.payload import PayloadError
from llm_locust.wire.results import AskedResults, Results
from llm_locust.wire.whole import Sent

#: What a list of numbers is made of, but for its brackets and commas.
_NUMBERS = b"0123456789+-.eE \n\r\t"

#: Digits before the point of a number that is beyond floats of 32 bits.
_LONG = 40

#: The value of each character of base64; _NONE of others.
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_NONE = 0xFF
_VALUES = bytes(_ALPHABET.find(byte) & _NONE for byte in range(256))

#: Three floats of 32 bits are 16 characters, of which each eight are one number here. A float is not finite
#: if all bits of its exponent are 1: for each of the three, in which number these are, and where.
_EXPONENTS = (
    (0, 0b000010 << 16 | 0b011111 << 32 | 0b110000 << 40),
    (1, 0b100000 | 0b000111 << 8 | 0b111100 << 16),
    (1, 0b001000 << 40 | 0b000001 << 48 | 0b111111 << 56),
)
_GROUP = 16
_FLOAT_BYTES = 4


class _Vector(msgspec.Struct, gc=False):
    embedding: Sent = UNSET
    index: Sent = UNSET


class _Embeddings(ResultList, gc=False):
    data: list[_Vector] | msgspec.UnsetType = UNSET


def _vectors(sent: _Embeddings) -> Results | None:
    """A vector for each input: all with equally many dimensions, and with finite numbers."""
    if isinstance(sent.data, msgspec.UnsetType):
        return None
    sizes, texts = set(), []
    for vector in sent.data:
        if isinstance(vector.embedding, msgspec.UnsetType):
            raise PayloadError("a result without an embedding")
        raw = bytes(vector.embedding)
        if raw[:1] == b'"':
            texts.append(text := _base64(raw))
            sizes.add(len(text) * 3 // 4 // _FLOAT_BYTES)
        else:
            sizes.add(_in_numbers(raw))
    _check_finite(texts)
    if len(sizes) > 1:
        raise PayloadError(f"vectors of {min(sizes):,} and of {max(sizes):,} dimensions in one answer")
    last = indexes([vector.index for vector in sent.data], "embedding")
    return Results(len(sent.data), last, next(iter(sizes), None))


def _in_numbers(raw: bytes) -> int:
    """Dimensions of a list of numbers: its commas and one more. No list is made."""
    rest = raw.translate(None, _NUMBERS)
    if rest[:1] != b"[" or rest[-1:] != b"]" or rest.count(b",") != len(rest) - 2:
        raise PayloadError("an embedding is not a list of numbers")
    if not raw[1:-1].strip():
        raise PayloadError("an embedding without any dimension")
    if _is_huge(raw):
        raise PayloadError("an embedding has numbers that are not finite")
    return len(rest) - 1


def _is_huge(raw: bytes) -> bool:
    """Whether a list has a number that no float of 32 bits is, as ``1e999``: one with an exponent of 3 digits
    or more above 0, or with :data:`_LONG` digits before its point. The numbers are not parsed.
    """
    sent = np.frombuffer(raw + bytes(_LONG + 4), np.uint8)  # with zeros behind it, which are no digits
    is_digit = sent - np.uint8(ord("0")) < 10
    exponents = np.flatnonzero((sent == ord("e")) | (sent == ord("E"))) + 1
    exponents += sent[exponents] == ord("+")
    if _have_digits(is_digit, exponents, 3):
        return True
    eighth = is_digit[::8]  # of so many digits at least four of these follow each other
    if not (eighth[:-3] & eighth[1:-2] & eighth[2:-1] & eighth[3:]).any():
        return False
    ends = np.flatnonzero(sent == ord(","))
    starts = np.concatenate(([1], ends + 1))[np.diff(ends, prepend=0, append=len(raw)) > _LONG]
    for mark in b" -":
        starts += sent[starts] == mark
    return _have_digits(is_digit, starts, _LONG)


def _have_digits(is_digit: NDArray[np.bool_], starts: NDArray[np.int64], n: int) -> bool:
    """Whether n digits follow each other from one of the starts on."""
    for place in range(n):
        starts = starts[is_digit[starts + place]]
    return len(starts) > 0


def _base64(raw: bytes) -> bytes:
    """A text in base64 without its padding."""
    if b"\\" in raw:
        raw = raw.replace(b"\\/", b"/")
    text = raw[1:-1].rstrip(b"=")
    padding = len(raw) - 2 - len(text)
    if not text or (len(text) + padding) % 4 or padding > 2 or len(text) * 3 // 4 % _FLOAT_BYTES:
        raise PayloadError("an embedding is not base64 of 32-bit numbers")
    return text


def _check_finite(texts: Sequence[bytes]) -> None:
    """Check the numbers in texts of base64, all at once. To decode 4 MiB would take 15 ms."""
    ends = [text.ljust(-(-len(text) // _GROUP) * _GROUP, b"A") for text in texts]  # with zeros
    values = b"".join(ends).translate(_VALUES)
    if _NONE in values:
        raise PayloadError("an embedding is not base64")
    eights = np.frombuffer(values, dtype="<u8").reshape(-1, 2)
    for column, exponent in _EXPONENTS:
        if (eights[:, column] & exponent == exponent).any():
            raise PayloadError("an embedding has numbers that are not finite")


def _body(texts: list[str], fields: Mapping[str, Any]) -> dict[str, Any]:
    """A single text goes out as a text, not as a list."""
    return {"input": texts if len(texts) > 1 else texts[0], **fields}


def _asked(body: Mapping[str, Any]) -> AskedResults:
    given = body.get("input")
    inputs = 1
    if isinstance(given, list) and not all(
        isinstance(item, int) for item in given
    ):  # not one text's token ids
        inputs = len(given)
    return AskedResults(inputs, inputs, positive(body, "dimensions"))


EMBEDDINGS = results_dialect(
    _Embeddings,
    _vectors,
    _body,
    _asked,
    name="embeddings",
    path="/embeddings",
    template_tokens=2,  # a mark before the text and one after it
    operation="embeddings",
    vllm_backend="openai-embeddings",
)
