"""One row an option: every way in takes and refuses the same texts, and the reference has each row."""

import argparse
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import configargparse  # type: ignore[import-untyped]
import pytest

from llm_locust.options.option import Group
from llm_locust.options.table import (
    GRAMMAR,
    GROUPS,
    LOCUST_OPTIONS,
    NOT_LOAD,
    OPTION,
    OPTIONS,
    recorded,
    reference,
)
from llm_locust.scenario.document import SHARED, parse_scenario
from llm_locust.scenario.tree import ScenarioError

ROOT = Path(__file__).parents[2]

#: Name -> a text that is taken, and one that is refused.
TEXTS = {
    "input_tokens": ("uniform:1,9", "many"),
    "output_tokens": ("64", "-1"),
    "dataset_order": ("shuffled", "shufled"),
    "agent_history": ("own", "mine"),
    "cache_bust": ("off", "no"),
    "images": ("count=2 size=1024x768", "size=16"),
    "shared_prefix": ("groups=10 tokens=5", "groups=0"),
    "unique_head": ("off", "none"),
    "correct_lengths": ("on", "yes"),
    "calibrate_streams": ("400", "0"),
    "body": ('{"temperature": 0}', "[1]"),
    "models": ("zipf:1.1 base,lora-a", "base=x"),
    "session_header": ("cookie:llm-d-session", "content-type"),
    "slo_headers": ("x-slo", "x slo"),
    "sweep": ("users=1,2", "users=0"),
    "stage_time": ("30s", "0s"),
    "until": ("p99_ttft±5%", "p99_ttft<5%"),
    "repeat": ("3", "0"),
    "find": ("max rate under goodput>=95%", "max rate under p99_ttft<0ms"),
    "first_load": ("2.5", "0"),
    "precision": ("10%", "5"),
    "max_stages": ("8", "0"),
    "slo": ("ttft=1s", "ttft=fast"),
    "slo_from": ("sent", "begun"),
    "gate": ("goodput>=95%", "goodput"),
    "warmup": ("1.5s", "3"),
    "window": ("steady", "90s"),
    "seed": ("0", "-1"),
    "timeouts": ("first=5s, total=1m", "gap=0s"),
    "max_answer": ("1.5MiB", "1KiB"),
    "stamps": ("program", "packet"),
    "drain": ("0", "-1s"),
    "flush_timeout": ("1m30s", "soon"),
    "header": ("X-Team=a=b", "nothing"),
    "header_env": ("X-Key=KEY", "X-Key=a-b"),
    "progress": ("plain", "rich!"),
    "rolling_summary": ("10m", "10"),
    "gpu_type": ("h100", "abacus"),
    "model_shape": (str(ROOT / "examples" / "models" / "llama-3-8b.yaml"), "/nowhere.yaml"),
    "gpu_hour_cost": ("2.5", "-1"),
    "gpus": ("4", "four"),
    "input_token_price": ("0", "inf"),
    "output_token_price": ("1", "nan"),
    "keep": ("6h", "6"),
    "note": ("vLLM 0.9 with chunked prefill", "x" * 1001),
    "arrival": ("gamma:2", "poison"),
    "request_rate": ("ramp:1..10,60s", "-5"),
    "max_in_flight": ("8", "0"),
    "num_requests": ("100", "1.5"),
    "backoff": ("off", "5s"),
    "stop_when": ("error_rate>20% over 30s, oversaturation", "error_rate>100%"),
    "trace_scale": ("0.5", "0"),
    "trace_block": ("16", "3"),
    "trace_unit": ("s", "min"),
    "skip_bad_lines": ("5", "-1"),
    "dataset_keys": ("lora_id,domain", "a,,b"),
    "trace_slice": ("10m-20m", "20m-10m"),
    "targets": ("http://a:1 dns+http://b:2", "http://a:port"),
    "arm": ("gateway=http://a:1 share=2", "http://a:1"),
    "target_policy": ("sticky", "fastest"),
    "connection_reuse": ("off", "0"),
    "replica_url": ("http://a:1", "dns+https://a"),
    "expect_replicas": ("2", "-2"),
    "ready_timeout": ("2m", "2"),
    "canary": ("off", "yes"),
    "tls_name": ("llm.example.org", "llm example"),
    "metrics_interval": ("500ms", "fast"),
    "profile_server": ("30s@120s", "0s@5s"),
    "reset_prefix_cache": ("both", "end"),
    "allow_host": ("http://a:1", "http://a:port"),
}


def command_line(*words: str) -> argparse.Namespace:
    """The options of a process, from its environment too."""
    parser = configargparse.ArgumentParser()  # Locust's own is made of it, and importing that patches sockets
    for row in OPTIONS:
        parser.add_argument(row.flag, **row.argument)
    options: argparse.Namespace = parser.parse_args(list(words))
    return options


def scenario(text: str) -> argparse.Namespace:
    return argparse.Namespace(**parse_scenario(text, "s.yaml", GRAMMAR).options)


@pytest.fixture(autouse=True)
def no_option_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in OPTIONS:
        monkeypatch.delenv(row.variable, raising=False)


def test_every_row_with_a_grammar_has_texts_here() -> None:
    rows = (row for row in OPTIONS if row.parse is not Path)  # every text is a path
    assert {row.name for row in rows if row.parse or row.check or row.choices} == TEXTS.keys()


@pytest.mark.parametrize("group", GROUPS.values())
def test_the_value_of_a_field_is_of_its_type(group: type[Group]) -> None:
    types = get_type_hints(group)
    for name, row in group.rows().items():
        texts = (TEXTS[row.name][0],) if row.name in TEXTS else ()
        words = [f"{row.flag}={text}" for text in texts] if row.kind != "truth" else [row.flag]
        for value in (row(), row.value(command_line(*words))):
            assert isinstance(value, _classes(types[name])), name


def _classes(annotation: Any) -> tuple[type, ...]:
    """Classes of what an annotation allows."""
    if get_origin(annotation) in (Union, UnionType):
        return tuple(one for each in get_args(annotation) for one in _classes(each))
    if get_origin(annotation) is Literal:
        return (str,)
    return (get_origin(annotation) or annotation,)


@pytest.mark.parametrize("name", TEXTS)
def test_all_ways_in_make_the_same_value_of_a_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row, text = OPTION[name], TEXTS[name][0]
    value = row.value(command_line(f"{row.flag}={text}"))
    assert value not in (None, "", ())
    if row.scope == "run":
        assert row.value(scenario(f"{name}: {text}")) == value
    monkeypatch.setenv(row.variable, text)
    assert row.value(command_line()) == value


@pytest.mark.parametrize("name", TEXTS)
def test_all_ways_in_refuse_the_same_text_and_say_where_it_is(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row, text = OPTION[name], TEXTS[name][1]
    if row.kind == "whole":  # argparse has a number of it, the settings say that it is the wrong one
        with pytest.raises(ValueError, match=f"^{row.flag}: {text} "):
            row.value(command_line(f"{row.flag}={text}"))
    else:
        with pytest.raises(SystemExit):
            command_line(f"{row.flag}={text}")
        assert f"argument {row.flag}: " in capsys.readouterr().err
    if row.kind != "whole" and row.parse is not None:  # as the web UI's form leaves it
        with pytest.raises(ValueError, match=f"^{row.flag}: "):
            row.value(argparse.Namespace(**{name: text}))
    if row.scope == "run":
        with pytest.raises(ScenarioError, match=r"^s\.yaml:1:\d+: "):
            scenario(f"{name}: {text}")


def test_nothing_and_an_empty_text_are_the_default() -> None:
    given = command_line()
    for row in OPTIONS:
        empty = row.value(argparse.Namespace(**{row.name: ""}))
        assert row.value(argparse.Namespace()) == empty == row.value(given), row.name


def test_a_row_is_a_key_of_the_run_or_of_classes_or_of_neither() -> None:
    assert {row.name for row in OPTIONS if row.scope == "run"} <= GRAMMAR.options.keys()
    assert {row.name for row in OPTIONS if row.scope == "classes"} <= SHARED.keys()
    neither = {"scenario", "swarm_secret_env", "allow_host", "web_name"}
    assert {row.name for row in OPTIONS if row.scope is None} == neither


def test_the_manifest_keeps_what_its_rows_say_and_no_secret() -> None:
    given = {row.name: TEXTS.get(row.name, ("x", ""))[0] for row in OPTIONS}
    kept = recorded(argparse.Namespace(**given))
    assert given.items() - kept.items() == {
        (row.name, given[row.name]) for row in OPTIONS if row.record is None
    }
    assert kept.keys() - given.keys() == {row.name for row in LOCUST_OPTIONS}
    assert not [row.name for row in OPTIONS if row.secret and row.record]
    assert {row.name for row in OPTIONS if row.record is None} == {
        *("header", "header_env", "swarm_secret_env", "progress", "rolling_summary", "metrics_port"),
        *("metrics_host", "full", "print_summary", "allow_host", "web_name"),
    }


def test_compare_reports_every_option_that_changes_what_is_asked_of_the_server() -> None:
    assert NOT_LOAD & recorded(argparse.Namespace()).keys() == {
        *(
            "scenario",
            "model",
            "slo",
            "gate",
            "warmup",
            "window",
            "seed",
            "host",
        ),  # with a sentence of their own
        *("out", "restartable", "resume", "spool", "max_answer", "stamps", "flush_timeout", "replica_header"),
        *("calibrate", "calibrate_streams"),
        *("upload", "keep", "note", "gpu_hour_cost", "input_token_price", "output_token_price"),
        *(
            "api_key_env",
            "ca_cert",
            "client_cert",
            "tls_name",
            "insecure",
            "require_valid",
            "allow_incomplete",
            "canary",
        ),
        *("processes", "expect_workers", "stop_timeout"),
    }


def test_the_reference_is_that_of_the_rows() -> None:
    assert (ROOT / "docs" / "options.md").read_text() == reference(), "run make docs"
