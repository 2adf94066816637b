"""A genuine openai.OpenAI over our transport."""

import base64
import gc
import gzip
import struct
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import gevent
import httpx2
import openai
import pytest
from gevent.event import Event
from openai import OpenAI
from openai.types.chat import ChatCompletionChunk
from payloads import data_url, png
from scripted import (
    Script,
    ScriptedServer,
    Step,
    chat_chunk,
    chunk,
    json_response,
    last_chunk,
    refusing_port,
    response_head,
    script_header,
    sse,
    stream_script,
    usage_counts,
    write,
)
from scripted.raw import best_of

from llm_locust.client.call import LlmClient
from llm_locust.client.http.exchange import Exchange
from llm_locust.client.http.pool import Pool
from llm_locust.client.http.target import Target
from llm_locust.client.http.timers import Timeouts
from llm_locust.client.openai_sdk import MeasuredTransport, RequestFields
from llm_locust.client.recording import Call
from llm_locust.core.record import Outcome, RequestRecord, TokenSource
from llm_locust.wire.dialects.dialect import Dialect

MESSAGES: Any = [{"role": "user", "content": "hello"}]


class Sdk:
    """An SDK client, and the records of what it did."""

    def __init__(self, url: str, timeouts: Timeouts | None = None) -> None:
        self.records: list[RequestRecord] = []
        self.pool = Pool(Target.parse(url), connect_timeout_s=5)
        self.measured = LlmClient(
            self.pool, sink=lambda answer: self.records.append(answer.record), timeouts=timeouts
        )
        self.http_client = httpx2.Client(
            base_url=self.pool.target.url,
            transport=MeasuredTransport(self.measured, self._new_call),
            trust_env=False,
        )
        self.client = OpenAI(
            base_url=self.pool.target.url, api_key="sk-test", max_retries=0, http_client=self.http_client
        )

    def _new_call(self, request_id: str, endpoint: Dialect | None, fields: RequestFields) -> Call:
        return Call(
            request_id=request_id,
            name="sdk",
            scheduled_ns=time.time_ns(),
            endpoint=endpoint,
            model=fields.model,
            streamed=bool(fields.stream),
            asked_output_tokens=fields.max_completion_tokens or fields.max_tokens,
        )

    def stream(self, script: Script, **of: Any) -> openai.Stream[ChatCompletionChunk]:
        stream = self.chat(script, stream=True, **of)
        assert isinstance(stream, openai.Stream)
        return stream

    def chat(self, script: Script, **of: Any) -> Any:
        return self.client.chat.completions.create(
            model="m", messages=MESSAGES, extra_headers=script_header(script), **of
        )

    def record(self) -> RequestRecord:
        """The only record so far."""
        (record,) = self.records
        return record


pytestmark = pytest.mark.usefixtures("kernel_stamping")


@pytest.fixture
def sdk(server: ScriptedServer) -> Iterator[Sdk]:
    found = Sdk(server.url)
    yield found
    assert found.measured.in_flight == 0
    found.client.close()
    found.pool.close()


def texts(stream: openai.Stream[ChatCompletionChunk]) -> list[str]:
    return [c.choices[0].delta.content or "" for c in stream if c.choices]


# Streams


def test_a_stream_is_iterated_as_its_bytes_come(server: ScriptedServer, sdk: Sdk) -> None:
    script = stream_script(ttft_ms=30, gap_ms=20, tokens=8)

    def lateness_ms() -> float:
        server.forget()
        said = (c for c in sdk.stream(script) if c.choices and c.choices[0].delta.content)
        seen_ns = [time.time_ns() for _ in said]
        written = server.wait_ended(1)[0].write_ns[1:-1]
        late = [(seen - wrote) / 1e6 for seen, wrote in zip(seen_ns, written, strict=True)]
        assert min(late) >= 0
        return max(late)

    assert best_of(5, lateness_ms, 10) < 10, "the first token is there 140 ms before the last is written"


def test_its_record_has_the_times_of_the_server_however_slow_the_reader_is(
    server: ScriptedServer, sdk: Sdk
) -> None:
    script = stream_script(ttft_ms=30, gap_ms=5, tokens=8)

    def worst_ms() -> float:
        server.forget()
        sdk.records.clear()
        for _ in sdk.stream(script):
            until = time.monotonic() + 0.008
            while time.monotonic() < until:
                pass
        record, written = sdk.record(), server.wait_ended(1)[0].write_ns
        assert record.sent_ns is not None
        transit_ns = [record.sent_ns + a - w for a, w in zip(record.arrivals_ns, written[1:-1], strict=True)]
        return float(max(transit_ns)) / 1e6

    assert best_of(5, worst_ms, 0.3) < 0.3


def test_a_streams_record_says_what_the_request_and_the_answer_said(server: ScriptedServer, sdk: Sdk) -> None:
    stream = sdk.stream(
        stream_script(ttft_ms=1, gap_ms=1, tokens=5),
        max_completion_tokens=9,
        stream_options={"include_usage": True},
    )
    assert texts(stream) == ["", "t0 ", "t1 ", "t2 ", "t3 ", "t4 ", ""]
    record = sdk.record()
    assert (record.outcome, record.endpoint, record.streamed) == (Outcome.OK, "chat", True)
    assert (record.input_tokens, record.output_tokens, record.token_source) == (7, 5, TokenSource.USAGE)
    assert (record.model, record.asked_output_tokens, record.finish_reason) == ("m", 9, "stop")
    (served,) = server.wait_ended(1)
    assert served.header("X-Request-Id") == record.request_id
    assert [v for k, v in served.headers if k.lower() == "accept-encoding"] == ["identity"]
    assert served.header("Authorization") == "Bearer sk-test"
    assert served.header("Host") == f"127.0.0.1:{server.port}"
    assert served.json()["max_completion_tokens"] == 9


def test_the_connection_is_used_again_though_the_sdk_stops_at_done(server: ScriptedServer, sdk: Sdk) -> None:
    script = stream_script(ttft_ms=1, gap_ms=1, tokens=2)
    end = script.pop().data or b""
    script += [write(5, end.removesuffix(last_chunk())), write(15, last_chunk())]
    for _ in range(3):
        assert texts(sdk.stream(script))[-1] == ""
    assert [(r.outcome, r.reused) for r in sdk.records] == [
        (Outcome.OK, False),
        (Outcome.OK, True),
        (Outcome.OK, True),
    ]
    assert not any(r.left_open for r in sdk.records)
    assert len(server.connections()) == 1


def test_an_end_that_never_comes_after_done_costs_a_moment_and_the_connection(
    server: ScriptedServer, sdk: Sdk
) -> None:
    script = stream_script(ttft_ms=1, gap_ms=1, tokens=2)
    script[-1] = write(5, (script[-1].data or b"").removesuffix(last_chunk()))
    began = time.monotonic()
    texts(sdk.stream([*script, Step(stall=True)]))
    assert time.monotonic() - began < 20
    assert (sdk.record().outcome, sdk.record().left_open) == (Outcome.OK, True)
    server.wait_closed(1)


def test_a_reader_who_stops_midway_has_cancelled(server: ScriptedServer, sdk: Sdk) -> None:
    three = [*stream_script(ttft_ms=5, gap_ms=10, tokens=3)[:-1], Step(stall=True)]
    with sdk.stream(three) as stream:
        for event in stream:
            if event.choices[0].delta.content == "t2 ":
                break
    record = sdk.record()
    assert (record.outcome, len(record.arrivals_ns)) == (Outcome.CANCELLED, 3)
    assert server.wait_closed(1)[0].closed_by == "client"


def test_a_stream_that_nobody_iterates_is_cancelled_when_it_is_closed(sdk: Sdk) -> None:
    sdk.stream(stream_script(ttft_ms=5, gap_ms=10, tokens=500)).close()
    assert sdk.record().outcome is Outcome.CANCELLED


def test_a_stream_that_is_dropped_is_cancelled(sdk: Sdk) -> None:
    for begun in (False, True):
        stream = sdk.stream(stream_script(ttft_ms=5, gap_ms=10, tokens=500))
        for _ in stream if begun else ():
            break
        del stream
        gc.collect()  # the SDK's objects hold each other
    assert [r.outcome for r in sdk.records] == [Outcome.CANCELLED] * 2


def test_a_killed_user_leaves_a_cancelled_record(server: ScriptedServer, sdk: Sdk) -> None:
    arrived = Event()

    def read() -> None:
        for piece in sdk.stream(stream_script(ttft_ms=5, gap_ms=20, tokens=500)):
            if piece.choices and piece.choices[0].delta.content:
                arrived.set()

    job = gevent.spawn(read)
    assert arrived.wait(30)
    job.kill()
    record = sdk.record()
    assert record.outcome is Outcome.CANCELLED
    assert 1 <= len(record.arrivals_ns) < 500
    server.wait_closed(1)


def test_a_user_who_is_killed_before_any_answer_has_cancelled(server: ScriptedServer, sdk: Sdk) -> None:
    job = gevent.spawn(sdk.stream, [Step(stall=True)])
    with gevent.Timeout(120):
        while not server.connections():
            gevent.sleep(0.01)
    job.kill()
    assert sdk.record().outcome is Outcome.CANCELLED
    server.wait_closed(1)


def test_many_users_at_once_stream_side_by_side(server: ScriptedServer, sdk: Sdk) -> None:
    script = stream_script(ttft_ms=60, gap_ms=2, tokens=5)
    jobs = [gevent.spawn(lambda: texts(sdk.stream(script))) for _ in range(10)]
    gevent.joinall(jobs, timeout=120)
    assert [len(job.get()) for job in jobs] == [7] * 10
    assert [r.outcome for r in sdk.records] == [Outcome.OK] * 10
    assert len(server.connections()) == 10


# Other calls


def test_an_answer_that_is_not_streamed_is_recorded(sdk: Sdk) -> None:
    message = {"role": "assistant", "content": "hello"}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": choices}
    answer = sdk.chat([write(10, json_response(body | {"usage": usage_counts(3, 2)}))])
    assert answer.choices[0].message.content == "hello"
    record = sdk.record()
    assert (record.outcome, record.streamed, record.output_tokens) == (Outcome.OK, False, 2)
    assert len(record.arrivals_ns) == 1
    assert record.arrivals_ns[0] >= 10_000_000


def test_completions_are_recorded(sdk: Sdk) -> None:
    event = {"id": "c", "object": "text_completion", "created": 1, "model": "m"}
    events = [event | {"choices": [{"index": 0, "text": t, "finish_reason": None}]} for t in "ab"]
    events.append(event | {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})
    body = b"".join(map(sse, events)) + sse("[DONE]")
    stream = sdk.client.completions.create(
        model="m",
        prompt="p",
        stream=True,
        extra_headers=script_header([write(0, response_head() + chunk(body) + last_chunk())]),
    )
    assert "".join(c.choices[0].text for c in stream) == "ab"
    record = sdk.record()
    assert (record.outcome, record.endpoint, len(record.arrivals_ns)) == (Outcome.OK, "completions", 2)


def test_responses_are_recorded(sdk: Sdk) -> None:
    response = {"id": "r", "object": "response", "model": "m", "status": "completed", "output": []}
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    place = {"item_id": "i", "output_index": 0, "content_index": 0}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": response | {"status": "in_progress"}},
        {"type": "response.output_text.delta", "delta": "a", **place},
        {"type": "response.output_text.delta", "delta": "b", **place},
        {"type": "response.completed", "response": response | {"usage": usage}},
    ]
    body = b"".join(b"event: %b\n" % str(e["type"]).encode() + sse(e) for e in events)
    stream = sdk.client.responses.create(
        model="m",
        input="hello",
        stream=True,
        extra_headers=script_header([write(0, response_head() + chunk(body) + last_chunk())]),
    )
    assert [e.type for e in stream] == [e["type"] for e in events]
    record = sdk.record()
    assert (record.outcome, record.endpoint, len(record.arrivals_ns)) == (Outcome.OK, "responses", 2)
    assert (record.output_tokens, record.token_source) == (2, TokenSource.USAGE)


def test_the_images_of_a_request_are_counted_in_either_form(sdk: Sdk) -> None:
    url = data_url(png(40, 30))
    of_chat: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    of_responses: Any = [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]
    answer = script_header([write(0, json_response({"object": "response", "output": []}))])
    sdk.client.chat.completions.create(model="m", messages=of_chat, extra_headers=answer)
    for asked in (of_responses, "hello"):
        sdk.client.responses.create(model="m", input=asked, extra_headers=answer)
    assert [(each.images, each.pixels) for each in sdk.records] == [(1, 1200), (1, 1200), (None, None)]


def test_what_generates_nothing_is_recorded_as_other(server: ScriptedServer, sdk: Sdk) -> None:
    models = {"object": "list", "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "o"}]}
    listed = sdk.client.models.list(extra_headers=script_header([write(0, json_response(models))]))
    assert [m.id for m in listed.data] == ["m"]
    record = sdk.record()
    assert (record.outcome, record.endpoint, record.output_tokens) == (Outcome.OK, "other", 0)
    assert (server.log()[0].method, server.log()[0].path) == ("GET", "/v1/models")


# Failures


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (404, openai.NotFoundError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
    ],
)
def test_an_error_status_raises_the_sdks_error_and_is_recorded_once(
    server: ScriptedServer, sdk: Sdk, status: int, error: type[openai.APIStatusError]
) -> None:
    script = [write(0, json_response({"error": {"message": "said why"}}, status))]
    for call in (sdk.stream, sdk.chat):
        with pytest.raises(error, match="said why"):
            call(script)
    assert [(r.outcome, r.status, r.error) for r in sdk.records] == [
        (Outcome.HTTP_ERROR, status, f"HTTP {status}: said why")
    ] * 2
    assert len(server.wait_ended(2)) == 2
    assert len(server.connections()) == 1


def test_an_error_object_inside_a_stream_raises_and_is_recorded(sdk: Sdk) -> None:
    events = sse(chat_chunk("a")) + sse({"error": {"message": "lost a GPU"}})
    with pytest.raises(openai.APIError, match="lost a GPU"):
        texts(sdk.stream([write(0, response_head() + chunk(events) + last_chunk())]))
    record = sdk.record()
    assert (record.outcome, record.error, len(record.arrivals_ns)) == (Outcome.API_ERROR, "lost a GPU", 1)


@pytest.mark.parametrize("fate", [Step(at_ms=20, close=True), Step(at_ms=20, reset=True)])
def test_a_stream_that_breaks_raises_after_the_tokens_that_came(sdk: Sdk, fate: Step) -> None:
    stream = sdk.stream([write(0, response_head() + chunk(sse(chat_chunk("a")))), fate])
    events = iter(stream)
    assert next(events).choices[0].delta.content == "a"
    with pytest.raises(openai.APIConnectionError):
        next(events)
    record = sdk.record()
    assert (record.outcome, len(record.arrivals_ns)) == (Outcome.TRUNCATED, 1)


def test_no_connection_raises_and_is_recorded() -> None:
    with refusing_port() as port:
        sdk = Sdk(f"http://127.0.0.1:{port}")
        with pytest.raises(openai.APIConnectionError) as refused:
            sdk.chat([])
    assert isinstance(refused.value.__cause__, httpx2.ConnectError)
    record = sdk.record()
    assert record.outcome is Outcome.CONNECT_ERROR
    assert f"127.0.0.1:{port}: Connection refused" in (record.error or "")


def test_a_silence_longer_than_our_bound_is_a_timeout(server: ScriptedServer) -> None:
    sdk = Sdk(server.url, Timeouts(first_s=5, gap_s=0.05, total_s=5))
    stream = sdk.stream([write(0, response_head() + chunk(sse(chat_chunk("a")))), Step(stall=True)])
    with pytest.raises(openai.APITimeoutError):
        texts(stream)
    record = sdk.record()
    assert (record.outcome, record.error) == (Outcome.TIMEOUT, "no event for 0.05 s (--timeouts gap=0.05s)")
    assert len(record.arrivals_ns) == 1


@pytest.mark.parametrize(
    "script",
    [[Step(stall=True)], [write(0, response_head() + chunk(sse(chat_chunk("a")))), Step(stall=True)]],
)
def test_the_sdks_own_timeout_tightens_ours(sdk: Sdk, script: Script) -> None:
    began = time.monotonic()
    with pytest.raises(openai.APITimeoutError):
        texts(sdk.stream(script, timeout=0.1))
    assert 0.1 <= time.monotonic() - began < 20
    record = sdk.record()
    assert record.outcome is Outcome.TIMEOUT
    assert "0.1 s" in (record.error or "")


def test_blank_lines_that_the_sdk_has_yet_to_read_do_not_extend_the_limit_on_the_whole(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading them all takes the SDK a minute, and decoding what has come by then some seconds."""
    kept = list[int]()
    monkeypatch.setattr(Exchange, "forget", lambda _, *, beyond: kept.append(beyond))
    sdk = Sdk(server.url, Timeouts(first_s=9, gap_s=9, total_s=1))
    flood = [write(0, chunk(b"\n" * (1 << 20))) for _ in range(40)]
    with pytest.raises(openai.APITimeoutError):
        texts(sdk.stream([write(0, response_head()), *flood, Step(stall=True)]))
    assert kept
    assert max(kept) <= 1 << 20
    record = sdk.record()
    assert (record.outcome, record.error) == (
        Outcome.TIMEOUT,
        "not complete within 1 s (--timeouts total=1s)",
    )


def test_the_transport_speaks_with_its_own_target_only(sdk: Sdk) -> None:
    with pytest.raises(openai.APIConnectionError) as refused:
        sdk.client.with_options(base_url="http://127.0.0.1:9/v1").models.list()
    assert "is for http://127.0.0.1" in str(refused.value.__cause__)
    assert sdk.records == []


# Hostile servers


def test_a_gzip_bomb_is_refused_at_its_head(server: ScriptedServer) -> None:
    bomb = gzip.compress(bytes(64 << 20))
    head = response_head(
        headers={"Content-Encoding": "gzip"}, content_length=len(bomb), content_type="application/json"
    )
    sdk = Sdk(server.url + "/v1")
    with pytest.raises(openai.APIConnectionError):
        sdk.client.chat.completions.create(
            model="m", messages=MESSAGES, extra_headers=script_header([write(0, head + bomb[:16_000])])
        )
    assert [(r.outcome, r.error) for r in sdk.records] == [
        (Outcome.INVALID, "the answer is gzip-encoded, which the request did not allow")
    ]


MANY = b'{"choices":[{"delta":{"tool_calls":[' + b"{}," * 30_000 + b"{}]}}]}"

TOO_MUCH = "more than 20,000 JSON objects and lists in one document"


@pytest.mark.parametrize("streamed", [True, False])
def test_what_would_hold_the_loop_in_the_sdk_is_not_passed_on(streamed: bool, server: ScriptedServer) -> None:
    """The SDK took 85 s and 4.6 GB for 7 MiB of such a document."""
    kind = "text/event-stream" if streamed else "application/json"
    body = b"data: %b\n\n" % MANY if streamed else MANY
    script = [write(0, response_head(content_type=kind) + chunk(body) + last_chunk())]
    sdk = Sdk(server.url + "/v1")
    with pytest.raises(openai.APIConnectionError):
        list(sdk.chat(script, stream=streamed))
    assert (sdk.record().outcome, sdk.record().error) == (Outcome.INVALID, TOO_MUCH)


def test_nor_are_too_many_values(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_locust.client.decoder._MAX_PASSED_VALUES", 1000)
    few, many = (script_header([write(0, json_response([1] * (n + 1)))]) for n in (1000, 1001))
    assert sdk.http_client.get("models", headers=few).json() == [1] * 1001
    with pytest.raises(httpx2.TransportError):
        sdk.http_client.get("models", headers=many)
    assert [(r.outcome, r.error) for r in sdk.records] == [
        (Outcome.OK, None),
        (Outcome.INVALID, "more than 1,000 JSON values"),
    ]


def test_a_body_that_is_no_request_is_sent_and_recorded_without_its_fields(sdk: Sdk) -> None:
    headers = script_header([write(0, json_response({"object": "list"}))])
    sdk.http_client.post("chat/completions", content=b'{"model":', headers=headers)
    record = sdk.record()
    assert (record.endpoint, record.model, record.asked_output_tokens) == ("chat", "", None)


def test_nor_is_it_of_an_api_that_is_not_read_here(server: ScriptedServer) -> None:
    script = [write(0, response_head(content_type="application/json") + chunk(MANY) + last_chunk())]
    sdk = Sdk(server.url + "/v1")
    with pytest.raises(openai.APIConnectionError):
        sdk.client.images.generate(model="m", prompt="x", extra_headers=script_header(script))
    assert (sdk.record().outcome, sdk.record().error) == (Outcome.INVALID, TOO_MUCH)


@pytest.mark.parametrize(
    ("vectors", "outcome"), [(2, Outcome.OK), (1, Outcome.INVALID)], ids=["whole", "one is missing"]
)
def test_embeddings_are_recorded_as_such_and_held_against_what_was_asked_for(
    server: ScriptedServer, sdk: Sdk, vectors: int, outcome: Outcome
) -> None:
    packed = base64.b64encode(struct.pack("<2f", 0.5, -1)).decode()
    answer = {
        "object": "list",
        "model": "m",
        "data": [{"object": "embedding", "index": i, "embedding": packed} for i in range(vectors)],
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
    }
    sdk.client.embeddings.create(
        model="m", input=["one", "two"], extra_headers=script_header([write(0, json_response(answer))])
    )
    record = sdk.record()
    assert (record.endpoint, record.outcome, record.inputs) == ("embeddings", outcome, 2)
    assert (record.input_tokens, record.output_tokens, record.streamed) == (5, None, False)


def test_other_greenlets_run_while_the_sdk_reads_many_events_at_once(server: ScriptedServer) -> None:
    events = b"".join(sse(chat_chunk("t")) for _ in range(1_500)) + sse(chat_chunk(finish_reason="stop"))
    script = [write(0, response_head() + chunk(events + sse("[DONE]")) + last_chunk())]
    sdk, turns = Sdk(server.url + "/v1"), 0

    def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            gevent.sleep(0)

    other = gevent.spawn(turn)
    between = Counter(turns for _ in sdk.stream(script))
    other.kill()
    assert sdk.record().outcome is Outcome.OK
    assert max(between.values()) <= 300  # of 1,500, in 5 ms or 8 KiB


def test_a_packed_error_is_not_unpacked(server: ScriptedServer) -> None:
    bomb = gzip.compress(bytes(8 << 20))
    head = response_head(
        500, {"Content-Encoding": "gzip"}, content_length=len(bomb), content_type="application/json"
    )
    sdk = Sdk(server.url + "/v1")
    with pytest.raises(openai.InternalServerError) as caught:
        sdk.client.chat.completions.create(
            model="m", messages=MESSAGES, extra_headers=script_header([write(0, head + bomb)])
        )
    assert caught.value.response.content == bomb
    assert [(r.outcome, r.status) for r in sdk.records] == [(Outcome.HTTP_ERROR, 500)]
