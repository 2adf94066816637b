"""An API that the package does not have, added by a dialect of the user's own (``support/gemini.py``)."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gemini
import pytest
from gemini import GEMINI
from payloads import body, read
from scripted import (
    ServedRequest,
    chunk,
    json_response,
    last_chunk,
    response_head,
    scripted_server,
    sse,
    write,
)
from swarm_process import Result, locust

from llm_locust.wire.draft import Draft, Kind
from llm_locust.wire.reply import read_body
from llm_locust.wire.usage import Usage
from llm_locust.workload.body import BodyError, body_template
from llm_locust.workload.text.prompts import Prompt

LOCUSTFILE = """
from gemini import GEMINI
from locust import task

from llm_locust import ChatUser


class Asker(ChatUser):
    endpoint = GEMINI

    @task
    def one(self):
        self.chat([dict(role="system", content="Be brief."), dict(role="user", content="Why?")])
"""

MODEL, KEY = "gemini-2.5-flash", "hush-key"


def says(text: str, finish: str | None = None, *, thought: bool = False, tokens: int = 1) -> dict[str, Any]:
    part: dict[str, Any] = {"text": text, "thought": True} if thought else {"text": text}
    candidate: dict[str, Any] = {"content": {"parts": [part], "role": "model"}, "index": 0}
    counts = {"promptTokenCount": 8, "candidatesTokenCount": tokens, "cachedContentTokenCount": 4}
    return {
        "candidates": [{**candidate, "finishReason": finish} if finish else candidate],
        "usageMetadata": {**counts, "thoughtsTokenCount": 2},
        "modelVersion": MODEL,
    }


#: A thought, two pieces of text, the end: 100 ms apart, so that each time has room on a busy machine.
EVENTS = [
    says("Hm", thought=True, tokens=0),
    says("Be", tokens=1),
    says("cause", tokens=2),
    says(".", "STOP", tokens=3),
]
ROUTES = {
    "/v1beta/models": [write(0, json_response({"models": [{"name": f"models/{MODEL}"}]}))],
    f"/v1beta/models/{MODEL}:streamGenerateContent": [
        write(20, response_head()),
        *(write(100 * i, chunk(sse(event))) for i, event in enumerate(EVENTS, start=1)),
        write(500, last_chunk()),
    ],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, list[ServedRequest]]:
    """Three requests of a run, and what the server saw of them."""
    folder = tmp_path_factory.mktemp("gemini")
    (folder / "users.py").write_text(LOCUSTFILE)
    path = os.pathsep.join([str(Path(gemini.__file__).parent), os.environ.get("PYTHONPATH", "")])
    with (
        scripted_server(routes=ROUTES) as server,
        locust(
            folder,
            *("--headless", "-u", "1", "-t", "60s", "--num-requests", "3", "--out", "run"),
            *("-H", f"{server.url}/v1beta", "--model", MODEL, "--api-key-env", "KEY"),
            *("--output-tokens", "9", "--body", '{"generationConfig": {"temperature": 0}}'),
            locustfile=folder / "users.py",
            environ={"KEY": KEY, "PYTHONPATH": path},
        ) as process,
    ):
        assert process.exit_code() == 0, process.stderr
        assert "Traceback" not in process.stderr
        return Result.read(folder / "run"), server.log()


def test_the_server_is_asked_in_its_own_form(run: tuple[Result, list[ServedRequest]]) -> None:
    asked = [request for request in run[1] if request.method == "POST"]
    assert {request.path for request in run[1] if request.method == "GET"} == {"/v1beta/models"}
    assert len(asked) == 3
    assert {str(request.header("x-goog-api-key")) for request in run[1]} == {KEY}
    for request in asked:
        assert request.path == f"/v1beta/models/{MODEL}:streamGenerateContent?alt=sse"
        assert json.loads(request.body) == {
            "contents": [{"role": "user", "parts": [{"text": "Why?"}]}],
            "systemInstruction": {"parts": [{"text": "Be brief."}]},
            "generationConfig": {"maxOutputTokens": 9, "temperature": 0},
        }


def test_its_answers_are_records_with_their_times_tokens_and_usage(
    run: tuple[Result, list[ServedRequest]],
) -> None:
    result, log = run
    asked = [request for request in log if request.method == "POST"]
    written = {str(request.header("x-request-id")): request.writes[1:-1] for request in asked}
    rows = result.rows()
    assert rows.keys() == written.keys()
    for request_id, row in rows.items():
        assert (row["endpoint"], row["name"], row["outcome"], row["model"]) == (
            "gemini",
            "gemini",
            "ok",
            MODEL,
        )
        assert (row["input_tokens"], row["cached_tokens"]) == (8, 4)
        assert (row["output_tokens"], row["reasoning_tokens"], row["token_source"]) == (5, 2, "usage")
        assert (row["asked_output_tokens"], row["finish_reason"]) == (9, "stop")
        assert row["first_answer_ns"] == row["arrivals_ns"][1]
        begins = [each.write_ns for each in written[request_id]]
        for at, begin, after in zip(row["arrivals_ns"], begins, [*begins[1:], row["ended_ns"]], strict=True):
            assert begin <= row["sent_ns"] + at <= after
    assert result.summary["requests"]["ok"] == 3
    assert result.summary["tokens"]["output"]["mean"] == 5
    assert result.summary["latency_ms"]["ttft"]["min"] >= 100


def test_an_answer_that_is_not_streamed_is_read_too() -> None:
    whole = says("Because.", "MAX_TOKENS", tokens=3)
    call = {"functionCall": {"name": "f", "args": {"a": 1}}}
    whole["candidates"][0]["content"]["parts"].append(call)
    reply = read_body(GEMINI, body(whole))
    assert (reply.text, reply.finish_reason, reply.done) == ("Because.", "length", True)
    assert [(made.name, made.arguments) for made in reply.tool_calls] == [("f", '{"a":1}')]
    assert reply.usage == Usage(input_tokens=8, output_tokens=5, cached_tokens=4, reasoning_tokens=2)
    assert GEMINI.path_to(MODEL, stream=False) == f"/models/{MODEL}:generateContent"


@pytest.mark.parametrize(
    ("payload", "error", "invalid", "finish"),
    [
        ({"error": {"code": 429, "message": "slow down"}}, "slow down", None, None),
        ({"promptFeedback": {"blockReason": "SAFETY"}}, None, None, "SAFETY"),
        ({"candidates": 1}, None, "candidates is not a list of objects", None),
        ({}, None, 'no "candidates"', None),
    ],
)
def test_what_is_no_answer_is_said(
    payload: Mapping[str, Any], error: str | None, invalid: str | None, finish: str | None
) -> None:
    reply = read(payload, endpoint=GEMINI)
    assert (reply.error, reply.finish_reason) == (error, finish)
    assert (reply.invalid or "").startswith(invalid or "")
    assert (reply.invalid is None) is (invalid is None)


def failing(draft: Draft, _: object) -> None:
    draft.token(1, Kind.ANSWER)
    raise KeyError("no such field")


def test_a_reader_that_raises_makes_the_answer_invalid_and_keeps_what_came() -> None:
    own = replace(GEMINI, read_events=failing, read_body=failing)
    for reply in (read(says("a"), endpoint=own), read_body(own, b"{}")):
        assert reply.invalid == "the reader of dialect 'gemini' raised KeyError('no such field')"
        assert list(reply.token_ends) == [1]
        assert not reply.done


def test_pictures_tools_and_talks_have_a_place_in_the_body() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = (
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}],
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "a cat"},
    )
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    prompt = Prompt(messages=messages, extra={"tools": [tool], "tool_choice": "required", "top_p": 0.5})
    assert json.loads(body_template(GEMINI, MODEL).encode(prompt)) == {
        "contents": [
            {"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": "aGk="}}]},
            {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"a": 1}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "c", "response": {"result": "a cat"}}}]},
        ],
        "generationConfig": {"topP": 0.5},
        "tools": [{"functionDeclarations": [{"name": "f", "parameters": {"type": "object"}}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
    }


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"contents": []}, "'contents' is what the workload fills"),
        ({"generationConfig": None}, "'generationConfig' is not an object"),
        ({"generationConfig": {"maxOutputTokens": 3}}, "use --output-tokens for it"),
    ],
)
def test_a_users_body_cannot_take_what_the_record_relies_on(extra: Mapping[str, Any], said: str) -> None:
    with pytest.raises(BodyError, match=said):
        body_template(GEMINI, MODEL, extra_body=extra)
