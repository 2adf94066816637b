"""Targets: their URLs, roles and arms, pods by their labels, and which gets the next request."""

import json
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from page_server import hang, serving
from scripted import TlsFiles

from llm_locust.deployment.discovery import (
    ApiServer,
    DiscoveryError,
    Endpoint,
    EndpointError,
    Pods,
    ScrapeTarget,
    metrics_urls,
    scrape_targets_of,
    targets_of,
)
from llm_locust.deployment.scraper import ScrapePlan, scrape
from llm_locust.deployment.targets import (
    POLICIES,
    Arm,
    ArmError,
    RandomArm,
    Reuse,
    TargetsError,
    check_arms,
    make_chooser,
)
from llm_locust.metrics.server_roles import ROLE_SAMPLE, role_now

# --- Which target gets the next request


def chosen(policy: str, n: int, targets: int = 4, worker: int = 0, seed: int = 0) -> list[int]:
    chooser = make_chooser(policy, targets, worker=worker, seed=seed)
    return [chooser.choose(None) for _ in range(n)]


def test_turns_begin_elsewhere_at_each_worker() -> None:
    assert chosen("round_robin", 6) == [0, 1, 2, 3, 0, 1]
    assert [chosen("round_robin", 1, worker=w)[0] for w in range(6)] == [0, 1, 2, 3, 0, 1]
    assert [chosen("least_inflight", 1, worker=w)[0] for w in range(6)] == [0, 1, 2, 3, 0, 1]


def test_lots_differ_between_workers_and_repeat_with_the_seed() -> None:
    assert chosen("random", 50) == chosen("random", 50)
    assert chosen("random", 50) != chosen("random", 50, worker=1)
    assert chosen("random", 50) != chosen("random", 50, seed=1)
    assert set(Counter(chosen("random", 4000)).values()) < set(range(850, 1150))


def test_the_target_with_the_fewest_under_way_is_next() -> None:
    chooser = make_chooser("least_inflight", 3)
    for expected in (0, 1, 2):
        assert chooser.choose(None) == expected
        chooser.began(expected)
    chooser.ended(1)
    assert chooser.choose(None) == 1
    chooser.began(1)
    chooser.ended(2)
    chooser.ended(0)
    # Of equals the one that was chosen longest ago.
    assert [chooser.choose(None), chooser.choose(None)] == [0, 2]


@given(st.integers(1, 9), st.lists(st.integers(0, 8), max_size=60))
def test_least_inflight_never_leaves_a_target_two_behind(targets: int, ends: list[int]) -> None:
    chooser, load = make_chooser("least_inflight", targets), [0] * targets
    for end in ends:
        place = chooser.choose(None)
        assert load[place] == min(load)
        chooser.began(place)
        load[place] += 1
        if load[end % targets]:
            chooser.ended(end % targets)
            load[end % targets] -= 1


def test_a_session_stays_at_its_target_at_every_worker() -> None:
    here, there = make_chooser("sticky", 4), make_chooser("sticky", 4, worker=3)
    names = [f"session-{i}" for i in range(400)]
    places = [here.choose(name) for name in names]
    assert places == [there.choose(name) for name in names] == [here.choose(name) for name in names]
    assert set(Counter(places).values()) < set(range(70, 130))
    assert [here.choose(None) for _ in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_single_target_is_always_chosen(policy: str) -> None:
    assert chosen(policy, 5, targets=1) == [0] * 5


def test_unknown_policies_and_no_targets_are_refused_in_one_line() -> None:
    with pytest.raises(TargetsError, match="write one of round_robin, random, least_inflight, sticky"):
        make_chooser("roundrobin", 2)
    with pytest.raises(TargetsError, match="names no URL"):
        make_chooser("random", 0)


def test_reuse_is_written_as_a_word_or_a_number() -> None:
    assert [Reuse.parse(text).most for text in ("off", " 3 ", "ON")] == [1, 3, None]


@pytest.mark.parametrize("text", ["", "0", "-1", "no", "1.5", "²"])
def test_what_is_no_reuse_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(TargetsError, match="write on, off, or the number"):
        Reuse.parse(text)


# --- Metrics URLs, and the targets that they stand for


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://10.0.0.7:8000/metrics", Endpoint("http", "10.0.0.7", 8000, "/metrics")),
        ("10.0.0.7:9400", Endpoint("http", "10.0.0.7", 9400, "/metrics")),
        (" https://gpu.example/m?x=1 ", Endpoint("https", "gpu.example", 443, "/m?x=1")),
        ("dns+http://vllm:8000/metrics", Endpoint("http", "vllm", 8000, "/metrics", every=True)),
        ("http://[::1]:8000", Endpoint("http", "::1", 8000, "/metrics")),
    ],
)
def test_a_url_is_its_parts(url: str, endpoint: Endpoint) -> None:
    assert Endpoint.parse(url) == endpoint


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "is not one such as"),
        ("ftp://a/metrics", "is not one such as"),
        ("http://a:0/", "is not one such as"),
        ("http://a:99999/", "Port"),
        ("http://a/b c", "invalid in a URL"),
        ("http://[::1/", "Invalid IPv6"),
        ("k8s:", "names no pods"),
        ("k8s:app=vllm:0", "names no pods"),
        ("k8s:app=vllm:70000", "names no pods"),
        ("k8s:app=vllm:A Port", "names no pods"),
    ],
)
def test_what_cannot_be_scraped_is_refused_in_one_line(url: str, why: str) -> None:
    with pytest.raises(EndpointError, match=why) as raised:
        Endpoint.parse(url)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "pods"),
    [
        ("k8s:app=vllm:8000", Pods(None, "app=vllm", "8000")),
        (
            "k8s:models/app=vllm,role=decode:8000/stats",
            Pods("models", "app=vllm,role=decode", "8000", "/stats"),
        ),
        ("k8s:app.kubernetes.io/name=vllm:metrics", Pods(None, "app.kubernetes.io/name=vllm", "metrics")),
        ("k8s:models/llm-locust/target=true", Pods("models", "llm-locust/target=true")),
        ("k8s:role in (a, b):/stats", Pods(None, "role in (a, b)", "", "/stats")),
    ],
)
def test_pods_are_namespace_labels_port_and_path(text: str, pods: Pods) -> None:
    endpoint = Endpoint.parse(text)
    assert endpoint.pods == pods
    assert endpoint.every
    assert endpoint.host == text


def test_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(EndpointError, match="a user name or a password in it: leave it out") as raised:
        Endpoint.parse("dns+http://me:s3cret@host/metrics")
    assert "s3cret" not in str(raised.value)


def test_a_plain_url_is_one_target_whose_name_is_resolved_when_it_is_connected_to() -> None:
    assert scrape_targets_of(Endpoint.parse("http://nowhere.invalid:8000")) == [
        ScrapeTarget("nowhere.invalid:8000", "http", "nowhere.invalid", "nowhere.invalid", 8000, "/metrics")
    ]


def test_a_dns_url_is_every_address_of_its_name_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        found = ["10.0.0.2", "10.0.0.1", "10.0.0.2", "fd00::1"]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    targets = scrape_targets_of(Endpoint.parse("dns+http://vllm:8000/metrics"))
    assert [target.name for target in targets] == ["10.0.0.1:8000", "10.0.0.2:8000", "[fd00::1]:8000"]
    assert {target.host for target in targets} == {"vllm"}


# --- Roles that are given with URLs, and those that pods have


P, D = "http://10.0.0.7:8000", "http://10.0.0.8:8000"


def test_a_metrics_url_has_the_role_of_the_replica_at_its_host_and_port() -> None:
    given = [f"{P}/metrics", f"{D}/metrics", "http://10.0.0.8:9400/metrics", "nonsense:x"]
    assert metrics_urls(given, [f"prefill={P}", f"decode={D}/v1", "http://10.0.0.9:8000"]) == (
        f"prefill={P}/metrics",
        f"decode={D}/metrics",
        "http://10.0.0.8:9400/metrics",
        "nonsense:x",
    )
    name = ["dns+http://decode:8000/metrics"]
    assert metrics_urls(name, ["decode=dns+http://decode:8000"]) == ("decode=dns+http://decode:8000/metrics",)


@pytest.mark.parametrize(
    ("given", "replicas", "says"),
    [
        ([f"{D}/metrics"], [f"prefill={P}"], "10.0.0.7:8000 is a prefill server, and what it does is in"),
        ([f"decode={P}/metrics"], [f"prefill={P}"], "10.0.0.7:8000 has two roles, prefill and decode"),
        ([f"decode={P}/metrics", f"prefill={P}/metrics"], [], "has two roles, decode and prefill"),
    ],
)
def test_a_role_without_metrics_and_two_of_one_server_are_refused(
    given: list[str], replicas: list[str], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        metrics_urls(given, replicas)


def test_the_role_of_a_url_goes_to_each_of_its_targets_and_into_their_samples_also_without_a_page() -> None:
    (target,) = scrape_targets_of(Endpoint.parse("prefill=http://127.0.0.1:1/metrics"))
    assert (target.name, target.role) == ("127.0.0.1:1", "prefill")
    samples, reason = scrape(target, ScrapePlan(endpoints=[], timeout_s=1.0))
    (said,) = (sample for sample in samples if sample.name == ROLE_SAMPLE)
    assert reason is not None
    assert json.loads(said.labels) == {"role": "prefill", "source": "the options"}
    assert role_now((sample.name, sample.labels) for sample in samples) == "prefill"
    assert Endpoint.parse("k8s:llm-d.ai/role=decode:8000").role is None
    assert Endpoint.parse("decode=k8s:app=vllm:8000").role == "decode"


def test_without_a_role_there_is_no_sample_of_one() -> None:
    target = ScrapeTarget("127.0.0.1:1", "http", "127.0.0.1", "127.0.0.1", 1, "/metrics")
    samples, _ = scrape(target, ScrapePlan(endpoints=[], timeout_s=1.0))
    assert ROLE_SAMPLE not in {sample.name for sample in samples}


# --- Arms of a comparison: their texts, and which request goes to which


def test_an_arm_is_a_name_a_url_and_a_share() -> None:
    assert Arm.parse("straight=http://a:8000") == Arm("straight", "http://a:8000")
    assert Arm.parse(" gateway=https://b/v1  share=2.5 ") == Arm("gateway", "https://b/v1", 2.5)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("http://a:8000", "is not NAME=URL"),
        ("http://a:8000/v1?x=1", "is not NAME=URL"),
        ("=http://a:8000", "the name ''"),
        ("none=http://a:8000", "and not none"),
        ("a b=http://a:8000", "the name 'a b'"),
        ("a=http://a:8000 share=0", "share=0"),
        ("a=http://a:8000 share=nan", "share=nan"),
        ("a=http://a:8000 weight=2", "is not NAME=URL"),
    ],
)
def test_what_is_not_an_arm_is_refused_with_what_to_write(text: str, why: str) -> None:
    with pytest.raises(ArmError, match=why):
        Arm.parse(text)


@pytest.mark.parametrize(
    ("names", "why"), [("a", "the only arm"), ("aba", "the name 'a'"), ("abcdefghi", "at most 8")]
)
def test_arms_that_cannot_be_compared_are_refused(names: str, why: str) -> None:
    with pytest.raises(ArmError, match=why):
        check_arms([Arm(name, "http://a") for name in names])


def test_requests_are_drawn_by_share_and_alike_from_one_seed() -> None:
    arms, again, other = RandomArm([3, 1], 7), RandomArm([3, 1], 7), RandomArm([3, 1], 7, worker=1)
    drawn = [arms.choose(None) for _ in range(4000)]
    assert Counter(drawn)[1] == pytest.approx(1000, abs=120)  # over 4 standard deviations
    assert drawn == [again.choose(None) for _ in range(4000)]
    assert drawn != [other.choose(None) for _ in range(4000)]


def test_a_session_stays_with_its_arm_at_every_worker() -> None:
    workers = [RandomArm([1, 1], 7, worker) for worker in range(3)]
    of_sessions = [workers[i % 3].choose(f"s{i}") for i in range(2000)]
    assert of_sessions == [workers[(i + 1) % 3].choose(f"s{i}") for i in range(2000)]
    assert sum(of_sessions) == pytest.approx(1000, abs=100)
    assert of_sessions != [RandomArm([1, 1], 8).choose(f"s{i}") for i in range(2000)]


# --- Pods by their labels, asked of an API server that speaks TLS and wants a token


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
