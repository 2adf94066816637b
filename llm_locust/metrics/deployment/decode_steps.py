"""What an engine read to decode its answers, as far as a client's events tell.

A step of an engine gives each sequence that it decodes one event at most. So where ``n`` of them are known to
be under way on an engine, an event stands for ``1/n`` of a step at least, and for ``1/n`` of the weights
that this step read; and for its own sequence's keys and values. Steps and reads are lower bounds: steps that
gave this client nothing (prompts alone, answers of others) are not in them, and where replicas are not told
apart the steps of all count as if they were one's.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from llm_locust.core.batch import Labels, Ragged, Requests
from llm_locust.metrics.columns import Columns, Floats, Mask, Rows
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.ragged import pieces
from llm_locust.roofline.model import ModelShape

#: Events of one step reach the client within this time of each other.
SKEW_S = 1e-3

#: Events of one answer that are no further apart are of one step, whose tokens were sent one by one.
SAME_STEP_NS = 100_000


@dataclass(frozen=True, slots=True)
class Engines:
    """Which engine each request was at, -1 where that is not known and others are; and when each engine's
    sequences gave their first and their last event, ascending."""

    of_request: Rows
    first_s: list[Floats]
    last_s: list[Floats]

    @classmethod
    def of(cls, c: Columns, replica: Labels, gpus: float) -> "Engines":
        named = np.unique(replica.codes[replica.codes >= 0])
        # An engine has a GPU at least. One that is not named may be any of them: alone it is the only one.
        codes, count = np.zeros(len(c), dtype=np.int64), 1
        if 1 < len(named) <= gpus:
            codes, count = np.where(replica.codes < 0, -1, np.searchsorted(named, replica.codes)), len(named)
        streams = (c.events > 0) & ~np.isnan(c.sent_s)
        rows = [np.flatnonzero(streams & (codes == i)) for i in range(count)]
        return cls(
            codes,
            [np.sort(c.sent_s[r] + c.first_event_s[r]) for r in rows],
            [np.sort(c.sent_s[r] + c.last_event_s[r]) for r in rows],
        )

    @property
    def count(self) -> int:
        return len(self.first_s)

    def decoding(self, events: "_Events") -> Rows:
        """How many sequences its engine decodes at each event, its own included; 0 where it is not known.

        Counted generously, within :data:`SKEW_S`: too few would make too many steps.
        """
        engine, found = self.of_request[events.row], np.zeros(len(events.row), dtype=np.int64)
        for i, (first_s, last_s) in enumerate(zip(self.first_s, self.last_s, strict=True)):
            at_s = events.at_s[engine == i]
            begun = np.searchsorted(first_s, at_s + SKEW_S, side="right")
            found[engine == i] = begun - np.searchsorted(last_s, at_s - SKEW_S, side="left")
        return found


@dataclass(frozen=True, slots=True)
class _Events:
    """Token events: the request of each (``row``), its ``place`` in that, and its time. ``distinct`` ones are
    of another step than the one before."""

    row: Rows
    place: Rows
    at_s: Floats
    distinct: Mask

    @classmethod
    def of(cls, c: Columns, rows: Rows, lists: Ragged) -> "_Events":
        counts = np.diff(lists.offsets)
        row = np.repeat(rows, counts)
        place = np.arange(len(lists.values)) - np.repeat(lists.offsets[:-1], counts)
        apart = np.diff(lists.values, prepend=lists.values[:1]) > SAME_STEP_NS
        return cls(row, place, c.sent_s[row] + lists.values * 1e-9, apart | (place == 0))

    def where(self, mask: Mask) -> "_Events":
        return _Events(self.row[mask], self.place[mask], self.at_s[mask], self.distinct[mask])


@dataclass(frozen=True, slots=True)
class DecodeWork:
    """What the tokens that arrived in the window took.

    ``flops`` are those of all but each answer's first, which came with the prompt. ``contexts`` is the
    sum of the tokens that the sequences of ``decoded`` events held. ``events`` are those of known engines,
    for which ``steps`` read ``weights_bytes``.
    """

    flops: float
    contexts: float
    decoded: int
    events: int
    steps: float
    weights_bytes: float


def decode_work(requests: Requests, m: Measured, engines: Engines, model: ModelShape) -> DecodeWork:
    """The work of the streamed answers of all requests, whatever became of them, in the window of ``m``."""
    flops, contexts, decoded = 0.0, 0.0, 0
    by_batch = np.zeros(1, dtype=np.int64)
    for events in _in_window(requests, m):
        tokens, context = _tokens_and_contexts(m.c, events)
        flops += float(tokens @ model.flops_per_token(context))
        reads = events.distinct & (events.place > 0)
        contexts += float(context[reads].sum())
        decoded += int(reads.sum())
        found = np.bincount(engines.decoding(events.where(events.distinct)))
        short, long = sorted((by_batch, found), key=len)
        by_batch = long + np.pad(short, (0, len(long) - len(short)))
    batch, count = np.arange(1.0, len(by_batch)), by_batch[1:]
    steps = count / batch
    read_bytes = float((steps * model.read_bytes(batch)).sum())
    return DecodeWork(flops, contexts, decoded, int(count.sum()), float(steps.sum()), read_bytes)


def _in_window(requests: Requests, m: Measured) -> Iterator[_Events]:
    """The events that arrived in the window, some MiB at a time."""
    before = 0
    for part in requests.parts(["arrivals_ns"]):
        rows = before + np.arange(len(part))
        sent = ~np.isnan(m.c.sent_s[rows])
        for found, lists in pieces(part.arrivals(), np.flatnonzero(sent)):
            events = _Events.of(m.c, before + found, lists)
            yield events.where(m.window.inside(m.c, events.at_s))
        before += len(part)


def _tokens_and_contexts(c: Columns, events: _Events) -> tuple[Floats, Floats]:
    """How many tokens were decoded for each event, and what each attended to.

    A request's tokens are spread over its events evenly; the first of them came with the prompt. Of a
    prompt of unknown length the answer alone is attended to.
    """
    tokens = c.output_tokens[events.row] / c.events[events.row]
    tokens = np.where(np.isnan(tokens), 1.0, tokens)
    context = np.nan_to_num(c.input_tokens[events.row]) + events.place * tokens
    return np.maximum(0.0, tokens - (events.place == 0)), context
