"""Files that a run's frames are appended to: one file, segments of which the oldest can go, or a spool."""

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from llm_locust.core.files import replacing
from llm_locust.core.manifest import Count, DroppedFacts, Nanoseconds
from llm_locust.store.facts import Holding, added
from llm_locust.store.files import (
    FRAMES_FILE,
    MANIFEST_FILE,
    REQUESTS_FILE,
    StoreError,
    read_own_file,
    sync,
    write_json,
)
from llm_locust.store.frames import FrameHeader, FrameIndex, FrameRef, Tear, index_frames, parse_ranges
from llm_locust.wire.payload import DECODE_ERRORS

# --------------------
# The frames of a run by their place among all that were written: in one file, or in segments.
#
# A segment is ``batches/<base>.frames``: ``base`` is the number of bytes of all frames before it. The copy
# of a run that is uploaded while it goes on has the same names, for slices of its files.
# --------------------


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


#: Most buffers of one writev call (IOV_MAX of Linux and macOS).
_BUFFERS_A_WRITE = 1024


class FrameLog:
    """A new file that frames are appended to; each call writes all of its frames or none.

    Raises:
        OSError: the file cannot be created, or exists already.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("xb", buffering=0)
        self.size = 0  # end of the complete frames; later bytes are from a failed write

    def append(self, *frames: bytes) -> None:
        """Write frames after the last complete one, over the rest of a failed write; without a copy.

        Raises:
            OSError: they could not be written.
        """
        rest, at = [memoryview(frame) for frame in frames if frame], self.size
        while rest:
            done = os.pwritev(self._file.fileno(), rest[:_BUFFERS_A_WRITE], at)
            rest, at = _behind(rest, done), at + done
        self.size = at

    def trim(self) -> None:
        """Cut off the rest of a failed write (raises OSError)."""
        self._file.truncate(self.size)

    def close(self) -> None:
        """Cut off the rest of a failed write and close the file (raises OSError)."""
        with self._file:
            self.trim()


def _behind(buffers: list[memoryview], done: int) -> list[memoryview]:
    """Rest of the buffers after their first ``done`` bytes are written."""
    whole = 0
    while whole < len(buffers) and len(buffers[whole]) <= done:
        done -= len(buffers[whole])
        whole += 1
    rest = buffers[whole:]
    return [rest[0][done:], *rest[1:]] if done else rest


class SegmentLog:
    """As :class:`FrameLog`, in segments: a new one begins with the first write after ``span_s``.

    A segment is named by the bytes of all frames before it. Where a new one cannot begin, the present one
    goes on.

    Args:
        run: its directory.

    Raises:
        OSError: the segments' directory cannot be created, or exists already.
    """

    def __init__(self, run: Path, span_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self.path = run / SEGMENTS_DIR
        self.path.mkdir()
        self._run = run
        self._span_s = span_s
        self._now_s = now_s
        self._base = 0
        self._begun_s = now_s()
        self._log = FrameLog(run / segment_name(0))

    def append(self, *frames: bytes) -> None:
        """As :meth:`FrameLog.append` (raises OSError)."""
        if self._log.size and self._now_s() - self._begun_s >= self._span_s:
            with suppress(OSError):
                self._begin_segment()
        self._log.append(*frames)

    def close(self) -> None:
        """As :meth:`FrameLog.close` (raises OSError)."""
        self._log.close()

    def _begin_segment(self) -> None:
        """Close the present segment after the next one is there (raises OSError, and then it goes on)."""
        self._log.trim()
        base = self._base + self._log.size
        following = FrameLog(self._run / segment_name(base))
        before, self._log = self._log, following
        self._base, self._begun_s = base, self._now_s()
        before.close()


# --------------------
# What is left of a segment that was dropped: ``batches/<base>.expired``, its batches' numbers and totals.
#
# It counts only while its batches are in no file of the run: it is written before the segment is removed,
# and a crash between the two leaves both.
# --------------------


EXPIRED_SUFFIX = ".expired"

EXPIRED_SCHEMA = 1


class ExpiredBatches(msgspec.Struct, frozen=True):
    """One worker's batches of a segment: records, numbers as ranges, header of the last one."""

    rows: Count
    seqs: str
    newest: FrameHeader


class Expired(msgspec.Struct, frozen=True, kw_only=True):
    """A segment that was dropped.

    Attributes:
        base, size, sha256: place and content of the segment.
        to: folder that has a copy of it.
        workers: its batches, by worker.
        first_ns, until_ns: first schedule and last end of its requests, on the run's axis.
        totals: of its requests, for the report's figures since the start.
    """

    schema: int = EXPIRED_SCHEMA
    run: str
    base: Annotated[int, Meta(ge=0, lt=10**18)]
    size: Count
    sha256: str
    to: str
    workers: dict[str, ExpiredBatches]
    first_ns: Nanoseconds
    until_ns: Nanoseconds
    totals: bytes

    @property
    def end(self) -> int:
        """Place at which the segment ended."""
        return self.base + self.size

    @property
    def rows(self) -> int:
        """Number of its records."""
        return sum(each.rows for each in self.workers.values())

    def holdings(self) -> dict[str, Holding]:
        """Its batches as present data, by worker."""
        return {
            worker: Holding(each.rows, tuple(parse_ranges(each.seqs)), each.newest)
            for worker, each in self.workers.items()
        }


#: Made at import: see the decoder of the manifest.
EXPIRED_DECODER = msgspec.json.Decoder(Expired)


def decode_expired(path: Path) -> Expired:
    """Content of a file (raises StoreError or OSError if it cannot be read)."""
    try:
        found = EXPIRED_DECODER.decode(read_own_file(path))
        if found.schema > EXPIRED_SCHEMA:
            raise StoreError(f"it has schema {found.schema}, this version reads up to {EXPIRED_SCHEMA}")
        found.holdings()
    except (*DECODE_ERRORS, ValueError) as e:
        raise StoreError(
            f"{str(path)!r} does not say what was dropped: {e}. The run's upload has it too: copy it back "
            "from there; or remove it, copy the upload back, and `llm-locust merge RUN COPY --out NEW`"
        ) from e
    return found


def read_expired(run: Path) -> list[Expired]:
    """What was dropped of the run in a directory, in order (raises StoreError or OSError).

    All of a run that has ended: its file of requests has been made without these. Before that, only where the
    segment itself is gone.
    """
    has_ended = (run / REQUESTS_FILE).exists()
    found = [decode_expired(path) for path in (run / SEGMENTS_DIR).glob(f"*{EXPIRED_SUFFIX}")]
    counts = [each for each in found if has_ended or not (run / segment_name(each.base)).exists()]
    return sorted(counts, key=lambda each: each.base)


def write_expired(run: Path, expired: Expired) -> None:
    """Write it so that it outlives a loss of power (raises OSError)."""
    path = (run / segment_name(expired.base)).with_suffix(EXPIRED_SUFFIX)
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(expired)))
        file.flush()
        os.fsync(file.fileno())
    sync(path.parent)


def remove_void(run: Path) -> None:
    """Remove what does not count in a run without a file of requests, because the segment is there."""
    for path in (run / SEGMENTS_DIR).glob(f"*{EXPIRED_SUFFIX}"):
        if path.with_suffix(".frames").exists():
            path.unlink()


def holdings_of(expired: Iterable[Expired]) -> dict[str, Holding]:
    """Their batches together, by worker."""
    return added(*(each.holdings() for each in expired))


def facts_together(some: Iterable[DroppedFacts | None]) -> DroppedFacts | None:
    """What was dropped in all of them; None if nothing was."""
    given = [each for each in some if each is not None]
    if not given:
        return None
    return DroppedFacts(
        records=sum(each.records for each in given),
        batches=sum(each.batches for each in given),
        until_ns=max(each.until_ns for each in given),
        to=", ".join(dict.fromkeys(each.to for each in given)),
    )


def dropped_facts(expired: Iterable[Expired]) -> DroppedFacts | None:
    """Facts for the manifest; None of nothing."""
    return facts_together(
        DroppedFacts(
            records=each.rows,
            batches=sum(sum(map(len, held.seqs)) for held in each.holdings().values()),
            until_ns=each.until_ns,
            to=each.to,
        )
        for each in expired
    )


WORKER_FILE = "worker.json"
SPOOLED = "*.frame"  # pattern of the frames' names


class Spool:
    """One worker's spool of one run: its frames on disk, one file each, until the master has them.

    ::

        FOLDER/manifest.json   the run's facts as sent by the master at its start
        FOLDER/00000017.frame  the batch of this number
        FOLDER/worker.json     the worker's final facts, if it ended before all was acknowledged

    The folder is created with the first write. Nothing is synced: a killed process loses nothing that it
    wrote, because the kernel keeps it. A machine that dies loses some seconds, but an fsync per batch would
    take milliseconds on the machine whose timing is measured. Files have the same permissions as those of the
    run directory, and hold no more: whoever may read a run may merge its spools.

    Args:
        folder: this worker's own.
        root: neither it nor anything above it is removed by :meth:`close`; the folder must be below it.
    """

    def __init__(self, folder: Path, root: Path) -> None:
        if root not in folder.parents or ".." in folder.relative_to(root).parts:
            raise ValueError(f"the spool {str(folder)!r} is not below {str(root)!r}")
        self.folder = folder
        self._root = root

    def write(self, seq: int, frame: bytes) -> None:
        """Write a frame to disk, completely or not at all.

        Raises:
            OSError: it could not be written, or one with this number exists.
        """
        path = self._path(seq)
        try:
            file = path.open("xb", buffering=0)
        except FileNotFoundError:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = path.open("xb", buffering=0)
        try:
            with file:
                view = memoryview(frame)
                while view:
                    view = view[file.write(view) :]
        except BaseException:
            with suppress(OSError):
                path.unlink()
            raise

    def read(self, seq: int) -> bytes:
        """Read the frame with this number (raises OSError)."""
        return self._path(seq).read_bytes()

    def drop(self, seq: int) -> None:
        """Remove a frame; a missing one is not an error (raises OSError for any other reason)."""
        self._path(seq).unlink(missing_ok=True)

    def write_facts(self, name: str, value: object) -> None:
        """Write JSON next to the frames, atomically (raises OSError)."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / name, value)

    def close(self) -> bool:
        """Remove the folder, and then empty ones above it up to the root; return whether it is gone.

        A folder that holds a frame, or a foreign file, stays.
        """
        if not self.folder.is_dir():  # nothing was ever written
            return True
        try:
            if next(self.folder.glob(SPOOLED), None) is not None:
                return False
            for name in (MANIFEST_FILE, WORKER_FILE):
                (self.folder / name).unlink(missing_ok=True)
            self.folder.rmdir()
        except OSError:
            return False
        with suppress(OSError):  # it contains another worker's folder, or has just been removed
            for parent in self.folder.parents:
                if parent == self._root:
                    break
                parent.rmdir()
        return True

    def _path(self, seq: int) -> Path:
        return self.folder / f"{seq:08d}.frame"
