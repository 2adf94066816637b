"""A sweep over lengths: the load that it has, and what else must not say how long prompts and answers are."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from llm_locust.cli.starting import Said, locust_arguments
from llm_locust.options.settings import SCENARIO_TEXT, Settings, UsageError, parse_settings
from llm_locust.options.table import GRAMMAR
from llm_locust.scenario import parse_scenario
from llm_locust.swarm.run.load_watch import check_load

SWEEP = "users=1,2 lengths=128:32,4096:64"
ALONE = "lengths=128:32,4096:64"


def settings(**given: Any) -> Settings:
    return parse_settings(argparse.Namespace(sweep=given.pop("sweep", SWEEP), **given), {})


def of_scenario(text: str) -> Settings:
    return settings(**{SCENARIO_TEXT: parse_scenario(text, "s.yaml", GRAMMAR).text_for_workers()})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"input_tokens": "512"}, "beside --input-tokens: each stage sets the lengths"),
        ({"output_tokens": "64"}, "beside --output-tokens: .*a --preset gives it too"),
        ({"dataset": "{file}"}, "beside --dataset"),
        ({"arrival": "trace:{file}"}, "--sweep beside --arrival trace"),
        ({"shared_prefix": "groups=2 tokens=100"}, "100 tokens of --shared-prefix would come on top"),
        ({"body": '{"max_tokens": 8}'}, "--body sets max_tokens, which bounds the answers"),
        ({"find": "max rate under p99_ttft<1s"}, "--find beside --sweep"),
        ({"sweep": ALONE, "request_rate": "ramp:1..10,60s"}, "a stage has one rate; give one number"),
        ({"sweep": ALONE, "arrival": "poisson"}, "--sweep lengths is a closed one; use rate="),
    ],
)
def test_what_says_other_lengths_is_refused(given: dict[str, str], why: str, tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text('{"prompt": "What is it?"}\n')
    with pytest.raises(UsageError, match=why) as error:
        settings(**{name: value.replace("{file}", str(file)) for name, value in given.items()})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("classes: {a: {output_tokens: 100}}", "class 'a': it has output_tokens of its own"),
        ("classes: {a: {preset: chat}}", "class 'a': it has input_tokens of its own.* or its preset"),
        ("classes: {a: {conversation: {turns: 3}}}", "class 'a': it holds conversations"),
        ("classes: {a: {endpoint: embeddings}}", "class 'a': the embeddings endpoint generates no tokens"),
        ("classes: {a: {body: {max_tokens: 3}}}", "class 'a': --body sets max_tokens"),
    ],
)
def test_so_is_what_a_class_of_a_scenario_says(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        of_scenario(text)


class OfPrompts:
    endpoint = "chat"


class OwnBodies:
    endpoint = None


class Talks(OfPrompts):
    def converse(self) -> None: ...


class OwnPrompts(OfPrompts):
    def prompt_of(self) -> None: ...


class Vectors(OfPrompts):
    endpoint = "embeddings"


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (OwnBodies, "OwnBodies: builds its requests itself"),
        (Talks, "Talks: holds conversations"),
        (OwnPrompts, "OwnPrompts: makes its prompts itself"),
        (Vectors, "Vectors: the embeddings endpoint generates no tokens"),
    ],
)
def test_so_is_a_user_class_whose_requests_have_other_lengths(cls: type, why: str) -> None:
    check_load(settings(), [OfPrompts])
    with pytest.raises(UsageError, match=why):
        check_load(settings(), [cls])


def test_lengths_alone_are_at_the_load_of_the_run() -> None:
    users = settings(sweep=ALONE).load
    assert users.sweep is not None
    assert (users.sweep.kind, users.sweep.values, users.sweep.of_users(8).values) == ("users", (), (8.0,))
    rate = settings(sweep=ALONE, request_rate="5").load
    assert rate.sweep is not None
    assert (rate.sweep.kind, rate.sweep.values, rate.rate) == ("rate", (5.0,), None)
    assert rate.open_loop_option == "--sweep rate"


@pytest.mark.parametrize(
    ("sweep", "file", "users"),
    [
        (ALONE, "chat.py", "--users=10"),
        (SWEEP, "chat.py", None),
        ("lengths=128:32 rate=1,2", "open_loop.py", None),
        ("rate=1,2 lengths=128:32", "open_loop.py", None),
    ],
)
def test_the_command_line_starts_the_loop_that_the_sweep_is_of(
    sweep: str, file: str, users: str | None
) -> None:
    rest = dict.fromkeys(("users", "for_", "workers", "url", "locustfile", "preset"))
    given = argparse.Namespace(sweep=sweep, ui=False, sim=False, rest=[], **rest)
    words = locust_arguments(given, Said({}))
    assert words[0].endswith(file)
    assert next((word for word in words if word.startswith("--users")), None) == users
