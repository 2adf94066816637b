"""A batch as numpy arrays in seconds: what every metric is computed from.

Times are seconds after ``origin_ns``, so that float64 holds them to well under a nanosecond.
Undefined is NaN (code -1 for labels). Arrays are one value a request, in the batch's order.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llm_locust.batch import Labels, Ragged, RecordBatch
from llm_locust.metrics.ragged import lengths
from llm_locust.record import Outcome, TokenSource

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]

OUTCOMES = tuple(Outcome)
SOURCES = tuple(TokenSource)


@dataclass(frozen=True, slots=True)
class Columns:
    """Requests as arrays of shape (rows,).

    ``outcome`` and ``source`` are indices into :data:`OUTCOMES` and :data:`SOURCES`.
    ``arrivals`` stays in nanoseconds after ``sent``: it is the batch's own memory, not a copy.
    ``output_tokens`` is n of docs/metrics.md: where the record has no count, the number of token
    events of a streamed answer. ``stepped`` marks requests whose clock was set on the way.
    """

    origin_ns: int
    scheduled_s: Floats
    started_s: Floats
    connected_s: Floats
    sent_s: Floats
    headers_s: Floats
    ended_s: Floats
    first_answer_s: Floats  # after sent
    arrivals: Ragged  # ns after sent
    outcome: NDArray[np.int8]
    status: Floats
    input_tokens: Floats
    output_tokens: Floats
    output_chars: Floats
    source: NDArray[np.int8]
    streamed: Mask
    reused: Mask
    kernel_stamps: Mask
    stepped: Mask
    client_lag_s: Floats
    rtt_s: Floats
    reads: NDArray[np.int64]
    coalesced_reads: NDArray[np.int64]
    name: Labels
    slo_class: Labels
    replica: Labels
    error: Labels

    @classmethod
    def from_batch(cls, batch: RecordBatch, origin_ns: int) -> "Columns":
        """All rows of ``batch``. Choose an ``origin_ns`` near the run: its start."""
        arrivals = batch.arrivals()
        streamed = batch.bools("streamed")
        events = lengths(arrivals)
        tokens = batch.floats("output_tokens")
        counted = np.isnan(tokens) & streamed & (events > 0)
        source = _codes(batch.labels("token_source"), SOURCES)
        return cls(
            origin_ns=origin_ns,
            scheduled_s=batch.seconds("scheduled_ns", origin_ns),
            started_s=batch.seconds("started_ns", origin_ns),
            connected_s=batch.seconds("connected_ns", origin_ns),
            sent_s=batch.seconds("sent_ns", origin_ns),
            headers_s=batch.seconds("headers_ns", origin_ns),
            ended_s=batch.seconds("ended_ns", origin_ns),
            first_answer_s=batch.floats("first_answer_ns") * 1e-9,
            arrivals=arrivals,
            outcome=_codes(batch.labels("outcome"), OUTCOMES),
            status=batch.floats("status"),
            input_tokens=batch.floats("input_tokens"),
            output_tokens=np.where(counted, events, tokens),
            output_chars=batch.floats("output_chars"),
            source=np.where(counted, SOURCES.index(TokenSource.EVENTS), source).astype(np.int8),
            streamed=streamed,
            reused=batch.bools("reused"),
            kernel_stamps=batch.bools("kernel_stamps"),
            stepped=~np.isnan(batch.floats("clock_step_ns")),
            client_lag_s=batch.floats("client_lag_ns") * 1e-9,
            rtt_s=batch.floats("rtt_ns") * 1e-9,
            reads=batch.ints("reads"),
            coalesced_reads=batch.ints("coalesced_reads"),
            name=batch.labels("name"),
            slo_class=batch.labels("class"),
            replica=batch.labels("replica"),
            error=batch.labels("error"),
        )

    def __len__(self) -> int:
        return len(self.scheduled_s)

    @property
    def events(self) -> NDArray[np.int64]:
        """The number of token events of each request."""
        return lengths(self.arrivals)

    @property
    def ok(self) -> Mask:
        return np.equal(self.outcome, OUTCOMES.index(Outcome.OK))

    @property
    def cancelled(self) -> Mask:
        return np.equal(self.outcome, OUTCOMES.index(Outcome.CANCELLED))

    @property
    def first_event_s(self) -> Floats:
        """The first token event, in seconds after sent; NaN without one."""
        return self._event_s(self.arrivals.offsets[:-1])

    @property
    def last_event_s(self) -> Floats:
        """The last token event, in seconds after sent; NaN without one."""
        return self._event_s(self.arrivals.offsets[1:] - 1)

    def after_origin_s(self, at_ns: int) -> float:
        """A wall-clock time on the axis of these columns; equal times give equal floats."""
        return (at_ns - self.origin_ns) * 1e-9

    def _event_s(self, index: NDArray[np.int64]) -> Floats:
        out = np.full(len(self), np.nan)
        has = self.events > 0
        out[has] = self.arrivals.values[index[has]] * 1e-9
        return out


def groups(labels: Labels) -> Iterator[tuple[str, Rows]]:
    """Each text that occurs with its rows, by name; rows without a text are in no group."""
    order = np.argsort(labels.codes, kind="stable")
    bounds = np.searchsorted(labels.codes[order], np.arange(len(labels.names) + 1))
    for code in sorted(range(len(labels.names)), key=lambda c: labels.names[c]):
        rows = order[bounds[code] : bounds[code + 1]]
        if rows.size:
            yield labels.names[code], rows


def _codes(labels: Labels, members: tuple[str, ...]) -> NDArray[np.int8]:
    """The labels as indices into ``members``; every row has one."""
    index = np.array([members.index(name) for name in labels.names], dtype=np.int8)
    return index[labels.codes] if len(labels.codes) else np.empty(0, np.int8)
