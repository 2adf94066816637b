"""Kustomize overlay for one scenario, on top of one in the package."""

import json
import shutil
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from llm_locust.k8s.scenario_files import RenderError, files_of
from llm_locust.k8s.target import ServerTarget
from llm_locust.options.option import Values
from llm_locust.options.table import OPTION, OPTIONS
from llm_locust.scenario import Scenario
from llm_locust.wire.secrecy import is_key_name

MANIFESTS = Path(__file__).parent / "manifests"

#: Overlays that a scenario can be put on, with the kind of their master and workers.
OVERLAYS: Mapping[str, str] = {"headless": "Job", "demo": "Job", "soak": "Deployment"}

_IMAGE = "llm-locust"
_KEY_VARIABLE = "API_KEY"

#: In addition to --drain and --flush-timeout: --stop-timeout of the base, 5 s, and the time for the report.
_MASTER_GRACE_S = 150
_WORKER_GRACE_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayPlan:
    """Requested overlay. ``None`` keeps the value of the underlying overlay.

    Attributes:
        scenario: read and checked; paths in it are relative to its file's folder.
        overlay: one of :data:`OVERLAYS`.
        namespace: an existing one.
        image: name, with a tag or digest.
        target: URL of the server; default: the scenario's ``host``.
        target_cidrs: its addresses, if it is not a Service of the cluster.
        api_key_secret: ``SECRET/KEY`` with the API key.
        pod_discovery: allow the master to list pods, for ``k8s:`` among its metrics URLs.
        upload: destination of the run; ``upload_secret`` has its credentials, as environment variables.
    """

    scenario: Scenario
    workers: int
    overlay: str = "headless"
    namespace: str | None = None
    image: str | None = None
    target: str | None = None
    target_cidrs: tuple[str, ...] = ()
    locustfile: Path | None = None
    api_key_secret: str | None = None
    pod_discovery: bool = False
    upload: str | None = None
    upload_secret: str | None = None


def write_overlay(plan: OverlayPlan, folder: Path) -> None:
    """Write the overlay, and everything that it builds on, to ``folder``.

    Raises:
        RenderError: the plan cannot be carried out.
        OSError: a file cannot be read or written.
    """
    scenario = Path(plan.scenario.path)
    files = files_of(plan.scenario.document, scenario.parent)
    content = kustomization(plan, list(files))
    shutil.copytree(MANIFESTS, folder / "manifests", ignore=shutil.ignore_patterns("__pycache__"))
    load = folder / "load"
    load.mkdir()
    shutil.copyfile(scenario, load / "scenario.yaml")
    if plan.locustfile is not None:
        shutil.copyfile(plan.locustfile, load / "locustfile.py")
    for name, path in files.items():
        shutil.copyfile(path, load / _key(name))
    text = yaml.safe_dump(content, sort_keys=False, width=100)
    (folder / "kustomization.yaml").write_text(text, encoding="utf-8")


def kustomization(plan: OverlayPlan, files: list[str]) -> dict[str, Any]:
    """Make the overlay's ``kustomization.yaml`` (raises RenderError)."""
    content: dict[str, Any] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": plan.namespace or "llm-locust",
        "resources": [f"manifests/overlays/{plan.overlay}"],
    }
    if plan.pod_discovery:
        content["components"] = ["manifests/components/pod-discovery"]
    if plan.image is not None:
        content["images"] = [_image(plan.image)]
    content["configMapGenerator"] = [
        {"name": "llm-locust-load", "behavior": "merge", "files": _load(plan, files)},
        {"name": "llm-locust-options", "behavior": "merge", "literals": _options(plan)},
    ]
    content["patches"] = [*_roles(plan, files), *_network(plan)]
    if plan.namespace is not None:
        removed = {
            "$patch": "delete",
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": "llm-locust"},
        }
        content["patches"].append({"patch": json.dumps(removed)})
    return content


def _key(name: str) -> str:
    """ConfigMap key for a path, without slashes."""
    return "__".join(PurePosixPath(name).parts)


def _load(plan: OverlayPlan, files: list[str]) -> list[str]:
    own = ["scenario.yaml", *(["locustfile.py"] if plan.locustfile is not None else [])]
    return [f"load/{name}" for name in own] + [f"{_key(name)}=load/{_key(name)}" for name in files]


def _image(text: str) -> dict[str, str]:
    name, _, digest = text.partition("@")
    folder, slash, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    image = {"name": _IMAGE, "newName": f"{folder}{slash}{last}"}
    return image | ({"digest": digest} if digest else {"newTag": tag} if tag else {})


def _check_keys(scenario: Scenario) -> None:
    """Check that the scenario has no key, which a ConfigMap would expose (raises RenderError)."""
    given = scenario.options.get("header", ())
    written = [text.partition("=")[0] for text in ([given] if isinstance(given, str) else given)]
    names = [*written, *(name for found in scenario.classes for name in found.headers)]
    if keys := [name for name in names if is_key_name(name.strip())]:
        raise RenderError(
            f"the header {keys[0]!r} would be in a ConfigMap, which others can read: take it out "
            "of the scenario and name the Secret with the key by --api-key-secret NAME/KEY"
        )


def _options(plan: OverlayPlan) -> list[str]:
    """Environment of the master, which overrides the scenario."""
    _check_keys(plan.scenario)
    options = {"LOCUST_EXPECT_WORKERS": str(plan.workers)}
    if plan.target is not None:
        options["LOCUST_HOST"] = plan.target
    if "out" in plan.scenario.options:  # no other place can be written
        options[OPTION["out"].variable] = f"/runs/{Path(plan.scenario.options['out']).name}"
    if plan.api_key_secret is not None:
        options[OPTION["api_key_env"].variable] = _key_variable(plan)
    elif plan.scenario.options.get("api_key_env"):
        raise RenderError(
            "the scenario has api_key_env: name the Secret with the key by --api-key-secret NAME/KEY"
        )
    if plan.upload is not None:
        options[OPTION["upload"].variable] = plan.upload
    return [f"{name}={value}" for name, value in options.items()]


def _key_variable(plan: OverlayPlan) -> str:
    return str(plan.scenario.options.get("api_key_env") or _KEY_VARIABLE)


def _roles(plan: OverlayPlan, files: list[str]) -> list[dict[str, Any]]:
    """Changes to master and workers, as JSON patches."""
    kind = OVERLAYS[plan.overlay]
    amount = ("replicas",) if kind == "Deployment" else ("completions", "parallelism")
    given = Values(OPTIONS, Namespace(**plan.scenario.options))
    end_s = given["drain"] + given["flush_timeout"]
    both = [*_items(files), *_secret(plan)]
    patches = {
        "master": [_grace(_MASTER_GRACE_S + end_s), *both],
        "worker": [_grace(_WORKER_GRACE_S + end_s), *both]
        + [_change("replace", f"/spec/{name}", plan.workers) for name in amount],
    }
    if plan.upload_secret is not None:
        place = "/spec/template/spec/containers/0/envFrom/-"
        patches["master"].append(_change("add", place, {"secretRef": {"name": plan.upload_secret}}))
    return [
        {"target": {"kind": kind, "name": f"llm-locust-{role}"}, "patch": json.dumps(changes)}
        for role, changes in patches.items()
    ]


def _change(op: str, path: str, value: Any) -> dict[str, Any]:
    return {"op": op, "path": path, "value": value}


def _grace(seconds: float) -> dict[str, Any]:
    return _change("replace", "/spec/template/spec/terminationGracePeriodSeconds", round(seconds))


def _items(files: list[str]) -> list[dict[str, Any]]:
    """Files in folders: the path of each ConfigMap key in the pod. If one is given, all must be."""
    if not any(_key(name) != name for name in files):
        return []
    names = ["scenario.yaml", "locustfile.py", *files]
    items = [{"key": _key(name), "path": name} for name in names]
    return [_change("add", "/spec/template/spec/volumes/0/configMap/items", items)]


def _secret(plan: OverlayPlan) -> list[dict[str, Any]]:
    if plan.api_key_secret is None:
        return []
    secret, _, key = plan.api_key_secret.partition("/")
    if not secret or not key:
        raise RenderError(f"--api-key-secret {plan.api_key_secret!r} is not SECRET/KEY")
    source = {"secretKeyRef": {"name": secret, "key": key}}
    variable = {"name": _key_variable(plan), "valueFrom": source}
    return [_change("replace", "/spec/template/spec/containers/0/env/0", variable)]


def _network(plan: OverlayPlan) -> list[dict[str, Any]]:
    """Destinations of the pods: the target, and that of an upload (HTTPS, only from the master)."""
    patches = []
    host = plan.target or plan.scenario.options.get("host")
    if plan.overlay != "demo":
        if host is None:
            raise RenderError("no target: give --target http://HOST:PORT, or set host in the scenario")
        rules = ServerTarget.parse(str(host)).egress(plan.target_cidrs)
        patches.append(_policy("target", _change("replace", "/spec/egress", rules)))
    if plan.upload is not None:
        patches.append(_policy("master", _change("add", "/spec/egress", [{"ports": [{"port": 443}]}])))
    return patches


def _policy(name: str, change: dict[str, Any]) -> dict[str, Any]:
    return {
        "target": {"kind": "NetworkPolicy", "name": f"llm-locust-{name}"},
        "patch": json.dumps([change]),
    }
