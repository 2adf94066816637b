"""Prompts as values, of asked and of exact lengths, and made ahead in other threads."""

import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from small_tokenizers import CHATML, KINDS, PLAIN_MARKS, write_folder

from llm_locust.wire.dialects import DIALECTS
from llm_locust.workload.prompts import (
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
from llm_locust.workload.synthetic import (
    STAGES,
    Ahead,
    Calibration,
    ExactText,
    Fit,
    PromptJob,
    WordCosts,
    prompt_count,
)
from llm_locust.workload.tokenizer import PromptTokenizer, load_tokenizer

# --- Prompts as values, and synthetic text of an asked length


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


# --- Prompts of exactly the asked number of tokens, whatever the tokenizer


TEMPLATES = {"chatml": CHATML, "plain marks": PLAIN_MARKS, "none": None}


@cache
def tokenizer_of(kind: str, template: str) -> PromptTokenizer:
    with TemporaryDirectory() as folder:
        return load_tokenizer(write_folder(Path(folder), kind, TEMPLATES[template]))


@cache
def maker_of(kind: str, template: str, endpoint: str) -> ExactText:
    tokenizer = tokenizer_of(kind, template)
    return ExactText(WordCosts.of(tokenizer, CORPUS), prompt_count(tokenizer, DIALECTS[endpoint]))


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
@settings(max_examples=max(5, settings().max_examples // 5))
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


# --- Lengths that correct themselves by the server's counts


def learned(asked: list[int], per_word: float, overhead: float, wrong: dict[int, int] | None = None) -> Fit:
    """The fit after a server counted ``per_word`` tokens a word; ``wrong`` are counts it got wrong."""
    calibration = Calibration(8)
    for i, n in enumerate(asked):
        words = calibration.fit.words(n)
        calibration.learn(words, (wrong or {}).get(i, round(per_word * words + overhead)))
    return calibration.fit


VARIED = np.random.default_rng(1).integers(100, 1000, STAGES[-1]).tolist()


def test_before_anything_is_known_a_word_is_a_token() -> None:
    assert Calibration(8).fit.words(512) == 504
    assert Calibration(8).fit.words(3) == 1


@given(st.floats(0.5, 8), st.integers(0, 400), st.integers(60, 4000))
def test_prompts_of_varied_lengths_come_out_within_a_word_and_a_percent(
    per_word: float, overhead: int, asked: int
) -> None:
    fit = learned(VARIED, per_word, overhead)
    counted = per_word * fit.words(asked) + overhead
    if asked > overhead + per_word:
        assert abs(counted - asked) <= per_word + 2 + 0.01 * asked


@given(
    st.sampled_from([(1.0, 0), (1.0, 3), (1.0, 40), (1.37, 11), (2.5, 8), (0.8, 8)]), st.integers(200, 5000)
)
def test_prompts_of_one_length_come_out_right_at_that_length(truth: tuple[float, int], asked: int) -> None:
    per_word, overhead = truth
    fit = learned([asked] * STAGES[-1], per_word, overhead)
    assert abs(per_word * fit.words(asked) + overhead - asked) <= per_word + 1


def test_at_one_length_longer_words_and_a_longer_template_together_leave_an_error_of_a_percent() -> None:
    fit = learned([512] * STAGES[-1], 1.1, 30)
    assert 1.1 * fit.words(512) + 30 == pytest.approx(512, rel=0.01)


def test_up_to_64_tokens_more_than_words_are_the_template_and_not_longer_words() -> None:
    assert learned([512] * STAGES[-1], 1.0, 30) == Fit(1.0, 30)
    assert learned([512] * STAGES[-1], 1.3, 8).tokens_per_word == pytest.approx(1.3, rel=0.01)


def test_a_quarter_of_odd_counts_does_not_bend_the_line() -> None:
    wrong = dict.fromkeys(range(0, STAGES[-1], 4), 9)
    fit = learned(VARIED, 1.5, 20, wrong)
    assert fit.tokens_per_word == pytest.approx(1.5, rel=0.02)
    assert fit.overhead == pytest.approx(20, abs=6)


def test_counts_that_are_of_something_else_change_nothing() -> None:
    assert learned(VARIED, 0.0, 7) == Fit(1.0, 8)
    assert learned([512] * STAGES[-1], 0.0, 7) == Fit(1.0, 8)


def test_it_learns_in_stages_and_then_holds_still() -> None:
    calibration = Calibration(8)
    fits: list[Fit] = []
    for i, n in enumerate(VARIED, 1):
        assert calibration.wants(n)
        calibration.learn(n, 2 * n)
        if i not in STAGES:
            assert calibration.fit == (fits[-1] if fits else Fit(1.0, 8))
        else:
            fits.append(calibration.fit)
    assert not any(map(calibration.wants, VARIED))
    assert calibration.fit.tokens_per_word == pytest.approx(2, rel=0.01)
    for n in VARIED:
        calibration.learn(n, 7 * n)
    assert calibration.fit == fits[-1]


@pytest.mark.parametrize("seed", range(5))
def test_words_of_several_tokens_that_differ_are_right_on_average_at_the_asked_lengths(seed: int) -> None:
    """A tokenizer that knows few words: six tokens each, give or take two, and a template of nine."""
    rng = np.random.default_rng(seed)
    calibration, errors = Calibration(8), []
    for asked in rng.integers(300, 900, 400).tolist():
        words = calibration.fit.words(asked)
        counted = round(float(rng.normal(6.0, 2.0, words).sum())) + 9
        errors.append(counted / asked - 1)
        calibration.learn(words, counted)
    assert abs(float(np.mean(errors[STAGES[-1] :]))) < 0.02


def test_one_that_is_not_enabled_never_learns() -> None:
    calibration = Calibration(8, enabled=False)
    for n in VARIED:
        calibration.learn(n, 2 * n)
    assert calibration.fit == Fit(1.0, 8)


@given(st.floats(0.8, 2), st.integers(0, 60), st.integers(32, 400), st.integers(3, 7))
def test_a_line_learned_at_one_length_is_mended_by_the_first_count_of_a_much_longer_one(
    per_word: float, overhead: int, short: int, doublings: int
) -> None:
    calibration, errors = Calibration(8), []
    for asked in [short] * STAGES[-1] + [short << doublings] * 3 + [short] * 3:
        words = calibration.fit.words(asked)
        counted = round(per_word * words + overhead)
        errors.append(abs(counted - max(asked, overhead + per_word)))
        if calibration.wants(asked):
            calibration.learn(words, counted)
    longer, shorter = errors[-5:-3], errors[-3:]
    assert max(longer) <= per_word + 2 + 0.005 * (short << doublings)
    assert max(shorter) <= per_word + 2 + 0.01 * short


def test_one_wrong_count_of_a_new_length_is_put_right_by_those_after_it() -> None:
    calibration = Calibration(8)
    for i, asked in enumerate([128] * STAGES[-1] + [8192] * 8):
        words = calibration.fit.words(asked)
        calibration.learn(words, 700 if i == STAGES[-1] else round(1.1 * words + 3))
    assert 1.1 * calibration.fit.words(8192) + 3 == pytest.approx(8192, rel=0.001)


def test_counts_of_a_new_length_that_are_of_something_else_leave_the_line_that_was_learned() -> None:
    calibration = Calibration(8)
    for n in VARIED:
        calibration.learn(n, 2 * n)
    learned = calibration.fit
    for _ in range(STAGES[-1]):
        calibration.learn(100_000, 7)
    assert calibration.fit == learned
    assert not calibration.wants(100_000 // 2)


def test_lengths_in_between_teach_nothing_more() -> None:
    calibration = Calibration(8)
    for words in [128] * STAGES[-1] + [8192] * STAGES[-1]:
        calibration.learn(words, words)
    assert not any(calibration.wants(n) for n in (70, 128, 1024, 8192, 16_000))
    assert calibration.wants(20_000)


# --- Prompts made ahead in other threads: the same prompts, sooner


def numbered(k: int) -> Prompt:
    return Prompt(text=str(k))


def orders(make: Callable[[int], Prompt] = numbered, n: int | None = None) -> Iterator[PromptJob]:
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

from llm_locust.workload.synthetic import Ahead
from llm_locust.workload.prompts import Prompt

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
