"""Each endpoint's user in a run of its own processes, against what the simulation knows to be true."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from swarm_process import LOCUSTFILES, Result, in_parallel, locust, simulation

USUAL = ["--headless", "-u", "4", "-r", "100", "-t", "2s", "--out", "run", "--output-tokens", "uniform:1,12"]

#: Those that the package ships, one user each. The SDK's always streams.
EACH = """
import os

from locust import task

from llm_locust import OpenAIUser
from llm_locust.locustfiles.chat import Chat
from llm_locust.locustfiles.completions import Completion
from llm_locust.locustfiles.messages import Messages
from llm_locust.locustfiles.responses import Responses


if "SDK" in os.environ:

    class Sdk(OpenAIUser):
        request_name = "sdk"

        @task
        def respond(self):
            asked = dict(model=self.model, input="hello", max_output_tokens=9)
            events = list(self.client.responses.create(stream=True, extra_body={"ignore_eos": True}, **asked))
            assert events[-1].response.usage.output_tokens == 9
"""

OTHERS = """
input_tokens: 30
gate: images_per_s>0 inputs_per_s>0
classes:
  index: {endpoint: embeddings, inputs: 4, body: {encoding_format: base64, dimensions: 64}}
  search: {endpoint: embeddings, inputs: "uniform:1,3"}
  rank: {endpoint: rerank, inputs: 5, body: {top_n: 2}}
  photo: {images: {count: "uniform:1,3", size: 64x320}}
  letter: {endpoint: messages, images: "size=640x320 distinct=4"}
  page: {endpoint: responses, images: "count=2 size=256x256"}
"""

PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}


def run(folder: Path, locustfile: Path, *options: str, **environ: str) -> tuple[Result, dict[str, Any]]:
    """The result of a run, and the simulation's own log by request id."""
    with (
        simulation(folder, "--api-key", "sk-hush") as sim,
        locust(
            folder,
            *USUAL,
            *("--api-key-env", "KEY", "-H", sim.url, *options),
            locustfile=locustfile,
            environ={"KEY": "sk-hush"} | environ,
        ) as process,
    ):
        assert process.exit_code() == 0, process.stderr
        assert "Traceback" not in process.stderr
        return Result.read(folder / "run"), {entry["request_id"]: entry for entry in sim.entries()}


def _each(folder: Path, *options: str, **environ: str) -> tuple[Result, dict[str, Any]]:
    (folder / "each.py").write_text(EACH)
    # By a count: to import the SDK may take all of a short run.
    count = ("-u", "5", "-t", "60s", "--num-requests", "70")
    return run(folder, folder / "each.py", *count, *options, **environ)


def _others(folder: Path) -> tuple[Result, dict[str, Any]]:
    (folder / "others.yaml").write_text(OTHERS)
    return run(folder, LOCUSTFILES / "scenario.py", "--scenario", str(folder / "others.yaml"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Result, dict[str, Any]]]:
    scenarios = {
        "streamed": lambda folder: _each(folder, SDK="yes"),
        "whole": lambda folder: _each(folder, "-u", "4", "--body", '{"stream": false}'),
        "others": _others,
    }
    return in_parallel(tmp_path_factory.mktemp("endpoints"), scenarios, at_once=3)


@pytest.mark.parametrize("endpoint", PATHS)
@pytest.mark.parametrize("form", ["streamed", "whole"])
def test_what_is_recorded_is_what_the_server_did(endpoint: str, form: str, runs: Any) -> None:
    result, truth = runs[form]
    # The run may end between the last token of an answer and its usage: then that is not whole.
    rows = [row for row in result.rows().values() if row["outcome"] != "cancelled"]
    finished = [row for row in rows if row["name"] == endpoint and truth[row["request_id"]]["complete"]]
    assert len(finished) > 5
    for row in finished:
        entry = truth[row["request_id"]]
        assert (row["outcome"], row["endpoint"], entry["path"]) == ("ok", endpoint, PATHS[endpoint])
        assert (row["input_tokens"], row["output_tokens"]) == (entry["input_tokens"], entry["output_tokens"])
        assert row["token_source"] == "usage"
        assert row["streamed"] == (form == "streamed")
        assert len(row["arrivals_ns"]) == (len(entry["token_ns"]) if form == "streamed" else 1)


def test_inputs_and_their_tokens_are_what_the_server_read(runs: Any) -> None:
    result, truth = runs["others"]
    rows = [row for row in result.rows().values() if row["inputs"] and row["outcome"] != "cancelled"]
    sizes: dict[str, set[int]] = {}
    for row in rows:
        entry = truth[row["request_id"]]
        assert (row["outcome"], entry["complete"], row["output_tokens"]) == ("ok", True, None)
        assert row["input_tokens"] == entry["input_tokens"]
        assert row["ended_ns"] - row["sent_ns"] > entry["scheduled_ns"] - entry["received_ns"] > 0
        sizes.setdefault(row["name"], set()).add(row["inputs"])
    assert sizes == {"index": {4}, "search": {1, 2, 3}, "rank": {5}}
    by_name = result.summary["inputs"]["by_name"]
    assert by_name.keys() == sizes.keys()
    assert all(by_name[name]["inputs_per_s"] > 0 for name in sizes)
    assert {(row["images"], row["pixels"]) for row in rows} == {(None, None)}


#: Pixels and simulated tokens of an image of each class.
IMAGES = {"photo": (64 * 320, 64), "letter": (640 * 320, 200), "page": (256 * 256, 64)}


def test_images_are_counted_and_the_prompts_length_is_the_servers_with_them(runs: Any) -> None:
    result, truth = runs["others"]
    rows = [row for row in result.rows().values() if row["images"] and row["outcome"] == "ok"]
    assert {row["name"] for row in rows} == IMAGES.keys()
    for row in rows:
        pixels, tokens = IMAGES[row["name"]]
        assert row["pixels"] == row["images"] * pixels
        assert row["input_tokens"] == truth[row["request_id"]]["input_tokens"]
        assert row["input_tokens"] - row["images"] * tokens == pytest.approx(24, abs=8)  # the text
        assert row["asked_input_tokens"] is None
    found = result.summary["images"]
    assert {each["images"] for each in found["by_number"]} <= {"1", "2", "3-4"}
    assert sum(each["requests"] for each in found["by_number"]) == found["per_request"]["n"] > 5
    assert found["images_per_s"] > 0
    assert found["pixels_per_s"] > 64 * 320 * found["images_per_s"]


def test_no_token_came_before_it_was_sent(runs: Any) -> None:
    result, truth = runs["streamed"]
    streamed = [row for row in result.rows().values() if row["outcome"] == "ok"]
    assert {row["name"] for row in streamed} == {*PATHS, "sdk"}
    for row in streamed:
        came = [row["sent_ns"] + after for after in row["arrivals_ns"]]
        assert all(sent <= at for sent, at in zip(truth[row["request_id"]]["token_ns"], came, strict=True))


def test_an_answer_that_was_not_streamed_has_an_end_and_no_first_token(runs: Any) -> None:
    latency = runs["whole"][0].summary["latency_ms"]
    assert latency["e2el"]["n"] > 20
    assert latency["ttft"]["n"] == latency["tpot"]["n"] == 0


def test_the_sdks_responses_stream_is_measured(runs: Any) -> None:
    result, truth = runs["streamed"]
    rows = (row for row in result.rows().values() if row["name"] == "sdk")
    finished = [row for row in rows if row["outcome"] != "cancelled"]
    assert len(finished) > 5
    assert {(row["outcome"], row["endpoint"], row["finish_reason"]) for row in finished} == {
        ("ok", "responses", "max_output_tokens")
    }
    assert {row["output_tokens"] for row in finished} == {9}
    assert {truth[row["request_id"]]["path"] for row in finished} == {"/v1/responses"}


# -- headers --------------------------------------------------------------------------------

HEADERS = """
from locust import task

from llm_locust import ChatUser, MessagesUser, OpenAIUser


class Talker(ChatUser):
    fixed_count = 2
    slo_class = "gold"
    headers = {"X-Class": "{class}", "x-both": "own-{name}"}

    @task
    def talk(self):
        self.chat("hello")


class Writer(MessagesUser):
    fixed_count = 1

    @task
    def write(self):
        self.message("hello", name="note")


class Sdk(OpenAIUser):
    fixed_count = 1
    request_name = "sdk"

    @task
    def ask(self):
        self.client.chat.completions.create(
            model=self.model, messages=[{"role": "user", "content": "hello"}], stream=False
        )
"""

KEY, HUSH = "sk-0001-hush", "hush-0002"


class Handler(BaseHTTPRequestHandler):
    """Answers each API's request at once, and keeps its headers; echoes one as an error does."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, dict[str, str]]]

    def do_GET(self) -> None:
        self._answer({"data": [{"id": "m"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        if len(self.seen) % 10 == 0:
            echoed = " ".join(value for _, value in self.headers.items())
            self._answer({"type": "error", "error": {"type": "api_error", "message": echoed}})
        elif self.path.endswith("messages"):
            self._answer({"content": [{"type": "text", "text": "a"}], "stop_reason": "end_turn"})
        else:
            self._answer({"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]})

    def _answer(self, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def echoing() -> Iterator[tuple[str, list[tuple[str, dict[str, str]]]]]:
    """A server's URL, and the path and headers of each request to it."""
    seen: list[tuple[str, dict[str, str]]] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Keeping", (Handler,), {"seen": seen}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("headers")
    (folder / "locustfile.py").write_text(HEADERS)
    options = [
        "--headless",
        "-u",
        "4",
        "-r",
        "100",
        "-t",
        "1s",
        "--out",
        "run",
        "--body",
        '{"stream": false}',
    ]
    for header in (
        "X-Session-Id={session}",
        f"X-All={HUSH}/{{user}}/{{worker}}/{{request_id}}/{{turn}}/{{name}}/{{seq}}",
        "X-Both=run",
        'X-Json={"a":1}',
        "X-Brace={{session}",
    ):
        options += ["--header", header]
    with (
        echoing() as (url, seen),
        locust(
            folder,
            *(*options, "--api-key-env", "KEY", "-H", url),
            locustfile=folder / "locustfile.py",
            environ={"KEY": KEY},
        ) as process,
    ):
        process.exit_code()
        return seen, Result.read(folder / "run"), process, folder


def test_templates_are_filled_for_each_request_of_every_kind_of_user(headers: Any) -> None:
    seen, result, _, _ = headers
    rows = result.rows()
    assert {row["name"] for row in rows.values()} == {"chat", "note", "sdk"}
    for _, sent in seen:
        row = rows[sent["x-request-id"]]
        hush, user, worker, request_id, turn, name, _ = sent["x-all"].split("/")
        assert (hush, user, worker) == (HUSH, str(row["user"]), row["worker"])
        assert (request_id, turn, name) == (row["request_id"], "0", row["name"])
        assert (sent["x-session-id"], sent["x-json"]) == (f"{worker}-{user}", '{"a":1}')
        assert sent["x-brace"] == "{session}"


def test_seq_counts_the_requests_of_a_process(headers: Any) -> None:
    numbers = sorted(int(sent["x-all"].rpartition("/")[2]) for _, sent in headers[0])
    assert numbers == list(range(len(numbers)))


def test_a_users_headers_win_over_the_runs_and_are_its_own(headers: Any) -> None:
    seen, result, _, _ = headers
    of_class = {
        (result.rows()[sent["x-request-id"]]["name"], sent["x-both"], sent.get("x-class")) for _, sent in seen
    }
    assert of_class == {("chat", "own-chat", "gold"), ("note", "run", None), ("sdk", "run", None)}


def test_the_messages_api_is_told_its_version_and_the_key_by_both_names(headers: Any) -> None:
    for path, sent in headers[0]:
        told = sent.get("anthropic-version"), sent.get("x-api-key")
        assert told == (("2023-06-01", KEY) if path == "/v1/messages" else (None, None))
        assert sent["authorization"] == f"Bearer {KEY}"


def test_no_key_and_no_headers_value_is_in_a_file_or_on_the_terminal(headers: Any) -> None:
    _, result, process, folder = headers
    assert any(row["outcome"] == "api_error" for row in result.rows().values()), "no error echoed them"
    texts = [process.stderr, process.stdout, json.dumps(result.requests.table.to_pylist(), default=str)]
    texts += [path.read_text(errors="replace") for path in (folder / "run").rglob("*") if path.is_file()]
    assert not any(secret in text for text in texts for secret in (KEY, HUSH))


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("X-S={sesion}", r"--header: the value of 'X-S' has in braces, at character 1, a word that is no"),
        ("Content-Length=1", "--header: the header 'Content-Length' cannot be set"),
    ],
)
def test_a_header_that_cannot_be_is_one_line(option: str, said: str, tmp_path: Path) -> None:
    with locust(tmp_path, "--headless", "--header", option, "-H", "http://127.0.0.1:9") as process:
        assert process.exit_code() == 2
    assert said in process.said[-1]
