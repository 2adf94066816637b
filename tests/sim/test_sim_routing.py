"""The gateway's policies, without a gateway."""

import random
from collections import Counter

import pytest
from hypothesis import given, strategies as st

from llm_locust.sim.routing import (
    POLICIES,
    LeastInflightRouting,
    LeastRequest,
    PrefixAware,
    RandomRouting,
    RoundRobinRouting,
    Routed,
    StickyRouting,
    make_policy,
)

IDLE = {0: 0, 1: 0, 2: 0}

loads_of_some = st.dictionaries(st.integers(0, 9), st.integers(0, 50), min_size=1, max_size=8)
prompts = st.lists(st.lists(st.integers(0, 5), max_size=6).map(tuple), max_size=30)


def asked(session: str = "s", hashes: tuple[int, ...] = (), seed: int = 0) -> Routed:
    return Routed(session, hashes, random.Random(seed))


def chain(*blocks: int) -> tuple[int, ...]:
    """Chained hashes: equal as far as the blocks before are."""
    return tuple(hash(blocks[: i + 1]) for i in range(len(blocks)))


def test_round_robin_takes_turns_and_skips_who_is_out_of_rotation() -> None:
    policy = RoundRobinRouting()
    assert [policy.pick(IDLE, asked()) for _ in range(4)] == [0, 1, 2, 0]
    assert [policy.pick({0: 9, 2: 0}, asked()) for _ in range(3)] == [2, 0, 2]
    assert policy.pick(IDLE, asked()) == 0


def test_random_takes_all_alike() -> None:
    picked = Counter(RandomRouting().pick(IDLE, asked(seed=i)) for i in range(3_000))
    assert all(900 < picked[index] < 1_100 for index in IDLE)


def test_least_inflight_takes_the_idlest_and_ties_take_turns() -> None:
    policy = LeastInflightRouting()
    assert policy.pick({0: 3, 1: 1, 2: 2}, asked()) == 1
    assert [policy.pick(IDLE, asked()) for _ in range(4)] == [2, 0, 1, 2]


def test_least_request_takes_the_better_of_two_draws() -> None:
    picked = Counter(LeastRequest().pick({0: 5, 1: 7, 2: 9}, asked(seed=i)) for i in range(3_000))
    # 0 wins both pairs that it is in, 1 the third, 2 none.
    assert picked.keys() == {0, 1}
    assert 1_850 < picked[0] < 2_150


def test_least_request_with_one_replica_takes_that() -> None:
    assert LeastRequest().pick({4: 99}, asked()) == 4


def test_a_session_sticks_to_its_replica_whatever_the_load() -> None:
    policy = StickyRouting()
    home = policy.pick(IDLE, asked("alice"))
    assert {policy.pick({**IDLE, home: load}, asked("alice", seed=load)) for load in range(20)} == {home}


def test_sessions_spread_over_all_replicas() -> None:
    picked = Counter(StickyRouting().pick(IDLE, asked(f"session-{i}")) for i in range(3_000))
    assert all(900 < picked[index] < 1_100 for index in IDLE)


@given(loads_of_some, st.text(), st.data())
def test_a_replica_that_leaves_moves_none_but_its_own_sessions(
    loads: dict[int, int], session: str, data: st.DataObject
) -> None:
    before = StickyRouting().pick(loads, asked(session))
    gone = data.draw(st.sampled_from(sorted(loads)))
    left = {index: load for index, load in loads.items() if index != gone}
    if left and gone != before:
        assert StickyRouting().pick(left, asked(session)) == before


def test_prompts_that_begin_alike_go_to_the_same_replica() -> None:
    policy = PrefixAware()
    homes = {tenant: policy.pick(IDLE, asked(hashes=chain(tenant, 0))) for tenant in range(3)}
    assert sorted(homes.values()) == [0, 1, 2]
    for turn in range(1, 5):
        for tenant, home in homes.items():
            assert policy.pick(IDLE, asked(hashes=chain(tenant, 0, turn))) == home


def test_the_longest_common_prefix_wins() -> None:
    policy = PrefixAware()
    assert policy.pick({0: 0, 1: 9}, asked(hashes=chain(1, 2))) == 0
    assert policy.pick({0: 99, 1: 0}, asked(hashes=chain(1, 2, 3))) == 1  # 0 is too busy
    assert policy.pick({0: 0, 1: 5}, asked(hashes=chain(1, 2, 3, 4))) == 1


def test_a_matching_replica_that_is_too_far_ahead_gives_way_to_the_least_loaded() -> None:
    policy = PrefixAware(imbalance=4)
    home = policy.pick({0: 0}, asked(hashes=chain(1)))
    assert home == 0
    assert policy.pick({0: 4, 1: 0, 2: 3}, asked(hashes=chain(1))) == 0
    assert policy.pick({0: 5, 1: 0, 2: 3}, asked(hashes=chain(1))) == 1


def test_prompts_without_a_known_prefix_go_to_the_least_loaded() -> None:
    policy = PrefixAware()
    assert policy.pick({0: 2, 1: 1, 2: 3}, asked(hashes=chain(1))) == 1
    assert policy.pick({0: 2, 1: 1, 2: 0}, asked(hashes=chain(2))) == 2
    assert policy.pick({0: 0, 1: 1, 2: 1}, asked()) == 0


def test_what_was_routed_longest_ago_is_forgotten_first_and_a_prefix_from_its_end() -> None:
    policy = PrefixAware(memory_blocks=4)
    policy.pick({0: 0}, asked(hashes=chain(1, 1, 1)))
    policy.pick({0: 0}, asked(hashes=chain(2, 2)))  # one block too many: the end of the first
    assert policy.pick({0: 9, 1: 0}, asked(hashes=chain(1, 1))) == 0  # its first two are left, and renewed
    policy.pick({0: 0}, asked(hashes=chain(3, 3)))
    assert policy.pick({0: 9, 1: 0}, asked(hashes=chain(2, 2))) == 1


def test_a_replica_that_was_away_is_not_thought_to_have_its_cache_yet() -> None:
    policy = PrefixAware()
    assert policy.pick({0: 0, 1: 5}, asked(hashes=chain(1))) == 0
    policy.pick({1: 5}, asked(hashes=chain(2)))
    assert policy.pick({0: 6, 1: 5}, asked(hashes=chain(1))) == 1


@given(loads_of_some, prompts, st.integers(1, 8))
def test_a_prefix_memory_stays_within_its_bound(
    loads: dict[int, int], asks: list[tuple[int, ...]], bound: int
) -> None:
    policy = PrefixAware(memory_blocks=bound)
    for blocks in asks:
        policy.pick(loads, asked(hashes=chain(*blocks)))
    assert all(len(routed) <= bound for routed in policy._routed.values())


@given(loads_of_some, prompts, st.integers(0, 10))
def test_prefix_routing_never_picks_one_beyond_the_bound(
    loads: dict[int, int], asks: list[tuple[int, ...]], imbalance: int
) -> None:
    policy = PrefixAware(imbalance)
    for blocks in asks:
        picked = policy.pick(loads, asked(hashes=chain(*blocks)))
        assert loads[picked] <= min(loads.values()) + imbalance
        loads[picked] += 1


@pytest.mark.parametrize("name", POLICIES)
@given(st.lists(loads_of_some, min_size=1, max_size=10), prompts)
def test_every_policy_picks_from_the_rotation(
    name: str, rotations: list[dict[int, int]], asks: list[tuple[int, ...]]
) -> None:
    policy = make_policy(name)
    for loads, blocks in zip(rotations, asks, strict=False):
        assert policy.pick(loads, asked(hashes=chain(*blocks))) in loads
