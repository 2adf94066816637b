"""Names of a user class that would replace what this package or Locust calls under that name."""

import json

import pytest
from warm_process import warm_code

# Locust patches the standard library: classes are made in a process of their own.
CLASSES = """
import json, sys
from locust import TaskSet, between, tag, task
from llm_locust import ChatUser, CompletionUser, ConversationUser, OpenAIUser, OpenLoopUser, ScenarioUser

class Greeter:
    def chat(self): ...

class Extended(ConversationUser):
    wait_time = between(1, 2)
    request_name = "talk"
    turns = "3"

    def on_start(self): ...

    def on_stop(self): ...

    def ask(self, prompt=None, **of):
        return super().ask(prompt, **of)

    @property
    def kind(self):
        return super().kind

    @task
    def talk(self): ...

found = {}
for line in json.loads(sys.stdin.read()):
    bases, name, value = line
    try:
        names = {"__module__": __name__} | ({name: eval(value)} if name else {})
        type("Support", tuple(eval(bases)), names)
        found[json.dumps(line)] = ""
    except TypeError as e:
        found[json.dumps(line)] = str(e)
print(json.dumps(found))
"""

REFUSED = {
    ("[ChatUser]", "ask", "task(lambda self: None)"): "a task, but PromptUser.ask",
    ("[ChatUser]", "ask", "task(3)(lambda self: None)"): "a task, but PromptUser.ask",
    ("[ChatUser]", "ask", "tag('slow')(task(lambda self: None))"): "a task, but PromptUser.ask",
    ("[ChatUser]", "ask", "task(type('Steps', (TaskSet,), {}))"): "a task, but PromptUser.ask",
    ("[ChatUser]", "ask", "lambda self: None"): "a function with other arguments, but PromptUser.ask",
    ("[ChatUser]", "chat", "lambda self, text: None"): "a function with other arguments, but ChatUser.chat",
    ("[ChatUser]", "chat", "staticmethod(lambda messages=None: None)"): "a function with other arguments",
    ("[ChatUser]", "chat", "'hello'"): "not a function, but ChatUser.chat",
    ("[ChatUser]", "headers", "task(lambda self: None)"): "a task, but PromptUser.headers",
    ("[ChatUser]", "headers", "lambda self: None"): "a function, but PromptUser.headers",
    ("[ChatUser]", "session", "None"): "not a property, but LlmUser.session",
    ("[ChatUser]", "number", "lambda self: None"): "not a property, but LlmUser.number",
    ("[CompletionUser]", "complete", "task(lambda self: None)"): "a task, but CompletionUser.complete",
    ("[ConversationUser]", "converse", "task(lambda self: None)"): "a task, but ConversationUser.converse",
    ("[ConversationUser]", "history", "task(lambda self: None)"): "a task, but ConversationUser.history",
    (
        "[OpenLoopUser]",
        "prompt_of",
        "lambda self: None",
    ): "a function with other arguments, but OpenLoopUser.prompt_of",
    ("[OpenLoopUser]", "follows_schedule", "lambda cls, settings: 1"): "a function with other arguments",
    ("[ScenarioUser]", "send_next", "task(lambda self: None)"): "a task, but ScenarioUser.send_next",
    ("[OpenAIUser]", "client", "task(lambda self: None)"): "a task, but OpenAIUser.client",
    ("[OpenAIUser]", "model", "'other'"): "not a property, but OpenAIUser.model",
    ("[ChatUser]", "stop", "task(lambda self: None)"): "a task, but User.stop",
    ("[Greeter, ChatUser]", "", ""): "a function with other arguments, but ChatUser.chat",
}

TAKEN = (
    ("[ChatUser]", "ask_once", "task(lambda self: None)"),
    ("[OpenAIUser]", "ask", "task(lambda self: None)"),
    ("[OpenLoopUser]", "prompt_of", "lambda self, arrival: None"),
    ("[ChatUser, Greeter]", "", ""),
    ("[Extended]", "", ""),
)


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    """What each class was refused with; "" for one that was made."""
    return dict(json.loads(warm_code(CLASSES, input=json.dumps([*REFUSED, *TAKEN]))))


@pytest.mark.parametrize("case", REFUSED)
def test_a_name_that_is_needed_is_refused_with_another_to_take(
    case: tuple[str, str, str], found: dict[str, str]
) -> None:
    name, text = case[1] or "chat", found[json.dumps(case)]
    assert f"user class Support: {name!r} is {REFUSED[case]}" in text
    assert f"'{name}_once'" in text


@pytest.mark.parametrize("case", TAKEN)
def test_a_method_may_be_extended_and_attributes_set(
    case: tuple[str, str, str], found: dict[str, str]
) -> None:
    assert found[json.dumps(case)] == ""
