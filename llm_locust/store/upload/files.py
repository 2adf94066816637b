"""Content of a run directory at its destination: files, and slices of those that only grow.

During a run its batches are appended to one file, which may have gigabytes, or to segments. They are sent in
slices of whole frames, ``batches/<place>.frames``, each once: ``llm-locust merge`` reads them like the files
themselves.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from llm_locust.store.expired import read_expired
from llm_locust.store.files import FRAMES_FILE
from llm_locust.store.frames import index_frames
from llm_locust.store.segments import base_of, segment_name
from llm_locust.store.sources import FRAMES_SUFFIX

CHUNK_BYTES = 8 * 1024 * 1024


class Stored(msgspec.Struct, frozen=True):
    """A file as sent: its size in bytes, and the SHA-256 of its content in hexadecimal digits."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class UploadPart:
    """A file to be sent, or bytes [``start``, ``stop``) of one.

    Attributes:
        name: at the destination.
        stop: None for the end of the file at the time of reading.
    """

    name: str
    path: Path
    start: int = 0
    stop: int | None = None

    def is_as(self, stored: Stored) -> bool:
        """Whether it has this content. For a slice the size is enough: frames are never changed."""
        if self.stop is not None:
            return self.stop - self.start == stored.size
        try:
            if self.path.stat().st_size != stored.size:
                return False
            digest = hashlib.sha256()
            size = sum(map(len, self.chunks(digest)))
        except FileNotFoundError:
            return False
        return stored == Stored(size, digest.hexdigest())

    def chunks(self, digest: "hashlib._Hash") -> Iterator[bytes]:
        """Its bytes, which also update ``digest`` (raises OSError)."""
        with self.path.open("rb") as file:
            file.seek(self.start)
            left = None if self.stop is None else self.stop - self.start
            while chunk := file.read(CHUNK_BYTES if left is None else min(CHUNK_BYTES, left)):
                left = None if left is None else left - len(chunk)
                digest.update(chunk)
                yield chunk


def parts_of(run: Path, sent: Mapping[str, Stored]) -> Iterator[UploadPart]:
    """Current content of a run directory, without links, hidden files and unfinished ones.

    Args:
        sent: files sent by an earlier upload: slices continue after its last one.

    Raises:
        OSError: the file of batches cannot be read.
    """
    for folder, folders, files in os.walk(run):
        folders.sort()
        for file in sorted(files):
            path = Path(folder, file)
            name = path.relative_to(run).as_posix()
            if not path.is_file() or path.is_symlink() or path.suffix == ".part" or file[0] == ".":
                continue
            base = 0 if name == FRAMES_FILE else base_of(path)
            if base is not None and path.suffix == FRAMES_SUFFIX:
                yield from _slices(path, base, sent)
            else:
                yield UploadPart(name, path)


def _slices(path: Path, base: int, sent: Mapping[str, Stored]) -> Iterator[UploadPart]:
    """Slices that were sent, then all later ones up to the end of the last complete frame."""
    try:
        size = path.stat().st_size
        known = list(slices_of(base, size, sent))
        for name, start, stop in known:
            yield UploadPart(name, path, start, stop)
        start = known[-1][-1] if known else 0
        frames = index_frames(path, start).frames
    except FileNotFoundError:  # the run has ended: its batches are in another file now
        return
    if frames:
        yield UploadPart(segment_name(base + start), path, start, frames[-1].offset + frames[-1].length)


def slices_of(base: int, size: int, sent: Mapping[str, Stored]) -> Iterator[tuple[str, int, int]]:
    """Name, start and end of each slice of a file of frames that was sent, from its start up to a hole."""
    start = 0
    while (stored := sent.get(segment_name(base + start))) and 0 < stored.size <= size - start:
        yield segment_name(base + start), start, start + stored.size
        start += stored.size


def dropped_slices(run: Path, sent: Iterable[str]) -> set[str]:
    """Names of the slices that were sent of what the run has dropped (raises StoreError or OSError)."""
    gone = [range(each.base, each.end) for each in read_expired(run)]
    return {
        name
        for name in sent
        if (base := base_of(Path(name))) is not None and any(base in each for each in gone)
    }
