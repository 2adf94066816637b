"""A user class's ``endpoint``: a name of the table, or a dialect of the user's own."""

import argparse
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from llm_locust.deployment.targets import Arm
from llm_locust.options.settings import UsageError, parse_settings
from llm_locust.swarm.run.canary import check_arms
from llm_locust.swarm.run.preflight import own_endpoints
from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.table import DIALECTS, dialect_of

OWN = replace(CHAT, name="own", template_tokens=20)


def user(endpoint: object) -> Any:
    return type("Asker", (), {"endpoint": endpoint})


def test_an_endpoint_is_a_dialect_or_the_name_of_one() -> None:
    assert [dialect_of(name) for name in DIALECTS] == list(DIALECTS.values())
    users = [user("completions"), user(OWN), user(OWN), user(CHAT), type("Plain", (), {})]
    assert own_endpoints(users) == [COMPLETIONS, OWN, CHAT]


@pytest.mark.parametrize("endpoint", ["chats", "", 3, ["chat"]])
def test_what_is_neither_is_refused_with_the_class_and_the_names(endpoint: object) -> None:
    with pytest.raises(UsageError) as caught:
        own_endpoints([user(endpoint)])
    names = "chat, completions, responses, messages, embeddings, rerank"
    assert str(caught.value) == f"Asker.endpoint: no endpoint {endpoint!r}; there are {names}"


@pytest.mark.parametrize("name", ["", "other", "Chat", "a b", "x" * 41, "é"])
def test_a_dialect_has_a_name_that_tables_can_have(name: str) -> None:
    with pytest.raises(ValueError, match="a short word such as 'chat'"):
        replace(CHAT, name=name)


def test_a_path_starts_at_the_base_and_holds_the_model_in_one_segment() -> None:
    with pytest.raises(ValueError, match="must start with '/', got 'chat'"):
        replace(CHAT, path="chat")
    own = replace(CHAT, path="/models/{model}:stream", whole_path="/models/{model}:whole")
    assert own.path_to("a/b c", stream=True) == "/models/a%2Fb%20c:stream"
    assert own.path_to("m", stream=False) == "/models/m:whole"
    assert CHAT.path_to("m", stream=False) == "/chat/completions"


def test_arms_of_other_requests_need_a_user_class_whose_requests_can_differ() -> None:
    known = parse_settings(argparse.Namespace(), {})
    plain, cold = Arm("plain", "http://a"), Arm("cold", "http://a", prefix="cold")
    by_url = replace(
        known, deployment=structs.replace(known.deployment, arms=(plain, replace(plain, name="other")))
    )
    differ = replace(known, deployment=structs.replace(known.deployment, arms=(plain, cold)))
    sdk: Any = type("Sdk", (), {})
    check_arms(by_url, [sdk])
    check_arms(differ, [user("chat")])
    with pytest.raises(UsageError, match="Sdk builds its requests itself, so that those of arm 'cold'"):
        check_arms(differ, [user("chat"), sdk])
