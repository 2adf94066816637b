"""A message that comes often is said at once, and then seldom."""

from llm_locust.swarm.process.loops import Throttle


def test_the_first_is_said_and_then_one_an_interval() -> None:
    now = [100.0]
    throttle = Throttle(30.0, clock=lambda: now[0])
    said = []
    for moment in (100.0, 100.0, 129.9, 130.0, 131.0, 500.0):
        now[0] = moment
        said.append(throttle())
    assert said == [True, False, False, True, False, True]
