"""The command as a process: ready line, signals, exit codes, messages."""

import argparse
import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from llm_locust.sim import command

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
    with started("--truth", str(truth), "--replicas", "2", "--model", "m") as (process, url):
        body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
        with urllib.request.urlopen(f"{url}/completions", body, timeout=5) as answer:
            assert json.load(answer)["model"] == "m"
        process.send_signal(number)
        assert process.wait(5) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert len(truth.read_text().splitlines()) == 1


def test_the_ready_line_says_replicas_and_model_and_then_each_replicas_port(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with started("--replica-ports", "0", "--replicas", "2") as (process, url):
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        assert [line.split(" on ")[0] for line in lines] == ["replica-0", "replica-1"]
        assert len({url, *(line.split(" on ")[1].strip() for line in lines)}) == 3


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
        (["--kv-cache-tokens", "1000"], "--max-model-len 32768 is more than --kv-cache-tokens 1000"),
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
        (["--step-base", "20"], "argument --step-base: '20' is not a duration"),
        (["--replicas", "0"], "argument --replicas: '0' is not a whole number of at least 1"),
        (["--port", "70000"], "argument --port: '70000' is not a port"),
        (["--noise", "nan"], "argument --noise: 'nan' is not a number of at least 0"),
        (["--fault-after-tokens", "-1"], "argument --fault-after-tokens"),
        (["--routing", "best"], "argument --routing: invalid choice: 'best'"),
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
