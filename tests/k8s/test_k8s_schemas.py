"""The manifests fit Kubernetes' schemas and the operator's, and the usual advice but for a reason."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from k8s_tools import (
    COMPONENTS,
    OVERLAYS,
    POD_DISCOVERY,
    ROOT,
    Rendered,
    advice,
    different,
    documents,
    found,
    misfits,
    output,
    pods,
    templates,
    tool,
    with_standard_kinds,
)

from llm_locust.k8s.overlay import MANIFESTS

VERSIONS = ("1.29", "1.30", "1.31", "1.32", "1.33", "1.34", "1.35")

#: checkov's checks that fail, and why they may.
ACCEPTED = {
    "CKV_K8S_8": "liveness: a busy event loop is no reason to kill a master or worker and its records",
    "CKV_K8S_9": "readiness: workers serve nothing; the master counts those that are ready",
    "CKV_K8S_15": "image pull policy: tags are fixed, and a cluster may have no registry to pull from",
    "CKV_K8S_35": "secrets as environment variables: --api-key-env, WEB_PASSWORD and VLLM_API_KEY are such",
    "CKV_K8S_43": "image digest: known once an image is pushed; given by `llm-locust k8s render --image`",
    "CKV_K8S_38": "service account token: of the component pod-discovery, and there of the master alone",
    "CKV_DOCKER_7": "base image without a tag: it is in the argument BASE, by which a digest can be given",
    "CKV_DOCKER_2": "HEALTHCHECK: Kubernetes has probes of its own, a headless process serves nothing",
}

#: What the operator's definition of a LocustTest lets one say (chart 0.1.9), as far as ours says it; the API
#: server refuses any other field.
_AMOUNTS = {"type": "object", "additionalProperties": {"type": ["string", "integer"]}}
_RESOURCES = {
    "type": "object",
    "properties": {"resources": {"type": "object", "properties": {"requests": _AMOUNTS, "limits": _AMOUNTS}}},
    "additionalProperties": False,
}
LOCUST_TEST = {
    "type": "object",
    "required": ["workers"],
    "properties": {
        "image": {"type": "string"},
        "workers": {"type": "integer", "minimum": 1},
        "args": {"type": "string"},
        "env": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "value": {"type": "string"}},
                "additionalProperties": False,
            },
        },
        "locustfile": {
            "type": "object",
            "properties": {
                "configMap": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": {"type": "string"}},
                    "additionalProperties": False,
                }
            },
            "additionalProperties": False,
        },
        "master": _RESOURCES,
        "worker": _RESOURCES,
    },
    "additionalProperties": False,
}


def _object(*required: str, **properties: object) -> dict[str, object]:
    found = {"type": "object", "properties": properties, "additionalProperties": False}
    return found | {"required": list(required)}


_TEXT, _TEXTS, _ANY = {"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "object"}
_COMMAND = {"command": _TEXT, "extraArgs": _TEXTS, "resources": _ANY, "labels": _ANY, "annotations": _ANY}

#: The same of AbdelrhmanHamouda/locust-k8s-operator's second version, from its types.
LOCUST_TEST_V2 = _object(
    *("image", "master", "worker"),
    image=_TEXT,
    master=_object(
        *("command",),
        **_COMMAND,
        autostart={"type": "boolean"},
        autoquit=_object("enabled", enabled={"type": "boolean"}, timeout={"type": "integer", "minimum": 0}),
    ),
    worker=_object(
        *("command", "replicas"), **_COMMAND, replicas={"type": "integer", "minimum": 1, "maximum": 500}
    ),
    testFiles=_object(configMapRef=_TEXT, srcMountPath=_TEXT),
    env=_object(
        secretRefs={"type": "array", "items": _object("name", name=_TEXT)},
        variables={"type": "array", "items": _object("name", name=_TEXT, value=_TEXT)},
    ),
    security=_object(podSecurityContext=_ANY, containerSecurityContext=_ANY),
    volumes={"type": "array"},
    volumeMounts={"type": "array", "items": _object("name", "mountPath", name=_TEXT, mountPath=_TEXT)},
)


def test_the_operators_resource_has_no_field_that_its_definition_has_not(
    rendered: Rendered,
) -> None:
    resource = found(rendered("locust-operator"), "LocustTest", "llm-locust")
    assert resource["apiVersion"] == "locust.io/v1"
    jsonschema_rs.validate(LOCUST_TEST, resource["spec"])
    config = found(
        rendered("locust-operator"), "ConfigMap", resource["spec"]["locustfile"]["configMap"]["name"]
    )
    assert config["data"].keys() == {"locustfile.py", "scenario.yaml"}


def test_the_other_operators_resource_has_the_fields_of_its_second_version(rendered: Rendered) -> None:
    text = rendered("locust-operator-v2")
    resource = found(text, "LocustTest", "llm-locust")
    assert resource["apiVersion"] == "locust.io/v2"
    jsonschema_rs.validate(LOCUST_TEST_V2, resource["spec"])
    assert found(text, "ConfigMap", resource["spec"]["testFiles"]["configMapRef"])["data"].keys() == {
        "locustfile.py",
        "scenario.yaml",
    }


@pytest.mark.parametrize("name", [*OVERLAYS, *COMPONENTS])
def test_what_objects_name_is_among_them(rendered: Rendered, name: str) -> None:
    """What an API server, or the first pod, would refuse, and schemas do not see."""
    text = rendered(name)
    there = {(d["kind"], d["metadata"]["name"]) for d in documents(text)}
    made = list(templates(text))
    ports = {
        port["name"] for _, pod in made for c in pod["spec"]["containers"] for port in c.get("ports", ())
    }
    for _, pod in made:
        spec = pod["spec"]
        assert name == "merge" or ("ServiceAccount", spec["serviceAccountName"]) in there
        volumes = {volume["name"]: volume for volume in spec["volumes"]} if "volumes" in spec else {}
        containers = [*spec["containers"], *spec.get("initContainers", ())]
        assert len({c["name"] for c in containers}) == len(containers)
        for container in containers:
            assert {m["name"] for m in container.get("volumeMounts", ())} <= volumes.keys()
            for source in container.get("envFrom", ()):
                assert "secretRef" in source or ("ConfigMap", source["configMapRef"]["name"]) in there
        for volume in volumes.values():
            assert "configMap" not in volume or ("ConfigMap", volume["configMap"]["name"]) in there
            claim = volume.get("persistentVolumeClaim")
            assert name == "merge" or not claim or ("PersistentVolumeClaim", claim["claimName"]) in there
    for document in documents(text):
        spec, kind = document.get("spec", {}), document["kind"]
        selector = spec.get("selector", {}) if kind != "LocustTest" else {}
        chosen = selector if kind == "Service" else selector.get("matchLabels")
        if chosen:
            assert any(chosen.items() <= pod["metadata"]["labels"].items() for _, pod in made), document
        if kind == "Service":
            assert {port["targetPort"] for port in spec["ports"]} <= ports
        if kind == "Ingress":
            backends = (p["backend"]["service"]["name"] for r in spec["rules"] for p in r["http"]["paths"])
            assert all(("Service", backend) in there for backend in backends)


def objects(rendered: Rendered, names: Iterable[str]) -> list[Any]:
    return [found for name in names for found in with_standard_kinds(documents(rendered(name)))]


def test_every_object_fits_the_schemas(rendered: Rendered) -> None:
    odd = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"prots": []}}
    found = misfits([*objects(rendered, (*OVERLAYS, *COMPONENTS)), odd], VERSIONS)
    assert len(found) == len(VERSIONS)
    assert all("prots" in misfit for misfit in found), found


def test_checkov_finds_nothing_but_what_is_accepted(rendered: Rendered, tmp_path: Path) -> None:
    names = [*OVERLAYS, *COMPONENTS]
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(different(objects(rendered, names))))
    shutil.copy(ROOT / "k8s" / "Dockerfile", tmp_path)
    failed = advice(tmp_path)
    assert {check for check, _ in failed} == ACCEPTED.keys()
    with_token = [resource for check, resource in failed if check == "CKV_K8S_38"]
    assert with_token == ["Job.llm-locust.llm-locust-master"]
    (master,) = (pod for name, pod in pods(rendered(POD_DISCOVERY)) if name == "llm-locust-master")
    assert master["automountServiceAccountToken"]


def test_all_yaml_is_tidy() -> None:
    config = str(ROOT / "tests" / "k8s" / "yamllint.yaml")
    output(tool("yamllint"), "--strict", "-c", config, str(MANIFESTS), str(ROOT / "docs" / "ci"), config)
