"""Parts of ``llm-locust k8s`` without a cluster: rendered manifests, what pods say, a resumed log."""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_cases import RUNNING, ended, pod, waiting
from k8s_tools import documents, kubectl_on_path

from llm_locust.cli.main import main
from llm_locust.k8s import command
from llm_locust.k8s.command import asked_to_end
from llm_locust.k8s.kubectl import Resumed, read_state, render as render_folder
from llm_locust.k8s.overlay import ServerTarget, image_change
from llm_locust.k8s.plan import MOST_BYTES, RenderError, files_of
from llm_locust.options.table import GRAMMAR
from llm_locust.scenario.document import load_scenario

# --- ``llm-locust k8s render``: manifests that do what the scenario and the command line say


ROOT = Path(__file__).parents[2]
LOAD = "users: 5\nrun_time: 5m\n"
ROLES = ("master", "worker")
TARGET = ("--target", "http://vllm.models.svc:8000")


class Rendered:
    """What was printed, and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def one(self, kind: str, name: str) -> Any:
        (found,) = (
            d
            for d in documents(self.out)
            if d["kind"] == kind and re.fullmatch(rf"{name}(-\w{{10}})?", d["metadata"]["name"])
        )
        return found

    def pod(self, role: str, kind: str = "Job") -> Any:
        return self.one(kind, f"llm-locust-{role}")["spec"]["template"]["spec"]

    @property
    def options(self) -> dict[str, str]:
        data: dict[str, str] = self.one("ConfigMap", "llm-locust-options")["data"]
        return data

    @property
    def load(self) -> dict[str, str]:
        data: dict[str, str] = self.one("ConfigMap", "llm-locust-load")["data"]
        return data


Render = Callable[..., Rendered]
Written = Callable[..., Any]


@pytest.fixture
def render(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Render]:
    """Renders a scenario's text with options."""

    def of(scenario: str, *words: str) -> Rendered:
        path = tmp_path / "s.yaml"
        path.write_text(scenario, encoding="utf-8")
        parser = argparse.ArgumentParser()
        command.add_arguments(parser)
        args = parser.parse_args(["render", "--scenario", str(path), "--workers", "5", *words])
        code = command.run(args)
        return Rendered(code, *capsys.readouterr())

    with kubectl_on_path():
        yield of


@pytest.fixture
def written(render: Render, tmp_path: Path) -> Written:
    """Gives one of the patches that an overlay is written with, which is quicker than its rendering."""

    def of(patch: str, scenario: str, *words: str) -> Any:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        made = render(scenario, *words, "--write", str(folder))
        assert (made.code, made.out) == (0, ""), made.err
        return yaml.safe_load((folder / f"{patch}.yaml").read_text())["spec"]

    return of


def test_the_command_of_the_page_prints_manifests_for_kubectl_apply(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = "users: 50\nrun_time: 5m\n"
    (tmp_path / "s.yaml").write_text(scenario)
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    (line,) = re.findall(r"^(llm-locust k8s render .*--target .*) \| kubectl apply -f -$", page, flags=re.M)
    monkeypatch.chdir(tmp_path)
    with kubectl_on_path():
        code = main(shlex.split(line)[1:])
    made = Rendered(code, *capsys.readouterr())
    assert made.code == 0, made.err
    (said,) = made.err.splitlines()
    assert said.startswith("llm-locust k8s render: master and workers may connect to http://vllm.models.svc")
    kinds = [document["kind"] for document in documents(made.out)]
    assert kinds.count("Job") == 2
    assert kinds[0] == "Namespace"  # first, for kubectl makes them in this order
    (workers,) = re.findall(r"--workers (\d+)", line)
    spec = made.one("Job", "llm-locust-worker")["spec"]
    assert spec["completions"] == spec["parallelism"] == int(workers)
    assert made.options["LOCUST_EXPECT_WORKERS"] == workers
    assert made.options["LOCUST_HOST"].startswith("http://vllm.models.svc")
    assert made.load["scenario.yaml"] == scenario
    assert made.load["locustfile.py"] == (ROOT / "locustfiles" / "scenario.py").read_text()
    (rule,) = made.one("NetworkPolicy", "llm-locust-target")["spec"]["egress"]
    assert rule == {"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "models"}}}]}
    assert "kind: Role\n" not in made.out


ARMS = "run_time: 5m\narms: {a: {url: http://10.0.0.1:80}, b: {url: http://10.0.0.2:81, prefix: cold}, c: }\n"


@pytest.mark.parametrize(
    ("scenario", "words", "hosts"),
    [
        (ARMS, ("--target", "http://10.0.0.3:82"), ["10.0.0.1/32", "10.0.0.2/32", "10.0.0.3/32"]),
        (ARMS, ("--overlay", "demo"), ["10.0.0.1/32", "10.0.0.2/32"]),
        (
            "run_time: 5m\narm: [a=http://10.0.0.1, 'b=http://10.0.0.2:81 share=2']\n",
            (),
            ["10.0.0.1/32", "10.0.0.2/32"],
        ),
        ("host: http://10.1.2.3:8000\nrun_time: 5m\n", (), ["10.1.2.3/32"]),
    ],
)
def test_policies_open_every_arm_and_a_host_of_the_scenarios(
    written: Written, scenario: str, words: tuple[str, ...], hosts: list[str]
) -> None:
    rules = written("network-target", scenario, *words)["egress"]
    blocks = [to["ipBlock"]["cidr"] for rule in rules for to in rule["to"] if "ipBlock" in to]
    assert sorted(blocks) == hosts


def test_an_arm_without_a_server_is_refused(render: Render) -> None:
    made = render(ARMS)
    assert (made.code, made.out) == (2, "")
    assert "'c' has no url, and the run has no host" in made.err


def keeps_away(pod: Any) -> bool:
    """Whether a pod avoids the nodes of servers, which have not the name of its run."""
    rules = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    return [rule["podAffinityTerm"]["labelSelector"] for rule in rules] == [
        {"matchExpressions": [{"key": "llm-locust/target", "operator": "In", "values": ["true"]}]}
    ]


def test_a_soak_needs_no_end_and_has_its_workers_its_rights_and_its_name(render: Render) -> None:
    words = "--overlay soak --monitoring --name pr-7 --pod-discovery --namespace perf"
    made = render("users: 5\n", *TARGET, *words.split())
    assert made.code == 0, made.err
    assert made.one("Deployment", "pr-7-llm-locust-worker")["spec"]["replicas"] == 5
    # What the overlay says of them holds after every merge.
    maps = [made.one("ConfigMap", f"pr-7-llm-locust-{name}") for name in ("load", "options")]
    assert all(each["immutable"] for each in maps)
    assert maps[1]["data"]["LOCUST_EXPECT_WORKERS"] == "5"
    pods = {
        role: made.one("Deployment", f"pr-7-llm-locust-{role}")["spec"]["template"]["spec"] for role in ROLES
    }
    assert all(map(keeps_away, pods.values()))
    assert pods["master"]["serviceAccountName"] == "pr-7-llm-locust-master"
    (subject,) = made.one("RoleBinding", "pr-7-llm-locust-pods")["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "pr-7-llm-locust-master", "namespace": "perf"}


@pytest.mark.parametrize(
    ("image", "change"),
    [
        ("llm-locust:2", {"newName": "llm-locust", "newTag": "2"}),
        (
            "images.example.com:5000/team/loads:2.1",
            {"newName": "images.example.com:5000/team/loads", "newTag": "2.1"},
        ),
        (f"loads@sha256:{'a' * 64}", {"newName": "loads", "digest": f"sha256:{'a' * 64}"}),
    ],
)
def test_the_image_is_as_asked(image: str, change: dict[str, str]) -> None:
    assert image_change(image) == {"name": "llm-locust", **change}


def test_files_keys_uploads_and_places_come_with_the_load(render: Render, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "q.jsonl").write_text('{"prompt": "Hello"}\n')
    (tmp_path / "lengths.csv").write_text("10\n20\n")
    (tmp_path / "mine.py").write_text("# mine\n")
    (tmp_path / "own_checks.py").write_text("def fine(text, prompt):\n    return True\n")
    (tmp_path / "shape.json").write_text("{}")
    (tmp_path / "x.txt").write_text("x")
    scenario = (
        "run_time: 5m\nflush_timeout: 10m\nout: results/nightly\napi_key_env: VLLM_KEY\n"
        "model_shape: shape.json\nvalidators: [{function: own_checks:fine}]\n"
        "classes:\n"
        "  a: {dataset: {file: data/q.jsonl}}\n"
        "  b: {input_tokens: 'file:lengths.csv', output_tokens: 10}\n"
    )
    words = ["--locustfile", str(tmp_path / "mine.py"), "--file", f"{tmp_path / 'x.txt'}=data/x.txt"]
    words += ["--api-key-secret", "models/token", "--upload", "s3://runs/x", "--upload-secret", "s3"]
    image = f"images.example.com:5000/team/loads@sha256:{'a' * 64}"
    made = render(scenario, *TARGET, *words, "--image", image)
    assert made.code == 0, made.err
    volume = made.pod("worker")["volumes"][0]["configMap"]
    placed = {item["path"]: made.load[item["key"]] for item in volume["items"]}
    assert placed == {
        "scenario.yaml": scenario,
        "locustfile.py": "# mine\n",
        "data/q.jsonl": '{"prompt": "Hello"}\n',
        "lengths.csv": "10\n20\n",
        "own_checks.py": "def fine(text, prompt):\n    return True\n",
        "shape.json": "{}",
        "data/x.txt": "x",
    }
    assert made.options["LLM_LOCUST_OUT"] == "/runs/nightly"
    assert made.options["LLM_LOCUST_UPLOAD"] == "s3://runs/x"
    assert made.options["LLM_LOCUST_API_KEY_ENV"] == "VLLM_KEY"
    assert {"secretRef": {"name": "s3"}} in made.pod("master")["containers"][0]["envFrom"]
    assert made.one("NetworkPolicy", "llm-locust-master")["spec"]["egress"] == [{"ports": [{"port": 443}]}]
    source = {"secretKeyRef": {"name": "models", "key": "token", "optional": False}}
    for role, grace_s in (("master", 810), ("worker", 720)):
        pod = made.pod(role)
        assert pod["terminationGracePeriodSeconds"] == grace_s
        (container,) = pod["containers"]
        assert container["image"] == image
        env = {entry["name"]: entry for entry in container["env"]}
        assert env["VLLM_KEY"]["valueFrom"] == source


@pytest.mark.parametrize(("drain", "worker_s"), [("5m", 390), ("0", 90)])
def test_a_drain_of_ones_own_has_its_time_and_no_more(written: Written, drain: str, worker_s: int) -> None:
    pod = written("worker", f"{LOAD}drain: {drain}\n", *TARGET)["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == worker_s


def test_an_overlay_that_is_written_is_patches_on_a_base_with_a_version_and_renders_to_the_same(
    render: Render, tmp_path: Path
) -> None:
    made = render(LOAD, *TARGET)
    assert made.pod("master")["terminationGracePeriodSeconds"] == 240
    assert made.pod("worker")["terminationGracePeriodSeconds"] == 150
    kept = tmp_path / "kept"
    assert render(LOAD, *TARGET, "--write", str(kept)).out == ""
    assert render_folder(kept) == made.out
    assert (kept / f"llm-locust-{version('llm-locust')}" / "base" / "master.yaml").exists()
    patch = yaml.safe_load((kept / "worker.yaml").read_text())
    assert patch["spec"]["completions"] == 5
    assert "{" not in (kept / "worker.yaml").read_text()
    again = render(LOAD, *TARGET, "--write", str(kept))
    assert (again.code, again.out) == (2, "")
    assert "exists already" in again.err


@pytest.mark.parametrize(
    ("scenario", "words", "reason"),
    [
        (LOAD, (), "no target: give --target"),
        ("user: 5\n", TARGET, "s.yaml:1:1"),
        (LOAD, ("--target", "vllm:8000"), "is not a URL such as"),
        (LOAD, ("--target", "https://api.example.com/v1"), "by --target-cidr"),
        (
            LOAD,
            ("--target", "http://h", "--target-cidr", "1.2.3.4/8"),
            "has host bits set",
        ),
        (f"{LOAD}api_key_env: KEY\n", TARGET, "by --api-key-secret NAME/KEY"),
        (
            f"{LOAD}header: Authorization=Bearer sk-1\n",
            TARGET,
            "'Authorization' would be in",
        ),
        (
            "run_time: 5m\nclasses: {a: {headers: {X-Api-Key: sk-1}}}\n",
            TARGET,
            "the header 'x-api-key' would be in a ConfigMap, which others can read",
        ),
        *(
            (LOAD, (*TARGET, "--api-key-secret", text), "is not SECRET/KEY")
            for text in ("x", "a/b/c", "/b", "a/", "A/b", "a/b c")
        ),
        *(
            (LOAD, (*TARGET, "--upload", text), "write s3://bucket/prefix or gs://bucket")
            for text in ("nonsense", "runs/copy", "http://store/x", "S3:bucket")
        ),
        (LOAD, (*TARGET, "--upload", "s3://"), "names no bucket"),
        (LOAD, (*TARGET, "--upload", "s3://B_ad/x"), "names a bucket that cannot be"),
        (f"{LOAD}upload: nonsense\n", TARGET, "write s3://bucket/prefix or gs://bucket"),
        (LOAD, (*TARGET, "--locustfile", "/no/such.py"), "/no/such.py"),
    ],
)
def test_what_cannot_be_rendered_is_said_in_one_line(
    render: Render, scenario: str, words: tuple[str, ...], reason: str
) -> None:
    made = render(scenario, *words)
    assert (made.code, made.out) == (2, "")
    assert reason in made.err
    assert made.err.startswith("llm-locust k8s render: ")
    assert made.err.count("\n") == 1


def test_without_kubectl_and_kustomize_it_says_what_to_do(
    render: Render, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    made = render(LOAD, *TARGET)
    assert made.code == 2
    assert "--write DIR" in made.err


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"client_cert": "me.pem"}, "mount it from a Secret"),
        ({"dataset": "../q.jsonl"}, "outside of the scenario's folder"),
        ({"tokenizer": "folder"}, "is a folder: put it into the image"),
        ({"arrival": "trace:none.csv"}, "there is no file"),
        ({"classes": [{"dataset": {"file": "large"}}]}, f"a ConfigMap holds {MOST_BYTES}"),
    ],
)
def test_files_that_cannot_come_along_are_said(tmp_path: Path, document: Any, reason: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "large").write_bytes(bytes(MOST_BYTES + 1))
    with pytest.raises(RenderError, match=re.escape(reason)):
        files_of(document, tmp_path)


def test_files_of_the_image_are_left_to_it(tmp_path: Path) -> None:
    assert files_of({"tokenizer": "/models/tiny", "input_tokens": "512"}, tmp_path) == {}


def test_every_example_scenario_renders(render: Render, tmp_path: Path) -> None:
    """All of them at once, each under a name of its own."""
    names = []
    for scenario in (ROOT / "examples").glob("*.yaml"):
        for named in files_of(load_scenario(scenario, GRAMMAR).document, scenario.parent):
            shutil.copyfile(scenario.parent / named, tmp_path / named)
        names.append(scenario.stem.replace("_", "-"))
        words = ("--name", names[-1], "--namespace", "perf", "--write", str(tmp_path / "all" / names[-1]))
        assert render(scenario.read_text(), *TARGET, *words).code == 0
    (tmp_path / "all" / "kustomization.yaml").write_text(yaml.safe_dump({"resources": names}))
    made = [d["metadata"]["name"] for d in documents(render_folder(tmp_path / "all")) if d["kind"] == "Job"]
    assert sorted(made) == sorted(f"{name}-llm-locust-{role}" for name in names for role in ROLES)


@pytest.mark.parametrize("url", ["http://vllm", "http://vllm:8000/v1"])
def test_a_name_without_a_namespace_is_a_service_of_the_runs_own(url: str) -> None:
    rules, meaning = ServerTarget.parse(url).egress(())
    assert rules == [{"to": [{"podSelector": {}}]}]
    assert meaning == "all pods of the run's namespace, any port"


def test_an_address_of_version_6_is_one_address() -> None:
    ((rule,), _) = ServerTarget.parse("https://[2001:db8::1]/v1").egress(())
    assert json.dumps(rule) == '{"to": [{"ipBlock": {"cidr": "2001:db8::1/128"}}], "ports": [{"port": 443}]}'


def test_a_name_is_in_every_name_and_selector_so_that_runs_fit_into_a_namespace(render: Render) -> None:
    made = render(LOAD, "--name", "a", "--overlay", "demo")
    assert made.code == 0, made.err
    assert render(LOAD, *TARGET, "--overlay", "demo").code == 2  # it brings its own target
    assert all(
        keeps_away(made.one("Job", f"a-llm-locust-{role}")["spec"]["template"]["spec"]) for role in ROLES
    )
    found = [d for d in documents(made.out) if d["kind"] != "Namespace"]
    assert all(d["metadata"]["name"].startswith("a-llm-locust") for d in found)
    for document in found:
        spec = document.get("spec", {})
        for selector in (spec.get("podSelector"), spec.get("selector")):
            if selector is not None:
                assert "'app.kubernetes.io/instance': 'a'" in str(selector), document["metadata"]["name"]
    for document in found:
        if "template" in document.get("spec", {}):
            assert document["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/instance"] == "a"
    (peer,) = made.one("NetworkPolicy", "a-llm-locust-worker")["spec"]["egress"][0]["to"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "a"
    env = made.one("Job", "a-llm-locust-worker")["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "LOCUST_MASTER_NODE_HOST", "value": "a-llm-locust-master"} in env
    options = made.one("ConfigMap", "a-llm-locust-options")["data"]
    assert options["LOCUST_HOST"] == "http://a-llm-locust-sim:8000"


def test_pods_are_as_asked(render: Render) -> None:
    words = "--cpu 2 --memory 3Gi --deadline 2h --service-account loads --image-pull-secret hub"
    words += (
        " --node-selector pool=load --toleration dedicated=load:NoSchedule --env A=1 --env-from secret/more"
    )
    words += " --volume results --volume data:/data --label kueue.x-k8s.io/queue-name=gpu --namespace perf"
    made = render(LOAD, *TARGET, *words.split())
    assert made.code == 0, made.err
    found = documents(made.out)
    assert {d["metadata"]["namespace"] for d in found} == {"perf"}
    assert "Namespace" not in {d["kind"] for d in found}  # it is there
    for role in ROLES:
        job, pod = made.one("Job", f"llm-locust-{role}"), made.pod(role)
        (container,) = (c for c in pod["containers"] if c["name"] == role)
        assert job["spec"]["activeDeadlineSeconds"] == 7200
        assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpu"
        assert (pod["serviceAccountName"], pod["imagePullSecrets"]) == ("loads", [{"name": "hub"}])
        assert pod["nodeSelector"] == {"pool": "load"}
        taint = {"key": "dedicated", "operator": "Equal", "value": "load", "effect": "NoSchedule"}
        assert pod["tolerations"] == [taint]
        assert {"name": "A", "value": "1"} in container["env"]
        assert container["envFrom"][-1] == {"secretRef": {"name": "more"}}
        assert container["envFrom"][-2]["secretRef"]["name"] == "llm-locust-swarm"
        assert {"name": "volume-1", "mountPath": "/data", "readOnly": True} in container["volumeMounts"]
    runs = {v["name"]: v for v in made.pod("master")["volumes"]}["runs"]
    assert runs == {"name": "runs", "persistentVolumeClaim": {"claimName": "results"}}
    workers = made.pod("worker")["containers"][0]["resources"]
    assert workers["requests"] == workers["limits"]
    assert (workers["limits"]["cpu"], workers["limits"]["memory"]) == ("2", "3Gi")


def test_everything_that_the_scenario_connects_to_is_opened_and_said(render: Render) -> None:
    scenario = LOAD + (
        "targets: [http://a.models.svc:8000, http://10.0.0.7:9000]\n"
        "replica_url: dns+http://c.replicas.svc:8000\n"
        "metrics_url: [http://d.metrics.svc:9400/metrics, 'k8s:gpus/app=dcgm:9400']\n"
        "upload: s3://runs/x?endpoint_override=minio.storage.svc:9000&scheme=http\n"
    )
    collector = "OTEL_EXPORTER_OTLP_ENDPOINT=http://otel.observe.svc:4318"
    made = render(scenario, "--pod-discovery", "--env", collector, "--cloud-identity", "gcp")
    assert made.code == 0, made.err
    assert "LOCUST_HOST" not in made.options

    def spaces(policy: str) -> set[str]:
        rules = made.one("NetworkPolicy", f"llm-locust-{policy}")["spec"]["egress"]
        peers = [peer for rule in rules for peer in rule["to"]]
        return {
            next(iter(peer["namespaceSelector"]["matchLabels"].values()))
            if "namespaceSelector" in peer
            else peer["ipBlock"]["cidr"]
            for peer in peers
        }

    assert spaces("target") == {"models", "10.0.0.7/32", "observe"}
    google = {"169.254.169.254/32", "169.254.169.252/32"}
    assert spaces("master") == {"replicas", "metrics", "gpus", "storage", *google}
    said = made.err.splitlines()
    assert len(said) == 8
    assert all(" may connect to " in line for line in said)


def test_policies_can_be_left_to_the_cluster(render: Render) -> None:
    made = render(LOAD, "--target", "https://api.example.com/v1", "--no-network-policies")
    assert (made.code, made.err) == (0, "")
    assert "NetworkPolicy" not in {d["kind"] for d in documents(made.out)}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--env HF_TOKEN=x", "--env-from secret/NAME"),
        ("--env LLM_LOCUST_HEADER=Authorization=x", "--env-from secret/NAME"),
        ("--env LLM_LOCUST_HEADER=[X-Team=a,x-api-key=x]", "--env-from secret/NAME"),
        ("--env 1=x", "is not a variable"),
        ("--env A=1 --env A=2", "A is given twice"),
        ("--env-from x", "secret/NAME or configmap/NAME"),
        ("--volume data:/load", "/load is taken"),
        ("--volume a --volume b", "two claims for /runs"),
        ("--toleration a:Never", "is not a toleration"),
        ("--label a", "is not a label"),
        ("--file /no/such", "there is no such file"),
        ("--pod-discovery --service-account x", "leave out --service-account"),
    ],
)
def test_arguments_are_checked_in_one_line(render: Render, words: str, reason: str) -> None:
    made = render(LOAD, *TARGET, *words.split())
    assert (made.code, made.out) == (2, "")
    assert reason in made.err
    assert made.err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        "--name Big",
        "--image A:b:c",
        "--cpu 500m",
        "--memory 2",
        "--deadline 5",
        "--namespace a.b",
        "--name 1",
    ],
)
def test_names_images_and_amounts_are_checked(render: Render, words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        render(LOAD, *TARGET, *words.split())
    assert ended.value.code == 2


def test_a_scenario_without_an_end_is_refused(render: Render) -> None:
    made = render("users: 5\n", *TARGET)
    assert made.code == 2
    assert "no end" in made.err


@pytest.mark.parametrize(
    ("overlay", "kind", "names"),
    [
        ("jobset", "JobSet", ["a-llm-locust"]),
        ("nightly", "CronJob", ["a-llm-locust-master", "a-llm-locust-worker"]),
    ],
)
def test_what_is_made_of_the_jobs_has_the_runs_name_and_its_files(
    render: Render, overlay: str, kind: str, names: list[str]
) -> None:
    made = render(
        LOAD, *TARGET, "--name", "a", "--overlay", overlay, "--label", "team=x", "--namespace", "perf"
    )
    assert made.code == 0, made.err
    found = documents(made.out)
    jobs = [d for d in found if d["kind"] == kind]
    assert [d["metadata"]["name"] for d in jobs] == names
    assert {d["metadata"]["namespace"] for d in found} == {"perf"}
    expected = {"app.kubernetes.io/instance": "a", "team": "x"}.items()
    assert all(expected <= d["metadata"]["labels"].items() for d in jobs)
    if kind == "CronJob":  # of the Jobs that it makes, which Kueue looks at
        assert all(expected <= d["spec"]["jobTemplate"]["metadata"]["labels"].items() for d in jobs)
    maps = {d["metadata"]["name"] for d in found if d["kind"] == "ConfigMap"}
    named = set(re.findall(r"name: (a-llm-locust-(?:load|options)\S*)", made.out))
    assert named == maps


# --- Parts of ``k8s run`` without a cluster: what pods say, a resumed log, the process that holds a pod


def test_a_run_under_way_has_no_trouble() -> None:
    state = read_state([pod("master", RUNNING), pod("worker", RUNNING)], 1)
    assert (state.is_running, state.code, state.trouble, state.waiting) == (True, None, None, "")


@pytest.mark.parametrize(
    ("reason", "message", "is_fatal"),
    [
        ("ContainerCreating", "", False),
        ("ErrImagePull", "connection reset by peer", False),  # another attempt may do
        ("ErrImagePull", "manifest unknown", True),
        ("ImagePullBackOff", "", True),
        ("InvalidImageName", "", True),
        ("CreateContainerConfigError", 'secret "x" not found', True),
    ],
)
def test_only_what_does_not_pass_by_itself_is_trouble(reason: str, message: str, is_fatal: bool) -> None:
    state = read_state([pod("master", waiting(reason, message), "Pending")], 1)
    assert (state.trouble is not None) == is_fatal
    assert not is_fatal or {reason, message} <= {
        word.strip() for word in [*str(state.trouble).split(":"), ""]
    }


@pytest.mark.parametrize(
    ("container", "is_fatal"),
    [
        (ended(2, seconds=5), True),
        (ended(2, seconds=50), False),  # it had its part in the run
        (ended(137, "OOMKilled"), False),
        (ended(0, "Completed"), False),
    ],
)
def test_a_worker_that_fails_at_once_is_trouble_and_one_that_is_killed_is_not(
    container: dict[str, Any], is_fatal: bool
) -> None:
    state = read_state([pod("master", RUNNING), pod("worker", container)], 1)
    assert (state.trouble is not None) == is_fatal


def test_a_pod_that_finds_no_node_is_waited_for_and_named() -> None:
    message = "0/3 nodes are available: insufficient cpu"
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    late = pod("worker", {}, "Pending", conditions=[condition], containerStatuses=[])
    state = read_state([pod("master", RUNNING), late], 1)
    assert state.trouble is None
    assert state.waiting.startswith("1 of 2 pods run; ")
    assert message in state.waiting


def test_an_evicted_master_has_ended() -> None:
    evicted = pod("master", {}, "Failed", reason="Evicted", message="low on memory", containerStatuses=[])
    state = read_state([evicted], 1)
    assert (state.code, state.reason) == (137, "Evicted: low on memory")


def test_a_job_past_its_deadline_is_said_when_its_pod_is_gone() -> None:
    condition = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "too long"}
    metadata = {"name": "x", "labels": {"app.kubernetes.io/component": "master"}}
    job = {"kind": "Job", "metadata": metadata, "status": {"conditions": [condition]}}
    assert "DeadlineExceeded" in str(read_state([job], 1).trouble)


def test_a_log_that_is_read_again_gives_each_line_once() -> None:
    lines = [
        "2026-01-01T10:00:00.1Z a",
        "2026-01-01T10:00:00.1Z b",
        "2026-01-01T10:00:00.15Z c",
        "2026-01-01T10:00:00.15Z c",
        "2026-01-01T10:00:01Z d",
    ]
    for cut in range(len(lines) + 1):
        log = Resumed()
        taken = [log.take(line) for line in lines[:cut]]
        log.restart()
        taken += [log.take(line) for line in lines]
        assert [text for text in taken if text is not None] == ["a", "b", "c", "c", "d"], cut


def hold(folder: Path, seconds: int, code: str) -> "subprocess.Popen[bytes]":
    environ = {**os.environ, "LLM_LOCUST_HOLD": str(folder)}
    words = ["-P", "-m", "llm_locust.k8s.hold", str(seconds), sys.executable, "-c", code]
    return subprocess.Popen([sys.executable, *words], env=environ, stdout=subprocess.PIPE)


def test_a_pod_stays_until_its_files_are_fetched_and_ends_with_the_runs_code(tmp_path: Path) -> None:
    (tmp_path / "fetched").touch()
    with hold(tmp_path, 600, "raise SystemExit(3)") as process:
        assert process.wait(60) == 3
    assert (tmp_path / "ended").read_text() == "3\n"


def test_a_pod_whose_files_nobody_fetches_ends_all_the_same(tmp_path: Path) -> None:
    with hold(tmp_path, 0, "raise SystemExit(1)") as process:
        assert process.wait(60) == 1


def test_a_signal_goes_to_the_run(tmp_path: Path) -> None:
    code = "import signal, sys; signal.signal(2, lambda *_: sys.exit(4)); print('on', flush=True)"
    with hold(tmp_path, 0, f"{code}; signal.pause()") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"on\n"
        process.send_signal(2)
        assert process.wait(60) == 4


@pytest.mark.parametrize(
    ("numbers", "asked_for"),
    [
        ((), (False, False)),
        ((signal.SIGINT,), (True, False)),
        ((signal.SIGINT, signal.SIGINT), (True, True)),
        ((signal.SIGTERM,), (True, True)),
    ],
)
def test_sigterm_and_a_second_ctrl_c_ask_for_an_end_at_once(
    numbers: tuple[signal.Signals, ...], asked_for: tuple[bool, bool]
) -> None:
    with asked_to_end() as asked:
        for number in numbers:
            signal.raise_signal(number)
            asked.wait(60)
        assert (asked.to_end, asked.at_once) == asked_for
