"""The scraper's process against a simulated deployment."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest
from page_server import hang, page, serving

from llm_locust.deployment import scraper
from llm_locust.deployment.samples import read_samples

SIM = [sys.executable, "-m", "llm_locust.sim", "--port", "0", "--replicas", "2", "--replica-ports", "0"]
FAST = ["--ttft-base", "0ms", "--step-base", "1ms", "--step-per-seq", "0ms", "--prefill-per-token", "0ms"]
SCRAPER = [sys.executable, "-m", "llm_locust.deployment.scraper"]


@contextmanager
def process(*words: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as made:
        try:
            yield made
        finally:
            made.kill()


@contextmanager
def deployment() -> Iterator[list[str]]:
    """The base URLs of the gateway and of its two replicas, without /v1."""
    with process(*SIM, *FAST) as sim:
        assert sim.stdout is not None
        lines = [sim.stdout.readline() for _ in range(3)]
        yield [line.split(" on ")[1].split()[0].removesuffix("/v1") for line in lines]


def ask(url: str, tokens: int) -> str:
    """One request for so many tokens; gives the replica that served it."""
    body = {"model": "sim", "prompt": "one two three", "max_tokens": tokens, "ignore_eos": True}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), method="POST")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=120) as response:
        response.read()
        return str(response.headers["X-Served-By"])


def latest(out: Path) -> dict[tuple[str, str], float]:
    """The last value by target and name, labels left out."""
    return {
        (row["target"], row["name"]): row["value"]
        for table in read_samples(out)
        for row in table.to_pylist()
        if not row["name"].endswith("_bucket")
    }


def until(found: "subprocess.Popen[str]", out: Path, key: tuple[str, str], value: float) -> None:
    ends = time.monotonic() + 60
    while latest(out).get(key) != value:
        assert found.poll() is None, found.communicate()
        assert time.monotonic() < ends, latest(out)
        Event().wait(0.05)


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_counters_in_the_file_are_the_simulators_own_totals(tmp_path: Path, ending: signal.Signals) -> None:
    out = tmp_path / "server_metrics.parquet"
    with deployment() as (gateway, *replicas), serving(hang) as hung, serving(page("<html>")) as bad:
        metrics = [f"{url}/metrics" for url in replicas]
        others = [f"{gateway}/gpu/metrics", *(f"http://127.0.0.1:{port}/metrics" for port in (hung, bad))]
        urls = [word for url in (*metrics, *others) for word in ("--url", url)]
        with process(*SCRAPER, *urls, "--out", str(out), "--interval", "0.2", "--timeout", "0.3") as found:
            tokens: dict[str, int] = defaultdict(int)
            for count in (3, 5, 7, 11, 13):
                tokens[ask(gateway, count)] += count
            names = [url.removeprefix("http://") for url in replicas]
            if ending is signal.SIGKILL:  # nothing more can be asked of it then
                for i, name in enumerate(names):
                    until(found, out, (name, "generation_tokens"), tokens[f"replica-{i}"])
                until(found, out, (f"127.0.0.1:{hung}", "up"), 0.0)
            else:
                until(found, out, (names[0], "up"), 1.0)
            found.send_signal(ending)
            _, said = found.communicate(timeout=120)
        assert out.exists() == (ending is signal.SIGTERM)
        assert found.returncode == (0 if ending is signal.SIGTERM else -signal.SIGKILL)
    values = latest(out)
    assert [values[name, "generation_tokens"] for name in names] == [tokens["replica-0"], tokens["replica-1"]]
    assert [values[name, "ttft_s_count"] for name in names] == [3, 2]
    assert [values[name, "up"] for name in names] == [1.0, 1.0]
    assert values[gateway.removeprefix("http://"), "energy_j"] > 0
    assert values[f"127.0.0.1:{bad}", "up"] == values[f"127.0.0.1:{hung}", "up"] == 0.0
    assert "not Prometheus text" in said
    assert "no whole page" in said


def test_it_ends_when_its_parent_is_gone_and_samples_stand_on_the_runs_time(tmp_path: Path) -> None:
    out = tmp_path / "server_metrics.parquet"
    with serving(page("tgi_queue_size 3\n")) as port:
        words = ["--url", f"http://127.0.0.1:{port}", "--out", str(out), "--parent", str(os.getpid() + 1)]
        before = time.monotonic_ns()
        subprocess.run([*SCRAPER, *words, "--monotonic-ahead-ns", "5000000000"], timeout=120, check=True)
        after = time.monotonic_ns()
    assert latest(out)[f"127.0.0.1:{port}", "waiting"] == 3.0
    at_ns = [row["at_ns"] - 5_000_000_000 for table in read_samples(out) for row in table.to_pylist()]
    assert at_ns
    assert all(before < at < after for at in at_ns)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--url", "ftp://x"], "is not one such as"),
        (["--url", "http://x", "--map", "nonsense"], "write theirs=ours"),
        (["--url", "http://x", "--interval", "0"], "write 0.1 to 60 seconds"),
        (["--url", "http://x", "--timeout", "nan"], "write seconds above 0"),
        (["--url", "http://x", "--api-key-env", "NO_SUCH_VARIABLE"], "is not set"),
    ],
)
def test_options_that_cannot_work_are_said_in_one_line(
    words: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scraper.main([*words, "--out", str(tmp_path / "x.parquet")]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1


def test_the_words_of_the_command_are_checked_before_there_is_a_process(tmp_path: Path) -> None:
    made = scraper.words(["http://a:1"], tmp_path, mappings=["x=waiting"], parent=7, monotonic_ahead_ns=-5)
    assert made[-3:] == ["--map=x=waiting", "--parent=7", "--monotonic-ahead-ns=-5"]
    with pytest.raises(ValueError, match="is not one such as"):
        scraper.words(["ftp://a"], tmp_path)
    with pytest.raises(ValueError, match="write seconds above 0"):
        scraper.words(["http://a:1"], tmp_path, timeout_s=-1)
    assert "--url=--tell" in scraper.words(["--tell"], tmp_path), "no URL is an option of the command's own"


def test_who_started_it_is_told_what_servers_say_now_and_keeps_the_samples_as_they_are(
    tmp_path: Path,
) -> None:
    out = tmp_path / "server_metrics.parquet"
    with serving(page("tgi_queue_size 3\n")) as port, serving(hang) as hung:
        urls = [f"--url=http://127.0.0.1:{each}" for each in (port, hung)]
        words = [*urls, "--out", str(out), "--tell", "--interval", "0.1", "--timeout", "0.1"]
        with process(*SCRAPER, *words) as found:
            assert found.stdout is not None
            lines = (scraper.read_told(line.encode()) for line in found.stdout)
            told = next(servers for servers in lines if len(servers) == 2)
            found.send_signal(signal.SIGTERM)
            found.communicate(timeout=120)
    assert {server.name: (server.up, server.waiting) for server in told} == {
        f"127.0.0.1:{port}": (True, 3.0),
        f"127.0.0.1:{hung}": (False, None),
    }
    assert found.returncode == 0
    assert not out.exists()
    assert latest(out)[f"127.0.0.1:{port}", "waiting"] == 3.0


def test_nobody_who_reads_does_not_hold_it_up(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    while True:  # until the pipe is full
        try:
            os.write(write, b"x" * 4096)
        except BlockingIOError:
            break
    out = tmp_path / "server_metrics.parquet"
    with serving(page("tgi_queue_size 3\n")) as port:
        words = ["--url", f"http://127.0.0.1:{port}", "--out", str(out), "--tell", "--interval", "0.1"]
        with subprocess.Popen([*SCRAPER, *words], stdout=write, stderr=subprocess.PIPE, text=True) as found:
            until(found, out, (f"127.0.0.1:{port}", "waiting"), 3.0)
            found.send_signal(signal.SIGTERM)
            assert found.wait(120) == 0
    os.close(read)
    os.close(write)


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    words = ["--url", "http://127.0.0.1:9", "--out", str(tmp_path / "no" / "x.parquet")]
    done = subprocess.run([*SCRAPER, *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "cannot be written: No such file" in done.stderr
    assert "Traceback" not in done.stderr
