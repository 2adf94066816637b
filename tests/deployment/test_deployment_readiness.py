"""A run does not begin with 5 of 8 replicas."""

import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from llm_locust.deployment.readiness import (
    Clock,
    NotReadyError,
    count_replicas,
    look,
    wait_until_ready,
)

TARGETS = [f"http://10.0.0.{i}:8000" for i in range(1, 9)]


@dataclass
class FakeTime:
    """Goes on when somebody sleeps or asks."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)

    def clock(self) -> Clock:
        return Clock(lambda: self.now, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def up_from(times: dict[str, float], time: FakeTime) -> Callable[[str], str | None]:
    return lambda target: None if time.now >= times.get(target, 0.0) else "Connection refused"


def test_five_of_eight_do_not_start_the_run_and_the_line_names_the_three() -> None:
    time = FakeTime()
    check = up_from(dict.fromkeys(TARGETS[5:], 1e9), time)
    with pytest.raises(NotReadyError) as raised:
        wait_until_ready(TARGETS, check, within_s=30, clock=time.clock())
    line = str(raised.value)
    assert line.startswith("5 of 8 replicas are ready after 30 s; missing: ")
    assert [target for target in TARGETS if target in line] == TARGETS[5:]
    assert "Connection refused" in line
    assert "\n" not in line


def test_when_they_come_up_the_run_starts() -> None:
    time = FakeTime()
    lines: list[str] = []
    check = up_from({TARGETS[6]: 3.5, TARGETS[7]: 7.5}, time)
    ready = wait_until_ready(TARGETS, check, within_s=30, clock=time.clock(), tell=lines.append)
    assert (ready.names, ready.seconds) == (tuple(TARGETS), 8.0)
    # Those that are ready are not asked again; a line only when somebody has come.
    assert ready.asked == 8 + 4 * 2 + 4 * 1
    assert [line.split(" replicas")[0] for line in lines] == ["6 of 8", "7 of 8"]


def test_all_targets_are_looked_at_together() -> None:
    seen: list[Sequence[str]] = []

    def together(check: Callable[[str], str | None], targets: Sequence[str]) -> Iterable[str | None]:
        seen.append(targets)
        with ThreadPoolExecutor() as pool:
            return list(pool.map(check, targets))

    assert wait_until_ready(TARGETS, lambda _: None, within_s=1, together=together).asked == 8
    assert seen == [TARGETS]


@pytest.mark.parametrize(
    ("status", "completed", "why"),
    [
        (200, None, None),
        (404, None, None),  # there is no such path: the request tells
        (503, None, "/health answered 503"),
        (200, "http_error 500", "http_error 500"),
    ],
)
def test_a_target_is_ready_when_it_is_healthy_and_has_given_a_token(
    status: int, completed: str | None, why: str | None
) -> None:
    assert look(lambda _: status, lambda _: completed)("t") == why


def test_a_target_that_cannot_be_reached_is_not_ready() -> None:
    def refuse(target: str) -> int:
        raise ConnectionRefusedError(111, "Connection refused")

    assert look(refuse, lambda _: None)("t") == "Connection refused"


def test_replicas_behind_a_balancer_are_counted_by_their_names() -> None:
    source, time = random.Random(1), FakeTime()
    ready = count_replicas(4, lambda: source.choice("abcd"), within_s=60, clock=time.clock())
    assert ready.names == ("a", "b", "c", "d")
    assert ready.asked < 40
    assert time.slept == []


def test_a_replica_that_comes_late_is_waited_for() -> None:
    time, turns = FakeTime(), itertools.count()
    lines: list[str] = []

    def ask() -> str:
        return "abc"[next(turns) % (3 if time.now >= 5 else 2)]

    ready = count_replicas(3, ask, within_s=60, clock=time.clock(), tell=lines.append)
    assert ready.names == ("a", "b", "c")
    assert 5 <= ready.seconds <= 10
    assert lines[-1] == "3 of 3 replicas have answered: c is new"


def test_missing_ones_are_said_with_those_that_answered() -> None:
    time, turns = FakeTime(), itertools.count()
    with pytest.raises(NotReadyError) as raised:
        count_replicas(8, lambda: f"r{next(turns) % 5}", within_s=10, clock=time.clock())
    assert str(raised.value).startswith("5 of 8 replicas answered ")
    assert "r0, r1, r2, r3, r4; 3 are missing" in str(raised.value)


def test_answers_that_name_nobody_are_said_at_once() -> None:
    time = FakeTime()
    with pytest.raises(NotReadyError, match=r"name the header that does by --replica-header"):
        count_replicas(8, lambda: None, within_s=600, clock=time.clock())
    assert time.now == 0.0


def test_a_balancer_that_refuses_is_asked_until_the_time_is_over() -> None:
    time = FakeTime()

    def refuse() -> str:
        raise ConnectionRefusedError(111, "Connection refused")

    with pytest.raises(NotReadyError, match=r"0 of 2 .* the last request failed: Connection refused"):
        count_replicas(2, refuse, within_s=10, clock=time.clock())
    assert time.now == pytest.approx(10)
