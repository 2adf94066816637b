"""Operating points: the front has those that no other point is better than."""

from hypothesis import given, strategies as st

from llm_locust.figures.over_load import OperatingPoint, front, user_tps


def point(user: float, gpu: float) -> OperatingPoint:
    return OperatingPoint("run", None, "", user, gpu, None)


def is_better(one: OperatingPoint, other: OperatingPoint) -> bool:
    at_least = one.user_tps >= other.user_tps and one.gpu_tps >= other.gpu_tps
    return at_least and (one.user_tps, one.gpu_tps) != (other.user_tps, other.gpu_tps)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), max_size=12))
def test_the_front_is_every_point_that_no_other_is_better_than(pairs: list[tuple[int, int]]) -> None:
    points = [point(*pair) for pair in pairs]
    expected = {i for i, p in enumerate(points) if not any(is_better(other, p) for other in points)}
    found = front(points)
    assert set(found) == expected
    assert len(found) == len(expected)
    assert [points[i].user_tps for i in found] == sorted(points[i].user_tps for i in found)


def test_what_a_user_sees_is_the_reciprocal_of_the_pace_and_unknown_without_one() -> None:
    assert user_tps(20.0) == 50.0
    assert user_tps(None) is None
