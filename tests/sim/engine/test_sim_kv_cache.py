from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from llm_locust.sim.engine.scheduler import Held, KvCache

BLOCKS, SIZE = 8, 4


def filled(cache: KvCache, *keys: int) -> Held:
    """A sequence that has computed and published these blocks."""
    held = Held()
    assert cache.take(held, len(keys) * cache.block_tokens)
    cache.publish(held, keys)
    return held


def test_a_cache_without_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="a KV cache of 0 blocks holds nothing; give it 16 tokens"):
        KvCache(0, 16)


def test_room_is_taken_in_whole_blocks_and_only_where_there_is_some() -> None:
    cache, held = KvCache(BLOCKS, SIZE), Held()
    assert cache.take(held, 5)
    assert (held.blocks, held.tokens, cache.used) == (2, 8, 2)
    assert cache.take(held, 8)
    assert cache.used == 2
    assert not cache.take(held, 33)
    assert (held.blocks, cache.used) == (2, 2)
    cache.release(held)
    assert (held.blocks, held.tokens, cache.used) == (0, 0, 0)


def test_a_shared_block_counts_once_and_stays_until_its_last_holder_goes() -> None:
    cache = KvCache(BLOCKS, SIZE)
    first, second = filled(cache, 1, 2), Held()
    assert cache.take(second, 3 * SIZE, cache.find([1, 2, 3]))
    assert (second.blocks, cache.used) == (3, 3)
    cache.release(first)
    assert cache.used == 3
    cache.release(second)
    assert cache.used == 0


def test_only_an_unbroken_beginning_is_found() -> None:
    cache = KvCache(BLOCKS, SIZE)
    filled(cache, 1, 2, 3)
    assert [len(cache.find(keys)) for keys in ([1, 2, 3, 4], [1, 9, 3], [9, 1], [])] == [3, 1, 0, 0]


def test_the_longest_unused_goes_first_and_of_one_prompt_its_end() -> None:
    cache = KvCache(BLOCKS, SIZE)
    for keys in ((1, 2, 3), (4, 5, 6)):
        cache.release(filled(cache, *keys))
    again = Held()
    cache.take(again, 3 * SIZE, cache.find([1, 2, 3]))
    cache.release(again)  # now 4 to 6 are the longest unused
    assert cache.take(Held(), 4 * SIZE)  # 2 blocks were never published, 2 go
    assert (len(cache.find([4, 5, 6])), len(cache.find([1, 2, 3]))) == (1, 3)


def test_of_two_that_compute_the_same_at_once_one_copy_is_found() -> None:
    cache = KvCache(BLOCKS, SIZE)
    first, second = filled(cache, 1), filled(cache, 1)
    assert cache.used == 2
    cache.release(first)
    assert cache.used == 1
    assert len(cache.find([1])) == 1
    cache.release(second)
    assert cache.used == 0


def test_a_block_computed_anew_takes_the_place_of_one_that_nobody_holds() -> None:
    cache = KvCache(BLOCKS, SIZE)
    cache.release(filled(cache, 1))
    held = filled(cache, 1)
    assert cache.take(Held(), 7 * SIZE)
    assert len(cache.find([1])) == 1
    cache.release(held)
    assert cache.used == 7


def test_what_is_forgotten_is_not_found_but_held_until_it_is_released() -> None:
    cache = KvCache(BLOCKS, SIZE)
    held = filled(cache, 1, 2)
    cache.release(filled(cache, 3))
    cache.forget()
    assert cache.find([1, 2]) == cache.find([3]) == []
    assert cache.used == 2
    cache.release(held)
    assert (cache.used, cache.find([1, 2])) == (0, [])
    assert cache.take(Held(), BLOCKS * SIZE)


@dataclass(eq=False)
class Prompt:
    keys: list[int]
    held: Held = field(default_factory=Held)
    done: int = 0  # blocks that are found or published


class AnyUse(RuleBasedStateMachine):
    """Sequences come, grow, publish and go in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = KvCache(BLOCKS, SIZE)
        self.prompts: list[Prompt] = []

    @rule(family=st.integers(0, 1), blocks=st.integers(1, 6))
    def begin(self, family: int, blocks: int) -> None:
        prompt = Prompt([10 * family + k for k in range(blocks)])
        found = self.cache.find(prompt.keys[:-1])
        free = self.cache.free
        wanted = len(found) + 1
        new = wanted - sum(1 for block in found if block.refs)
        assert self.cache.take(prompt.held, wanted * SIZE, found) == (new <= free)
        if prompt.held.blocks:
            prompt.done = len(found)
            self.prompts.append(prompt)

    @precondition(lambda self: self.prompts)
    @rule(which=st.integers(0, 99))
    def compute(self, which: int) -> None:
        prompt = self.prompts[which % len(self.prompts)]
        if prompt.done == len(prompt.keys):
            return
        if self.cache.take(prompt.held, (prompt.done + 1) * SIZE):
            self.cache.publish(prompt.held, prompt.keys[prompt.done : prompt.done + 1])
            prompt.done += 1

    @precondition(lambda self: self.prompts)
    @rule(which=st.integers(0, 99))
    def end(self, which: int) -> None:
        self.cache.release(self.prompts.pop(which % len(self.prompts)).held)

    @rule()
    def forget(self) -> None:
        self.cache.forget()
        assert self.cache.find(range(10)) == []

    @invariant()
    def every_block_is_counted_once(self) -> None:
        published = {block for prompt in self.prompts for block in prompt.held.published}
        private = sum(prompt.held.blocks - len(prompt.held.published) for prompt in self.prompts)
        assert self.cache.used == len(published) + private <= BLOCKS
        for block in published:
            assert block.refs == sum(block in prompt.held.published for prompt in self.prompts)

    @invariant()
    def what_is_found_has_its_place(self) -> None:
        unheld = [block for family in (0, 10) for k in range(6)
                  for block in self.cache.find([family + k]) if not block.refs]  # fmt: skip
        assert len(unheld) <= self.cache.free

    def teardown(self) -> None:
        for prompt in self.prompts:
            self.cache.release(prompt.held)
        assert self.cache.used == 0


AnyUse.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
test_any_use_keeps_the_books = AnyUse.TestCase


@given(st.integers(1, 64), st.integers(1, 40))
def test_room_for_tokens_is_rounded_up(tokens: int, size: int) -> None:
    cache, held = KvCache(64, size), Held()
    assert cache.take(held, tokens)
    assert held.tokens - size < tokens <= held.tokens
