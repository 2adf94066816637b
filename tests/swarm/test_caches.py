"""Prefix caches of replicas: their counters, how they are emptied, servers that fail now and then."""

import json
import math
import threading
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llm_locust.core.manifest import PrefixShare, ReplicaCache
from llm_locust.deployment.replicas import reset_prefix_caches
from llm_locust.deployment.server_metrics import readings
from llm_locust.options.settings import parse_settings
from llm_locust.options.table import GRAMMAR, KEYS
from llm_locust.scenario.document import load_scenario
from llm_locust.swarm.run import prefix_caches
from llm_locust.swarm.run.prefix_caches import (
    Counters,
    PrefixCaches,
    ReplicaError,
    Values,
    counted,
    counters_of,
    prepare,
)
from llm_locust.swarm.run.servers import post_to
from llm_locust.workload.prompts import Prompt

# --- Counters of a replica's prefix caches count by what each has grown by, if that can be


def by_engine(*values: float) -> Values:
    return {frozenset({("engine", str(i))}): value for i, value in enumerate(values)}


def engines(*of: tuple[float, float]) -> Counters:
    """Hits and queries of each engine."""
    hits, queries = zip(*of, strict=True)
    return Counters(by_engine(*hits), by_engine(*queries), len(of))


def sources(queries: float, **hits: float) -> Counters:
    """SGLang's: hits by their source, queries without one."""
    return Counters({frozenset({("cache_source", k)}): v for k, v in hits.items()}, {frozenset(): queries})


@pytest.mark.parametrize(
    ("before", "now", "grown"),
    [
        (engines((1, 4)), engines((3, 10)), (2.0, 6.0)),
        (engines((1, 4), (5, 9)), engines((3, 10), (5, 9)), (2.0, 6.0)),
        (sources(500, device=200), sources(900, device=300, host=50), (150.0, 400.0)),
        (None, None, (None, None)),
    ],
    ids=["one", "one of two is idle", "hits of a source that had none", "a server without counters"],
)
def test_counters_count_by_what_they_have_grown_by(
    before: Counters | None, now: Counters | None, grown: tuple[float | None, float | None]
) -> None:
    found = counted(ReplicaCache(target="http://r"), before, now)
    assert (found.hits, found.queries, found.uncounted) == (*grown, "")
    assert msgspec.convert(msgspec.to_builtins(found), ReplicaCache) == found, "the manifest can be read"


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        (engines((1, 4)), engines((0, 10)), "a counter fell"),
        (engines((0, 0), (10e3, 100e3)), engines((150e3, 300e3), (0, 0)), "a counter fell"),
        (engines((1, 4), (1, 4)), engines((3, 10)), "a counter disappeared"),
        (engines((1, 4)), engines((3, 10), (3, 10)), "an engine appeared"),
        (engines((0, 0)), engines((20e3, 10e3)), "more tokens found (20,000) than looked for (10,000)"),
        (engines((0, 0), (0, 0)), engines((20, 10), (0, 90)), "more tokens found"),
        (sources(500, device=200), sources(510, device=300), "more tokens found (100) than looked for (10)"),
        (engines((1, 4)), engines((1e300, 1e300)), "more than 1e+15 tokens"),
        (engines((1, 4)), engines((math.nan, 10)), "no number"),
        (None, engines((3, 10)), "were not there before the stage"),
        (engines((3, 10)), None, "were not there after the stage"),
    ],
    ids=[
        "restarted",
        "one of two engines restarted, hidden in the sums",
        "one of two engines is gone",
        "an engine that was not prepared",
        "more hits than queries",
        "more hits than queries of one engine",
        "more hits than prompts",
        "absurd",
        "no number",
        "not there before",
        "not there after",
    ],
)
def test_counters_that_cannot_be_right_count_nothing_and_say_why(
    before: Counters | None, now: Counters | None, why: str
) -> None:
    found = counted(ReplicaCache(target="http://r"), before, now)
    assert (found.hits, found.queries) == (None, None)
    assert found.uncounted.startswith("http://r: ")
    assert why in found.uncounted


VLLM_PAGE = """
vllm:num_requests_running{engine="0"} 0
vllm:prefix_cache_queries_total{engine="0"} 100
vllm:prefix_cache_hits_total{engine="0"} 40
vllm:prompt_tokens_total{engine="0"} 999
"""

SGLANG_PAGE = """
sglang:num_running_reqs{model_name="m"} 0
sglang:prompt_tokens_total{model_name="m"} 500
sglang:cached_tokens_total{cache_source="device",model_name="m"} 200
sglang:cached_tokens_total{cache_source="host",model_name="m"} 100
"""


@pytest.mark.parametrize(
    ("page", "found"),
    [
        (VLLM_PAGE, ([40.0], [100.0], 1)),
        (VLLM_PAGE + VLLM_PAGE.replace('"0"', '"1"'), ([40.0, 40.0], [100.0, 100.0], 2)),
        (SGLANG_PAGE, ([200.0, 100.0], [500.0], 1)),
        (SGLANG_PAGE.replace("sglang:cached", "sglang:other"), None),
        (VLLM_PAGE.replace("prefix_cache_hits", "other"), None),
        ("process_cpu_seconds_total 3", None),
    ],
    ids=["vLLM", "two engines", "SGLang", "SGLang before its first hit", "no hits", "neither"],
)
def test_hits_are_of_the_tokens_that_the_server_counts_and_of_each_of_its_engines(
    page: str, found: tuple[list[float], list[float], int] | None
) -> None:
    read = counters_of(readings(page))
    told = None if read is None else ([*read.hits.values()], [*read.queries.values()], read.engines)
    assert told == found


# --- A replica's cache before a stage: what shows that the flush worked, and what is no such proof


PREFIX = PrefixShare.of(0.5, 100, 3)


def primer(number: int | None) -> Prompt:
    return Prompt(text="probe" if number is None else f"prefix {number}")


@dataclass
class FakeReplica:
    """A server that knows what it was sent; ``template`` tokens of every prompt are always cached."""

    url: str = "http://r"
    flushes: bool = True
    refuses: bool = False
    reports: bool = True
    caches: bool = True
    template: int = 0
    fails_at: int = -1
    sent: list[str] = field(default_factory=list)
    known: set[str] = field(default_factory=set)

    def flush(self) -> None:
        if self.refuses:
            raise ReplicaError(f"{self.url}: no")
        if self.flushes:
            self.known.clear()

    def cached(self, prompt: Prompt) -> int | None:
        if len(self.sent) == self.fails_at:
            raise ReplicaError(f"{self.url}: failed")
        text = str(prompt.text)
        self.sent.append(text)
        found = 96 if text in self.known else self.template
        if self.caches:
            self.known.add(text)
        return found if self.reports and self.caches else None


def told(found: ReplicaCache) -> tuple[int | None, int | None, int | None, int]:
    return found.before, found.after, found.again, found.primed


def test_a_cache_that_was_emptied_misses_the_prompt_that_it_had_and_is_filled() -> None:
    replica = FakeReplica()
    found = prepare(replica, PREFIX, primer)
    assert (told(found), found.fault) == ((0, 0, 96, 3), "")
    assert replica.sent == ["probe", "probe", "probe", "prefix 0", "prefix 1", "prefix 2"]


def test_a_flush_that_answers_and_does_nothing_is_seen_by_what_is_still_cached() -> None:
    found = prepare(FakeReplica(flushes=False), PREFIX, primer)
    assert found.fault.startswith("http://r: the flush did nothing: 96 tokens of a prompt")
    assert told(found) == (0, 96, None, 0)


def test_what_every_prompt_shares_with_the_template_is_no_sign_of_it() -> None:
    assert prepare(FakeReplica(template=32), PREFIX, primer).fault == ""


@pytest.mark.parametrize("caches", [True, False])
def test_without_reports_nothing_is_known_of_the_flush_and_nothing_is_claimed(caches: bool) -> None:
    found = prepare(FakeReplica(reports=False, caches=caches, flushes=False), PREFIX, primer)
    assert (told(found), found.fault) == ((None, None, None, 3), "")


def test_a_refused_flush_ends_it_before_anything_is_primed() -> None:
    found = prepare(FakeReplica(refuses=True), PREFIX, primer)
    assert (told(found), found.fault) == ((0, None, None, 0), "http://r: no")


@pytest.mark.parametrize(("at", "primed"), [(0, 0), (2, 0), (3, 0), (5, 2)])
def test_a_request_that_fails_is_a_fault_and_what_was_primed_before_it_is_counted(
    at: int, primed: int
) -> None:
    found = prepare(FakeReplica(fails_at=at), PREFIX, primer)
    assert (found.primed, found.fault) == (primed, "http://r: failed")


def test_prompts_that_share_nothing_need_no_priming() -> None:
    replica = FakeReplica()
    assert prepare(replica, PrefixShare.of(0.0, 100, 3), primer).primed == 0
    assert replica.sent == ["probe"] * 3


# --- The caches of a server that lets in only who has the header of the class, and that fails now and then


SCENARIO = """
input_tokens: 128
output_tokens: 4
sweep: users=1 prefix-share=0%,50%
classes:
  only: {headers: {X-Team-Key: sk-hush}}
"""

SERVER_PREFIX = PrefixShare.of(0.5, 128, 2)


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
    monkeypatch.setattr(prefix_caches, "_AGAIN_S", 0.01)
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
    post = post_to(settings, settings.kinds)
    run: Any = {"model": "m", "seed": 1, "salt": "s", "base": "/v1"}
    made = PrefixCaches(
        [server.url], settings.kinds[0], settings, run, lambda url: reset_prefix_caches([url], post)[0]
    )
    (found,) = made.prepare(SERVER_PREFIX, 0, lambda: False)
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
