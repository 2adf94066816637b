"""Overlays, monitoring and the image hold what is promised, and name what exists."""

import argparse
import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from k8s_tools import OVERLAYS, POD_DISCOVERY, ROOT, Rendered, documents, found, pods
from live_cases import Run, observation, worker
from metrics_cases import failed, request
from packaging.requirements import Requirement
from packaging.version import Version
from prometheus_client import generate_latest
from warm_process import warm_code

from llm_locust.cli.main import add_upload_arguments
from llm_locust.core.texts import parse_time
from llm_locust.k8s import command
from llm_locust.k8s.overlay import MANIFESTS
from llm_locust.live.prometheus import registry
from llm_locust.live.state import Observation
from llm_locust.options.table import GRAMMAR
from llm_locust.report import serving
from llm_locust.scenario.document import load_scenario
from llm_locust.swarm.process.children import REPORT_SOCKET

# --- Every overlay renders, holds what is promised, and names options that exist


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


def swarm(text: str) -> list[tuple[str, list[str], dict[str, str]]]:
    """Role, arguments and environment of the master and workers, however they are made."""
    made: list[tuple[str, list[str], dict[str, str]]] = []
    for document in documents(text):
        if document["kind"] == "LocustTest" and document["apiVersion"] == "locust.io/v1":
            spec = document["spec"]
            environment = {e["name"]: e["value"] for e in spec["env"]}
            made.append(("master", ["--master", *spec["args"].split()], environment))
            made.append(("worker", ["--worker", *spec["args"].split()], environment))
        elif document["kind"] == "LocustTest":
            spec = document["spec"]
            environment = {e["name"]: e["value"] for e in spec["env"]["variables"]}
            for role in ("master", "worker"):
                words = [*spec[role]["command"].split(), *spec[role]["extraArgs"]]
                made.append((role, [f"--{role}", *words], environment))
    for name, pod in pods(text):
        role = name.rpartition("-")[2]
        if role in ("master", "worker"):
            environment = found(text, "ConfigMap", "llm-locust-options")["data"]
            made.append((role, pod["containers"][0]["args"], environment if role == "master" else {}))
    return made


def parsed(*commands: tuple[list[str], Mapping[str, str]]) -> set[str]:
    """See that arguments, each with an environment, parse; gives all flags and variables that there are."""
    return set(json.loads(warm_code(PARSE, input=json.dumps(commands))))


def test_the_options_that_the_overlays_give_exist_and_their_values_parse(
    rendered: Rendered,
) -> None:
    roles = [role for overlay in OVERLAYS for role in swarm(rendered(overlay))]
    assert len(roles) == 2 * (len(OVERLAYS) - 1)  # a merge has no swarm
    known = parsed(*((args, environment) for _, args, environment in roles))
    assert {name for _, _, environment in roles for name in environment} <= known


def test_the_options_that_the_page_names_exist(capsys: pytest.CaptureFixture[str]) -> None:
    for add_arguments, words in (
        (command.add_arguments, ["render", "--help"]),
        (command.add_arguments, ["run", "--help"]),
        (add_upload_arguments, ["--help"]),
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
def test_pods_are_restricted(rendered: Rendered, overlay: str) -> None:
    for name, pod in pods(rendered(overlay)):
        assert pod["securityContext"]["runAsNonRoot"], name
        assert pod["securityContext"]["runAsUser"] > 10_000
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


@pytest.mark.parametrize("overlay", [*("headless", "demo", "vllm", "soak", "soak-hpa"), "jobset", "nightly"])
def test_there_is_time_to_stop_flush_and_report(rendered: Rendered, overlay: str) -> None:
    text = rendered(overlay)
    options = found(text, "ConfigMap", "llm-locust-options")["data"]
    stop_and_flush_s = 60 + float(options["LOCUST_STOP_TIMEOUT"]) + 30 + 5  # the drain first
    grace_s = {name: pod.get("terminationGracePeriodSeconds", 30) for name, pod in pods(text)}
    assert grace_s["llm-locust-master"] >= stop_and_flush_s + 60
    assert grace_s["llm-locust-worker"] >= stop_and_flush_s


@pytest.mark.parametrize("overlay", ["headless", "demo", "vllm"])
def test_the_masters_job_is_tried_once_and_waits_for_all_workers(rendered: Rendered, overlay: str) -> None:
    text = rendered(overlay)
    master, workers = found(text, "Job", "llm-locust-master"), found(text, "Job", "llm-locust-worker")
    assert master["spec"]["backoffLimit"] == 0
    options = found(text, "ConfigMap", "llm-locust-options")["data"]
    assert int(options["LOCUST_EXPECT_WORKERS"]) == workers["spec"]["completions"]
    assert workers["spec"]["completions"] == workers["spec"]["parallelism"]


@pytest.mark.parametrize("overlay", ["soak", "kept-spools", "gateway-api"])
def test_a_soak_starts_by_itself_goes_on_after_a_restart_and_is_ended_by_no_changed_config_map(
    rendered: Rendered, overlay: str
) -> None:
    text = rendered(overlay)
    options = found(text, "ConfigMap", "llm-locust-options")["data"]
    assert options["LOCUST_AUTOSTART"] == options["LLM_LOCUST_RESTARTABLE"] == "true"
    # The environment stands above the scenario, whose run time is that of a short run.
    assert parse_time(options["LOCUST_RUN_TIME"]) == 24 * 3600
    assert options["LLM_LOCUST_OUT"].startswith("/runs/")
    assert (
        int(options["LOCUST_EXPECT_WORKERS"]) == found(text, "Deployment", "llm-locust-w")["spec"]["replicas"]
    )
    for name in ("llm-locust-load", "llm-locust-options"):
        config = found(text, "ConfigMap", name)
        # Without a hash in the name no pod template changes with the content.
        assert (config["metadata"]["name"], config["immutable"]) == (name, True)


def test_spools_are_kept_where_the_merge_reads(rendered: Rendered) -> None:
    text = rendered("kept-spools")
    volumes = {v["name"]: v for v in dict(pods(text))["llm-locust-worker"]["volumes"]}
    merged = {v["name"]: v for v in dict(pods(rendered("merge")))["llm-locust-merge"]["volumes"]}
    assert (
        volumes["runs"]
        == merged["runs"]
        == {"name": "runs", "persistentVolumeClaim": {"claimName": "llm-locust-runs"}}
    )
    claim = found(text, "PersistentVolumeClaim", "llm-locust-runs")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    (spool,) = (a for a in dict(pods(text))["llm-locust-worker"]["containers"][0]["args"] if "spool" in a)
    out = found(text, "ConfigMap", "llm-locust-options")["data"]["LLM_LOCUST_OUT"]
    assert spool == f"--spool={out}/spool"
    (merge,) = dict(pods(rendered("merge")))["llm-locust-merge"]["containers"]
    assert {"name": "RUN", "value": out} in merge["env"]


def test_what_is_applied_at_once_waits_for_its_target(rendered: Rendered) -> None:
    for overlay, patience in (("headless", "2m"), ("demo", "2m"), ("vllm", "30m")):
        options = found(rendered(overlay), "ConfigMap", "llm-locust-options")["data"]
        assert options["LLM_LOCUST_READY_TIMEOUT"] == patience
    (server,) = [pod for name, pod in pods(rendered("vllm")) if name == "vllm"]
    probe = server["containers"][0]["startupProbe"]
    assert parse_time(patience) >= probe["periodSeconds"] * probe["failureThreshold"]


@pytest.mark.parametrize("overlay", ["headless", "demo", "vllm", "soak"])
def test_a_worker_has_one_whole_cpu_and_reaches_master_dns_and_target_only(
    rendered: Rendered, overlay: str
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


def test_the_service_account_has_no_rights_and_the_overlays_no_roles(
    rendered: Rendered,
) -> None:
    for overlay in OVERLAYS:
        found = {d["kind"] for d in documents(rendered(overlay))}
        assert not found & {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}


def test_pod_discovery_lets_the_master_list_pods_and_nobody_do_anything_else(
    rendered: Rendered,
) -> None:
    text = rendered(POD_DISCOVERY)
    specs = dict(pods(text))
    accounts = {
        name: (s["serviceAccountName"], s["automountServiceAccountToken"]) for name, s in specs.items()
    }
    assert accounts == {
        "llm-locust-master": ("llm-locust-master", True),
        "llm-locust-worker": ("llm-locust", False),
    }
    role, binding = found(text, "Role", "llm-locust-pods"), found(text, "RoleBinding", "llm-locust-pods")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    (subject,) = binding["subjects"]
    assert (subject["name"], subject["namespace"]) == ("llm-locust-master", "llm-locust")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    kinds = {d["kind"] for d in documents(text)} - {d["kind"] for d in documents(rendered("headless"))}
    assert kinds == {"Role", "RoleBinding"}


def test_what_the_base_carries_is_what_the_project_has() -> None:
    base = MANIFESTS / "base"
    own = (ROOT / "locustfiles" / "scenario.py").read_text()
    assert (base / "locustfile.py").read_text() == own
    for name in ("locustfile.py", "scenario.yaml"):
        copied = (MANIFESTS / "overlays" / "locust-operator" / name).read_text()
        assert copied == (base / name).read_text()
    for path in MANIFESTS.rglob("scenario.yaml"):
        assert load_scenario(path, GRAMMAR).options["gate"]
    for path in base.glob("*.yaml"):
        for line in path.read_text().splitlines():
            assert "image:" not in line or line.endswith(f"image: llm-locust:{version('llm-locust')}")


def test_the_folder_k8s_leads_to_the_manifests_of_the_package() -> None:
    for name in ("base", "components", "overlays"):
        assert (ROOT / "k8s" / name).resolve() == MANIFESTS / name


@pytest.mark.parametrize("overlay", ["jobset", "nightly"])
def test_what_is_made_of_the_jobs_is_the_same_pods_with_the_same_references(
    rendered: Rendered, overlay: str
) -> None:
    text = rendered(overlay)
    assert "Job" not in {document["kind"] for document in documents(text)}
    expected = {name.rpartition("-")[2]: pod for name, pod in pods(rendered("report-container"))}
    assert {name.rpartition("-")[2]: pod for name, pod in pods(text)} == expected


def test_nights_are_kept_by_their_number_and_not_by_their_age(rendered: Rendered) -> None:
    made = [document for document in documents(rendered("nightly")) if document["kind"] == "CronJob"]
    assert len(made) == 2
    for document in made:
        spec = document["spec"]
        assert (spec["successfulJobsHistoryLimit"], spec["failedJobsHistoryLimit"]) == (7, 7)
        assert "ttlSecondsAfterFinished" not in spec["jobTemplate"]["spec"]
        assert spec["jobTemplate"]["spec"]["activeDeadlineSeconds"]


@pytest.mark.parametrize("overlay", ["soak", "jobset", "nightly"])
def test_a_report_has_memory_of_its_own_beside_the_master(rendered: Rendered, overlay: str) -> None:
    (pod,) = (pod for name, pod in pods(rendered(overlay)) if name.endswith("master"))
    (report,), (master,) = pod["initContainers"], pod["containers"]
    # A sidecar: it is there before the master, and the pod does not wait for its end.
    assert report["restartPolicy"] == "Always"
    assert (report["image"], report["securityContext"]) == (master["image"], master["securityContext"])
    mounts = {m["mountPath"]: m["name"] for m in master["volumeMounts"]}
    assert {m["mountPath"]: m["name"] for m in report["volumeMounts"]}.items() <= mounts.items()
    (socket,) = (e["value"] for e in master["env"] if e["name"] == REPORT_SOCKET)
    assert report["command"][-2:] == [serving.__name__, socket]


def test_master_and_workers_are_left_where_they_are_and_away_from_their_target(rendered: Rendered) -> None:
    for overlay in ("headless", "soak"):
        for document in documents(rendered(overlay)):
            if "template" in document.get("spec", {}):
                template = document["spec"]["template"]
                notes = template["metadata"]["annotations"]
                assert notes["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
                assert notes["karpenter.sh/do-not-disrupt"] == "true"
                (term,) = template["spec"]["affinity"]["podAntiAffinity"][
                    "preferredDuringSchedulingIgnoredDuringExecution"
                ]
                (chosen,) = term["podAffinityTerm"]["labelSelector"]["matchExpressions"]
                assert chosen == {"key": "llm-locust/target", "operator": "In", "values": ["true"]}


def test_deleting_the_demo_leaves_every_other_run(rendered: Rendered) -> None:
    text = rendered("demo")
    assert found(text, "Namespace", "llm-locust")["metadata"]["name"] == "llm-locust-demo"
    assert found(rendered("soak"), "Namespace", "llm-locust")["metadata"]["name"] == "llm-locust"


def test_monitoring_has_the_port_and_the_rules_of_the_project(rendered: Rendered) -> None:
    text = rendered("monitoring")
    (port,) = [
        p for p in dict(pods(text))["llm-locust-master"]["containers"][0]["ports"] if p["name"] == "metrics"
    ]
    options = found(text, "ConfigMap", "llm-locust-options")["data"]
    assert str(port["containerPort"]) == options["LLM_LOCUST_METRICS_PORT"]
    monitor = found(text, "PodMonitor", "llm-locust")["spec"]
    assert [end["port"] for end in monitor["podMetricsEndpoints"]] == ["metrics"]
    rules = yaml.safe_load((ROOT / "k8s" / "monitoring" / "rules.yaml").read_text())
    assert found(text, "PrometheusRule", "llm-locust")["spec"] == rules
    dashboard = found(text, "ConfigMap", "llm-locust-dashboard")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(dashboard["data"]["llm-locust.json"])["panels"]


def test_a_route_takes_the_place_of_the_ingress(rendered: Rendered) -> None:
    text = rendered("gateway-api")
    assert "Ingress" not in {document["kind"] for document in documents(text)}
    (rule,) = found(text, "HTTPRoute", "llm-locust-web")["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    (gateway,) = found(text, "HTTPRoute", "llm-locust-web")["spec"]["parentRefs"]
    (peer,) = found(text, "NetworkPolicy", "llm-locust-web")["spec"]["ingress"][0]["from"]
    assert list(peer["namespaceSelector"]["matchLabels"].values()) == [gateway["namespace"]]
    (port,) = found(text, "Service", backend["name"])["spec"]["ports"]
    assert port["port"] == backend["port"]


# --- ``k8s/monitoring``: the dashboard and the alert rules ask for what is served, in readable PromQL


MONITORING = Path(__file__).parents[2] / "k8s" / "monitoring"
RULES, RULE_TESTS = MONITORING / "rules.yaml", MONITORING / "rules.test.yaml"
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool (apt: prometheus)"
)

#: What Grafana puts in for its variables.
VARIABLES = {"$__rate_interval": "1m", "$job": ".*", "$instance": ".*", "$model": ".*", "$name": ".*"}


def exposition() -> str:
    """All that the master can serve."""
    run = Run()
    run.ended([request(replica="r0"), failed()])
    run.report()
    seen = observation(2, worker("a", in_flight=1, cpu_percent=1.0, hub_lag_ms=1.0))
    run.store.observe(Observation(users=2, target=2, rate=5.0, workers=seen.workers))
    run.clock.tick(2)
    return generate_latest(registry(run.store)).decode()


def promtool(*arguments: str | Path, text: str | None = None) -> None:
    done = subprocess.run(
        ["promtool", *map(str, arguments)],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def panels() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def queries() -> list[str]:
    rules = [rule["expr"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    return [*rules, *(expr for _, expr in panels())]


def test_every_metric_that_is_asked_for_is_served() -> None:
    served = {re.split(r"[{ ]", line)[0] for line in exposition().splitlines() if not line.startswith("#")}
    asked = {name for query in queries() for name in re.findall(r"(?<![:\w])llm_locust_\w+", query)}
    assert len(asked) > 15
    assert asked <= served


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids)) > 10
    assert DASHBOARD["schemaVersion"] >= 36
    variables = [variable["name"] for variable in DASHBOARD["templating"]["list"]]
    assert variables == ["datasource", "job", "instance", "model", "name"]
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in DASHBOARD["panels"])


def test_panels_do_not_lie_on_each_other() -> None:
    places = set()
    for panel in DASHBOARD["panels"]:
        grid: dict[str, Any] = panel["gridPos"]
        for x in range(grid["x"], grid["x"] + grid["w"]):
            for y in range(grid["y"], grid["y"] + grid["h"]):
                assert (x, y) not in places, panel["title"]
                assert x < 24
                places.add((x, y))


@needs_promtool
def test_promtool_finds_nothing_wrong_with_the_metrics() -> None:
    promtool("check", "metrics", text=exposition())


@needs_promtool
def test_promtool_reads_the_rules() -> None:
    promtool("check", "rules", RULES)


@needs_promtool
def test_the_rules_alert_when_they_should_and_not_else() -> None:
    promtool("test", "rules", RULE_TESTS)


@needs_promtool
def test_promtool_reads_every_query_of_the_dashboard(tmp_path: Path) -> None:
    rules = []
    for number, (_, query) in enumerate(panels()):
        for name, value in VARIABLES.items():
            query = query.replace(name, value)
        rules.append({"record": f"panel:{number}", "expr": query})
    path = tmp_path / "panels.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", path)


# --- The image: what its entry point runs, and its locked packages, as those of the tests and the audit


LOCKS = (
    *("k8s/requirements.txt", "k8s/build-requirements.txt"),
    *("tests/requirements.txt", "tests/lowest-requirements.txt", ".ci/audit-requirements.txt"),
)


@pytest.mark.parametrize("name", LOCKS)
def test_locked_packages_have_hashes_and_name_no_place_to_take_them_from(name: str) -> None:
    lines = (ROOT / name).read_text().splitlines()
    starts = [i for i, line in enumerate(lines) if not line.startswith(" ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        assert "==" in lines[start]
        assert any("--hash=sha256:" in line for line in lines[start + 1 : end])
    assert not any("://" in line or "-index" in line for line in lines)


def pinned(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text().splitlines()
    return dict(line.split(" ")[0].split("==") for line in lines if not line.startswith(" "))


def test_locks_hold_every_dependency_in_a_version_that_the_project_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    image, tests = pinned("k8s/requirements.txt"), pinned("tests/requirements.txt")
    for requirement in map(Requirement, project["dependencies"] + project["optional-dependencies"]["otel"]):
        assert requirement.specifier.contains(image[requirement.name.lower()]), requirement
    for requirement in map(Requirement, project["dependencies"] + project["optional-dependencies"]["test"]):
        name = requirement.name.lower()
        assert name == "llm-locust" or requirement.specifier.contains(tests[name]), requirement


def test_the_lowest_versions_that_are_tested_are_those_that_the_project_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lowest = pinned("tests/lowest-requirements.txt")
    for requirement in map(Requirement, project["dependencies"]):
        (bound,) = (each.version for each in requirement.specifier if each.operator == ">=")
        assert Version(bound) == Version(lowest[requirement.name.lower()]), requirement


@pytest.mark.parametrize(
    ("words", "ran"),
    [
        (["run", "--sim"], "llm-locust run --sim"),
        (["report", "/runs/a b"], "llm-locust report /runs/a b"),
        ([], "llm-locust"),
        (["--help"], "llm-locust --help"),
        (["--version"], "llm-locust --version"),
        (["locust", "-f", "x.py"], "locust -f x.py"),
        # What an operator gives to an image whose entry point is Locust's.
        (["--locustfile=x.py", "--master"], "locust --locustfile=x.py --master"),
        (["-f", "x.py"], "locust -f x.py"),
        (["python", "-c", "0"], "python -c 0"),
        (["nonsense"], "llm-locust nonsense"),
    ],
)
def test_a_command_is_one_word_away_and_options_alone_are_locusts(
    words: list[str], ran: str, tmp_path: Path
) -> None:
    for name in ("locust", "llm-locust", "python"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (tmp_path / name).chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    done = subprocess.run(
        [str(ROOT / "k8s" / "entry-point"), *words],
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == ran


def test_the_entry_point_is_in_the_image() -> None:
    dockerfile = (ROOT / "k8s" / "Dockerfile").read_text()
    (copied,) = re.findall(r"^COPY .*k8s/entry-point /opt/llm-locust/bin/(\S+)$", dockerfile, flags=re.M)
    assert f'ENTRYPOINT ["{copied}"]' in dockerfile
    assert "!k8s/entry-point" in (ROOT / ".dockerignore").read_text().splitlines()
