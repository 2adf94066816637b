"""The command and a simulated deployment: healthy, behind an nginx that buffers, from a starved client."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from e2e.servers import running
from swarm_process import free_port, simulation

from llm_locust.cli.main import main

#: The outer server asks by HTTP/1.0, so that the stream is not chunked, and nginx fills a buffer with it.
NGINX = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{inner}; }} }}
    server {{
        listen 127.0.0.1:{inner};
        location / {{ proxy_pass {url}; proxy_http_version 1.1; proxy_buffering off; }}
    }}
}}
"""


@contextmanager
def nginx(url: str, folder: Path) -> Iterator[str]:
    """An nginx that buffers, before the deployment at ``url``."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        pytest.skip("nginx is not installed")
    port = free_port()
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, port=port, inner=free_port(), url=url))
    with running([program, "-c", str(config)], port, folder / "nginx.log"):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    # Slow beside what a busy machine is late.
    engine = ("--api-key", "sk-of-this-test", "--step-base", "60ms")
    with simulation(tmp_path_factory.mktemp("sim"), *engine) as sim:
        yield sim.url


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIM_KEY", "sk-of-this-test")


def examined(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    whole = ["--body", '{"ignore_eos": true}']  # the simulator then sends all 32 tokens
    code = main(["doctor", "--json", "--api-key-env", "SIM_KEY", *whole, *words])
    said = capsys.readouterr()
    assert said.err == ""
    assert "sk-of-this-test" not in said.out
    return code, {check["key"]: check for check in json.loads(said.out)["checks"]}


def test_a_healthy_deployment_fails_no_check_of_the_server(
    sim: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _code, found = examined(capsys, sim)
    of_server = [*found][[*found].index("dns") :]
    assert [key for key in of_server if found[key]["status"] == "fail"] == []
    assert found["models"]["figure"] == "1 model: sim"
    assert found["api_key"]["figure"].startswith("accepted")
    assert found["usage"]["figure"] == "8 input and 32 output tokens"
    assert found["end"]["figure"].endswith("[DONE]")
    assert found["keep_alive"]["status"] == "ok"


def test_a_wrong_key_is_refused(
    sim: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIM_KEY", "sk-another-one")
    code, found = examined(capsys, sim, "--model", "sim")
    assert code == 2
    assert "refused (HTTP 401)" in found["api_key"]["figure"]
    assert "sk-another-one" not in str(found)


def test_each_model_of_a_split_is_asked_for_a_token(sim: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = examined(capsys, sim, "--models", "sim=3,lora-x=1")
    assert code == 2
    assert found["first_token"]["status"] == "ok"
    assert found["other_models"]["status"] == "fail"
    assert found["other_models"]["figure"].startswith("lora-x: ")
    assert "404" in found["other_models"]["figure"]


def test_an_nginx_that_buffers_is_named_with_its_settings(
    sim: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with nginx(sim, tmp_path) as url:
        code, found = examined(capsys, url)
    assert code == 2
    assert "burst" in found["stream"]["figure"]
    assert found["stream"]["status"] == "fail"
    assert "nginx: `proxy_buffering off;`" in found["stream"]["change"]


def test_a_client_with_few_open_files_is_named() -> None:
    command = f"ulimit -n 256; exec {sys.executable} -m llm_locust doctor --users 500"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stderr
    assert "256 at most, 564 needed for 500 users" in done.stdout
    assert "ulimit -n 564" in done.stdout
    assert "\x1b" not in done.stdout  # no colours where there is no terminal
