"""The pauses of the agents of a process: none ends early, and each as if it were alone."""

import time
from collections.abc import Iterator

import gevent
import pytest
from gevent import GreenletExit

from llm_locust.swarm.pauses import Pauses


@pytest.fixture
def pauses() -> Iterator[Pauses]:
    made = Pauses()
    yield made
    made._alarm.close()


def test_every_pause_ends_and_none_before_its_time(pauses: Pauses) -> None:
    now_ns, ended = time.time_ns(), list[tuple[int, int]]()

    def pause(after_ms: int) -> None:
        pauses.until(now_ns + after_ms * 1_000_000)
        ended.append((after_ms, time.time_ns() - now_ns))

    order = [40, 5, 25, 5, 0, 60, 15]
    gevent.joinall([gevent.spawn(pause, after_ms) for after_ms in order], timeout=60, raise_error=True)
    assert sorted(after_ms for after_ms, _ in ended) == sorted(order)
    assert all(after_ns >= after_ms * 1_000_000 for after_ms, after_ns in ended)


def test_one_that_is_killed_or_begins_another_does_not_disturb_the_others(pauses: Pauses) -> None:
    begun_ns, ended = time.time_ns(), list[str]()

    def again() -> None:
        for _ in range(3):
            pauses.until(time.time_ns() + 2_000_000)
        ended.append("again")

    def last() -> None:
        pauses.until(begun_ns + 330_000_000)
        ended.append("last")

    killed = gevent.spawn(pauses.until, begun_ns + 300_000_000)
    others = [gevent.spawn(again), gevent.spawn(last)]
    gevent.sleep(0)
    killed.kill()
    gevent.joinall(others, timeout=60, raise_error=True)
    assert isinstance(killed.value, GreenletExit)
    assert sorted(ended) == ["again", "last"]


def test_a_pause_of_any_length_waits(pauses: Pauses) -> None:
    endless = gevent.spawn(pauses.until, 10**300)
    gevent.spawn(pauses.until, time.time_ns() + 1_000_000).join()
    assert not endless.ready()
    endless.kill()
