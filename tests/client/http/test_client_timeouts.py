"""The three bounds of a request."""

import pytest

from llm_locust.client.http.errors import RequestTimeoutError
from llm_locust.client.http.timers import Timeouts

BOUNDS = Timeouts(first_s=60, gap_s=5, total_s=100)


@pytest.mark.parametrize(
    ("waited_s", "silent_s", "slack_s"),
    [(0, None, 1), (59.5, None, 0.5), (59, 0, 1), (70, 4.5, 0.5), (99.5, 0, 0.5), (0, 0, 1)],
)
def test_the_next_bound_or_look_is_told(waited_s: float, silent_s: float | None, slack_s: float) -> None:
    assert BOUNDS.slack_s(waited_s, silent_s, heard=True) == slack_s


@pytest.mark.parametrize(
    ("waited_s", "silent_s", "heard", "text"),
    [
        (60, None, False, "no byte within 60 s (--timeouts first=60s)"),
        (60, None, True, "no event within 60 s (--timeouts first=60s)"),
        (20, 5, True, "no event for 5 s (--timeouts gap=5s)"),
        (100, 0, True, "not complete within 100 s (--timeouts total=100s)"),
        (100, None, False, "not complete within 100 s (--timeouts total=100s)"),
    ],
)
def test_a_bound_that_was_passed_is_named(
    waited_s: float, silent_s: float | None, heard: bool, text: str
) -> None:
    with pytest.raises(RequestTimeoutError) as passed:
        BOUNDS.slack_s(waited_s, silent_s, heard=heard)
    assert str(passed.value) == text


def test_a_bound_on_every_silence_tightens_and_never_loosens() -> None:
    assert BOUNDS.within(10) == Timeouts(first_s=10, gap_s=5, total_s=100)
    assert BOUNDS.within(1) == Timeouts(first_s=1, gap_s=1, total_s=100)
    assert BOUNDS.within(600) == BOUNDS.within(None) == BOUNDS
