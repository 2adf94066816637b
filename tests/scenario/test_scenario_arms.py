"""Arms and limits of a scenario's classes: what is read, what is refused, what becomes of it."""

import argparse
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from parsed_settings import run_settings, settings_of

from llm_locust.deployment.targets import Arm
from llm_locust.options.settings import Settings, UsageError, parse_settings
from llm_locust.options.table import GRAMMAR
from llm_locust.scenario.document import Scenario, parse_scenario
from llm_locust.scenario.request_kind import parse_prefix, request_form, slo_headers
from llm_locust.scenario.tree import ScenarioError
from llm_locust.workload.prompts import Prompt, with_words

# --- Arms of a scenario: what is read, what is refused, and what becomes of it in a run's settings


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


# --- Headers with the limits of a class: what they say, and what contradicts them


CLASSES = """
slo: {ttft: 2s, e2el: 30s}
slo_headers: x-llm-d-slo-
classes:
  chat: {slo: {ttft: 350ms, tpot: 12.5ms}}
  batch: {}
  free: {slo: {e2el: 60s}}
"""


def test_each_class_names_its_own_limits_or_else_those_of_the_run() -> None:
    found = settings_of(CLASSES)
    assert found.slo_headers("chat") == {"x-llm-d-slo-ttft-ms": "350", "x-llm-d-slo-tpot-ms": "12.5"}
    assert found.slo_headers("batch") == {"x-llm-d-slo-ttft-ms": "2000"}
    assert found.slo_headers("free") == {}  # its limit is of neither
    assert found.text["slo_headers"] == "x-llm-d-slo-"


def test_the_command_line_alone_is_enough_and_without_the_option_nothing_is_sent() -> None:
    given = {"slo": "ttft=0.5s tpot=50ms", "slo_headers": "X-SLO"}
    found = run_settings(**given)
    assert found.slo_headers("") == {"x-slo-ttft-ms": "500", "x-slo-tpot-ms": "50"}
    assert run_settings(slo=given["slo"]).slo_headers("") == {}


@given(st.floats(1e-6, 1e5, allow_nan=False))
def test_a_limit_is_said_exactly_and_as_a_plain_number(limit_s: float) -> None:
    said = slo_headers("x-slo", {"ttft": limit_s})["x-slo-ttft-ms"]
    assert float(said) == pytest.approx(limit_s * 1e3, rel=1e-11)
    assert set(said) <= set("0123456789.e+-")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "no request has a limit for ttft or tpot; give one by --slo, or by the slo of a class"),
        ({"slo": "e2el=1s"}, "no request has a limit for ttft or tpot"),
        ({"slo": "ttft=1s", "header": ["X-Slo-TTFT-ms=9"]}, "the header 'X-Slo-TTFT-ms' is given too"),
        ({"slo": "ttft=1s", "slo_headers": "x: y"}, "no header name"),
        ({"slo": "ttft=1s", "slo_headers": "{session}"}, "no start of a header name"),
    ],
)
def test_what_cannot_be_said_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=f"^--slo-headers.*{why}"):
        parse_settings(argparse.Namespace(**{"slo_headers": "x-slo", **given}), {})


def test_a_header_of_a_class_or_an_arm_that_says_it_too_is_refused() -> None:
    text = "{slo: {ttft: 1s}, slo_headers: x-slo, %s}"
    for more in (
        "headers: {x-slo-tpot-ms: 5}",
        "host: 'http://h:1', arms: {a: , b: {headers: {x-slo-ttft-ms: 5}}}",
    ):
        with pytest.raises(UsageError, match="is given too"):
            settings_of(text % more)


def test_lines_of_a_dataset_that_are_judged_by_other_limits_are_refused(tmp_path: Path) -> None:
    lines = [{"prompt": "a"}, {"prompt": "b", "class": "batch"}]
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UsageError, match="a line of the dataset is of class 'batch', whose limits differ"):
        settings_of(CLASSES.replace("{slo: {ttft", f"{{dataset: '{file}', slo: {{ttft"))
    alike = CLASSES.replace("350ms, tpot: 12.5ms", "2s").replace(
        "{slo: {ttft", f"{{dataset: '{file}', slo: {{ttft"
    )
    assert settings_of(alike).slo_headers("chat") == {"x-llm-d-slo-ttft-ms": "2000"}


def test_a_prefix_loses_its_last_dash() -> None:
    assert parse_prefix(" X-Slo- ") == "x-slo"
