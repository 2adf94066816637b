"""Embeddings and rerank: APIs whose answer is a list of results, one for each input."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.draft import Draft
from llm_locust.wire.payload import (
    DECODE_ERRORS,
    AskedResults,
    PayloadError,
    Results,
    Sent,
    error_text,
    excerpt,
    explained,
    parse,
)
from llm_locust.wire.sse import SseEvent
from llm_locust.wire.usage import gather, usage_of

# --- Reading of answers that are a list of results, one for each input: what is common to these APIs
#
# An answer of 4 MiB holds the event loop for some 10 ms. Of its numbers no values are made.


#: Most bytes of one answer.
MAX_BYTES = 4 << 20

#: Most objects of one answer. A result of a rerank has two, and its document's text may have braces.
_MAX_OBJECTS = 20_000

#: Most bytes of one number, of a name, of usage, of an error.
_MAX_NUMBER_BYTES = 64
_MAX_LEAF_BYTES = 64 << 10

UNSET = msgspec.UNSET


class ResultList(msgspec.Struct, gc=False):
    """What answers of these APIs have beside their results."""

    model: Sent = UNSET
    usage: Sent = UNSET
    meta: Sent = UNSET  # Cohere's place of usage
    object: Sent = UNSET
    error: Sent = UNSET
    message: Sent = UNSET
    detail: Sent = UNSET


def results_dialect(
    form: type[ResultList],
    results: Callable[[Any], Results | None],
    body: Callable[[list[str], Mapping[str, Any]], dict[str, Any]],
    asked: Callable[[Mapping[str, Any]], AskedResults],
    **row: Any,
) -> Dialect:
    """The row of an API whose answers are a list of results.

    Args:
        form: the skeleton of an answer.
        results: of a skeleton; None where it has no list of them. Raises PayloadError for a wrong one.
        body: a request's fields of its texts and of further fields.
        asked: what a request's fields ask for.
        row: the other attributes of the :class:`~llm_locust.wire.dialects.dialect.Dialect`.
    """
    decode = msgspec.json.Decoder(form).decode
    return Dialect(
        body=lambda messages, fields: body([message["content"] for message in messages], fields),
        run_fields=lambda model, stream: {"model": model},
        read_events=_no_events,
        read_body=lambda draft, answer: _read_result_list(draft, answer, decode, results),
        asked=asked,
        **row,
    )


def _read_result_list(
    draft: Draft,
    body: bytes,
    decode: Callable[[bytes], ResultList],
    results: Callable[[Any], Results | None],
) -> None:
    """Write a whole answer into the draft."""
    try:
        if len(body) > MAX_BYTES:
            raise PayloadError(
                f"more than {MAX_BYTES >> 20} MiB in one answer: send fewer inputs a request, or ask for "
                'base64 ("encoding_format")'
            )
        if body.count(b"{") > _MAX_OBJECTS:
            raise PayloadError(f"more than {_MAX_OBJECTS:,} JSON objects")
        _read(draft, decode(body), body, results)
    except DECODE_ERRORS:
        why = "NaN is no JSON" if b"NaN" in body else "not an answer of this API"
        draft.reject(f"{why}: {excerpt(body[:400])}")
    except PayloadError as e:
        draft.reject(explained(e, body[:400]))
    draft.closed = draft.error is None and draft.invalid is None


def _read(draft: Draft, sent: ResultList, body: bytes, results: Callable[[Any], Results | None]) -> None:
    found = None
    if error := _leaf(sent.error):
        draft.fail(error_text(error))
    elif (found := results(sent)) is None:
        draft.fail_beside(body)
        if _leaf(sent.object) == "error" or sent.message or sent.detail:
            said = {"message": _leaf(sent.message), "detail": _leaf(sent.detail)}
            draft.fail(error_text(said))
        else:
            draft.refuse(SseEvent(body[:400], len(body)), f"no list of results in {excerpt(body[:400])}")
    draft.results = found
    draft.note(_leaf(sent.model), _usage(_leaf(sent.usage), _leaf(sent.meta)))


def _leaf(sent: Sent) -> Any:
    """The value of a short piece of JSON; None for a long or a wrong one."""
    if isinstance(sent, msgspec.UnsetType) or len(memoryview(sent)) > _MAX_LEAF_BYTES:
        return None
    with suppress(PayloadError):
        return parse(bytes(sent))
    return None


def _usage(usage: Any, meta: Any) -> dict[str, Any] | None:
    """Usage with the input's tokens: ``prompt_tokens``, or ``total_tokens``, for there is no output."""
    counts: dict[str, int] = {}
    gather(counts, {"usage": usage, "meta": meta})
    found = usage_of(counts)
    return None if found is None else {"prompt_tokens": found.input_tokens or found.total_tokens}


def finite(sent: Sent, what: str) -> float:
    """A number; ``what`` names it in the error.

    Raises:
        PayloadError: none, or not a finite one.
    """
    shown = b"" if isinstance(sent, msgspec.UnsetType) else bytes(memoryview(sent)[: _MAX_NUMBER_BYTES + 1])
    try:
        value = float(shown) if len(shown) <= _MAX_NUMBER_BYTES else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise PayloadError(f"{what} is not a finite number: {excerpt(shown) if shown else 'not sent'}")
    return value


def indexes(sent: Sequence[Sent], what: str) -> int:
    """The largest of the results' indexes; -1 without any result. They need not be in order.

    Raises:
        PayloadError: one is no whole number from 0, or is there twice.
    """
    seen: set[int] = set()
    for item in sent:
        value = finite(item, f"the index of {what}")
        if value < 0 or value != int(value) or value > 2**31:
            raise PayloadError(f"the index of {what} is {value:g}")
        if value in seen:
            raise PayloadError(f"two {what}s have the index {value:g}")
        seen.add(int(value))
    return max(seen, default=-1)


def _no_events(draft: Draft, events: Sequence[SseEvent]) -> None:
    """These APIs send no stream."""
    draft.reject("an event stream, where one JSON object was expected")


def positive(fields: Mapping[str, Any], name: str) -> int | None:
    """A count in a body; None where it is not there, or is none."""
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


# --- Embeddings: a vector for each text, as numbers or as base64 of float32


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


# --- Rerank in the form of Cohere and Jina, as vLLM serves it: the relevance of documents to a query


class _Scored(msgspec.Struct, gc=False):
    index: Sent = UNSET
    relevance_score: Sent = UNSET


class _Ranking(ResultList, gc=False):
    results: list[_Scored] | msgspec.UnsetType = UNSET


def _scores(sent: _Ranking) -> Results | None:
    if isinstance(sent.results, msgspec.UnsetType):
        return None
    for result in sent.results:
        finite(result.relevance_score, "a relevance_score")
    return Results(len(sent.results), indexes([result.index for result in sent.results], "result"))


def _rerank_body(texts: list[str], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The first text is the query, the others are the documents."""
    query, *documents = texts
    return {"query": query, "documents": documents, **fields}


def _rerank_asked(body: Mapping[str, Any]) -> AskedResults:
    documents = body.get("documents")
    inputs = len(documents) if isinstance(documents, list) else 0
    top_n = positive(body, "top_n")
    return AskedResults(inputs, inputs if top_n is None else min(top_n, inputs))


RERANK = results_dialect(
    _Ranking,
    _scores,
    _rerank_body,
    _rerank_asked,
    name="rerank",
    path="/rerank",
    template_tokens=4,  # marks before the query, between it and a document, and at the end
    operation="rerank",
    vllm_backend="vllm-rerank",
)
