"""The command as a process: ready line, signals, exit codes, messages."""

import argparse
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path

import pytest

from llm_locust.sim import command
from llm_locust.sim.answers.jobs import ModelLimits
from llm_locust.sim.engine.scheduler import EngineProfile
from llm_locust.sim.faults import FAULTS, Action, Event
from llm_locust.sim.routing import POLICIES
from llm_locust.sim.truth import TruthEntry

START = [sys.executable, "-m", "llm_locust.sim", "--port", "0"]


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(words)


@contextmanager
def started(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its base URL."""
    with subprocess.Popen(
        [*START, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("listening on http://127.0.0.1:"), line
            yield process, line.split(" ")[2]
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_when_it_is_ready_serves_and_ends_cleanly_on_a_signal(
    tmp_path: Path, number: signal.Signals
) -> None:
    truth = tmp_path / "truth.jsonl"
    words = ("--truth", str(truth), "--replicas", "2", "--replica-ports", "0", "--model", "m")
    with started(*words) as (process, url):
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        assert [line.split(" on ")[0] for line in lines] == ["replica-0", "replica-1"]
        assert len({url, *(line.split(" on ")[1].strip() for line in lines)}) == 3
        body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
        with urllib.request.urlopen(f"{url}/completions", body, timeout=120) as answer:
            assert json.load(answer)["model"] == "m"
        process.send_signal(number)
        assert process.wait(120) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert len(truth.read_text().splitlines()) == 1


def fails_with(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert command.run(parse(*words)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


def test_a_busy_port_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        said = fails_with(capsys, "--port", str(port))
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another port" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--faults", "reset=1% rest=1%"], "word 2 of the fault plan, 'rest=1%'"),
        (["--host", "256.1.1.1"], "cannot listen on 256.1.1.1:0: "),
        (["--truth", "/nowhere/truth.jsonl"], "truth log /nowhere/truth.jsonl: No such file or directory"),
        (
            ["--max-num-seqs", "100", "--max-num-batched-tokens", "50"],
            "--max-num-batched-tokens 50 is less than",
        ),
        (["--kv-cache-tokens", "1000"], "--max-model-len 32768 is more than --kv-cache-tokens 1000 holds in"),
        (
            ["--kv-block-tokens", "9000000"],
            "--kv-cache-tokens 500000 holds in blocks of 9000000: a longest sequence would never run",
        ),
        (["--plan", "10s kill 7"], "word 2 of the plan, 'kill': there is no replica 7; there are 0 to 3"),
        (["--plan", "kill 2"], "word 2 of the plan, '2': the step ends too early"),
        (["--replica-speed", "4=2x"], "--replica-speed names replica 4, but --replicas 4 counts from 0"),
        (
            ["--replica-speed", "1=2x", "--replica-speed", "1=3x"],
            "--replica-speed names replica 1 twice; leave one out",
        ),
        (["--health-interval", "0"], "--health-interval 0 is not an interval; write such as 2s"),
        (["--profile", "nowhere.yaml"], "profile nowhere.yaml: cannot be read: No such file or directory"),
        (["--model", "caf\udce9"], "--model 'caf\\udce9' is not a name"),
        (["--replica-ports", "65534"], "--replica-ports 65534 leaves no room for 4 ports"),
    ],
)
def test_settings_that_cannot_work_are_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert says in fails_with(capsys, "--port", "0", *words)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--step-base", "20"], "argument --step-base: '20': a number without a unit"),
        (["--replicas", "0"], "argument --replicas: '0' is not a whole number of at least 1"),
        (["--port", "70000"], "argument --port: '70000' is not a port"),
        (["--noise", "nan"], "argument --noise: 'nan' is not a number of at least 0"),
        (["--fault-after-tokens", "-1"], "argument --fault-after-tokens"),
        (["--routing", "best"], "argument --routing: invalid choice: 'best'"),
        (["--replica-speed", "1"], "argument --replica-speed: '1' is not a replica and its factor"),
        (["--replica-speed", "1=fast"], "argument --replica-speed: 'fast' is not a factor from 0.001 to"),
        (["--replica-speed", "1=2x,1=3x"], "argument --replica-speed: '1=2x,1=3x' names replica 1 twice"),
        (["--prefix-cache", "yes"], "argument --prefix-cache: 'yes' is neither on nor off"),
        (["--kv-block-tokens", "0"], "argument --kv-block-tokens: '0' is not a whole number of at least 1"),
    ],
)
def test_a_bad_value_is_named_with_its_option(
    capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(*words)
    assert caught.value.code == 2
    assert says in capsys.readouterr().err


def test_options_arrive_in_the_settings() -> None:
    settings = command.settings_from(
        parse("--step-base", "20ms", "--ttft-base", "1.5s", "--model", "a", "--model", "b", "--stall", "2s",
              "--noise", "0", "--faults", "cut=1%", "--routing", "random", "--keep-alive", "5s")
    )  # fmt: skip
    assert (settings.engine.step_base_ns, settings.engine.ttft_base_ns) == (20_000_000, 1_500_000_000)
    assert (settings.limits.models, settings.engine.noise) == (("a", "b"), 0.0)
    assert (settings.faults.stall_ns, settings.faults.plan.rates) == (2_000_000_000, (("cut", 0.01),))
    assert (settings.routing, settings.keep_alive_s, settings.port) == ("random", 5.0, 8000)


def test_options_of_gateway_replicas_and_cache_arrive_in_the_settings() -> None:
    settings = command.settings_from(
        parse("--replica-speed", "1=3x,2=0.5", "--replica-speed", "0=2", "--routing", "prefix",
              "--prefix-imbalance", "4", "--plan", "2s kill 1; 1s slow 0 3x", "--health-interval", "500ms",
              "--prefix-cache", "on", "--kv-block-tokens", "32", "--overlap", "on",
              "--context-per-token", "40ns")
    )  # fmt: skip
    assert settings.speeds == {0: 2.0, 1: 3.0, 2: 0.5}
    assert (settings.routing, settings.prefix_imbalance) == ("prefix", 4)
    assert [step.action for step in settings.plan] == ["slow", "kill"]
    assert settings.health_interval_ns == 500_000_000
    assert settings.engine == replace(
        EngineProfile(), prefix_cache=True, kv_block_tokens=32, overlap=True, context_per_token_ns=40
    )


def test_options_that_are_not_given_are_the_engines_own() -> None:
    settings = command.settings_from(parse())
    assert (settings.engine, settings.limits) == (EngineProfile(), ModelLimits())


def test_options_win_over_the_profile_and_the_profile_over_the_defaults() -> None:
    file = str(Path(__file__).parents[2] / "examples" / "deployments" / "llama-3-8b-h100.yaml")
    plain = command.settings_from(parse("--profile", file))
    settings = command.settings_from(
        parse("--profile", file, "--step-base", "9ms", "--prefix-cache", "off", "--max-model-len", "4096")
    )
    assert (plain.engine.prefix_cache, plain.limits.max_model_len) == (True, 8192)
    assert settings.engine == replace(plain.engine, step_base_ns=9_000_000, prefix_cache=False)
    assert settings.limits.max_model_len == 4096
    assert settings.gpu.model == "H100 SXM"


def test_what_happens_is_told_on_stdout_and_beside_the_truth_log(tmp_path: Path) -> None:
    truth = tmp_path / "truth.jsonl"
    plan = ("--plan", "50ms kill 0; 150ms start 0", "--health-interval", "20ms")
    with started("--truth", str(truth), "--replicas", "2", *plan) as (process, _):
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        said = [re.sub(r" at \d+\.\d{3} s\n", "", line) for line in lines]
        assert said == [
            "plan: replica-0 killed",
            "gateway: replica-0 out of rotation",
            "plan: replica-0 started",
            "gateway: replica-0 back in rotation",
        ]
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    events = [json.loads(line) for line in (tmp_path / "truth.jsonl.events.jsonl").read_text().splitlines()]
    assert [event["action"] for event in events] == ["kill", "out", "start", "in"]


DOCS = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()


def test_the_documentation_names_each_option_and_no_other() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    command.add_arguments(parser)
    table = DOCS.split("## Options")[1]
    assert set(re.findall(r"--[a-z][a-z-]+", table)) == set(parser._option_string_actions)
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", DOCS)) <= set(parser._option_string_actions)


def test_the_documentation_names_each_key_of_the_logs_each_fault_policy_and_action() -> None:
    for kind, head in ((TruthEntry, "## The truth log"), (Event, "## Replicas that differ")):
        named = re.findall(r"`([a-z_]+)`", DOCS.split(head)[1].split("\n## ")[0])
        assert {field.name for field in fields(kind)} <= set(named)
    for word in (*FAULTS, *POLICIES, *Action):
        assert f"`{word}`" in DOCS
