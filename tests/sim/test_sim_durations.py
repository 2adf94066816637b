import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_locust.sim.durations import parse_duration_ns


@pytest.mark.parametrize(
    ("text", "ns"),
    [("20ms", 20_000_000), ("1.5s", 1_500_000_000), ("50us", 50_000), ("7ns", 7), ("2m", 120_000_000_000),
     (" .5ms ", 500_000), ("0", 0), ("0s", 0)],
)  # fmt: skip
def test_a_duration_is_a_number_and_a_unit(text: str, ns: int) -> None:
    assert parse_duration_ns(text) == ns


@pytest.mark.parametrize(
    "text", ["", "20", "ms", "20 parsecs", "-1ms", "1e3ms", "nan", "infs", "1ms2s", "٣ms"]
)
def test_anything_else_is_refused_with_the_value_and_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration: write a number and ns") as caught:
        parse_duration_ns(text)
    assert repr(text) in str(caught.value)


def test_a_duration_that_no_clock_can_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        parse_duration_ns("9" * 400 + "s")


@given(st.text())
def test_no_text_raises_another_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_duration_ns(text) >= 0
