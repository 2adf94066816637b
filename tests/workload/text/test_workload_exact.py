"""Prompts of exactly the asked number of tokens, whatever the tokenizer."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from small_tokenizers import CHATML, KINDS, PLAIN_MARKS, write_folder

from llm_locust.wire.dialects.table import DIALECTS
from llm_locust.workload.text.prompts import Corpus, PromptError, head_words
from llm_locust.workload.text.synthetic import ExactText, WordCosts, prompt_count
from llm_locust.workload.text.tokenizer import PromptTokenizer, load_tokenizer

CORPUS = Corpus.of(7)
TEMPLATES = {"chatml": CHATML, "plain marks": PLAIN_MARKS, "none": None}


@cache
def tokenizer_of(kind: str, template: str) -> PromptTokenizer:
    with TemporaryDirectory() as folder:
        return load_tokenizer(write_folder(Path(folder), kind, TEMPLATES[template]))


@cache
def maker_of(kind: str, template: str, endpoint: str) -> ExactText:
    tokenizer = tokenizer_of(kind, template)
    return ExactText(WordCosts.of(tokenizer, CORPUS), prompt_count(tokenizer, DIALECTS[endpoint]))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def recount(tokenizer: PromptTokenizer, endpoint: str, text: str) -> int:
    """The tokens by the library's plain encoder, of the template filled in by hand."""
    encode = tokenizer.tokenizer.encode
    if endpoint == "completions":
        return len(encode(text, add_special_tokens=True).ids)
    if tokenizer.template is None:
        return len(encode(text, add_special_tokens=False).ids) + 8
    whole = tokenizer.template.render([{"role": "user", "content": text}])
    assert text in whole
    return len(encode(whole, add_special_tokens=False).ids)


CASES = [
    (kind, template, endpoint)
    for kind in KINDS
    for template, endpoint in [
        ("chatml", "chat"),
        ("plain marks", "chat"),
        ("none", "chat"),
        ("none", "completions"),
    ]
]


@pytest.mark.parametrize(("kind", "template", "endpoint"), CASES)
@settings(max_examples=40, deadline=None)
@given(more=st.integers(0, 700), seed=st.integers(0, 2**32), headed=st.booleans())
def test_every_tokenizer_counts_exactly_what_was_asked(
    kind: str, template: str, endpoint: str, more: int, seed: int, headed: bool
) -> None:
    maker = maker_of(kind, template, endpoint)
    asked = maker.least + more
    text = maker.of(asked, rng(seed), head_words("run", seed) if headed else "")
    assert recount(tokenizer_of(kind, template), endpoint, text) == asked


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(asked=st.integers(1, 120), lead_words=st.integers(1, 200), seed=st.integers(0, 2**32))
def test_a_long_lead_is_cut_to_the_asked_length_and_the_text_starts_with_what_is_left(
    kind: str, asked: int, lead_words: int, seed: int
) -> None:
    maker = maker_of(kind, "none", "completions")
    lead = CORPUS.passage(rng(seed), lead_words)
    text, counted = maker.nearest(asked, rng(seed), lead)
    assert counted == recount(tokenizer_of(kind, "none"), "completions", text) == max(asked, maker.least)
    words, leading = text.split(" "), lead.split(" ")
    # The last words may carry what no word is short enough for.
    kept = max(0, min(len(words) - 6, len(leading)))
    assert words[:kept] == leading[:kept]


@pytest.mark.parametrize("template", list(TEMPLATES))
def test_less_than_a_template_takes_is_an_error_with_both_figures_and_the_nearest_is_the_shortest(
    template: str,
) -> None:
    maker = maker_of("byte_level", template, "chat")
    assert maker.least > 3
    with pytest.raises(PromptError, match=f"no prompt has 3 tokens: the shortest has {maker.least}, with"):
        maker.of(3, rng())
    text, counted = maker.nearest(3, rng())
    assert counted == maker.least == recount(tokenizer_of("byte_level", template), "chat", text)


def test_equal_generators_give_equal_texts_and_others_do_not() -> None:
    maker = maker_of("byte_level", "chatml", "chat")
    assert maker.of(300, rng(1), "head") == maker.of(300, rng(1), "head")
    assert maker.of(300, rng(1)) != maker.of(300, rng(2))


def test_a_text_longer_than_a_slice_of_the_corpus_is_exact_and_does_not_repeat_itself() -> None:
    maker = maker_of("byte_level", "chatml", "chat")
    text = maker.of(30_000, rng())
    assert recount(tokenizer_of("byte_level", "chatml"), "chat", text) == 30_000
    words = text.split(" ")
    phrases = {tuple(words[i : i + 8]) for i in range(len(words) - 8)}
    assert len(phrases) > 0.7 * len(words)


def test_a_tokenizer_with_words_of_one_token_needs_two_counts_at_most() -> None:
    tokenizer = tokenizer_of("byte_level", "chatml")
    count, counted = prompt_count(tokenizer, DIALECTS["chat"]), 0

    def counting(text: str) -> int:
        nonlocal counted
        counted += 1
        return count(text)

    maker = ExactText(WordCosts.of(tokenizer, CORPUS), counting)
    counted = 0
    for seed in range(50):
        maker.of(200 + seed, rng(seed), head_words(seed))
    assert counted <= 100


def test_a_count_that_never_comes_out_is_an_error_with_the_nearest() -> None:
    costs = WordCosts.of(tokenizer_of("byte_level", "none"), CORPUS)
    even = ExactText(costs, lambda text: 2 * len(text))
    with pytest.raises(PromptError, match="no prompt of 101 tokens was found: the nearest has 100"):
        even.of(101, rng())


def test_a_head_is_the_beginning_of_a_text_and_counts() -> None:
    tokenizer = tokenizer_of("metaspace", "chatml")
    maker = ExactText(WordCosts.of(tokenizer, CORPUS), prompt_count(tokenizer, DIALECTS["chat"]))
    text = maker.of(77, rng(), "some head")
    assert text.startswith("some head ")
    assert recount(tokenizer, "chat", text) == 77
