"""Asked prompt lengths against counted ones."""

from typing import Any

import numpy as np
import pytest
from metrics_cases import plain

from llm_locust.figures.tokens import length_error as length_error_of


def length_error(*given: Any, **more: Any) -> Any:
    found: Any = plain(length_error_of(*given, **more))
    return found


NAN = np.nan


def test_the_error_is_relative_to_what_was_asked_and_keeps_its_sign_in_the_mean() -> None:
    error = length_error(np.array([100.0, 200.0, 400.0]), np.array([110.0, 200.0, 398.0]))
    assert error["n"] == 3
    assert error["mean_relative"] == pytest.approx((0.1 + 0 - 0.005) / 3)
    assert error["p50"] == pytest.approx(0.005)
    assert error["p99"] == pytest.approx(0.1 - 0.02 * 0.095)
    assert error["share_within_1_percent"] == pytest.approx(2 / 3)


def test_requests_of_which_either_is_unknown_do_not_count() -> None:
    error = length_error(np.array([100.0, NAN, 50.0]), np.array([NAN, 10.0, 50.0]))
    assert (error["n"], error["mean_relative"], error["share_within_1_percent"]) == (1, 0.0, 1.0)


def test_an_error_of_one_percent_is_within_it() -> None:
    assert length_error(np.array([100.0, 100.0]), np.array([101.0, 102.0]))["share_within_1_percent"] == 0.5


def test_without_a_known_pair_every_figure_is_undefined() -> None:
    undefined = {"n": 0, "mean_relative": None, "p50": None, "p99": None, "share_within_1_percent": None}
    assert length_error(np.array([]), np.array([])) == undefined
    assert length_error(np.array([NAN]), np.array([3.0])) == undefined
