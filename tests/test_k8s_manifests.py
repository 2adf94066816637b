"""Every overlay renders, fits Kubernetes' schemas, holds what is promised, and names options that exist."""

import argparse
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from llm_locust.k8s import command
from llm_locust.k8s.command import render
from llm_locust.k8s.overlay import MANIFESTS
from llm_locust.k8s.scenario_files import RenderError
from llm_locust.store import upload_command
from llm_locust.workload.scenario import load_scenario

ROOT = Path(__file__).parent.parent
OVERLAYS = sorted(path.name for path in (MANIFESTS / "overlays").iterdir())
VERSIONS = ("1.29", "1.30", "1.31", "1.32", "1.33", "1.34", "1.35")

#: checkov's checks that fail, and why they may.
ACCEPTED = {
    "CKV_K8S_8": "liveness: a busy event loop is no reason to kill a master or worker and its records",
    "CKV_K8S_9": "readiness: workers serve nothing; the master counts those that are ready",
    "CKV_K8S_15": "image pull policy: tags are fixed, and a cluster may have no registry to pull from",
    "CKV_K8S_35": "secrets as environment variables: --api-key-env, WEB_PASSWORD and VLLM_API_KEY are such",
    "CKV_K8S_43": "image digest: known once an image is pushed; given by `llm-locust k8s render --image`",
    "CKV_DOCKER_2": "HEALTHCHECK: Kubernetes has probes of its own, a headless process serves nothing",
}

#: Reads the real parser: Locust's options and ours, and the environment variables of all.
PARSE = """
import json, sys
from llm_locust import ScenarioUser
from locust.argument_parser import get_parser
parser = get_parser()
for args, environment in json.load(sys.stdin):
    parser.parse_args(args, env_vars=environment)
print(json.dumps([word for a in parser._actions for word in (*a.option_strings, a.env_var) if word]))
"""


@pytest.fixture(scope="module")
def rendered() -> Callable[[str], str]:
    made: dict[str, str] = {}

    def of(overlay: str) -> str:
        try:
            return made.setdefault(overlay, made.get(overlay) or render(MANIFESTS / "overlays" / overlay))
        except RenderError as e:
            if "nor kustomize" in str(e):
                pytest.skip(str(e))
            raise

    return of


@pytest.fixture
def folder(rendered: Callable[[str], str], tmp_path: Path) -> Path:
    """All overlays as files."""
    for overlay in OVERLAYS:
        (tmp_path / f"{overlay}.yaml").write_text(rendered(overlay), encoding="utf-8")
    return tmp_path


def tool(name: str) -> str:
    path = ROOT / ".venv-k8s" / "bin" / name
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


def swarm(text: str) -> list[tuple[str, list[str], dict[str, str]]]:
    """Role, arguments and environment of the master and workers, however they are made."""
    made: list[tuple[str, list[str], dict[str, str]]] = []
    for document in documents(text):
        if document["kind"] == "LocustTest":
            spec = document["spec"]
            environment = {e["name"]: e["value"] for e in spec["env"]}
            made.append(("master", ["--master", *spec["args"].split()], environment))
            made.append(("worker", ["--worker", *spec["args"].split()], environment))
        elif document["metadata"]["name"] in ("llm-locust-master", "llm-locust-worker"):
            role = document["metadata"]["name"].rpartition("-")[2]
            if "template" in document.get("spec", {}):
                container = document["spec"]["template"]["spec"]["containers"][0]
                environment = found(text, "ConfigMap", "llm-locust-options")["data"]
                made.append((role, container["args"], environment if role == "master" else {}))
    return made


def parsed(*commands: tuple[list[str], Mapping[str, str]]) -> set[str]:
    """See that arguments, each with an environment, parse; gives all flags and variables that there are."""
    known: list[str] = json.loads(output(sys.executable, "-c", PARSE, given=json.dumps(commands)))
    return set(known)


def test_the_options_that_the_overlays_give_exist_and_their_values_parse(
    rendered: Callable[[str], str],
) -> None:
    roles = [role for overlay in OVERLAYS for role in swarm(rendered(overlay))]
    assert len(roles) == 2 * len(OVERLAYS)
    known = parsed(*((args, environment) for _, args, environment in roles))
    assert {name for _, _, environment in roles for name in environment} <= known


def test_the_options_of_the_ci_examples_exist_and_their_values_parse() -> None:
    texts = [path.read_text() for path in sorted((ROOT / "docs" / "ci").iterdir())]
    commands = [re.findall(r"^ *locust (--.*\n(?: +-.*\n)+)", text, flags=re.M) for text in texts]
    assert [len(found) for found in commands] == [1, 1]
    parsed(*((shlex.split(words), {}) for (words,) in commands))


def test_the_options_that_the_page_names_exist(capsys: pytest.CaptureFixture[str]) -> None:
    for add_arguments, words in (
        (command.add_arguments, ["render", "--help"]),
        (upload_command.add_arguments, ["--help"]),
    ):
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        with pytest.raises(SystemExit):
            parser.parse_args(words)
    known = set(re.findall(r"--[a-z0-9-]+", capsys.readouterr().out)) | parsed()
    named = set(re.findall(r"`(?:render )?(--[a-z0-9-]+)", (ROOT / "docs" / "kubernetes.md").read_text()))
    assert len(named) > 5
    assert named <= known


def test_an_option_that_does_not_exist_would_be_found() -> None:
    with pytest.raises(AssertionError, match="--no-such-option"):
        parsed((["--no-such-option"], {}))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_are_restricted(rendered: Callable[[str], str], overlay: str) -> None:
    for name, pod in pods(rendered(overlay)):
        assert pod["securityContext"]["runAsNonRoot"], name
        assert pod["securityContext"]["runAsUser"] > 10_000
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


@pytest.mark.parametrize("overlay", ["headless", "demo", "vllm", "soak", "soak-hpa"])
def test_there_is_time_to_stop_flush_and_report(rendered: Callable[[str], str], overlay: str) -> None:
    text = rendered(overlay)
    options = found(text, "ConfigMap", "llm-locust-options")["data"]
    stop_and_flush_s = float(options["LOCUST_STOP_TIMEOUT"]) + 30 + 5
    grace_s = {name: pod.get("terminationGracePeriodSeconds", 30) for name, pod in pods(text)}
    assert grace_s["llm-locust-master"] >= stop_and_flush_s + 60
    assert grace_s["llm-locust-worker"] >= stop_and_flush_s


@pytest.mark.parametrize("overlay", ["headless", "demo", "vllm"])
def test_the_masters_job_is_tried_once_and_waits_for_all_workers(
    rendered: Callable[[str], str], overlay: str
) -> None:
    text = rendered(overlay)
    master, workers = found(text, "Job", "llm-locust-master"), found(text, "Job", "llm-locust-worker")
    assert master["spec"]["backoffLimit"] == 0
    options = found(text, "ConfigMap", "llm-locust-options")["data"]
    assert int(options["LOCUST_EXPECT_WORKERS"]) == workers["spec"]["completions"]
    assert workers["spec"]["completions"] == workers["spec"]["parallelism"]


@pytest.mark.parametrize("overlay", ["headless", "demo", "vllm", "soak"])
def test_a_worker_has_one_whole_cpu_and_reaches_master_dns_and_target_only(
    rendered: Callable[[str], str], overlay: str
) -> None:
    text = rendered(overlay)
    resources = dict(pods(text))["llm-locust-worker"]["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"]
    assert resources["limits"]["cpu"] == "1"
    labels = {"app.kubernetes.io/name": "llm-locust", "app.kubernetes.io/component": "worker"}
    applied = [d for d in documents(text) if d["kind"] == "NetworkPolicy" and _selects(d, labels)]
    assert {d["metadata"]["name"] for d in applied} == {
        "llm-locust-worker",
        "llm-locust-dns",
        "llm-locust-target",
    }
    assert all(rule.get("to") for d in applied for rule in d["spec"]["egress"])
    assert not any(d["spec"].get("ingress") for d in applied)


def _selects(policy: Any, labels: Mapping[str, str]) -> bool:
    selector = policy["spec"]["podSelector"]
    return all(labels.get(k) == v for k, v in selector.get("matchLabels", {}).items()) and all(
        labels.get(e["key"]) in e["values"] for e in selector.get("matchExpressions", [])
    )


def test_what_the_base_carries_is_what_the_project_has() -> None:
    base = MANIFESTS / "base"
    own = (ROOT / "locustfiles" / "scenario.py").read_text()
    assert (base / "locustfile.py").read_text() == own
    for name in ("locustfile.py", "scenario.yaml"):
        copied = (MANIFESTS / "overlays" / "locust-operator" / name).read_text()
        assert copied == (base / name).read_text()
    for path in MANIFESTS.rglob("scenario.yaml"):
        assert load_scenario(path).options["gate"]
    for path in base.glob("*.yaml"):
        for line in path.read_text().splitlines():
            assert "image:" not in line or line.endswith(f"image: llm-locust:{version('llm-locust')}")


def test_the_folder_k8s_leads_to_the_manifests_of_the_package() -> None:
    for name in ("base", "overlays"):
        assert (ROOT / "k8s" / name).resolve() == MANIFESTS / name


@pytest.mark.parametrize("name", ["requirements.txt", "build-requirements.txt"])
def test_the_image_takes_packages_by_hash_and_from_no_named_place(name: str) -> None:
    lines = (ROOT / "k8s" / name).read_text().splitlines()
    starts = [i for i, line in enumerate(lines) if not line.startswith(" ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        assert "==" in lines[start]
        assert any("--hash=sha256:" in line for line in lines[start + 1 : end])
    assert not any("://" in line or "-index" in line for line in lines)


def test_the_image_has_every_dependency_in_a_version_that_the_project_allows() -> None:
    lines = (ROOT / "k8s" / "requirements.txt").read_text().splitlines()
    pinned = dict(line.split(" ")[0].split("==") for line in lines if not line.startswith(" "))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in map(Requirement, project["dependencies"]):
        assert requirement.specifier.contains(pinned[requirement.name.lower()]), requirement


@pytest.mark.parametrize("kubernetes", VERSIONS)
def test_every_overlay_fits_the_schemas(folder: Path, kubernetes: str) -> None:
    files = [str(path) for path in sorted(folder.glob("*.yaml")) if path.stem != "locust-operator"]
    output(tool("kubernetes-validate"), "-k", kubernetes, "--strict", *files)


def test_checkov_finds_nothing_but_what_is_accepted(folder: Path) -> None:
    words = ("--compact", "--quiet", "--skip-download", "-o", "json", "--framework")
    checkov = tool("checkov")
    failed: set[str] = set()
    for what in (("kubernetes", "-d", str(folder)), ("dockerfile", "-f", str(ROOT / "k8s" / "Dockerfile"))):
        report = json.loads(output(checkov, *words, *what, codes=(0, 1)))
        failed |= {check["check_id"] for check in report["results"]["failed_checks"]}
    assert failed <= ACCEPTED.keys(), failed - ACCEPTED.keys()


def test_all_yaml_is_tidy() -> None:
    config = str(ROOT / "tests" / "k8s" / "yamllint.yaml")
    output(tool("yamllint"), "--strict", "-c", config, str(MANIFESTS), str(ROOT / "docs" / "ci"), config)
