"""Checks of this machine, the way to the server, its models and key, each as a function of what was seen."""

import socket
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doctor_cases import answer, asked, listing

from llm_locust.cli.main import main
from llm_locust.client.http.pool import Address
from llm_locust.client.probing import Listing, Session, StampTrial
from llm_locust.doctor import command as doctor
from llm_locust.doctor.command import Result
from llm_locust.doctor.finding import Examination, Finding, Status
from llm_locust.doctor.machine import (
    Access,
    Cpu,
    LoopLag,
    judge_clock_source,
    judge_files,
    judge_kubernetes,
    judge_loop,
    judge_memory,
    judge_ports,
    judge_quota,
    judge_reader,
    judge_stamps as judge_kernel_stamps,
    judge_steal,
    judge_throttling,
    look_at_kubernetes,
)
from llm_locust.doctor.server import (
    Attempt,
    Certificate,
    Resolved,
    ServerTime,
    TlsSeen,
    chosen_model,
    judge_dns,
    judge_key,
    judge_models,
    judge_server_clock,
    judge_tcp,
    judge_tls,
    try_addresses,
)
from llm_locust.doctor.stream import proxy_of, unbuffering
from llm_locust.host import (
    ClockSource,
    FileLimits,
    Ports,
    clock_source,
    cpu_limit_cores,
    ephemeral_ports,
    memory_available_bytes,
)

# --- Checks of this machine, each as a function of figures


MIB = 1 << 20


def judged(finding: Finding, status: Status, *words: str) -> None:
    """The status is as expected, the words are there, and a warning or failure says what to change."""
    assert finding.status is status, finding
    for word in words:
        assert word in f"{finding.figure} | {finding.change}"
    assert bool(finding.change) or status in (Status.OK, Status.SKIPPED)


@pytest.mark.parametrize(
    ("hard", "users", "status", "words"),
    [
        (None, 1_000_000, Status.OK, "unlimited"),
        (1_048_576, 1_000, Status.OK, "1,064 needed for 1,000 users"),
        (256, 10, Status.WARN, "over 192 requests at once fail"),
        (256, 200, Status.FAIL, "ulimit -n 264"),
        (1_023, 959, Status.WARN, "ulimit -n 65536"),
        (1_024, 961, Status.FAIL, "1,024 at most, 1,025 needed for 961 users"),
    ],
)
def test_open_files_are_held_against_the_users(
    hard: int | None, users: int, status: Status, words: str
) -> None:
    judged(judge_files(FileLimits(64, hard), users), status, words)


@pytest.mark.parametrize(
    ("ports", "users", "status", "words"),
    [
        (Ports(32_768, 60_999, 12), 1_000, Status.OK, "28,232 (32768-60999), 12 in TIME_WAIT"),
        (Ports(32_768, 60_999, None), 28_233, Status.FAIL, "28,233 needed"),
        (Ports(32_768, 60_999, None), 28_232, Status.WARN, "ip_local_port_range"),
        (Ports(32_768, 60_999, 20_000), 10, Status.WARN, "20,000 in TIME_WAIT"),
        (Ports(60_999, 32_768, 0), 10, Status.FAIL, "0 ("),
        (None, 10, Status.SKIPPED, "does not report"),
    ],
)
def test_local_ports_are_held_against_the_users(
    ports: Ports | None, users: int, status: Status, words: str
) -> None:
    judged(judge_ports(ports, users), status, words)


def test_ports_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    assert ephemeral_ports(tmp_path) is None
    (tmp_path / "sys/net/ipv4").mkdir(parents=True)
    (tmp_path / "sys/net/ipv4/ip_local_port_range").write_text("1024\t65535\n")
    assert ephemeral_ports(tmp_path) == Ports(1024, 65535, None)
    (tmp_path / "net").mkdir()
    (tmp_path / "net/sockstat").write_text("sockets: used 9\nTCP: inuse 5 orphan 0 tw 77 alloc 6 mem 1\n")
    assert ephemeral_ports(tmp_path) == Ports(1024, 65535, 77)
    (tmp_path / "sys/net/ipv4/ip_local_port_range").write_text("many\n")
    assert ephemeral_ports(tmp_path) is None


@pytest.mark.parametrize(
    ("left_mib", "users", "status", "words"),
    [
        (8_192, 1_000, Status.OK, "8,192 MiB left, about 250 MiB needed for 1,000 users"),
        (400, 1_000, Status.WARN, "memory limit"),
        (128, 10, Status.FAIL, "151 MiB needed"),
        (None, 10, Status.SKIPPED, "does not report"),
    ],
)
def test_memory_is_held_against_the_users(
    left_mib: int | None, users: int, status: Status, words: str
) -> None:
    judged(judge_memory(None if left_mib is None else left_mib * MIB, users), status, words)


def test_memory_left_is_that_of_the_machine_or_of_a_tighter_container(tmp_path: Path) -> None:
    assert memory_available_bytes(tmp_path, tmp_path) is None
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    2048 kB\n")
    assert memory_available_bytes(tmp_path, tmp_path) == 2 * MIB
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/\n")
    (tmp_path / "memory.max").write_text(f"{MIB}\n")
    (tmp_path / "memory.current").write_text("0\n")
    assert memory_available_bytes(tmp_path, tmp_path) == MIB


def cpu(
    cores: int = 4,
    limit_cores: float | None = None,
    steal_percent: float | None = 0.0,
    throttled_percent: float | None = 0.0,
) -> Cpu:
    return Cpu(cores, limit_cores, steal_percent, throttled_percent, measured_s=1.5)


@pytest.mark.parametrize(
    ("found", "status", "words"),
    [
        (cpu(), Status.OK, "4 cores, no limit below that"),
        (cpu(limit_cores=8), Status.OK, "no limit below that"),
        (cpu(limit_cores=2.5), Status.OK, "at most 2 workers"),
        (cpu(limit_cores=0.5), Status.WARN, "0.500 of 4 cores, by the container's CPU limit"),
    ],
)
def test_a_cpu_limit_below_one_core_is_named(found: Cpu, status: Status, words: str) -> None:
    judged(judge_quota(found), status, words)


def test_a_cpu_limit_of_a_container_is_named(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/kubepods/pod\n")
    (tmp_path / "groups/kubepods/pod").mkdir(parents=True)
    (tmp_path / "groups/kubepods/pod/cpu.max").write_text("20000 100000\n")
    limit = cpu_limit_cores(tmp_path / "proc", tmp_path / "groups")
    judged(judge_quota(cpu(limit_cores=limit)), Status.WARN, "0.200 of 4 cores")


@pytest.mark.parametrize(
    ("percent", "throttling", "steal"),
    [
        (None, Status.SKIPPED, Status.SKIPPED),
        (0.0, Status.OK, Status.OK),
        (1.5, Status.WARN, Status.OK),
        (5.0, Status.WARN, Status.WARN),
        (11.0, Status.WARN, Status.WARN),
    ],
)
def test_cpu_taken_is_a_warning_from_where_a_report_says_that_it_starved_a_late_client(
    percent: float | None, throttling: Status, steal: Status
) -> None:
    judged(judge_throttling(cpu(throttled_percent=percent)), throttling)
    judged(judge_steal(cpu(steal_percent=percent)), steal)


def test_a_late_event_loop_is_a_warning() -> None:
    judged(judge_loop(LoopLag(0.2, 40.0, 1.0)), Status.OK, "0.200 ms late (p99), 40.0 ms at most")
    judged(judge_loop(LoopLag(1.1, 1.1, 1.0)), Status.WARN, "other programs")


@pytest.mark.parametrize(
    ("trial", "status", "words"),
    [
        (StampTrial(32, 32, 0, 12_300), Status.OK, "32 of 32 reads on loopback have one, 12.3 µs"),
        (StampTrial(32, 31, 0, 9_000), Status.WARN, "31 of 32"),
        (StampTrial(32, 0, 0, None), Status.WARN, "gVisor"),
        (StampTrial(32, 32, 2, 9_000), Status.WARN, "2 of them are wrong"),
        (None, Status.WARN, "loopback cannot be used"),
    ],
)
def test_a_kernel_that_does_not_stamp_every_read_is_named(
    trial: StampTrial | None, status: Status, words: str
) -> None:
    judged(judge_kernel_stamps(trial), status, words)


def test_a_reader_in_python_is_said_with_its_reason() -> None:
    judged(judge_reader(None), Status.OK, "a thread in C")
    judged(judge_reader("the C module was not built"), Status.WARN, "the C module was not built")


@pytest.mark.parametrize(
    ("source", "status"),
    [
        (ClockSource("tsc", 60), Status.OK),
        (ClockSource("kvm-clock", 90), Status.OK),
        (ClockSource(None, 90), Status.OK),
        (ClockSource("hpet", 90), Status.WARN),
        (ClockSource("tsc", 1_200), Status.WARN),
    ],
)
def test_a_slow_clock_is_named(source: ClockSource, status: Status) -> None:
    judged(judge_clock_source(source), status, "ns a reading")


def test_the_cost_of_a_reading_is_that_of_the_fastest_batch(tmp_path: Path) -> None:
    (tmp_path / "current").write_text("tsc\n")
    times = iter(range(0, 10**9, 70))
    source = clock_source(tmp_path / "current", lambda: next(times))
    assert source.name == "tsc"
    assert source.reading_ns == pytest.approx(70, rel=0.01)
    assert clock_source(tmp_path / "none").name is None


@pytest.mark.parametrize(
    ("date", "status", "words"),
    [
        ("Thu, 01 Jan 1970 00:16:40 GMT", Status.OK, "within 1 s"),
        ("Thu, 01 Jan 1970 00:16:39 GMT", Status.OK, "within 1 s"),
        ("Thu, 01 Jan 1970 00:16:45 GMT", Status.WARN, "4.50 s ahead"),
        ("Thu, 01 Jan 1970 00:16:30 GMT", Status.WARN, "9.00 s behind"),
        ("Thu, 01 Jan 1970 00:16:42 GMT", Status.OK, "1.50 s ahead"),
        ("tomorrow", Status.SKIPPED, "not a date"),
        ("Thu, 01 Jan 99999999 00:16:40 GMT", Status.SKIPPED, "not a date"),
        (None, Status.SKIPPED, "no Date"),
    ],
)
def test_the_servers_clock_is_as_far_off_as_date_proves(date: str | None, status: Status, words: str) -> None:
    judged(judge_server_clock(ServerTime(date, before_s=1_000.0, after_s=1_000.5)), status, words)


def test_without_an_answer_there_is_no_clock() -> None:
    judged(judge_server_clock(None), Status.SKIPPED)


# --- Checks of the way to the server, its models and its key, each as a function of what was seen


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


# --- The options of ``llm-locust doctor``: what cannot be used is refused in one line, without a secret


KEY = "sk-a-key-of-this-test"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--users", "0"], "must be a whole number from 1 to 1,000,000, got '0'"),
        (["--users", "many"], "got 'many'"),
        (["ftp://host"], "is not a URL such as"),
        ([f"http://me:{KEY}@host"], "leave user, query and fragment out"),
        (["--api-key-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE"),
        (["--header", f"X-Key {KEY}"], "NAME=VALUE"),
        (["--endpoint", "chats"], "chats"),
        (["--body", "[1]"], "a list"),
        (["--body", '{"messages": []}'], "'messages' is what the workload fills"),
        (["https://127.0.0.1:1", "--ca-cert", "/no/such/file"], "--ca-cert '/no/such/file' cannot be used"),
        (["--jsn"], "--json"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(["doctor", *words])
    except SystemExit as e:
        code = e.code
    said = capsys.readouterr()
    assert code == 2
    assert why in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert KEY not in said.err


@pytest.mark.parametrize(
    ("words", "has_key"),
    [([], True), (["--api-key-env", ""], False), (["--header", "api-key=another-one"], True)],
)
def test_the_usual_variable_of_a_key_is_read_where_nothing_is_said(
    words: list[str], has_key: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Examination] = []

    def examine(asked: Examination) -> list[Result]:
        seen.append(asked)
        return []

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(doctor, "examine", examine)
    assert main(["doctor", "http://host", *words]) == 0
    (asked,) = seen
    assert asked.has_key is has_key
    assert (KEY in asked.secrets) is (words == [])
    assert KEY not in capsys.readouterr().out + repr(asked)
