"""Headers that may name the replica: counts of several workers together, and which tells replicas apart."""

import pytest

from llm_locust.core.manifest import (
    MOST_HEADER_VALUES,
    MOST_REPLICA_HEADERS,
    HeaderFacts,
    better_header,
    together,
)


def facts(name: str, answers: int, *values: int, more: bool = False) -> HeaderFacts:
    return HeaderFacts(name=name, answers=answers, value=f"{name}-0", values=list(values), more=more)


SAME, THREE = facts("x-served-by", 60, 7), facts("x-upstream", 60, 1, 2, 3)


def test_workers_that_saw_other_replicas_are_counted_together() -> None:
    found = together([facts("x-upstream", 5, 1, 2), SAME, facts("x-upstream", 6, 2, 3)])
    assert found == [facts("x-upstream", 11, 1, 2, 3), SAME]
    assert together([]) == []


def test_counts_of_many_workers_stay_within_the_bounds_of_one() -> None:
    many = [facts("x-upstream", 1, *range(at, at + 40)) for at in (0, 40)]
    (whole,) = together(many)
    assert (len(whole.values), whole.more) == (MOST_HEADER_VALUES, True)
    assert together([facts("x", 1, 1, more=True), facts("x", 1, 1)])[0].more
    assert len(together(facts(f"x-{n}", 1, n) for n in range(100))) == MOST_REPLICA_HEADERS


@pytest.mark.parametrize(
    ("found", "name"),
    [
        ([SAME, THREE], "x-upstream"),
        ([facts("x-mine", 0), SAME, THREE], "x-upstream"),
        ([SAME, facts("x-pod", 60, 1, 2), THREE], "x-upstream"),
        ([SAME, facts("x-upstream", 30, 1, 2)], "x-upstream"),
        ([SAME, facts("x-upstream", 29, 1, 2)], None),  # most answers do not have it
        ([SAME, facts("x-upstream", 60, 9)], None),  # it has one value too
        ([SAME, facts("x-upstream", 60, *range(31))], None),  # new in each answer, as an id of the request
        ([SAME, facts("x-upstream", 9999, *range(64), more=True)], None),
        ([THREE, SAME], None),  # the one in use tells replicas apart
        ([facts("x-served-by", 60, 7, more=True), THREE], None),
        ([SAME], None),
        ([facts("x-mine", 0)], None),
        ([], None),
    ],
)
def test_a_better_header_has_several_values_where_that_in_use_has_one(
    found: list[HeaderFacts], name: str | None
) -> None:
    better = better_header(found)
    assert (better and better.name) == name
