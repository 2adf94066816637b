"""Types of arguments on a command line."""

import argparse

import pytest

from llm_locust.core.texts import argument, is_on, positive


def test_an_argument_is_what_is_read_of_it_or_refused_in_the_readers_words() -> None:
    assert argument(is_on)("on") is True
    assert argument(is_on)("off") is False
    assert positive("12") == 12
    with pytest.raises(argparse.ArgumentTypeError, match="'yes' is neither on nor off"):
        argument(is_on)("yes")


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", ""])
def test_a_number_below_1_is_not_positive(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a whole number of at least 1"):
        positive(text)
