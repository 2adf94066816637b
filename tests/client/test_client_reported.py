"""Answers as servers were reported to send them, and what is right about each, with its reason.

Tokens come every 2 ms. Each answer is sent over a connection, then read again with a piece for each byte. The
table of :mod:`test_reported` has them beside other troubles.
"""

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from calls import Caller, caller
from judged_answers import judged
from scripted import (
    ScriptedServer,
    Step,
    chat_chunk,
    chunk,
    last_chunk,
    response_head,
    sse,
    usage_counts,
    write,
)

from llm_locust.client import decoder
from llm_locust.client.http import timers
from llm_locust.core.record import Doubt, Outcome, TokenSource
from llm_locust.wire.dialects.chat import CHAT
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.messages import MESSAGES
from llm_locust.wire.dialects.responses import RESPONSES

DONE = sse("[DONE]")
ROLE = sse(chat_chunk("", role="assistant"))
STOP = sse(chat_chunk(finish_reason="stop"))
EVENT_STREAM = response_head()


@dataclass(frozen=True, slots=True)
class Right:
    """What is right about an answer. ``words`` are in its error, ``fields`` are others of its record."""

    outcome: Outcome = Outcome.OK
    words: str = ""
    events: int | None = None
    output: int | None = None
    fields: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """``parts`` are the pieces of the body, and a number is a script's last step: nothing for ever."""

    parts: list[bytes]
    right: Right
    head: bytes = EVENT_STREAM
    dialect: Dialect = CHAT
    stays_open: bool = False


def words(n: int, text: str = " tok", **of: Any) -> list[bytes]:
    return [sse(chat_chunk(text, **of)) for _ in range(n)]


def delta(**fields: Any) -> bytes:
    return sse({"choices": [{"index": 0, "delta": fields, "finish_reason": None}]})


def used(prompt: int, made: int, **details: Any) -> bytes:
    return sse(chat_chunk(usage=usage_counts(prompt, made, **details)))


def ended(reason: Any, made: int | None = None) -> bytes:
    event = chat_chunk(finish_reason=reason)
    return sse(event if made is None else event | {"usage": usage_counts(9, made)})


def failed(said: str, events: int = 0) -> Right:
    return Right(Outcome.API_ERROR, said, events)


def named(name: str, **data: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode({"type": name, **data}))


LLAMA = b'error: {"code":500,"message":"context is full, shift is off","type":"server_error"}\n\n'
BARE = b'{"error":{"code":400,"message":"6009 tokens exceed the context of 4096"}}'
PRIVATE = {"id": "x", "object": "chat.completion.chunk", "sla_metrics": {"ttft_ms": 10}}
HTML = response_head(content_type="text/html", chunked=False)
PACKED = gzip.compress(b'{"error":{"message":"rate limit reached"}}')

by_usage = ("token_source", TokenSource.USAGE)
by_events = ("token_source", TokenSource.EVENTS)

#: Errors and ends inside of a stream with status 200.
ENDS = {
    # Nobody has the rest of an answer that its server gave up, however politely it ends.
    "error as a field": Case([ROLE, *words(5), LLAMA, DONE], failed("context is full", 5)),
    "before a token": Case([LLAMA, DONE], failed("context is full, shift is off")),
    "in a comment": Case(
        [ROLE, *words(5), b"event: error\n: the worker was lost\n\n"], failed("the worker was lost", 5)
    ),
    "bare": Case([BARE], failed("6009 tokens exceed")),
    "bare, done": Case([BARE + b"\n\n", DONE], failed("6009 tokens exceed")),
    "bare, pretty": Case(
        [ROLE, *words(2), msgspec.json.format(BARE) + b"\n\n", DONE], failed("6009 tokens exceed", 2)
    ),
    "network": Case([ROLE, *words(4), ended("network_error", 4), DONE], failed("network_error", 4)),
    "overload": Case(
        [ROLE, *words(4), ended("insufficient_system_resource", 4), DONE],
        failed("insufficient_system_resource", 4),
    ),
    "upper case": Case([ROLE, *words(4), ended("ERROR", 4), DONE], failed("ERROR", 4)),
    "abort object": Case(
        [ROLE, *words(4), ended({"type": "abort", "message": "out of memory"}), DONE],
        failed("out of memory", 4),
    ),
    "object at the top": Case(
        [ROLE, *words(2), sse({"error": {"message": "busy", "code": 503}})], failed("busy", 2)
    ),
    "LiteLLM": Case(
        [ROLE, *words(2), sse({"error": {"message": "litellm.Timeout", "type": None, "code": "408"}}), DONE],
        failed("litellm.Timeout", 2),
    ),
    "TGI": Case(
        [ROLE, *words(2), b'event:error\ndata:{"error":"overloaded","error_type":"overloaded"}\n\n'],
        failed("overloaded", 2),
    ),
    # A reason that is an empty text is none; the end was said, and the usage tells that all tokens came.
    "empty reasons": Case(
        [ROLE, *[sse(chat_chunk(" w", finish_reason="")) for _ in range(4)], used(9, 4), DONE],
        Right(events=4, output=4, fields=(("doubt", Doubt.NO_FINISH_REASON), by_usage)),
    ),
    # A page of a gateway is no answer; type, status and page say what it is.
    "a page": Case(
        [b"<html><title>Log in</title></html>"], Right(Outcome.INVALID, "text/html: '<html>"), head=HTML
    ),
    # Reason, usage and end are there: what the connection does is the connection's.
    "left open": Case(
        [ROLE, *words(6), STOP, used(20, 6), DONE],
        Right(events=6, output=6, fields=(("left_open", True),)),
        stays_open=True,
    ),
    # Data of the provider's own, wherever it stands.
    "private chunk": Case([ROLE, *words(4), STOP, used(9, 4), sse(PRIVATE), DONE], Right(events=4, output=4)),
    "private, null": Case(
        [sse(PRIVATE | {"choices": None}), *words(4), STOP, used(9, 4), DONE], Right(events=4, output=4)
    ),
    "named ping": Case([ROLE, named("ping"), *words(4), STOP, used(9, 4), DONE], Right(events=4, output=4)),
}

#: Counts, reasoning, framing.
COUNTS = {
    "choices empty": Case(
        [ROLE, *words(4), STOP, used(9, 4), DONE], Right(events=4, output=4, fields=(by_usage,))
    ),
    "no choices": Case(
        [ROLE, *words(4), STOP, sse({"usage": usage_counts(9, 4)}), DONE],
        Right(events=4, output=4, fields=(("input_tokens", 9), by_usage)),
    ),
    # The server counted, wherever it wrote the counts.
    "Moonshot": Case(
        [
            ROLE,
            *words(5, " a b c"),
            sse(
                {
                    "choices": [
                        {"index": 0, "delta": {}, "finish_reason": "stop", "usage": usage_counts(19, 15)}
                    ]
                }
            ),
            DONE,
        ],
        Right(events=5, output=15, fields=(("input_tokens", 19), by_usage)),
    ),
    "Groq": Case(
        [
            ROLE,
            *words(5, " a b c"),
            sse(chat_chunk(finish_reason="stop") | {"x_groq": {"id": "r", "usage": usage_counts(9, 15)}}),
            DONE,
        ],
        Right(events=5, output=15, fields=(("input_tokens", 9), by_usage)),
    ),
    # The first token is the first piece of reasoning, under whatever name.
    "reasoning_details": Case(
        [
            ROLE,
            *[delta(content="", reasoning_details=[{"type": "reasoning.text", "text": " hm"}])] * 10,
            *words(5),
            STOP,
            used(20, 15, completion_tokens_details={"reasoning_tokens": 10}),
            DONE,
        ],
        Right(events=15, output=15, fields=(("unread", None), ("hidden_tokens", 0))),
    ),
    "thinking": Case(
        [ROLE, *[delta(thinking=" hm")] * 10, *words(4), STOP, used(9, 14), DONE],
        Right(events=14, output=14, fields=(("unread", None),)),
    ),
    "both names": Case(
        [ROLE, *[delta(reasoning=" hm", reasoning_content=" hm")] * 3, *words(2), STOP, used(9, 5), DONE],
        Right(events=5, output=5),
    ),
    "Mistral": Case(
        [
            ROLE,
            *[delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": " hm"}]}])] * 3,
            *words(2),
            STOP,
            used(9, 5),
            DONE,
        ],
        Right(events=5, output=5),
    ),
    # No zero, null or part of usage takes a count away.
    "zeros first": Case(
        [ROLE, *words(4, " a b", usage=usage_counts(0, 0)), ended("stop", 8), DONE], Right(events=4, output=8)
    ),
    "null later": Case(
        [ROLE, *words(4, " a b"), ended("stop", 8), sse(chat_chunk() | {"choices": [], "usage": None}), DONE],
        Right(events=4, output=8),
    ),
    "zeros after": Case(
        [ROLE, *words(4, " a b"), ended("stop", 8), used(0, 0), DONE],
        Right(events=4, output=8, fields=(("input_tokens", 9),)),
    ),
    "a part after": Case(
        [
            ROLE,
            *words(4, " a b"),
            ended("stop", 8),
            sse({"choices": [], "usage": {"prompt_tokens": 9}}),
            DONE,
        ],
        Right(events=4, output=8, fields=(("input_tokens", 9),)),
    ),
    # The server says which tokens an event brought.
    "20 at first": Case(
        [
            ROLE,
            sse(chat_chunk(" w" * 20, usage=usage_counts(9, 20))),
            *[sse(chat_chunk(" w", usage=usage_counts(9, 21 + i))) for i in range(10)],
            ended("stop", 30),
            DONE,
        ],
        Right(events=11, output=30, fields=(("opening_tokens", 20), ("came_tokens", 30))),
    ),
    # Framing is HTTP's and the event stream's, not the API's.
    "plain text": Case(
        [*words(3), STOP, used(9, 3), DONE],
        Right(events=3, output=3),
        head=response_head(content_type="text/plain"),
    ),
    "no type": Case(
        [*words(3), STOP, used(9, 3), DONE],
        Right(events=3, output=3),
        head=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    ),
    "CRLF, no blank, ids": Case(
        [
            b"\xef\xbb\xbfretry: 3\r\n\r\n",
            *[b"id: 7\r\n" + each.replace(b"\n", b"\r\n").replace(b"data: ", b"data:") for each in words(3)],
            STOP,
            used(9, 3),
            DONE,
        ],
        Right(events=3, output=3),
    ),
    "labelled JSON": Case(
        [*words(3), STOP, used(9, 3), DONE],
        Right(events=3, output=3),
        head=response_head(201, {"Content-Encoding": "none"}, content_type="application/json"),
    ),
    "responses": Case(
        [
            named("response.created", response={"status": "in_progress"}),
            *[named("response.reasoning_text.delta", item_id="r", delta=" hm")] * 2,
            *[named("response.output_text.delta", item_id="i", delta=" w")] * 3,
            named(
                "response.completed",
                response={"status": "completed", "usage": {"input_tokens": 9, "output_tokens": 5}},
            ),
        ],
        Right(events=5, output=5, fields=(("input_tokens", 9),)),
        dialect=RESPONSES,
    ),
    "responses, failed": Case(
        [
            named("response.output_text.delta", item_id="i", delta=" w"),
            named("response.failed", response={"status": "failed", "error": {"message": "no room"}}),
        ],
        failed("no room", 1),
        dialect=RESPONSES,
    ),
    "messages, overloaded": Case(
        [
            named("content_block_delta", index=0, delta={"type": "text_delta", "text": "hi"}),
            named("error", error={"type": "overloaded_error", "message": "Overloaded"}),
        ],
        failed("Overloaded", 1),
        dialect=MESSAGES,
    ),
    # What was packed unasked is unpacked to be read, or refused in clear words.
    "a packed error": Case(
        [PACKED],
        Right(Outcome.HTTP_ERROR, "HTTP 429: rate limit reached"),
        head=response_head(
            429,
            {"Content-Encoding": "gzip", "Connection": "close"},
            chunked=False,
            content_type="application/json",
        ),
    ),
    "a packed answer": Case(
        [gzip.compress(b"".join(words(3)) + STOP + DONE)],
        Right(Outcome.INVALID, "the answer is gzip-encoded, which the request did not allow"),
        head=response_head(headers={"Content-Encoding": "gzip"}),
    ),
}

FILTER = {"hate": {"filtered": False, "severity": "safe"}}
FOUR = words(4)


def choice(reason: Any = None, **of: Any) -> bytes:
    """A chunk with an empty delta and these fields beside it."""
    return sse({"choices": [{"index": 0, "delta": {}, "finish_reason": reason, **of}]})


def whole(reason: Any = "stop", **of: Any) -> list[bytes]:
    """The last chunk of four tokens, with these fields beside its choices."""
    return [sse(chat_chunk(finish_reason=reason) | {"usage": usage_counts(9, 4)} | of), DONE]


ALL = Right(events=4, output=4, fields=(("doubt", None), ("unread", None), by_usage))

#: What other servers and gateways were reported to send.
OTHERS = {
    # Azure's filter has chunks of its own, before the answer and after its end, without a delta.
    "Azure, filter": Case(
        [
            sse({"choices": [], "prompt_filter_results": [{"content_filter_results": FILTER}]}),
            *FOUR,
            STOP,
            sse({"choices": [{"index": 0, "finish_reason": None, "content_filter_results": FILTER}]}),
            used(9, 4),
            DONE,
        ],
        ALL,
    ),
    "Azure, null delta": Case(
        [*FOUR, sse({"choices": [{"index": 0, "delta": None, "finish_reason": "stop"}]}), used(9, 4), DONE],
        ALL,
    ),
    # A status cannot be taken back: the error stands in the stream.
    "SGLang, too long": Case(
        [sse({"error": {"object": "error", "message": "Input length (9) exceeds", "code": 400}}), DONE],
        failed("Input length (9) exceeds"),
    ),
    "vLLM, older": Case(
        [*FOUR, sse({"object": "error", "message": "engine died", "code": 500}), DONE],
        failed("engine died", 4),
    ),
    "FastAPI": Case([*FOUR, sse({"detail": "Internal failure"})], failed("Internal failure", 4)),
    "DashScope": Case(
        [*FOUR, sse({"code": "InternalError.Algo", "message": "inference failed", "request_id": "r"})],
        failed("inference failed", 4),
    ),
    "Baidu": Case([sse({"error_code": 336100, "error_msg": "try again"})], failed("try again")),
    "MiniMax": Case(
        [sse({"choices": None, "base_resp": {"status_code": 1002, "status_msg": "rate limit"}})],
        failed("rate limit"),
    ),
    "MiniMax, whole": Case(
        [*FOUR, *whole(base_resp={"status_code": 1008, "status_msg": "insufficient balance"})],
        failed("insufficient balance", 4),
    ),
    "MiniMax, good": Case([*FOUR, *whole(base_resp={"status_code": 0, "status_msg": "success"})], ALL),
    "OpenRouter": Case(
        [
            b": OPENROUTER PROCESSING\n\n",
            *FOUR,
            sse(chat_chunk("", finish_reason="error") | {"error": {"code": 502, "message": "Provider gone"}}),
        ],
        failed("Provider gone", 4),
    ),
    # The gateway made a good reason of the server's own.
    "native reason": Case(
        [*FOUR, choice("stop", native_finish_reason="MALFORMED_FUNCTION_CALL"), DONE],
        failed("MALFORMED_FUNCTION_CALL", 4),
    ),
    "native end": Case([*FOUR, choice("stop", native_finish_reason="end_turn"), used(9, 4), DONE], ALL),
    # An error that says nothing is none.
    "empty errors": Case(
        [sse(chat_chunk(" w") | {"error": {}})] * 4 + whole(error={"code": 0, "message": ""}), ALL
    ),
    "good codes": Case(
        [sse(chat_chunk(" w") | {"code": 200, "message": "ok"})] * 4 + whole(code=0, msg="ok"), ALL
    ),
    # No reason while the answer goes on says that it is over.
    "a reason in each": Case([*words(4, finish_reason="stop"), used(9, 4), DONE], ALL),
    "unspecified": Case(words(4, finish_reason="FINISH_REASON_UNSPECIFIED") + whole("STOP"), ALL),
    "a filter": Case([*FOUR, *whole("sensitive")], Right(fields=(("doubt", Doubt.CONTENT_FILTER),))),
    "a guardrail": Case(
        [*FOUR, *whole("guardrail_intervened")], Right(fields=(("doubt", Doubt.CONTENT_FILTER),))
    ),
    # Counts have the names of the server behind a gateway.
    "Bedrock": Case(
        [*FOUR, STOP, sse({"choices": [], "usage": {"inputTokens": 9, "outputTokens": 4}}), DONE], ALL
    ),
    "Vertex": Case(
        [
            *FOUR,
            sse(
                chat_chunk(finish_reason="stop")
                | {"usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 4}}
            ),
            DONE,
        ],
        ALL,
    ),
    "counts as text": Case(
        [*FOUR, STOP, sse({"choices": [], "usage": {"prompt_tokens": "9", "completion_tokens": "4"}}), DONE],
        ALL,
    ),
    # A field of padding is no text.
    "padding": Case([sse(chat_chunk(" w") | {"obfuscation": "aBcD"})] * 4 + whole(obfuscation="xy"), ALL),
    "padding alone": Case([sse(chat_chunk() | {"obfuscation": "aBcD"})] * 4 + FOUR + whole(), ALL),
    # A whole call without an index, as Gemini sends it, is an answer.
    "Gemini, call": Case(
        [
            delta(tool_calls=[{"index": None, "id": "", "function": {"name": "f", "arguments": '{"a": 1}'}}]),
            delta(extra_content={"google": {"thought_signature": "abc"}}),
            *whole(),
        ],
        Right(events=1, output=4),
    ),
    # The end is said in other words, after all has come.
    "quoted end": Case([*FOUR, *whole()[:1], sse('"[DONE]"')], ALL),
    "bare end": Case([*FOUR, *whole()[:1], sse("DONE")], ALL),
    # Each index is the number of a token: there is one choice.
    "TGI before 1.4.4": Case(
        [
            *[sse({"choices": [{"index": i, "delta": {"content": " w"}}]}) for i in range(1, 5)],
            sse({"choices": [{"index": 5, "delta": {"content": ""}, "finish_reason": "eos_token"}]}),
        ],
        Right(events=4, output=4, fields=(("doubt", None), by_events)),
    ),
    # Cohere counts what its model read and wrote, and what it bills.
    "Cohere": Case(
        [
            *FOUR,
            sse(
                chat_chunk(finish_reason="COMPLETE")
                | {
                    "meta": {
                        "billed_units": {"input_tokens": 2, "output_tokens": 4},
                        "tokens": {"input_tokens": 9, "output_tokens": 4},
                    }
                }
            ),
        ],
        Right(events=4, output=4, fields=(("input_tokens", 9), by_usage)),
    ),
    # The end was said a moment too early for the counts.
    "usage after the end": Case(
        [*words(2, " a b"), STOP, DONE, used(9, 4)],
        Right(events=2, output=4, fields=(("input_tokens", 9), by_usage)),
    ),
    # Nothing was read: it is said what there was.
    "text elsewhere": Case(
        [sse({"choices": [{"index": 0, "message": {"content": " w"}}]})] * 4 + whole(),
        Right(Outcome.EMPTY, 'text in "message", which is not read'),
    ),
    "no blank lines": Case(
        [b"".join([*FOUR, STOP]).replace(b"\n\n", b"\n")],
        Right(Outcome.TRUNCATED, "no blank line ends its first event, '{"),
    ),
}

CASES = ENDS | COUNTS | OTHERS
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@pytest.fixture
def ask(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Caller]:
    monkeypatch.setattr(timers, "_LOOK_S", 0.05)
    monkeypatch.setattr(decoder, "_OVER_NS", 1_000_000)
    with caller(server.url) as found:
        yield found


def script(case: Case) -> list[Step]:
    chunked = b"chunked" in case.head
    body = [write(2 * i, chunk(part) if chunked else part) for i, part in enumerate(case.parts)]
    if case.stays_open:
        end = [Step(stall=True)]
    else:
        end = [write(None, last_chunk())] if chunked else [Step(at_ms=50, close=True)]
    return [write(0, case.head), *body, *end]


@each_case
def test_a_reported_answer_has_its_outcome_its_counts_and_the_servers_words(ask: Caller, case: Case) -> None:
    record = ask.ask(script(case), endpoint=case.dialect).record
    right = case.right
    assert record.outcome is right.outcome, record.error
    assert right.words in (record.error or "")
    if right.outcome is Outcome.OK:
        assert record.error is None
    if right.events is not None:
        assert len(record.arrivals_ns) == right.events
    if right.output is not None:
        assert record.output_tokens == right.output
    assert {name: getattr(record, name) for name, _ in right.fields} == dict(right.fields)
    assert record.left_open == case.stays_open


@pytest.mark.parametrize(
    "case",
    [c for c in CASES.values() if c.head == EVENT_STREAM],
    ids=[n for n, c in CASES.items() if c.head == EVENT_STREAM],
)
def test_a_split_at_every_byte_changes_nothing(case: Case) -> None:
    stream = b"".join(case.parts)
    whole = judged(stream, case.dialect)
    split = judged([stream[i : i + 1] for i in range(len(stream))], case.dialect)
    assert (split.outcome, split.why, split.reply) == (whole.outcome, whole.why, whole.reply)
