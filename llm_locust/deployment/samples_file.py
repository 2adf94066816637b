"""``server_metrics.parquet``: samples of the servers' own metrics, in a form that survives a kill of its
writer.

A Parquet file can be read only once its end is written. So during a run samples are appended to a stream of
Arrow batches next to it, ``server_metrics-0.arrows``; each writing process has a number of its own.
:func:`compact_samples` makes the Parquet file of all of them, when the scraper ends or, if it was killed,
when a reader needs it. Memory is bounded by a row group.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from llm_locust.core.arrow.parquet_pages import check_group
from llm_locust.core.arrow.stream import whole_batches
from llm_locust.core.own_files import own_file
from llm_locust.core.replacing import replacing

SERVER_METRICS_FILE = "server_metrics.parquet"

_TEXT = pa.dictionary(pa.int32(), pa.string())

#: One row per sample: ``labels`` is a JSON object with sorted keys.
SCHEMA = pa.schema(
    [
        pa.field("at_ns", pa.int64(), nullable=False),
        pa.field("target", _TEXT, nullable=False),
        pa.field("name", _TEXT, nullable=False),
        pa.field("labels", _TEXT, nullable=False),
        pa.field("value", pa.float64(), nullable=False),
    ],
    metadata={b"llm_locust.server_metrics": b"1"},
)

#: A stream's texts are plain: growing dictionaries would have to be sent again with each batch.
_STREAM = pa.schema([pa.field(f.name, pa.string() if f.type == _TEXT else f.type, False) for f in SCHEMA])

_ROWS_A_GROUP = 131_072

#: The same as read, with the rest of the batch that filled it.
_MOST_ROWS_A_GROUP = 1 << 20


class SamplesError(ValueError):
    """Samples that cannot be read; the text names the file and says why."""


@dataclass(frozen=True, slots=True)
class ServerSample:
    """One value of one target at one time on the run's axis."""

    at_ns: int
    target: str
    name: str
    labels: str
    value: float


class SampleWriter:
    """Appends batches to a new stream next to ``path``; what was flushed can be read after a kill.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        number = 0
        while True:
            try:
                self._file = _segment(path, number).open("xb")
                break
            except FileExistsError:
                number += 1
        options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
        self._stream = pa.ipc.new_stream(self._file, _STREAM, options=options)

    def write(self, samples: Sequence[ServerSample]) -> None:
        """Write one batch, which is in the file when this returns."""
        if samples:
            columns = [[getattr(sample, name) for sample in samples] for name in _STREAM.names]
            self._stream.write_batch(pa.record_batch(columns, schema=_STREAM))
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        self._file.close()


def compact_samples(path: Path) -> int | None:
    """Merge all streams next to ``path`` and its present content into one Parquet file; return its number of
    rows.

    None if there is neither. The streams are removed after the file is complete; a batch that a kill has cut
    off is left out.

    Raises:
        SamplesError: the existing Parquet file cannot be read.
        OSError: a file cannot be read or written.
    """
    segments = _segments(path)
    if not segments:
        return _rows(path) if path.exists() else None
    rows = 0
    with replacing(path) as file, pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        for table in read_samples(path):
            writer.write_table(table.cast(SCHEMA).unify_dictionaries(), row_group_size=_ROWS_A_GROUP)
            rows += len(table)
    for segment in segments:
        segment.unlink(missing_ok=True)
    return rows


def holds_samples(path: Path) -> bool:
    """Whether there is anything for :func:`read_samples`."""
    return path.exists() or bool(_segments(path))


def read_samples(path: Path) -> Iterator[pa.Table]:
    """Samples of ``path`` and of the streams next to it, some 100,000 at a time, in the order written.

    Nothing if there is neither.

    Raises:
        SamplesError: a file has no samples.
    """
    if path.exists():
        with _reading(path), own_file(path).open("rb") as plain, pq.ParquetFile(plain) as file:
            for group in range(file.num_row_groups):
                check_group(plain, file.metadata.row_group(group), _MOST_ROWS_A_GROUP)
                yield _checked(file.read_row_group(group))
    for segment in _segments(path):
        with _reading(segment):
            yield from _groups(_stream_batches(segment))


def _stream_batches(segment: Path) -> Iterator[pa.Table]:
    """Complete batches; a killed writer may have left a part of one."""
    with own_file(segment).open("rb") as file:
        for batch in whole_batches(file):
            yield _checked(pa.Table.from_batches([batch]))


def _groups(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table.cast(_STREAM))
        if sum(map(len, waiting)) >= _ROWS_A_GROUP:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _checked(table: pa.Table) -> pa.Table:
    if table.schema.names != SCHEMA.names:
        raise pa.ArrowInvalid(f"its columns are {', '.join(table.schema.names)}")
    table.validate(full=True)  # that texts are UTF-8, too, which neither format sees to
    return table.cast(SCHEMA)


def _rows(path: Path) -> int:
    with _reading(path):
        return int(pq.read_metadata(own_file(path)).num_rows)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as e:  # plain, of a null where none may be
        reason = next(iter(str(e).splitlines()), type(e).__name__)
        raise SamplesError(f"{str(path)!r} cannot be read as server metrics: {reason}") from e


def _segment(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}-{number}.arrows")


def _segments(path: Path) -> list[Path]:
    found = path.parent.glob(f"{path.stem}-*.arrows")
    numbered = [(part, p) for p in found if (part := p.stem.removeprefix(f"{path.stem}-")).isdecimal()]
    return [p for _, p in sorted(numbered, key=lambda each: int(each[0]))]
