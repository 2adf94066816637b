"""Texts of names, operators and values, with the place of each word."""

import pytest
from hypothesis import given, strategies as st

from llm_locust.core.texts import Word, named_values, nearest, split_terms


def parts(text: str) -> list[tuple[str, str, str]]:
    return [(t.name.text, t.op.text, t.value.text) for t in split_terms(text)]


def test_terms_are_split_at_spaces_and_commas_but_not_around_an_operator() -> None:
    assert parts("a>=1 b < 2,c=3 , d") == [("a", ">=", "1"), ("b", "<", "2"), ("c", "=", "3"), ("d", "", "")]
    assert parts(" ,, ") == []


def test_a_word_that_is_missing_is_empty_at_its_place() -> None:
    (term,) = split_terms("a= ")
    assert term.value == Word("", 3)
    first, second = split_terms("a b=1")
    assert first.op == Word("", 2)
    assert second.name == Word("b", 3)


@given(st.text(max_size=40))
def test_every_word_stands_in_the_text_where_it_says(text: str) -> None:
    for term in split_terms(text):
        for word in (term.name, term.op, term.value):
            assert text[word.position - 1 :].startswith(word.text)
        assert term.text


def test_only_a_near_name_is_suggested() -> None:
    assert nearest("ttff", ["ttft", "e2el"]) == 'did you mean "ttft"? '
    assert nearest("zzz", ["ttft", "e2el"]) == ""


def test_an_error_points_at_its_word_or_at_where_it_is_missing() -> None:
    (term,) = split_terms("a= ")
    assert term.name.pointed("unknown") == 'at character 1, "a": unknown'
    assert term.value.pointed("a number belongs here") == "at character 3: a number belongs here"


def test_words_with_a_key_are_told_apart_and_none_is_given_twice() -> None:
    assert named_values([" a=1 ", "b", "c=", "d=x=y"]) == ({"a": "1", "c": "", "d": "x=y"}, ["b"])
    with pytest.raises(ValueError, match="a= is given twice, with '1' and '2'; leave one out"):
        named_values(["a=1", "a=2"])
