"""Pods by their labels, asked of an API server that speaks TLS and wants a token."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from page_server import hang, serving
from scripted import TlsFiles

from llm_locust.deployment.discovery import ApiServer, DiscoveryError, Endpoint, ScrapeTarget, targets_of

Ask = Callable[..., list[ScrapeTarget]]


def pod(
    name: str,
    address: str = "10.0.0.1",
    *,
    namespace: str = "models",
    ports: Sequence[tuple[str, int]] = (("http", 8000),),
    ready: bool = True,
    labels: dict[str, str] | None = None,
    **annotations: str,
) -> dict[str, Any]:
    """As the API server tells one; of all that it tells, what matters here and a little more."""
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "labels": {"app": "vllm"} if labels is None else labels,
            "annotations": {f"prometheus.io/{key}": value for key, value in annotations.items()},
        },
        "spec": {
            "nodeName": "node-1",
            "containers": [
                {"name": "sidecar", "image": "a"},
                {
                    "name": "vllm",
                    "ports": [{"name": n, "containerPort": p, "protocol": "TCP"} for n, p in ports],
                },
            ],
        },
        "status": {
            "phase": "Running",
            "podIP": address,
            "conditions": [
                {"type": "Initialized", "status": "True"},
                {"type": "Ready", "status": "True" if ready else "False"},
            ],
        },
    }


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, tls_files: TlsFiles) -> Iterator[tuple[int, Path]]:
    folder = tmp_path_factory.mktemp("api")
    command = [sys.executable, str(Path(__file__).parents[1] / "support" / "api_server.py")]
    with subprocess.Popen(
        [*command, str(folder), tls_files.server_cert, tls_files.server_key],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        yield int(server.stdout.readline()), folder
        server.kill()


@pytest.fixture
def api(served: tuple[int, Path], tmp_path: Path, tls_files: TlsFiles) -> ApiServer:
    """As the pod that asks sees it. Of what its folder has the token is the server's, which may change."""
    port, folder = served
    (folder / "token").write_text("a-token")
    for name, text in (
        ("ca.crt", Path(tls_files.ca).read_text()),
        ("namespace", "models\n"),
        ("token", "a-token\n"),
    ):
        (tmp_path / name).write_text(text)
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT_HTTPS": str(port)}
    return ApiServer.of_this_pod(environ, tmp_path)


@pytest.fixture
def ask(api: ApiServer, served: tuple[int, Path]) -> Ask:
    def targets(text: str, *pods: Any, content: str | None = None) -> list[ScrapeTarget]:
        (served[1] / "pods.json").write_text(json.dumps(pods) if content is None else content)
        return targets_of(Endpoint.parse(text), api)

    return targets


def test_a_pod_has_the_role_of_its_label_unless_another_one_was_given(ask: Ask) -> None:
    dynamo = "nvidia.com/dynamo-sub-component-type"
    pods = [
        pod("a", labels={"app": "vllm", "llm-d.ai/role": "decode"}),
        pod("b", labels={"app": "vllm", dynamo: "prefill"}),
        pod("c", labels={"app": "vllm", "llm-d.ai/role": "both"}),
    ]
    found = ask("k8s:app=vllm:8000", *pods)
    assert [(target.role, target.role_source) for target in found[:2]] == [
        ("decode", "pod label llm-d.ai/role"),
        ("prefill", f"pod label {dynamo}"),
    ]
    assert found[2].role is None
    given = ask("prefill=k8s:app=vllm:8000", *pods)
    assert {(target.role, target.role_source) for target in given} == {("prefill", "the options")}


def test_each_ready_pod_with_the_labels_is_a_target_of_its_name(ask: Ask) -> None:
    found = ask(
        "k8s:app=vllm:8000",
        pod("vllm-1", "10.0.0.2"),
        pod("vllm-0", "10.0.0.1"),
        pod("loading", "10.0.0.3", ready=False),
        pod("pending", ""),
        pod("another", "10.0.0.4", labels={"app": "web"}),
        pod("elsewhere", "10.0.0.5", namespace="prod"),
    )
    assert found == [
        ScrapeTarget("vllm-0:8000", "http", "10.0.0.1", "10.0.0.1", 8000, "/metrics"),
        ScrapeTarget("vllm-1:8000", "http", "10.0.0.2", "10.0.0.2", 8000, "/metrics"),
    ]


def test_a_pod_that_ends_is_none(ask: Ask) -> None:
    ending = pod("vllm-0")
    ending["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    assert ask("k8s:app=vllm", ending) == []


def test_namespace_several_labels_and_a_path_may_be_said(ask: Ask) -> None:
    decode = {"app": "vllm", "role": "decode"}
    (found,) = ask(
        "k8s:prod/app=vllm,role=decode:9000/stats",
        pod("d", namespace="prod", labels=decode),
        pod("p", namespace="prod"),
        pod("here", labels=decode),
    )
    assert (found.name, found.port, found.path) == ("d:9000", 9000, "/stats")


@pytest.mark.parametrize(
    ("text", "made", "port"),
    [
        ("k8s:app=vllm:8000", {"port": "9400"}, 8000),
        ("k8s:app=vllm", {"port": "9400"}, 9400),
        ("k8s:app=vllm", {"ports": [("http", 8000), ("metrics", 9090)]}, 9090),
        ("k8s:app=vllm:http", {"ports": [("http", 8000), ("metrics", 9090)], "port": "1"}, 8000),
        ("k8s:app=vllm", {"ports": [("whatever", 8001)]}, 8001),
    ],
    ids=["said", "annotation", "usual name", "said name", "only one"],
)
def test_the_port_is_what_is_said_or_what_the_pod_says(ask: Ask, text: str, made: Any, port: int) -> None:
    (found,) = ask(text, pod("vllm-0", **made))
    assert (found.port, found.name) == (port, f"vllm-0:{port}")


def test_path_and_scheme_may_be_the_annotations(ask: Ask) -> None:
    (found,) = ask("k8s:app=vllm", pod("vllm-0", path="/m", scheme="https"))
    assert (found.scheme, found.path) == ("https", "/m")


def test_pods_come_page_by_page(ask: Ask) -> None:
    found = ask("k8s:app=vllm", *(pod(f"vllm-{i:03d}", f"10.0.{i // 250}.{i % 250}") for i in range(620)))
    assert [target.name for target in found] == [f"vllm-{i:03d}:8000" for i in range(620)]


def test_a_token_that_was_renewed_is_used(ask: Ask, api: ApiServer, served: tuple[int, Path]) -> None:
    for path in (served[1] / "token", api.account / "token"):
        path.write_text("another-token")
    assert len(ask("k8s:app=vllm", pod("vllm-0"))) == 1


@pytest.mark.parametrize(
    ("text", "pods", "why"),
    [
        ("k8s:app===vllm", [], "it answered 400; is this a valid label selector"),
        ("k8s:forbidden/app=vllm", [], "it answered 403; let its service account list pods there"),
        ("k8s:app=vllm:stats", [pod("vllm-0")], "pod vllm-0 has no port of the name 'stats'"),
        ("k8s:app=vllm", [pod("vllm-0", port="many")], "pod vllm-0: prometheus.io/port 'many' is not a port"),
        ("k8s:app=vllm", [pod("vllm-0", ports=[("a", 1), ("b", 2)])], "pod vllm-0 has 2 ports, and none is"),
        ("k8s:app=vllm", [pod("vllm-0") | {"spec": 1}], "is not a list of pods"),
    ],
)
def test_what_keeps_pods_from_being_known_is_said_in_one_line(
    ask: Ask, text: str, pods: list[Any], why: str
) -> None:
    with pytest.raises(DiscoveryError) as raised:
        ask(text, *pods)
    assert why in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "a-token" not in str(raised.value)


def test_an_answer_that_is_no_json_is_said(ask: Ask) -> None:
    with pytest.raises(DiscoveryError, match="is not a list of pods"):
        ask("k8s:app=vllm", content="<html>")


def test_a_token_that_is_not_taken_is_said(ask: Ask, api: ApiServer) -> None:
    (api.account / "token").write_text("another")
    with pytest.raises(DiscoveryError, match="it answered 401; is its token mounted"):
        ask("k8s:app=vllm")


@pytest.mark.parametrize("name", ["namespace", "token", "ca.crt"])
def test_a_file_that_is_missing_is_named(ask: Ask, api: ApiServer, name: str) -> None:
    (api.account / name).unlink()
    with pytest.raises(DiscoveryError, match=str(api.account)):
        ask("k8s:app=vllm")


def test_a_server_that_the_certificates_do_not_know_gets_no_token(
    ask: Ask, api: ApiServer, tls_files: TlsFiles
) -> None:
    (api.account / "ca.crt").write_text(Path(tls_files.client_cert).read_text())
    with pytest.raises(DiscoveryError, match=r"(?i)certificate.verify.failed"):
        ask("k8s:app=vllm", pod("vllm-0"))


def test_an_api_server_that_hangs_costs_its_time_and_no_more(api: ApiServer) -> None:
    with serving(hang) as port, pytest.raises(DiscoveryError, match=r"no whole page within 0\.2 s"):
        ApiServer("127.0.0.1", port, api.account).get("/api", timeout_s=0.2)


def test_outside_of_a_pod_and_without_a_token_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(DiscoveryError, match="not a pod of Kubernetes"):
        ApiServer.of_this_pod({}, tmp_path)
    with pytest.raises(DiscoveryError, match=r"no service account token in .*: the component pod-discovery"):
        ApiServer.of_this_pod({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, tmp_path)


def test_a_url_is_still_itself() -> None:
    (target,) = targets_of(Endpoint.parse("http://10.0.0.7:8000"))
    assert target.name == "10.0.0.7:8000"
