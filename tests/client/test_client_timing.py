"""From reads and stamps to the times of a request."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from numpy.typing import NDArray
from reads import read

from llm_locust.client.http.clock import ClockPair
from llm_locust.client.http.exchange import Exchange
from llm_locust.client.recording import Moments, arrivals, completed_by, read_times, timeline

MS = 1_000_000
START = ClockPair(10**18, 5000 * MS)
END = ClockPair(10**18 + 900 * MS, 5900 * MS)


def at_ms(*times_ms: float) -> NDArray[np.int64]:
    return np.array([round(t * MS) for t in times_ms], dtype=np.int64)


def kernel(*times_ms: float) -> NDArray[np.int64]:
    """Stamps at these times after the start, NaN for none."""
    return np.array([0 if t != t else START.realtime_ns + round(t * MS) for t in times_ms], dtype=np.int64)


def program(*times_ms: float) -> NDArray[np.int64]:
    return START.monotonic_ns + at_ms(*times_ms)


NONE = float("nan")


def test_the_kernels_stamps_are_the_times_and_the_programs_lateness_is_lag() -> None:
    times = read_times(kernel(50, 70), program(50.1, 103), START, END)
    assert (times.at_ns - START.realtime_ns).tolist() == at_ms(50, 70).tolist()
    assert (times.kernel, times.client_lag_ns, times.clock_step_ns) == (True, 33 * MS, None)


def test_without_stamps_the_programs_readings_are_the_times_and_no_lag_is_known() -> None:
    times = read_times(kernel(NONE, NONE), program(50.1, 103), START, END)
    assert (times.at_ns - START.realtime_ns).tolist() == at_ms(50.1, 103).tolist()
    assert (times.kernel, times.client_lag_ns) == (False, None)


def test_a_read_without_a_stamp_came_no_later_than_the_next_with_one() -> None:
    times = read_times(kernel(NONE, NONE, 60, NONE), program(50, 75, 75.5, 80), START, END)
    assert (times.at_ns - START.realtime_ns).tolist() == at_ms(50, 60, 60, 80).tolist()
    assert (times.kernel, times.client_lag_ns) == (False, round(15.5 * MS))


def test_a_reading_error_of_the_clocks_makes_no_negative_lag() -> None:
    assert read_times(kernel(50), program(49.99), START, END).client_lag_ns == 0
    assert read_times(kernel(NONE, 50), program(49, 49.99), START, END).client_lag_ns == 0


@pytest.mark.parametrize("step_ms", [-200, 3600_000])
def test_a_step_of_the_clock_changes_no_duration(step_ms: int) -> None:
    stepped = ClockPair(END.realtime_ns + step_ms * MS, END.monotonic_ns)
    times = read_times(kernel(50, 70 + step_ms), program(50.1, 70.1), START, stepped)
    assert (times.at_ns - START.realtime_ns).tolist() == at_ms(50.1, 70.1).tolist()
    assert (times.kernel, times.client_lag_ns, times.clock_step_ns) == (False, None, step_ms * MS)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.booleans()), max_size=20),
)
def test_times_never_decrease_nor_lie_after_the_program_had_the_read(
    reads: list[tuple[int, int, bool]],
) -> None:
    came = np.cumsum([gap for gap, _, _ in reads] or [0])[: len(reads)]
    had = np.maximum.accumulate(came + np.array([late for _, late, _ in reads], dtype=np.int64))
    stamps = [float(c) if stamped else NONE for c, (_, _, stamped) in zip(came, reads, strict=True)]
    times = read_times(kernel(*stamps), program(*had), START, END)
    assert (np.diff(times.at_ns) >= 0).all()
    assert (times.at_ns <= program(*had) + START.offset_ns).all()
    assert (times.at_ns >= START.realtime_ns + at_ms(*came)).all()


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=30),
    st.lists(st.integers(1, 100), max_size=30, unique=True),
)
@example([4], [1, 2, 3, 4])
@example([1, 1, 1], [1, 2, 3])
@example([2, 1, 3, 2], [1, 2, 3, 4, 5, 6, 7, 8])
def test_an_event_came_with_the_read_that_completed_it(grown: list[int], ends: list[int]) -> None:
    read_ends = np.cumsum(np.array(grown, dtype=np.int64))
    token_ends = np.array(sorted(e for e in ends if e <= read_ends[-1]), dtype=np.int64)
    reads = [next(i for i, there in enumerate(read_ends) if there >= e) for e in token_ends]
    came = arrivals(completed_by(token_ends, read_ends), np.arange(len(grown), dtype=np.int64) * 10)
    assert came.at_ns.tolist() == [10 * r for r in reads]
    assert came.coalesced == len({r for r in reads if reads.count(r) > 1})


def exchanged(reads: Sequence[tuple[bytes, float, float]], *, ended: bool = False) -> Exchange:
    """An exchange of reads with the times of kernel and program in ms after the start."""
    exchange = Exchange()
    for data, kernel_ms, program_ms in reads:
        exchange.on_reads(*read(data, int(program(program_ms)[0]), int(kernel(kernel_ms)[0])))
    if ended:
        exchange.on_eof()
    exchange.drain()
    return exchange


def moment(ms: float) -> ClockPair:
    return ClockPair(START.realtime_ns + round(ms * MS), START.monotonic_ns + round(ms * MS))


def moments(**of: Any) -> Moments:
    return Moments(**({"started": START, "connected": moment(2), "sent": moment(3), "ended": END} | of))


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"


def test_a_response_ended_with_the_read_that_completed_it_however_late_it_was_looked_at() -> None:
    times = timeline(exchanged([(HEAD, 20, 20), (b"ab", 50, 51), (b"cd", 70, 800)]), [2, 4], moments())
    assert times.ended_ns == START.realtime_ns + 70 * MS
    assert times.headers_ns == START.realtime_ns + 20 * MS
    assert (times.connected_ns, times.sent_ns) == (moment(2).realtime_ns, moment(3).realtime_ns)
    assert times.arrivals_ns.tolist() == at_ms(47, 67).tolist()
    assert times.reads.client_lag_ns == 730 * MS
    assert times.end_lag_ns == 830 * MS, "from its arrival until the event loop took it up"


def test_a_response_that_is_not_whole_ended_when_it_was_given_up() -> None:
    times = timeline(exchanged([(HEAD + b"ab", 20, 20)], ended=True), [2], moments())
    assert (times.ended_ns, times.end_lag_ns) == (END.realtime_ns, None)
    assert times.arrivals_ns.tolist() == at_ms(17).tolist()


def test_a_call_that_came_nowhere_has_its_start_and_end_only() -> None:
    times = timeline(exchanged([]), [], moments(connected=None, sent=None))
    assert (times.started_ns, times.ended_ns) == (START.realtime_ns, END.realtime_ns)
    assert (times.connected_ns, times.sent_ns, times.headers_ns) == (None, None, None)
    assert (len(times.arrivals_ns), times.coalesced, times.reads.kernel) == (0, 0, False)


def test_after_a_step_every_moment_is_of_the_clock_as_it_was_at_the_start() -> None:
    ahead = 5_000 * MS

    def later(ms: float) -> ClockPair:
        return ClockPair(moment(ms).realtime_ns + ahead, moment(ms).monotonic_ns)

    exchange = exchanged([(HEAD, 5020, 20), (b"abcd", 5050, 51)])
    times = timeline(exchange, [4], moments(connected=later(2), sent=later(3), ended=later(900)))
    assert times.reads.clock_step_ns == ahead
    assert (times.connected_ns, times.sent_ns) == (moment(2).realtime_ns, moment(3).realtime_ns)
    assert times.arrivals_ns.tolist() == at_ms(48).tolist()
    assert times.ended_ns == moment(51).realtime_ns
