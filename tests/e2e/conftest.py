"""The servers of the end-to-end tests, one of each for the whole session."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import balancers, servers
from e2e.servers import Server

ROOT = Path(__file__).parents[2]
VENV_VARIABLE = "LLM_LOCUST_E2E_VENV"


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
def transformers_serve(server_venv: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with servers.transformers_serve(server_venv, tmp_path_factory.mktemp("transformers")) as server:
        yield server


@pytest.fixture(scope="session")
def nginx(transformers_serve: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with balancers.nginx([transformers_serve], tmp_path_factory.mktemp("nginx")) as server:
        yield server
