"""Conversion of reads and their stamps to the times of one request. Pure functions over columns."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llm_locust.client.http.clock import ClockPair, clock_step_ns
from llm_locust.client.http.exchange import Exchange


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
    # Reductions of ufuncs, and methods: half of the time of functions and methods by name, which is most of
    # what so few reads cost.
    if step is None and len(kernel_ns) and np.minimum.reduce(kernel_ns) > 0:
        lag = max(0, int(np.maximum.reduce(program - kernel_ns)))
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
    return read_ends.searchsorted(token_ends)


def arrivals(read: NDArray[np.int64], at_ns: NDArray[np.int64]) -> TokenArrivals:
    """Stamp of the read that completed each token event.

    Args:
        read: index of that read.
        at_ns: for each read, its time.
    """
    shared = read[1:] == read[:-1]
    coalesced = 0
    if np.count_nonzero(shared):
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
    reads: ReadTimes
    read_ends: NDArray[np.int64]  # body bytes received after each read, (reads,)
    end_lag_ns: int | None  # from the end of a whole response until the event loop took it up
    coalesced: int


def timeline(exchange: Exchange, token_ends: Sequence[int], moments: Moments) -> Timeline:
    """Times of a call whose body was drained.

    A response that a read completed ended with that read, however late the program processed it.
    """
    read_ends, kernel_ns, monotonic_ns = exchange.reads.columns().T
    reads = read_times(kernel_ns, monotonic_ns, moments.started, moments.ended)
    read = completed_by(np.asarray(token_ends, dtype=np.int64), read_ends)
    came = arrivals(read, reads.at_ns)

    def placed(moment: ClockPair) -> int:
        """Realtime of a moment, by the clock as it was when the call started."""
        stepped = reads.clock_step_ns is not None
        return moment.monotonic_ns + moments.started.offset_ns if stepped else moment.realtime_ns

    connected_ns = None if moments.connected is None else placed(moments.connected)
    sent_ns = None if moments.sent is None else placed(moments.sent)
    at = exchange.completed_at
    taken_up_ns = moments.ended.monotonic_ns + moments.started.offset_ns
    return Timeline(
        started_ns=moments.started.realtime_ns,
        connected_ns=connected_ns,
        sent_ns=sent_ns,
        headers_ns=None if exchange.headers_at is None else int(reads.at_ns[exchange.headers_at]),
        arrivals_ns=came.at_ns - (sent_ns or 0),
        ended_ns=placed(moments.ended) if at is None else int(reads.at_ns[at]),
        reads=reads,
        read_ends=read_ends,
        end_lag_ns=None if at is None else max(0, taken_up_ns - int(reads.at_ns[at])),
        coalesced=came.coalesced,
    )
