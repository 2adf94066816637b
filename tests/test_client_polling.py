"""The event loop's pause between two polls."""

import os
import time
from collections.abc import Callable, Iterator

import gevent
import pytest
from gevent.event import Event

from llm_locust.client.polling import PollLimiter

INTERVAL_S = 0.005

SLOW_S, FAST_S = 10 * INTERVAL_S, 9 * INTERVAL_S  # the usual gap in a stream

Limit = Callable[..., PollLimiter]


@pytest.fixture
def limit() -> Iterator[Limit]:
    made: list[PollLimiter] = []

    def make(calls: int, gap_s: float = SLOW_S) -> PollLimiter:
        made.append(PollLimiter(lambda: calls, lambda: gap_s, interval_s=INTERVAL_S, busy=10))
        return made[-1]

    yield make
    for limiter in made:
        limiter.close()


def polls_within(seconds: float) -> int:
    """How often a loop polls that always finds something: a pipe that is readable and never read."""
    reader, writer = os.pipe()
    os.write(writer, b"x")
    polls = 0

    def count() -> None:
        nonlocal polls
        polls += 1

    watcher = gevent.get_hub().loop.io(reader, 1)
    watcher.start(count)
    gevent.sleep(seconds)
    watcher.stop()
    watcher.close()
    os.close(reader)
    os.close(writer)
    return polls


def test_a_busy_loop_polls_at_most_once_an_interval(limit: Limit) -> None:
    limit(10)
    assert 1 < polls_within(20 * INTERVAL_S) <= 22


def test_with_few_calls_under_way_the_loop_polls_as_it_likes(limit: Limit) -> None:
    limit(9)
    assert polls_within(20 * INTERVAL_S) > 200


@pytest.mark.parametrize("gap_s", [FAST_S, float("nan")])
def test_where_events_of_a_stream_come_fast_or_nobody_knows_no_read_waits(limit: Limit, gap_s: float) -> None:
    limit(10, gap_s)
    assert polls_within(20 * INTERVAL_S) > 200


def test_an_event_after_a_silence_is_not_delayed(limit: Limit) -> None:
    limit(10)
    gevent.sleep(3 * INTERVAL_S)
    event = Event()
    gevent.get_hub().loop.run_callback(event.set)
    begin = time.monotonic()
    event.wait()
    assert time.monotonic() - begin < INTERVAL_S


def test_a_closed_limiter_limits_nothing(limit: Limit) -> None:
    limiter = PollLimiter(lambda: 99, lambda: SLOW_S, interval_s=INTERVAL_S, busy=10)
    limiter.close()
    assert polls_within(20 * INTERVAL_S) > 200
