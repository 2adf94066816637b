"""The Helm chart is what kustomize renders; both fit the schemas and the usual advice."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
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
    jobs,
    kubectl_on_path,
    misfits,
    output,
    pods,
    templates,
    tool,
    with_standard_kinds,
)

from llm_locust.k8s.chart import MODES, write_chart
from llm_locust.k8s.overlay import MANIFESTS

# --- The Helm chart is what kustomize renders, and Helm finds nothing wrong with it


#: Runs in the environment of the tools, which has Helm's SDK: an answer for each line.
HELM = """
import json, sys, helm_python
def answer(folder, action, values, options):
    try:
        if action == "lint":
            return helm_python.lint(folder, values, strict=True)
        with helm_python.Chart.load(folder) as chart:
            return chart.render(values, **options)
    except helm_python.HelmError as e:
        return {"error": str(e)}
for line in sys.stdin:
    print(json.dumps(answer(*json.loads(line))), flush=True)
"""
OWN = ("app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "helm.sh/chart", "llm-locust/run")
WITH_INGRESS = {"mode": "soak", "ingress": {"enabled": True}}
WITH_GATEWAY = {
    "mode": "soak",
    "gateway": {"enabled": True},
    "networkPolicies": {"webFrom": "gateway-system"},
}


class Chart:
    """The chart, and the process that renders it."""

    def __init__(self, folder: Path, helm: "subprocess.Popen[str]") -> None:
        self._folder = folder
        self._helm = helm

    def ask(self, action: str, values: Mapping[str, Any] = {}, **options: Any) -> Any:
        assert self._helm.stdin is not None
        assert self._helm.stdout is not None
        self._helm.stdin.write(f"{json.dumps([str(self._folder), action, values, options])}\n")
        self._helm.stdin.flush()
        return json.loads(self._helm.stdout.readline())


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chart]:
    folder = tmp_path_factory.mktemp("chart") / "llm-locust"
    with kubectl_on_path():
        write_chart(folder)
    with subprocess.Popen([tool("python"), "-c", HELM], stdin=-1, stdout=-1, text=True) as helm:
        yield Chart(folder, helm)


def template(
    chart: Chart, values: Mapping[str, Any] = {}, release: str = "llm-locust", revision: int = 1
) -> Any:
    made = chart.ask("render", values, name=release, namespace="llm-locust", revision=revision)
    assert "error" not in made, made["error"]
    return made


def objects(made: Mapping[str, str]) -> list[Any]:
    texts = [text for path, text in made.items() if path.endswith(".yaml")]
    return [found for text in texts for found in documents(text) if found]


def one(made: Mapping[str, str], kind: str, end: str) -> Any:
    (found,) = (d for d in objects(made) if d["kind"] == kind and d["metadata"]["name"].endswith(end))
    return found


def plain(found: Any) -> Any:
    """Without what a release adds: its labels, its revision; and without hashes of ConfigMaps."""
    if isinstance(found, dict):
        return {key: plain(value) for key, value in found.items() if key not in OWN}
    if isinstance(found, list):
        return [plain(item) for item in found]
    if isinstance(found, str):
        found = re.sub(r"^(llm-locust-(?:options|load))-[a-z0-9]{10}$", r"\1", found)
        return re.sub(r"^llm-locust-1(-|$)", r"llm-locust\1", found)
    return found


def by_name(found: list[Any]) -> dict[tuple[str, str], Any]:
    made = {}
    for document in map(plain, found):
        metadata = document["metadata"]
        metadata.get("annotations", {}).pop("helm.sh/resource-policy", None)
        document["metadata"] = {key: value for key, value in metadata.items() if value}
        if document["kind"] != "Namespace":
            made[document["kind"], metadata["name"]] = document
    return made


@pytest.mark.parametrize(
    ("overlay", "values"),
    [
        ("headless", {}),
        ("monitoring", {"monitoring": {"enabled": True}}),
        ("soak", WITH_INGRESS),
        ("jobset", {"mode": "jobset"}),
        ("nightly", {"mode": "nightly"}),
        ("gateway-api", WITH_GATEWAY),
    ],
)
def test_a_release_is_what_kustomize_renders(
    chart: Chart, rendered: Rendered, overlay: str, values: dict[str, Any]
) -> None:
    expected = by_name(documents(rendered(overlay)))
    assert by_name(objects(template(chart, values))) == expected


@pytest.mark.parametrize("mode", MODES)
def test_helm_finds_nothing_to_complain_of_but_the_icon(chart: Chart, mode: str) -> None:
    report = chart.ask("lint", {"mode": mode})
    assert report["errors"] == []
    assert [m["error"] for m in report["messages"]] == ["icon is recommended"]


EVERY: dict[str, Any] = {
    "image": {"repository": "r.example.com/load", "digest": f"sha256:{'a' * 64}"},
    "imagePullSecrets": [{"name": "pull"}],
    "target": "http://vllm.models.svc:8000",
    "options": {"LLM_LOCUST_SEED": 12345678, "LOCUST_STOP_TIMEOUT": "40"},
    "files": {"data/q.jsonl": "{}\n"},
    "workers": 20,
    "worker": {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}},
    "apiKey": {"existingSecret": "key", "key": "token"},
    "swarmSecret": {"existingSecret": "swarm"},
    "upload": {"to": "s3://runs/x", "existingSecret": "s3"},
    "persistence": {"existingClaim": "results"},
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn"}},
    "podAnnotations": {"a": "b"},
    "podLabels": {"team": "x"},
    "commonLabels": {"kueue.x-k8s.io/queue-name": "q"},
    "nightly": {"schedule": "30 1 * * 1-5", "timeZone": "Europe/Berlin"},
    "gateway": {"enabled": True, "host": "load.example.org", "parentRefs": [{"name": "edge"}]},
    "nodeSelector": {"pool": "load"},
    "tolerations": [{"key": "load", "operator": "Exists"}],
    "extraEnv": [{"name": "A", "value": "b"}],
    "extraEnvFrom": [{"secretRef": {"name": "more"}}],
    "extraVolumes": [{"name": "data", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "data", "mountPath": "/data"}],
    "networkPolicies": {"target": [{"ports": [{"port": 8000}]}], "master": [{"ports": [{"port": 443}]}]},
    "monitoring": {"enabled": True, "labels": {"release": "kps"}},
    "ingress": {"enabled": True, "host": "load.example.org", "annotations": {"x": "y"}},
}


@pytest.mark.parametrize("mode", MODES)
def test_every_value_is_where_it_belongs(chart: Chart, mode: str) -> None:
    made = template(chart, EVERY | {"mode": mode}, release="gate", revision=3)
    found = {
        name.rpartition("-")[2]: job for d in objects(made) for name, job in jobs(d) if "template" in job
    }
    assert found.keys() == {"master", "worker"}
    for role in ("master", "worker"):
        pod = found[role]["template"]
        (container,) = pod["spec"]["containers"]
        assert container["image"] == f"r.example.com/load@sha256:{'a' * 64}"
        assert pod["spec"]["nodeSelector"] == {"pool": "load"}
        assert pod["spec"]["tolerations"] == EVERY["tolerations"]
        assert pod["spec"]["imagePullSecrets"] == [{"name": "pull"}]
        assert pod["metadata"]["annotations"]["a"] == "b"
        assert pod["metadata"]["labels"]["team"] == "x"
        env = {entry["name"]: entry for entry in container["env"]}
        assert env["A"]["value"] == "b"
        key = {"name": "key", "key": "token", "optional": False}
        assert env["API_KEY"]["valueFrom"]["secretKeyRef"] == key
        sources = [s["secretRef"]["name"] for s in container["envFrom"] if "secretRef" in s]
        assert sources == ["swarm", *(["s3"] if role == "master" else []), "more"]
        volumes = {v["name"]: v for v in pod["spec"]["volumes"]}
        assert {"key": "data__q.jsonl", "path": "data/q.jsonl"} in volumes["load"]["configMap"]["items"]
        assert "data" in volumes
    assert all(d["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q" for d in objects(made))
    master = found["master"]["template"]["spec"]
    claim = {"name": "runs", "persistentVolumeClaim": {"claimName": "results"}}
    assert claim in master["volumes"]
    options = one(made, "ConfigMap", "-options")["data"]
    assert options["LLM_LOCUST_SEED"] == "12345678"
    assert options["LOCUST_EXPECT_WORKERS"] == "20"
    assert options["LOCUST_HOST"] == EVERY["target"]
    assert options["LLM_LOCUST_UPLOAD"] == "s3://runs/x"
    assert options["LLM_LOCUST_METRICS_PORT"] == "9646"
    assert one(made, "PodMonitor", "")["metadata"]["labels"]["release"] == "kps"
    assert one(made, "NetworkPolicy", "-target")["spec"]["egress"] == [{"ports": [{"port": 8000}]}]
    if mode == "nightly":
        cron = one(made, "CronJob", "-worker")["spec"]
        labels = cron["jobTemplate"]["metadata"]["labels"]
        assert labels["kueue.x-k8s.io/queue-name"] == "q"
        assert labels["app.kubernetes.io/instance"] == "gate"  # by which the notes find them
        assert (cron["schedule"], cron["timeZone"]) == ("30 1 * * 1-5", "Europe/Berlin")
    if mode == "soak":
        route = one(made, "HTTPRoute", "-web")["spec"]
        assert (route["hostnames"], route["parentRefs"]) == (["load.example.org"], [{"name": "edge"}])


def test_parts_of_monitoring_and_names_are_switched_apart(chart: Chart) -> None:
    off = {"enabled": True, "rules": False, "dashboard": False, "podMonitor": False}
    given = {"monitoring": off, "nameOverride": "load", "networkPolicies": {"metricsFrom": "observe"}}
    made = template(chart, given, release="gate")
    kinds = {d["kind"] for d in objects(made)}
    assert not kinds & {"PodMonitor", "PrometheusRule"}
    assert [d["metadata"]["name"] for d in objects(made) if d["kind"] == "Job"] == [
        "gate-load-1-master",
        "gate-load-1-worker",
    ]
    assert one(made, "Service", "-metrics")["spec"]["ports"][0]["port"] == 9646
    (rule,) = one(made, "NetworkPolicy", "-metrics")["spec"]["ingress"]
    (space,) = rule["from"][0]["namespaceSelector"]["matchLabels"].values()
    assert space == "observe"
    assert "PrometheusRule" in {
        d["kind"] for d in objects(template(chart, {"monitoring": {"enabled": True}}))
    }


LOAD = "users: 1\nrun_time: 1m\n"


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"options": {"LLM_LOCUST_HEADER": "Authorization=Bearer sk-1"}}, "Authorization"),
        ({"options": {"LLM_LOCUST_HEADER": "[X-Team=a, x-api-key = sk-1]"}}, "x-api-key"),
        ({"scenario": f"{LOAD}header: X-Auth-Token=t\n"}, "X-Auth-Token"),
        ({"scenario": f"{LOAD}header: [X-Team=a, Api-Key=t]\n"}, "Api-Key"),
        ({"scenario": f"{LOAD}classes: {{a: {{headers: {{X-Api-Key: t}}}}}}\n"}, "X-Api-Key"),
        ({"scenario": f"{LOAD}classes: [{{headers: {{Authorization: t}}}}]\n"}, "Authorization"),
        ({"scenario": f"{LOAD}arms: {{a: , b: {{headers: {{Authorization: t}}}}}}\n"}, "Authorization"),
        ({"extraEnv": [{"name": "HF_TOKEN", "value": "hf_1"}]}, "HF_TOKEN"),
        (
            {"extraEnv": [{"name": "OTEL_EXPORTER_OTLP_HEADERS", "value": "a=b"}]},
            "OTEL_EXPORTER_OTLP_HEADERS",
        ),
    ],
)
def test_a_key_that_others_could_read_is_refused(chart: Chart, values: dict[str, Any], named: str) -> None:
    error = chart.ask("render", values)["error"]
    assert named in error
    assert "which others can read" in error


def test_headers_and_variables_that_are_no_keys_are_taken(chart: Chart) -> None:
    secret = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}
    values = {
        "options": {"LLM_LOCUST_HEADER": "X-Team=key=1"},
        "scenario": f"{LOAD}header: [X-Team=a]\nclasses: {{a: , b: {{headers: {{X-Tier: gold}}}}}}\n",
        "extraEnv": [secret, {"name": "A", "value": "b"}],
    }
    assert template(chart, values)


def test_each_revision_is_a_run_of_its_own_that_workers_of_another_do_not_reach(chart: Chart) -> None:
    names, hosts = [], []
    for revision in (1, 2):
        made = template(chart, release="gate", revision=revision)
        service = one(made, "Service", "-master")
        worker = one(made, "Job", "-worker")["spec"]["template"]
        (host,) = (e["value"] for e in worker["spec"]["containers"][0]["env"] if "NODE_HOST" in e["name"])
        assert host == service["metadata"]["name"]
        master = one(made, "Job", "-master")
        labels = master["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items()
        names.append(master["metadata"]["name"])
        hosts.append(labels["llm-locust/run"])
    assert names == ["gate-llm-locust-1-master", "gate-llm-locust-2-master"]
    assert hosts == ["gate-llm-locust-1", "gate-llm-locust-2"]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"worker": 3}, "worker"),
        ({"wokers": 3}, "wokers"),
        ({"mode": "sok"}, "mode"),
        ({"workers": 0}, "workers"),
        ({"apiKey": {"value": "sk-1"}}, "value"),
        ({"options": {"PATH": "x"}}, "PATH"),
        ({"networkPolicies": {"webFrom": "A"}}, "webFrom"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(chart: Chart, values: dict[str, Any], named: str) -> None:
    assert named in chart.ask("render", values)["error"]


def test_what_helm_renders_fits_the_schemas(chart: Chart) -> None:
    made = [
        found
        for mode in MODES
        for values in ({}, EVERY)
        for found in with_standard_kinds(objects(template(chart, {**values, "mode": mode})))
    ]
    assert misfits(made, ("1.29", "1.35")) == []


# --- The manifests fit Kubernetes' schemas and the operator's, and the usual advice but for a reason


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


def rendered_objects(rendered: Rendered, names: Iterable[str]) -> list[Any]:
    return [found for name in names for found in with_standard_kinds(documents(rendered(name)))]


def test_every_object_fits_the_schemas(rendered: Rendered) -> None:
    odd = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"prots": []}}
    found = misfits([*rendered_objects(rendered, (*OVERLAYS, *COMPONENTS)), odd], VERSIONS)
    assert len(found) == len(VERSIONS)
    assert all("prots" in misfit for misfit in found), found


def test_checkov_finds_nothing_but_what_is_accepted(rendered: Rendered, tmp_path: Path) -> None:
    names = [*OVERLAYS, *COMPONENTS]
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(different(rendered_objects(rendered, names))))
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
