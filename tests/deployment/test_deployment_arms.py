"""Arms of a comparison: their texts, and which request goes to which."""

from collections import Counter

import pytest

from llm_locust.deployment.targets import Arm, ArmError, RandomArm, check_arms


def test_an_arm_is_a_name_a_url_and_a_share() -> None:
    assert Arm.parse("straight=http://a:8000") == Arm("straight", "http://a:8000")
    assert Arm.parse(" gateway=https://b/v1  share=2.5 ") == Arm("gateway", "https://b/v1", 2.5)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("http://a:8000", "is not NAME=URL"),
        ("http://a:8000/v1?x=1", "is not NAME=URL"),
        ("=http://a:8000", "the name ''"),
        ("none=http://a:8000", "and not none"),
        ("a b=http://a:8000", "the name 'a b'"),
        ("a=http://a:8000 share=0", "share=0"),
        ("a=http://a:8000 share=nan", "share=nan"),
        ("a=http://a:8000 weight=2", "is not NAME=URL"),
    ],
)
def test_what_is_not_an_arm_is_refused_with_what_to_write(text: str, why: str) -> None:
    with pytest.raises(ArmError, match=why):
        Arm.parse(text)


@pytest.mark.parametrize(
    ("names", "why"), [("a", "the only arm"), ("aba", "the name 'a'"), ("abcdefghi", "at most 8")]
)
def test_arms_that_cannot_be_compared_are_refused(names: str, why: str) -> None:
    with pytest.raises(ArmError, match=why):
        check_arms([Arm(name, "http://a") for name in names])


def test_requests_are_drawn_by_share_and_alike_from_one_seed() -> None:
    arms, again, other = RandomArm([3, 1], 7), RandomArm([3, 1], 7), RandomArm([3, 1], 7, worker=1)
    drawn = [arms.choose(None) for _ in range(4000)]
    assert Counter(drawn)[1] == pytest.approx(1000, abs=120)  # over 4 standard deviations
    assert drawn == [again.choose(None) for _ in range(4000)]
    assert drawn != [other.choose(None) for _ in range(4000)]


def test_a_session_stays_with_its_arm_at_every_worker() -> None:
    workers = [RandomArm([1, 1], 7, worker) for worker in range(3)]
    of_sessions = [workers[i % 3].choose(f"s{i}") for i in range(2000)]
    assert of_sessions == [workers[(i + 1) % 3].choose(f"s{i}") for i in range(2000)]
    assert sum(of_sessions) == pytest.approx(1000, abs=100)
    assert of_sessions != [RandomArm([1, 1], 8).choose(f"s{i}") for i in range(2000)]
