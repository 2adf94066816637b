"""A trace for replay: sorted, cut, stretched, and divided among the workers."""

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from zlib import crc32

import msgspec

from llm_locust.core.arrow import MAGIC
from llm_locust.core.files import TRACE, FileReading, InputError, first_bytes, skipped_text, text_lines
from llm_locust.figures.text import plural
from llm_locust.workload.trace_formats import (
    AZURE_COLUMNS,
    BAILIAN_BLOCK_TOKENS,
    BAILIAN_KEYS,
    BURSTGPT_COLUMNS,
    MOONCAKE_BLOCK_TOKENS,
    TraceEntry,
    TraceError,
    TraceRow,
    TraceSource,
    azure_rows,
    burstgpt_rows,
    chat_rows,
    linked,
    mooncake_rows,
    plain,
    session_rows,
)

#: How many lines a line may be away from its position in time.
WINDOW = 4096

#: Most hash ids of the lines that wait for their position: with long prompts, fewer lines do.
WINDOW_BLOCKS = 1 << 21

#: Name -> nanoseconds of the units in which a trace may have its times.
UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A format: the reader of its lines, and what their numbers mean unless somebody says otherwise.

    ``unit`` is one of :data:`UNITS`, or None where times have none; it may be another one if
    ``may_have_other_unit``. ``block_tokens`` is None where there are no hash ids.
    """

    rows: Callable[[TraceSource, FileReading], Iterator[TraceRow]]
    unit: str | None
    block_tokens: int | None = None
    may_have_other_unit: bool = True


#: Name -> format.
FORMATS: dict[str, TraceFormat] = {
    "azure": TraceFormat(azure_rows, None, may_have_other_unit=False),
    "mooncake": TraceFormat(mooncake_rows, "ms", MOONCAKE_BLOCK_TOKENS),
    "bailian": TraceFormat(chat_rows, "s", BAILIAN_BLOCK_TOKENS),
    "burstgpt": TraceFormat(burstgpt_rows, "s"),
    "sessions": TraceFormat(session_rows, "s", MOONCAKE_BLOCK_TOKENS, may_have_other_unit=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceAsked:
    """What somebody says of a trace's file.

    Attributes:
        unit: of its times, one of :data:`UNITS`; None: the format's.
        block_tokens: that one of its hash ids stands for; None: the format's.
        most_skipped: how many lines that cannot be read are skipped.
    """

    unit: str | None = None
    block_tokens: int | None = None
    most_skipped: int = 0


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

    Iterating raises TraceError at an invalid line, unless it may be skipped.
    """

    path: Path
    format: str
    scale: float = 1.0
    start_s: float = 0.0
    end_s: float = math.inf
    asked: TraceAsked = TraceAsked()

    @property
    def file(self) -> TraceSource:
        """The file, and what its numbers mean."""
        of = FORMATS[self.format]
        return TraceSource(
            self.path,
            UNITS[self.asked.unit or of.unit or "s"],
            self.asked.block_tokens or of.block_tokens or MOONCAKE_BLOCK_TOKENS,
        )

    def __iter__(self) -> Iterator[TraceEntry]:
        """All requests, in order of time."""
        block = self.file.block_tokens
        return (self._entry(k, at_s, row, block) for k, at_s, row in self.recorded())

    def share(self, worker_index: int, worker_count: int) -> Iterator[TraceEntry]:
        """Requests k = i, i + W ... for worker i of W, and those of every W-th session, whole.

        Sessions are divided by a hash of their names: about equally.
        """
        block = self.file.block_tokens
        for k, at_s, row in self.recorded():
            place = k if row.session is None else crc32(row.session.encode())
            if place % worker_count == worker_index:
                yield self._entry(k, at_s, row, block)

    def facts(self) -> TraceFacts:
        """Count the whole slice, which also checks every line of it."""
        entries, first_s, last_s, inputs, outputs = 0, 0.0, 0.0, 0, 0
        for k, at_s, row in self.recorded(self.reading()):
            first_s = first_s if k else at_s
            entries, last_s = k + 1, at_s
            inputs += row.input_tokens
            outputs += row.output_tokens
        return TraceFacts(entries, (last_s - first_s) * self.scale, inputs, outputs)

    def reading(self, *, is_timed: bool = True) -> FileReading:
        """What counts a reading of the file; a timed one is before the load."""
        return FileReading(TRACE, self.path, most_skipped=self.asked.most_skipped, is_timed=is_timed)

    def recorded(self, reading: FileReading | None = None) -> Iterator[tuple[int, float, TraceRow]]:
        """k, recorded seconds after ``start_s``, and the row of each request, in order of time.

        Args:
            reading: counts what is read; without it the load reads the file, in its own time.
        """
        if reading is None:
            reading = self.reading(is_timed=False)
        try:
            yield from self._slice(reading)
        except InputError as e:
            raise TraceError(str(e)) from e

    def _slice(self, reading: FileReading) -> Iterator[tuple[int, float, TraceRow]]:
        ordered = _ascending(self.path, FORMATS[self.format].rows(self.file, reading))
        if self.format == "sessions":
            ordered = linked(self.path, ordered, self.start_s)
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

    def _entry(self, k: int, at_s: float, row: TraceRow, block_tokens: int) -> TraceEntry:
        return TraceEntry(
            k=k,
            at_s=at_s * self.scale,
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            hash_ids=row.hash_ids,
            block_tokens=block_tokens,
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
    asked: TraceAsked = TraceAsked(),
) -> Trace:
    """Open the trace in the file at ``path``, and check it up to its first request.

    Args:
        format: one of :data:`FORMATS`; by default according to the first line.
        scale, start_s, end_s: as for :class:`Trace`.
        rate: mean requests/s that the slice is stretched to, instead of ``scale``. Reads the file once.
        asked: what the file's numbers mean, and what is skipped.

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
        asked=asked,
    )
    _check_units(name, trace)
    if next(trace.recorded(trace.reading()), None) is None:
        raise TraceError(f"{name}: it has no request in its slice from {start_s:g} s to {end:g} s")
    return trace if rate is None else replace(trace, scale=_scale(name, trace.facts(), rate))


def _check_units(name: str, trace: Trace) -> None:
    of, asked = FORMATS[trace.format], trace.asked
    if asked.unit is not None and asked.unit not in UNITS:
        raise TraceError(f"{name}: no unit {asked.unit!r}; there are {', '.join(UNITS)}")
    if asked.unit not in (None, of.unit) and not of.may_have_other_unit:
        what = "dates" if of.unit is None else "seconds"
        raise TraceError(f"{name}: unit {asked.unit!r}: the times of the format {trace.format} are {what}")
    if asked.block_tokens is not None and of.block_tokens is None:
        raise TraceError(f"{name}: blocks of {asked.block_tokens}: the format {trace.format} has no hash ids")


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
    try:
        if first_bytes(path, TRACE.name, len(MAGIC)) == MAGIC:
            raise TraceError(f"trace {str(path)!r}: a Parquet file; write it as CSV or JSON lines: {allowed}")
        texts = enumerate(text_lines(path, FileReading(TRACE, path)), 1)
        number, first = next(((n, text) for n, text in texts if text.strip()), (0, ""))
    except InputError as e:
        raise TraceError(str(e)) from e
    if not number:
        raise TraceError(f"trace {str(path)!r}: it is empty; expected one of the formats {allowed}")
    found = _of_object(first) if first.lstrip().startswith("{") else _of_header(first)
    if found is None:
        raise TraceError(
            f"{path}:{number}: {first.strip()[:60]!r} is the start of no known format; allowed are {allowed}"
            f"{_advice(first)}"
        )
    return found


def _keys(text: str) -> frozenset[str]:
    """Keys of a JSON object; none of anything else."""
    try:
        return frozenset(msgspec.json.decode(text, type=dict[str, msgspec.Raw]))
    except (ValueError, RecursionError):
        return frozenset()


def _of_object(text: str) -> str | None:
    keys = _keys(text)
    if {"timestamp", "input_length"} <= keys:
        return "bailian" if keys & BAILIAN_KEYS and "session_id" not in keys else "mooncake"
    return "sessions" if "input_tokens" in keys else None


def _advice(text: str) -> str:
    """What to do with a file of another kind."""
    keys = _keys(text)
    if keys & {"session_id", "requests", "conversation_id"} or {"hash_ids", "input_length"} <= keys:
        return "; turns of sessions that wait for each other, without times, are for --trajectories FILE"
    if keys & {"messages", "prompt", "text", "text_input", "conversations", "body"}:
        return "; prompts without times are for --dataset FILE"
    return ""


def _of_header(text: str) -> str | None:
    names = {plain(cell.strip().strip('"')) for cell in text.split(",")}
    formats = {"azure": AZURE_COLUMNS, "burstgpt": BURSTGPT_COLUMNS}
    return next((f for f, columns in formats.items() if {plain(c) for c in columns} <= names), None)


def _ascending(path: Path, rows: Iterable[TraceRow]) -> Iterator[TraceRow]:
    """Rows in order of time, if at most :data:`WINDOW` lines out of place."""
    waiting: list[TraceRow] = []
    given: TraceRow | None = None
    blocks = 0
    for row in rows:
        if given is not None and row < given:
            raise TraceError(
                f"{path}:{row.line}: {(given.at_ns - row.at_ns) * 1e-9:g} s earlier than line {given.line}; "
                f"expected times that ascend, or lines at most {WINDOW:,} off: sort the file by time"
            )
        heapq.heappush(waiting, row)
        blocks += len(row.hash_ids)
        while len(waiting) > WINDOW or (blocks > WINDOW_BLOCKS and len(waiting) > 1):
            given = heapq.heappop(waiting)
            blocks -= len(given.hash_ids)
            yield given
    while waiting:
        yield heapq.heappop(waiting)


# --- How a trace was read, in one line, and whether that can be: units are not in the file, and a wrong one
# makes another load of it
#
# Two things tell of a wrong unit. Hash ids stand for blocks of a prompt, so that their number times the
# size of a block is about the prompt's length. And a recorded service has a rate that machines can serve.


#: Requests from the beginning of a trace that are looked at.
SAMPLE = 20_000

#: Fewest requests whose rate, and fewest prompts whose coverage by blocks, tell anything.
_FEWEST = 10
_FEWEST_PROMPTS = 3

#: Share of the prompts that a size of block fits, for it to be the right one; and to be a possible one.
_FITS, _MAY_FIT = 0.9, 0.5

#: Fewest blocks of a prompt, in the median, for which a size that is too small is told from a prompt of which
#: only the beginning has blocks.
_FEWEST_BLOCKS = 4

#: Rates above or below which no published trace is: of requests, and of tokens in and out. In milliseconds a
#: trace of a request every 10 s or less would have more, were its times seconds.
_MOST_RATES = {"ms": 100.0, "s": 1_000.0}
_MOST_TOKEN_RATE = 1_000_000.0
_LEAST_RATE = 1 / 100

_UNIT_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


@dataclass(frozen=True, slots=True)
class Hashed:
    """A prompt's length in tokens and its number of blocks, at a line of a file."""

    tokens: int
    blocks: int
    where: str

    def fits(self, block_tokens: float) -> bool:
        """Whether blocks of this size, all of them or only the full ones, make up the prompt."""
        return (self.blocks - 1) * block_tokens < self.tokens < (self.blocks + 1) * block_tokens

    def is_shorter(self, block_tokens: int) -> bool:
        """Whether the prompt ends before its last block begins."""
        return (self.blocks - 1) * block_tokens >= self.tokens


class BlockError(ValueError):
    """Hash ids that do not stand for blocks of the size; ``fitting`` is one that they do stand for."""

    def __init__(self, where: Hashed, block_tokens: int, what: str, fitting: int | None) -> None:
        size = f"blocks of {fitting} fit: add --trace-block {fitting}" if fitting else "no size fits"
        super().__init__(
            f"{where.where}: {plural(where.blocks, 'hash id')} for a prompt of {where.tokens:,} tokens: "
            f"blocks of {block_tokens} {what}; {size} (--trace-block {block_tokens} cuts them to the lengths)"
        )
        self.fitting = fitting


def check_blocks(found: Iterable[Hashed], block_tokens: int) -> None:
    """Check that hash ids stand for blocks of this size.

    Raises:
        BlockError: they do not; the text names a prompt, and the size that fits.
    """
    hashed = [prompt for prompt in found if prompt.blocks and prompt.tokens]
    odd = [prompt for prompt in hashed if prompt.is_shorter(block_tokens)]
    if len(odd) > (1 - _FITS) * len(hashed):
        raise BlockError(odd[0], block_tokens, "do not fit", _fitting(hashed))
    many = [prompt for prompt in hashed if prompt.blocks > 1]
    if len(many) < _FEWEST_PROMPTS or median(p.blocks for p in many) < _FEWEST_BLOCKS:
        return
    size = _fitting(many)
    if _share(many, block_tokens) < _MAY_FIT and size is not None:
        first = next(prompt for prompt in many if prompt.fits(size))
        raise BlockError(first, block_tokens, "would be its beginning only", size)


def _share(hashed: list[Hashed], block_tokens: float) -> float:
    return sum(prompt.fits(block_tokens) for prompt in hashed) / len(hashed)


def _fitting(hashed: list[Hashed]) -> int | None:
    """The size of block that fits nearly all prompts: a power of two if one does."""
    typical = round(median(prompt.tokens / prompt.blocks for prompt in hashed))
    sizes = max((1 << power for power in range(2, 17)), key=lambda size: _share(hashed, size)), typical
    return next((size for size in sizes if size and _share(hashed, size) >= _FITS), None)


@dataclass(slots=True)
class _Sample:
    """Facts of the first requests of a trace, in recorded time."""

    requests: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    tokens: int = 0
    prompt_tokens: int = 0
    block_tokens: int = 0

    @property
    def span_s(self) -> float:
        return self.last_s - self.first_s

    @property
    def rate(self) -> float:
        return (self.requests - 1) / self.span_s if self.span_s > 0 else math.nan

    def add(self, at_s: float, row: TraceRow, block: int) -> None:
        self.first_s = at_s if not self.requests else self.first_s
        self.requests, self.last_s = self.requests + 1, at_s
        self.tokens += row.input_tokens + row.output_tokens
        self.prompt_tokens += row.input_tokens
        self.block_tokens += min(row.input_tokens, len(row.hash_ids) * block)


def how_read(trace: Trace, reading: FileReading | None = None, *, stretched: bool = False) -> str:
    """How a trace was read: ``12 requests in 5.5 s (2.18/s): seconds, blocks of 16 tokens``.

    Where lines may be skipped, it is read to its end: their number is that of the slice.

    Args:
        reading: counts what is read.
        stretched: whether its times are stretched to a rate, so that their unit does not matter.

    Raises:
        TraceError: its numbers cannot mean what they were taken for; the text says what to give instead.
    """
    reading = trace.reading() if reading is None else reading
    rows = trace.recorded(reading)
    file, sample, hashed = trace.file, _Sample(), list[Hashed]()
    for _, at_s, row in islice(rows, SAMPLE):
        sample.add(at_s, row, file.block_tokens)
        if row.blocks:
            hashed.append(Hashed(row.input_tokens, row.blocks, f"{trace.path}:{row.line}"))
    is_all = next(rows, None) is None
    if trace.asked.most_skipped:
        deque(rows, 0)
    if trace.asked.block_tokens is None:
        try:
            check_blocks(hashed, file.block_tokens)
        except BlockError as e:
            units = "; in Bailian's traces of Qwen, which have 16, times are seconds: --trace-unit s"
            raise TraceError(f"{e}{units if e.fitting == BAILIAN_BLOCK_TOKENS else ''}") from e
    name = FORMATS[trace.format]
    if trace.asked.unit is None and name.unit is not None and name.may_have_other_unit and not stretched:
        _check_rate(trace, sample)
    return _line(trace, sample, reading, hashed=hashed, is_all=is_all)


def _check_rate(trace: Trace, sample: _Sample) -> None:
    """Refuse a rate that no service has (raises TraceError)."""
    if sample.requests < _FEWEST or math.isnan(sample.rate):
        return
    unit = FORMATS[trace.format].unit or "s"
    token_rate = sample.tokens / sample.span_s
    if sample.rate > _MOST_RATES[unit]:
        what, other = f"{sample.rate:,.0f} requests/s", "s"
    elif token_rate > _MOST_TOKEN_RATE:
        what, other = f"{token_rate:,.0f} tokens/s", "s"
    elif sample.rate < _LEAST_RATE:
        what, other = f"{3600 * sample.rate:.2g} requests an hour", "ms" if unit == "s" else "us"
    else:
        return
    advice = "" if other == unit else f"--trace-unit {other} if they are {_UNIT_NAMES[other]}, "
    raise TraceError(
        f"trace {str(trace.path)!r}: {sample.requests:,} requests in {_span(sample.span_s)} are {what}, if "
        f"its times are {_UNIT_NAMES[unit]}: add {advice}--trace-unit {unit} if they are {_UNIT_NAMES[unit]}"
    )


def _line(
    trace: Trace, sample: _Sample, reading: FileReading, *, hashed: Sequence[Hashed], is_all: bool
) -> str:
    requests = plural(sample.requests, "request")
    count = requests if is_all else f"the first {requests}"
    rate = "" if math.isnan(sample.rate) else f" ({_number(sample.rate)}/s)"
    unit = trace.asked.unit or FORMATS[trace.format].unit
    parts = [f"{count} in {_span(sample.span_s)}{rate}: {_UNIT_NAMES[unit] if unit else 'dates'}"]
    if hashed:
        covered = sample.block_tokens / max(1, sample.prompt_tokens)
        parts.append(
            f"blocks of {trace.file.block_tokens} tokens, which are {covered:.0%} of the prompts' tokens"
        )
        odd = sum(prompt.is_shorter(trace.file.block_tokens) for prompt in hashed)
        if odd:
            which = "which is shorter than its" if odd == 1 else "which are shorter than their"
            parts.append(f"cut in {plural(odd, 'prompt')}, {which} blocks")
    if trace.scale != 1:
        parts.append(f"sent in {_span(sample.span_s * trace.scale)}")
    if reading.skipped:
        parts.append(skipped_text(reading.skipped, reading.first_skipped))
    return f"trace {str(trace.path)!r}, format {trace.format}: {', '.join(parts)}"


def _span(seconds: float) -> str:
    return f"{_number(seconds)} s" if seconds >= 1 or not seconds else f"{_number(seconds * 1e3)} ms"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
