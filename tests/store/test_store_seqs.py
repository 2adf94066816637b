"""Numbers of batches as ranges, and the text of them."""

import pytest
from hypothesis import given, strategies as st

from llm_locust.store.frames import (
    Seqs,
    covers,
    format_ranges,
    joined,
    overlap,
    parse_ranges,
    ranges_text,
    seq_ranges,
)

NUMBERS = st.lists(st.integers(0, 40))


def test_numbers_are_written_as_ranges_with_both_ends() -> None:
    assert format_ranges([*range(18), 19, *range(21, 31)]) == "0-17 19 21-30"
    assert format_ranges([3, 1, 2, 3]) == "1-3"
    assert format_ranges([]) == ""


def test_a_text_of_ranges_is_read_back() -> None:
    assert parse_ranges("0-17 19 21-30") == [range(18), range(19, 20), range(21, 31)]
    assert parse_ranges("") == []


def test_a_text_in_any_order_is_put_in_order() -> None:
    assert parse_ranges("21-30 5 0-3 4 2-7") == [range(8), range(21, 31)]


@pytest.mark.parametrize("word", ["x", "3-", "-3", "1--2", "1,2", "3-2", "1.5", "٣", "1-2-3", "9" * 19])
def test_a_text_that_is_no_list_of_ranges_is_an_error_that_names_the_word(word: str) -> None:
    with pytest.raises(ValueError, match=f"^'{word}'"):
        parse_ranges(f"0-1 {word}")


@given(numbers=NUMBERS)
def test_the_text_says_exactly_the_numbers(numbers: list[int]) -> None:
    assert sorted(n for r in parse_ranges(format_ranges(numbers)) for n in r) == sorted(set(numbers))


@given(some=NUMBERS, others=NUMBERS)
def test_ranges_compare_as_the_sets_that_they_are(some: list[int], others: list[int]) -> None:
    a, b = seq_ranges(some), seq_ranges(others)
    assert covers(a, b) == (set(some) >= set(others))
    assert overlap(a, b) == bool(set(some) & set(others))


@given(numbers=NUMBERS)
def test_a_set_that_grows_is_the_set_of_what_was_put_in(numbers: list[int]) -> None:
    seqs, plain = Seqs(), set[int]()
    for number in numbers:
        seqs.add(number)
        plain.add(number)
        assert len(seqs) == len(plain)
        assert [n in seqs for n in range(42)] == [n in plain for n in range(42)]
    assert seqs.ranges() == joined(seqs.ranges()) == seq_ranges(numbers)
    assert str(seqs) == ranges_text(seq_ranges(numbers))


def test_a_set_of_consecutive_numbers_takes_one_range_whatever_its_length() -> None:
    assert Seqs(range(100_000)).ranges() == [range(100_000)]
    assert Seqs([*range(0, 1000, 2), *range(1, 1000, 2)]).ranges() == [range(1000)]


def test_a_number_below_0_is_no_batch() -> None:
    with pytest.raises(ValueError, match="-1 is not a batch number"):
        Seqs([-1])
