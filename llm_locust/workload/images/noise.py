"""PNG files of noise, each different from all others.

A pixel has 4 random bits a channel: 1.5 bytes of file, as a photograph's PNG has, and nothing that compresses
further. Making one takes about 100 ms a megapixel, longer than an event loop may wait. So there is one file
a size, made before the load begins, and each image replaces its last pixels: :data:`OWN_BYTES` of the last
row, which lie uncompressed at the file's end, with the checksums behind them. A server that hashes files or
pixels finds no two alike, and a request costs a join of bytes.
"""

import zlib
from base64 import b64encode
from dataclasses import dataclass
from functools import cache

import numpy as np

from llm_locust.wire.images import InlineImage, Size

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
