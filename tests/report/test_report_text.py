"""Numbers and foreign text as reports print them."""

import math
import unicodedata

import pytest
from hypothesis import given, strategies as st

from llm_locust.figures.text import after, clean, count, moment, number, percent, seconds, short


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.000123, "0.00012"),
        (0.01234, "0.0123"),
        (0.9996, "1.00"),
        (1, "1.00"),
        (9.996, "10.0"),
        (99.96, "100"),
        (1234.6, "1,235"),
        (-3.456, "-3.46"),
        (math.inf, "∞"),
        (math.nan, "–"),
        (None, "–"),
    ],
)
def test_numbers_have_three_digits_or_their_whole_integer_part(value: float | None, text: str) -> None:
    assert number(value) == text


@given(st.floats(1e-3, 1e12))
def test_a_number_is_within_half_a_unit_of_its_third_digit(value: float) -> None:
    assert float(number(value).replace(",", "")) == pytest.approx(value, rel=0.00501)


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0, "0 %"),
        (1, "100 %"),
        (0.5, "50.0 %"),
        (0.0012, "0.12 %"),
        (1e-7, "<0.001 %"),
        (0.99996, "99.996 %"),
        (1 - 1e-9, ">99.999 %"),
        (None, "–"),
        (math.nan, "–"),
    ],
)
def test_a_share_is_written_as_per_cent(ratio: float | None, text: str) -> None:
    assert percent(ratio) == text


@given(st.integers(1, 10**7), st.integers(1, 10**7))
def test_only_all_is_100_per_cent_and_only_none_is_0(part: int, rest: int) -> None:
    text = percent(part / (part + rest))
    assert float(text.strip("<>% ")) not in (0.0, 100.0)


def test_counts_have_separators_and_spans_their_units() -> None:
    assert count(1234567) == "1,234,567"
    assert [seconds(s) for s in (58.2, 725, 93_780)] == ["58.2 s", "12 min 5 s", "26 h 3 min"]
    assert [count(None), seconds(math.nan)] == ["–", "–"]


def test_times_of_a_run_are_told_from_its_start() -> None:
    assert after("2026-11-21T09:30:05.100000Z", "2026-11-21T09:30:02Z") == "+3.10 s"
    assert after("2026-11-21T09:30:01Z", "2026-11-21T09:30:02Z") == "-1.00 s"
    assert moment("2026-11-21T10:30:02.5+01:00") == "2026-11-21 09:30:02 UTC"


def test_escape_sequences_go_as_a_whole() -> None:
    assert clean("\x1b[1;31mfull\x1b[0m \x1b]8;;http://x\x07link\x1b]8;;\x1b\\") == "full link"


def test_letters_of_every_script_stay() -> None:
    text = "żółć 模型 नमस्ते 👩\u200d💻"
    assert clean(text) == text


@given(st.text(st.characters(), max_size=60))
def test_clean_text_is_one_line_that_a_terminal_takes_as_it_is(text: str) -> None:
    cleaned = clean(text)
    assert cleaned == " ".join(cleaned.split())
    shown = cleaned.replace("\u200c", "").replace("\u200d", "")
    assert not [c for c in shown if unicodedata.category(c).startswith("C")]
    assert clean(cleaned) == cleaned


def test_what_is_cut_says_so() -> None:
    assert short("abcdef", 6) == "abcdef"
    assert short("abcdefg", 6) == "abcde…"
