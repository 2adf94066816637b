"""Lengths that correct themselves by the server's counts."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from llm_locust.workload.text.synthetic import STAGES, Calibration, Fit


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
