"""What the tests of manifests share."""

from collections.abc import Iterator

import pytest
from k8s_tools import Rendered, kubectl_on_path


@pytest.fixture(scope="session")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rendered]:
    """All overlays and components, each rendered once."""
    with kubectl_on_path():
        yield Rendered(tmp_path_factory.mktemp("rendered"))
