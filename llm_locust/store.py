"""The run directory: frames of record batches on the way, Parquet and JSON in the end.

A *frame* is one closed batch of one worker as bytes that can be appended to a file unread:

    magic ``LLB1`` | uint32 header length | uint32 payload length | uint32 CRC-32 | header | payload

(little endian). The header is JSON (run, worker, seq, rows), the payload one Arrow IPC stream;
the CRC covers both. A file of frames that was cut anywhere still gives every whole frame before
the cut.
"""

import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from llm_locust.batch import PART_ROWS, SCHEMA, BatchError, RecordBatch
from llm_locust.manifest import MANIFEST_SCHEMA, Manifest

MANIFEST_FILE = "manifest.json"
REQUESTS_FILE = "requests.parquet"
SUMMARY_FILE = "summary.json"
REPORT_MD_FILE = "report.md"
TIMESERIES_FILE = "timeseries.csv"
FRAMES_FILE = "batches.frames"

_MAGIC = b"LLB1"
_PREFIX = struct.Struct("<4sIII")
_ROWS_A_GROUP = 65_536

#: Near-sorted times, whose differences are small: packed as deltas, an arrival takes about 4 bytes.
_PACKED_COLUMNS = ("arrivals_ns.list.item", "scheduled_ns", "started_ns", "sent_ns", "ended_ns")


class StoreError(ValueError):
    """A run directory or file that cannot be used; the text names it and says what to do."""


class FrameHeader(msgspec.Struct, frozen=True):
    """Whose batch this is: the identity is (run, worker, seq)."""

    run: str
    worker: str
    seq: int
    rows: int


@dataclass(frozen=True, slots=True)
class FrameRef:
    """Where a whole frame's payload lies in its file."""

    header: FrameHeader
    path: Path
    offset: int
    length: int

    def batch(self) -> RecordBatch:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return RecordBatch.from_bytes(file.read(self.length))


@dataclass(frozen=True, slots=True)
class FrameIndex:
    """The whole frames of a file, and where its first torn or foreign byte is (None: nowhere)."""

    frames: tuple[FrameRef, ...]
    torn_at: int | None


def encode_frame(header: FrameHeader, payload: bytes) -> bytes:
    head = msgspec.json.encode(header)
    crc = zlib.crc32(payload, zlib.crc32(head))
    return b"".join((_PREFIX.pack(_MAGIC, len(head), len(payload), crc), head, payload))


class FrameLog:
    """A new file that frames are appended to, each call's whole or not at all.

    Raises:
        OSError: the file cannot be made, or is there already.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("xb", buffering=0)
        self._size = 0  # of what is whole; bytes behind it are left of a write that failed

    def append(self, frames: bytes) -> None:
        """Write frames behind the last whole ones, over what a failed write has left.

        Raises:
            OSError: they could not be written.
        """
        view, at = memoryview(frames), self._size
        while view:
            done = os.pwrite(self._file.fileno(), view, at)
            view, at = view[done:], at + done
        self._size = at

    def close(self) -> None:
        """Cut off what a failed write has left and close the file (raises OSError)."""
        with self._file:
            self._file.truncate(self._size)


def index_frames(path: Path) -> FrameIndex:
    """Every whole frame of the file, in file order; it stops at the first one that is not whole."""
    frames: list[FrameRef] = []
    size = path.stat().st_size
    with path.open("rb") as file:
        at = 0
        while at < size:
            ref = _read_frame(file, path, at, size)
            if ref is None:
                return FrameIndex(tuple(frames), at)
            frames.append(ref)
            at = ref.offset + ref.length
    return FrameIndex(tuple(frames), None)


def _read_frame(file: BinaryIO, path: Path, at: int, size: int) -> FrameRef | None:
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size:
        return None
    magic, head_length, length, crc = _PREFIX.unpack(prefix)
    if magic != _MAGIC or at + _PREFIX.size + head_length + length > size:
        return None
    head, payload = file.read(head_length), file.read(length)
    if zlib.crc32(payload, zlib.crc32(head)) != crc:
        return None
    try:
        header = msgspec.json.decode(head, type=FrameHeader)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return FrameRef(header, path, at + _PREFIX.size + head_length, length)


def unique_frames(frames: Iterable[FrameRef]) -> list[FrameRef]:
    """One frame for each (worker, seq), ordered by it: the same list in whatever order they came."""
    by_identity = {(f.header.worker, f.header.seq): f for f in frames}
    return [by_identity[key] for key in sorted(by_identity)]


def create_run_dir(path: Path) -> Path:
    """Make the run directory and see that it can be written.

    Raises:
        StoreError: it exists and holds another run, or it cannot be made or written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".write-probe"
        probe.touch()
        probe.unlink()
    except OSError as e:
        raise StoreError(f"the run directory {str(path)!r} cannot be written: {e.strerror or e}") from e
    return path


def holds_a_run(path: Path) -> bool:
    return any((path / name).exists() for name in (MANIFEST_FILE, REQUESTS_FILE, FRAMES_FILE))


def compact(run: Path) -> int:
    """``batches.frames`` into ``requests.parquet``; gives the number of rows.

    Batches are read one by one, so that memory is bounded by a row group. The frames are removed
    after the Parquet file is whole, but for a file with bytes that are no frame: it stays, as the only
    place of what may lie behind them. Without a frames file the run has no requests: an empty file.

    Raises:
        BatchError: a whole frame holds no batch.
        OSError: a file cannot be read or written.
    """
    frames_path = run / FRAMES_FILE
    index = index_frames(frames_path) if frames_path.exists() else FrameIndex((), None)
    rows = write_requests(run / REQUESTS_FILE, (f.batch() for f in unique_frames(index.frames)))
    if index.torn_at is None:
        frames_path.unlink(missing_ok=True)
    return rows


def write_requests(path: Path, batches: Iterable[RecordBatch]) -> int:
    """Write batches as one Parquet file, atomically; gives the number of rows."""
    temporary = _part(path)
    rows = 0
    try:
        with pq.ParquetWriter(
            temporary,
            SCHEMA,
            compression="zstd",
            use_dictionary=[f.name for f in SCHEMA if pa.types.is_dictionary(f.type)],
            column_encoding=dict.fromkeys(_PACKED_COLUMNS, "DELTA_BINARY_PACKED"),
        ) as writer:
            for group in _groups(batches):
                writer.write_table(group.table, row_group_size=max(1, len(group)))
                rows += len(group)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return rows


def _groups(batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
    waiting: list[RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += len(batch)
        if rows >= _ROWS_A_GROUP:
            yield RecordBatch.concat(waiting)
            waiting, rows = [], 0
    if waiting:
        yield RecordBatch.concat(waiting)


@dataclass(frozen=True, slots=True)
class StoredRequests:
    """The requests of a run directory, read part by part (:class:`~llm_locust.batch.Requests`)."""

    path: Path
    rows: int

    def __len__(self) -> int:
        return self.rows

    def parts(self, columns: Sequence[str] = SCHEMA.names) -> Iterator[RecordBatch]:
        """Parts of at most ``PART_ROWS`` rows: memory is bounded by them, not by the row groups.

        Raises:
            StoreError: the file cannot be read, or is of another schema.
        """
        # Not as a data set: a directory named key=value would be read as a column, and its
        # read-ahead holds several row groups.
        with _reading(self.path), pq.ParquetFile(self.path) as file:
            # All of the schema, so that a file is refused whichever columns are asked for.
            RecordBatch.from_table(file.schema_arrow.empty_table())
            if not self.rows:
                yield RecordBatch.from_table(RecordBatch.empty().table, columns)
            # Group by group: asked for all at once, the reader keeps the bytes of those it has read.
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(PART_ROWS, row_groups=[group], columns=list(columns)):
                    yield RecordBatch.from_table(pa.Table.from_batches([batch]), columns)
        # What decoding took goes back to the system: the caller's arrays need it now.
        pa.default_memory_pool().release_unused()


def open_requests(run: Path) -> StoredRequests:
    """The requests of a run directory, of which nothing but their number is read yet.

    Raises:
        StoreError: no such file, or one that is not Parquet.
    """
    path = _existing(run, REQUESTS_FILE)
    with _reading(path):
        return StoredRequests(path, pq.read_metadata(path).num_rows)


def iter_requests(run: Path) -> Iterator[RecordBatch]:
    """The requests of a run directory in batches of at most ``PART_ROWS``: one at least, maybe empty.

    Raises:
        StoreError: no such file, a file that is not Parquet, or one of another schema.
    """
    return open_requests(run).parts()


def read_requests(run: Path) -> RecordBatch:
    """All requests of a run directory, in memory as a whole: see :func:`open_requests` for large runs.

    Raises:
        StoreError: no such file, a file that is not Parquet, or one of another schema.
    """
    path = _existing(run, REQUESTS_FILE)
    with _reading(path), pq.ParquetFile(path) as file:
        return RecordBatch.from_table(file.read())


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, BatchError, OSError) as e:
        reason = next(iter(str(e).splitlines()), type(e).__name__)
        raise StoreError(f"{str(path)!r} cannot be read as requests: {reason}") from e


def read_manifest(run: Path) -> Manifest:
    """The manifest of a run directory.

    Raises:
        StoreError: it is missing, is not JSON of a manifest, or comes from a later version.
    """
    path = _existing(run, MANIFEST_FILE)
    try:
        data = path.read_bytes()
        schema = msgspec.json.decode(data, type=dict[str, Any]).get("schema")
        if isinstance(schema, int) and schema > MANIFEST_SCHEMA:
            raise StoreError(
                f"{str(path)!r} has schema {schema}, this version reads up to {MANIFEST_SCHEMA}: "
                "use the llm-locust that wrote it, or a later one"
            )
        return msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, OSError) as e:
        raise StoreError(f"{str(path)!r} is not a manifest: {e}") from e


def write_manifest(run: Path, manifest: Manifest) -> None:
    write_json(run / MANIFEST_FILE, manifest)


def write_json(path: Path, value: object) -> None:
    """Pretty JSON, atomically: a reader sees the old file or the new one."""
    write_text(path, msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def write_text(path: Path, text: str) -> None:
    """A text file, atomically."""
    temporary = _part(path)
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _part(path: Path) -> Path:
    """Where a file is written before it is whole: beside it, so that renaming is atomic."""
    return path.with_name(path.name + ".part")


def _existing(run: Path, name: str) -> Path:
    if not run.is_dir():
        raise StoreError(f"{str(run)!r} is not a directory: name a run directory, such as runs/demo")
    path = run / name
    if not path.exists():
        raise StoreError(f"{str(run)!r} holds no {name}: is it a run directory whose run has ended?")
    return path
