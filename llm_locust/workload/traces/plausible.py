"""How a trace was read, in one line, and whether that can be: units are not in the file, and a wrong one
makes another load of it.

Two things tell of a wrong unit. Hash ids stand for blocks of a prompt, so that their number times the size of
a block is about the prompt's length. And a recorded service has a rate that machines can serve.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median

from llm_locust.core.input_files import FileReading, skipped_text
from llm_locust.workload.traces.entry import BAILIAN_BLOCK_TOKENS, TraceError, TraceRow
from llm_locust.workload.traces.trace import FORMATS, Trace

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

#: Rates above or below which no published trace is, by a factor of 10: of requests, and of tokens in and out.
_MOST_RATE, _MOST_TOKEN_RATE = 1_000.0, 1_000_000.0
_LEAST_RATE = 1 / 3600

#: Rate above which times with a fraction of a millisecond are more likely seconds.
_MOST_RATE_OF_FRACTIONS = 100.0

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
            f"{where.where}: {where.blocks:,} hash ids for a prompt of {where.tokens:,} tokens: blocks of "
            f"{block_tokens} {what}; {size} (--trace-block {block_tokens} cuts them to the lengths)"
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
    fractions: int = 0
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

    def add(self, at_s: float, row: TraceRow, unit_ns: int, block: int) -> None:
        self.first_s = at_s if not self.requests else self.first_s
        self.requests, self.last_s = self.requests + 1, at_s
        self.fractions += row.at_ns % unit_ns != 0
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
        sample.add(at_s, row, file.unit_ns, file.block_tokens)
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
    has_fractions = unit == "ms" and 2 * sample.fractions > sample.requests
    if sample.rate > _MOST_RATE or (has_fractions and sample.rate > _MOST_RATE_OF_FRACTIONS):
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
    count = f"{sample.requests:,} requests" if is_all else f"the first {sample.requests:,} requests"
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
            parts.append(f"cut in {odd:,} prompts, which are shorter than their blocks")
    if trace.scale != 1:
        parts.append(f"sent in {_span(sample.span_s * trace.scale)}")
    if reading.skipped:
        parts.append(skipped_text(reading.skipped, reading.first_skipped))
    return f"trace {str(trace.path)!r}, format {trace.format}: {', '.join(parts)}"


def _span(seconds: float) -> str:
    return f"{_number(seconds)} s" if seconds >= 1 or not seconds else f"{_number(seconds * 1e3)} ms"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
