"""Metrics URLs, and the targets that they stand for."""

import socket
from typing import Any

import pytest

from llm_locust.deployment.discovery import Endpoint, EndpointError, Pods, ScrapeTarget, scrape_targets_of


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
