"""The event loop's pause between two polls."""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest
from gevent.event import Event

from llm_locust.client.http.polling import BUSY_CALLS, PollLimiter, pause_s

pytestmark = pytest.mark.alone

PAUSE_S = 0.005

Limit = Callable[[float], PollLimiter]


@pytest.fixture
def limit() -> Iterator[Limit]:
    made: list[PollLimiter] = []

    def make(pause_s: float) -> PollLimiter:
        made.append(PollLimiter(lambda: pause_s))
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


@pytest.mark.parametrize(
    ("calls", "gap_s", "pause"),
    [
        (BUSY_CALLS, 0.010, 0.0005),  # a twentieth of the gap
        (BUSY_CALLS, 0.020, 0.001),
        (BUSY_CALLS, 1.0, 0.001),  # never longer
        (BUSY_CALLS, 0.002, 0.0),  # fast streams: each event has its own read
        (BUSY_CALLS, math.nan, 0.0),
        (BUSY_CALLS - 1, 0.020, 0.0),
    ],
)
def test_the_pause_is_a_twentieth_of_the_gap_where_calls_are_many(
    calls: int, gap_s: float, pause: float
) -> None:
    assert pause_s(calls, gap_s) == pytest.approx(pause)


def test_a_busy_loop_polls_at_most_once_a_pause(limit: Limit) -> None:
    limit(PAUSE_S)
    assert 1 < polls_within(20 * PAUSE_S) <= 22


def test_a_loop_may_be_limited_before_its_first_poll() -> None:
    errors, polled = list[object](), list[int]()

    def first_polls() -> None:
        hub: Any = gevent.get_hub()
        hub.handle_error = lambda *of: errors.append(of)
        limiter = PollLimiter(lambda: PAUSE_S)
        polled.append(polls_within(2 * PAUSE_S))
        limiter.close()
        del hub.handle_error
        hub.destroy()

    thread = threading.Thread(target=first_polls)
    thread.start()
    thread.join()
    assert (len(polled), errors) == (1, [])


def test_without_a_pause_the_loop_polls_as_it_likes(limit: Limit) -> None:
    limit(0.0)
    assert polls_within(20 * PAUSE_S) > 200


def test_an_event_after_a_silence_is_not_delayed(limit: Limit) -> None:
    limit(PAUSE_S)
    gevent.sleep(3 * PAUSE_S)
    event = Event()
    gevent.get_hub().loop.run_callback(event.set)
    begin = time.monotonic()
    event.wait()
    assert time.monotonic() - begin < PAUSE_S


def test_a_closed_limiter_limits_nothing(limit: Limit) -> None:
    limit(PAUSE_S).close()
    assert polls_within(20 * PAUSE_S) > 200
