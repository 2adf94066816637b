"""Options of a load that reach every class, reader and stage."""

import argparse
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from parsed_settings import run_settings, settings_of

from llm_locust.cli.run import locust_arguments
from llm_locust.options.load import prefixes_of
from llm_locust.options.settings import Settings, UsageError
from llm_locust.swarm.run.checks import check_load, checked_trace, tell_files
from llm_locust.workload import traces as plausible
from llm_locust.workload.plan import WorkloadSpec
from llm_locust.workload.trajectory_formats import Turn

# --- Options that say how files are read reach every reader: of the run, and of each class of a scenario


LINES = '{"prompt": "a", "domain": "x", "lora": 7}\n{\n{"prompt": "b", "domain": "y"}\n'


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.jsonl"
    path.write_text(LINES)
    return path


def extras(found: Settings) -> list[Any]:
    return [[p.extra for p in kind.spec.dataset.prompts] for kind in found.kinds if kind.spec.dataset]


@pytest.mark.parametrize("form", ["option", "scenario", "class"])
def test_bad_lines_are_skipped_and_keys_are_sent_wherever_a_dataset_is_named(lines: Path, form: str) -> None:
    def made(**given: Any) -> Settings:
        if form == "option":
            return run_settings(dataset=str(lines), **given)
        text = f"dataset: {{file: {lines}, format: jsonl}}"
        if form == "class":
            text = f"classes:\n  a: {{dataset: {lines}}}\n  b: {{dataset: {{file: {lines}}}}}"
        return settings_of(text, **given)

    with pytest.raises(UsageError, match=r"lines\.jsonl:2: "):
        made()
    number = 2 if form == "class" else 1
    assert extras(made(skip_bad_lines=1)) == [[{}, {}]] * number
    found = made(skip_bad_lines=1, dataset_keys="domain")
    assert extras(found) == [[{"domain": "x"}, {"domain": "y"}]] * number
    assert extras(made(skip_bad_lines=1, dataset_keys="all"))[0][0] == {"domain": "x", "lora": 7}


def test_how_files_were_read_is_said_once_for_each(lines: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    text = f"classes:\n  a: {{dataset: {lines}}}\n  b: {{dataset: {lines}}}\n  c: {{input_tokens: 5}}"
    found = settings_of(text, skip_bad_lines=3)
    caplog.clear()
    assert tell_files(found) == (None, {str(lines): 1})
    (said,) = caplog.messages
    assert said.startswith(f"dataset {str(lines)!r}: 2 prompts; 1 line skipped, the first: {lines}:2: ")
    assert said.endswith("keys that are not sent (--dataset-keys sends them): domain, lora")


def trace(folder: Path) -> Path:
    path = folder / "trace.jsonl"
    rows = [
        {"timestamp": i / 2, "input_length": 64, "output_length": 2, "hash_ids": [1, 2, 3, i]}
        for i in range(20)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_a_trace_is_checked_before_the_load_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arrival = f"trace:{trace(tmp_path)}"
    with pytest.raises(UsageError, match=r"--arrival: .* fit: add --trace-block 16 .*--trace-unit s"):
        checked_trace(run_settings(arrival=arrival).load)
    with pytest.raises(UsageError, match=r"--arrival: .* add --trace-unit s if they are seconds"):
        checked_trace(run_settings(arrival=arrival, trace_block="16").load)
    caplog.set_level(logging.INFO)
    opened, skipped = tell_files(run_settings(arrival=arrival, trace_block="16", trace_unit="s"))
    assert opened is not None
    assert not skipped
    assert [entry.at_s for entry in opened][-1] == 9.5
    assert "20 requests in 9.5 s (2/s): seconds, blocks of 16 tokens, which are 100%" in caplog.messages[-1]
    # A rate takes the place of the times, in whatever unit they are.
    assert checked_trace(run_settings(arrival=arrival, trace_block="16", request_rate="5").load) is not None


def test_the_skipped_lines_of_a_trace_are_counted_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plausible, "SAMPLE", 5)
    path = trace(tmp_path)
    path.write_text("".join(f"{text}\n{{bad\n" for text in path.read_text().splitlines()))
    given = {"arrival": f"trace:{path}", "trace_block": "16", "trace_unit": "s"}
    _, skipped = tell_files(run_settings(**given, skip_bad_lines=20))
    assert skipped == {str(path): 20}
    with pytest.raises(UsageError, match="19 lines before it were skipped, and no more may be"):
        tell_files(run_settings(**given, skip_bad_lines=19))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"trace_unit": "s"}, "--trace-unit without a trace"),
        ({"trace_block": "16"}, "--trace-block without a trace or trajectories"),
        ({"trace_block": "3"}, "--trace-block: block '3': a whole number of tokens from 4 to 65,536"),
        ({"skip_bad_lines": -1}, "--skip-bad-lines: -1 is too small; give a whole number from 0"),
        ({"dataset_keys": "a,"}, "--dataset-keys: keys 'a,': names with commas between"),
    ],
)
def test_options_of_files_that_are_not_there_are_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        run_settings(**given)


def test_the_size_of_a_block_is_that_of_trajectories_too(tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    line = {"session_id": 1, "input_length": 64, "hash_ids": [1, 2, 3, 4]}
    path.write_text(f"{json.dumps(line)}\n" * 3)
    with pytest.raises(UsageError, match=r"--trajectories: .* add --trace-block 16 "):
        run_settings(trajectories=str(path))
    pool = run_settings(trajectories=str(path), trace_block="16").pool
    assert pool is not None
    turns: tuple[Turn, ...] = pool.trajectories[0].turns
    assert {turn.hashed.block for turn in turns if turn.hashed} == {16}


# --- A sweep over lengths or shared prefixes: its load, and what else must not say what prompts are like


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
        run_settings(**{"sweep": sweep, **told})
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
    check_load(run_settings(sweep=sweep), [OfPrompts])
    with pytest.raises(UsageError, match=why):
        check_load(run_settings(sweep=sweep), classes)


def shares(found: Settings) -> list[tuple[int, int, int]]:
    assert found.load.sweep is not None
    prefixes = prefixes_of(found.load.sweep, found.kinds[0].spec)
    return [(each.tokens, each.input_tokens, each.prefixes) for each in prefixes]


def test_shares_are_of_the_length_of_all_prompts_in_whole_blocks() -> None:
    assert shares(run_settings(sweep=PREFIX)) == [(0, 512, 10), (256, 512, 10), (464, 512, 10)]
    assert shares(run_settings(input_tokens="1000", sweep=f"{PREFIX} prefixes=2"))[1:] == [
        (496, 1000, 2),
        (896, 1000, 2),
    ]


def test_lengths_alone_are_at_the_load_of_the_run() -> None:
    users = run_settings(sweep=ALONE).load
    assert users.sweep is not None
    assert (users.sweep.kind, users.sweep.values, users.sweep.of_users(8).values) == ("users", (), (8.0,))
    rate = run_settings(sweep=ALONE, request_rate="5").load
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
    words = locust_arguments(given, {})
    assert words[0].endswith(file)
    assert next((word for word in words if word.startswith("--users")), None) == users


def test_shares_alone_are_at_the_load_of_the_run() -> None:
    found = run_settings(sweep="prefix-share=0%,50%", request_rate="5").load.sweep
    assert found is not None
    assert (found.kind, found.values) == ("rate", (5.0,))


# --- What the command line says of every class's keys, beside the top level of a scenario and its classes


TOP = """
models: {base: 1, lora-a: 2}
shared_prefix: {groups: 4, tokens: 2000}
unique_head: false
"""
CLASSES = """
classes:
  plain: {}
  own: {models: lora-c, shared_prefix: {groups: 7, tokens: 70}, unique_head: true}
"""


def specs(text: str, **given: Any) -> list[WorkloadSpec]:
    return [kind.spec for kind in settings_of(text, **given).kinds]


def told(spec: WorkloadSpec) -> tuple[tuple[str, ...], int, bool]:
    assert spec.models is not None
    assert spec.shared_prefix is not None
    return spec.models.names, spec.shared_prefix.groups, spec.unique_head


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ({}, (("base", "lora-a"), 4, False)),
        ({"models": "x,y"}, (("x", "y"), 4, False)),
        ({"shared_prefix": "groups=9 tokens=90"}, (("base", "lora-a"), 9, False)),
        ({"unique_head": "on"}, (("base", "lora-a"), 4, True)),
        ({"unique_head": "off", "models": ""}, (("base", "lora-a"), 4, False)),
    ],
)
def test_options_win_over_the_top_level_and_not_over_a_class(given: dict[str, str], plain: Any) -> None:
    assert [told(spec) for spec in specs(TOP, **given)] == [plain]
    assert [told(spec) for spec in specs(TOP + CLASSES, **given)] == [plain, (("lora-c",), 7, True)]


def test_without_a_top_level_options_are_of_the_classes_that_say_nothing() -> None:
    of_plain, of_own = specs(CLASSES, models="x", unique_head="off", shared_prefix="groups=9 tokens=90")
    assert told(of_plain) == (("x",), 9, False)
    assert told(of_own) == (("lora-c",), 7, True)
