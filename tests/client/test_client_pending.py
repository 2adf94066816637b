"""Answers that get their records later: the next requests go first, and nothing else is different."""

from collections.abc import Callable
from dataclasses import dataclass, field

import gevent
import msgspec
import pytest
from calls import GOOD, HEAD, Caller, caller, token
from gevent.event import Event
from scripted import Script, ScriptedServer, Step, chunk, json_response, write

from llm_locust.client import pending
from llm_locust.client.pending import MOST_WAITING, PendingAnswer, PendingAnswers
from llm_locust.client.recording import Answer
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.wire.draft import Draft

LATER_S = 60.0  # no answer is recorded by itself within a test that sets it


def post(ask: Caller, script: Script, recorded: Callable[[Answer], None] = lambda answer: None) -> Answer:
    body = msgspec.json.encode({"script": list(script)})
    return ask.client.post("/chat/completions", body, ask.call(), recorded=recorded)


def test_the_next_request_of_every_user_goes_out_before_the_first_record_is_made(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "GATHER_S", 0.5)
    seen: list[str] = []
    all_recorded = Event()

    def recorded(answer: Answer) -> None:
        seen.append("recorded")
        if seen.count("recorded") == 8:
            all_recorded.set()

    with caller(server.url) as ask:

        def user() -> None:
            post(ask, (GOOD,), recorded)
            seen.append("next")
            ask.ask((GOOD,))

        gevent.joinall([gevent.spawn(user) for _ in range(8)], raise_error=True)
        assert all_recorded.wait(60)
        assert seen == ["next"] * 8 + ["recorded"] * 8
        assert [answer.record.outcome for answer in ask.answers] == [Outcome.OK] * 16
        assert ask.client.in_flight == 0
    assert len(server.connections()) == 8, "a connection carries the next request before the record is made"


def test_who_looks_at_an_answer_has_its_record_at_once_and_once(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "GATHER_S", LATER_S)
    told: list[Answer] = []
    with caller(server.url) as ask:
        answer = post(ask, (GOOD,), told.append)
        assert not ask.answers
        assert ask.client.in_flight == 1, "what has no record yet is not forgotten"
        assert ask.client.unanswered == 0
        assert answer.reply.text == "t"
        assert answer.record.outcome is Outcome.OK
        assert answer.retry_after_s is None
        assert [each.record for each in ask.answers] == [each.record for each in told] == [answer.record]


@pytest.mark.parametrize(
    "script",
    [
        (write(0, json_response({"error": {"message": "no"}}, 500)),),
        (write(0, HEAD + chunk(token())), Step(close=True)),
    ],
    ids=["refused", "broken"],
)
def test_a_failure_is_recorded_before_its_user_goes_on(server: ScriptedServer, script: Script) -> None:
    told: list[Answer] = []
    with caller(server.url) as ask:
        answer = post(ask, script, told.append)
        assert not isinstance(answer, PendingAnswer)
        assert told == ask.answers == [answer]


def test_the_end_of_a_load_records_an_answer_that_waits_and_leaves_its_connection_alone(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "GATHER_S", LATER_S)
    with caller(server.url) as ask:
        post(ask, (GOOD,))
        (connection,) = ask.client.pool._idle
        assert ask.client.abandon_calls() == 0
        assert [answer.record.outcome for answer in ask.answers] == [Outcome.OK]
        assert not connection.closed


def test_an_answer_that_waits_for_its_record_is_no_request_under_way(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "GATHER_S", LATER_S)
    with caller(server.url) as ask:
        post(ask, (GOOD,))
        assert (ask.client.in_flight, ask.client.occupancy.level) == (1, 0)


@dataclass
class FakeCall:
    """A call that is concluded when it is asked to be."""

    concluded: list[str] = field(default_factory=list)
    error: Exception | None = None

    def settle(self) -> None:
        self.concluded.append("settled")

    def conclude(self) -> Answer:
        self.concluded.append("concluded")
        if self.error is not None and len(self.concluded) == 2:
            raise self.error
        record = RequestRecord(
            request_id="r", name="chat", outcome=Outcome.OK, scheduled_ns=0, started_ns=0, ended_ns=1
        )
        return Answer(record, Draft().finish())


def test_so_many_wait_and_no_more() -> None:
    answers = PendingAnswers()
    for _ in range(MOST_WAITING):
        assert answers.has_room
        answers.add(FakeCall(), lambda answer: None)
    assert not answers.has_room


def test_what_a_listener_raises_is_kept_for_the_user_and_the_next_answer_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pending, "_PIECE_S", 0.0)  # each in a turn of its own
    answers, done = PendingAnswers(), Event()
    error = RuntimeError("of a listener")
    first = answers.add(FakeCall(error=error), lambda answer: None)
    second = answers.add(FakeCall(), lambda answer: done.set())
    assert done.wait(60)
    assert first.error is error
    assert second.error is None
    assert first.record.outcome is Outcome.OK
