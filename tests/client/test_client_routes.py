"""Requests that go to several targets: whose turn it is, what each is sent, and who is named."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import gevent
import httpx2
import msgspec
import pytest
from calls import GOOD, Caller, stop, token
from openai import OpenAI
from scripted import (
    ScriptedServer,
    Step,
    chat_chunk,
    chunk,
    json_response,
    last_chunk,
    refusing_port,
    response_head,
    script_header,
    scripted_server,
    silent_port,
    sse,
    stream_script,
    write,
)

from llm_locust.client.call import LlmClient
from llm_locust.client.http.pool import Pool
from llm_locust.client.http.target import Target
from llm_locust.client.openai_sdk import MeasuredTransport
from llm_locust.client.recording import Answer, Call
from llm_locust.client.routes import Chooser, Route, Routes
from llm_locust.core.record import Outcome
from llm_locust.deployment.targets import make_chooser
from llm_locust.wire.headers import SessionHeader

pytestmark = pytest.mark.alone

#: What follows the head of a whole streamed answer.
GOOD_BODY = chunk(token() + stop()) + last_chunk()


@dataclass(slots=True)
class InTurn:
    """A chooser that notes what it is told; ``under_way`` are the targets that have not ended."""

    targets: int
    sessions: list[str | None] = field(default_factory=list)
    under_way: list[int] = field(default_factory=list)
    begun: int = 0

    def choose(self, session: str | None) -> int:
        self.sessions.append(session)
        return (len(self.sessions) - 1) % self.targets

    def began(self, target: int) -> None:
        self.begun += 1
        self.under_way.append(target)

    def ended(self, target: int) -> None:
        self.under_way.remove(target)


@contextmanager
def routed(urls: Sequence[str], chooser: Chooser | None = None, **of: object) -> Iterator[Caller]:
    """A caller of these targets, in turn; ``of`` are further arguments of :class:`LlmClient`."""
    pools = [Pool(Target.at(url), connect_timeout_s=0.3) for url in urls]
    routes = Routes(pools, chooser or make_chooser("round_robin", len(urls)))
    answers: list[Answer] = []
    try:
        yield Caller(LlmClient(routes, sink=answers.append, **of), answers)  # type: ignore[arg-type]
    finally:
        routes.close()


@pytest.fixture(scope="module")
def _second_process() -> Iterator[ScriptedServer]:
    with scripted_server() as found:
        yield found


@pytest.fixture
def second(_second_process: ScriptedServer) -> ScriptedServer:
    """A server beside ``server``, its log empty."""
    _second_process.forget()
    return _second_process


# What each target is sent


def test_each_target_has_requests_of_its_own_host_and_path(
    server: ScriptedServer, second: ScriptedServer
) -> None:
    with routed([server.url + "/v1", second.url + "/gateway"]) as ask:
        outcomes = [ask.ask([GOOD]).record.outcome for _ in range(5)]
        here, there = server.wait_ended(3), second.wait_ended(2)
    assert outcomes == [Outcome.OK] * 5
    assert {(r.path, r.header("Host")) for r in here} == {
        ("/v1/chat/completions", f"127.0.0.1:{server.port}")
    }
    assert {(r.path, r.header("Host")) for r in there} == {
        ("/gateway/chat/completions", f"127.0.0.1:{second.port}")
    }
    assert [r.number for r in here] == [1, 2, 3], "each has connections of its own, which are kept"


def test_the_users_own_headers_go_to_every_target(server: ScriptedServer, second: ScriptedServer) -> None:
    with routed([server.url, second.url], headers={"Host": "service", "X-N": "{seq}"}) as ask:
        own = ask.client.make_heads({"X-Own": "{user}"})
        for user in range(4):
            heads = None if user < 2 else own
            ask.client.post(
                "/chat/completions", msgspec.json.encode({"script": [GOOD]}), ask.call(user=user), heads
            )
        served = [*server.wait_ended(2), *second.wait_ended(2)]
    assert [r.header("Host") for r in served] == [
        "service",
        f"127.0.0.1:{server.port}",
        "service",
        f"127.0.0.1:{second.port}",
    ]
    assert [(r.header("X-N"), r.header("X-Own")) for r in served] == [
        ("0", None),
        (None, "2"),
        ("1", None),
        (None, "3"),
    ]


def test_a_single_pool_needs_no_chooser(server: ScriptedServer) -> None:
    pool = Pool(Target.parse(server.url))
    client = LlmClient(pool, sink=lambda _: None)
    assert client.pool is pool
    assert client.routes.choose(Call(request_id="", name="", scheduled_ns=1)) is client.routes.first
    client.routes.close()


# Whose turn it is


def test_a_chooser_is_told_the_session_and_when_the_request_begins_and_ends(
    server: ScriptedServer, second: ScriptedServer
) -> None:
    chooser = InTurn(2)
    with routed([server.url, second.url], chooser) as ask:
        jobs = [ask.spawn([write(30, GOOD.data or b"")], session=s) for s in ("a", None, "b")]
        gevent.sleep(0)
        assert chooser.under_way == [0, 1, 0], "from before there is a connection"
        gevent.joinall(jobs, raise_error=True)
    assert chooser.sessions == ["a", None, "b"]
    assert (chooser.under_way, chooser.begun) == ([], 3)


def test_what_was_said_to_belong_together_is_what_a_chooser_hears(server: ScriptedServer) -> None:
    chooser = InTurn(1)
    routes = Routes([Pool(Target.parse(server.url))], chooser, lambda call: f"user-{call.user}")
    ask = Caller(LlmClient(routes, sink=lambda _: None))
    ask.ask([GOOD], user=3)
    routes.close()
    assert chooser.sessions == ["user-3"]


def _killed(ask: Caller) -> None:
    job = ask.spawn([Step(stall=True)])
    gevent.sleep(0.01)
    job.kill()


def _abandoned(ask: Caller) -> None:
    job = ask.spawn([Step(stall=True)])
    gevent.sleep(0.01)
    ask.client.abandon_calls()
    job.join(120)


def _left(ask: Caller) -> None:
    ask.client.post("/chat/completions", b'{"script":[{"stall":true}]}', ask.call(), patience_s=0.01)


@pytest.mark.parametrize("end", [_killed, _abandoned, _left])
def test_a_request_that_is_given_up_is_over_too(
    server: ScriptedServer, end: Callable[[Caller], None]
) -> None:
    chooser = InTurn(1)
    with routed([server.url], chooser) as ask:
        end(ask)
        assert (chooser.begun, chooser.under_way) == (1, [])
        (answer,) = ask.answers
        assert (answer.record.outcome, answer.record.replica) == (
            Outcome.CANCELLED,
            f"127.0.0.1:{server.port}",
        )


def test_a_request_that_may_not_be_sent_does_not_begin(server: ScriptedServer) -> None:
    class NoMoreError(Exception):
        pass

    def refuse() -> None:
        raise NoMoreError

    chooser = InTurn(1)
    with routed([server.url], chooser, admit=refuse) as ask, pytest.raises(NoMoreError):
        ask.ask([GOOD])
    assert (chooser.begun, chooser.under_way) == (0, [])


def test_least_inflight_keeps_away_from_a_target_that_does_not_answer(
    server: ScriptedServer, second: ScriptedServer
) -> None:
    with routed([server.url, second.url], make_chooser("least_inflight", 2)) as ask:
        stuck = ask.spawn([Step(stall=True)])
        gevent.sleep(0.01)
        for _ in range(6):
            ask.ask([GOOD])
        stuck.kill()
        assert (len(server.wait_ended(0)), len(second.wait_ended(6))) == (1, 6)


# A target that is down


def test_a_target_that_refuses_keeps_its_turns_and_has_its_errors(
    server: ScriptedServer, second: ScriptedServer
) -> None:
    with refusing_port() as port, routed([server.url, f"http://127.0.0.1:{port}", second.url]) as ask:
        records = [ask.ask([GOOD]).record for _ in range(6)]
    dead = f"127.0.0.1:{port}"
    names = [f"127.0.0.1:{server.port}", dead, f"127.0.0.1:{second.port}"]
    assert [r.replica for r in records] == names * 2
    assert [r.outcome for r in records] == [Outcome.OK, Outcome.CONNECT_ERROR, Outcome.OK] * 2
    refused = records[1]
    assert (refused.peer, refused.local_port, refused.sent_ns, refused.retries) == (None, None, None, 0)
    assert refused.error == f"cannot connect to {dead}: Connection refused"


def test_the_failures_of_a_target_go_by_the_name_that_its_answers_had() -> None:
    named = [write(0, json_response({}, headers={"X-Served-By": "pod-1"}))]
    with scripted_server(routes={"*": named}) as server, routed([server.url]) as ask:
        before = ask.ask([Step(close=True)]).record
        ask.ask(None, streamed=False)
        after = ask.ask([Step(close=True)]).record
    assert [r.outcome for r in (before, after)] == [Outcome.CONNECT_ERROR] * 2
    assert (before.replica, after.replica) == (f"127.0.0.1:{server.port}", "pod-1")


@pytest.mark.parametrize(
    ("direct", "names", "replica"),
    [
        (True, (), "h:1"),
        (True, ("a", "a"), "a"),
        (True, ("a", "b", "a"), "h:1"),
        (False, ("a",), None),
        (False, (), None),
    ],
)
def test_a_nameless_request_is_the_targets_where_that_is_one_replica(
    direct: bool, names: Sequence[str], replica: str | None
) -> None:
    route = Route(Pool(Target.parse("http://h:1")), direct=direct)
    assert [route.replica(name) for name in names] == list(names)
    assert route.replica(None) == replica


# All pools together


def test_connections_being_made_are_counted_over_all_targets() -> None:
    with silent_port() as here, silent_port() as there:
        with routed([f"http://127.0.0.1:{port}" for port in (here, there)]) as ask:
            jobs = [ask.spawn([GOOD]) for _ in range(4)]
            gevent.sleep(0.05)
            assert ask.client.routes.dialling == 4
            gevent.joinall(jobs, timeout=120)
            assert ask.client.routes.dialling == 0
        assert {a.record.outcome for a in ask.answers} == {Outcome.CONNECT_ERROR}


def test_closing_closes_the_connections_to_every_target(
    server: ScriptedServer, second: ScriptedServer
) -> None:
    with routed([server.url, second.url]) as ask:
        for _ in range(2):
            ask.ask([GOOD])
        ask.client.routes.close()
        assert [s.wait_closed(1)[0].closed_by for s in (server, second)] == ["client"] * 2


# The openai SDK


def test_requests_of_the_sdk_go_to_the_target_whose_turn_it_is(
    server: ScriptedServer, second: ScriptedServer
) -> None:
    def new_call(request_id: str, *_: object) -> Call:
        return Call(request_id=request_id, name="sdk", scheduled_ns=time.time_ns())

    script = stream_script(ttft_ms=1, gap_ms=1, tokens=2)
    with routed([server.url + "/v1", second.url + "/gateway"], headers={"X-N": "{seq}"}) as ask:
        transport = MeasuredTransport(ask.client, new_call, ask.client.heads)
        http_client = httpx2.Client(transport=transport, trust_env=False)
        with OpenAI(base_url=ask.client.pool.target.url, api_key="k", http_client=http_client) as sdk:
            for _ in range(4):
                stream = sdk.chat.completions.create(
                    model="m",
                    messages=[{"role": "user", "content": "hello"}],
                    stream=True,
                    extra_headers=script_header(script),
                )
                assert sum(1 for _ in stream) > 2
        here, there = server.wait_ended(2), second.wait_ended(2)
    seen = [(r.path, r.header("Host"), r.header("X-N")) for r in (*here, *there)]
    assert seen == [
        ("/v1/chat/completions", f"127.0.0.1:{server.port}", "0"),
        ("/v1/chat/completions", f"127.0.0.1:{server.port}", "2"),
        ("/gateway/chat/completions", f"127.0.0.1:{second.port}", "1"),
        ("/gateway/chat/completions", f"127.0.0.1:{second.port}", "3"),
    ]
    assert [(a.record.outcome, a.record.endpoint) for a in ask.answers] == [(Outcome.OK, "chat")] * 4


# What a server gives to a session


HOSTILE = {
    "long": "v" * 5000,
    "latin": "caf\xe9-0123456789",
    "tab": "a\tb",
}


def giving(value: str, *, name: str = "X-Session-Token", error: str | None = None) -> Step:
    """An answer that gives the value to its session; an error's text has it too."""
    if error is not None:
        body = msgspec.json.encode({"error": {"message": error}})
        return write(0, response_head(503, {name: value}, content_length=len(body)) + body)
    return write(0, response_head(headers={name: value}) + GOOD_BODY)


@contextmanager
def sticky(urls: Sequence[str], header: str = "x-session-token") -> Iterator[Caller]:
    pools = [Pool(Target.at(url)) for url in urls]
    chooser = make_chooser("round_robin", len(urls)) if len(urls) > 1 else None
    routes = Routes(pools, chooser, session_header=SessionHeader.parse(header))
    answers: list[Answer] = []
    try:
        yield Caller(LlmClient(routes, sink=answers.append), answers)
    finally:
        routes.close()


def test_a_sessions_next_request_has_the_header_and_its_record_says_so(server: ScriptedServer) -> None:
    with sticky([server.url]) as ask:
        asked = [
            ("a", 0, "one-for-a"),
            ("b", 0, "one-for-b"),
            ("a", 1, "two-for-a"),
            ("a", 2, ""),
            ("b", 1, ""),
        ]
        records = [
            ask.ask([giving(value) if value else GOOD], session=session, turn=turn).record
            for session, turn, value in asked
        ]
        records.append(ask.ask([GOOD]).record)
        served = server.wait_ended(6)
    sent = [request.header("x-session-token") for request in served]
    assert sent == [None, None, "one-for-a", "two-for-a", "one-for-b", None]
    assert [r.session_header for r in records] == [None, None, "echoed", "echoed", "echoed", None]


def test_a_target_gets_only_what_it_gave_itself(server: ScriptedServer, second: ScriptedServer) -> None:
    with sticky([server.url, second.url]) as ask:
        records = [ask.ask([giving("mine")], session="a", turn=turn).record for turn in range(4)]
        sent = [[r.header("x-session-token") for r in each.wait_ended(2)] for each in (server, second)]
    assert sent == [[None, "mine"], [None, "mine"]]
    assert [r.session_header for r in records] == [None, "missing", "echoed", "echoed"]


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_a_value_that_no_request_may_have_is_not_given_back(server: ScriptedServer, value: str) -> None:
    with sticky([server.url]) as ask:
        records = [
            ask.ask([Step(at_ms=0, send_b64=given)], session="a", turn=turn).record
            for turn, given in enumerate([(giving(value).data or b""), GOOD.data or b""])
        ]
        assert [r.header("x-session-token") for r in server.wait_ended(2)] == [None, None]
    assert [(r.outcome, r.session_header) for r in records] == [(Outcome.OK, None), (Outcome.OK, "refused")]


def test_a_record_has_the_model_that_was_asked_for_and_the_one_that_answered(server: ScriptedServer) -> None:
    named = chunk(sse({**chat_chunk("t"), "model": "other"}) + stop()) + last_chunk()
    with routed([server.url]) as ask:
        answers = [
            ask.ask([write(0, response_head() + named)], model=model).record
            for model in ("mine", "other", "")
        ]
    assert [(r.model, r.answered_model) for r in answers] == [
        ("mine", "other"),
        ("other", None),
        ("other", None),
    ]


def test_one_cookie_of_several_goes_back(server: ScriptedServer) -> None:
    head = response_head(headers={"Set-Cookie": "llm-d-session=abc; Path=/\r\nSet-Cookie: other=1"})
    with sticky([server.url], "cookie:llm-d-session") as ask:
        for turn in range(2):
            ask.ask([write(0, head + GOOD_BODY)], session="a", turn=turn)
        assert [r.header("cookie") for r in server.wait_ended(2)] == [None, "llm-d-session=abc"]


def test_an_error_text_has_no_value_that_was_given_or_given_back(server: ScriptedServer) -> None:
    with sticky([server.url]) as ask:
        ask.ask([giving("token-0123456789")], session="a", turn=0)
        refusal = giving("newer-9876543210", error="no session token-0123456789; take newer-9876543210")
        record = ask.ask([refusal], session="a", turn=1).record
    assert (record.outcome, record.session_header) == (Outcome.HTTP_ERROR, "echoed")
    assert "***" in str(record.error)
    assert "0123456789" not in repr(record)
    assert "9876543210" not in repr(record)
