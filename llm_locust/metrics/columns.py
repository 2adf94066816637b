"""A batch as numpy arrays in seconds: what every metric is computed from.

Times are seconds after ``origin_ns``, so that float64 holds them to well under a nanosecond.
Undefined is NaN (code -1 for labels). Arrays are one value a request, in the batch's order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from llm_locust.core.batch import ColumnSource, Labels, Ragged, RecordBatch, Requests
from llm_locust.core.record import Doubt, Outcome, TokenSource

# --- List columns without a Python loop over rows: a hundred million token times fit in pieces


#: Values that one piece holds at most: its temporaries, 2 MiB each, stay near the processor.
PIECE = 1 << 18


def lengths(ragged: Ragged) -> NDArray[np.int64]:
    """The number of values of each row."""
    return ragged.offsets[1:] - ragged.offsets[:-1]


def offsets_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each row begins when rows of these lengths stand one after the other, and the end."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def gather(ragged: Ragged, rows: NDArray[np.int64]) -> Ragged:
    """The lists of ``rows``, in that order, as a ragged column of their own.

    Where they stand one after the other already, the values are those of ``ragged``, not a copy.
    """
    starts, ends = ragged.offsets[rows], ragged.offsets[rows + 1]
    offsets = offsets_of(ends - starts)
    if len(rows) and (starts[1:] == ends[:-1]).all():
        return Ragged(offsets, ragged.values[starts[0] : ends[-1]])
    counts = ends - starts
    index = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], counts)
    return Ragged(offsets, ragged.values[index])


def pieces(ragged: Ragged, rows: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], Ragged]]:
    """``rows`` in consecutive parts of at most :data:`PIECE` values (or one row), with their lists."""
    ends = np.cumsum(ragged.offsets[rows + 1] - ragged.offsets[rows])
    start = 0
    while start < len(rows):
        done = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, done + PIECE, side="right")))
        yield rows[start:stop], gather(ragged, rows[start:stop])
        start = stop


Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
Counts = NDArray[np.int32]

OUTCOMES = tuple(Outcome)
SOURCES = tuple(TokenSource)
DOUBTS = tuple(Doubt)

#: Finish reasons of a model that ended its answer itself, in the words of the APIs.
_NATURAL_ENDS = frozenset({"stop", "end_turn", "completed"})


#: What is taken as a batch has it: moments and durations, whose columns end in ``_ns`` and become ``_s``, and
#: columns that keep their names.
_MOMENTS = ("scheduled", "sent", "ended", "started", "connected")
_DURATIONS = ("first_answer", "first_chunk", "last_chunk", "client_lag", "end_lag", "rtt")
_FLOATS = (
    *("inputs", "images", "pixels", "input_tokens", "output_chars"),
    *("asked_input_tokens", "asked_output_tokens", "came_tokens"),
)
_MASKS = ("streamed", "reused", "kernel_stamps", "abandoned", "left_open")
_LABELS = ("name", "replica", "error", "count_fault", "unread")

#: The columns of a batch that :class:`Times` and :class:`Part` are made of.
TIME_COLUMNS = ("scheduled_ns", "sent_ns", "ended_ns")
PART_COLUMNS = (
    *(f"{name}_ns" for name in (*_MOMENTS, *_DURATIONS, "finish", "arrivals", "clock_step")),
    *(*_FLOATS, *_MASKS, *_LABELS),
    *("outcome", "status", "output_tokens", "hidden_tokens", "opening_tokens"),
    *("finish_reason", "token_source", "class", "doubt"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """When requests were scheduled, sent and ended: all that a window is found by."""

    origin_ns: int
    scheduled_s: Floats
    sent_s: Floats
    ended_s: Floats

    @classmethod
    def of(cls, batch: ColumnSource, origin_ns: int) -> "Times":
        return cls(
            origin_ns=origin_ns,
            scheduled_s=batch.seconds("scheduled_ns", origin_ns),
            sent_s=batch.seconds("sent_ns", origin_ns),
            ended_s=batch.seconds("ended_ns", origin_ns),
        )

    def __len__(self) -> int:
        return len(self.scheduled_s)

    def after_origin_s(self, at_ns: int) -> float:
        """A wall-clock time on the axis of these columns; equal times give equal floats."""
        return (at_ns - self.origin_ns) * 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns(Times):
    """Requests as arrays of shape (rows,): some 140 bytes each, however many tokens they had.

    ``outcome``, ``source`` and ``doubt`` are indices into :data:`OUTCOMES`, :data:`SOURCES` and
    :data:`DOUBTS`; ``status`` and ``doubt`` are -1 where there is none. ``events`` is the number of token
    events, ``first_event_s`` and ``last_event_s`` are in seconds after sent. ``output_tokens`` is n of
    docs/definitions.md: where the record has no count, the number of token events of a streamed answer.
    ``hidden_tokens`` of them came in no event. ``opening_tokens`` of the others had come with the event in
    which the pace begins: 1 where the server did not count in each event. ``came_tokens``, hidden ones
    among them, had come with the last token event; NaN where it did not. ``ended_by_token`` marks answers
    whose last token, their end (EOS) as a rule, has no text: it came with the finish reason, at
    ``last_token_s`` after sent, which is ``last_event_s`` for all others. ``first_chunk_s`` and
    ``last_chunk_s``, after sent, are events with choices and without a token: the first before the tokens,
    and the last after them. ``stepped`` marks requests whose clock was set on the way. ``first_is_shared``:
    one read brought the first token event and later ones.
    """

    started_s: Floats
    connected_s: Floats
    first_answer_s: Floats  # after sent
    events: Counts
    first_event_s: Floats
    last_event_s: Floats
    last_token_s: Floats
    first_chunk_s: Floats
    last_chunk_s: Floats
    first_is_shared: Mask
    outcome: NDArray[np.int8]
    status: NDArray[np.int16]
    doubt: NDArray[np.int8]
    inputs: Floats  # texts or documents, of requests that ask for a result of each
    images: Floats  # NaN of requests without
    pixels: Floats
    input_tokens: Floats
    output_tokens: Floats
    hidden_tokens: Floats
    opening_tokens: Floats
    came_tokens: Floats
    ended_by_token: Mask
    output_chars: Floats
    asked_input_tokens: Floats
    asked_output_tokens: Floats
    source: NDArray[np.int8]
    streamed: Mask
    reused: Mask
    kernel_stamps: Mask
    stepped: Mask
    abandoned: Mask
    left_open: Mask
    client_lag_s: Floats
    end_lag_s: Floats
    rtt_s: Floats
    name: Labels
    slo_class: Labels
    replica: Labels
    error: Labels
    count_fault: Labels
    unread: Labels

    @property
    def ok(self) -> Mask:
        return np.equal(self.outcome, OUTCOMES.index(Outcome.OK))

    @property
    def cancelled(self) -> Mask:
        return np.equal(self.outcome, OUTCOMES.index(Outcome.CANCELLED))

    @property
    def timed_out(self) -> Mask:
        return np.equal(self.outcome, OUTCOMES.index(Outcome.TIMEOUT))

    @property
    def given_up(self) -> Mask:
        """The client ended them: they would have taken longer."""
        return self.cancelled | self.timed_out

    @property
    def paced_tokens(self) -> Floats:
        """The output tokens that could arrive: all but the hidden ones."""
        return self.output_tokens - self.hidden_tokens

    @property
    def paced_from_s(self) -> Floats:
        """Where the pace of an answer begins, after sent: its first token event, that of the answer where its
        reasoning came as a summary only; NaN where it was not streamed."""
        begun = np.where(self.hidden_tokens > 0, self.first_answer_s, self.first_event_s)
        return np.where(self.streamed, begun, np.nan)

    @property
    def event_tokens(self) -> Floats:
        """The output tokens that token events brought: without an end that has no text either."""
        told = self.came_tokens - self.hidden_tokens
        return np.where(np.isnan(told), self.paced_tokens - self.ended_by_token, told)

    @property
    def gap_tokens(self) -> Floats:
        """The output tokens that came after the event in which the pace begins, each with a gap before it."""
        told = np.where(self.ended_by_token, np.nan, self.came_tokens - self.hidden_tokens)
        return np.where(np.isnan(told), self.paced_tokens, told) - self.opening_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Columns):
    """Columns with the token arrivals of each request, in nanoseconds after its ``sent``.

    The arrivals are the batch's own memory, not a copy. Of a large run they are only ever there
    for a part: see :mod:`llm_locust.metrics.measured`.
    """

    arrivals: Ragged

    @classmethod
    def from_batch(cls, batch: ColumnSource, origin_ns: int) -> "Part":
        """All rows of ``batch``, which has at least :data:`PART_COLUMNS`.

        Choose an ``origin_ns`` near the run: its start.
        """
        arrivals = batch.arrivals()
        streamed = batch.bools("streamed")
        events = lengths(arrivals)
        tokens = batch.floats("output_tokens")
        counted = np.isnan(tokens) & streamed & (events > 0)
        tokens = np.where(counted, events, tokens)
        source = np.where(
            counted, SOURCES.index(TokenSource.EVENTS), _codes(batch.labels("token_source"), SOURCES)
        ).astype(np.int8)
        hidden = filled(batch.floats("hidden_tokens"), 0.0)
        last_event_s = _event_s(arrivals, arrivals.offsets[1:] - 1)
        finish_s = batch.floats("finish_ns") * 1e-9
        came, opening = batch.floats("came_tokens"), filled(batch.floats("opening_tokens"), 1.0)
        one_more = _natural_end(batch.labels("finish_reason")) & (tokens - hidden == events + 1)
        ended_by_token = np.where(np.isnan(came), one_more, tokens > came) & ~np.isnan(finish_s) & streamed
        ended_by_token &= source == SOURCES.index(TokenSource.USAGE)
        as_it_is: dict[str, Any] = {
            **{f"{name}_s": batch.seconds(f"{name}_ns", origin_ns) for name in _MOMENTS},
            **{f"{name}_s": batch.floats(f"{name}_ns") * 1e-9 for name in _DURATIONS},
            **{name: batch.floats(name) for name in _FLOATS},
            **{name: batch.bools(name) for name in _MASKS},
            **{name: batch.labels(name) for name in _LABELS},
        }
        return cls(
            origin_ns=origin_ns,
            arrivals=arrivals,
            events=events.astype(np.int32),
            first_event_s=_event_s(arrivals, arrivals.offsets[:-1]),
            last_event_s=last_event_s,
            last_token_s=np.where(ended_by_token, finish_s, last_event_s),
            first_is_shared=_first_is_shared(arrivals),
            outcome=_codes(batch.labels("outcome"), OUTCOMES),
            doubt=_codes(batch.labels("doubt"), DOUBTS),
            status=filled(batch.floats("status"), -1).astype(np.int16),
            output_tokens=tokens,
            hidden_tokens=hidden,
            opening_tokens=opening,
            ended_by_token=ended_by_token,
            source=source,
            stepped=~np.isnan(batch.floats("clock_step_ns")),
            slo_class=batch.labels("class"),
            **as_it_is,
        )


def filled(values: Floats, value: float) -> Floats:
    """Values with ``value`` in place of NaN: a quarter of what ``nan_to_num`` takes for a few of them."""
    return np.where(np.isnan(values), value, values)


def slices(c: Columns) -> Iterator[Columns]:
    """``c`` in parts of a million rows, which share its memory: for what takes several arrays of each.

    There is one part at least.
    """

    def cut(value: Any, rows: slice) -> Any:
        if isinstance(value, Labels):
            return Labels(value.codes[rows], value.names)
        return value[rows] if isinstance(value, np.ndarray) else value

    for first in range(0, max(1, len(c)), 1 << 20):
        rows = slice(first, first + (1 << 20))
        yield Columns(**{field.name: cut(getattr(c, field.name), rows) for field in fields(Columns)})


def groups(labels: Labels) -> Iterator[tuple[str, Rows]]:
    """Each text that occurs with its rows, by name; rows without a text are in no group."""
    order = np.argsort(labels.codes, kind="stable")
    bounds = np.searchsorted(labels.codes[order], np.arange(len(labels.names) + 1))
    for code in sorted(range(len(labels.names)), key=lambda c: labels.names[c]):
        rows = order[bounds[code] : bounds[code + 1]]
        if rows.size:
            yield labels.names[code], rows


def _codes(labels: Labels, members: tuple[str, ...]) -> NDArray[np.int8]:
    """The labels as indices into ``members``, -1 without one (ValueError where it is another)."""
    unknown = [name for name in labels.names if name not in members]
    if unknown:
        raise ValueError(f"the records have {unknown[0]!r} where only {', '.join(members)} can stand")
    index = np.array([*(members.index(name) for name in labels.names), -1], dtype=np.int8)
    return index[labels.codes]


def _natural_end(reasons: Labels) -> Mask:
    """Where the model ended its answer itself."""
    ends = np.array([*(name in _NATURAL_ENDS for name in reasons.names), False])  # -1: none
    return ends[reasons.codes]


def _first_is_shared(arrivals: Ragged) -> Mask:
    """Whether the first two events have one time: one read brought both."""
    out = np.zeros(len(arrivals.offsets) - 1, np.bool_)
    has = lengths(arrivals) > 1
    first = arrivals.offsets[:-1][has]
    out[has] = arrivals.values[first] == arrivals.values[first + 1]
    return out


def _event_s(arrivals: Ragged, index: Rows) -> Floats:
    """The arrival at ``index`` of each request that has one, in seconds; NaN for the others."""
    out = np.full(len(index), np.nan)
    has = lengths(arrivals) > 0
    out[has] = arrivals.values[index[has]] * 1e-9
    return out


# --- Many parts put below each other: arrays of a part into the arrays of all rows, in place


T = TypeVar("T")

#: From so many rows on an array is looked at for what memory it could do without.
_LARGE = 1 << 16


class Whole(Generic[T]):
    """The values of a frozen dataclass for ``rows`` requests, out of those of its parts, in order.

    Of the fields of ``kind``, arrays of shape (part's rows,), dictionaries of such arrays and
    :class:`~llm_locust.core.batch.Labels` become those of all rows; what else there is (an origin, a
    window, None) all parts have alike. Beside the result no memory is used: parts that were kept to
    be joined in the end would be there twice.

    Raises:
        ValueError: the parts have more or fewer rows than ``rows``.
    """

    def __init__(self, kind: type[T], rows: int) -> None:
        self._kind = kind
        self._rows = rows
        self._at = 0
        self._values: dict[str, Any] = {}
        self._texts: dict[str, dict[str, int]] = {}

    def add(self, part: T, rows: int) -> None:
        """The next part, which has ``rows`` requests. It may be of a subclass of the kind."""
        if self._at + rows > self._rows:
            raise ValueError(f"more than the {self._rows} requests that were announced")
        for field in fields(self._kind):  # type: ignore[arg-type]
            whole, value = self._values.get(field.name), getattr(part, field.name)
            if isinstance(value, dict):
                whole = {key: self._placed((whole or {}).get(key), array) for key, array in value.items()}
            elif isinstance(value, Labels):
                whole = self._placed(whole, self._recoded(field.name, value))
            elif isinstance(value, np.ndarray):
                whole = self._placed(whole, value)
            else:
                whole = value
            self._values[field.name] = whole
        self._at += rows

    def value(self) -> T:
        """All rows, once; the parts have to be there."""
        if self._at != self._rows:
            raise ValueError(f"{self._at} of the {self._rows} requests that were announced")
        values = {name: self._thrifty(value) for name, value in self._values.items()}
        self._values = {}
        labels = {key: Labels(values[key], tuple(codes)) for key, codes in self._texts.items()}
        return self._kind(**(values | labels))

    def _thrifty(self, value: Any) -> Any:
        """An array whose values are all alike as a view of one of them: many columns of a run are so."""
        if isinstance(value, dict):
            return {key: self._thrifty(array) for key, array in value.items()}
        if not isinstance(value, np.ndarray) or len(value) < _LARGE:
            return value
        first = value[:1]
        alike = (
            np.isnan(value).all()
            if first.dtype.kind == "f" and np.isnan(first[0])
            else (value == first).all()
        )
        return np.broadcast_to(first.copy(), value.shape) if alike else value

    def _placed(self, whole: NDArray[Any] | None, part: NDArray[Any]) -> NDArray[Any]:
        if whole is None:
            whole = np.empty(self._rows, part.dtype)
        whole[self._at : self._at + len(part)] = part
        return whole

    def _recoded(self, column: str, labels: Labels) -> NDArray[np.int32]:
        """The codes of a part by the texts of the whole, -1 staying -1."""
        codes = self._texts.setdefault(column, {})
        to = [codes.setdefault(name, len(codes)) for name in labels.names]
        return np.array([*to, -1], dtype=np.int32)[labels.codes]


def read_whole(
    kind: type[T], requests: Requests, columns: Sequence[str], of: Callable[[RecordBatch], T]
) -> T:
    """What ``of`` makes of each batch with these columns, of all requests, read part by part."""
    whole = Whole(kind, len(requests))
    for batch in requests.parts(columns):
        whole.add(of(batch), len(batch))
    return whole.value()
