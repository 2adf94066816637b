"""A prefix-cache experiment: what else must not say what prompts share, and shares that are no experiment."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from llm_locust.options.settings import SCENARIO_TEXT, Settings, UsageError, parse_settings
from llm_locust.options.stages import prefixes_of
from llm_locust.options.table import GRAMMAR
from llm_locust.scenario import parse_scenario
from llm_locust.swarm.run.load_watch import check_load

SWEEP = "users=4 prefix-share=0%,50%,90%"


def settings(**given: Any) -> Settings:
    return parse_settings(argparse.Namespace(sweep=given.pop("sweep", SWEEP), **given), {})


def shares(found: Settings) -> list[tuple[int, int, int]]:
    assert found.load.sweep is not None
    prefixes = prefixes_of(found.load.sweep, found.kinds[0].spec)
    return [(each.tokens, each.input_tokens, each.prefixes) for each in prefixes]


def test_shares_are_of_the_length_of_all_prompts_in_whole_blocks() -> None:
    assert shares(settings()) == [(0, 512, 10), (256, 512, 10), (464, 512, 10)]
    assert shares(settings(input_tokens="1000", sweep=f"{SWEEP} prefixes=2"))[1:] == [
        (496, 1000, 2),
        (896, 1000, 2),
    ]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"input_tokens": "uniform:100,1000"}, "all prompts have one length"),
        ({"input_tokens": "64"}, "50% and 90% of 64 tokens are both 32|both 32 in whole blocks"),
        ({"input_tokens": "40"}, "is not one block of 16"),
        ({"dataset": "{file}"}, "beside --dataset"),
        ({"shared_prefix": "groups=2 tokens=100"}, "beside --shared-prefix"),
        ({"reset_prefix_cache": "start"}, "beside --reset-prefix-cache"),
        ({"unique_head": "off"}, "without unique heads"),
        ({"models": "base,lora"}, "each model or adapter has blocks of its own"),
        ({"find": "max rate under p99_ttft<1s"}, "--find beside --sweep"),
        (
            {"sweep": "prefix-share=0%", "request_rate": "ramp:1..10,60s"},
            "prefix-share beside --request-rate",
        ),
    ],
)
def test_what_says_otherwise_is_refused(given: dict[str, str], why: str, tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text('{"prompt": "What is it?"}\n')
    with pytest.raises(UsageError, match=why) as error:
        settings(**{name: value.replace("{file}", str(file)) for name, value in given.items()})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("classes: {a: {}, b: {}}", "the scenario has 2 classes"),
        ("shared_prefix: {groups: 2, tokens: 64}", "leave shared_prefix out"),
        ("classes: {a: {conversation: {turns: 3}}}", "leave conversation out"),
        ("classes: {a: {endpoint: embeddings}}", "the embeddings endpoint has no first token"),
    ],
)
def test_so_is_what_a_scenario_says(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        settings(**{SCENARIO_TEXT: parse_scenario(text, "s.yaml", GRAMMAR).text_for_workers()})


class OfPrompts:
    endpoint = "chat"


class OwnBodies:
    endpoint = None


@pytest.mark.parametrize(
    ("classes", "why"),
    [([OwnBodies], "builds its requests itself"), ([OfPrompts, OfPrompts], "an experiment is of one")],
)
def test_so_are_user_classes_that_send_other_prompts(classes: list[type], why: str) -> None:
    with pytest.raises(UsageError, match=f"prefix-share: .*{why}"):
        check_load(settings(), classes)
    check_load(settings(), [OfPrompts])


def test_alone_it_is_at_the_load_of_the_run() -> None:
    found = settings(sweep="prefix-share=0%,50%", request_rate="5").load.sweep
    assert found is not None
    assert (found.kind, found.values) == ("rate", (5.0,))
