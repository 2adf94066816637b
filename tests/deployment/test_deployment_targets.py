"""Which target gets the next request."""

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from llm_locust.deployment.targets import POLICIES, Reuse, TargetsError, make_chooser


def chosen(policy: str, n: int, targets: int = 4, worker: int = 0, seed: int = 0) -> list[int]:
    chooser = make_chooser(policy, targets, worker=worker, seed=seed)
    return [chooser.choose(None) for _ in range(n)]


def test_turns_begin_elsewhere_at_each_worker() -> None:
    assert chosen("round_robin", 6) == [0, 1, 2, 3, 0, 1]
    assert [chosen("round_robin", 1, worker=w)[0] for w in range(6)] == [0, 1, 2, 3, 0, 1]
    assert [chosen("least_inflight", 1, worker=w)[0] for w in range(6)] == [0, 1, 2, 3, 0, 1]


def test_lots_differ_between_workers_and_repeat_with_the_seed() -> None:
    assert chosen("random", 50) == chosen("random", 50)
    assert chosen("random", 50) != chosen("random", 50, worker=1)
    assert chosen("random", 50) != chosen("random", 50, seed=1)
    assert set(Counter(chosen("random", 4000)).values()) < set(range(850, 1150))


def test_the_target_with_the_fewest_under_way_is_next() -> None:
    chooser = make_chooser("least_inflight", 3)
    for expected in (0, 1, 2):
        assert chooser.choose(None) == expected
        chooser.began(expected)
    chooser.ended(1)
    assert chooser.choose(None) == 1
    chooser.began(1)
    chooser.ended(2)
    chooser.ended(0)
    # Of equals the one that was chosen longest ago.
    assert [chooser.choose(None), chooser.choose(None)] == [0, 2]


@given(st.integers(1, 9), st.lists(st.integers(0, 8), max_size=60))
def test_least_inflight_never_leaves_a_target_two_behind(targets: int, ends: list[int]) -> None:
    chooser, load = make_chooser("least_inflight", targets), [0] * targets
    for end in ends:
        place = chooser.choose(None)
        assert load[place] == min(load)
        chooser.began(place)
        load[place] += 1
        if load[end % targets]:
            chooser.ended(end % targets)
            load[end % targets] -= 1


def test_a_session_stays_at_its_target_at_every_worker() -> None:
    here, there = make_chooser("sticky", 4), make_chooser("sticky", 4, worker=3)
    names = [f"session-{i}" for i in range(400)]
    places = [here.choose(name) for name in names]
    assert places == [there.choose(name) for name in names] == [here.choose(name) for name in names]
    assert set(Counter(places).values()) < set(range(70, 130))
    assert [here.choose(None) for _ in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_single_target_is_always_chosen(policy: str) -> None:
    assert chosen(policy, 5, targets=1) == [0] * 5


def test_unknown_policies_and_no_targets_are_refused_in_one_line() -> None:
    with pytest.raises(TargetsError, match="write one of round_robin, random, least_inflight, sticky"):
        make_chooser("roundrobin", 2)
    with pytest.raises(TargetsError, match="names no URL"):
        make_chooser("random", 0)


def test_reuse_is_written_as_a_word_or_a_number() -> None:
    assert [Reuse.parse(text).most for text in ("off", " 3 ", "ON")] == [1, 3, None]


@pytest.mark.parametrize("text", ["", "0", "-1", "no", "1.5", "²"])
def test_what_is_no_reuse_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(TargetsError, match="write on, off, or the number"):
        Reuse.parse(text)
