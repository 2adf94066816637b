"""Content of a run directory at its destination: files, and slices of the one that only grows.

During a run its batches are appended to one file, which may have gigabytes. It is sent in slices of whole
frames, ``batches/<offset>.frames``, each once: ``llm-locust merge`` reads them like the file itself.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from llm_locust.store.files import FRAMES_FILE
from llm_locust.store.frames import index_frames

CHUNK_BYTES = 8 * 1024 * 1024

_SLICE = "batches/{:015d}.frames"


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
            if name == FRAMES_FILE:
                yield from _slices(path, sent)
            else:
                yield UploadPart(name, path)


def _slices(path: Path, sent: Mapping[str, Stored]) -> Iterator[UploadPart]:
    """Slices that were sent, then all later ones up to the end of the last complete frame."""
    try:
        size, start = path.stat().st_size, 0
        while (stored := sent.get(_SLICE.format(start))) and 0 < stored.size <= size - start:
            yield UploadPart(_SLICE.format(start), path, start, start + stored.size)
            start += stored.size
        frames = index_frames(path, start).frames
    except FileNotFoundError:  # the run has ended: its batches are in another file now
        return
    if frames:
        yield UploadPart(_SLICE.format(start), path, start, frames[-1].offset + frames[-1].length)
