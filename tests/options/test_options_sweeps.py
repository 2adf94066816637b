"""A sweep over lengths or shared prefixes: its load, and what else must not say what prompts are like."""

import argparse
from pathlib import Path

import pytest
from parsed_settings import settings, settings_of

from llm_locust.cli.starting import Said, locust_arguments
from llm_locust.options.settings import Settings, UsageError
from llm_locust.options.stages import prefixes_of
from llm_locust.swarm.run.load_watch import check_load

LENGTHS = "users=1,2 lengths=128:32,4096:64"
ALONE = "lengths=128:32,4096:64"
PREFIX = "users=4 prefix-share=0%,50%,90%"


@pytest.mark.parametrize(
    ("sweep", "given", "why"),
    [
        (LENGTHS, {"input_tokens": "512"}, "beside --input-tokens: each stage sets the lengths"),
        (LENGTHS, {"output_tokens": "64"}, "beside --output-tokens: .*a --preset gives it too"),
        (LENGTHS, {"dataset": "{file}"}, "beside --dataset"),
        (LENGTHS, {"arrival": "trace:{file}"}, "--sweep beside --arrival trace"),
        (
            LENGTHS,
            {"shared_prefix": "groups=2 tokens=100"},
            "100 tokens of --shared-prefix would come on top",
        ),
        (LENGTHS, {"body": '{"max_tokens": 8}'}, "--body sets max_tokens, which bounds the answers"),
        (LENGTHS, {"find": "max rate under p99_ttft<1s"}, "--find beside --sweep"),
        (
            LENGTHS,
            {"sweep": ALONE, "request_rate": "ramp:1..10,60s"},
            "a stage has one rate; give one number",
        ),
        (LENGTHS, {"sweep": ALONE, "arrival": "poisson"}, "--sweep lengths is a closed one; use rate="),
        (PREFIX, {"input_tokens": "uniform:100,1000"}, "all prompts have one length"),
        (PREFIX, {"input_tokens": "64"}, "50% and 90% of 64 tokens are both 32|both 32 in whole blocks"),
        (PREFIX, {"input_tokens": "40"}, "is not one block of 16"),
        (PREFIX, {"dataset": "{file}"}, "beside --dataset"),
        (PREFIX, {"shared_prefix": "groups=2 tokens=100"}, "beside --shared-prefix"),
        (PREFIX, {"reset_prefix_cache": "start"}, "beside --reset-prefix-cache"),
        (PREFIX, {"unique_head": "off"}, "without unique heads"),
        (PREFIX, {"models": "base,lora"}, "each model or adapter has blocks of its own"),
        (PREFIX, {"find": "max rate under p99_ttft<1s"}, "--find beside --sweep"),
        (
            PREFIX,
            {"sweep": "prefix-share=0%", "request_rate": "ramp:1..10,60s"},
            "prefix-share beside --request-rate",
        ),
    ],
)
def test_what_says_other_prompts_is_refused(
    sweep: str, given: dict[str, str], why: str, tmp_path: Path
) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text('{"prompt": "What is it?"}\n')
    told = {name: value.replace("{file}", str(file)) for name, value in given.items()}
    with pytest.raises(UsageError, match=why) as error:
        settings(**{"sweep": sweep, **told})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("sweep", "text", "why"),
    [
        (LENGTHS, "classes: {a: {output_tokens: 100}}", "class 'a': it has output_tokens of its own"),
        (
            LENGTHS,
            "classes: {a: {preset: chat}}",
            "class 'a': it has input_tokens of its own.* or its preset",
        ),
        (LENGTHS, "classes: {a: {conversation: {turns: 3}}}", "class 'a': it holds conversations"),
        (
            LENGTHS,
            "classes: {a: {endpoint: embeddings}}",
            "class 'a': the embeddings endpoint generates no tokens",
        ),
        (LENGTHS, "classes: {a: {body: {max_tokens: 3}}}", "class 'a': --body sets max_tokens"),
        (PREFIX, "classes: {a: {}, b: {}}", "the scenario has 2 classes"),
        (PREFIX, "shared_prefix: {groups: 2, tokens: 64}", "leave shared_prefix out"),
        (PREFIX, "classes: {a: {conversation: {turns: 3}}}", "leave conversation out"),
        (PREFIX, "classes: {a: {endpoint: embeddings}}", "the embeddings endpoint has no first token"),
    ],
)
def test_so_is_what_a_scenario_says(sweep: str, text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        settings_of(text, sweep=sweep)


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
    ("sweep", "classes", "why"),
    [
        (LENGTHS, [OwnBodies], "OwnBodies: builds its requests itself"),
        (LENGTHS, [Talks], "Talks: holds conversations"),
        (LENGTHS, [OwnPrompts], "OwnPrompts: makes its prompts itself"),
        (LENGTHS, [Vectors], "Vectors: the embeddings endpoint generates no tokens"),
        (PREFIX, [OwnBodies], "prefix-share: .*builds its requests itself"),
        (PREFIX, [OfPrompts, OfPrompts], "prefix-share: .*an experiment is of one"),
    ],
)
def test_so_are_user_classes_whose_requests_are_others(sweep: str, classes: list[type], why: str) -> None:
    check_load(settings(sweep=sweep), [OfPrompts])
    with pytest.raises(UsageError, match=why):
        check_load(settings(sweep=sweep), classes)


def shares(found: Settings) -> list[tuple[int, int, int]]:
    assert found.load.sweep is not None
    prefixes = prefixes_of(found.load.sweep, found.kinds[0].spec)
    return [(each.tokens, each.input_tokens, each.prefixes) for each in prefixes]


def test_shares_are_of_the_length_of_all_prompts_in_whole_blocks() -> None:
    assert shares(settings(sweep=PREFIX)) == [(0, 512, 10), (256, 512, 10), (464, 512, 10)]
    assert shares(settings(input_tokens="1000", sweep=f"{PREFIX} prefixes=2"))[1:] == [
        (496, 1000, 2),
        (896, 1000, 2),
    ]


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
        (LENGTHS, "chat.py", None),
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


def test_shares_alone_are_at_the_load_of_the_run() -> None:
    found = settings(sweep="prefix-share=0%,50%", request_rate="5").load.sweep
    assert found is not None
    assert (found.kind, found.values) == ("rate", (5.0,))
