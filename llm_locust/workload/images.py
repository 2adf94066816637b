"""Synthetic images: what is asked for, and PNG files of noise."""

import re
import zlib
from base64 import b64encode
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import numpy as np

from llm_locust.core.texts import named_values, plain_number
from llm_locust.wire.images import InlineImage, Size
from llm_locust.workload.draws import digest
from llm_locust.workload.lengths import LengthError, Lengths, parse_lengths

# --- PNG files of noise, each different from all others
#
# A pixel has 4 random bits a channel: 1.5 bytes of file, as a photograph's PNG has, and nothing that
# compresses further. Making one takes about 100 ms a megapixel, longer than an event loop may wait. So
# there is one file a size, made before the load begins, and each image replaces its last pixels:
# :data:`OWN_BYTES` of the last row, which lie uncompressed at the file's end, with the checksums behind
# them. A server that hashes files or pixels finds no two alike, and a request costs a join of bytes.


#: Bytes of an image that no other one has: its last 8 pixels.
OWN_BYTES = 24

#: Sides of an image in pixels. The own pixels are in the last row.
LEAST_SIDE, MOST_SIDE = OWN_BYTES // 3, 8192

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_END = b"\x00\x00\x00\x00IEND\xaeB`\x82"
_BLOCK_ROWS = 64


@dataclass(frozen=True, slots=True, eq=False)
class _Noise:
    """The file of one size up to its own bytes, and the checksums so far.

    ``head`` is in base64, a multiple of 3 bytes; ``rest`` are the up to 2 bytes behind it.
    """

    head: bytes
    rest: bytes
    crc: int
    adler: int


def prepare(size: Size) -> None:
    """Make the file of a size, which takes about 100 ms a megapixel."""
    _noise(size)


def noise_image(size: Size, own: bytes) -> InlineImage:
    """An image of noise that ends with ``own``, :data:`OWN_BYTES` long: equal for equal arguments."""
    base = _noise(size)
    tail = own + zlib.adler32(own, base.adler).to_bytes(4, "big")
    checked = tail + zlib.crc32(tail, base.crc).to_bytes(4, "big")
    return InlineImage("image/png", size, base.head, b64encode(base.rest + checked + _END))


@cache  # none may be made anew while streams are open; what is asked for bounds their pixels
def _noise(size: Size) -> _Noise:
    header = _chunk(b"IHDR", size.width.to_bytes(4, "big") + size.height.to_bytes(4, "big") + _RGB_8_BIT)
    pixels, adler = _compressed(size)
    content = b"IDAT" + pixels
    # What follows in this chunk: the own bytes and the checksum of the pixels.
    length = len(pixels) + OWN_BYTES + 4
    file = _SIGNATURE + header + length.to_bytes(4, "big") + content
    whole = len(file) // 3 * 3
    return _Noise(b64encode(file[:whole]), file[whole:], zlib.crc32(content), adler)


_RGB_8_BIT = bytes((8, 2, 0, 0, 0))


def _chunk(kind: bytes, content: bytes) -> bytes:
    """A chunk of a PNG file."""
    checked = kind + content
    return len(content).to_bytes(4, "big") + checked + zlib.crc32(checked).to_bytes(4, "big")


def _compressed(size: Size) -> tuple[bytes, int]:
    """A zlib stream of all rows but the own bytes, which its last block, open here, has uncompressed.

    Returns:
        the stream, and the Adler-32 of the rows in it.
    """
    rng = np.random.default_rng(np.random.SeedSequence(0, spawn_key=tuple(size)))
    packer = zlib.compressobj(level=1, strategy=zlib.Z_HUFFMAN_ONLY)
    pieces, adler = [], 1
    for first in range(0, size.height, _BLOCK_ROWS):
        rows = min(_BLOCK_ROWS, size.height - first)
        noise = rng.integers(0, 16, (rows, 1 + 3 * size.width), np.uint8) * np.uint8(17)
        noise[:, 0] = 0  # no filter
        data = noise.tobytes()
        if first + rows == size.height:
            data = data[:-OWN_BYTES]
        adler = zlib.adler32(data, adler)
        pieces.append(packer.compress(data))
    pieces.append(packer.flush(zlib.Z_FULL_FLUSH))
    last_block = b"\x01" + OWN_BYTES.to_bytes(2, "little") + (0xFFFF ^ OWN_BYTES).to_bytes(2, "little")
    return b"".join((*pieces, last_block)), adler


# --- Images that prompts are asked to have: ``count=2 size=1024x768``


ALLOWED = "count=N (or lengths such as uniform:1,3) size=WxH (or 0.7*512x512+0.3*1280x720) distinct=N"
_EXAMPLE = "such as 'count=2 size=1024x768'"

#: Most images of a request, and most pixels of a request and of all sizes: 16 MP are 34 MB of a body.
MOST_IMAGES = 64
MOST_PIXELS = 1 << 24

_MOST_DISTINCT = 1_000_000_000
_SIZE = re.compile(r"(?:([0-9.]{1,12})\s*\*\s*)?([0-9]{1,6})[xX]([0-9]{1,6})")

#: The shares of sizes may differ from 1 in sum by their rounding.
_ROUNDING = 0.005


class ImagesError(ValueError):
    """Invalid settings of images; has the value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of images, each with its share of all images. Equal when their texts are equal."""

    text: str
    shares: tuple[tuple[Size, float], ...]

    def draw(self, rng: np.random.Generator) -> Size:
        """One of the sizes."""
        if len(self.shares) == 1:
            return self.shares[0][0]
        edges = list(accumulate(share for _, share in self.shares))
        return self.shares[int(np.searchsorted(edges, rng.random() * edges[-1], side="right"))][0]

    @property
    def most_pixels(self) -> int:
        return max(size.pixels for size, _ in self.shares)


def parse_sizes(text: str) -> Sizes:
    """``1024x768``, or a mixture such as ``0.7*512x512 + 0.3*1280x720`` (raises ImagesError)."""
    shares = []
    words = [word.strip() for word in text.split("+")]
    for word in words:
        found = _SIZE.fullmatch(word)
        if found is None or (len(words) > 1) != (found[1] is not None):
            raise ImagesError(
                f"images: size {text!r}: {word!r} is not WxH, or in a mixture SHARE*WxH; allowed is {ALLOWED}"
            )
        size = Size(int(found[2]), int(found[3]))
        if not all(LEAST_SIDE <= side <= MOST_SIDE for side in size):
            raise ImagesError(f"images: size {word!r}: sides are from {LEAST_SIDE} to {MOST_SIDE:,} pixels")
        share = 1.0 if found[1] is None else plain_number(found[1])
        if not 0 < share <= 1:
            raise ImagesError(f"images: size {text!r}: {found[1]!r} is not a share, as 0.7")
        shares.append((size, share))
    if abs(sum(share for _, share in shares) - 1) > _ROUNDING:
        raise ImagesError(
            f"images: size {text!r}: the shares are {sum(s for _, s in shares):g} in sum, not 1"
        )
    if sum(size.pixels for size, _ in shares) > MOST_PIXELS:
        raise ImagesError(f"images: size {text!r}: all sizes together have at most {MOST_PIXELS:,} pixels")
    return Sizes(text, tuple(shares))


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagesAsked:
    """Images of every prompt: their number, their sizes, and how many different ones there are.

    ``distinct`` None: no two are alike. A number: each is one of so many, the same on all workers, which a
    cache of encoded images may have.

    Raises:
        ImagesError: too many images, or too many pixels.
    """

    count: Lengths
    size: Sizes
    distinct: int | None = None

    def __post_init__(self) -> None:
        if self.count.most > MOST_IMAGES:
            raise ImagesError(f"images: count {self.count.text!r}: a request has at most {MOST_IMAGES}")
        pixels = self.count.most * self.size.most_pixels
        if pixels > MOST_PIXELS:
            raise ImagesError(
                f"images: {self.count.most} of {self.size.text} are {pixels:,} pixels in a request; "
                f"at most {MOST_PIXELS:,}"
            )
        if self.distinct is not None and not 1 <= self.distinct <= _MOST_DISTINCT:
            raise ImagesError(f"images: distinct {self.distinct} is not in 1 .. {_MOST_DISTINCT:,}")

    def prepare(self) -> None:
        """Make what all images of a size have in common, before any request waits for it."""
        for size, _ in self.size.shares:
            prepare(size)

    def draw(self, rng: np.random.Generator, salt: str) -> tuple[InlineImage, ...]:
        """The images of one prompt. ``salt`` is unique to the run, or empty."""
        return tuple(self._image(rng, salt) for _ in range(self.count.sample(rng)))

    def _image(self, rng: np.random.Generator, salt: str) -> InlineImage:
        if self.distinct is None:
            return noise_image(self.size.draw(rng), digest(salt, rng.bytes(16).hex(), size=OWN_BYTES))
        number = int(rng.integers(self.distinct))
        size = self.size.draw(np.random.default_rng(number))  # of an image, whoever sends it
        return noise_image(size, digest(salt, number, size=OWN_BYTES))


def parse_images(text: str) -> ImagesAsked:
    """Parse ``count=2 size=1024x768 distinct=100``; count and distinct have defaults (1, all).

    Raises:
        ImagesError: an unknown word, or a value out of range.
    """
    try:
        # A mixture may have blanks around its plus.
        named, others = named_values(re.sub(r"\s*([+*])\s*", r"\1", text).split())
    except ValueError as e:
        raise ImagesError(f"images {text!r}: {e}; allowed is {ALLOWED}") from e
    unknown = [*others, *(name for name in named if name not in ("count", "size", "distinct"))]
    if unknown:
        raise ImagesError(f"images {text!r}: {unknown[0]!r} is not one of {ALLOWED}, {_EXAMPLE}")
    return images_asked(text, named.get("count"), named.get("size"), named.get("distinct"))


def images_asked(where: str, count: str | None, size: str | None, distinct: str | None) -> ImagesAsked:
    """Images of the texts of their settings (raises ImagesError)."""
    if size is None:
        raise ImagesError(f"images {where!r}: there is no size; allowed is {ALLOWED}, {_EXAMPLE}")
    if distinct is not None and not (distinct.isascii() and distinct.isdecimal() and len(distinct) < 18):
        raise ImagesError(f"images {where!r}: distinct {distinct!r} is not a whole number; {_EXAMPLE}")
    count = count or "1"
    try:
        # A mixture as its grammar has it, with blanks around each plus.
        counts = parse_lengths(count.replace("+", " + ") if "*" in count else count)
    except LengthError as e:
        raise ImagesError(f"images {where!r}: count: {e}") from e
    if counts.joint:
        raise ImagesError(f"images {where!r}: count {count!r} is a file with two columns; it has one")
    return ImagesAsked(
        count=counts, size=parse_sizes(size), distinct=None if distinct is None else int(distinct)
    )
