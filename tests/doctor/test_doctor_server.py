"""Checks of the way to the server, its models and its key, each as a function of what was seen."""

import socket
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doctor_cases import answer, asked, listing
from test_doctor_host import judged

from llm_locust.client.http.dial import Address
from llm_locust.client.probing import Listing, Session
from llm_locust.doctor.finding import Status
from llm_locust.doctor.kubernetes import Access, judge_kubernetes, look_at_kubernetes
from llm_locust.doctor.network import (
    Attempt,
    Certificate,
    Resolved,
    TlsSeen,
    judge_dns,
    judge_tcp,
    judge_tls,
    try_addresses,
)
from llm_locust.doctor.streams import chosen_model, judge_key, judge_models, proxy_of, unbuffering

V4: Address = (socket.AF_INET, ("10.0.0.7", 8000))
V4_TOO: Address = (socket.AF_INET, ("10.0.0.8", 8000))
V6: Address = (socket.AF_INET6, ("::1", 8000, 0, 0))
DAY_S = 86_400.0


@pytest.mark.parametrize(
    ("resolved", "status", "words"),
    [
        (Resolved("vllm.default", (V4, V4_TOO), 0.004), Status.OK, "2 addresses in 4.00 ms"),
        (Resolved("vllm.default", (V4,), 3.0), Status.WARN, "resolver"),
        (Resolved("10.0.0.7", (V4,)), Status.SKIPPED, "is an address"),
        (Resolved("fe80::1%eth0", (V6,)), Status.SKIPPED, "is an address"),
        (Resolved("vlm", error="Name or service not known"), Status.FAIL, "'vlm' cannot be resolved"),
    ],
)
def test_a_name_that_is_slow_or_unknown_is_named(resolved: Resolved, status: Status, words: str) -> None:
    judged(judge_dns(resolved), status, words)


@pytest.mark.parametrize(
    ("attempts", "status", "words"),
    [
        ((Attempt(V4, 0.002),), Status.OK, "accepted after 2.00 ms"),
        ((Attempt(V4, 0.002), Attempt(V6, None, "refused")), Status.OK, "(none by IPv6)"),
        (
            (Attempt(V4, 0.002), Attempt(V4_TOO, None, "timed out")),
            Status.WARN,
            "1 of 2 addresses accepted, at most after 2.00 ms; 10.0.0.8:8000: timed out",
        ),
        ((Attempt(V4, None, "Connection refused"),), Status.FAIL, "10.0.0.7:8000: Connection refused"),
        ((Attempt(V4, None, "a"),) * 5, Status.FAIL, "and 2 more"),
        ((), Status.SKIPPED, "no address"),
    ],
)
def test_addresses_that_refuse_are_named(attempts: tuple[Attempt, ...], status: Status, words: str) -> None:
    judged(judge_tcp(attempts), status, words)


def test_a_name_with_very_many_addresses_is_tried_at_a_few() -> None:
    tried = try_addresses((V4,) * 1_000, lambda _: 0.001)
    assert len(tried) == 8


SESSION = Session("TLSv1.3", {}, 0.02)


def tls_seen(expires_s: float | None = 100 * DAY_S, error: OSError | None = None, **of: Any) -> TlsSeen:
    certificate = Certificate(("vllm.example", "*.vllm.example"), expires_s)
    session = SESSION if error is None else None
    return replace(TlsSeen("localhost", session, certificate, error, now_s=0.0), **of)


def not_accepted(code: int, message: str = "why") -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, message)
    error.verify_code, error.verify_message = code, message
    return error


@pytest.mark.parametrize(
    ("seen", "status", "words"),
    [
        (tls_seen(), Status.OK, "TLSv1.3, 20.0 ms with TCP, certificate expires in 100 days"),
        (tls_seen(None), Status.OK, "TLSv1.3"),
        (tls_seen(5 * DAY_S), Status.WARN, "expires in 5 days"),
        (tls_seen(DAY_S / 2), Status.WARN, "expires in 12.0 hours"),
        (
            tls_seen(error=not_accepted(62)),
            Status.FAIL,
            "the certificate is for vllm.example, *.vllm.example, the URL has 'localhost'",
        ),
        (tls_seen(error=not_accepted(64), certificate=Certificate((), None)), Status.FAIL, "is for no name"),
        (tls_seen(-3 * DAY_S, error=not_accepted(10)), Status.FAIL, "expired 3 days ago"),
        (tls_seen(error=not_accepted(9)), Status.FAIL, "not valid yet"),
        (tls_seen(error=not_accepted(18), certificate=None), Status.FAIL, "--ca-cert"),
        (tls_seen(error=not_accepted(62), certificate=None), Status.FAIL, "certificate not accepted"),
        (tls_seen(error=TimeoutError("no answer within 5 s")), Status.FAIL, "no answer within 5 s"),
        (None, Status.SKIPPED, "no connection"),
    ],
)
def test_what_is_wrong_with_a_certificate_is_told_plainly(
    seen: TlsSeen | None, status: Status, words: str
) -> None:
    judged(judge_tls(seen, is_https=True), status, words)


def test_without_tls_there_is_no_certificate() -> None:
    judged(judge_tls(None, is_https=False), Status.SKIPPED, "http://")


def test_a_certificate_is_read_as_the_module_ssl_decodes_it() -> None:
    decoded: dict[str, object] = {
        "notAfter": "Jan  1 00:00:00 2030 GMT",
        "subjectAltName": (("DNS", "a.example\x1b[31m"), ("IP Address", "127.0.0.1"), ("URI", "x")),
    }
    found = Certificate.of(decoded)
    assert found.names == ("a.example\ufffd[31m", "127.0.0.1")
    assert found.expires_s == 1_893_456_000
    assert Certificate.of({"notAfter": "one day"}) == Certificate((), None)
    assert Certificate.of({}) == Certificate((), None)


@pytest.mark.parametrize(
    ("found", "model", "status", "words"),
    [
        (listing("llama"), None, Status.OK, "1 model: llama"),
        (listing("llama"), "llama", Status.OK, "'llama' is one of 1 model"),
        (listing("llama", "qwen"), None, Status.WARN, "give --model"),
        (listing("llama", "qwen"), "lama", Status.FAIL, 'did you mean "llama"?'),
        (listing(), None, Status.FAIL, "the list is empty"),
        (listing("a\x1b[31m" + "m" * 900), None, Status.OK, "1 model: a\ufffd[31mmmm"),
        (listing(status=404), None, Status.FAIL, "/v1/models gives no list (HTTP 404) | give --model NAME"),
        (listing(status=404), "llama", Status.OK, "not needed, --model is given"),
        (listing(status=401), None, Status.SKIPPED, "access refused (HTTP 401)"),
        ("not complete within 5 s (total)", None, Status.FAIL, "not complete within 5 s"),
        (None, None, Status.SKIPPED, "no connection"),
    ],
)
def test_the_model_is_looked_for_in_the_list(
    found: Listing | str | None, model: str | None, status: Status, words: str
) -> None:
    finding = judge_models(found, asked(model=model))
    judged(finding, status, words)
    assert len(finding.figure) < 300


def test_a_server_that_repeats_the_key_as_a_model_does_not_show_it() -> None:
    finding = judge_models(listing("sk-secret-of-mine"), asked(secrets=("sk-secret-of-mine",)))
    assert "secret" not in finding.figure


def test_the_first_model_of_the_list_is_asked_where_none_is_given() -> None:
    assert chosen_model(listing("a", "b"), None) == "a"
    assert chosen_model(listing("a", "b"), "c") == "c"
    assert chosen_model(listing(), None) is None
    assert chosen_model("no answer", None) is None


@pytest.mark.parametrize(
    ("listed", "generated", "has_key", "status", "words"),
    [
        (200, 200, False, Status.OK, "none given, none needed"),
        (200, 200, True, Status.OK, "accepted"),
        (200, 401, False, Status.FAIL, "absent, and the server asks for one (HTTP 401) | give --api-key-env"),
        (200, 403, True, Status.FAIL, "refused (HTTP 403) | check the key"),
        (401, None, False, Status.FAIL, "absent"),
        (401, None, True, Status.FAIL, "refused (HTTP 401)"),
        (200, 404, True, Status.SKIPPED, "no request was answered"),
        (200, None, True, Status.SKIPPED, "no request was answered"),
        (None, None, True, Status.SKIPPED, "no answer"),
    ],
)
def test_a_wrong_key_differs_from_none(
    listed: int | None, generated: int | None, has_key: bool, status: Status, words: str
) -> None:
    models = "no answer" if listed is None else listing("llama", status=listed)
    first = "no model is known" if generated is None else answer([], status=generated)
    judged(judge_key(models, first, has_key=has_key), status, words)


@pytest.mark.parametrize(
    ("headers", "proxy", "words"),
    [
        ({b"server": b"nginx/1.22.1"}, "nginx", "proxy_buffering off"),
        ({b"via": b"1.1 haproxy"}, "haproxy", "http-no-delay"),
        ({b"x-envoy-upstream-service-time": b"3"}, "envoy", "filters"),
        ({b"x-litellm-call-id": b"3"}, "litellm", "CPU"),
        ({b"server": b"uvicorn"}, None, "proxy_buffering off"),
        ({}, None, "http-no-delay"),
    ],
)
def test_the_settings_are_those_of_the_proxy_that_names_itself(
    headers: dict[bytes, bytes], proxy: str | None, words: str
) -> None:
    assert proxy_of(headers) == proxy
    assert words in unbuffering(headers)


def test_kubernetes_is_skipped_where_there_is_none(tmp_path: Path) -> None:
    assert look_at_kubernetes({}, 1.0) is None
    assert look_at_kubernetes({"HOME": str(tmp_path)}, 1.0) is None
    assert look_at_kubernetes({"KUBECONFIG": str(tmp_path / "none")}, 1.0) is None
    judged(judge_kubernetes(None), Status.SKIPPED)


CONFIG = """
current-context: here
contexts: [{name: here, context: {cluster: ours, user: me}}]
clusters: [{name: ours, cluster: {server: "SERVER"}}]
users: [{name: me, user: {token: a-secret-token}}]
"""


def by_config(tmp_path: Path, text: str) -> Access:
    (tmp_path / "config").write_text(text)
    access = look_at_kubernetes({"KUBECONFIG": f"{tmp_path / 'none'}:{tmp_path / 'config'}"}, 2.0)
    assert access is not None
    return access


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[", "broken YAML"),
        ("", "the current context cannot be used"),
        ("- a", "the current context cannot be used"),
        (CONFIG.replace("cluster: ours", "cluster: other"), "'other', which the file does not have"),
        (CONFIG, "is not a URL"),
        (CONFIG.replace("SERVER", "http://127.0.0.1:1"), "Connection refused"),
        (CONFIG.replace("SERVER", "https://me:pass-word@[::1"), "cannot be used"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_a_warning_without_its_secrets(
    tmp_path: Path, text: str, why: str
) -> None:
    finding = judge_kubernetes(by_config(tmp_path, text))
    judged(finding, Status.WARN, why)
    assert "pass-word" not in finding.figure
    assert "a-secret-token" not in finding.figure


def test_a_pod_without_a_token_is_told_what_it_lacks() -> None:
    finding = judge_kubernetes(look_at_kubernetes({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, 1.0))
    judged(finding, Status.WARN, "no service account token", "pod-discovery")


def test_access_is_told_with_its_time() -> None:
    judged(judge_kubernetes(Access("10.96.0.1:443", True, 0.004)), Status.OK, "lists pods, 4.00 ms")
    judged(judge_kubernetes(Access("https://k8s", False, 0.004)), Status.OK, "https://k8s answers")
