"""The frames of a run by their place among all that were written: in one file, or in segments.

A segment is ``batches/<base>.frames``: ``base`` is the number of bytes of all frames before it. The copy of a
run that is uploaded while it goes on has the same names, for slices of its files.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from pathlib import Path

from llm_locust.store.files import FRAMES_FILE, StoreError
from llm_locust.store.frames import FrameIndex, FrameRef, Tear, index_frames

#: Of segments, in a run directory.
SEGMENTS_DIR = "batches"

_SEGMENT = re.compile(r"\d{15,18}")


@dataclass(frozen=True, slots=True)
class Segment:
    """A file of frames, and the number of bytes of all frames before it."""

    base: int
    path: Path

    @property
    def size(self) -> int:
        """Its bytes; 0 if it does not exist."""
        return self.path.stat().st_size if self.path.exists() else 0


def segment_name(base: int) -> str:
    """Name of a segment in its run directory."""
    return f"{SEGMENTS_DIR}/{base:015d}.frames"


def base_of(path: Path) -> int | None:
    """Place at which a file begins; None if its name is not that of a segment."""
    is_named = path.parent.name == SEGMENTS_DIR and _SEGMENT.fullmatch(path.stem)
    return int(path.stem) if is_named else None


def segments_of(run: Path) -> list[Segment]:
    """Files of a run that the master writes its batches to, in order; one that is not segmented has one."""
    whole = run / FRAMES_FILE
    if whole.exists():
        return [Segment(0, whole)]
    found = [(base_of(path), path) for path in (run / SEGMENTS_DIR).glob("*.frames")]
    return sorted((Segment(base, path) for base, path in found if base is not None), key=lambda s: s.base)


def index_batches(run: Path, start: int = 0) -> FrameIndex:
    """Index the frames of a run from this place on, as :func:`~llm_locust.store.frames.index_frames`.

    Raises:
        StoreError: a file was dropped meanwhile.
        OSError: one cannot be read.
    """
    frames: list[FrameRef] = []
    tears: list[Tear] = []
    for segment in segments_of(run):
        try:
            if segment.base + segment.path.stat().st_size <= start:
                continue
            found = index_frames(segment.path, max(0, start - segment.base))
        except FileNotFoundError as e:
            raise dropped_meanwhile(run) from e
        frames += found.frames
        tears += found.tears
    return FrameIndex(tuple(frames), tuple(tears))


def dropped_meanwhile(run: Path) -> StoreError:
    return StoreError(f"records of {str(run)!r} were dropped (--keep) while they were read: ask again")


def end_of(frame: FrameRef) -> int:
    """Place at which a frame ends among all frames of its run."""
    return (base_of(frame.path) or 0) + frame.offset + frame.length


def size_of(run: Path) -> int:
    """Bytes of all frames that a run has written so far, of the dropped ones too."""
    last = segments_of(run)[-1:]
    return sum(segment.base + segment.size for segment in last)


def kept_bytes(run: Path) -> int:
    """Bytes of the frames that a run directory has."""
    return sum(segment.size for segment in segments_of(run))


def remove_frames(run: Path) -> None:
    """Remove the files that a run which never started writes its batches to (raises OSError)."""
    for segment in segments_of(run):
        segment.path.unlink()
    with suppress(FileNotFoundError):
        (run / SEGMENTS_DIR).rmdir()


@contextmanager
def sole_user(run: Path) -> Iterator[bool]:
    """Exclude others from removing segments; give False where that is impossible: without segments, and on a
    file system without locks."""
    try:
        descriptor = os.open(run / SEGMENTS_DIR, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        yield _locked(descriptor)
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        flock(descriptor, LOCK_EX)
    except OSError:
        return False
    return True
