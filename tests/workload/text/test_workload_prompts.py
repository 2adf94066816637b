"""Prompts as values, and synthetic text of an asked length."""

import zlib

import numpy as np
import pytest
from hypothesis import given, strategies as st

from llm_locust.workload.text.prompts import (
    HEAD_WORDS,
    WORDS,
    Corpus,
    Prompt,
    PromptError,
    as_text,
    head_tag,
    head_words,
    synthetic_text,
    with_head,
)

CORPUS = Corpus.of(7)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_the_vocabulary_is_a_power_of_two_of_different_lower_case_words() -> None:
    assert len(WORDS) == len(set(WORDS)) == 1024
    assert all(word.isascii() and word.isalpha() and word.islower() for word in WORDS)


@given(st.integers(1, 20_000), st.integers(0, 2**32), st.booleans())
def test_a_synthetic_text_has_as_many_words_as_tokens_were_asked(n: int, seed: int, headed: bool) -> None:
    text = synthetic_text(CORPUS, rng(seed), n, head_words("run", 1) if headed else "")
    words = text.split(" ")
    assert len(words) == n
    assert set(words) <= set(WORDS)


def test_a_synthetic_text_starts_with_its_head_and_a_short_one_is_the_head_cut() -> None:
    head = head_words("run", 1)
    assert synthetic_text(CORPUS, rng(), 100, head).startswith(head + " ")
    assert synthetic_text(CORPUS, rng(), HEAD_WORDS, head) == head
    assert synthetic_text(CORPUS, rng(), 2, head) == " ".join(head.split()[:2])


@pytest.mark.parametrize("tokens", [504, 20_000])
def test_synthetic_text_does_not_compress_to_nothing(tokens: int) -> None:
    data = synthetic_text(CORPUS, rng(), tokens).encode()
    assert len(zlib.compress(data, 9)) > 0.19 * len(data)


def test_a_long_text_does_not_repeat_itself() -> None:
    words = synthetic_text(CORPUS, rng(), 16_000).split(" ")
    phrases = {tuple(words[i : i + 8]) for i in range(len(words) - 8)}
    assert len(phrases) > 0.7 * len(words)


def test_equal_seeds_make_equal_corpora_and_others_do_not() -> None:
    assert Corpus.of(7).text == CORPUS.text
    assert Corpus.of(8).text[:1000] != CORPUS.text[:1000]


def test_heads_differ_and_hardly_two_share_their_first_words() -> None:
    heads = {head_words("run", worker, k) for worker in range(10) for k in range(2000)}
    tags = {head_tag("run", worker, k) for worker in range(10) for k in range(2000)}
    assert len(heads) == len(tags) == 20_000
    assert all(len(head.split(" ")) == HEAD_WORDS for head in heads)
    assert len({tuple(head.split(" ")[:2]) for head in heads}) > 19_000


def test_a_head_depends_on_every_part_of_its_key() -> None:
    assert len({head_words("a", 1, 23), head_words("a", 12, 3), head_words("b", 1, 23)}) == 3


def test_a_prompt_has_either_a_text_or_messages() -> None:
    with pytest.raises(PromptError, match="either"):
        Prompt()
    with pytest.raises(PromptError, match="either"):
        Prompt(text="a", messages=({"role": "user", "content": "b"},))


SYSTEM = {"role": "system", "content": "Be brief."}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def test_a_head_goes_before_a_text() -> None:
    assert with_head(Prompt(text="Why?", id="1"), "[a]") == Prompt(text="[a] Why?", id="1")


def test_a_head_goes_before_the_first_message_and_leaves_the_others_and_the_original_alone() -> None:
    question = {"role": "user", "content": "Why?"}
    prompt = Prompt(messages=(SYSTEM, question))
    headed = with_head(prompt, "[a]")
    assert headed.messages == ({"role": "system", "content": "[a] Be brief."}, question)
    assert prompt.messages == (SYSTEM, question)


def test_a_head_becomes_the_first_part_of_a_message_of_parts() -> None:
    prompt = Prompt(messages=({"role": "user", "content": [PICTURE]},))
    headed = with_head(prompt, "[a]")
    assert headed.messages == ({"role": "user", "content": [{"type": "text", "text": "[a]"}, PICTURE]},)


def test_a_head_makes_the_content_of_a_message_without_one() -> None:
    call: dict[str, object] = {"role": "assistant", "content": None, "tool_calls": []}
    headed = with_head(Prompt(messages=(call,)), "[a]")
    assert headed.messages == ({**call, "content": [{"type": "text", "text": "[a]"}]},)


def test_messages_as_text_are_their_contents_in_order() -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]}
    assert as_text(Prompt(messages=(SYSTEM, parts))) == "Be brief.\n\nOne.\n\nTwo."
    assert as_text(Prompt(text="plain")) == "plain"


def test_a_picture_is_not_text() -> None:
    with pytest.raises(PromptError, match="'image_url' is not text"):
        as_text(Prompt(messages=({"role": "user", "content": [PICTURE]},)))
