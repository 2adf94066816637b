"""Kustomize overlay for one scenario, on top of one in the package."""

import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from llm_locust.k8s.destinations import openings
from llm_locust.k8s.plan import NAMESPACE, OverlayPlan
from llm_locust.k8s.pod_changes import ends_by_itself, options_of, pod_changes
from llm_locust.k8s.scenario_files import RenderError, check_size, files_of
from llm_locust.scenario import Scenario
from llm_locust.wire.secrecy import is_key_name

MANIFESTS = Path(__file__).parent / "manifests"

#: Overlays that make other objects of the finished Jobs, by a component of their name: kinds and names.
LAST: Mapping[str, tuple[tuple[str, str], ...]] = {
    "jobset": (("JobSet", "llm-locust"),),
    "nightly": (("CronJob", "llm-locust-master"), ("CronJob", "llm-locust-worker")),
}

_IMAGE = "llm-locust"

CONFIG_MAPS = {"kind": "ConfigMap", "name": "llm-locust-(load|options)"}

Document = dict[str, Any]


def write_overlay(plan: OverlayPlan, folder: Path) -> list[str]:
    """Write the overlay, and everything that it builds on, to ``folder``.

    The package's manifests are in a folder with the package's version in its name; the patches are files, to
    be read and changed.

    Returns:
        A line for each destination that network policies open.

    Raises:
        RenderError: the plan cannot be carried out.
        OSError: a file cannot be read or written.
    """
    _check(plan)
    scenario = Path(plan.scenario.path)
    files = files_of(plan.scenario.document, scenario.parent) | dict(plan.files)
    check_size(files)
    opened = openings(plan) if plan.network_policies else []
    base = f"llm-locust-{version('llm-locust')}"
    items = _items(plan, list(files))
    patches = pod_changes(plan, items)
    if plan.network_policies:
        patches |= _policies(plan)
    shutil.copytree(MANIFESTS, folder / base, ignore=shutil.ignore_patterns("__pycache__"))
    run = folder / "run" if LAST.get(plan.overlay) else folder
    (run / "load").mkdir(parents=True)
    shutil.copyfile(scenario, run / "load" / "scenario.yaml")
    if plan.locustfile is not None:
        shutil.copyfile(plan.locustfile, run / "load" / "locustfile.py")
    for name, path in files.items():
        shutil.copyfile(path, run / "load" / _key(name))
    for name, content in patches.items():
        _write(run / f"{name}.yaml", content)
    above = base if run == folder else f"../{base}"
    _write(run / "kustomization.yaml", kustomization(plan, list(files), list(patches), above))
    if run != folder:
        _write(folder / "kustomization.yaml", _outer_of(plan, base))
    return [str(opening) for opening in opened]


def _check(plan: OverlayPlan) -> None:
    """Check what only the whole plan shows (raises RenderError)."""
    _check_keys(plan.scenario)
    if plan.kind == "Job" and not ends_by_itself(plan):
        raise RenderError(
            "the scenario has no end, and its Job would run for ever: add run_time, such as run_time: 10m, "
            "or num_requests; or use --overlay soak"
        )
    if plan.pod_discovery and plan.pods.service_account is not None:
        raise RenderError(
            "--pod-discovery makes a service account of its own: leave out --service-account, or let "
            "that one list pods yourself"
        )


def _check_keys(scenario: Scenario) -> None:
    """Check that the scenario has no key, which a ConfigMap would expose (raises RenderError)."""
    given = scenario.options.get("header", ())
    written = [text.partition("=")[0] for text in ([given] if isinstance(given, str) else given)]
    headers = (*(found.headers for found in scenario.classes), *(arm.headers for arm in scenario.arms))
    names = [*written, *(name for each in headers for name in each)]
    if keys := [name for name in names if is_key_name(name.strip())]:
        raise RenderError(
            f"the header {keys[0]!r} would be in a ConfigMap, which others can read: take it out "
            "of the scenario and name the Secret with the key by --api-key-secret NAME/KEY"
        )


def kustomization(plan: OverlayPlan, files: list[str], patches: list[str], base: str) -> Document:
    """Make the overlay's ``kustomization.yaml``.

    Args:
        files: of the load, beside scenario and locustfile.
        patches: names of the files with patches.
        base: path of the package's manifests.
    """
    overlay = "headless" if plan.overlay in LAST else plan.overlay
    content: Document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": plan.namespace or NAMESPACE,
        "resources": [f"{base}/overlays/{overlay}"],
    }
    if plan.name is not None:
        content["namePrefix"] = f"{plan.name}-"
    parts = {
        "report-container": plan.overlay in LAST,  # the overlay would have it before the last change
        "pod-discovery": plan.pod_discovery,
        "monitoring": plan.monitoring,
    }
    if any(parts.values()):
        content["components"] = [f"{base}/components/{name}" for name, wanted in parts.items() if wanted]
    if plan.image is not None:
        content["images"] = [image_change(plan.image)]
    if labels := _labels(plan):
        content["labels"] = labels
    if (out := plan.scenario.options.get("out")) and plan.out is None:  # no other place can be written
        options = {"LLM_LOCUST_OUT": f"/runs/{Path(str(out)).name}"} | options_of(plan)
    else:
        options = options_of(plan)
    literals = [f"{name}={value}" for name, value in options.items()]
    content["configMapGenerator"] = [
        {"name": "llm-locust-load", "behavior": "merge", "files": _load(plan, files)},
        {"name": "llm-locust-options", "behavior": "merge", "literals": literals},
    ]
    content["patches"] = [_patch(plan, name) for name in patches] + _removals(plan)
    if plan.overlay == "soak":  # each merge of a ConfigMap has undone what the overlay says
        content["patches"].append({"path": f"{base}/overlays/soak/fixed.yaml", "target": CONFIG_MAPS})
    return content


def _patch(plan: OverlayPlan, name: str) -> Document:
    """Entry of a patch's file; objects whose kind the overlay has changed are found by their present one."""
    if name not in ("master", "worker"):
        return {"path": f"{name}.yaml"}
    return {"path": f"{name}.yaml", "target": {"kind": plan.kind, "name": f"llm-locust-{name}"}}


def _outer_of(plan: OverlayPlan, base: str) -> Document:
    own = {} if plan.name is None else {"app.kubernetes.io/instance": plan.name}
    labels = {**plan.labels, **own}
    return outer(plan.overlay, base, plan.namespace or NAMESPACE, plan.name, labels)


def outer(overlay: str, base: str, namespace: str, prefix: str | None, labels: Mapping[str, str]) -> Document:
    """Kustomization of an overlay whose objects are made of the finished Jobs, those of the folder ``run``.

    Args:
        prefix: of the names in ``run``, without the dash; its own objects get it too.
    """
    content: Document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": namespace,
        "resources": ["run"],
        "components": [f"{base}/components/{name}" for name in (overlay, "no-jobs")],
    }
    if prefix is not None:
        content["patches"] = [_renaming(kind, name, f"{prefix}-{name}") for kind, name in LAST[overlay]]
    if labels:
        jobs = {"kind": "CronJob", "path": "spec/jobTemplate/metadata/labels", "create": True}
        content["labels"] = [{"pairs": dict(labels), "fields": [jobs]}]
    return content


def _renaming(kind: str, name: str, to: str) -> Document:
    change = [{"op": "replace", "path": "/metadata/name", "value": to}]
    target = {"kind": kind, "name": name}
    return {"target": target, "patch": yaml.safe_dump(change), "options": {"allowNameChange": True}}


def _labels(plan: OverlayPlan) -> list[Document]:
    """The run's name, in selectors too; and labels that select nothing."""
    found: list[Document] = []
    if plan.name is not None:
        pairs = {"app.kubernetes.io/instance": plan.name}
        monitors = {"kind": "PodMonitor", "path": "spec/selector/matchLabels", "create": True}
        found.append({"pairs": pairs, "includeSelectors": True, "fields": [monitors]})
    if plan.labels:
        found.append({"pairs": dict(plan.labels), "includeTemplates": True})
    return found


def _key(name: str) -> str:
    """ConfigMap key for a path, without slashes."""
    return "__".join(PurePosixPath(name).parts)


def _load(plan: OverlayPlan, files: list[str]) -> list[str]:
    own = ["scenario.yaml", *(["locustfile.py"] if plan.locustfile is not None else [])]
    return [f"load/{name}" for name in own] + [f"{_key(name)}=load/{_key(name)}" for name in files]


def _items(plan: OverlayPlan, files: list[str]) -> list[dict[str, str]]:
    """Files in folders: the path of each ConfigMap key in the pod. If one is given, all must be."""
    if not any(_key(name) != name for name in files):
        return []
    names = ["scenario.yaml", "locustfile.py", *files]
    return [{"key": _key(name), "path": name} for name in names]


def image_change(text: str) -> dict[str, str]:
    """Entry of ``images`` that makes it the image of all containers."""
    name, _, digest = text.partition("@")
    folder, slash, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    image = {"name": _IMAGE, "newName": f"{folder}{slash}{last}"}
    return image | ({"digest": digest} if digest else {"newTag": tag} if tag else {})


def _policies(plan: OverlayPlan) -> dict[str, Document]:
    """Patches of the network policies, by the names of their files."""
    found: dict[str, Document] = {}
    for opening in openings(plan):
        name = f"network-{opening.policy}"
        metadata = {"name": f"llm-locust-{opening.policy}"}
        policy = found.setdefault(
            name,
            {
                "apiVersion": "networking.k8s.io/v1",
                "kind": "NetworkPolicy",
                "metadata": metadata,
                "spec": {"egress": []},
            },
        )
        policy["spec"]["egress"] += [rule for rule in opening.rules if rule not in policy["spec"]["egress"]]
    return found


def _removals(plan: OverlayPlan) -> list[Document]:
    """Patches that take out objects of the underlying overlay."""
    removed = ["NetworkPolicy"] if not plan.network_policies else []
    if plan.namespace is not None:
        removed.append("Namespace")
    if plan.overlay == "soak" and "/runs" in plan.pods.volumes:
        removed.append("PersistentVolumeClaim")
    return [_removal(kind) for kind in removed]


def _removal(kind: str) -> Document:
    patch = {"$patch": "delete", "kind": kind, "metadata": {"name": "any"}}
    return {"target": {"kind": kind}, "patch": yaml.safe_dump(patch)}


def _write(path: Path, content: Document) -> None:
    path.write_text(yaml.dump(content, Dumper=_Plain, sort_keys=False, width=100), encoding="utf-8")


class _Plain(yaml.SafeDumper):
    """Writes equal parts twice, for they are to be read and changed."""

    def ignore_aliases(self, data: object) -> bool:
        return True
