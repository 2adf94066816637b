"""The command as a process: ready line, signals, exit codes, messages; its deployment profiles."""

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
from llm_locust.sim.engine import Engine, EngineProfile, EngineSequence
from llm_locust.sim.faults import FAULTS, Action
from llm_locust.sim.jobs import ModelLimits
from llm_locust.sim.replica import POLICIES
from llm_locust.sim.settings import SettingsError, read_profile
from llm_locust.sim.telemetry import Event, TruthEntry

# --- The command as a process: ready line, signals, exit codes, messages


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


# --- Deployment profiles: what is computed, what is stated, and what is wrong


EXAMPLES = Path(__file__).parents[2] / "examples"

#: A model and a GPU whose costs can be told by heart: 1 ms to read the weights, 1 µs a token.
VALUES = """
model: {name: toy, parameters: 1000000, layers: 1, hidden_size: 8, attention_heads: 1, kv_heads: 1,
        head_dim: 8, vocabulary: 10, tied_embeddings: true}
gpu: {name: toy, memory_bytes: 20000000, bandwidth_bytes_per_s: 2000000000, bf16_flops: 2000000000000}
"""


def profile(folder: Path, text: str) -> Path:
    path = folder / "profile.yaml"
    path.write_text(text)
    return path


def test_costs_follow_from_values_that_the_file_states(tmp_path: Path) -> None:
    read = read_profile(profile(tmp_path, VALUES + "memory_utilization: 0.5"))
    assert read.engine == {
        "ttft_base_ns": 0,
        "step_per_sequence_ns": 0,
        "step_base_ns": 1_000_000,  # 2 MB / 2 GB/s
        "prefill_per_token_ns": pytest.approx(1_000.0, rel=1e-3),  # 2 · 10⁶ FLOP / 2 TFLOP/s
        "context_per_token_ns": pytest.approx(16.0),  # 2 · 8 values of 2 bytes / 2 GB/s
        "kv_cache_tokens": 250_000,  # 8 MB beside the weights, 32 bytes each
        "overlap": True,
    }
    assert read.max_model_len is None
    assert "toy" in read.source


def test_several_gpus_share_the_work_and_efficiencies_make_it_slower(tmp_path: Path) -> None:
    text = VALUES + "gpus: 4\nmemory_efficiency: 0.5\ncompute_efficiency: 0.25"
    read = read_profile(profile(tmp_path, text))
    assert read.engine["step_base_ns"] == 500_000
    assert read.engine["prefill_per_token_ns"] == pytest.approx(1_000.0, rel=1e-3)
    assert read.gpu.count == 4
    assert read.gpu.weights_mib == pytest.approx(500_000 / 2**20)


def test_what_the_file_states_of_the_engine_is_taken_as_it_stands(tmp_path: Path) -> None:
    stated = "engine: {step_base: 7ms, max_num_seqs: 3, prefix_cache: on, noise: 0, max_model_len: 100}"
    read = read_profile(profile(tmp_path, VALUES + stated))
    assert read.engine["step_base_ns"] == 7_000_000
    assert (read.engine["max_num_seqs"], read.engine["prefix_cache"], read.engine["noise"]) == (3, True, 0.0)
    assert read.max_model_len == 100


def test_a_model_is_found_beside_the_profile(tmp_path: Path) -> None:
    model = EXAMPLES / "models" / "llama-3-8b.yaml"
    (tmp_path / "m.yaml").write_text(model.read_text())
    read = read_profile(profile(tmp_path, "model: m.yaml\ngpu: h100"))
    assert read.engine["step_base_ns"] == pytest.approx(15.01e9 / 3.35e12 * 1e9, rel=1e-3)


@pytest.mark.parametrize("path", sorted((EXAMPLES / "deployments").glob("*.yaml")), ids=lambda p: p.stem)
def test_the_examples_make_engines(path: Path) -> None:
    read = read_profile(path)
    engine = EngineProfile(**read.engine)
    assert read.max_model_len is not None
    assert engine.longest_sequence_tokens >= read.max_model_len
    assert engine.overlap


def test_an_idle_engine_of_a_profile_runs_at_its_roofline(tmp_path: Path) -> None:
    read = read_profile(profile(tmp_path, VALUES))
    engine, ends_ns = Engine(replace(EngineProfile(**read.engine), noise=0.0), 0), list[int]()
    engine.submit(EngineSequence(prompt_tokens=2, output_tokens=51, ready_ns=0))
    while (end_ns := engine.start_step()) is not None:
        ends_ns.append(end_ns)
        engine.finish_step()
    # 50 steps of 1 ms and of 16 ns for each of up to 53 tokens of context.
    assert len(ends_ns) == 51
    assert 50_000_000 < ends_ns[-1] - ends_ns[0] < 50_000_000 + 50 * 16 * 53


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1", "broken YAML"),
        ("- model", "not a mapping: write lines such as gpu: h100"),
        ("gpu: h100", "model is missing"),
        ("model: m.yaml\ngpuu: h100", "there is no key 'gpuu'; did you mean 'gpu'?"),
        ("model: m.yaml\ngpu: h100", "m.yaml: cannot be read: No such file"),
        (VALUES.replace("gpu: {", "gpu: h1000 #"), 'there is no GPU "h1000": did you mean "h100"'),
        (VALUES.replace("layers: 1, ", ""), "model: Object missing required field `layers`"),
        (VALUES.replace("layers: 1", "layers: -1"), "layers of toy is -1: write a number above 0"),
        (VALUES.replace("layers", "layer"), "model: there is no key 'layer'; did you mean 'layers'?"),
        (VALUES.replace("20000000,", "much,"), "gpu: Expected `float`, got `str` - at `$.memory_bytes`"),
        (VALUES.replace("20000000,", "2000000,"), "do not fit into 90% of"),
        (VALUES + "gpus: 0", "gpus is 0: write a whole number of at least 1"),
        (VALUES + "memory_efficiency: 2", "memory_efficiency is 2: write a number above 0 and at most 1"),
        (VALUES + "engine: fast", "engine is 'fast': write a mapping"),
        (VALUES + "engine: {step: 1ms}", "engine: there is no key 'step'; did you mean 'step_base'?"),
        (VALUES + "engine: {step_base: 1}", "engine: step_base: '1': a number without a unit"),
        (VALUES + "engine: {prefix_cache: 1}", "engine: prefix_cache is 1: write on or off"),
        (VALUES + "engine: {noise: loud}", "engine: noise is 'loud': write a number of at least 0"),
    ],
)
def test_a_bad_profile_is_one_line_with_the_files_name(tmp_path: Path, text: str, says: str) -> None:
    path = profile(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        read_profile(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
