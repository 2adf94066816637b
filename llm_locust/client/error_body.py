"""Error bodies made readable: unpacked where a server packed them unasked, named where they are no text."""

import zlib
from contextlib import suppress
from importlib import import_module
from typing import Any

#: Most bytes that a body is unpacked to.
MAX_UNPACKED_BYTES = 64 << 10

#: Most content codings of one body.
_MAX_CODINGS = 3

_STARTS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_NAMES = {"x-gzip": "gzip", "br": "br", "zstd": "zstd", "gzip": "gzip", "deflate": "deflate"}

#: What zlib is told of a stream: with a header of gzip or zlib, or with none.
_ZLIB_BITS = (47, -15)

#: Bytes that are read at a time, so that what came before a defect is kept.
_STEP_BYTES = 512

#: Of a text at most one character in so many is none that a page may have.
_ODD_PER = 10


def unpacked(body: bytes, coding: str) -> bytes:
    """The start of a body without its content codings, which the label may name wrongly.

    A body that cannot be unpacked is returned as it is.

    Args:
        coding: the value of ``Content-Encoding``; empty without one.
    """
    labelled = [name.strip().lower() for name in coding.split(",")][-_MAX_CODINGS:]
    for label in reversed(labelled):
        begins = next((name for start, name in _STARTS.items() if body.startswith(start)), "")
        plain = b""
        for name in dict.fromkeys((begins, _NAMES.get(label, ""))):
            plain = plain or _without(body, name)
        body = plain or body
    return body


def readable(body: bytes, coding: str, content_type: str) -> str:
    """A body that was :func:`unpacked` as text; what is no text is named by its size, coding and type."""
    text = body.decode("utf-8", "replace").strip()
    odd = sum(not (char.isprintable() or char in "\r\n\t") or char == "\ufffd" for char in text)
    if odd * _ODD_PER <= len(text):
        return text
    packed = f"{coding}-encoded " if coding else ""
    return f"{len(body):,} {packed}bytes of {content_type or 'no type'} that are no text"


def _without(body: bytes, name: str) -> bytes:
    """The start of a body without one coding; nothing where it is not in it."""
    if name in ("gzip", "deflate"):
        for bits in _ZLIB_BITS:
            with suppress(zlib.error):
                return zlib.decompressobj(bits).decompress(body, MAX_UNPACKED_BYTES)
    elif name in ("br", "zstd"):
        return _read_stream(body, "brotli" if name == "br" else name)
    return b""


def _read_stream(body: bytes, codec: str) -> bytes:
    pa: Any = import_module("pyarrow")  # which takes long, and few need it
    parts: list[bytes] = []
    with suppress(OSError, ValueError, NotImplementedError):
        stream = pa.CompressedInputStream(pa.BufferReader(body), codec)
        while len(parts) * _STEP_BYTES < MAX_UNPACKED_BYTES and (part := stream.read(_STEP_BYTES)):
            parts.append(part)
    return b"".join(parts)
