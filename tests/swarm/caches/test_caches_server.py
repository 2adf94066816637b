"""The caches of a server that lets in only who has the header of the class, and that fails now and then."""

import json
import threading
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from llm_locust.core.manifest import PrefixShare, ReplicaCache
from llm_locust.deployment.profiler import reset_prefix_caches
from llm_locust.options.settings import parse_settings
from llm_locust.options.table import GRAMMAR, KEYS
from llm_locust.scenario import load_scenario
from llm_locust.swarm import caches
from llm_locust.swarm.caches import PrefixCaches
from llm_locust.swarm.run.replicas import post_to

SCENARIO = """
input_tokens: 128
output_tokens: 4
sweep: users=1 prefix-share=0%,50%
classes:
  only: {headers: {X-Team-Key: sk-hush}}
"""

PREFIX = PrefixShare.of(0.5, 128, 2)


class Guarded(ThreadingHTTPServer):
    """A server with one engine, or several of which each request asks the next."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.refusals: list[int] = []  # statuses of its next flushes
        self.asked: list[tuple[str, str, bool]] = []
        self.known: set[str] = set()
        self.engines = 1

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Guarded

    def do_GET(self) -> None:
        rows = [f'vllm:prefix_cache_{name}_total{{engine="{i}"}} 1' for name, i in self._counters()]
        self._answer(200, "\n".join(rows) + "\n")

    def _counters(self) -> list[tuple[str, int]]:
        return [(name, i) for name in ("hits", "queries") for i in range(self.server.engines)]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/reset_prefix_cache":
            status = self.server.refusals.pop(0) if self.server.refusals else 200
            if status == 200:
                self.server.known.clear()
            self._answer(status, "")
            return
        text = str(json.loads(body)["messages"])
        usage: dict[str, Any] = {"prompt_tokens": 128, "completion_tokens": 1}
        usage["prompt_tokens_details"] = {"cached_tokens": 112 if text in self.server.known else 0}
        self.server.known.add(text)
        delta = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "length"}]}
        events = [delta, {"choices": [], "usage": usage}]
        self._answer(200, "".join(f"data: {json.dumps(e)}\n\n" for e in events) + "data: [DONE]\n\n")

    def _answer(self, status: int, text: str) -> None:
        allowed = self.headers["X-Team-Key"] == "sk-hush"
        self.server.asked.append((self.command, self.path, allowed))
        body = text.encode() if allowed else b""
        self.send_response(status if allowed else 401)
        kind = "text/event-stream" if text.startswith("data:") else "text/plain"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    monkeypatch.setattr(caches, "_AGAIN_S", 0.01)
    with Guarded() as server:
        serving = threading.Thread(target=partial(server.serve_forever, 0.01))
        serving.start()
        yield server
        server.shutdown()
        serving.join()


def prepared(server: Guarded, folder: Path) -> ReplicaCache:
    path = folder / "s.yaml"
    path.write_text(SCENARIO)
    scenario = load_scenario(path, GRAMMAR)
    options = {KEYS[key]: value for key, value in scenario.options.items()}
    settings = parse_settings(Namespace(**options, llm_scenario=scenario.text_for_workers()), {})
    post = post_to(settings, 5.0, settings.kinds)
    run: Any = {"model": "m", "seed": 1, "salt": "s", "base": "/v1"}
    made = PrefixCaches(
        [server.url], settings.kinds[0], settings, run, lambda url: reset_prefix_caches([url], post)[0]
    )
    (found,) = made.prepare(PREFIX, 0, lambda: False)
    (counted,) = made.counted([found], lambda: False)
    assert (counted.hits, counted.queries) == (0.0, 0.0), "its page of metrics was read"
    return found


def test_whatever_is_asked_of_a_server_beside_the_load_has_the_headers_of_its_class(
    guarded: Guarded, tmp_path: Path
) -> None:
    found = prepared(guarded, tmp_path)
    assert (found.before, found.after, found.again, found.primed, found.fault) == (0, 0, 112, 2, "")
    assert {(method, path) for method, path, _ in guarded.asked} == {
        ("POST", "/v1/chat/completions"),
        ("POST", "/reset_prefix_cache"),
        ("GET", "/metrics"),
    }
    assert all(allowed for *_, allowed in guarded.asked)


@pytest.mark.parametrize(("refusals", "fault"), [([503], ""), ([503, 503], "503"), ([400], "400")])
def test_a_flush_that_a_busy_server_fails_is_tried_again_once(
    refusals: list[int], fault: str, guarded: Guarded, tmp_path: Path
) -> None:
    guarded.refusals = list(refusals)
    found = prepared(guarded, tmp_path)
    said = f"{guarded.url}: its prefix cache was not emptied: /reset_prefix_cache: {fault}"
    assert found.fault == (said if fault else "")
    assert guarded.refusals == []


@pytest.mark.parametrize("engines", [1, 2])
def test_the_engines_of_a_url_are_those_that_its_metrics_name(
    engines: int, guarded: Guarded, tmp_path: Path
) -> None:
    guarded.engines = engines
    assert prepared(guarded, tmp_path).engines == engines
