"""Texts in pieces: however they are cut and folded, the same text."""

from hypothesis import given, strategies as st

from llm_locust.wire.draft import Pieces
from llm_locust.wire.payload import well_formed

#: Halves of surrogate pairs, the characters beside them, and characters of each width.
CHARACTERS = st.sampled_from("a\xe9\ud7ff\ud800\ud83d\udbff\udc00\ude00\udfff\ue000\u4e2d\U0001f600")
TEXTS = st.lists(st.text(CHARACTERS, max_size=5), max_size=20)


def pieces_of(texts: list[str], folds: list[bool]) -> Pieces:
    pieces = Pieces()
    for text, fold in zip(texts, folds, strict=False):
        pieces.append(text)
        if fold:
            pieces.fold()
    pieces.finish()
    return pieces


def as_python_does(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@given(st.text(CHARACTERS))
def test_pairs_are_joined_and_lone_surrogates_replaced_as_python_does(text: str) -> None:
    assert well_formed(text) == as_python_does(text)


@given(TEXTS, st.lists(st.booleans(), min_size=20))
def test_a_text_is_the_same_however_it_was_folded(texts: list[str], folds: list[bool]) -> None:
    assert "".join(pieces_of(texts, folds)) == as_python_does("".join(texts))


@given(TEXTS, st.lists(st.booleans(), min_size=20), st.integers(0, 30))
def test_a_text_is_cut_at_the_same_character_however_it_was_folded(
    texts: list[str], folds: list[bool], most: int
) -> None:
    whole, pieces = as_python_does("".join(texts)), pieces_of(texts, folds)
    assert pieces.cut(most) == (len(whole) > most)
    assert "".join(pieces) == whole[:most]


def test_folding_leaves_few_pieces() -> None:
    pieces = Pieces()
    for _ in range(10):
        pieces += ["a"] * 1000
        pieces.fold()
    assert len(pieces) == 10
