"""Whole answers: JSON objects of known form, of which little is read and much may be skipped.

A skeleton is decoded first: structs for the objects that lead to the fields that are read, and ``Raw`` for
these. Of all else, log probabilities above all, nothing is made. So the size of what is to be read is known
in advance.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from llm_locust.wire.lists import Few
from llm_locust.wire.payload import DECODE_ERRORS, PayloadError, parse, parse_object

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
    if isinstance(value, Few):
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
