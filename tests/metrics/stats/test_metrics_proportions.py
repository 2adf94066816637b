"""Shares and their intervals, against published figures."""

import pytest
from hypothesis import given, strategies as st

from llm_locust.metrics.stats.proportions import Proportion, difference, summarise_proportion

PROPORTIONS = st.integers(1, 400).flatmap(lambda n: st.integers(0, n).map(lambda hits: Proportion(hits, n)))


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [
        # Newcombe, Statistics in Medicine 17 (1998) 857-872, table I, method 3.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilsons_interval_is_as_published(hits: int, n: int, low: float, high: float) -> None:
    assert Proportion(hits, n).interval() == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    ("a", "b", "low", "high"),
    [
        # Newcombe, Statistics in Medicine 17 (1998) 873-890, table II, method 10.
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((10, 10), (0, 10), 0.6075, 1.0),
    ],
)
def test_newcombes_interval_is_as_published(
    a: tuple[int, int], b: tuple[int, int], low: float, high: float
) -> None:
    found = difference(Proportion(*a), Proportion(*b))
    assert found["ci95"] == pytest.approx([low, high], abs=5e-5)


def test_of_nothing_there_is_no_share() -> None:
    nothing = Proportion(0, 0)
    assert summarise_proportion(nothing, "correct") == {"n": 0, "correct": 0, "ratio": None, "ci95": None}
    assert difference(nothing, Proportion(1, 2)) == {"difference": None, "ci95": None}
    assert difference(Proportion(1, 2), nothing) == {"difference": None, "ci95": None}


@given(PROPORTIONS)
def test_the_share_is_in_its_interval(p: Proportion) -> None:
    ends = p.interval()
    assert ends is not None
    assert p.ratio is not None
    assert 0 <= ends[0] <= p.ratio <= ends[1] <= 1


@given(PROPORTIONS, PROPORTIONS)
def test_the_difference_turned_round_is_the_same_with_its_sign_changed(a: Proportion, b: Proportion) -> None:
    one, other = difference(a, b), difference(b, a)
    assert one["difference"] == pytest.approx(-other["difference"])
    assert one["ci95"] == pytest.approx([-other["ci95"][1], -other["ci95"][0]])
