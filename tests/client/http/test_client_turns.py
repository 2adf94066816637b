"""Turns of the event loop: who waits for one gets one, in order, and nobody else waits meanwhile."""

import os

import gevent
import pytest

from llm_locust.client.http.timers import DECODING_S, DecodeBudget

WITHIN_S = 60.0


@pytest.fixture
def full() -> DecodeBudget:
    """A turn whose time is up."""
    turn = DecodeBudget()
    assert turn.has_time()
    turn.spend(DECODING_S)
    assert not turn.has_time()
    return turn


def test_a_turn_has_time_again_when_the_next_one_begins(full: DecodeBudget) -> None:
    before = gevent.get_hub().loop.iteration
    full.wait()
    assert full.has_time()
    assert gevent.get_hub().loop.iteration > before


def test_those_who_wait_go_on_in_their_order_as_many_as_a_turn_has_time_for(full: DecodeBudget) -> None:
    order: list[tuple[int, int]] = []

    def work(number: int) -> None:
        for _ in range(2):  # behind the others again
            full.wait()
            order.append((number, gevent.get_hub().loop.iteration))
            full.spend(DECODING_S / 2)

    gevent.joinall([gevent.spawn(work, number) for number in range(6)], timeout=WITHIN_S)
    assert [number for number, _ in order] == [*range(6)] * 2
    turns = [turn for _, turn in order]
    assert [turns.count(turn) for turn in dict.fromkeys(turns)] == [2] * 6


def test_a_greenlet_that_is_killed_while_it_waits_takes_nobodys_turn(full: DecodeBudget) -> None:
    done: list[str] = []

    def work(name: str) -> None:
        full.wait()
        done.append(name)

    greenlets = [gevent.spawn(work, name) for name in ("killed", "first", "second")]
    gevent.sleep(0)  # all of them wait, and the next turn has not begun
    assert not done
    greenlets[0].kill()
    gevent.joinall(greenlets, timeout=WITHIN_S)
    assert done == ["first", "second"]


def test_what_arrives_is_read_between_the_turns_of_those_who_wait(full: DecodeBudget) -> None:
    """A hundred waiters with a turn each would else hold the loop for half a second."""
    ours, theirs = os.pipe()
    done, seen = 0, -1
    ready = gevent.get_hub().loop.io(ours, 1)

    def arrived() -> None:
        nonlocal seen
        seen = done
        ready.stop()

    def work() -> None:
        nonlocal done
        full.wait()
        full.spend(DECODING_S)
        done += 1
        if done == 10:
            os.write(theirs, b".")

    ready.start(arrived)
    gevent.joinall([gevent.spawn(work) for _ in range(100)], timeout=WITHIN_S)
    ready.close()
    os.close(ours)
    os.close(theirs)
    assert done == 100
    assert 10 <= seen <= 12


def test_the_fault_of_one_greenlet_is_no_other_ones(
    full: DecodeBudget, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        full.wait()
        raise ValueError("its own")

    failed, other = gevent.spawn(fail), gevent.spawn(full.wait)
    gevent.joinall([failed, other], timeout=WITHIN_S)
    assert isinstance(failed.exception, ValueError)
    assert other.successful()
    assert "its own" in capsys.readouterr().err
