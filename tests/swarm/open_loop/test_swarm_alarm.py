"""A timer of the event loop that is finer than the loop's own."""

import select
import socket
import time
from collections.abc import Iterator

import gevent
import pytest
from gevent.event import Event

from llm_locust.swarm.open_loop import dispatch as module
from llm_locust.swarm.open_loop.dispatch import Alarm

pytestmark = pytest.mark.alone

PATIENCE_S = 120.0


class Bell:
    """When an alarm rang, in seconds after this was made."""

    def __init__(self) -> None:
        self.rung_s: list[float] = []
        self._began_s = time.monotonic()
        self._rang = Event()

    def ring(self) -> None:
        self.rung_s.append(time.monotonic() - self._began_s)
        self._rang.set()

    def wait(self) -> float:
        assert self._rang.wait(PATIENCE_S), "it did not ring"
        self._rang.clear()
        return self.rung_s[-1]


@pytest.fixture
def bell() -> Bell:
    return Bell()


@pytest.fixture(params=["timerfd", "loop"])
def alarm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, bell: Bell) -> Iterator[Alarm]:
    """Of both kinds: as on Linux, and as elsewhere."""
    if request.param == "loop":
        monkeypatch.setattr(module, "_timerfd", lambda: None)
    made = Alarm(bell.ring)
    yield made
    made.close()


def test_it_rings_once_and_not_before_its_time(alarm: Alarm, bell: Bell) -> None:
    alarm.ring_in(0.05)
    assert bell.wait() >= 0.049
    gevent.sleep(0.1)
    assert len(bell.rung_s) == 1


def test_it_can_be_asked_again_and_again(alarm: Alarm, bell: Bell) -> None:
    for _ in range(20):
        before = len(bell.rung_s)
        alarm.ring_in(0.001)
        bell.wait()
        assert len(bell.rung_s) == before + 1


def test_a_new_time_takes_the_place_of_the_one_before(alarm: Alarm, bell: Bell) -> None:
    alarm.ring_in(0.02)
    alarm.ring_in(0.2)
    assert bell.wait() >= 0.19
    alarm.ring_in(60.0)
    alarm.ring_in(0.01)
    bell.wait()
    assert len(bell.rung_s) == 2


def test_a_time_that_is_over_rings_at_once(alarm: Alarm, bell: Bell) -> None:
    for seconds in (0.0, -5.0):
        alarm.ring_in(seconds)
        bell.wait()


@pytest.mark.skipif(module._timerfd() is None, reason="without timer descriptors there is no such order")
def test_it_rings_before_the_sockets_that_are_read_in_its_turn(bell: Bell) -> None:
    called: list[str] = []

    def ring() -> None:
        called.append("alarm")
        bell.ring()

    def read(ours: socket.socket) -> None:
        called.append("socket" if ours.recv(1) else "")

    alarm = Alarm(ring)
    pairs = [socket.socketpair() for _ in range(3)]
    watchers = [gevent.get_hub().loop.io(ours.fileno(), 1) for ours, _ in pairs]
    for watcher, (ours, _) in zip(watchers, pairs, strict=True):
        watcher.start(read, ours)
    gevent.sleep(0.01)  # the loop watches all of them
    alarm.ring_in(0.001)
    assert alarm._fd is not None
    assert select.select([alarm._fd], [], [], PATIENCE_S)[0]  # it is due first, which libev alone puts last
    for _, theirs in pairs:
        theirs.send(b"x")
    bell.wait()
    gevent.sleep(0.01)
    assert called == ["alarm", *["socket"] * len(pairs)]
    for watcher, pair in zip(watchers, pairs, strict=True):
        watcher.close()
        for end in pair:
            end.close()
    alarm.close()


def test_one_that_is_to_be_quiet_or_is_closed_does_not_ring(alarm: Alarm, bell: Bell) -> None:
    alarm.ring_in(0.02)
    alarm.quiet()
    gevent.sleep(0.1)
    alarm.ring_in(0.02)
    alarm.close()
    gevent.sleep(0.1)
    assert bell.rung_s == []
