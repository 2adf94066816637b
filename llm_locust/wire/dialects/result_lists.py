"""Reading of answers that are a list of results, one for each input: what is common to these APIs.

An answer of 4 MiB holds the event loop for some 10 ms. Of its numbers no values are made.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.draft import Draft
from llm_locust.wire.payload import (
    DECODE_ERRORS,
    PayloadError,
    count_of,
    error_text,
    excerpt,
    explained,
    parse,
)
from llm_locust.wire.results import AskedResults, Results
from llm_locust.wire.sse import SseEvent
from llm_locust.wire.whole import Sent

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
    tokens = meta.get("tokens") if isinstance(meta, dict) else None
    for sent in (usage, tokens):
        if isinstance(sent, dict):
            names = ("prompt_tokens", "input_tokens", "total_tokens")
            counts = (count_of(sent.get(name)) for name in names)
            return {"prompt_tokens": next((count for count in counts if count), None)}
    return None


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
