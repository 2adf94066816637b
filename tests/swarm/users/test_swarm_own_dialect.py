"""An API that the package does not have, added by a dialect of the user's own (``support/gemini.py``)."""

import json
import os
from pathlib import Path
from typing import Any

import gemini
import pytest
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
            *("--slo", "ttft=9s tpot=12.5s", "--slo-headers", "x-slo"),
            locustfile=folder / "users.py",
            environ={"KEY": KEY, "PYTHONPATH": path},
        ) as process,
    ):
        assert process.exit_code() == 0, process.stderr
        assert "Traceback" not in process.stderr
        return Result.read(folder / "run"), server.log()


def test_the_server_is_asked_in_its_own_form(run: tuple[Result, list[ServedRequest]]) -> None:
    asked = [request for request in run[1] if request.method == "POST"]
    assert not [request.path for request in run[1] if request.method == "GET"], "--canary off with --model"
    assert len(asked) == 3
    assert {str(request.header("x-goog-api-key")) for request in run[1]} == {KEY}
    limits = {(str(r.header("x-slo-ttft-ms")), str(r.header("x-slo-tpot-ms"))) for r in asked}
    assert limits == {("9000", "12500")}
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
