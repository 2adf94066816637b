"""Prompts of one length of which a part is shared: the share, the texts, and what a perfect cache finds."""

from collections.abc import Iterable
from functools import lru_cache
from itertools import islice

import pytest
from hypothesis import Phase, given, settings, strategies as st

from llm_locust.core.manifest import BLOCK_TOKENS, LEAST_OWN, PrefixShare
from llm_locust.wire.dialects.chat import CHAT
from llm_locust.workload.lengths import parse_lengths
from llm_locust.workload.plan import Workload
from llm_locust.workload.spec import WorkloadSpec
from llm_locust.workload.text.prompts import Prompt

SPEC = WorkloadSpec(input_tokens=parse_lengths("200"), output_tokens=parse_lengths("8"))


#: What a chat template is taken to add to the words of a prompt.
AROUND = CHAT.template_tokens


@lru_cache
def workload(worker: int = 0, seed: int = 7, salt: str = "run") -> Workload:
    return Workload(SPEC, seed, worker, 2, salt)


def words(prompt: Prompt) -> list[str]:
    assert prompt.text is not None
    return prompt.text.split()


class PerfectCache:
    """Every prefix of whole blocks that it has seen, as tuples of words; nothing is ever evicted."""

    def __init__(self) -> None:
        self.known: set[tuple[str, ...]] = set()

    def found(self, tokens: list[str]) -> int:
        """Tokens of the longest known prefix that leaves one to compute; the prompt is known from now on."""
        ends = range(BLOCK_TOKENS, len(tokens), BLOCK_TOKENS)
        hits = max((end for end in ends if tuple(tokens[:end]) in self.known), default=0)
        self.known |= {tuple(tokens[:end]) for end in (*ends, len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS)}
        return hits


def sent(prefix: PrefixShare, stage: int, each: int = 5) -> Iterable[Prompt]:
    for worker in (0, 1):
        found = workload(worker).of_prefix(prefix, stage)
        for user in range(3):
            yield from islice(found.prompts(user), each)


@settings(max_examples=15, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    asked=st.sampled_from([0.0, 0.1, 0.33, 0.5, 0.75, 0.9, 0.99]),
    length=st.integers(min_value=200, max_value=500),
    prefixes=st.integers(min_value=1, max_value=6),
    stage=st.integers(min_value=0, max_value=3),
)
def test_a_primed_perfect_cache_finds_the_whole_blocks_of_every_prefix_and_no_more(
    asked: float, length: int, prefixes: int, stage: int
) -> None:
    prefix = PrefixShare.of(asked, length, prefixes)
    caches = [PerfectCache(), PerfectCache()]
    for replica, cache in enumerate(caches):
        primed = [workload().of_prefix(prefix, stage).primer(f"r{replica}", n) for n in range(prefixes)]
        assert [len(words(prompt)) + AROUND for prompt in primed] == [length] * prefixes
        assert sum(cache.found(words(prompt)) for prompt in primed) == 0
    prompts = [words(prompt) for prompt in sent(prefix, stage)]
    assert {len(prompt) + AROUND for prompt in prompts} == {length}
    assert len({tuple(prompt) for prompt in prompts}) == len(prompts)
    hits = [caches[at % 2].found(prompt) for at, prompt in enumerate(prompts)]
    assert hits == [prefix.tokens] * len(prompts)


@given(st.floats(min_value=0, max_value=0.999), st.integers(min_value=1, max_value=100_000))
def test_a_share_is_the_nearest_number_of_whole_blocks_that_leaves_each_prompt_an_end(
    asked: float, length: int
) -> None:
    if asked and (asked * length <= BLOCK_TOKENS / 2 or length < LEAST_OWN + BLOCK_TOKENS):
        with pytest.raises(ValueError, match="is not one block of 16"):
            PrefixShare.of(asked, length, 1)
        return
    found = PrefixShare.of(asked, length, 1).tokens
    assert found % BLOCK_TOKENS == 0
    assert not found or found <= length - LEAST_OWN
    assert abs(found - asked * length) <= BLOCK_TOKENS / 2 or found + BLOCK_TOKENS > length - LEAST_OWN


def test_no_stage_and_no_run_has_the_texts_of_another_one() -> None:
    prefix = PrefixShare.of(0.5, 200, 2)

    def texts(stage: int, seed: int = 7, salt: str = "run") -> set[tuple[str, ...]]:
        found = workload(seed=seed, salt=salt).of_prefix(prefix, stage)
        return {tuple(words(found.primer("r", n))[:BLOCK_TOKENS]) for n in (0, 1)}

    all_texts = [texts(0), texts(1), texts(0, seed=8), texts(0, salt="other")]
    assert len(set().union(*all_texts)) == 8
    assert texts(0) == texts(0)


def test_a_probe_has_nothing_in_common_with_what_primes_or_with_another_place() -> None:
    found = workload().of_prefix(PrefixShare.of(0.5, 200, 1), 0)
    prompts = [found.primer("a", None), found.primer("b", None), found.primer("a", 0)]
    assert len({tuple(words(prompt)[:BLOCK_TOKENS]) for prompt in prompts}) == 3
    assert [prompt.asked_output_tokens for prompt in prompts] == [1, 1, 1]


def test_lengths_are_not_learned_so_that_both_parts_of_a_prompt_are_counted_alike() -> None:
    found = workload().of_prefix(PrefixShare.of(0.5, 200, 1), 0)
    first = next(iter(found.prompts(0)))
    for _ in range(200):
        found.learn(first, 400)
    assert len(words(next(iter(found.prompts(1))))) == 200 - AROUND


@pytest.mark.parametrize(("asked", "text"), [(0.0, "0%"), (0.5, "50%"), (0.125, "12.5%")])
def test_a_share_is_written_as_in_the_sweep(asked: float, text: str) -> None:
    assert str(PrefixShare.of(asked, 512, 1)) == text
