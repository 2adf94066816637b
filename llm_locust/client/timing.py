"""Reads and their stamps into the times of one request. Pure functions over columns."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llm_locust.client.clock import ClockPair, clock_step_ns
from llm_locust.client.exchange import Exchange


@dataclass(frozen=True, slots=True)
class ReadTimes:
    """When the reads of one response came.

    ``at_ns`` (reads,) is realtime: the kernel's stamp, or the program's own reading where there
    is none, or everywhere if realtime was stepped during the request (then all times are the
    sending time plus monotonic differences, so that the step changes no duration).
    """

    at_ns: NDArray[np.int64]
    kernel: bool
    client_lag_ns: int | None
    clock_step_ns: int | None


def read_times(exchange: Exchange, sent: ClockPair, ended: ClockPair) -> ReadTimes:
    program = exchange.monotonic_ns() + sent.offset_ns
    stamps = exchange.kernel_ns()
    step = clock_step_ns(sent, ended)
    stamped = stamps > 0
    if step is not None or not stamped.any():
        return ReadTimes(program, False, None, step)
    lag = int((program - stamps)[stamped].max())
    if stamped.all():
        return ReadTimes(stamps, True, lag, None)
    return ReadTimes(np.where(stamped, stamps, program), False, lag, None)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When token events came: ``at_ns`` (events,) realtime; ``coalesced`` reads had more than one."""

    at_ns: NDArray[np.int64]
    coalesced: int


def arrivals(token_ends: Sequence[int], read_ends: NDArray[np.int64], at_ns: NDArray[np.int64]) -> Arrivals:
    """The stamp of the read that completed each token event.

    Args:
        token_ends: offset in the body just after each token event.
        read_ends: for each read, the length of the body after it (non-decreasing).
        at_ns: for each read, its time.
    """
    if not token_ends:
        return Arrivals(np.empty(0, np.int64), 0)
    read = np.searchsorted(read_ends, np.asarray(token_ends, dtype=np.int64), side="left")
    shared = read[1:] == read[:-1]
    coalesced = int(shared[:1].sum() + (shared[1:] & ~shared[:-1]).sum())
    return Arrivals(at_ns[read], coalesced)
