"""What renders and judges Kubernetes' manifests: of ``make test-k8s``, or on the machine already."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_locust.k8s.kubectl import render
from llm_locust.k8s.overlay import MANIFESTS, write_overlay
from llm_locust.k8s.plan import OverlayPlan
from llm_locust.options.table import GRAMMAR
from llm_locust.scenario import load_scenario

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".venv-k8s" / "bin"

OVERLAYS = sorted(path.name for path in (MANIFESTS / "overlays").iterdir())

#: The component, on the overlay headless.
POD_DISCOVERY = "pod-discovery"


@contextmanager
def kubectl_on_path() -> Iterator[None]:
    """A kubectl or kustomize while it lasts: the machine's, or else ours. Skips where there is none."""
    with pytest.MonkeyPatch.context() as patch:
        if not _found():
            patch.setenv("PATH", os.pathsep.join([os.environ["PATH"], str(TOOLS)]))
        if not _found():
            pytest.skip("neither kubectl nor kustomize is on the PATH: `make test-k8s` installs one")
        yield


def _found() -> bool:
    return any(shutil.which(name) for name in ("kubectl", "kustomize"))


class Rendered:
    """The manifests of an overlay, or of the component, by name; each rendered once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        if name not in self._made:
            folder = MANIFESTS / "overlays" / name
            if name == POD_DISCOVERY:
                folder = self._folder / name
                folder.mkdir()
                _write_with_pod_discovery(folder)
            self._made[name] = render(folder)
        return self._made[name]


def _write_with_pod_discovery(folder: Path) -> None:
    scenario = load_scenario(MANIFESTS / "base" / "scenario.yaml", GRAMMAR)
    target = "http://vllm.llm-locust.svc:8000"
    write_overlay(OverlayPlan(scenario=scenario, workers=2, target=target, pod_discovery=True), folder)


def tool(name: str) -> str:
    path = TOOLS / name
    if not path.exists():
        pytest.skip(f"{name} is not installed: `make test-k8s` does that")
    return str(path)


def output(*command: str, given: str | None = None, codes: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=300, cwd=ROOT, check=False
    )
    assert done.returncode in codes, done.stdout + done.stderr
    return done.stdout


def documents(text: str) -> list[Any]:
    return list(yaml.safe_load_all(text))


def pods(text: str) -> Iterator[tuple[str, Any]]:
    """Name and pod spec of whatever makes pods."""
    for document in documents(text):
        if "template" in document.get("spec", {}):
            yield document["metadata"]["name"], document["spec"]["template"]["spec"]


def found(text: str, kind: str, name: str) -> Any:
    (document,) = (d for d in documents(text) if d["kind"] == kind and d["metadata"]["name"].startswith(name))
    return document
