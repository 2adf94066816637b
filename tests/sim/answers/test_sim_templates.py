"""The prebuilt bytes are the JSON that a server would have rendered chunk by chunk."""

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from llm_locust.sim.answers import chunks, responses
from llm_locust.sim.answers.jobs import Job, TokenText, count_tokens
from llm_locust.sim.answers.template import StreamTemplate
from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.responses import RESPONSES


def make_job(endpoint: Dialect = CHAT, tokens: int = 5, **changed: Any) -> Job:
    fields: dict[str, Any] = {
        "request_id": "id", "model": "sim", "created_s": 7, "stream": True, "include_usage": False,
        "continuous_usage": False, "prompt_tokens": 3, "finish_reason": "length", "text": TokenText(60, 1),
    }  # fmt: skip
    return Job(endpoint=endpoint, output_tokens=tokens, **(fields | changed))


def stream_bytes(job: Job, template: StreamTemplate) -> bytes:
    tokens = [
        template.token(job.text.escaped(n - 1), n, n == job.output_tokens)
        for n in range(1, job.output_tokens + 1)
    ]
    return b"".join([*template.opening, *tokens, template.closing(None)])


def data_of(stream: bytes) -> list[Any]:
    events = stream.decode().removesuffix("\n\n").split("\n\n")
    lines = [line for event in events for line in event.split("\n") if line.startswith("data: ")]
    assert len(lines) == len(events)
    return ["[DONE]" if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


def test_a_chat_stream_is_a_role_then_a_chunk_per_token_then_done() -> None:
    job = make_job()
    role, *tokens, done = data_of(stream_bytes(job, chunks.stream_template(job)))
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert done == "[DONE]"
    assert "".join(t["choices"][0]["delta"]["content"] for t in tokens) == job.text.whole(5)
    assert [t["choices"][0]["finish_reason"] for t in tokens] == [None] * 4 + ["length"]
    assert {(t["id"], t["object"], t["created"], t["model"]) for t in (role, *tokens)} == {
        ("chatcmpl-id", "chat.completion.chunk", 7, "sim")
    }
    assert not any("usage" in t for t in tokens)


def test_a_completion_stream_has_no_role_and_its_text_outside_a_delta() -> None:
    job = make_job(COMPLETIONS)
    *tokens, _ = data_of(stream_bytes(job, chunks.stream_template(job)))
    assert "".join(t["choices"][0]["text"] for t in tokens) == job.text.whole(5)
    assert tokens[0]["object"] == "text_completion"


def test_usage_is_one_chunk_without_choices_ahead_of_done() -> None:
    job = make_job(include_usage=True)
    *_, usage, done = data_of(stream_bytes(job, chunks.stream_template(job)))
    assert (usage["choices"], done) == ([], "[DONE]")
    assert usage["usage"] == {"prompt_tokens": 3, "total_tokens": 8, "completion_tokens": 5}


@given(
    st.sampled_from([CHAT, COMPLETIONS]),
    st.text(st.characters(codec="utf-8", exclude_characters="\0")),
)
def test_continuous_usage_counts_up_whatever_the_models_name(endpoint: Dialect, model: str) -> None:
    job = make_job(endpoint, model=model, include_usage=True, continuous_usage=True)
    *all_chunks, _ = data_of(stream_bytes(job, chunks.stream_template(job)))
    counted = [c["usage"]["completion_tokens"] for c in all_chunks]
    assert counted == ([0] if endpoint is CHAT else []) + [1, 2, 3, 4, 5, 5]
    assert all(c["usage"]["total_tokens"] == 3 + n for c, n in zip(all_chunks, counted, strict=True))
    assert {c["model"] for c in all_chunks} == {model}


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1), st.integers(0, 40))
def test_a_responses_stream_is_numbered_without_a_gap(request_id: str, tokens: int) -> None:
    job = make_job(RESPONSES, tokens, request_id=request_id)
    events = data_of(stream_bytes(job, responses.stream_template(job)))
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
    assert "".join(deltas) == job.text.whole(tokens)
    assert len(deltas) == tokens
    assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.completed")


def test_a_completed_response_says_its_usage_and_why_it_ended() -> None:
    job = make_job(RESPONSES)
    done = data_of(stream_bytes(job, responses.stream_template(job)))[-1]["response"]
    assert (done["usage"]["input_tokens"], done["usage"]["output_tokens"], done["usage"]["total_tokens"]) == (
        3,
        5,
        8,
    )
    assert (done["status"], done["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert done == responses.whole_body(job)
    whole = responses.whole_body(make_job(RESPONSES, finish_reason="stop"))
    assert (whole["status"], whole["incomplete_details"]) == ("completed", None)


def test_an_answer_without_tokens_still_has_its_finish_reason() -> None:
    job = make_job(tokens=0, finish_reason="stop", include_usage=True)
    role, finish, usage, done = data_of(stream_bytes(job, chunks.stream_template(job)))
    assert role["choices"][0]["delta"]["role"] == "assistant"
    assert (finish["choices"][0]["delta"]["content"], finish["choices"][0]["finish_reason"]) == ("", "stop")
    assert (usage["usage"]["completion_tokens"], done) == (0, "[DONE]")


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_a_whole_body_has_the_streams_text_and_usage(endpoint: Dialect) -> None:
    job = make_job(endpoint, stream=False)
    body = chunks.whole_body(job)
    choice = body["choices"][0]
    text = choice["message"]["content"] if endpoint is CHAT else choice["text"]
    assert (text, choice["finish_reason"]) == (job.text.whole(5), "length")
    assert body["usage"]["completion_tokens"] == 5
    assert body["object"] == ("chat.completion" if endpoint is CHAT else "text_completion")


@given(st.integers(0, 78), st.integers(1, 78))
def test_every_walk_visits_the_whole_vocabulary_and_escapes_it_rightly(start: int, stride: int) -> None:
    text = TokenText(start, stride)
    pieces = [json.loads(b'"' + text.escaped(i) + b'"') for i in range(79)]
    assert len(set(pieces)) == 79
    assert "".join(pieces) == text.whole(79)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("a", 1),
        ("a b, c!", 5),
        ("internationalisation", 2),
        ("x" * 36, 3),
        ("12345", 2),
        ("東京へ", 3),
    ],
)
def test_tokens_are_counted_as_byte_pair_tokenizers_cut_english(text: str, tokens: int) -> None:
    assert count_tokens(text) == tokens
