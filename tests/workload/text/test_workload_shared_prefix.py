"""Shared beginnings: groups of prompts, and blocks of a trace."""

from collections import Counter
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, strategies as st

from llm_locust.workload.text.prompts import Corpus
from llm_locust.workload.text.synthetic import (
    AboutWriter,
    Calibration,
    SharedPrefix,
    SharedPrefixError,
    SharedTexts,
    parse_shared_prefix,
)

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
