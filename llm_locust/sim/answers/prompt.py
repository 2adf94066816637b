"""Messages of a prompt, and their texts and images as tokens of the simulated model."""

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from llm_locust.sim.answers.text import split_tokens
from llm_locust.wire.images import Size, size_in, url_of

#: Side of the square of pixels that is one token: patches of 16, 2 by 2 of them merged.
TOKEN_SIDE = 32

#: A smaller image is read as if enlarged, a larger one as if scaled down.
LEAST_TOKENS, MOST_TOKENS = 64, 16_384


#: At most, of a token in a list: a string of up to 12 letters or of one character, and its place.
_TOKEN_BYTES = 96

#: Of one more text in :class:`RecentTexts`, so that short ones are bounded too.
_ENTRY_BYTES = 384


class RequestError(ValueError):
    """A request that the server answers with ``status`` and an error object."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


class PromptPart(msgspec.Struct):
    """A part of any of the APIs: a text, or an image in one of three forms."""

    type: str | None = None
    text: str | None = None
    image_url: Any = None
    source: Any = None


class PromptMessage(msgspec.Struct):
    content: str | list[PromptPart] | None = None


class RecentTexts:
    """Tokens of the texts that came last: each turn of a conversation repeats all earlier ones.

    Args:
        most_bytes: bound of the memory of all texts that are kept and of their tokens.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._known: dict[str, list[str]] = {}  # the oldest first

    def tokens(self, text: str) -> list[str]:
        """:func:`split_tokens` of a text, not to be changed."""
        found = self._known.pop(text, None)
        if found is None:
            found = split_tokens(text)
            self._bytes += _kept_bytes(text, found)
        self._known[text] = found
        while self._bytes > self._most_bytes:
            oldest = next(iter(self._known))
            self._bytes -= _kept_bytes(oldest, self._known.pop(oldest))
        return found


def _kept_bytes(text: str, tokens: Sequence[str]) -> int:
    """Upper bound of the memory of a text and its tokens."""
    return _ENTRY_BYTES + len(text) * (1 if text.isascii() else 4) + len(tokens) * _TOKEN_BYTES


#: Some two million letters of English words. A text above the bound is not kept.
_RECENT = RecentTexts(most_bytes=40 << 20)


def content_tokens(messages: Iterable[PromptMessage]) -> list[str]:
    """Tokens of the messages' texts and images, in order."""
    found: list[str] = []
    for message in messages:
        if not isinstance(message.content, list):
            found += _RECENT.tokens(message.content or "")
            continue
        for part in message.content:
            if part.text:
                found += _RECENT.tokens(part.text)
            elif part.image_url is not None or part.source is not None:
                found += _image_tokens(part)
    return found


def _image_tokens(part: PromptPart) -> list[str]:
    url = url_of({"image_url": part.image_url, "source": part.source})
    size = size_in(url) if isinstance(url, str) else None
    if size is None:
        shown = url[:40] if isinstance(url, str) else type(url).__name__
        raise RequestError(
            400, "BadRequestError", f"An image must be a data: URL of a PNG or JPEG, got {shown!r}."
        )
    return image_tokens(url, size)


def count_image_tokens(size: Size) -> int:
    """Tokens of an image: ⌈width / 32⌉ · ⌈height / 32⌉, in 64 .. 16,384."""
    across, down = (-(-side // TOKEN_SIDE) for side in size)
    return min(max(across * down, LEAST_TOKENS), MOST_TOKENS)


def image_tokens(url: str, size: Size) -> list[str]:
    """An image as tokens of a prompt, equal only for equal images: so a prefix cache knows it again."""
    data = url.encode("utf-8", "surrogatepass")
    mark = f"image {zlib.crc32(data):08x} {zlib.adler32(data[-256:]):08x} {len(data)}"
    return [f"{mark} {number}" for number in range(count_image_tokens(size))]
