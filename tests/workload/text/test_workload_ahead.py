"""Prompts made ahead in other threads: the same prompts, sooner."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count, islice

import pytest
from hypothesis import given, settings, strategies as st

from llm_locust.workload.text.prompts import Prompt
from llm_locust.workload.text.synthetic import Ahead, Order


def numbered(k: int) -> Prompt:
    return Prompt(text=str(k))


def orders(make: Callable[[int], Prompt] = numbered, n: int | None = None) -> Iterator[Order]:
    return (partial(make, k) for k in (count() if n is None else range(n)))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 5), st.integers(1, 8), st.integers(0, 30))
def test_prompts_come_in_order_whatever_the_depth_and_the_number_of_threads(
    threads: int, depth: int, n: int
) -> None:
    with ThreadPoolExecutor(threads) as executor:
        ahead = Ahead(orders(n=n), executor, depth)
        assert [p.text for p in ahead] == [str(k) for k in range(n)]


def test_a_slow_first_prompt_does_not_let_the_second_overtake_it() -> None:
    second_made = threading.Event()

    def make(k: int) -> Prompt:
        if k == 0:
            assert second_made.wait(120)
        elif k == 1:
            second_made.set()
        return numbered(k)

    with ThreadPoolExecutor(2) as executor:
        assert [p.text for p in islice(Ahead(orders(make), executor), 3)] == ["0", "1", "2"]


def test_the_next_prompt_is_made_while_the_present_one_is_in_use_and_no_more_than_the_depth() -> None:
    made: list[int] = []
    third = threading.Event()

    def make(k: int) -> Prompt:
        made.append(k)
        if k == 2:
            third.set()
        return numbered(k)

    with ThreadPoolExecutor(1) as executor:
        ahead = Ahead(orders(make), executor, depth=2)
        next(ahead)
        assert third.wait(120)
    assert made == [0, 1, 2]


def test_nothing_is_made_before_the_first_is_asked_for() -> None:
    made: list[int] = []

    def make(k: int) -> Prompt:
        made.append(k)
        return numbered(k)

    with ThreadPoolExecutor(1) as executor:
        ahead = Ahead(orders(make), executor, depth=3)
        executor.submit(made.copy).result()
        assert made == []
        assert next(ahead).text == "0"


def test_an_error_in_making_a_prompt_is_raised_in_its_turn_and_the_next_one_comes() -> None:
    def make(k: int) -> Prompt:
        if k == 1:
            raise RuntimeError("one")
        return numbered(k)

    with ThreadPoolExecutor(1) as executor:
        ahead = Ahead(orders(make), executor, depth=2)
        assert next(ahead).text == "0"
        with pytest.raises(RuntimeError, match="one"):
            next(ahead)
        assert next(ahead).text == "2"


def test_a_depth_of_none_is_an_error() -> None:
    with ThreadPoolExecutor(1) as executor, pytest.raises(ValueError, match="depth 0"):
        Ahead(orders(), executor, depth=0)


_UNDER_GEVENT = """
from gevent import monkey

monkey.patch_all()
import gevent
from gevent.threadpool import ThreadPoolExecutor

from llm_locust.workload.text.synthetic import Ahead
from llm_locust.workload.text.prompts import Prompt

native_sleep = monkey.get_original("time", "sleep")
turns = 0


def make():
    native_sleep(0.5)
    return Prompt(text="made")


def count_turns():
    global turns
    while True:
        turns += 1
        gevent.sleep(0.01)


gevent.spawn(count_turns)
executor = ThreadPoolExecutor(1)
assert next(Ahead(iter([make]), executor)).text == "made"
print(turns)
"""


def test_under_gevent_the_loop_goes_on_while_a_prompt_is_made_in_a_real_thread() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _UNDER_GEVENT], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 10
