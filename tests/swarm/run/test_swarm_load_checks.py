"""Gates and loads that do not fit each other are refused before anything is sent."""

from types import SimpleNamespace
from typing import Any

import pytest
from parsed_settings import settings, settings_of

from llm_locust.options.settings import UsageError
from llm_locust.swarm.run.load_watch import _check_images, check_load
from llm_locust.swarm.run.preflight import host_of

FIND = "max concurrency under p99_ttft<1s"


def test_two_hosts_of_two_classes_are_refused_with_what_loads_both_and_one_host_is_taken() -> None:
    def host(*classes: str, given: str = "", **options: Any) -> str:
        users = [SimpleNamespace(host=each or None) for each in classes]
        environment: Any = SimpleNamespace(user_classes=users, host=given)
        return host_of(environment, settings(**options))

    with pytest.raises(UsageError) as error:
        host("http://a:1", "http://key:secret@b:2/v1?key=secret", "http://a:1")
    assert str(error.value) == (
        "the user classes have 2 hosts: 'http://a:1', 'http://b:2/v1'. Give one by -H; or spread the load by "
        "--targets URL,URL, compare the two by --arm NAME=URL, or start a run for each"
    )
    assert host("http://a:1", "", "http://a:1") == "http://a:1"
    assert host("http://a:1", "http://b:2", given="http://c:3") == "http://c:3"
    assert host("http://a:1", "http://b:2", targets="http://c:3,http://d:4") == "http://c:3"
    with pytest.raises(UsageError, match="no host: give -H"):
        host("", "")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"sweep": "users=1,2", "gate": "goodput>=95%"}, "--gate beside --sweep"),
        ({"find": FIND, "gate": "p99_ttft<1s"}, "only edge is of all loads"),
        ({"find": FIND, "gate": "edge>=3 p99_ttft<1s"}, "only edge is of all loads"),
        ({"gate": "edge>=3"}, "edge is the answer of a search; add --find"),
        ({"sweep": "users=1,2", "gate": "edge>=3"}, "add --find"),
        ({"find": "max rate under p99_ttft<1s"}, "--find requires an OpenLoopUser"),
    ],
)
def test_a_gate_that_no_figure_of_the_run_can_answer_is_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        check_load(settings(**given), [object])


def test_arms_are_compared_at_one_load() -> None:
    arms = ["a=http://127.0.0.1:1", "b=http://127.0.0.1:2"]
    for load in ({"sweep": "users=1,2"}, {"find": FIND}):
        with pytest.raises(UsageError, match="arms are compared at one load"):
            check_load(settings(arm=arms, **load), [object])
    check_load(settings(arm=arms), [object])


def test_arms_say_nothing_of_requests_that_a_user_class_builds_itself() -> None:
    class OfPrompts:
        endpoint = "chat"

    found = settings_of("arms: {a: , b: {body: {seed: 1}}}", host="http://127.0.0.1:1")
    check_load(found, [OfPrompts])
    with pytest.raises(UsageError, match="the arm 'b' says what requests are like, and object builds"):
        check_load(found, [object])


def test_agents_without_trajectories_are_refused() -> None:
    class Agent:
        needs_trajectories = True

    with pytest.raises(UsageError, match="Agent walks through trajectories, and none are given"):
        check_load(settings(), [Agent])


def test_images_are_refused_where_no_prompt_can_have_them() -> None:
    class Agent:
        needs_trajectories = True

    class Talk:
        endpoint, dialogues = "chat", ("a recorded one",)

    class Sdk:
        pass

    class Chat:
        endpoint, dialogues = "chat", ()

    found = settings(images="size=16x16", trajectories=None)
    check_load(found, [Chat])
    for cls, why in ((Talk, "Talk are asked as they are"), (Sdk, "Sdk builds its requests itself")):
        with pytest.raises(UsageError, match=f"--images: .*{why}"):
            check_load(found, [Chat, cls])
    with pytest.raises(UsageError, match="as recorded"):
        _check_images([Agent])


def test_a_search_may_have_a_gate_on_its_edge_and_a_run_of_one_load_any_other() -> None:
    check_load(settings(find=FIND, gate="edge>=3"), [object])
    check_load(settings(gate="p99_ttft<1s"), [object])


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"find": FIND, "sweep": "users=1,2"}, "--find beside --sweep"),
        ({"find": FIND, "request_rate": "5"}, "--find beside --request-rate"),
        ({"find": FIND, "num_requests": "5"}, "--find beside --num-requests"),
        ({"find": FIND, "max_in_flight": "5"}, "write max rate"),
        ({"find": FIND, "first_load": "2.5"}, "whole number of users"),
        ({"find": "max rate under p99_ttft<1s", "first_load": "1e12"}, "at most 1e.06"),
        (
            {"find": "max rate under certified p99_ttft<1s"},
            "needs 662 requests a stage, and the first one, 4/s for 60 s, has about 240: write "
            "--stage-time 166s or --first-load 12",
        ),
    ],
)
def test_what_would_set_the_load_besides_a_search_is_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        settings(**given)


def test_a_search_begins_with_its_first_load_and_has_its_bounds() -> None:
    load = settings(find=FIND, first_load="3", precision="10%", max_stages="7").load
    assert load.sweep is not None
    assert (load.sweep.kind, load.sweep.values) == ("users", (3.0,))
    assert load.search is not None
    bounds = load.search.bounds
    assert (bounds.precision, bounds.most_stages) == (0.1, 7)
