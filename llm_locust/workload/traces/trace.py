"""A trace for replay: sorted, cut, stretched, and divided among the workers."""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import msgspec

from llm_locust.workload.traces import azure, burstgpt, mooncake, sessions
from llm_locust.workload.traces.entry import TraceEntry, TraceError, TraceRow
from llm_locust.workload.traces.reading import lines, plain

#: How many lines a line may be away from its position in time.
WINDOW = 4096

#: Name -> reader of each format.
FORMATS: dict[str, Callable[[Path, Iterable[str]], Iterator[TraceRow]]] = {
    "azure": azure.rows,
    "mooncake": mooncake.rows,
    "burstgpt": burstgpt.rows,
    "sessions": sessions.rows,
}


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """Totals of a trace: ``span_s`` is from its slice's first request to the last one, scaled."""

    entries: int
    span_s: float
    input_tokens: int
    output_tokens: int

    @property
    def rate(self) -> float:
        """Mean requests/s, from the first request to the last; NaN for fewer than two different times."""
        return (self.entries - 1) / self.span_s if self.span_s > 0 else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A slice of a trace file. Each iteration reads the file again; :func:`open_trace` makes one.

    ``scale`` stretches all times: 2 is twice as slow, at half the rate. ``start_s`` and ``end_s`` cut before
    that, in recorded seconds after the file's first request, ``end_s`` itself excluded.

    Iterating raises TraceError at an invalid line.
    """

    path: Path
    format: str
    scale: float = 1.0
    start_s: float = 0.0
    end_s: float = math.inf

    def __iter__(self) -> Iterator[TraceEntry]:
        """All requests, in order of time."""
        return (self._entry(k, at_s, row) for k, at_s, row in self._slice())

    def share(self, worker_index: int, worker_count: int) -> Iterator[TraceEntry]:
        """Requests k = i, i + W ... for worker i of W, and those of every W-th session, whole.

        Sessions are divided by a hash of their names: about equally.
        """
        for k, at_s, row in self._slice():
            place = k if row.session is None else crc32(row.session.encode())
            if place % worker_count == worker_index:
                yield self._entry(k, at_s, row)

    def facts(self) -> TraceFacts:
        """Count the whole slice, which also checks every line of it."""
        entries, first_s, last_s, inputs, outputs = 0, 0.0, 0.0, 0, 0
        for k, at_s, row in self._slice():
            first_s = first_s if k else at_s
            entries, last_s = k + 1, at_s
            inputs += row.input_tokens
            outputs += row.output_tokens
        return TraceFacts(entries, (last_s - first_s) * self.scale, inputs, outputs)

    def _slice(self) -> Iterator[tuple[int, float, TraceRow]]:
        """k, recorded seconds after ``start_s``, and the row of each request."""
        ordered = _ascending(self.path, FORMATS[self.format](self.path, lines(self.path)))
        if self.format == "sessions":
            ordered = sessions.linked(self.path, ordered, self.start_s)
        origin_ns: int | None = None
        start_ns, length_s, k = round(self.start_s * 1e9), self.end_s - self.start_s, 0
        for row in ordered:
            if origin_ns is None:
                origin_ns = row.at_ns + start_ns
            at_s = (row.at_ns - origin_ns) * 1e-9
            if at_s >= length_s:
                return
            if at_s >= 0:
                yield k, at_s, row
                k += 1

    def _entry(self, k: int, at_s: float, row: TraceRow) -> TraceEntry:
        return TraceEntry(
            k=k,
            at_s=at_s * self.scale,
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            hash_ids=row.hash_ids,
            session=row.session,
            id=row.id,
            after=row.after,
            gap_s=row.gap_s * self.scale,
            turn=row.turn,
            line=row.line,
        )


def open_trace(
    path: str | Path,
    *,
    format: str | None = None,
    scale: float = 1.0,
    start_s: float = 0.0,
    end_s: float | None = None,
    rate: float | None = None,
) -> Trace:
    """Open the trace in the file at ``path``, and check it up to its first request.

    Args:
        format: one of :data:`FORMATS`; by default according to the first line.
        scale, start_s, end_s: as for :class:`Trace`.
        rate: mean requests/s that the slice is stretched to, instead of ``scale``. Reads the file once.

    Raises:
        TraceError: no such file or format, arguments out of range, an invalid line, or no request.
    """
    name = f"trace {str(path)!r}"
    if not (math.isfinite(scale) and scale > 0):
        raise TraceError(f"{name}: scale {scale:g} is not above 0 (2 is twice as slow)")
    end = math.inf if end_s is None else end_s
    if not 0 <= start_s < end:
        raise TraceError(f"{name}: no slice from {start_s:g} s to {end:g} s; times count from 0 and ascend")
    if rate is not None and scale != 1:
        raise TraceError(f"{name}: both a scale of {scale:g} and a rate of {rate:g}/s; give one of the two")
    trace = Trace(
        path=Path(path),
        format=_format(Path(path), format),
        scale=scale,
        start_s=start_s,
        end_s=end,
    )
    if next(iter(trace), None) is None:
        raise TraceError(f"{name}: it has no request in its slice from {start_s:g} s to {end:g} s")
    return trace if rate is None else replace(trace, scale=_scale(name, trace.facts(), rate))


def _scale(name: str, facts: TraceFacts, rate: float) -> float:
    if not (math.isfinite(rate) and rate > 0):
        raise TraceError(f"{name}: rate {rate:g} is not above 0 requests/s")
    if math.isnan(facts.rate):
        raise TraceError(
            f"{name}: all its requests ({facts.entries}) have the same time: there is no rate to scale"
        )
    return facts.rate / rate


def _format(path: Path, asked: str | None) -> str:
    allowed = ", ".join(FORMATS)
    if asked is not None:
        if asked not in FORMATS:
            raise TraceError(f"trace {str(path)!r}: no format {asked!r}; allowed are {allowed}")
        return asked
    number, first = next(((n, text) for n, text in enumerate(lines(path), 1) if text.strip()), (0, ""))
    if not number:
        raise TraceError(f"trace {str(path)!r}: it is empty; expected one of the formats {allowed}")
    found = _of_object(first) if first.lstrip().startswith("{") else _of_header(first)
    if found is None:
        raise TraceError(
            f"{path}:{number}: {first.strip()[:60]!r} is the start of no known format; allowed are {allowed}"
        )
    return found


def _of_object(text: str) -> str | None:
    try:
        keys = msgspec.json.decode(text, type=dict[str, msgspec.Raw]).keys()
    except (ValueError, RecursionError):
        return None
    return "mooncake" if "input_length" in keys else "sessions" if "input_tokens" in keys else None


def _of_header(text: str) -> str | None:
    names = {plain(cell) for cell in text.split(",")}
    formats = {"azure": azure.COLUMNS, "burstgpt": burstgpt.COLUMNS}
    return next((f for f, columns in formats.items() if {plain(c) for c in columns} <= names), None)


def _ascending(path: Path, rows: Iterable[TraceRow]) -> Iterator[TraceRow]:
    """Rows in order of time, if at most :data:`WINDOW` lines out of place."""
    waiting: list[TraceRow] = []
    given: TraceRow | None = None
    for row in rows:
        if given is not None and row < given:
            raise TraceError(
                f"{path}:{row.line}: {(given.at_ns - row.at_ns) * 1e-9:g} s earlier than line {given.line}; "
                f"expected times that ascend, or lines at most {WINDOW:,} off: sort the file by time"
            )
        if len(waiting) < WINDOW:
            heapq.heappush(waiting, row)
        else:
            given = heapq.heappushpop(waiting, row)
            yield given
    while waiting:
        yield heapq.heappop(waiting)
