"""Users of a closed loop wait after failed requests: the law of their waits, on a virtual clock."""

import time
from dataclasses import dataclass, field
from email.utils import formatdate
from itertools import pairwise

import gevent
import pytest
from hypothesis import given, strategies as st

from llm_locust.client.http.exchange import Exchange
from llm_locust.client.outcome import retry_after_s
from llm_locust.client.recording import Answer
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.swarm.users.backoff import FIRST_S, MOST_RETRY_AFTER_S, MOST_S, Backoffs, admitted, bound_s
from llm_locust.wire.draft import Draft

FAILURES = sorted(set(Outcome) - {Outcome.OK, Outcome.REJECTED, Outcome.CANCELLED, Outcome.RESENT})


@dataclass
class VirtualTime:
    """A clock that only waits move."""

    now_s: float = 1000.0
    waited_s: list[float] = field(default_factory=list)

    def read(self) -> float:
        return self.now_s

    def pause(self, seconds: float) -> None:
        self.waited_s.append(seconds)
        self.now_s += seconds


def backoffs(clock: VirtualTime, seed: int = 7, worker: int = 0) -> Backoffs:
    return Backoffs(seed, worker, clock.read, clock.pause)


def ended(outcome: Outcome, user: int | None = 0, retry_after_s: float | None = None) -> Answer:
    record = RequestRecord(
        request_id="r", name="chat", outcome=outcome, scheduled_ns=0, started_ns=0, ended_ns=1, user=user
    )
    return Answer(record, Draft().finish(), retry_after_s)


@given(st.lists(st.sampled_from([*Outcome]), max_size=40), st.integers(0, 2**31))
def test_each_wait_is_within_the_bound_of_the_failures_in_a_row(outcomes: list[Outcome], seed: int) -> None:
    clock = VirtualTime()
    users, in_a_row = backoffs(clock, seed), 0
    for outcome in outcomes:
        users.note(ended(outcome))
        if outcome in FAILURES:
            in_a_row += 1
        elif outcome in (Outcome.OK, Outcome.REJECTED):
            in_a_row = 0
        before = len(clock.waited_s)
        users.wait(0)
        waited = sum(clock.waited_s[before:])
        fresh = outcome in FAILURES
        assert 0 <= waited <= (min(MOST_S, FIRST_S * 2 ** (in_a_row - 1)) if fresh else 0)
    assert users.waits == len(clock.waited_s)
    assert users.waited_s == pytest.approx(sum(clock.waited_s))


def test_the_bounds_double_from_100_ms_to_5_s() -> None:
    bounds = [bound_s(n) for n in range(1, 12)]
    assert bounds[:6] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2])
    assert set(bounds[6:]) == {5.0}
    assert all(a <= b for a, b in pairwise(bounds))
    assert bound_s(10**9) == MOST_S  # after a night of failures


def test_waits_are_spread_over_all_of_their_bound() -> None:
    clock = VirtualTime()
    users = backoffs(clock)
    for user in range(2000):
        users.note(ended(Outcome.HTTP_ERROR, user))
        users.wait(user)
    shares = sorted(wait / FIRST_S for wait in clock.waited_s)
    assert shares[len(shares) // 10] == pytest.approx(0.1, abs=0.03)
    assert shares[len(shares) // 2] == pytest.approx(0.5, abs=0.05)
    assert shares[-1] <= 1


def test_a_success_resets_one_user_and_no_other() -> None:
    clock = VirtualTime()
    users = backoffs(clock)
    for _ in range(9):
        for user in (0, 1):
            users.note(ended(Outcome.TIMEOUT, user))
    users.note(ended(Outcome.OK, 0))
    users.wait(0)
    assert clock.waited_s == []
    users.note(ended(Outcome.TIMEOUT, 0))
    users.wait(0)
    assert sum(clock.waited_s) <= FIRST_S
    users.wait(1)
    assert len(clock.waited_s) == 2


def test_equal_seeds_draw_equal_waits_and_no_two_users_the_same() -> None:
    def waits(seed: int, worker: int, user: int) -> list[float]:
        clock = VirtualTime()
        users = backoffs(clock, seed, worker)
        for _ in range(8):
            users.note(ended(Outcome.HTTP_ERROR, user))
            users.wait(user)
        return clock.waited_s

    assert waits(7, 0, 3) == waits(7, 0, 3)
    different = [waits(7, 0, 3), waits(8, 0, 3), waits(7, 1, 3), waits(7, 0, 4)]
    assert len({tuple(each) for each in different}) == 4


def test_time_that_a_user_spends_otherwise_counts() -> None:
    clock = VirtualTime()
    users = backoffs(clock)
    users.note(ended(Outcome.EMPTY))
    clock.now_s += MOST_S
    users.wait(0)
    assert (users.waits, users.waited_s) == (0, 0.0)


@pytest.mark.parametrize(("asked_s", "least_s"), [(3.0, 3.0), (0.0, 0.0), (1e9, MOST_RETRY_AFTER_S)])
def test_retry_after_comes_before_the_jitter_and_is_bounded(asked_s: float, least_s: float) -> None:
    clock = VirtualTime()
    users = backoffs(clock)
    users.note(ended(Outcome.HTTP_ERROR, retry_after_s=asked_s))
    users.wait(0)
    assert least_s <= sum(clock.waited_s) <= least_s + FIRST_S


def answered(status: int, **headers: str) -> Exchange:
    exchange = Exchange()
    exchange.status = status
    exchange.headers.update((name.replace("_", "-").encode(), v.encode()) for name, v in headers.items())
    return exchange


def test_retry_after_is_read_as_seconds_or_as_a_date() -> None:
    assert retry_after_s(answered(429, retry_after="2")) == 2.0
    assert retry_after_s(answered(503, retry_after="1.5")) == 1.5
    later = retry_after_s(answered(503, retry_after=formatdate(time.time() + 30, usegmt=True)))
    assert later is not None
    assert 25 < later <= 30
    assert retry_after_s(answered(429, retry_after=formatdate(0, usegmt=True))) == 0.0
    assert retry_after_s(answered(429)) is None
    assert retry_after_s(answered(200, retry_after="2")) is None


@pytest.mark.parametrize(
    "value", ["-1", "1e400", "9" * 400, "soon", "", "Mon, 99 Foo 99999 99:99:99 GMT", "٣"]
)
def test_what_is_no_time_is_no_retry_after(value: str) -> None:
    assert retry_after_s(answered(429, retry_after=value)) is None


def test_the_end_of_the_load_ends_every_wait_at_once() -> None:
    users = Backoffs(7, 0)
    for user in range(5):
        users.note(ended(Outcome.HTTP_ERROR, user, retry_after_s=60.0))
    waiting = [gevent.spawn(users.wait, user) for user in range(5)]
    gevent.sleep(0)
    assert users.waits == 5
    users.end()
    gevent.joinall(waiting, timeout=30)
    assert all(greenlet.successful() for greenlet in waiting)
    assert users.waited_s < 5 * 30
    users.note(ended(Outcome.HTTP_ERROR, 9, retry_after_s=60.0))
    users.wait(9)  # a user's farewell
    assert users.waits == 5


def test_a_user_that_is_ended_while_it_waits_is_counted() -> None:
    users = Backoffs(7, 0)
    users.note(ended(Outcome.HTTP_ERROR, retry_after_s=60.0))
    waiting = gevent.spawn(users.wait, 0)
    gevent.sleep(0)
    waiting.kill()
    assert users.counts()["backoff_waits"] == 1
    assert users.counts()["backoff_ns"] > 0


def test_requests_of_no_user_cause_no_wait() -> None:
    clock = VirtualTime()
    users = backoffs(clock)
    users.note(ended(Outcome.HTTP_ERROR, None))
    users.wait(0)
    assert clock.waited_s == []


class Door:
    """A gate that opens while it is waited for, and takes some time where it is open."""

    def __init__(self, clock: VirtualTime, *, is_open: bool = True, late_s: float = 0.0) -> None:
        self.is_open = is_open
        self._clock = clock
        self._late_s = late_s

    def enter(self) -> None:
        self.is_open = True
        self._clock.now_s += self._late_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    """A clock that is the wall clock too."""
    clock = VirtualTime()
    monkeypatch.setattr(time, "time_ns", lambda: round(clock.now_s * 1e9))
    return clock


def due_s(users: Backoffs, door: Door, at_s: float = 1000.0) -> float:
    return admitted(0, round(at_s * 1e9), users, door, door.enter) / 1e9


def test_a_process_that_is_held_up_at_an_open_gate_has_not_waited(clock: VirtualTime) -> None:
    assert due_s(backoffs(clock), Door(clock, late_s=0.5)) == 1000.0
    assert clock.now_s == 1001.0


def test_a_request_is_due_when_the_next_stage_begins_or_a_back_off_ends(clock: VirtualTime) -> None:
    users, door = backoffs(clock), Door(clock, is_open=False, late_s=0.5)
    assert due_s(users, door) == 1000.5
    assert due_s(users, door) == 1000.0
    door = Door(clock)
    users.note(ended(Outcome.HTTP_ERROR, retry_after_s=2.0))
    ready_s = due_s(users, door)
    assert ready_s == pytest.approx(clock.now_s, abs=1e-6)
    assert clock.now_s > 1003.0
    users.note(ended(Outcome.OK))
    assert due_s(users, door) == 1000.0


@pytest.mark.parametrize("late_before_s", [0.0, 20.0], ids=["in the wait", "before it too"])
def test_the_end_of_a_back_off_that_is_noticed_late_is_lateness(
    clock: VirtualTime, late_before_s: float
) -> None:
    def pause(seconds: float) -> None:
        clock.now_s += seconds + 0.3

    users = Backoffs(7, 0, clock.read, pause)
    users.note(ended(Outcome.HTTP_ERROR, retry_after_s=2.0))
    ready_s = users._users[0].ready_s
    clock.now_s += late_before_s
    assert due_s(users, Door(clock)) == pytest.approx(ready_s, abs=1e-6)
    assert clock.now_s >= ready_s + 0.299
    assert due_s(users, Door(clock), 1010.0) == 1010.0


def test_what_other_walks_of_a_user_do_during_its_wait_does_not_move_it(clock: VirtualTime) -> None:
    def pause(seconds: float) -> None:
        clock.pause(seconds)
        users.note(ended(next(others), retry_after_s=9.0))

    users, others = Backoffs(7, 0, clock.read, pause), iter([Outcome.OK, Outcome.TIMEOUT])
    for _ in range(2):
        users.note(ended(Outcome.HTTP_ERROR, retry_after_s=2.0))
        ready_s = users._users[0].ready_s
        assert due_s(users, Door(clock)) == pytest.approx(ready_s, abs=1e-6)


def test_a_stage_that_ends_during_a_wait_moves_it_too(clock: VirtualTime) -> None:
    users, door, closing = backoffs(clock), Door(clock), iter([False, True])

    def enter() -> None:
        door.is_open = next(closing)
        clock.now_s += 1

    assert admitted(0, 10**12, users, door, enter) == 1002 * 10**9
