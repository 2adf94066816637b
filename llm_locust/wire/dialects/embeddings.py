"""Embeddings: a vector for each text, as numbers or as base64 of float32."""

import binascii
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from llm_locust.wire.dialects.dialect import Dialect, Message
from llm_locust.wire.dialects.result_lists import (
    UNSET,
    ResultList,
    indexes,
    no_events,
    no_stream,
    positive,
    read_result_list,
    texts_of,
)
from llm_locust.wire.draft import Draft
from llm_locust.wire.payload import PayloadError
from llm_locust.wire.results import AskedResults, Results
from llm_locust.wire.whole import Sent

#: What a list of numbers is made of, but for its brackets and commas.
_NUMBERS = b"0123456789+-.eE \n\r\t"

#: Most bytes of base64 in one answer that are decoded, to find numbers that are not finite: 5 ms.
_MAX_DECODED_BYTES = 1 << 20

_FLOAT_BYTES = 4


class _Vector(msgspec.Struct, gc=False):
    embedding: Sent = UNSET
    index: Sent = UNSET


class _Embeddings(ResultList, gc=False):
    data: list[_Vector] | msgspec.UnsetType = UNSET


_decode = msgspec.json.Decoder(_Embeddings).decode


def read_embeddings(draft: Draft, body: bytes) -> None:
    """An answer with a vector for each input.

    All vectors have equally many dimensions, and finite numbers. In base64, that is checked for the first
    :data:`_MAX_DECODED_BYTES` of an answer; of the rest only the lengths are read.
    """
    read_result_list(draft, body, _decode, _vectors)


def _vectors(sent: _Embeddings) -> Results | None:
    if isinstance(sent.data, msgspec.UnsetType):
        return None
    left, sizes = _MAX_DECODED_BYTES, set()
    for vector in sent.data:
        if isinstance(vector.embedding, msgspec.UnsetType):
            raise PayloadError("a result without an embedding")
        raw = bytes(vector.embedding)
        sizes.add(_in_base64(raw, check=left >= len(raw)) if raw[:1] == b'"' else _in_numbers(raw))
        left -= len(raw)
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
    return len(rest) - 1


def _in_base64(raw: bytes, *, check: bool) -> int:
    """Dimensions of a text in base64, by its length; ``check`` also looks at the numbers."""
    if b"\\" in raw:
        raw = raw.replace(b"\\/", b"/")
    text = raw[1:-1]
    size = len(text) // 4 * 3 - text[-2:].count(b"=")
    if not size or len(text) % 4 or size % _FLOAT_BYTES:
        raise PayloadError("an embedding is not base64 of 32-bit numbers")
    if not check:
        return size // _FLOAT_BYTES
    try:
        numbers = np.frombuffer(binascii.a2b_base64(text, strict_mode=True), dtype="<f4")
    except (binascii.Error, ValueError):
        raise PayloadError("an embedding is not base64") from None
    if not np.isfinite(numbers).all():
        raise PayloadError("an embedding has numbers that are not finite")
    return len(numbers)


def _body(messages: Sequence[Message], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Each message is an input; a single one goes out as a text, not as a list."""
    texts = texts_of(messages)
    return {"input": texts if len(texts) > 1 else texts[0], **fields}


def _asked(body: Mapping[str, Any]) -> AskedResults:
    given = body.get("input")
    inputs = 1
    if isinstance(given, list) and not all(
        isinstance(item, int) for item in given
    ):  # not one text's token ids
        inputs = len(given)
    return AskedResults(inputs, inputs, positive(body, "dimensions"))


EMBEDDINGS = Dialect(
    name="embeddings",
    path="/embeddings",
    body=_body,
    run_fields=no_stream,
    read_events=no_events,
    read_body=read_embeddings,
    template_tokens=2,  # a mark before the text and one after it
    operation="embeddings",
    asked=_asked,
    vllm_backend="openai-embeddings",
)
