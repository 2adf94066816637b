"""``llm-locust k8s render``: manifests that do what the scenario and the command line say."""

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from k8s_tools import documents, kubectl_on_path

from llm_locust.cli import k8s as command
from llm_locust.k8s.kubectl import render as render_folder
from llm_locust.k8s.scenario_files import MOST_BYTES, RenderError, files_of
from llm_locust.k8s.target import ServerTarget
from llm_locust.options.table import GRAMMAR
from llm_locust.scenario import load_scenario

ROOT = Path(__file__).parents[2]
LOAD = "users: 5\nrun_time: 5m\n"
TARGET = ("--target", "http://vllm.models.svc:8000")

Render = Callable[..., "Rendered"]


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


def test_the_command_of_the_page_prints_manifests_for_kubectl_apply(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("users: 50\nrun_time: 5m\n")
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    (line,) = re.findall(r"^(llm-locust k8s render .*--target .*) \| kubectl apply -f -$", page, flags=re.M)
    with kubectl_on_path():
        command = [sys.executable, "-m", "llm_locust", *shlex.split(line)[1:]]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (said,) = done.stderr.splitlines()
    assert said.startswith("llm-locust k8s render: master and workers may connect to http://vllm.models.svc")
    kinds = [document["kind"] for document in documents(done.stdout)]
    assert kinds.count("Job") == 2
    assert kinds[0] == "Namespace"  # first, for kubectl makes them in this order


def test_workers_scenario_and_target_are_as_asked(render: Render) -> None:
    scenario = "users: 50\nrun_time: 5m\n"
    made = render(scenario, *TARGET)
    assert made.code == 0, made.err
    workers = made.one("Job", "llm-locust-worker")["spec"]
    assert (workers["completions"], workers["parallelism"]) == (5, 5)
    assert made.options["LOCUST_EXPECT_WORKERS"] == "5"
    assert made.options["LOCUST_HOST"] == TARGET[1]
    assert made.load["scenario.yaml"] == scenario
    assert made.load["locustfile.py"] == (ROOT / "locustfiles" / "scenario.py").read_text()
    (rule,) = made.one("NetworkPolicy", "llm-locust-target")["spec"]["egress"]
    assert rule == {"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "models"}}}]}


def test_the_host_may_be_the_scenarios(render: Render) -> None:
    made = render("host: http://10.1.2.3:8000\nusers: 5\nrun_time: 5m\n")
    assert "LOCUST_HOST" not in made.options
    (rule,) = made.one("NetworkPolicy", "llm-locust-target")["spec"]["egress"]
    assert rule == {"to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}], "ports": [{"port": 8000}]}


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
    ],
)
def test_policies_open_every_arm(
    render: Render, scenario: str, words: tuple[str, ...], hosts: list[str]
) -> None:
    made = render(scenario, *words)
    rules = made.one("NetworkPolicy", "llm-locust-target")["spec"]["egress"]
    blocks = [to["ipBlock"]["cidr"] for rule in rules for to in rule["to"] if "ipBlock" in to]
    assert sorted(blocks) == hosts


def test_an_arm_without_a_server_is_refused(render: Render) -> None:
    made = render(ARMS)
    assert (made.code, made.out) == (2, "")
    assert "'c' has no url, and the run has no host" in made.err


def test_a_soaks_workers_are_replicas(render: Render) -> None:
    made = render(LOAD, *TARGET, "--overlay", "soak", "--monitoring")
    assert made.one("Deployment", "llm-locust-worker")["spec"]["replicas"] == 5
    assert made.options["LOCUST_EXPECT_WORKERS"] == "5"
    # What the overlay says of them holds after every merge.
    for name in ("llm-locust-load", "llm-locust-options"):
        assert made.one("ConfigMap", name)["immutable"]


@pytest.mark.parametrize(("overlay", "kind"), [("headless", "Job"), ("soak", "Deployment")])
def test_a_named_run_keeps_away_from_servers_that_have_not_its_name(
    render: Render, overlay: str, kind: str
) -> None:
    made = render(LOAD, *TARGET, "--overlay", overlay, "--name", "pr-7")
    for role in ("master", "worker"):
        pod = made.one(kind, f"pr-7-llm-locust-{role}")["spec"]["template"]["spec"]
        rules = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        (selector,) = (rule["podAffinityTerm"]["labelSelector"] for rule in rules)
        assert selector == {
            "matchExpressions": [{"key": "llm-locust/target", "operator": "In", "values": ["true"]}]
        }


def test_the_demo_brings_its_own_target(render: Render) -> None:
    made = render(LOAD, "--overlay", "demo")
    assert made.options["LOCUST_HOST"] == "http://llm-locust-sim:8000"
    assert render(LOAD, *TARGET, "--overlay", "demo").code == 2


def test_a_namespace_that_is_there_is_used_and_none_is_made(render: Render) -> None:
    made = render(LOAD, *TARGET, "--namespace", "perf")
    found = documents(made.out)
    assert {d["metadata"]["namespace"] for d in found} == {"perf"}
    assert "Namespace" not in {d["kind"] for d in found}


@pytest.mark.parametrize(
    "image", ["llm-locust:2", "images.example.com:5000/team/loads:2.1", f"loads@sha256:{'a' * 64}"]
)
def test_the_image_is_as_asked(render: Render, image: str) -> None:
    made = render(LOAD, *TARGET, "--image", image)
    for role in ("master", "worker"):
        assert made.pod(role)["containers"][0]["image"] == image


def test_a_key_comes_from_its_secret_under_the_scenarios_name(render: Render) -> None:
    made = render(f"{LOAD}api_key_env: VLLM_KEY\n", *TARGET, "--api-key-secret", "models/token")
    assert made.options["LLM_LOCUST_API_KEY_ENV"] == "VLLM_KEY"
    source = {"secretKeyRef": {"name": "models", "key": "token", "optional": False}}
    for role in ("master", "worker"):
        env = {entry["name"]: entry for entry in made.pod(role)["containers"][0]["env"]}
        assert env["VLLM_KEY"]["valueFrom"] == source


def test_pods_are_found_with_rights_that_are_asked_for_in_the_runs_namespace(render: Render) -> None:
    made = render(LOAD, *TARGET, "--pod-discovery", "--namespace", "perf", "--overlay", "soak")
    assert made.pod("master", "Deployment")["serviceAccountName"] == "llm-locust-master"
    (subject,) = made.one("RoleBinding", "llm-locust-pods")["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "llm-locust-master", "namespace": "perf"}
    assert "kind: Role\n" not in render(LOAD, *TARGET).out


def test_an_upload_has_its_credentials_and_may_leave_the_master(render: Render) -> None:
    made = render(LOAD, *TARGET, "--upload", "s3://runs/x", "--upload-secret", "s3")
    assert made.options["LLM_LOCUST_UPLOAD"] == "s3://runs/x"
    assert {"secretRef": {"name": "s3"}} in made.pod("master")["containers"][0]["envFrom"]
    assert made.one("NetworkPolicy", "llm-locust-master")["spec"]["egress"] == [{"ports": [{"port": 443}]}]


def test_files_that_the_scenario_names_come_along_to_the_same_paths(render: Render, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "q.jsonl").write_text('{"prompt": "Hello"}\n')
    (tmp_path / "lengths.csv").write_text("10\n20\n")
    made = render(
        LOAD + "classes:\n"
        "  a: {dataset: {file: data/q.jsonl}}\n"
        "  b: {input_tokens: 'file:lengths.csv', output_tokens: 10}\n",
        *TARGET,
    )
    assert made.code == 0, made.err
    assert made.load["data__q.jsonl"] == '{"prompt": "Hello"}\n'
    volume = made.pod("worker")["volumes"][0]["configMap"]
    placed = {item["path"]: made.load[item["key"]] for item in volume["items"]}
    assert placed.keys() == {"scenario.yaml", "locustfile.py", "data/q.jsonl", "lengths.csv"}
    assert placed["lengths.csv"] == "10\n20\n"


def test_a_long_flush_has_time_and_results_have_a_place(render: Render) -> None:
    made = render(f"{LOAD}flush_timeout: 10m\nout: results/nightly\n", *TARGET)
    assert made.pod("master")["terminationGracePeriodSeconds"] == 810
    assert made.pod("worker")["terminationGracePeriodSeconds"] == 720
    assert made.options["LLM_LOCUST_OUT"] == "/runs/nightly"


def test_a_drain_of_ones_own_has_its_time_and_no_more(render: Render) -> None:
    for drain, worker_s in (("5m", 390), ("0", 90)):
        made = render(f"{LOAD}drain: {drain}\n", *TARGET)
        assert made.pod("worker")["terminationGracePeriodSeconds"] == worker_s


def test_the_usual_grace_is_that_of_the_base(render: Render) -> None:
    made = render(LOAD, *TARGET)
    assert made.pod("master")["terminationGracePeriodSeconds"] == 240
    assert made.pod("worker")["terminationGracePeriodSeconds"] == 150


def test_a_locustfile_of_ones_own_takes_the_others_place(render: Render, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("# mine\n")
    made = render(LOAD, *TARGET, "--locustfile", str(tmp_path / "mine.py"))
    assert made.load["locustfile.py"] == "# mine\n"


def test_an_overlay_that_is_written_renders_to_the_same(render: Render, tmp_path: Path) -> None:
    printed = render(LOAD, *TARGET).out
    kept = tmp_path / "kept"
    assert render(LOAD, *TARGET, "--write", str(kept)).out == ""
    assert render_folder(kept) == printed
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
        (LOAD, (*TARGET, "--api-key-secret", "x"), "is not SECRET/KEY"),
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


@pytest.mark.parametrize("name", sorted(p.name for p in (ROOT / "examples").glob("*.yaml")))
def test_every_example_scenario_renders(render: Render, name: str, tmp_path: Path) -> None:
    scenario = ROOT / "examples" / name
    for named in files_of(load_scenario(scenario, GRAMMAR).document, scenario.parent):
        shutil.copyfile(scenario.parent / named, tmp_path / named)
    assert render(scenario.read_text(), *TARGET).code == 0


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
    words += " --volume results --volume data:/data --label kueue.x-k8s.io/queue-name=gpu"
    made = render(LOAD, *TARGET, *words.split())
    assert made.code == 0, made.err
    for role in ("master", "worker"):
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


def test_modules_and_shapes_that_the_scenario_names_come_along(render: Render, tmp_path: Path) -> None:
    (tmp_path / "own_checks.py").write_text("def fine(text, prompt):\n    return True\n")
    (tmp_path / "shape.json").write_text("{}")
    (tmp_path / "x.txt").write_text("x")
    scenario = LOAD + "model_shape: shape.json\nvalidators: [{function: own_checks:fine}]\n"
    made = render(scenario, *TARGET, "--file", f"{tmp_path / 'x.txt'}=data/x.txt")
    assert made.code == 0, made.err
    assert {"own_checks.py", "shape.json", "data__x.txt"} <= made.load.keys()


def test_patches_that_are_written_are_files_on_a_base_with_a_version(render: Render, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    assert render(LOAD, *TARGET, "--write", str(kept)).code == 0
    assert (kept / "llm-locust-0.1.0" / "base" / "master.yaml").exists()
    patch = yaml.safe_load((kept / "worker.yaml").read_text())
    assert patch["spec"]["completions"] == 5
    assert "{" not in (kept / "worker.yaml").read_text()


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
    assert render("users: 5\n", *TARGET, "--overlay", "soak").code == 0


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
