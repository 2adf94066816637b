"""Addresses, and the connections to them."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gevent
import gevent.socket
import pytest
from calls import GOOD, Caller, ask_on_a_stale_connection, caller
from scripted import ScriptedServer, Step, json_response, refusing_port, scripted_server, silent_port, write

import llm_locust.client.http.connection as connection_module
import llm_locust.client.http.pool as pool_module
from llm_locust.client.call import LlmClient
from llm_locust.client.http.errors import ClientError, ConnectError
from llm_locust.client.http.pool import Pool, resolve as resolve_host
from llm_locust.client.http.target import Target, TargetError
from llm_locust.client.http.tls import tls_context
from llm_locust.client.probing import ask, get
from llm_locust.client.recording import Answer
from llm_locust.core.record import Outcome

pytestmark = pytest.mark.alone

OK = json_response({"ok": True})


@contextmanager
def pool_of(url: str, connect_timeout_s: float = 5) -> Iterator[Pool]:
    pool = Pool(Target.parse(url), connect_timeout_s=connect_timeout_s)
    try:
        yield pool
    finally:
        pool.close()


class FakeResolver:
    """Answers with the addresses of its list; counts how often it was asked."""

    def __init__(self, *hosts: str, slow_s: float = 0) -> None:
        self.hosts = list(hosts)
        self.asked = 0
        self._slow_s = slow_s

    def __call__(self, host: str, port: int, *_: Any) -> list[tuple[Any, ...]]:
        self.asked += 1
        if self._slow_s:
            gevent.sleep(self._slow_s)
        if not self.hosts:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (h, port, 0, 0))
            if ":" in h
            else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (h, port))
            for h in self.hosts
        ]


Resolve = Callable[..., FakeResolver]


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Resolve:
    """Makes every name stand for the given addresses."""

    def install(*hosts: str, slow_s: float = 0) -> FakeResolver:
        resolver = FakeResolver(*hosts, slow_s=slow_s)
        monkeypatch.setattr(gevent.socket, "getaddrinfo", resolver)
        return resolver

    return install


def opened(pool: Pool) -> str:
    """Where the next new connection goes."""
    connection = pool.open()
    connection.close()
    return connection.peer


# Targets


@pytest.mark.parametrize(
    ("url", "target", "authority"),
    [
        ("http://localhost:8000", Target("http", "localhost", 8000, "/v1"), "localhost:8000"),
        ("localhost:8000", Target("http", "localhost", 8000, "/v1"), "localhost:8000"),
        (" http://h/ ", Target("http", "h", 80, "/v1"), "h"),
        ("https://example.org/v1", Target("https", "example.org", 443, "/v1"), "example.org"),
        ("https://example.org:443/v1/", Target("https", "example.org", 443, "/v1"), "example.org"),
        ("http://h:443", Target("http", "h", 443, "/v1"), "h:443"),
        ("http://h/gateway/a", Target("http", "h", 80, "/gateway/a/v1"), "h"),
        ("http://h/v2/openai", Target("http", "h", 80, "/v2/openai"), "h"),
        ("http://h/openai/v1beta", Target("http", "h", 80, "/openai/v1beta"), "h"),
        ("http://h/vault", Target("http", "h", 80, "/vault/v1"), "h"),
        ("http://[::1]:8000", Target("http", "::1", 8000, "/v1"), "[::1]:8000"),
        ("HTTP://Host", Target("http", "host", 80, "/v1"), "host"),
        ("http://bücher.example/ü", Target("http", "xn--bcher-kva.example", 80, "/%C3%BC/v1"), None),
    ],
)
def test_a_url_is_taken_with_or_without_the_apis_path(
    url: str, target: Target, authority: str | None
) -> None:
    assert Target.parse(url) == target
    assert authority is None or target.authority == authority
    assert Target.parse(target.url) == target == Target.at(target.url)


@pytest.mark.parametrize("base", ["", "/openai", "/v2/gateway/a", "/%C3%BC"])
def test_a_targets_url_says_its_base_whole(base: str) -> None:
    target = Target("https", "h", 8443, base)
    assert Target.at(target.url) == target


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("", "is not a URL such as"),
        ("ftp://h", "host 'ftp://h' is not a URL such as"),
        ("http://", "host 'http://' is not a URL"),
        ("http://h:port", "Port is no number"),
        ("http://h:70000", "Port out of range"),
        ("http://h:0", "port 0"),
        ("http://[::1", "Invalid IPv6 URL"),
        ("http://h/a b", "holds a space"),
        ("http://h/ sk-secret", "host 'http://h/' holds a space"),
        ("http://h/?sk-secret", "host 'http://h/': leave user, query"),
        ("http://h/#sk-secret", "host 'http://h/': leave user, query"),
        ("http://h:80:sk-secret", "Port is no number"),
        ("http:/h?sk-secret", "leave user, query"),
        ("?sk-secret", "leave user, query"),
        ("ftp://h sk-secret", "holds a space"),
        ("http://h\r\nX: y", "control character"),
        ("http://a..b", "host 'a..b' is not a valid DNS name"),
        ("http://" + "a" * 64, "not a valid DNS name"),
    ],
)
def test_what_is_no_url_is_said_with_its_value(url: str, text: str) -> None:
    with pytest.raises(TargetError) as refused:
        Target.parse(url)
    assert text in str(refused.value)


@pytest.mark.parametrize(
    "url", ["https://me:geheim@h", "ftp://me:geheim@h", "http://h/?key=geheim", "http://h#geheim"]
)
def test_a_key_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(TargetError, match="--api-key-env") as refused:
        Target.parse(url)
    assert "geheim" not in str(refused.value)


# Several addresses


@pytest.fixture
def two_hosts() -> Iterator[int]:
    """A port that is served at 127.0.0.1 and at 127.0.0.2."""
    with scripted_server() as first, scripted_server(host="127.0.0.2", port=first.port):
        yield first.port


@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_a_host_that_is_an_address_is_not_looked_up(host: str, family: int, resolve: Resolve) -> None:
    resolver = resolve("192.0.2.1")
    ((found, place),) = resolve_host(host, 8000)
    assert (found, place[:2]) == (family, (host, 8000))
    assert resolver.asked == 0


def test_each_new_connection_takes_the_next_address(resolve: Resolve, two_hosts: int) -> None:
    resolver = resolve("127.0.0.1", "127.0.0.2")
    with pool_of(f"http://name:{two_hosts}") as pool:
        peers = [opened(pool) for _ in range(4)]
    assert peers == [f"127.0.0.{n}:{two_hosts}" for n in (1, 2, 1, 2)]
    assert resolver.asked == 1


@pytest.mark.parametrize("dead", ["::1", "127.0.0.3"])
def test_an_address_that_refuses_is_left_out_until_the_name_is_resolved_again(
    resolve: Resolve, two_hosts: int, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve(dead, "127.0.0.1", "127.0.0.2")
    with pool_of(f"http://localhost:{two_hosts}") as pool:
        assert {opened(pool) for _ in range(6)} == {f"127.0.0.{n}:{two_hosts}" for n in (1, 2)}
        assert all(dead not in address for _, address in pool._addresses)
        monkeypatch.setattr(pool, "_resolve_at", 0)
        resolve("127.0.0.2")
        assert {opened(pool) for _ in range(2)} == {f"127.0.0.2:{two_hosts}"}


def test_two_that_open_at_once_do_not_take_each_others_turn(resolve: Resolve, two_hosts: int) -> None:
    resolve("127.0.0.3", "127.0.0.1")  # the first refuses; with one shared turn both would meet it twice
    with pool_of(f"http://name:{two_hosts}") as pool:
        jobs = [gevent.spawn(opened, pool) for _ in range(8)]
        assert {job.get(timeout=5) for job in jobs} == {f"127.0.0.1:{two_hosts}"}


def test_a_silent_address_takes_its_share_of_the_time_only(resolve: Resolve) -> None:
    resolve("127.0.0.1", "127.0.0.2")
    with (
        silent_port() as port,
        scripted_server(host="127.0.0.2", port=port),
        pool_of(f"http://name:{port}", connect_timeout_s=0.2) as pool,
    ):
        assert [opened(pool) for _ in range(2)] == [f"127.0.0.2:{port}"] * 2


def test_the_addresses_share_the_time_equally(resolve: Resolve) -> None:
    resolve("127.0.0.1", "127.0.0.3")  # silent, and refusing
    with silent_port() as port, pool_of(f"http://name:{port}", connect_timeout_s=0.2) as pool:
        with pytest.raises(ConnectError) as refused:
            pool.open()
        assert f"no answer within 0.1 s (127.0.0.1:{port})" in str(refused.value)


def test_a_name_is_asked_for_once_by_all_who_wait(resolve: Resolve, two_hosts: int) -> None:
    resolver = resolve("127.0.0.1", slow_s=0.02)
    with pool_of(f"http://name:{two_hosts}") as pool:
        gevent.joinall([gevent.spawn(opened, pool) for _ in range(20)], raise_error=True)
    assert resolver.asked == 1


def test_known_addresses_serve_while_the_resolver_fails(
    resolve: Resolve, two_hosts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve("127.0.0.1")
    with pool_of(f"http://name:{two_hosts}") as pool:
        assert opened(pool)
        monkeypatch.setattr(pool, "_resolve_at", 0)
        resolver = resolve()
        assert [opened(pool) for _ in range(2)] == [f"127.0.0.1:{two_hosts}"] * 2
        assert resolver.asked == 1


def test_ipv6_is_spoken() -> None:
    with (
        scripted_server(host="::1") as server,
        caller(server.url) as ask,
    ):
        record = ask.ask([write(0, OK)], streamed=False).record
        assert (record.status, record.peer) == (200, f"[::1]:{server.port}")
        assert server.wait_ended(1)[0].header("Host") == f"[::1]:{server.port}"


# No connection


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_refused_connection_names_the_address(host: str) -> None:
    literal = f"[{host}]" if ":" in host else host
    with refusing_port(host) as port, pool_of(f"http://{literal}:{port}") as pool:
        with pytest.raises(ConnectError) as refused:
            pool.acquire()
        assert str(refused.value) == f"cannot connect to {literal}:{port}: Connection refused"


def test_all_addresses_that_refused_are_named_and_asked_for_again_soon(
    resolve: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "RESOLVE_AFTER_FAILURE_S", 0)
    resolver = resolve("127.0.0.3", "::1")
    with refusing_port() as port, pool_of(f"http://name:{port}") as pool:
        for _ in range(2):
            with pytest.raises(ConnectError) as refused:
                pool.acquire()
            for part in (f"name:{port}", f"127.0.0.3:{port}", f"[::1]:{port}", "Connection refused"):
                assert part in str(refused.value)
    assert resolver.asked == 2


def test_a_name_without_address_is_said(resolve: Resolve) -> None:
    resolve()
    with pool_of("http://nowhere.invalid") as pool, pytest.raises(ConnectError) as refused:
        pool.open()
    assert str(refused.value) == "host 'nowhere.invalid' cannot be resolved: Name or service not known"


def test_connecting_has_a_bound() -> None:
    began = time.monotonic()
    with (
        silent_port() as port,
        pool_of(f"http://127.0.0.1:{port}", connect_timeout_s=0.05) as pool,
        pytest.raises(ConnectError, match=rf"127\.0\.0\.1:{port}: no answer within 0\.05 s"),
    ):
        pool.open()
    assert 0.05 <= time.monotonic() - began < 20


def test_resolving_has_the_same_bound(resolve: Resolve) -> None:
    resolve("127.0.0.1", slow_s=30)
    refused = pytest.raises(ConnectError, match=r"cannot be resolved: no answer within 0\.05 s")
    with pool_of("http://name", connect_timeout_s=0.05) as pool, refused:
        pool.open()


def test_a_users_own_timeout_passes_through() -> None:
    class OwnError(Exception):
        pass

    with (
        silent_port() as port,
        pool_of(f"http://127.0.0.1:{port}") as pool,
        pytest.raises(OwnError),
        gevent.Timeout(0.02, OwnError),
    ):
        pool.open()


# Idle connections


def test_the_connection_used_last_is_taken_first(server: ScriptedServer) -> None:
    with caller(server.url) as ask:
        jobs = [ask.spawn([write(10, OK)], streamed=False) for _ in range(3)]
        gevent.joinall(jobs, timeout=5)
        for _ in range(3):
            ask.ask([write(0, OK)], streamed=False)
        late = server.wait_ended(6)[3:]
    assert len({r.connection for r in late}) == 1
    assert [r.number for r in late] == [2, 3, 4]


def test_an_end_that_came_while_the_program_was_busy_is_noticed_before_the_connection_is_used(
    server: ScriptedServer,
) -> None:
    with caller(server.url) as ask:
        ask.ask([write(0, OK), Step(at_ms=1, close=True)], streamed=False)
        server.wait_closed(1)  # blocks this process, and so the event loop
        record = ask.ask([write(0, OK)], streamed=False).record
    assert (record.status, record.reused, record.retries) == (200, False, 0)


def test_what_a_server_says_out_of_turn_is_no_answer_to_the_next_request(server: ScriptedServer) -> None:
    late = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"
    with caller(server.url) as ask:
        ask.ask([write(0, OK), write(1, late)], streamed=False)
        server.wait_ended(1)
        record = ask.ask([write(0, OK)], streamed=False).record
    assert (record.status, record.reused, record.retries) == (200, False, 0)


def test_a_closed_pool_keeps_no_connection(server: ScriptedServer) -> None:
    with caller(server.url) as ask:
        job = ask.spawn([write(30, OK)], streamed=False)
        ask.ask([write(0, OK)], streamed=False)
        ask.client.pool.close()
        assert job.get(timeout=5).record.status == 200
        server.wait_closed(2)


# Bounded reuse


@contextmanager
def bounded(server: ScriptedServer, most_requests: int | None) -> Iterator[Caller]:
    """A caller whose connections carry so many requests; trusts the server where that has certificates."""
    tls = tls_context(Path(server.tls.ca)) if server.tls is not None else None
    pool = Pool(Target.parse(server.url), tls=tls, connect_timeout_s=5, most_requests=most_requests)
    answers: list[Answer] = []
    try:
        yield Caller(LlmClient(pool, sink=answers.append), answers)
    finally:
        pool.close()


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize(("most", "numbers"), [(1, [1] * 5), (2, [1, 2, 1, 2, 1]), (None, [1, 2, 3, 4, 5])])
def test_a_connection_carries_so_many_requests_and_the_last_one_says_so(
    request: pytest.FixtureRequest, encrypted: bool, most: int | None, numbers: list[int]
) -> None:
    server: ScriptedServer = request.getfixturevalue("tls_server" if encrypted else "server")
    with bounded(server, most) as ask:
        records = [ask.ask([GOOD]).record for _ in numbers]
        served = server.wait_ended(5)
        connections = server.wait_closed(last := sum(n == most for n in numbers))
    assert [r.number for r in served] == numbers
    assert [r.header("Connection") for r in served] == ["close" if n == most else None for n in numbers]
    assert [r.outcome for r in records] == [Outcome.OK] * 5
    assert [r.reused for r in records] == [n > 1 for n in numbers]
    # So that TIME_WAIT is on its side: ports of ours would run out.
    assert [c.closed_by for c in connections if c.closed_ns] == ["server"] * last
    # The time to connect is that of the requests that had to.
    assert [r.connected_ns is not None and r.connected_ns > r.started_ns for r in records] == [
        n == 1 for n in numbers
    ]


def test_a_spent_connection_is_closed_on_this_side_where_the_server_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "PARTING_S", 0.02)
    routes = {"/v1/chat/completions": [GOOD, Step(at_ms=0, stall=True)]}
    with scripted_server(routes=routes) as server, bounded(server, 1) as ask:
        assert [ask.ask(None).record.reused for _ in range(2)] == [False, False]
        with gevent.Timeout(5):
            while any(c.closed_ns is None for c in server.connections()):
                gevent.sleep(0.005)
        assert [c.closed_by for c in server.connections()] == ["client", "client"]


def test_requests_at_once_share_no_spent_connection(server: ScriptedServer) -> None:
    with bounded(server, 3) as ask:
        for _ in range(3):
            gevent.joinall([ask.spawn([write(5, OK)], streamed=False) for _ in range(4)], raise_error=True)
        served = server.wait_ended(12)
        server.wait_closed(4)
    assert len({r.connection for r in served}) == 4


def test_what_replaces_a_stale_connection_begins_to_count_anew(server: ScriptedServer) -> None:
    with bounded(server, 2) as ask:
        ask.ask([GOOD, Step(at_ms=100, close=True)])
        records = [ask_on_a_stale_connection(ask, [GOOD]), ask.ask([GOOD]).record]
        served = server.wait_ended(3)
    assert [(r.outcome, r.reused, r.retries) for r in records] == [
        (Outcome.OK, False, 1),
        (Outcome.OK, True, 0),
    ]
    assert [r.header("Connection") for r in served] == [None, None, "close"]


# A plain GET


def test_a_plain_get_gives_status_and_body() -> None:
    routes = {"/health": [write(0, json_response({"up": 1}, 503))]}
    with scripted_server(routes=routes) as server, pool_of(server.url) as pool:
        assert get(pool, "/health", {"X-Own": "1"}, 5) == (503, b'{"up":1}')
        (served,) = server.wait_ended(1)
        assert (served.method, served.header("X-Own")) == ("GET", "1")
        server.wait_closed(1)


def test_a_plain_post_has_the_length_of_its_body() -> None:
    routes = {"*": [write(0, json_response({"up": 1}))]}
    with scripted_server(routes=routes) as server, pool_of(server.url) as pool:
        asked = [ask(pool, "POST", "/reset", {}, 5, body) for body in (b"", b"0123456789")]
        served = server.wait_ended(2)
    assert [(plain.status, plain.headers[b"content-type"]) for plain in asked] == [
        (200, b"application/json")
    ] * 2
    assert [(r.method, r.header("Content-Length")) for r in served] == [("POST", "0"), ("POST", "10")]


@pytest.mark.parametrize(
    ("script", "within_s", "text"),
    [
        ([Step(stall=True)], 0.05, "not complete within 0.05 s"),
        ([write(0, "no http")], 5, "not an HTTP/1.1 response"),
        ([Step(close=True)], 5, "closed by the peer"),
    ],
)
def test_a_plain_get_that_fails_says_why(script: list[Step], within_s: float, text: str) -> None:
    with scripted_server(routes={"*": script}) as server, pool_of(server.url) as pool:
        with pytest.raises(ClientError, match=text):
            get(pool, "/health", {}, within_s)
        server.wait_closed(1)
