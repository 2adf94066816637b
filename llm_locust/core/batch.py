"""Many requests as columns: for transport, storage and metrics.

A :class:`RecordBatch` wraps one Arrow table of the fixed :data:`~llm_locust.core.arrow.SCHEMA`.
Arrow's nulls are the only "undefined": the numpy accessors turn them into NaN, never into 0.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import attrgetter
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from llm_locust.core.arrow import (
    ADDED,
    SCHEMA,
    SCHEMA_VERSION,
    StreamError,
    from_labels,
    from_lists,
    from_numpy,
    from_values,
    known_of,
    read_stream,
    values_of,
)
from llm_locust.core.record import MAX_ARRIVALS, MAX_TEXT_CHARS, MOMENTS, Outcome, RequestRecord

#: Rows processed at a time: with 100 tokens each, 13 MB of arrivals.
PART_ROWS = 1 << 14

#: Size in bytes above which a batch is sent uncompressed.
_COMPRESSED_BYTES = 1 << 20

#: Most bytes of a text in UTF-8.
_MAX_TEXT_BYTES = 4 * MAX_TEXT_CHARS

#: Values of a record in the order of the schema, without the worker.
_values_of = attrgetter(*("slo_class" if n == "class" else n for n in SCHEMA.names if n != "worker"))


class BatchError(ValueError):
    """Bytes or a table that are not a batch of this schema; the text says why."""


@dataclass(frozen=True, slots=True)
class Labels:
    """A text column as integers: ``names[codes[i]]`` is row i's text, code -1 means null."""

    codes: NDArray[np.int32]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ragged:
    """A list column: row i holds ``values[offsets[i]:offsets[i + 1]]``."""

    offsets: NDArray[np.int64]
    values: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Requests as columns. Immutable; every operation returns a new batch."""

    table: pa.Table

    @classmethod
    def from_records(cls, records: Sequence[RequestRecord], worker: str) -> "RecordBatch":
        """Make one row per record, in order. ``worker`` is the name of the process that made them."""
        columns = [*zip(*map(_values_of, records), strict=True)] or [()] * (len(SCHEMA) - 1)
        columns.insert(SCHEMA.names.index("worker"), (worker,) * len(records))
        arrays = [make(values) for make, values in zip(_MAKERS, columns, strict=True)]
        return cls(pa.Table.from_arrays(arrays, schema=SCHEMA))

    @classmethod
    def warm_up(cls) -> None:
        """Make and read one batch. The first one takes a sixth of a second, too long during the load.

        It also makes Arrow use the system's memory allocator: its own keeps what other threads have freed,
        and a process that runs for days would grow.
        """
        pa.set_memory_pool(pa.system_memory_pool())
        record = RequestRecord(
            request_id="", name="", outcome=Outcome.OK, scheduled_ns=0, started_ns=0, ended_ns=0
        )
        batch = cls.from_bytes(cls.from_records([record], worker="").to_bytes())
        batch.floats("status")
        batch.labels("name")

    @classmethod
    def empty(cls) -> "RecordBatch":
        return cls(pa.Table.from_batches([], SCHEMA))

    @classmethod
    def concat(cls, batches: Iterable["RecordBatch"]) -> "RecordBatch":
        """Concatenate batches, in order."""
        tables = [b.table for b in batches]
        if not tables:
            return cls.empty()
        return cls(pa.concat_tables(tables).unify_dictionaries().combine_chunks())

    @classmethod
    def from_table(cls, table: pa.Table, columns: Sequence[str] = SCHEMA.names) -> "RecordBatch":
        """Make a batch of the ``columns`` of a table read from elsewhere, in that order.

        A column that a file of an earlier version does not have is undefined there.

        Raises:
            BatchError: another column is missing or of another type, or a request has too many arrivals or
                too long a text.
        """
        present = set(table.column_names)
        absent = [name for name in columns if name not in present]
        missing = [name for name in absent if name not in ADDED]
        if missing:
            raise BatchError(f"columns are missing: {', '.join(missing)}")
        for name in absent:
            field = SCHEMA.field(name)
            table = table.append_column(field, pa.nulls(len(table), field.type))
        schema = pa.schema([SCHEMA.field(name) for name in columns], SCHEMA.metadata)
        try:
            found = table.select(columns).cast(schema).unify_dictionaries().combine_chunks()
        except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, ValueError) as e:
            raise BatchError(f"columns are not of schema version {SCHEMA_VERSION}: {e}") from e
        _check_arrivals(found, columns)
        batch = cls(found)
        for name, texts in batch._all_texts():
            longest = pc.max(pc.binary_length(texts)).as_py() or 0
            if longest > _MAX_TEXT_BYTES:
                raise BatchError(f"{name} has a text of {longest:,} bytes, allowed is {_MAX_TEXT_BYTES:,}")
        return batch

    def to_bytes(self) -> bytes:
        """Encode as one Arrow IPC stream, its buffers LZ4-compressed unless they are large.

        Compressing 200,000 arrivals would hold an event loop for 10 ms.
        """
        sink = pa.BufferOutputStream()
        # In this thread: on a busy machine, waiting for Arrow's threads takes three times as long, and each
        # of them keeps freed memory, so that a worker would grow by megabytes over hours.
        compression = "lz4" if self.table.nbytes <= _COMPRESSED_BYTES else None
        options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
        with pa.ipc.new_stream(sink, SCHEMA, options=options) as writer:
            writer.write_table(self.table)
        return bytes(sink.getvalue())

    @classmethod
    def from_bytes(cls, data: bytes) -> "RecordBatch":
        """Decode the result of :meth:`to_bytes`.

        Raises:
            BatchError: the bytes are not a whole IPC stream of this schema, or are damaged inside.
        """
        try:
            return cls.from_table(read_stream(data, SCHEMA))
        except StreamError as e:
            raise BatchError(str(e)) from e

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def parts(self, columns: Sequence[str] = SCHEMA.names) -> Iterator["RecordBatch"]:
        """Iterate over parts of at most :data:`PART_ROWS` rows, without a copy; see :class:`Requests`."""
        table = self.table.select(columns)
        for start in range(0, max(1, len(self)), PART_ROWS):
            yield RecordBatch(table.slice(start, PART_ROWS))

    def take(self, rows: NDArray[np.int64]) -> "RecordBatch":
        return RecordBatch(self.table.take(from_numpy(rows)).combine_chunks())

    def filter(self, mask: NDArray[np.bool_]) -> "RecordBatch":
        return RecordBatch(self.table.filter(from_numpy(mask)).combine_chunks())

    def shifted(self, offset_ns: int) -> "RecordBatch":
        """The same requests on a clock that is ahead by ``offset_ns``: no duration changes."""
        if not offset_ns:
            return self
        table = self.table
        for place, name in enumerate(table.column_names):
            if name in MOMENTS:
                later = pc.add(table.column(name), from_values([offset_ns], pa.int64())[0])
                table = table.set_column(place, table.schema.field(place), later)
        return RecordBatch(table)

    def floats(self, name: str) -> NDArray[np.float64]:
        """A numeric column as float64, null as NaN; values beyond 2⁵³ are rounded, as from a clock that is
        off by years. Not for wall-clock times: see :meth:`seconds`."""
        column = _one_chunk(self.table.column(name).cast(pa.float64(), safe=False))
        values, known = values_of(column), known_of(column)
        return values if known is None else np.where(known, values, np.nan)

    def seconds(self, name: str, origin_ns: int) -> NDArray[np.float64]:
        """A wall-clock column in seconds after ``origin_ns``, null as NaN.

        The subtraction is done on integers: float64 holds today's epoch time only to 256 ns.
        """
        column = _one_chunk(self.table.column(name))
        seconds, known = (values_of(column) - origin_ns) * 1e-9, known_of(column)
        return seconds if known is None else np.where(known, seconds, np.nan)

    def ints(self, name: str) -> NDArray[np.int64]:
        """A column without nulls as int64 (raises ValueError if it has one)."""
        column = self.table.column(name)
        if column.null_count:
            raise ValueError(f"column {name!r} has {column.null_count} nulls")
        return np.asarray(values_of(_one_chunk(column)), dtype=np.int64)

    def bools(self, name: str) -> NDArray[np.bool_]:
        return np.asarray(values_of(_one_chunk(self.table.column(name))), dtype=np.bool_)

    def labels(self, name: str) -> Labels:
        """A text column as codes and names; each name occurs once."""
        column = _one_chunk(self.table.column(name).unify_dictionaries())
        codes, known = values_of(column.indices), known_of(column.indices)
        codes = codes if known is None else np.where(known, codes, -1)
        return Labels(np.asarray(codes, dtype=np.int32), tuple(column.dictionary.to_pylist()))

    @property
    def text_bytes(self) -> int:
        """Bytes of all texts, of which a label counts once."""
        return sum(texts.nbytes for _, texts in self._all_texts())

    def _all_texts(self) -> Iterator[tuple[str, pa.Array]]:
        """The texts of each column that has some; of labels each once."""
        for name, column in zip(self.table.column_names, self.table.columns, strict=True):
            for chunk in column.chunks:
                if pa.types.is_dictionary(column.type):
                    yield name, chunk.dictionary
                elif pa.types.is_string(column.type):
                    yield name, chunk

    def texts(self, name: str) -> list[str | None]:
        return [None if v is None else str(v) for v in self.table.column(name).to_pylist()]

    def arrivals(self) -> Ragged:
        """Arrival times of the token events of all requests, ns after each request's ``sent_ns``."""
        column = _one_chunk(self.table.column("arrivals_ns"))
        offsets = np.asarray(values_of(column.offsets), dtype=np.int64)
        values = np.asarray(values_of(column.values), dtype=np.int64)
        return Ragged(offsets - offsets[0], values[offsets[0] : offsets[-1]])


class Requests(Protocol):
    """All requests of a run, in memory (:class:`RecordBatch`) or read on request."""

    def __len__(self) -> int: ...

    def parts(self, columns: Sequence[str] = SCHEMA.names) -> Iterator[RecordBatch]:
        """Iterate over all rows in order, part by part; at least one part, which may be empty.

        The parts have only ``columns``. Each call starts from the beginning. Results must not depend on how
        the rows are split into parts.
        """
        ...


def _check_arrivals(table: pa.Table, columns: Sequence[str]) -> None:
    for name in {"arrivals_ns"}.intersection(columns):
        most = pc.max(pc.list_value_length(table.column(name))).as_py() or 0
        if most > MAX_ARRIVALS:
            raise BatchError(f"a request has {most:,} values in {name}, at most {MAX_ARRIVALS:,} are allowed")


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array. A single chunk is not copied, as ``combine_chunks`` would do."""
    if column.num_chunks == 0:
        return pa.nulls(0, column.type)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _maker(type_: Any) -> Callable[[Sequence[Any]], pa.Array]:
    """What makes a column of this type from a value for each row."""
    if pa.types.is_dictionary(type_):
        return from_labels
    return partial(from_lists if pa.types.is_list(type_) else from_values, type_=type_)


_MAKERS = [_maker(field.type) for field in SCHEMA]


# --- Records as columns without an Arrow table, for a look at a few of them: a tenth of the time


_EMPTY = np.empty(0, dtype=np.int64)


class ColumnSource(Protocol):
    """What metrics read columns from: a :class:`~llm_locust.core.batch.RecordBatch`, or records."""

    def __len__(self) -> int: ...

    def floats(self, name: str) -> NDArray[np.float64]: ...

    def seconds(self, name: str, origin_ns: int) -> NDArray[np.float64]: ...

    def ints(self, name: str) -> NDArray[np.int64]: ...

    def bools(self, name: str) -> NDArray[np.bool_]: ...

    def labels(self, name: str) -> Labels: ...

    def texts(self, name: str) -> list[str | None]: ...

    def arrivals(self) -> Ragged: ...


class RecordRows:
    """Columns of records, as :meth:`RecordBatch.from_records` of the same arguments has them."""

    __slots__ = ("_records", "_worker")

    def __init__(self, records: Sequence[RequestRecord], worker: str) -> None:
        self._records = records
        self._worker = worker

    def __len__(self) -> int:
        return len(self._records)

    def _values(self, name: str) -> list[Any]:
        if name == "worker":
            return [self._worker] * len(self._records)
        attribute = "slo_class" if name == "class" else name
        return [getattr(record, attribute) for record in self._records]

    def floats(self, name: str) -> NDArray[np.float64]:
        """A numeric column as float64, None as NaN."""
        return np.array(self._values(name), dtype=np.float64)  # which takes None for NaN

    def seconds(self, name: str, origin_ns: int) -> NDArray[np.float64]:
        """A wall-clock column in seconds after ``origin_ns``, None as NaN; subtracted as integers."""
        values = self._values(name)
        after = [None if at_ns is None else at_ns - origin_ns for at_ns in values]
        return np.array(after, dtype=np.float64) * 1e-9

    def ints(self, name: str) -> NDArray[np.int64]:
        """A column without None as int64 (raises ValueError if it has one)."""
        values = self._values(name)
        if None in values:
            raise ValueError(f"column {name!r} has {values.count(None)} nulls")
        return np.array(values, dtype=np.int64)

    def bools(self, name: str) -> NDArray[np.bool_]:
        return np.array(self._values(name), dtype=np.bool_)

    def labels(self, name: str) -> Labels:
        """A text column as codes and names, in the order of their first occurrence."""
        values = self._values(name)
        names = dict.fromkeys(value for value in values if value is not None)
        code_of: dict[str | None, int] = {value: code for code, value in enumerate(names)} | {None: -1}
        return Labels(np.array([code_of[value] for value in values], np.int32), tuple(map(str, names)))

    def texts(self, name: str) -> list[str | None]:
        return [None if value is None else str(value) for value in self._values(name)]

    def arrivals(self) -> Ragged:
        """Arrival times of the token events of all requests, ns after each request's ``sent_ns``."""
        return _ragged(self._values("arrivals_ns"))


def _ragged(lists: Sequence[NDArray[np.int64] | None]) -> Ragged:
    own = [_EMPTY if each is None else each for each in lists]
    offsets = np.array([*accumulate(map(len, own), initial=0)], dtype=np.int64)
    return Ragged(offsets, np.concatenate([_EMPTY, *own]))
