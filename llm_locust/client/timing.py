"""Conversion of reads and their stamps to the times of one request. Pure functions over columns."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llm_locust.client.http.clock import ClockPair, clock_step_ns
from llm_locust.client.http.exchange import Exchange
from llm_locust.client.http.polling import CUT, EXACT, FILLED, MARKS, WAITED

#: A read this soon after its stamp, from a poll that had waited for it, was in time.
IN_TIME_NS = 1_000_000

#: Largest difference at which two times count as equal.
EXACT_NS = 100_000

#: A blank line may end in two bytes, CR and LF, and an event is complete with the first.
_LINE_END = 1


@dataclass(frozen=True, slots=True)
class ReadTimes:
    """Times of the reads of one response.

    ``at_ns`` (reads,) is realtime and non-decreasing: the kernel's stamp, or the program's own reading if
    there is none, or for all reads if realtime was stepped during the request (then all times are the start
    time plus monotonic differences, so that the step changes no duration).
    """

    at_ns: NDArray[np.int64]
    kernel: bool
    client_lag_ns: int | None
    clock_step_ns: int | None


def read_times(
    kernel_ns: NDArray[np.int64], monotonic_ns: NDArray[np.int64], started: ClockPair, ended: ClockPair
) -> ReadTimes:
    """Times from kernel_ns (reads,) realtime, 0 without a stamp, and monotonic_ns (reads,)."""
    program = monotonic_ns + started.offset_ns
    step = clock_step_ns(started, ended)
    if step is None and len(kernel_ns) and kernel_ns.min() > 0:
        lag = max(0, int((program - kernel_ns).max()))
        # A packet that came before its predecessor arrives with that one, later than its own stamp.
        return ReadTimes(np.maximum.accumulate(kernel_ns), True, lag, None)
    stamped = kernel_ns > 0
    if step is not None or not stamped.any():
        return ReadTimes(program, False, None, step)
    lag = max(0, int((program - kernel_ns)[stamped].max()))
    # The kernel starts to stamp some time after the first request for stamps. A read without a stamp arrived
    # no later than the next one with a stamp, however late the program was.
    mixed = np.where(stamped, kernel_ns, program)
    return ReadTimes(np.minimum.accumulate(mixed[::-1])[::-1], False, lag, None)


@dataclass(frozen=True, slots=True)
class TokenArrivals:
    """Arrival times of token events: ``at_ns`` (events,) realtime; ``coalesced`` reads had more than one."""

    at_ns: NDArray[np.int64]
    coalesced: int


def completed_by(token_ends: NDArray[np.int64], read_ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Index of the read that completed each token event.

    Args:
        token_ends: offset in the body just after each token event.
        read_ends: for each read, the length of the body after it (non-decreasing).
    """
    return np.searchsorted(read_ends, token_ends, side="left")


def arrivals(read: NDArray[np.int64], at_ns: NDArray[np.int64]) -> TokenArrivals:
    """Stamp of the read that completed each token event.

    Args:
        read: index of that read.
        at_ns: for each read, its time.
    """
    shared = read[1:] == read[:-1]
    coalesced = 0
    if shared.any():
        coalesced = int(shared[:1].sum() + (shared[1:] & ~shared[:-1]).sum())
    return TokenArrivals(at_ns[read], coalesced)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Clock readings during a call. None: it did not get so far."""

    started: ClockPair
    connected: ClockPair | None
    sent: ClockPair | None
    ended: ClockPair


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All times of one request, realtime nanoseconds of one clock; ``arrivals_ns`` after ``sent_ns``."""

    started_ns: int
    connected_ns: int | None
    sent_ns: int | None
    headers_ns: int | None
    arrivals_ns: NDArray[np.int64]
    ended_ns: int
    early_ns: NDArray[np.int64] | None  # how much earlier each event may have arrived; None: all are exact
    reads: ReadTimes
    coalesced: int


def known_empty(
    empty_ns: NDArray[np.int64], monotonic_ns: NDArray[np.int64], sent_ns: int
) -> NDArray[np.int64]:
    """For each read, the last monotonic time at which its socket was known to be empty.

    The latest of these: a poll that did not report the socket, or one that waited (``empty_ns``, with the
    marks of :mod:`~llm_locust.client.http.polling`); the previous read, which emptied it unless it filled its
    buffer; the sending of the request. Data after a read that filled its buffer may have been there as long.
    """
    filled = (empty_ns & FILLED) > 0
    emptied = np.concatenate([[sent_ns], np.where(filled, 0, monotonic_ns)[:-1]])
    known = np.maximum(np.maximum(empty_ns & ~MARKS, emptied), sent_ns)
    goes_on = np.concatenate([[False], filled[:-1]])
    since = np.maximum.accumulate(np.where(goes_on, 0, np.arange(len(known))))
    return np.asarray(known[since], dtype=np.int64)


def early_arrivals(
    exchange: Exchange,
    token_ends: NDArray[np.int64],
    read: NDArray[np.int64],
    moments: Moments,
    reads: ReadTimes,
) -> NDArray[np.int64] | None:
    """How much earlier than its stamp each token event may have arrived, (events,); None if all are exact.

    The stamp of a read is that of its last packet. So an event at the end of the read is exact. One with more
    data after it arrived at some time since the socket was known to be empty, unless the read was in time:
    then all its data arrived together. With the program's stamps, only a read from a poll that waited for it
    is in time.

    Args:
        read: index of the read that completed each event.
    """
    if not len(token_ends) or moments.sent is None:
        return None
    marks = exchange.reads.empty_ns()
    exact = (marks & EXACT) > 0
    if reads.kernel and exact.all():
        return None
    if reads.clock_step_ns is None:
        stamped = exchange.reads.kernel_ns() > 0
    else:
        stamped = np.zeros(len(marks), np.bool_)
    unclear = ((marks & (FILLED | CUT)) > 0) | ~stamped
    loose = (token_ends + _LINE_END < exchange.reads.ends()[read]) | unclear[read]
    loose &= ~(exact & stamped)[read]
    if not loose.any():
        return None
    monotonic = exchange.reads.monotonic_ns()
    offset_ns = moments.started.offset_ns
    lag = monotonic + offset_ns - reads.at_ns
    # A poll that was interrupted took long too. It did not wait for a packet that had arrived before it.
    waited = ((marks & WAITED) > 0) & (~stamped | (reads.at_ns >= (marks & ~MARKS) + offset_ns - EXACT_NS))
    marks = np.where(waited | ((marks & WAITED) == 0), marks, marks & FILLED)
    in_time = waited & (~stamped | (lag <= IN_TIME_NS))
    known = known_empty(marks, monotonic, moments.sent.monotonic_ns) + offset_ns
    early = np.where(in_time, 0, reads.at_ns - known)[read]
    early = np.where(loose & (early > EXACT_NS), early, 0)
    return early if early.any() else None


def timeline(exchange: Exchange, token_ends: Sequence[int], moments: Moments) -> Timeline:
    """Times of a call whose body was drained.

    A response that a read completed ended with that read, however late the program processed it.
    """
    reads = read_times(
        exchange.reads.kernel_ns(), exchange.reads.monotonic_ns(), moments.started, moments.ended
    )
    ends = np.asarray(token_ends, dtype=np.int64)
    read = completed_by(ends, exchange.reads.ends())
    came = arrivals(read, reads.at_ns)

    def placed(moment: ClockPair) -> int:
        """Realtime of a moment, by the clock as it was when the call started."""
        stepped = reads.clock_step_ns is not None
        return moment.monotonic_ns + moments.started.offset_ns if stepped else moment.realtime_ns

    connected_ns = None if moments.connected is None else placed(moments.connected)
    sent_ns = None if moments.sent is None else placed(moments.sent)
    at = exchange.completed_at
    return Timeline(
        started_ns=moments.started.realtime_ns,
        connected_ns=connected_ns,
        sent_ns=sent_ns,
        headers_ns=None if exchange.headers_at is None else int(reads.at_ns[exchange.headers_at]),
        arrivals_ns=came.at_ns - (sent_ns or 0),
        ended_ns=placed(moments.ended) if at is None else int(reads.at_ns[at]),
        early_ns=early_arrivals(exchange, ends, read, moments, reads),
        reads=reads,
        coalesced=came.coalesced,
    )
