"""Whether a queue grows without end, by counts at the edges of six parts of a minute."""

from itertools import accumulate

import pytest
from hypothesis import given, strategies as st

from llm_locust.metrics.stats.trend import PARTS, QueueCount, grows

SPAN_S = 60.0


def counted(arrived: list[int], ended: list[int], backlog: int = 0) -> list[QueueCount]:
    """So many came and ended in each part, and so many were under way before the first."""
    edges = zip(accumulate(arrived, initial=backlog), accumulate(ended, initial=0), strict=True)
    return [QueueCount(*edge) for edge in edges]


@pytest.mark.parametrize(
    ("what", "arrived", "ended", "backlog", "found"),
    [
        ("a third more comes than ends", [200] * 6, [150] * 6, 0, True),
        ("all that comes ends", [200] * 6, [200] * 6, 0, False),
        ("5 % of what comes is no growth", [2000] * 6, [1900] * 6, 0, False),
        ("6 % are not yet", [2000] * 6, [1880] * 6, 0, False),
        ("7 % is", [2000] * 6, [1860] * 6, 0, True),
        ("7 % of few is noise: 42 are 1.7 deviations of 600", [100] * 6, [93] * 6, 0, False),
        ("96 are 2.8 of 1,200, whatever was queued before", [200] * 6, [184] * 6, 10, False),
        ("one part has 0.4 of the mean growth", [240, *[312] * 5], [200] * 6, 0, True),
        ("one has less", [239, 313, *[312] * 4], [200] * 6, 0, False),
        ("a burst that is over", [200, 200, 900, 200, 200, 200], [200] * 6, 0, False),
        ("ever more end: it fills up", [200] * 6, [50, 80, 110, 140, 165, 185], 0, False),
        ("more end, but too few more", [200] * 6, [120, 121, 122, 123, 124, 125], 0, True),
        ("nothing ended in the first part", [200] * 6, [0, 150, 150, 150, 150, 150], 0, False),
        ("answers longer than the span: a fifth of 900 ended", [200] * 6, [30] * 6, 900, False),
        ("a server that has turned its queue over", [200] * 6, [150] * 6, 180, True),
        ("one that has not yet: 898 are less than 5 times 180", [200] * 6, [*[150] * 5, 148], 180, False),
    ],
)
def test_a_queue_grows_where_more_comes_than_ends_in_every_part(
    what: str, arrived: list[int], ended: list[int], backlog: int, found: bool
) -> None:
    assert grows(counted(arrived, ended, backlog), SPAN_S) is found, what


parts = st.lists(st.integers(0, 1000), min_size=PARTS, max_size=PARTS)


@given(parts, parts, st.integers(0, 1000))
def test_no_queue_grows_that_does_not_grow_in_every_part(
    arrived: list[int], ended: list[int], backlog: int
) -> None:
    if any(came <= went for came, went in zip(arrived, ended, strict=True)):
        assert not grows(counted(arrived, ended, backlog), SPAN_S)


@given(parts, st.integers(1, 100))
def test_a_server_that_stands_still_after_a_first_answer_is_outgrown_whatever_comes(
    arrived: list[int], least: int
) -> None:
    """As much in each part, give or take a half: no rule may take that for noise, a burst or a ramp."""
    steady = [1000 * least + came * least // 2 for came in arrived]
    assert grows(counted(steady, [1, 0, 0, 0, 0, 0]), SPAN_S)
