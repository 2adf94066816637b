"""The servers of the end-to-end tests, one of each for the whole session."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import balancers, servers
from e2e.servers import Server

ROOT = Path(__file__).parents[2]
VENV_VARIABLE = "LLM_LOCUST_E2E_VENV"
TASKS = "agentperf/agentperf_local/data/replays/agentperf-default-v1/traces"


@pytest.fixture(scope="session")
def server_venv() -> Path:
    """The environment that holds the servers. Missing is a failure: a skip would look like a pass."""
    venv = ROOT / os.environ.get(VENV_VARIABLE, ".venv-e2e")
    if not (venv / "bin/transformers").exists():
        pytest.fail(
            f"{venv} has no bin/transformers: run `make test-e2e`, which makes it, "
            f"or let {VENV_VARIABLE} name an environment made from tests/e2e/requirements.txt"
        )
    return venv


@pytest.fixture(scope="session")
def tasks(server_venv: Path) -> Path:
    """The folder of recorded tasks."""
    folder = server_venv / TASKS
    assert [*folder.glob("*.jsonl")], f"{folder}: run `make test-e2e`, which puts the tasks there"
    return folder


@pytest.fixture(scope="session")
def _servers(
    server_venv: Path, tasks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Server]]:
    with servers.transformers_serve(server_venv, tasks, tmp_path_factory.mktemp("transformers")) as both:
        yield both


@pytest.fixture(scope="session")
def transformers_serve(_servers: tuple[Server, Server]) -> Server:
    return _servers[0]


@pytest.fixture(scope="session")
def serve_of_long_histories(_servers: tuple[Server, Server]) -> Server:
    """With a context of 65,536 tokens."""
    return _servers[1]


@pytest.fixture(scope="session")
def nginx(transformers_serve: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with balancers.nginx([transformers_serve], tmp_path_factory.mktemp("nginx")) as server:
        yield server
