"""The network that all pods of the tests are on."""

from collections.abc import Iterator

import pytest
from k8s_tools import kubectl_on_path

from pods.cases import IMAGE
from pods.cluster import network


@pytest.fixture(scope="session", autouse=True)
def _network() -> Iterator[None]:
    if not IMAGE:
        pytest.skip("needs root and podman; run by `make test-k8s`")
    with kubectl_on_path(), network():
        yield
