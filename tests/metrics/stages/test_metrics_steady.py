"""A stage is called unsteady when it was, and hardly ever when it was not."""

from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
import pytest
from stage_cases import (
    Floats,
    Random,
    Times,
    closed_loop,
    lockstep,
    many_servers,
    shared_server,
    single_queue,
)

from llm_locust.metrics.stage_course import StageCourse, saturation, unsteady

Make = Callable[[Random], Times]


def found(make: Make, seed: int) -> str:
    """Everything that is held against the stage of one seed."""
    course = make(np.random.default_rng(seed)).course()
    return "; ".join([*unsteady(course), saturation(course)]).strip("; ")


def share(make: Make, seeds: int, what: str = "") -> float:
    return sum(bool(text) and what in text for text in (found(make, seed) for seed in range(seeds))) / seeds


STEADY = {
    **{
        f"M/M/1 at {load}, {n} requests": partial(single_queue, load=load, requests=n)
        for load, n in product((0.1, 0.5, 0.9), (60, 4000))
    },
    **{
        f"{users} users, lognormal {sigma}, {n} requests": partial(
            closed_loop, users=users, sigma=sigma, requests=n
        )
        for users, sigma, n in product((1, 8, 64), (0.0, 1.5), (60, 1000))
    },
    **{
        f"16 users before 4 servers, {n} requests": partial(shared_server, users=16, servers=4, requests=n)
        for n in (60, 1000)
    },
    "M/G/∞, lognormal 1.5": partial(many_servers, rate=5, sigma=1.5, requests=1000),
    "64 users in step, 6 rounds": partial(lockstep, users=64, rounds=6),
    "8 users in step, 30 rounds": partial(lockstep, users=8, rounds=30),
}


@pytest.mark.parametrize("make", STEADY.values(), ids=STEADY)
def test_a_steady_stage_is_called_unsteady_in_at_most_one_of_twenty(make: Make) -> None:
    assert share(make, 60) <= 0.05


@pytest.mark.parametrize("sigma", [0.0, 1.5])
@pytest.mark.parametrize(
    "hang", [(0.5, 1.5, 7), (0.25, 0.75, 7), (0.0, 0.5, 7), (0.3, 0.8, 8), (0.6, 1.1, 8)]
)
def test_a_hang_of_some_users_or_all_is_not_steady(hang: tuple[float, float, int], sigma: float) -> None:
    make = partial(closed_loop, users=8, sigma=sigma, requests=1600, hang=hang)
    assert share(make, 8) == 1.0


def test_a_short_hang_is_not_steady_where_times_vary_little() -> None:
    make = partial(closed_loop, users=8, sigma=0.5, requests=800, hang=(0.5, 0.6, 8))
    assert share(make, 8) == 1.0


@pytest.mark.parametrize("requests", [40, 800])
def test_a_stage_in_which_nothing_ends_is_not_steady(requests: int) -> None:
    make = partial(closed_loop, users=8, sigma=0.3, requests=requests, hang=(-1.0, 1.5, 8), drain=0.2)
    assert share(make, 8, "none of the 8 requests in flight ended") == 1.0


@pytest.mark.parametrize("open_loop", [False, True])
def test_a_stage_without_a_request_is_not_steady(open_loop: bool) -> None:
    nothing = np.array([])
    course = StageCourse(start_s=0.0, end_s=10.0, begun_s=nothing, ended_s=nothing, open_loop=open_loop)
    assert unsteady(course) == ["no request was in flight"]


def few_slow(rng: Random, at: Floats) -> Floats:
    """5 % of the requests of the last third take 20 times as long."""
    return np.where((at > 2 / 3) & (rng.random(len(at)) < 0.05), 20.0, 1.0)


def all_slower(_: Random, at: Floats) -> Floats:
    """The last third takes 1.3 times as long."""
    return np.where(at > 2 / 3, 1.3, 1.0)


@pytest.mark.parametrize("sigma", [0.0, 0.5, 1.0])
def test_a_few_requests_that_become_slow_are_found_in_two_thousand(sigma: float) -> None:
    loops = [
        partial(closed_loop, users=8, sigma=sigma, requests=2000, slow=few_slow),
        partial(many_servers, rate=5, sigma=sigma, requests=2000, slow=few_slow),
    ]
    assert [share(make, 10) for make in loops] == [1.0, 1.0]


def test_a_change_of_the_median_is_found_and_one_of_less_than_a_tenth_is_not() -> None:
    changed = partial(many_servers, rate=5, sigma=0.1, requests=1000, slow=all_slower)
    assert share(changed, 10, "its median latency") == 1.0
    little = partial(
        many_servers, rate=5, sigma=0.01, requests=1000, slow=lambda _, at: np.where(at > 0.5, 1.05, 1.0)
    )
    assert share(little, 10, "its median latency") == 0.0


def test_a_rate_above_the_capacity_is_saturated_and_one_below_is_not() -> None:
    assert share(partial(single_queue, load=1.5, requests=1000), 20, "requests were due") == 1.0
    assert share(partial(single_queue, load=1.25, requests=2000), 20, "requests were due") >= 0.9
    assert share(partial(single_queue, load=0.9, requests=1000), 60, "requests were due") <= 0.02


def test_requests_that_never_started_count_as_left() -> None:
    course = many_servers(np.random.default_rng(1), rate=5, sigma=0.5, requests=500).course()
    assert not saturation(course)
    assert "1,000 were" not in saturation(course, 1000)
    assert "were left at its end" in saturation(course, 1000)


def test_an_open_loop_that_hangs_for_a_while_is_not_steady_although_it_recovers() -> None:
    def hung(rng: Random) -> Times:
        steady = many_servers(rng, rate=5, sigma=0.5, requests=800)
        first, last = 0.3 * steady.seconds, 0.7 * steady.seconds
        stuck = (steady.ended_s > first) & (steady.due_s < last) & (rng.random(len(steady.due_s)) < 7 / 8)
        ended_s = np.where(stuck, np.maximum(steady.ended_s, last), steady.ended_s)
        return Times(steady.due_s, ended_s, steady.seconds, True)

    assert share(hung, 8) == 1.0
