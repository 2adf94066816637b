"""Arms of a scenario: what is read, what is refused, and what becomes of it in a run's settings."""

from typing import Any

import msgspec
import pytest
from parsed_settings import settings_of

from llm_locust.deployment.targets import Arm
from llm_locust.options.settings import Settings, UsageError
from llm_locust.options.table import GRAMMAR
from llm_locust.scenario import Scenario, ScenarioError, parse_scenario
from llm_locust.scenario.request_kind import request_form
from llm_locust.workload.text.prompts import Prompt, with_words

HOST = "http://host:1"

TEXT = """
arms:
  plain:
  other:
    url: http://other:2/api
    share: 2
    model: small
    path: /generate
    headers: {X-Team: team-secret}
    header_env: {X-Key: TEAM_KEY}
    body: {temperature: 0, seed: null}
    prefix: cold
"""


def of(text: str) -> Scenario:
    return parse_scenario(text, "s.yaml", GRAMMAR)


def settings(text: str, environ: dict[str, str] | None = None, **given: Any) -> Settings:
    return settings_of(text, environ, **{"host": HOST, **given})


def test_an_arm_has_every_field_and_a_name_alone_is_the_run_itself() -> None:
    assert of(TEXT).arms == (
        Arm("plain"),
        Arm(
            "other",
            "http://other:2/api",
            2.0,
            model="small",
            path="/generate",
            headers={"x-team": "team-secret"},
            header_env={"x-key": "TEAM_KEY"},
            body={"temperature": 0, "seed": None},
            prefix="cold",
        ),
    )


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ("{url: ftp://x}", "ftp://x"),
        ("{url: 'http://user:key@x'}", "url"),
        ("{url: dns+http://x:1}", "an arm is one URL"),
        ("{share: 0}", "share 0: allowed is a number"),
        ("{path: chat}", "a path such as /chat/completions"),
        ("{path: '/a?key=b'}", "a path such as /chat/completions"),
        ("{prefix: hot}", "cold, warm"),
        ("{body: {max_tokens: 5}}", "the body of an arm cannot set 'max_tokens': use output_tokens"),
        ("{body: {model: m}}", "use the key model"),
        ("{header_env: {X-Key: sk-123-not-a-name}}", "'X-Key' is not the name of a variable"),
        ("{headers: {Content-Length: 1}}", "cannot be set"),
        ("{hedaers: {}}", 'did you mean "headers"'),
    ],
)
def test_a_field_that_cannot_be_used_is_refused_and_no_secret_shown(fields: str, why: str) -> None:
    with pytest.raises(ScenarioError, match=why) as e:
        of(f"arms: {{a: , b: {fields}}}")
    assert "sk-123" not in str(e.value)
    assert "user:key" not in str(e.value)


def test_the_run_has_the_arms_with_its_host_and_the_values_of_their_headers() -> None:
    plain, other = settings(TEXT, {"TEAM_KEY": "key-of-env"}).deployment.arms
    assert (plain.url, other.url) == (HOST, "http://other:2/api")
    assert other.headers == {"x-team": "team-secret", "x-key": "key-of-env"}
    assert [*other.differs_in] == [
        *("model small", "path /generate", "prefix cold", "header x-team", "header x-key"),
        *("body field temperature", "body field seed"),
    ]


def test_no_value_of_an_arms_header_is_shown() -> None:
    found = settings(TEXT, {"TEAM_KEY": "key-of-env"})
    assert {"team-secret", "key-of-env"} <= {*found.secrets}
    assert found.scenario is not None
    assert "team-secret" not in str(found.scenario.public_document)
    assert "team-secret" not in repr(found) + repr(found.scenario)


@pytest.mark.parametrize(
    ("text", "given", "why"),
    [
        (TEXT, {}, "arm 'other': the environment variable 'TEAM_KEY' is not set"),
        ("arms: {a: , b: }", {"host": None}, "'a' has no url, and the run has no host"),
        ("arms: {a: }", {}, "'a' is the only arm"),
        ("arms: {a: , b: }", {"arm": ["c=http://x:1"]}, "the scenario has no arm 'c'"),
        ("arms: {a: , b: {prefix: warm}}", {}, "arm 'b': its prompts share nothing"),
        ("arms: {a: , b: {body: {stream_options: 5}}}", {}, "stream_options"),
    ],
)
def test_arms_that_cannot_run_are_refused(text: str, given: dict[str, Any], why: str) -> None:
    with pytest.raises((UsageError, ScenarioError), match=why):
        settings(text, **given)


def test_the_command_line_says_which_arms_run_and_where_and_the_scenario_what_they_send() -> None:
    text = "arms: {a: , b: {prefix: cold, share: 3}, c: }"
    found = settings(text, arm=["b=http://x:1", "a=http://y:1 share=2"]).deployment.arms
    assert found == (Arm("b", "http://x:1", 3.0, prefix="cold"), Arm("a", "http://y:1", 2.0))


def test_the_requests_of_an_arm_have_its_model_path_and_body() -> None:
    found = settings(TEXT, {"TEAM_KEY": "k"}, body='{"seed": 7, "top_p": 1}')
    (kind,) = found.kinds
    plain, other = (request_form(kind, arm.model or "big", arm) for arm in found.deployment.arms)
    assert (plain.path, plain.prefix) == ("/chat/completions", None)
    assert (other.path, other.prefix) == ("/generate", "cold")
    bodies = [msgspec.json.decode(form.template.encode(Prompt(text="hi"))) for form in (plain, other)]
    shown = [{key: body.get(key) for key in ("model", "seed", "top_p", "temperature")} for body in bodies]
    assert shown == [
        {"model": "big", "seed": 7, "top_p": 1, "temperature": None},
        {"model": "small", "seed": None, "top_p": 1, "temperature": 0},
    ]


def test_words_before_a_prompt_are_asked_for_and_not_taken_for_counted() -> None:
    prompt = with_words(Prompt(text="c d", asked_input_tokens=2, counted_input_tokens=2), "a b")
    assert prompt == Prompt(text="a b c d", asked_input_tokens=4)
    messages = ({"role": "system", "content": "s"}, {"role": "user", "content": "u"})
    led = with_words(Prompt(messages=messages), "a b")
    assert [m["content"] for m in led.messages or ()] == ["a b s", "u"]
