"""One request before the load: what a server may answer to it, and what a person then reads."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted import (
    ScriptedServer,
    Step,
    chat_chunk,
    chunk,
    json_response,
    last_chunk,
    response_head,
    scripted_server,
    sse,
    stream_script,
    write,
)
from swarm_process import Result, locust, simulation
from warm_process import warm_code

KEY = "sk-canary-0123456789abcdef"

#: Locust patches the standard library when it is imported: all cases in one process of their own.
ASK = """
import json, sys
from locust.argument_parser import LocustArgumentParser
from llm_locust.options.table import add_arguments
from llm_locust.options.settings import UsageError, parse_settings
from llm_locust.swarm.run.canary import canaries_of
from llm_locust.swarm.run.readiness import wait_for_replicas
from llm_locust.wire.dialects.chat import CHAT
from llm_locust import ChatUser

class Asker(ChatUser):
    pass

parser = LocustArgumentParser()
add_arguments(parser)
found = {}
for name, host, words in json.load(sys.stdin):
    settings = parse_settings(parser.parse_args(words))
    try:
        ready = wait_for_replicas(host, settings, CHAT, canaries_of(settings, [Asker]))
        found[name] = [[c.target, c.endpoint, c.name, c.took_s] for c in ready.canaries]
    except UsageError as e:
        found[name] = str(e)
json.dump(found, sys.stdout)
"""

MODELS = [write(0, json_response({"data": [{"id": "m"}]}))]
HTML = b"<html>\x1b[31m hello </html>"


def refusal(status: int, said: Any) -> list[Step]:
    return [write(0, json_response(said, status))]


def stream(*events: bytes, end: bytes = b"") -> list[Step]:
    return [write(0, response_head() + b"".join(chunk(e) for e in events) + end)]


TOO_LONG = "This model's maximum context length is 256 tokens. However, you requested 640 tokens"
LIMIT = "Unsupported parameter: 'max_tokens' is not supported with this model."

#: Name -> what the server answers to a request for a chat.
ANSWERS: dict[str, list[Step]] = {
    "right": stream_script(ttft_ms=5, gap_ms=1, tokens=3),
    "slow": stream_script(ttft_ms=400, gap_ms=1, tokens=3),
    "without usage": stream_script(ttft_ms=5, gap_ms=1, tokens=3, usage=False),
    "endless": [
        write(0, response_head() + chunk(sse(chat_chunk("once")))),
        Step(stall=True),
    ],
    "wrong path": refusal(404, {"detail": "Not Found"}),
    "wrong model": refusal(404, {"error": {"message": "The model `m` does not exist."}}),
    "wrong key": refusal(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}}),
    "too long": refusal(400, {"error": {"message": TOO_LONG}}),
    "unknown field": refusal(422, {"error": {"message": "Extra inputs are not permitted: 'top_kk'"}}),
    "other limit": refusal(400, {"error": {"message": LIMIT}}),
    "busy": refusal(429, {"error": {"message": "Rate limit reached\n\x1b[31mnow" + "x" * 5000}}),
    "starting": refusal(503, {}),
    "broken": refusal(500, {}),
    "moved": [write(0, response_head(307, {"Location": "https://other/"}, content_length=0))],
    "error inside": stream(sse({"error": {"message": TOO_LONG}}), end=last_chunk()),
    "page": [write(0, response_head(content_length=len(HTML), content_type="text/html") + HTML)],
    "garbage": [write(0, b"\x00\xff\x00\xff" * 99), Step(close=True)],
    "cut": [*stream(sse(chat_chunk("", role="assistant"))), Step(close=True)],
    "without a token": stream(sse(chat_chunk(finish_reason="length")), sse("[DONE]"), end=last_chunk()),
    "hung": [Step(stall=True)],
    "dripping": [write(0, response_head()), *(write(40 * i, chunk(b": wait\n\n")) for i in range(1, 3000))],
}

#: Name -> words of the one line that a person reads.
WORDS = {
    "wrong path": (
        "/wrong-path/v1/chat/completions: HTTP 404: ",
        "check the path: /wrong-path/v1 is from -H",
    ),
    "wrong model": ("does not exist", "check --model: 'm' was asked for"),
    "wrong key": ("HTTP 401: Incorrect API key provided: ***", "check the key given"),
    "too long": ("maximum context length is 256", "--input-tokens (512 here), --output-tokens (128 here)"),
    "unknown field": ("'top_kk'", """null leaves it out: --body '{"top_kk": null}'"""),
    "other limit": (LIMIT, """--body '{"max_tokens": null, "max_completion_tokens": 128}'"""),
    "busy": ("HTTP 429", "let --ready-timeout 5m wait"),
    "starting": ("HTTP 503", "let --ready-timeout 5m wait"),
    "broken": ("HTTP 500", "look at the server's log"),
    "moved": ("redirected to https://other/", "give -H the address that it redirects to"),
    "error inside": (TOO_LONG, "--input-tokens"),
    "page": (
        "the answer (HTTP 200) is text/html: '<",
        "is the API that the user class expects",
    ),
    "garbage": ("one request before the load failed",),
    "cut": ("one request before the load failed", "is the API that the user class expects"),
    "without a token": ("without a token", "allow longer answers by --output-tokens"),
    "hung": ("within 1 s", "--timeouts"),
    "dripping": ("within 1 s", "--timeouts"),
}


def path_of(name: str) -> str:
    return "/" + name.replace(" ", "-")


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    routes = {f"{path_of(name)}/v1/models": MODELS for name in ANSWERS}
    routes |= {f"{path_of(name)}/v1/chat/completions": script for name, script in ANSWERS.items()}
    routes["*"] = refusal(404, {})  # /health
    with scripted_server(routes=routes) as server:
        yield server


@pytest.fixture(scope="module")
def found(server: ScriptedServer) -> dict[str, Any]:
    """What comes of the canary in each case."""
    common = ["--api-key-env", "CANARY_KEY", "--body", '{"top_kk": 1}']
    cases = [(name, server.url + path_of(name), [*common, "--timeouts", bounds(name)]) for name in ANSWERS]
    waiting = [*common, "--ready-timeout"]
    cases += [
        ("off", server.url + path_of("wrong path"), [*common, "--canary", "off"]),
        ("hung for long", server.url + path_of("hung"), [*waiting, "1s"]),
        ("too long for long", server.url + path_of("too long"), [*waiting, "1h"]),
        ("two targets", server.url, [*common, "--targets", both(server)]),
    ]
    return dict(json.loads(warm_code(ASK, env=os.environ | {"CANARY_KEY": KEY}, input=json.dumps(cases))))


def bounds(name: str) -> str:
    """Time limits: short only for a server that never answers."""
    return "first=1s gap=1s total=1s" if name in ("hung", "dripping") else "first=100s gap=100s total=200s"


def both(server: ScriptedServer) -> str:
    return f"{server.url}{path_of('right')},{server.url}{path_of('slow')}"


@pytest.mark.parametrize("name", WORDS)
def test_a_refused_canary_is_one_line_with_what_to_change(found: dict[str, Any], name: str) -> None:
    line = found[name]
    assert isinstance(line, str), line
    for words in WORDS[name]:
        assert words in line
    assert line.isprintable()
    assert len(line) < 900
    assert KEY not in line
    assert "--canary off starts without" in line


@pytest.mark.parametrize("name", ["right", "slow", "without usage", "endless"])
def test_a_token_is_all_that_a_canary_waits_for(
    found: dict[str, Any], server: ScriptedServer, name: str
) -> None:
    ((target, endpoint, of, took_s),) = found[name]
    assert (target, endpoint, of) == (f"{server.url}{path_of(name)}/v1", "chat", "Asker")
    assert took_s > 0


def test_every_case_has_words_or_a_token() -> None:
    assert WORDS.keys() | {"right", "slow", "without usage", "endless"} == ANSWERS.keys()


def test_nothing_is_sent_with_canary_off(found: dict[str, Any]) -> None:
    assert found["off"] == []


def test_a_ready_timeout_bounds_it_and_is_not_waited_for_in_vain(found: dict[str, Any]) -> None:
    assert "the load does not start: 0 of 1 replicas are ready" in found["hung for long"]
    assert "no byte within 1 s" in found["hung for long"]
    assert found["too long for long"].startswith(
        "the load does not start: one request before the load failed"
    )


def test_each_target_gets_one_canary_and_no_second_probe(
    found: dict[str, Any], server: ScriptedServer
) -> None:
    assert [target for target, *_ in found["two targets"]] == [
        f"{server.url}{path_of(name)}/v1" for name in ("right", "slow")
    ]
    asked = [r.path for r in server.log()].count(f"{path_of('right')}/v1/chat/completions")
    assert asked == 2  # once as the host, once as a target


def test_a_canary_asks_for_what_the_load_asks_for(found: dict[str, Any], server: ScriptedServer) -> None:
    first = next(r for r in server.log() if r.path == f"{path_of('right')}/v1/chat/completions")
    body = first.json()
    assert {k: v for k, v in body.items() if k != "messages"} == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 128,
        "top_kk": 1,
    }
    assert 300 < len(body["messages"][0]["content"].split()) < 600


# -- whole runs ------------------------------------------------------------------------------------

FAILING = """
from locust import task
from llm_locust import ChatUser
from llm_locust.workload.prompts import Prompt

class Asker(ChatUser):
    @task
    def ask_too_much(self):
        self.ask(Prompt(text="too long " * 2000))
"""


def test_a_run_has_its_canary_in_no_record_and_waits_after_failures(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    options = ("--headless", "-u", "2", "-r", "2", "--num-requests", "12", "-t", "120s", "--out", "run")
    with simulation(tmp_path, "--max-model-len", "900") as sim:
        on = {"LLM_LOCUST_CANARY": "on", "LLM_LOCUST_BACKOFF": "on"}
        with locust(tmp_path, *options, "-H", sim.url, locustfile=tmp_path / "failing.py", environ=on) as run:
            run.wait_for("canary: Asker has a token from")
            run.exit_code()  # which failed requests make is not asked here
        refused = ("--headless", "-t", "120s", "-H", sim.url, "--input-tokens", "2000", "--out", "never")
        with locust(tmp_path, *refused, environ=on, stdout="never.out") as never:
            assert never.exit_code() == 2
        sent = len(sim.entries())
    result = Result.read(tmp_path / "run")
    assert sent == len(result.requests) + 2 == 14  # and a canary for each start
    (canary,) = result.manifest.canaries
    assert (canary.target, canary.endpoint, canary.name) == (f"{sim.url}/v1", "chat", "Asker")
    assert canary.took_s > 0
    part = result.summary["completeness"]
    assert 10 <= part["backoff_waits"] <= 12  # the first request of a user has no failure before it
    assert part["backoff_s"] > 0
    assert part["backoff_users_mean"] <= 2
    assert "back-off: " in (report := result.report())
    assert "users at a time, on average, sent nothing" in " ".join(report.split())
    (line,) = [line for line in never.said if "llm-locust: error" in line]
    assert "HTTP 400" in line
    assert "--input-tokens (2000 here)" in line
    assert not (tmp_path / "never" / "manifest.json").exists()
