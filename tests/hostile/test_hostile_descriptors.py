"""Open files are counted before the load; a process that runs out of them still ends its run."""

import resource
from typing import Any

import pytest
from run_infos import run_info

from llm_locust.host import MARGIN, descriptors_for
from llm_locust.options.settings import UsageError
from llm_locust.swarm.channel.messages import RunInfo
from llm_locust.swarm.run.descriptors import ensure_descriptors


def run(users: int, targets: int = 0) -> RunInfo:
    return run_info(targets=[f"http://h{n}" for n in range(targets)], rate=float(users))


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """This process's limit of open files, as it is told and as it is set."""
    limits: dict[str, Any] = {"now": (256, 1024), "infinity": resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.update(now=new))
    return limits


def test_the_soft_limit_is_raised_when_the_load_needs_it(limits: dict[str, Any]) -> None:
    ensure_descriptors(run(100), 1, None, open_loop=False)
    assert limits["now"] == (256, 1024)
    ensure_descriptors(run(400), 1, None, open_loop=False)
    assert limits["now"] == (1024, 1024)


def test_a_load_beyond_the_hard_limit_is_refused_with_the_number(
    limits: dict[str, Any],
) -> None:
    with pytest.raises(UsageError) as caught:
        ensure_descriptors(run(2000), 1, None, open_loop=False)
    needed = 2000 + MARGIN
    assert f"2000 users need {needed} open files" in str(caught.value)
    assert "may have 1024" in str(caught.value)
    assert f"`ulimit -n {needed}`" in str(caught.value)


def test_workers_share_users_and_several_targets_need_more(limits: dict[str, Any]) -> None:
    ensure_descriptors(run(2000), 4, None, open_loop=False)
    assert descriptors_for(100, targets=8) == 200 + MARGIN
    with pytest.raises(UsageError):
        ensure_descriptors(run(2000, targets=2), 4, None, open_loop=False)


def test_an_open_loop_is_bounded_by_max_in_flight_or_not_at_all(limits: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="1500 requests at once need"):
        ensure_descriptors(run(1), 1, 1500, open_loop=True)
    ensure_descriptors(run(100_000), 1, None, open_loop=True)
    assert limits["now"] == (1024, 1024)


def test_no_limit_is_enough(limits: dict[str, Any]) -> None:
    limits["now"] = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    ensure_descriptors(run(1_000_000), 1, None, open_loop=False)
    limits["now"] = (256, resource.RLIM_INFINITY)
    ensure_descriptors(run(1_000_000), 1, None, open_loop=False)
