"""What renders and judges Kubernetes' manifests: of ``make test-k8s``, or on the machine already."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_locust.k8s.kubectl import render
from llm_locust.k8s.overlay import MANIFESTS

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".venv-k8s" / "bin"

OVERLAYS = sorted(path.name for path in (MANIFESTS / "overlays").iterdir())

#: Components on the overlay headless, or on the soak.
POD_DISCOVERY = "pod-discovery"
COMPONENTS = {
    POD_DISCOVERY: "headless",
    "monitoring": "headless",
    "gateway-api": "soak",
    "kept-spools": "soak",
    "report-container": "headless",
}


@contextmanager
def kubectl_on_path() -> Iterator[None]:
    """A kubectl or kustomize while it lasts: ours, or else the machine's. Skips where there is none.

    A machine's kubectl may be a program that asks the server for its version and then starts another kubectl.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.pathsep.join([str(TOOLS), os.environ["PATH"]]))
        patch.setenv("GOGC", "off")  # of a process that ends within a second
        if not any(shutil.which(name) for name in ("kubectl", "kustomize")):
            pytest.skip("neither kubectl nor kustomize is on the PATH: `make test-k8s` installs one")
        yield


class Rendered:
    """The manifests of an overlay, or of the component, by name; each rendered once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        if name not in self._made:
            folder = MANIFESTS / "overlays" / name
            if name in COMPONENTS:
                folder = self._folder / name
                folder.mkdir()
                _write_with(name, folder)
            self._made[name] = render(folder)
        return self._made[name]


def _write_with(component: str, folder: Path) -> None:
    shutil.copytree(MANIFESTS, folder / "manifests", ignore=shutil.ignore_patterns("__pycache__"))
    content = {
        "resources": [f"manifests/overlays/{COMPONENTS[component]}"],
        "components": [f"manifests/components/{component}"],
        "namespace": "llm-locust",
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))


def tool(name: str) -> str:
    path = TOOLS / name
    if not path.exists():
        pytest.skip(f"{name} is not installed: `make test-k8s` does that")
    return str(path)


def output(*command: str, given: str | None = None) -> str:
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=300, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


#: Runs in the environment of the tools: its program would read all definitions again for each object.
_VALIDATE = """
import functools, json, sys
from kubernetes_validate import utils
utils.schema_contents = functools.cache(utils.schema_contents)
versions, objects = json.load(sys.stdin)
for version in versions:
    for found in objects:
        try:
            utils.validate(found, version, strict=True)
        except utils.jsonschema.ValidationError as e:
            print(version, utils.kn(found), e.json_path, e.message)
        except (utils.SchemaNotFoundError, utils.VersionNotSupportedError) as e:
            print(version, utils.kn(found), e.message)
"""

#: The same of checkov: its program imports what it has for clouds and languages of all kinds.
_ADVISE = """
import json, sys
from checkov.dockerfile.runner import Runner as OfDockerfiles
from checkov.kubernetes.runner import Runner as OfKubernetes
from checkov.runner_filter import RunnerFilter
found = []
for runner in (OfKubernetes(), OfDockerfiles()):
    report = runner.run(root_folder=sys.argv[1], runner_filter=RunnerFilter(framework=[runner.check_type]))
    assert report.passed_checks, runner.check_type
    found += [(check.check_id, check.resource) for check in report.failed_checks]
print(json.dumps(found))
"""


def misfits(objects: Iterable[Any], versions: Iterable[str]) -> list[str]:
    """What of objects does not fit the schemas of versions of Kubernetes; of alike ones the first."""
    given = json.dumps([list(versions), different(objects)])
    return output(tool("python"), "-c", _VALIDATE, given=given).splitlines()


def advice(folder: Path) -> list[tuple[str, str]]:
    """The checks of checkov's that fail in a folder, and each one's resource."""
    return [
        (check, resource)
        for check, resource in json.loads(output(tool("python"), "-c", _ADVISE, str(folder)))
    ]


def different(objects: Iterable[Any]) -> list[Any]:
    """Of alike objects the first."""
    return list({json.dumps(found): found for found in objects}.values())


def documents(text: str) -> list[Any]:
    return list(yaml.load_all(text, yaml.CSafeLoader))


def pods(text: str) -> Iterator[tuple[str, Any]]:
    """Name and pod spec of whatever makes pods."""
    return ((name, template["spec"]) for name, template in templates(text))


def templates(text: str) -> Iterator[tuple[str, Any]]:
    """Name of whatever makes pods, and their template."""
    for document in documents(text):
        for name, spec in jobs(document):
            if "template" in spec:
                yield name, spec["template"]


def jobs(document: Any) -> Iterator[tuple[str, Any]]:
    """Name and spec of the Jobs of a JobSet or CronJob, or of the document itself."""
    name, spec = document["metadata"]["name"], document.get("spec", {})
    match document["kind"]:
        case "JobSet":
            yield from ((f"{name}-{job['name']}", job["template"]["spec"]) for job in spec["replicatedJobs"])
        case "CronJob":
            yield name, spec["jobTemplate"]["spec"]
        case _:
            yield name, spec


#: Kinds whose definitions come with a controller of their own, and which Kubernetes' schemas lack.
CUSTOM = ("LocustTest", "JobSet", "PodMonitor", "PrometheusRule", "HTTPRoute")


def with_standard_kinds(objects: Iterable[Any]) -> list[Any]:
    """The objects that Kubernetes has schemas for, and a Job for each of a JobSet's."""
    objects = list(objects)
    made = [document for document in objects if document["kind"] not in CUSTOM]
    for document in objects:
        if document["kind"] == "JobSet":
            metadata = {"namespace": document["metadata"]["namespace"]}
            made += [
                {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata | {"name": name}, "spec": spec}
                for name, spec in jobs(document)
            ]
    return made


def found(text: str, kind: str, name: str) -> Any:
    (document,) = (d for d in documents(text) if d["kind"] == kind and d["metadata"]["name"].startswith(name))
    return document
