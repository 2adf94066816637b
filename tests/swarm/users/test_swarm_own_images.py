"""Prompts of a locustfile's own code have the images that the run asks for."""

import json
from typing import Any

import pytest
from warm_process import warm_code

# Locust patches the standard library: users are made in a process of their own.
SCRIPT = """
import json
from types import SimpleNamespace as Fake

from llm_locust.swarm.users.requester import Requester
from llm_locust.swarm.users.users import ChatUser
from llm_locust.wire.images import images_in
from llm_locust.workload.images import parse_images
from llm_locust.workload.spec import WorkloadSpec
from llm_locust.workload.text.prompts import Prompt


class Chat(ChatUser):
    abstract = True


def user(images, number=0):
    spec = WorkloadSpec(images=images and parse_images(images))
    traffic = Fake(kind=Fake(spec=spec), seed=1)
    session = Fake(kinds=Fake(traffic=lambda _: traffic), worker_index=0, run={"salt": "s"})
    made = Chat.__new__(Chat)
    made._requester, made.sent = Requester(session, None, number), []
    made._sent_headers = made.headers
    made._requester.ask = lambda prompt=None, **_: made.sent.append(prompt)
    return made


def shown(made):
    found = [images_in((prompt and prompt.messages) or ()) for prompt in made.sent]
    return [0 if each is None else each.images for each in found]


one, other, plain = user("count=2 size=16x16"), user("count=2 size=16x16", 1), user(None)
own = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
for each in (one, other, plain):
    each.chat("what is this?")
    each.chat([{"role": "user", "content": "and this?"}, {"role": "assistant", "content": "hm"}])
    each.chat([{"role": "user", "content": [own]}])
    each.ask(Prompt(text="next"), turn=1)
    each.chat()
ends = [
    part["image_url"]["url"].end.decode()
    for prompt in (*one.sent[:2], *other.sent[:2])
    for part in prompt.messages[0]["content"]
    if part["type"] == "image_url"
]
print(json.dumps({"one": shown(one), "plain": shown(plain), "ends": ends}))
"""


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return dict(json.loads(warm_code(SCRIPT)))


def test_texts_and_messages_get_images_and_what_has_some_and_turns_are_sent_as_they_are(
    made: dict[str, Any],
) -> None:
    assert made["one"] == [2, 2, 1, 0, 0]  # the last is the workload's, which puts its own
    assert made["plain"] == [0, 0, 1, 0, 0]


def test_no_two_of_them_are_alike_and_another_user_has_others(made: dict[str, Any]) -> None:
    assert len(made["ends"]) == len(set(made["ends"])) == 8
