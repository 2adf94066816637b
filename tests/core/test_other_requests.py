"""Requests that have no record: counts by method and name, bounded whatever a locustfile fires."""

import math

import msgspec
import pytest
from hypothesis import given, strategies as st

from llm_locust.core.other_requests import MOST_OTHER_REQUESTS, OtherRequests, OtherTable, together


def rows(*times_ms: object) -> list[OtherRequests]:
    table = OtherTable()
    for time_ms in times_ms:
        table.add("GET", "/", time_ms, failed=False)
    return table.rows()


def checked(found: list[OtherRequests]) -> list[OtherRequests]:
    """The rows as a master reads them: refused if one is beyond its bounds."""
    return msgspec.json.decode(msgspec.json.encode(found), type=list[OtherRequests])


@given(st.lists(st.floats(0.001, 1e7), min_size=1, max_size=60), st.sampled_from([50, 95, 100]))
def test_a_percentile_is_that_request_of_the_sorted_ones_to_one_percent(
    times_ms: list[float], percent: float
) -> None:
    (row,) = checked(rows(*times_ms))
    true_ms = sorted(times_ms)[math.ceil(percent / 100 * len(times_ms)) - 1]
    assert row.percentile_ms(percent) == pytest.approx(true_ms, rel=0.011)


@pytest.mark.parametrize("time_ms", [None, "12", math.nan, math.inf, -math.inf, 10**400, [1]])
def test_a_request_without_a_time_is_counted_and_has_none(time_ms: object) -> None:
    (row,) = checked(rows(time_ms))
    assert (row.requests, row.times, row.percentile_ms(50)) == (1, [], None)


@pytest.mark.parametrize("time_ms", [-1, 0, 5e-324, 1e299, True])
def test_times_that_no_request_has_are_counted_at_the_ends(time_ms: object) -> None:
    (row,) = checked(rows(time_ms))
    assert sum(count for _, count in row.times) == 1


@pytest.mark.parametrize("name", ["x" * 10_000, "\ud800", None, 7, "\0\x1b[31m"])
def test_any_name_can_be_sent_and_written(name: object) -> None:
    table = OtherTable()
    table.add(name, name, 1.0, failed=True)
    (row,) = checked(table.rows())
    assert (row.requests, row.failures) == (1, 1)


def test_names_beyond_the_bound_are_counted_together_and_none_is_lost() -> None:
    table = OtherTable()
    for number in range(1000):
        table.add("GET", f"/{number}", 5.0, failed=number % 2 == 0)
    found = checked(table.rows())
    assert len(found) == MOST_OTHER_REQUESTS
    assert (found[-1].method, found[-1].name) == ("", "other names")
    assert sum(each.requests for each in found) == 1000
    assert sum(each.failures for each in found) == 500


def test_workers_are_added_up_by_method_and_name_within_the_same_bound() -> None:
    first, second = OtherTable(), OtherTable()
    for number in range(19):
        first.add("GET", f"/{number}", 1.0, failed=False)
        second.add("GET", f"/{number + 18}", 100.0, failed=True)
    found = together([*first.rows(), *second.rows()])
    assert len(found) == MOST_OTHER_REQUESTS
    assert sum(each.requests for each in found) == 38
    assert sum(each.failures for each in found) == 19
    both = next(each for each in together([*first.rows(), *first.rows()]) if each.name == "/15")
    assert (both.requests, [count for _, count in both.times]) == (2, [2])
