"""Requests of a run as one Parquet file: written from batches, read part by part."""

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from llm_locust.core.arrow import SCHEMA, SCHEMA_VERSION, PagesError, check_group, open_parquet
from llm_locust.core.batch import PART_ROWS, BatchError, RecordBatch, Requests
from llm_locust.core.files import replacing
from llm_locust.core.manifest import Manifest
from llm_locust.core.record import MAX_ARRIVALS
from llm_locust.core.stages import staged
from llm_locust.store.facts import account, added, all_here, bad_text, holdings, tear_text
from llm_locust.store.files import (
    MANIFEST_FILE,
    REQUESTS_FILE,
    StoreError,
    existing_file,
    read_manifest,
    write_manifest,
)
from llm_locust.store.frame_log import (
    dropped_facts,
    holdings_of,
    index_batches,
    read_expired,
    remove_void,
    segments_of,
    sole_user,
)
from llm_locust.store.frames import (
    BadFrame,
    FrameRef,
    Tear,
    check_values,
    placed_batches,
    unique_frames,
    without,
)

_ROWS_A_GROUP = 65_536

#: Most token arrivals of a row group, but for those of its last batch: they bound its memory to 32 MiB.
_ARRIVALS_A_GROUP = 1 << 22

#: The same as read: earlier versions did not divide a batch with many.
_MOST_ARRIVALS = 1 << 24

#: Most rows of a file for each of its bytes: with ids and times of their own, rows take 30 bytes and more.
_MOST_ROWS_A_BYTE = 2

#: Most bytes of texts of a row group, but for those of its last batch.
_TEXT_BYTES_A_GROUP = 64 << 20

#: Most bytes of a file whose requests are held in memory, and of what is read of it.
_SMALL_BYTES, _SMALL_BYTES_READ = 1 << 20, 8 << 20

#: Key of the schema version in the file's metadata.
_VERSION_KEY = b"llm_locust.schema"

#: Nearly sorted times with small differences: packed as deltas, an arrival takes about 4 bytes.
_PACKED_COLUMNS = ("arrivals_ns.list.item", "scheduled_ns", "started_ns", "sent_ns", "ended_ns")


def compact(run: Path) -> int:
    """Convert the frames of a run to ``requests.parquet``; return the number of rows.

    Each frame's clock offset moves its records to the run's axis. Batches are read one by one, so that memory
    is bounded by a row group. The frames are removed after the Parquet file is complete, except if they
    have invalid bytes, or one is without a valid batch: then they stay, and the manifest lists these and what
    is present. Without frames the run has no requests: an empty file. The manifest gets what was dropped.

    Raises:
        BatchError: a complete frame has no valid batch, and there is no manifest to list it.
        StoreError: there are invalid bytes, and the manifest that should list them cannot be read.
        OSError: a file cannot be read or written.
    """
    with sole_user(run):
        return _compact(run)


def _compact(run: Path) -> int:
    remove_void(run)
    index = index_batches(run)
    frames = unique_frames(index.frames)
    has_manifest = (run / MANIFEST_FILE).exists()
    bad: list[BadFrame] = []
    batches = (batch for _, batch in placed_batches(frames, bad if has_manifest else None))
    rows = write_requests(run / REQUESTS_FILE, staged(batches, _manifest(run)))
    if has_manifest:
        note_dropped(run)
    if not index.tears and not bad:
        for segment in segments_of(run):
            segment.path.unlink()
    elif has_manifest:
        _tell_tears(run, without(frames, bad), index.tears, bad)
    return rows


def note_dropped(run: Path) -> None:
    """Write into the manifest what was dropped of a run that has ended.

    Raises:
        StoreError: the manifest, or a file of what was dropped, cannot be read.
        OSError: a file cannot be read or written.
    """
    if expired := read_expired(run):
        write_manifest(run, replace(read_manifest(run), dropped=dropped_facts(expired)))


def _manifest(run: Path) -> Manifest | None:
    """The manifest; None where there is none that can be read, of which the report has to say why."""
    with suppress(StoreError):
        return read_manifest(run)
    return None


def _tell_tears(
    run: Path, frames: Sequence[FrameRef], tears: Sequence[Tear], bad: Sequence[BadFrame]
) -> None:
    held = added(holdings(f.header for f in frames), holdings_of(read_expired(run)))
    manifest = account([read_manifest(run)], {}, held)
    torn = [bad_text(each, each.frame.path.relative_to(run).as_posix()) for each in bad]
    if not all_here(manifest):
        torn += [tear_text(tear, tear.path.relative_to(run).as_posix()) for tear in tears]
    write_manifest(run, replace(manifest, torn=torn))


def write_requests(path: Path, batches: Iterable[RecordBatch]) -> int:
    """Write batches as one Parquet file, atomically; return the number of rows."""
    rows = 0
    with (
        replacing(path) as file,
        pq.ParquetWriter(
            file,
            SCHEMA,
            compression="zstd",
            use_dictionary=[f.name for f in SCHEMA if pa.types.is_dictionary(f.type)],
            column_encoding=dict.fromkeys(_PACKED_COLUMNS, "DELTA_BINARY_PACKED"),
        ) as writer,
    ):
        for group in _groups(batches):
            writer.write_table(group.table, row_group_size=max(1, len(group)))
            rows += len(group)
    return rows


def _groups(batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
    waiting: list[RecordBatch] = []
    rows = arrivals = texts = 0
    for batch in (piece for whole in batches for piece in _pieces(whole)):
        waiting.append(batch)
        rows += len(batch)
        arrivals += len(batch.arrivals().values)
        texts += batch.text_bytes
        if rows >= _ROWS_A_GROUP or arrivals >= _ARRIVALS_A_GROUP or texts >= _TEXT_BYTES_A_GROUP:
            yield RecordBatch.concat(waiting)
            waiting, rows, arrivals, texts = [], 0, 0, 0
    if waiting:
        yield RecordBatch.concat(waiting)


def _pieces(batch: RecordBatch) -> Iterator[RecordBatch]:
    """The batch in parts which have no more arrivals than a row group, or a single row."""
    if len(batch) < 2 or len(batch.arrivals().values) <= _ARRIVALS_A_GROUP:
        yield batch
        return
    half = len(batch) // 2
    for part in (batch.table.slice(0, half), batch.table.slice(half)):
        yield from _pieces(RecordBatch(part))


@dataclass(frozen=True, slots=True)
class StoredRequests:
    """Requests of a run directory, read part by part (:class:`~llm_locust.core.batch.Requests`)."""

    path: Path
    rows: int

    def __len__(self) -> int:
        return self.rows

    def parts(self, columns: Sequence[str] = SCHEMA.names) -> Iterator[RecordBatch]:
        """Parts of at most ``PART_ROWS`` rows: they bound the memory, not the row groups.

        A thread reads each part while the one before is in use.

        Raises:
            StoreError: the file cannot be read, or has another schema.
        """
        with closing(self._read(columns)) as parts:
            first = next(parts, None)
            if first is None:
                return
            if len(first) >= self.rows:  # there is no other to read meanwhile
                yield first
                yield from parts
                return
            with ThreadPoolExecutor(1) as reader:
                try:
                    coming = reader.submit(next, parts, None)
                except RuntimeError:  # there can be no further thread: it is only slower without
                    yield first
                    yield from parts
                    return
                yield first
                while (part := coming.result()) is not None:
                    coming = reader.submit(next, parts, None)
                    yield part

    def held_if_small(self) -> Requests:
        """The same requests in memory where they take some MiB at most: a report reads its columns some forty
        times (raises StoreError)."""
        if self.path.stat().st_size > _SMALL_BYTES:
            return self
        held: list[RecordBatch] = []
        for part in self.parts():
            held.append(part)
            if sum(each.table.nbytes for each in held) > _SMALL_BYTES_READ:
                return self
        return RecordBatch.concat(held)

    def _read(self, columns: Sequence[str]) -> Generator[RecordBatch]:
        # Not as a data set, which would read a directory named key=value as a column, and read far ahead.
        with _reading(self.path), self.path.open("rb") as plain, open_parquet(plain) as file:
            # All of the schema, so that a file is refused whichever columns are requested.
            if not file.schema_arrow.equals(SCHEMA):
                RecordBatch.from_table(file.schema_arrow.empty_table())
            if not self.rows:
                yield RecordBatch.from_table(RecordBatch.empty().table, columns)
            # Group by group: if all are requested at once, the reader keeps the bytes of those it has read.
            for group in range(file.num_row_groups):
                check_requests(plain, file.metadata.row_group(group), columns)
                for batch in file.iter_batches(PART_ROWS, row_groups=[group], columns=list(columns)):
                    part = RecordBatch.from_table(pa.Table.from_batches([batch]), columns)
                    check_values(part)
                    yield part
        # Return the decoding memory to the system: the caller's arrays need it now.
        pa.default_memory_pool().release_unused()


def open_requests(run: Path) -> StoredRequests:
    """Open the requests of a run directory; only their number is read yet.

    Raises:
        StoreError: no such file, one that is not Parquet, or one of a later version.
    """
    path = existing_file(run, REQUESTS_FILE)
    with _reading(path):
        metadata = pq.read_metadata(path)
        _check_version(metadata.metadata or {})
        if metadata.num_rows > path.stat().st_size * _MOST_ROWS_A_BYTE:
            raise BatchError(f"{metadata.num_rows:,} rows in {path.stat().st_size:,} bytes are no requests")
        return StoredRequests(path, metadata.num_rows)


def iter_requests(run: Path) -> Iterator[RecordBatch]:
    """Requests of a run directory in batches of at most ``PART_ROWS``: at least one, which may be empty.

    Raises:
        StoreError: no such file, a file that is not Parquet, or one with another schema.
    """
    return open_requests(run).parts()


def read_requests(run: Path) -> RecordBatch:
    """All requests of a run directory in memory: see :func:`open_requests` for large runs.

    Raises:
        StoreError: no such file, a file that is not Parquet, or one with another schema.
    """
    path = existing_file(run, REQUESTS_FILE)
    with _reading(path), path.open("rb") as plain, open_parquet(plain) as file:
        _check_version(file.schema_arrow.metadata or {})
        for group in range(file.num_row_groups):
            check_requests(plain, file.metadata.row_group(group))
        return RecordBatch.from_table(file.read())


def check_requests(
    file: BinaryIO, group: pq.RowGroupMetaData, columns: Collection[str] | None = None
) -> None:
    """Check before decoding these columns (None: all) what a row group unpacks to (raises BatchError or
    OSError)."""
    most_arrivals = min(max(group.num_rows, 1) * MAX_ARRIVALS, _MOST_ARRIVALS)
    try:
        check_group(file, group, most_arrivals, columns)
    except PagesError as e:
        raise BatchError(str(e)) from None


def _check_version(metadata: Mapping[bytes, bytes]) -> None:
    """Refuse a file of a later version (raises BatchError): its columns may have another meaning."""
    version = metadata.get(_VERSION_KEY, b"")
    if version.isdigit() and int(version) > SCHEMA_VERSION:
        raise BatchError(
            f"it has schema {int(version)}, this version reads up to {SCHEMA_VERSION}: "
            "use the llm-locust that wrote it, or a later one"
        )


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, BatchError, OSError) as e:
        reason = next(iter(str(e).splitlines()), type(e).__name__)
        raise StoreError(f"{str(path)!r} cannot be read as requests: {reason}") from e
