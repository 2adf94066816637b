"""Numbers for people."""

import math
import re

import pytest
from hypothesis import given, strategies as st

from llm_locust.core.texts import figure, probability, quantity


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (7.41011, "7.41"),
        (9.996, "10.0"),
        (99.96, "100"),
        (1363.2, "1,363"),
        (-0.009, "-0.009"),
        (0.000042, "0.000042"),
        (math.inf, "∞"),
        (-math.inf, "-∞"),
        (math.nan, "–"),
    ],
)
def test_a_figure_has_three_digits_that_mean_something(value: float, text: str) -> None:
    assert figure(value) == text


@given(st.floats(min_value=-1e12, max_value=1e12).filter(lambda x: x == 0 or abs(x) > 1e-12))
def test_no_figure_has_an_exponent_and_it_is_within_a_hundredth_of_the_value(value: float) -> None:
    text = figure(value)
    assert re.fullmatch(r"-?[\d,]+(\.\d+)?", text)
    assert float(text.replace(",", "")) == pytest.approx(value, rel=0.06 if abs(value) < 1e-3 else 0.006)
    assert float(quantity(value).replace(",", "")) == float(text.replace(",", ""))


@pytest.mark.parametrize(
    ("value", "limit", "text"),
    [(250.04, 250.0, "250.04"), (249.9996, 250.0, "249.9996"), (0.12, 0.1204, "0.1200"), (251, 250, "251")],
)
def test_a_value_has_as_many_digits_more_as_tell_it_from_its_limit(
    value: float, limit: float, text: str
) -> None:
    assert figure(value, limit) == text


@given(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6))
def test_two_values_that_differ_are_told_apart(value: float, other: float) -> None:
    if value == pytest.approx(other, rel=1e-6):
        return
    assert figure(value, other) != figure(other, value)


@pytest.mark.parametrize(
    ("value", "text"), [(20.0, "20"), (1.5, "1.5"), (1200.0, "1,200"), (100.0, "100"), (0.25, "0.25")]
)
def test_a_quantity_has_no_zeros_at_its_end(value: float, text: str) -> None:
    assert quantity(value) == text


@pytest.mark.parametrize(("p", "text"), [(1e-9, "p < 0.001"), (0.0123, "p 0.012"), (0.5, "p 0.5")])
def test_a_small_probability_is_only_called_so(p: float, text: str) -> None:
    assert probability(p) == text
