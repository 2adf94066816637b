"""Long answers: read whole, recorded within bounds, and no hold of the loop."""

import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from threading import get_ident
from typing import Any

import gevent
import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from calls import HEAD, caller, stop, token
from holding import cpu_s, is_short
from reads import read as one_read
from record_strategies import record
from scripted import ScriptedServer, Step, chunk, last_chunk, scripted_server, write

from llm_locust.client.decoder import BodyDecoder
from llm_locust.client.http.exchange import Exchange
from llm_locust.client.http.timers import DECODE_BUDGET
from llm_locust.core.batch import BatchError, RecordBatch
from llm_locust.core.manifest import Manifest, WorkerFacts
from llm_locust.core.record import MAX_ARRIVALS, Outcome, RequestRecord, TokenSource
from llm_locust.live.counting import LiveCounts
from llm_locust.live.state import LiveRun
from llm_locust.report.inputs import open_source
from llm_locust.store import (
    FRAMES_FILE,
    REQUESTS_FILE,
    FrameHeader,
    StoreError,
    create_run_dir,
    encode_frame,
    open_requests,
    read_manifest,
    read_requests,
    write_manifest,
    write_requests,
)
from llm_locust.store.requests import compact
from llm_locust.swarm.channel.shipping import BATCH_ARRIVALS, Recorder
from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.dialect import Dialect, read_body
from llm_locust.wire.dialects.responses import RESPONSES

# --- One request with more token arrivals than any answer has: 30 million of them took 3 GB in a report


def long(number: int, arrivals: int) -> RequestRecord:
    return replace(record(number), arrivals_ns=np.arange(arrivals, dtype=np.int64))


def batch(*arrivals: int) -> RecordBatch:
    return RecordBatch.from_records([long(n, each) for n, each in enumerate(arrivals)], "w1")


def facts(rows: int) -> Manifest:
    worker = WorkerFacts(id="w1", index=0, announced=rows, received=rows, received_seqs="0-1")
    return Manifest(id="run", name="x", started_ns=1, ended_ns=9, workers=[worker])


def test_as_many_arrivals_as_the_client_takes_are_read() -> None:
    data = batch(MAX_ARRIVALS, 0).to_bytes()
    assert len(RecordBatch.from_bytes(data).arrivals().values) == MAX_ARRIVALS


def test_one_more_is_no_batch() -> None:
    with pytest.raises(BatchError, match="a request has 200,001 values in arrivals_ns, at most 200,000"):
        RecordBatch.from_bytes(batch(3, MAX_ARRIVALS + 1).to_bytes())


def test_a_batch_with_such_a_request_is_left_out_named_and_its_records_are_missing(tmp_path: Path) -> None:
    run = create_run_dir(tmp_path / "run")
    good, bad = batch(3, 4), batch(1, 10 * MAX_ARRIVALS)
    frames = [
        encode_frame(FrameHeader("run", "w1", seq, 2), each.to_bytes())
        for seq, each in enumerate((good, bad))
    ]
    (run / FRAMES_FILE).write_bytes(b"".join(frames))
    write_manifest(run, facts(4))
    assert compact(run) == 2
    manifest = read_manifest(run)
    assert (manifest.records_lost, manifest.complete) == (2, False)
    (line,) = manifest.torn
    assert "number 1 of worker w1 with 2 records" in line


def test_a_file_with_3_million_arrivals_in_a_row_is_refused_before_they_are_decoded(tmp_path: Path) -> None:
    run = create_run_dir(tmp_path / "run")
    write_manifest(run, facts(1))
    write_requests(run / REQUESTS_FILE, [batch(3_000_000)])
    for read in (read_requests, lambda path: list(open_requests(path).parts())):
        with pytest.raises(StoreError, match=r"3,000,0\d\d values in 1 rows"):
            read(run)
    with open_source([run], skip_bad=True) as source:
        assert (len(source.requests), source.manifest.records_lost) == (0, 1)


def test_a_row_that_hides_among_others_is_refused_too(tmp_path: Path) -> None:
    run = create_run_dir(tmp_path / "run")
    write_requests(run / REQUESTS_FILE, [batch(MAX_ARRIVALS + 1, *[0] * 50)])
    with pytest.raises(StoreError, match="200,001 values in arrivals_ns"):
        list(open_requests(run).parts())


def test_row_groups_are_closed_at_a_number_of_arrivals(tmp_path: Path) -> None:
    path = tmp_path / REQUESTS_FILE
    write_requests(path, [batch(*[MAX_ARRIVALS] * 8)] * 8)
    metadata = pq.read_metadata(path)
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [24, 24, 16]


def test_long_answers_close_a_batch_before_its_rows_do() -> None:
    headers: list[FrameHeader] = []
    recorder = Recorder("run", "w1", lambda header, _: headers.append(header))
    for number in range(12):
        recorder.add(long(number, BATCH_ARRIVALS // 6))
    recorder.close_batch()
    assert [header.rows for header in headers] == [6, 6]
    assert recorder.finished == 12


@pytest.mark.parametrize("in_one_read", [True, False])
def test_the_client_records_no_more_than_the_bound(
    in_one_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_locust.client.decoder.MAX_ARRIVALS", 2_000)
    event = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    body = event * 2_500
    exchange = Exchange(1 << 30)
    decoder = BodyDecoder(exchange, CHAT, streamed=True)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body)
    step = len(body) if in_one_read else 1 << 13
    for at, data in enumerate((head, *(body[i : i + step] for i in range(0, len(body), step)))):
        exchange.on_reads(*one_read(data, at))
    reply = decoder.finish()
    assert len(reply.token_ends) == 2_000
    assert decoder.fault == "the stream has more than 2,000 events"


# --- Long answers with log probabilities are read whole, and hold the loop no longer than others may


TOKENS, TOP = 4_000, 20
WORDS = ("The", " quick", " international", "\n", "’s", " {", '"id":', ":", "é", " tok", "中", " \\")
USAGE = {"prompt_tokens": 12, "completion_tokens": TOKENS, "total_tokens": TOKENS + 12}


def logprob(draw: random.Random) -> dict[str, Any]:
    word = draw.choice(WORDS)
    return {"token": word, "logprob": -20 * draw.random(), "bytes": list(word.encode())}


@cache
def logprobs(tokens: int) -> list[dict[str, Any]]:
    """What a server sends for each token with ``logprobs=true`` and ``top_logprobs=20``."""
    draw = random.Random(7)
    return [{**logprob(draw), "top_logprobs": [logprob(draw) for _ in range(TOP)]} for _ in range(tokens)]


def encoded(value: Any) -> bytes:
    return msgspec.json.encode(value)


def whole_answer(*messages: dict[str, Any], tokens: int = TOKENS) -> bytes:
    """An answer with these messages, or one that says the tokens; the first has the log probabilities."""
    content = logprobs(tokens)
    said = {"role": "assistant", "content": "".join(item["token"] for item in content)}
    choices: list[dict[str, Any]] = [
        {"index": index, "message": message, "finish_reason": "stop"}
        for index, message in enumerate(messages or [said])
    ]
    choices[0]["logprobs"] = {"content": []}
    answer = {"object": "chat.completion", "model": "m", "choices": choices, "usage": USAGE}
    without = json.dumps(
        answer, separators=(",", ":"), ensure_ascii=False
    ).encode()  # has integers of any size
    return without.replace(b'"content":[]', b'"content":' + encoded(content), 1)


def stream(tokens: int = TOKENS, together: int = 1) -> list[bytes]:
    """Events, with some tokens in each."""
    content = logprobs(tokens)
    groups = [content[at : at + together] for at in range(0, tokens, together)]
    choices: list[dict[str, Any]] = [
        {"delta": {"content": "".join(item["token"] for item in group)}, "logprobs": {"content": group}}
        for group in groups
    ]
    choices.append({"delta": {}, "finish_reason": "stop"})
    events = [{"model": "m", "choices": [{"index": 0, **choice}]} for choice in choices]
    return [b"data: " + encoded(event) + b"\n\n" for event in [*events, {"choices": [], "usage": USAGE}]]


def response(tokens: int) -> dict[str, Any]:
    """A response object of the responses API."""
    content = logprobs(tokens)
    text = "".join(item["token"] for item in content)
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": content}
    item = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    usage = {"input_tokens": 12, "output_tokens": tokens, "total_tokens": tokens + 12}
    return {"object": "response", "status": "completed", "model": "m", "output": [item], "usage": usage}


@cache
def response_events(tokens: int) -> list[tuple[bytes, bytes]]:
    """Its events, each with its type. The last four repeat the whole answer."""
    whole = response(tokens)
    (item,) = whole["output"]
    (part,) = item["content"]
    events: list[dict[str, Any]] = [
        {"logprobs": [at], "delta": at["token"], "type": "response.output_text.delta"}
        for at in part["logprobs"]
    ]
    events.append({**part, "item_id": "m", "type": "response.output_text.done"})
    events.append({"part": part, "item_id": "m", "type": "response.content_part.done"})
    events.append({"item": item, "type": "response.output_item.done"})
    events.append({"type": "response.completed", "response": whole})
    return [(event["type"].encode(), b"data: " + encoded(event) + b"\n\n") for event in events]


def response_stream(tokens: int, named: bool) -> list[bytes]:
    return [b"event: %b\n" % of * named + data for of, data in response_events(tokens)]


def completion(tokens: int, alternatives: int) -> bytes:
    """A legacy completion, whose log probabilities have tokens as names."""
    draw = random.Random(7)
    said = [draw.choice(WORDS) for _ in range(tokens)]
    tops = [{f" w{draw.random():.4f}": -20 * draw.random() for _ in range(alternatives)} for _ in said]
    probs = [-draw.random() for _ in said]
    inside = {"tokens": said, "token_logprobs": probs, "top_logprobs": tops, "text_offset": [9] * tokens}
    choice = {"index": 0, "text": "".join(said), "logprobs": inside, "finish_reason": "length"}
    return encoded({"object": "text_completion", "model": "m", "choices": [choice], "usage": USAGE})


@pytest.fixture(scope="module", autouse=True)
def serving() -> Iterator[None]:
    """One server for all tests."""
    with scripted_server() as server:
        _SERVING.append(server)
        yield
    _SERVING.clear()


_SERVING: list[ScriptedServer] = []


def asked(body: list[bytes], content_type: str, *, streamed: bool, endpoint: Dialect = CHAT) -> RequestRecord:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n"
    pieces = [head.encode(), *map(chunk, body), last_chunk()]
    script = [Step(send_b64=piece) for piece in pieces]
    with caller(_SERVING[0].url) as ask:
        return ask.ask([*script, Step(close=True)], streamed=streamed, endpoint=endpoint).record


def test_a_whole_answer_with_20_log_probabilities_a_token_is_ok() -> None:
    record = asked([whole_answer()], "application/json", streamed=False)
    assert (record.outcome, record.error) == (Outcome.OK, None)
    assert (record.input_tokens, record.output_tokens, record.token_source.value) == (12, TOKENS, "usage")
    assert (record.finish_reason, len(record.arrivals_ns)) == ("stop", 1)
    assert record.output_chars == sum(len(item["token"]) for item in logprobs(TOKENS))


@pytest.mark.parametrize("together", [1, 300])
def test_a_stream_with_20_log_probabilities_a_token_is_ok(together: int) -> None:
    """At 300 tokens an event is 450 kB and has 13,000 objects."""
    record = asked(stream(together=together), "text/event-stream", streamed=True)
    assert (record.outcome, record.error) == (Outcome.OK, None)
    assert (record.input_tokens, record.output_tokens) == (12, TOKENS)
    assert len(record.arrivals_ns) == -(-TOKENS // together)


@pytest.mark.parametrize(("tokens", "named"), [(700, False), (TOKENS, True)])
def test_a_streamed_response_repeats_its_log_probabilities_at_the_end(tokens: int, named: bool) -> None:
    events = response_stream(tokens, named)
    assert all(len(event) > 1 << 20 for event in events[-4:])
    record = asked(events, "text/event-stream", streamed=True, endpoint=RESPONSES)
    assert (record.outcome, record.error, record.finish_reason) == (Outcome.OK, None, "completed")
    assert (record.input_tokens, record.output_tokens, record.model) == (12, tokens, "m")
    assert len(record.arrivals_ns) == tokens


@pytest.mark.parametrize("named", [True, False])
def test_a_long_end_says_why_the_answer_is_no_longer(named: bool) -> None:
    deltas = response_stream(1_000, named)
    reason = {"incomplete_details": {"reason": "max_output_tokens"}, "status": "incomplete"}
    ended = encoded({"type": "response.incomplete", "response": {**response(1_000), **reason}})
    assert len(ended) > 1 << 20
    body = [*deltas[:1_000], b"event: response.incomplete\n" * named + b"data: " + ended + b"\n\n"]
    record = asked(body, "text/event-stream", streamed=True, endpoint=RESPONSES)
    assert (record.outcome, record.finish_reason) == (Outcome.OK, "max_output_tokens")
    failed = encoded({"type": "response.failed", "response": {**response(1_000), "error": {"message": "no"}}})
    record = asked(
        [*deltas[:9], b"data: " + failed + b"\n\n"], "text/event-stream", streamed=True, endpoint=RESPONSES
    )
    assert (record.outcome, record.error, len(record.arrivals_ns)) == (Outcome.API_ERROR, "no", 9)


def test_a_whole_response_with_log_probabilities_is_ok() -> None:
    body = encoded(response(TOKENS))
    assert len(body) > 4 << 20
    record = asked([body], "application/json", streamed=False, endpoint=RESPONSES)
    assert (record.outcome, record.error, record.finish_reason) == (Outcome.OK, None, "completed")
    assert (record.input_tokens, record.output_tokens) == (12, TOKENS)
    assert record.output_chars == sum(len(item["token"]) for item in logprobs(TOKENS))
    assert is_short(cpu_s(partial(read_body, RESPONSES, body), 5))


@pytest.mark.parametrize(("tokens", "alternatives"), [(4_000, 20), (20_000, 5), (10_000, 1)])
def test_a_legacy_completion_has_tokens_as_names(tokens: int, alternatives: int) -> None:
    body = completion(tokens, alternatives)
    record = asked([body], "application/json", streamed=False, endpoint=COMPLETIONS)
    assert (record.outcome, record.error, record.finish_reason) == (Outcome.OK, None, "length")
    assert is_short(cpu_s(partial(read_body, COMPLETIONS, body), 5))


def test_names_do_not_hide_among_those_of_log_probabilities() -> None:
    """One that is read costs more than one that is skipped, and a hostile server sends it again and again."""
    for hidden in (b'"token":-1,"model":1,', b'"logprob": -1,"model":1,', b'"bytes":-1,"usage":{},'):
        body = b"{" + hidden * 70_000 + b" " * (1 << 20) + b'"choices":[]}'
        record = asked([body], "application/json", streamed=False)
        assert "30,000 names beside those of log probabilities" in (record.error or "")


CALLS = [{"id": f"{n}", "function": {"name": "f", "arguments": '{"a":1}'}} for n in range(10)]
OBJECTS = [{"id": "1", "function": {"name": "f", "arguments": {"a": [1, None, 10**30]}}}]
PARTS = [{"type": "text", "text": "some "}, {"type": "text", "text": "more"}]


@pytest.mark.parametrize(
    ("messages", "chars"),
    [
        ([{"content": "ten chars " * 10_000}] * 8, 800_000),
        ([{"content": "a"}] * 16, 16),
        ([{"content": None, "tool_calls": CALLS}], 80),
        ([{"tool_calls": OBJECTS}], 1 + len(f'{{"a":[1,null,{10**30}]}}')),
        ([{"content": PARTS}], 9),
        ([{"content": "é" * 1_000_000}], 1_000_000),
    ],
    ids=[
        "eight long ones",
        "16",
        "ten tool calls",
        "arguments as an object",
        "content in parts",
        "a long one",
    ],
)
def test_a_whole_answer_with_log_probabilities_may_hold(messages: list[dict[str, Any]], chars: int) -> None:
    body = whole_answer(*messages, tokens=3_000)
    assert len(body) > 3 << 20
    reply = read_body(CHAT, body)
    assert (reply.invalid, reply.done, reply.choices, reply.output_chars) == (
        None,
        True,
        len(messages),
        chars,
    )
    assert is_short(cpu_s(partial(read_body, CHAT, body), 10))


@pytest.mark.parametrize("choices", [1, 2, 16])
def test_more_text_than_a_model_answers_at_once_is_refused(choices: int) -> None:
    message = {"content": "é" * ((1 << 20) // choices)}
    invalid = read_body(CHAT, whole_answer(*[message] * choices, tokens=1)).invalid
    assert (invalid or "").startswith("more than 2 MiB of text in one JSON document")


def test_reading_the_whole_answer_is_within_the_bound_of_one_slice() -> None:
    body = whole_answer()
    assert len(body) > 4 << 20
    assert is_short(cpu_s(partial(read_body, CHAT, body), 10))


# --- Records of long answers, and many of middling ones, do not hold a worker's event loop on their way out


def answer(tokens: int, seed: int) -> RequestRecord:
    """An answer whose tokens came at random times."""
    draw = np.random.default_rng(seed)
    return RequestRecord(
        request_id=str(seed),
        name="chat",
        outcome=Outcome.OK,
        scheduled_ns=1,
        started_ns=1,
        sent_ns=1,
        ended_ns=1 << 50,
        arrivals_ns=np.cumsum(draw.integers(1_000, 60_000_000, tokens)),
        output_tokens=tokens,
    )


@pytest.mark.parametrize(("answers", "tokens"), [(4, MAX_ARRIVALS), (300, 1_000), (2_000, 100)])
def test_batches_and_live_counts_are_made_in_short_slices(answers: int, tokens: int) -> None:
    records = [answer(tokens, seed) for seed in range(answers)]
    assert is_short(min(_longest_s(records) for _ in range(3)))


def _longest_s(records: Sequence[RequestRecord]) -> float:
    headers: list[FrameHeader] = []
    recorder = Recorder("run", "w1", lambda header, _: headers.append(header))
    counts = LiveCounts(LiveRun(id="run"), lambda: 0)
    longest_s = 0.0
    for each in records:
        longest_s = max(longest_s, cpu_s(partial(recorder.add, each)), cpu_s(partial(counts.add, each)))
    longest_s = max(longest_s, cpu_s(recorder.close_batch), cpu_s(counts.report))
    assert sum(header.rows for header in headers) == recorder.finished == len(records)
    return longest_s


def test_work_that_cannot_be_cut_has_a_turn_of_the_loop_for_itself() -> None:
    turns: list[float] = []
    loop = gevent.get_hub().loop
    gevent.joinall([gevent.spawn(DECODE_BUDGET.take, lambda: turns.append(loop.now())) for _ in range(10)])
    assert len(set(turns)) == 10


class Holds:
    """The longest CPU time of a turn of the loop, after :meth:`begin`."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._watcher = gevent.spawn(self._watch)

    def begin(self) -> None:
        gevent.sleep(0.01)
        self.longest_s = 0.0

    def end(self) -> float:
        gevent.sleep(0.01)
        self._watcher.kill()
        return self.longest_s

    def _watch(self) -> None:
        at_s = time.thread_time()
        while True:
            gevent.sleep(0)
            now_s = time.thread_time()
            self.longest_s, at_s = max(self.longest_s, now_s - at_s), now_s


def test_the_calls_that_a_runs_end_breaks_off_are_recorded_in_short_slices(server: ScriptedServer) -> None:
    n, tokens = 300, 200
    script = [write(0, HEAD + chunk(token("some ") * tokens)), Step(stall=True)]
    with caller(server.url) as ask:
        doing = [ask.spawn(script) for _ in range(n)]
        with gevent.Timeout(60):
            while len([live for live in ask.client.live if live._exchange.bytes_received > 9_000]) < n:
                gevent.sleep(0.05)
        holds = Holds()
        holds.begin()
        assert ask.client.abandon_calls() == n
        held_s = holds.end()
        assert held_s > 0
        assert is_short(held_s)
        gevent.joinall(doing, timeout=10)
    records = [answer.record for answer in ask.answers]
    assert {(r.outcome, len(r.arrivals_ns)) for r in records} == {(Outcome.CANCELLED, tokens)}
    assert len(records) == n


@pytest.mark.parametrize("chars", [8_192, 8_193, 1 << 20, (1 << 20) + 1])
def test_a_long_answer_is_counted_beside_the_loop(server: ScriptedServer, chars: int) -> None:
    loop = get_ident()
    counted_in: list[bool] = []

    def count(text: str) -> int:
        counted_in.append(get_ident() == loop)
        return len(text) // 4

    pieces = [1000] * (chars // 1000) + [chars % 1000]
    events = "".join(token("x" * piece).decode() for piece in pieces).encode()
    with caller(server.url, count_tokens=count) as ask:
        record = ask.ask([write(0, HEAD + chunk(events + stop()) + last_chunk())]).record
        assert ask.client.occupancy.total_ns <= (record.ended_ns - record.started_ns) + 50_000_000
    assert record.outcome is Outcome.OK
    if chars > 1 << 20:
        assert (counted_in, record.token_source) == ([], TokenSource.EVENTS)
    else:
        assert (counted_in, record.token_source) == ([chars <= 8_192], TokenSource.TOKENIZER)
        assert record.output_tokens == chars // 4


def test_an_answer_that_was_cut_is_not_counted_in_the_loop(server: ScriptedServer) -> None:
    with caller(server.url, count_tokens=len) as ask:
        doing = ask.spawn([write(0, HEAD + chunk(token("x" * 1000) * 10)), Step(stall=True)])
        with gevent.Timeout(10):
            while not any(live._exchange.bytes_received > 10_000 for live in ask.client.live):
                gevent.sleep(0.01)
        assert ask.client.abandon_calls() == 1
        doing.join(5)
    (answer,) = ask.answers
    assert (answer.record.output_tokens, answer.record.token_source) == (10, TokenSource.EVENTS)
