"""``server_metrics.parquet``: samples of the servers' own metrics, in a form that survives a kill of its
writer.

A Parquet file can be read only once its end is written. So during a run samples are appended to a stream of
Arrow batches next to it, ``server_metrics-0.arrows``; each writing process has a number of its own.
:func:`compact_samples` makes the Parquet file of all of them, when the scraper ends or, if it was killed,
when a reader needs it. Memory is bounded by a row group.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from llm_locust.core.arrow import check_group, from_numpy, open_parquet, values_of, whole_batches
from llm_locust.core.files import own_file, replacing
from llm_locust.deployment.exposition import MOST_VALUE
from llm_locust.wire.foreign_text import one_line
from llm_locust.wire.payload import DECODE_ERRORS

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
        for number in count():
            with suppress(FileExistsError):
                self._file = path.with_name(f"{path.stem}-{number}.arrows").open("xb")
                break
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
        with _reading(path), own_file(path).open("rb") as plain, open_parquet(plain) as file:
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


def _segments(path: Path) -> list[Path]:
    found = path.parent.glob(f"{path.stem}-*.arrows")
    numbered = [(part, p) for p in found if (part := p.stem.removeprefix(f"{path.stem}-")).isdecimal()]
    return [p for _, p in sorted(numbered, key=lambda each: int(each[0]))]


# --------------------
# Samples of a file that no scrape of this program can have written: left out, and named.
#
# Pages are checked when they are scraped (:func:`~llm_locust.deployment.exposition.readings`). A file may
# have been written by an earlier version, or by anyone.
# --------------------


Mask = NDArray[np.bool_]

#: Latest valid time, in the year 2116.
_LAST_NS = 1 << 62

_MOST_NAMED = 3

_labels_of = msgspec.json.Decoder(dict[str, str]).decode


class CheckedSamples:
    """Iterates over the samples of tables that can be used, and counts the others by name and reason."""

    def __init__(self, tables: Iterable[pa.Table]) -> None:
        self._tables = tables
        self._left_out: Counter[tuple[str, str]] = Counter()

    def __iter__(self) -> Iterator[pa.Table]:
        for table in self._tables:
            yield self._usable(table)

    @property
    def failure(self) -> str:
        """What was left out so far, in a few words; empty if it is nothing."""
        if not self._left_out:
            return ""
        named = [
            f"{n:,} of {one_line(name)[:40]!r} ({why})"
            for (name, why), n in self._left_out.most_common(_MOST_NAMED)
        ]
        more = len(self._left_out) - len(named)
        others = f" and {more:,} other kinds" if more else ""
        return (
            f"{self._left_out.total():,} samples cannot be right and were left out: "
            + ", ".join(named)
            + others
        )

    def _usable(self, table: pa.Table) -> pa.Table:
        table = table.cast(SCHEMA).unify_dictionaries().combine_chunks()
        kept = np.ones(len(table), dtype=np.bool_)
        for why, is_wrong in _RULES.items():
            wrong = is_wrong(table) & kept
            if wrong.any():
                kept &= ~wrong
                names = table.column("name").filter(from_numpy(wrong)).to_pylist()
                self._left_out.update((str(name), why) for name in names)
        return table if kept.all() else table.filter(from_numpy(kept))


#: Why a sample cannot be used, and which are such.
_RULES: dict[str, Callable[[pa.Table], Mask]] = {
    # A dictionary may have a null of its own, which no column counts.
    "target or name is missing": lambda table: (
        ~(_where(table, "target", lambda _: True) & _where(table, "name", lambda _: True))
    ),
    # NaN is not less or equal.
    f"the value is not within ±{MOST_VALUE:.0e}": lambda table: (
        ~_mask(pc.less_equal(pc.abs(table.column("value")), MOST_VALUE))
    ),
    "the time is not between 1970 and 2116": lambda table: (
        ~_mask(
            pc.and_(
                pc.greater_equal(table.column("at_ns"), 0), pc.less_equal(table.column("at_ns"), _LAST_NS)
            )
        )
    ),
    "the labels are no JSON object of texts": lambda table: (
        ~_where(table, "labels", lambda text: _decoded(text) is not None)
    ),
    "a bucket's 'le' is no number": lambda table: (
        _where(table, "name", lambda name: name.endswith("_bucket")) & ~_where(table, "labels", _is_with_edge)
    ),
}


def _decoded(text: str) -> dict[str, str] | None:
    try:
        return _labels_of(text)
    except DECODE_ERRORS:
        return None


def _is_with_edge(text: str) -> bool:
    try:
        return not math.isnan(float((_decoded(text) or {}).get("le", math.nan)))
    except ValueError:
        return False


def _where(table: pa.Table, name: str, holds: Callable[[str], bool]) -> Mask:
    """The rows of whose text in a column something holds: asked once for each text."""
    found = [np.zeros(0, dtype=np.bool_)]
    for chunk in table.column(name).chunks:
        texts = chunk.dictionary.to_pylist()
        of_text = np.array([text is not None and holds(text) for text in texts], dtype=np.bool_)
        found.append(of_text[values_of(chunk.indices)])
    return np.concatenate(found)


def _mask(column: pa.ChunkedArray) -> Mask:
    chunks = [values_of(chunk) for chunk in column.chunks]
    return np.concatenate([np.zeros(0, dtype=np.bool_), *chunks])
