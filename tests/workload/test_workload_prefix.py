"""Prompts of which a part is shared: the share, the texts, and what a perfect cache finds."""

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from itertools import islice

import numpy as np
import pytest
from hypothesis import Phase, given, settings, strategies as st

from llm_locust.core.manifest import BLOCK_TOKENS, LEAST_OWN, PrefixShare
from llm_locust.wire.dialects.chat import CHAT
from llm_locust.workload.draws import parse_lengths
from llm_locust.workload.plan import Workload, WorkloadSpec
from llm_locust.workload.prompts import Corpus, Prompt
from llm_locust.workload.synthetic import (
    AboutWriter,
    Calibration,
    SharedPrefix,
    SharedPrefixError,
    SharedTexts,
    parse_shared_prefix,
)

# --- Prompts of one length of which a part is shared: the share, the texts, and what a perfect cache finds


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


# --- Shared beginnings: groups of prompts, and blocks of a trace


WRITER = AboutWriter(Corpus.of(3), Calibration(8))


def texts(salt: str = "run", seed: int = 3) -> SharedTexts:
    return SharedTexts(WRITER, seed, salt)


def test_a_text_says_what_it_wants_and_leaves_the_rest() -> None:
    assert parse_shared_prefix("groups=3") == SharedPrefix(groups=3)
    assert parse_shared_prefix("groups=10, tokens=500 choice=zipf run_unique=no") == SharedPrefix(
        groups=10, tokens=500, choice="zipf", run_unique=False
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty; allowed is groups=N"),
        ("ten", "'ten' is not one of groups=N tokens=N"),
        ("group=3", "'group=3' is not one of"),
        ("groups=0", "groups 0 is not in 1 .. 1,000,000"),
        ("groups=-1", "'-1' is not a whole number"),
        ("tokens=99999999999999999999999", "tokens 999999999999999999 is not in 1"),
        ("tokens=1.5", "'1.5' is not a whole number"),
        ("choice=random", "no choice 'random'; there are uniform, zipf"),
        ("run_unique=maybe", "run_unique must be yes or no, got 'maybe'"),
    ],
)
def test_a_wrong_text_is_answered_in_one_line_with_the_value(text: str, said: str) -> None:
    with pytest.raises(SharedPrefixError) as caught:
        parse_shared_prefix(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=20) | st.text("groupstken=0123 ", max_size=20))
def test_no_text_raises_anything_but_its_own_error(text: str) -> None:
    with suppress(SharedPrefixError):
        assert parse_shared_prefix(text).groups >= 1


def test_groups_are_drawn_equally_or_as_one_over_their_rank() -> None:
    rng = np.random.default_rng(1)
    uniform = Counter(SharedPrefix(groups=4).draw(rng) for _ in range(8000))
    zipf = Counter(SharedPrefix(groups=4, choice="zipf").draw(rng) for _ in range(8000))
    for group in range(4):
        assert abs(uniform[group] / 8000 - 0.25) < 0.025
        assert abs(zipf[group] / 8000 - 12 / 25 / (group + 1)) < 0.025


def test_a_groups_prefix_is_the_runs_and_of_the_asked_length() -> None:
    assert texts().prefix(4, 300) == texts().prefix(4, 300)
    assert len(texts().prefix(4, 300).split(" ")) == 300
    assert len({texts().prefix(g, 300)[:40] for g in range(50)}) == 50
    assert texts("run").prefix(4, 300)[:30] != texts("other").prefix(4, 300)[:30]
    assert texts("").prefix(4, 300) == texts("").prefix(4, 300) != texts("", seed=4).prefix(4, 300)


ids = st.lists(st.integers(0, 2**40), max_size=6)


@given(ids, ids, ids)
def test_equal_leading_ids_give_equal_leading_blocks_and_no_more(
    shared: list[int], one: list[int], other: list[int]
) -> None:
    blocks = [
        texts().prefix_of_blocks((*shared, *rest), 16).split(" ") if shared or rest else []
        for rest in (one, other)
    ]
    assert [len(b) for b in blocks] == [16 * len(shared + one), 16 * len(shared + other)]
    alike = 0
    for first, second in zip(shared + one, shared + other, strict=False):
        if first != second:
            break
        alike += 1
    assert blocks[0][: 16 * alike] == blocks[1][: 16 * alike]
    assert blocks[0][16 * alike :][:16] != blocks[1][16 * alike :][:16] or not (
        blocks[0][16 * alike :] or blocks[1][16 * alike :]
    )


def test_another_run_has_other_blocks_from_the_first_word_on() -> None:
    one, other = texts("a").prefix_of_blocks((1, 2), 512), texts("b").prefix_of_blocks((1, 2), 512)
    assert one.split(" ")[:6] != other.split(" ")[:6]
