"""Messages in OpenAI's chat form, in which prompts are: values out of them for other APIs; their images."""

import binascii
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

# --- Values out of messages
#
# Nothing here raises: what is in no form that an API knows goes out as it is, for the server to refuse.


def object_in(value: Any) -> Mapping[str, Any]:
    """The value where it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def objects_in(value: Any) -> list[Mapping[str, Any]]:
    """The objects among a list's items; none where it is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def function_in(value: Any) -> Mapping[str, Any]:
    """The ``function`` of a tool, of a tool call or of a choice of a tool."""
    return object_in(object_in(value).get("function"))


def text_of_content(content: Any) -> str:
    """The text of a message's content, its parts joined."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = (part.get("text") for part in objects_in(content))
    return "".join(text for text in texts if isinstance(text, str))


# --- Images among the parts of a message: how many there are, their sizes, and their bytes in a body


_PNG = b"\x89PNG\r\n\x1a\n"

#: Bytes of a PNG up to the end of its size.
_PNG_HEAD_BYTES = 24

_JPEG = b"\xff\xd8\xff"

#: Characters of base64 that are searched for a JPEG's size: its profile may come before it.
_HEAD_CHARS = 1 << 17

#: Segments of a JPEG that have its size: all SOF markers but DHT, JPG and DAC, which share their numbers.
_SIZED = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


class Size(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int

    @property
    def pixels(self) -> int:
        return self.width * self.height


class ImageCount(NamedTuple):
    """Images of one request; ``pixels`` of all of them, None where one's size is not known (a plain URL)."""

    images: int
    pixels: int | None


class InlineImage:
    """An image that stands in a message instead of its ``data:`` URL.

    Its base64 is joined when the request's body is made, so that a prompt that waits takes no memory:
    ``body`` is common to many images. Not a dataclass, which an encoder would write as an object.
    """

    __slots__ = ("body", "end", "media_type", "size")

    def __init__(self, media_type: str, size: Size, body: bytes, end: bytes) -> None:
        self.media_type = media_type
        self.size = size
        self.body = body
        self.end = end

    @property
    def data(self) -> "InlineData":
        """Its base64 alone."""
        return InlineData(self)


class InlineData:
    """The base64 of an image, without the head of a URL."""

    __slots__ = ("image",)

    def __init__(self, image: InlineImage) -> None:
        self.image = image


def in_json(value: Any) -> msgspec.Raw:
    """The text of an image in JSON, for an encoder's ``enc_hook``. Base64 has nothing to escape."""
    match value:
        case InlineImage():
            head = b'"data:%b;base64,' % value.media_type.encode()
            return msgspec.Raw(b"".join((head, value.body, value.end, b'"')))
        case InlineData():
            return msgspec.Raw(b"".join((b'"', value.image.body, value.image.end, b'"')))
    raise NotImplementedError(f"no JSON of {type(value).__name__}")


def images_in(messages: Iterable[Mapping[str, Any]]) -> ImageCount | None:
    """The images of messages in the form of one of the APIs; None where there is none."""
    sizes = [_size(url) for message in messages for url in _urls(message)]
    if not sizes:
        return None
    known = [size.pixels for size in sizes if size is not None]
    return ImageCount(len(sizes), sum(known) if len(known) == len(sizes) else None)


def _urls(message: Mapping[str, Any]) -> Iterator[Any]:
    content = message.get("content") if isinstance(message, dict) else None
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") in ("image_url", "input_image", "image"):
            yield url_of(part)


def url_of(part: Mapping[str, Any]) -> Any:
    """The URL of a part with an image, in the form of chat, responses or messages."""
    if isinstance(source := part.get("source"), dict):
        if source.get("type") == "base64":
            return f"data:{source.get('media_type')};base64,{source.get('data')}"
        return source.get("url")
    found = part.get("image_url")
    return found.get("url") if isinstance(found, dict) else found


def _size(url: Any) -> Size | None:
    if isinstance(url, InlineImage):
        return url.size
    return size_in(url) if isinstance(url, str) else None


def size_in(url: str) -> Size | None:
    """The size of the PNG or JPEG in a ``data:`` URL, by its header; None of anything else."""
    head, comma, _ = url[:256].partition(",")
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        return None
    start = len(head) + 1
    first = _decoded(url[start : start + 32])
    if len(first) == _PNG_HEAD_BYTES and first.startswith(_PNG) and first[12:16] == b"IHDR":
        return _sound(*struct.unpack(">II", first[16:24]))
    return _jpeg_size(_decoded(url[start : start + _HEAD_CHARS])) if first.startswith(_JPEG) else None


def _decoded(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text[: len(text) // 4 * 4])
    except ValueError:  # not ASCII, or not base64
        return b""


def _jpeg_size(data: bytes) -> Size | None:
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        kind, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if kind in _SIZED:
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return _sound(width, height)
        if length < 2:
            return None
        at += 2 + length
    return None


def _sound(width: int, height: int) -> Size | None:
    """The size, unless no image has it: PNG's sides have 31 bits, and one that large is a lie."""
    return Size(width, height) if 0 < width <= 1 << 20 and 0 < height <= 1 << 20 else None
