"""Whether a destination has the bytes that were sent to it: read back, and compared by their SHA-256."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from llm_locust.store.frames import index_frames
from llm_locust.store.segments import Segment
from llm_locust.store.upload.destination import Destination
from llm_locust.store.upload.files import CHUNK_BYTES, Stored, UploadPart, slices_of
from llm_locust.store.upload.transfer import alone, read_index, write_index


def has_segment(run: Path, segment: Segment, to: Destination) -> Stored | None:
    """Size and SHA-256 of a segment that the destination has too, byte by byte; None if it has not.

    Each slice of it there must be of whole frames, because `llm-locust merge` reads one slice at a time. A
    write that failed, and was uploaded before it was overwritten, leaves others. What the destination has
    instead is taken off its list, so that the next upload sends the segment again, in one slice.

    Args:
        to: folder of the run.

    Raises:
        OSError: something cannot be read or written, at the destination or here.
    """
    digest = hashlib.sha256()
    size = sum(map(len, UploadPart("", segment.path).chunks(digest)))
    here = Stored(size, digest.hexdigest())
    with alone(run):
        index = read_index(to)
        slices = list(slices_of(segment.base, size, index))
        ends = {frame.offset + frame.length for frame in index_frames(segment.path).frames}
        names = [name for name, *_ in slices]
        is_whole = all(stop in ends for *_, stop in slices)
        if is_whole and _content(to, names) == here:
            return here
        if names:  # without its first slice the others are no longer of it: the next upload removes them
            write_index(to, {name: stored for name, stored in index.items() if name != names[0]})
    return None


def _content(to: Destination, names: Iterable[str]) -> Stored | None:
    """Files one after the other; None if one does not exist."""
    digest, size = hashlib.sha256(), 0
    try:
        for name in names:
            to.sync(name)
            for chunk in to.chunks(name, CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
    except FileNotFoundError:
        return None
    return Stored(size, digest.hexdigest())
