"""What is told of single tokens and gaps, and by one pass over the records: arrivals are never all
in memory."""

from dataclasses import dataclass

import numpy as np

from llm_locust.core.batch import Labels, RecordBatch, Requests
from llm_locust.metrics.charts.axis import TimeAxis
from llm_locust.metrics.columns import PART_COLUMNS, Floats, Part, Rows
from llm_locust.metrics.ragged import lengths, pieces
from llm_locust.metrics.whole import Whole

#: Gaps are counted in bins of equal ratio, from 0.1 ms to 100 s; what is below (events that came
#: together) or above is in the first or the last.
LEAST_GAP_S, _DECADES, _A_DECADE = 1e-4, 6, 15
GAP_BINS = _DECADES * _A_DECADE

_TAGS = ("request_id", "worker", "headers_ns")


@dataclass(frozen=True, slots=True)
class RequestDetails:
    """What is known of a single request beside its columns. Times are seconds on the columns' axis.

    ``longest_gap_s`` is the longest wait between two of its token events, NaN where there are not two.
    """

    request_id: str
    headers_s: float
    longest_gap_s: float


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """``gaps[g, t]`` counts the gaps of ok requests of size g that ended in span t of the axis.

    ``output_tokens[t]`` arrived in span t, whatever became of their request: its n tokens are spread
    evenly over its events; an answer without events counts as a whole at its end.
    """

    output_tokens: Floats
    gaps: Rows
    worker: Labels
    details: dict[int, RequestDetails]


def gap_edges_s() -> Floats:
    """The edges of the gap bins, shape (GAP_BINS + 1,)."""
    return LEAST_GAP_S * 10.0 ** (np.arange(GAP_BINS + 1) / _A_DECADE)


def read_tokens(requests: Requests, origin_ns: int, axis: TimeAxis, chosen: Rows) -> TokenFacts:
    """One pass over all records.

    Args:
        origin_ns: the origin of the columns that ``axis`` is on.
        chosen: the rows whose details are wanted.
    """
    output_tokens = np.zeros(axis.bins)
    gaps = np.zeros(GAP_BINS * axis.bins, np.int64)
    workers = Whole(_Workers, len(requests))
    details: dict[int, RequestDetails] = {}
    at = 0
    for batch in requests.parts((*PART_COLUMNS, *_TAGS)):
        part = Part.from_batch(batch, origin_ns)
        workers.add(_Workers(batch.labels("worker")), len(batch))
        _count(part, axis, output_tokens, gaps)
        for row in chosen[(chosen >= at) & (chosen < at + len(batch))].tolist():
            details[row] = _details(batch, part, row - at)
        at += len(batch)
    return TokenFacts(output_tokens, gaps.reshape(GAP_BINS, axis.bins), workers.value().worker, details)


@dataclass(frozen=True, slots=True)
class _Workers:
    worker: Labels


def _count(c: Part, axis: TimeAxis, output_tokens: Floats, gaps: Rows) -> None:
    """Add what a part has to both sums, in place."""
    whole = c.events == 0
    output_tokens += axis.sums(c.ended_s[whole], c.output_tokens[whole])
    for rows, arrivals in pieces(c.arrivals, np.flatnonzero(~whole & ~np.isnan(c.sent_s))):
        counts = lengths(arrivals)
        bins = axis.index(np.repeat(c.sent_s[rows], counts) + arrivals.values * 1e-9)
        each = np.nan_to_num(c.output_tokens[rows] / counts)
        output_tokens += np.bincount(bins + 1, np.repeat(each, counts), minlength=axis.bins + 1)[1:]
        known = bins >= 0
        # The first event of a request has no gap before it.
        known[arrivals.offsets[:-1]] = False
        known &= np.repeat(c.ok[rows] & c.streamed[rows], counts)
        sizes = _gap_bins(np.diff(arrivals.values, prepend=0)[known])
        gaps += np.bincount(sizes * axis.bins + bins[known], minlength=len(gaps))


def _gap_bins(gaps_ns: Rows) -> Rows:
    with np.errstate(divide="ignore"):
        decades = np.log10(gaps_ns.astype(np.float32)) - np.float32(np.log10(LEAST_GAP_S * 1e9))
    return np.clip(np.floor(decades * _A_DECADE), 0, GAP_BINS - 1).astype(np.int64)


def _details(batch: RecordBatch, c: Part, row: int) -> RequestDetails:
    one = batch.table.slice(row, 1)
    headers_ns = one.column("headers_ns")[0].as_py()
    own = c.arrivals.values[c.arrivals.offsets[row] : c.arrivals.offsets[row + 1]]
    return RequestDetails(
        request_id=one.column("request_id")[0].as_py(),
        headers_s=np.nan if headers_ns is None else c.after_origin_s(headers_ns),
        longest_gap_s=float(np.diff(own).max()) * 1e-9 if len(own) > 1 else np.nan,
    )
