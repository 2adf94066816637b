"""Runs with Locust's ``--otel``: what a collector gets, beside the records and what the server saw."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from scripted import (
    Step,
    chat_chunk,
    chunk,
    json_response,
    last_chunk,
    response_head,
    scripted_server,
    sse,
    usage_counts,
    write,
)
from swarm_process import (
    Process,
    Result,
    as_worker,
    forked,
    free_port,
    in_parallel,
    locust,
    simulation,
    wait_until,
)

#: Texts that must stand in no span.
PROMPT, ANSWER, KEY = "the prompt's text", "the answer's text", "sk-hush-1"

#: Each kind of user, and each way to end. What ``llm_request`` tells is kept: exactly what was recorded.
LOCUSTFILE = f"""
import json
import os
from pathlib import Path

from locust import task

from llm_locust import ChatUser, CompletionUser, OpenAIUser, events


@events.llm_request.add_listener
def keep(record):
    fields = ("request_id", "outcome", "status", "started_ns", "sent_ns", "ended_ns", "name")
    kept = {{field: getattr(record, field) for field in fields}}
    kept["first_ns"] = int(record.arrivals_ns[0]) if len(record.arrivals_ns) else None
    with Path(f"records-{{os.getpid()}}.jsonl").open("a") as file:
        file.write(json.dumps(kept) + "\\n")


class Chat(ChatUser):
    slo_class = "gold"

    @task
    def one(self):
        self.chat("{PROMPT}")


class Failing(CompletionUser):
    @task
    def one(self):
        self.complete("{PROMPT}")


class Sdk(OpenAIUser):
    request_name = "by the SDK"

    @task
    def one(self):
        messages = [dict(role="user", content="{PROMPT}")]
        for _ in self.client.chat.completions.create(model=self.model, messages=messages, stream=True):
            pass


class Stalled(OpenAIUser):
    fixed_count = 1

    @task
    def one(self):
        self.client.post("/stall", cast_to=object)
"""

ROUTES = {
    "/v1/models": [write(0, json_response({"object": "list", "data": [{"id": "m", "object": "model"}]}))],
    "/v1/chat/completions": [
        write(20, response_head(headers={"X-Served-By": "replica-7"})),
        write(40, chunk(sse(chat_chunk(ANSWER)))),
        write(240, chunk(sse(chat_chunk("x", usage=usage_counts(7, 5))))),
        write(250, chunk(sse(chat_chunk(finish_reason="stop")) + sse("[DONE]")) + last_chunk()),
    ],
    "/v1/completions": [write(30, json_response({"error": {"message": PROMPT}}, status=503))],
    "/v1/stall": [Step(at_ms=0, stall=True)],
}


@contextmanager
def collector(folder: Path, *options: str) -> Iterator[tuple[str, Path]]:
    """A collector's address, and the file of its spans."""
    file = folder / "spans.jsonl"
    script = str(Path(__file__).parents[2] / "support" / "otlp_collector.py")
    process = Process([sys.executable, script, str(file), *options], folder, stdout="collector")
    try:
        wait_until(lambda: "listening on " in process.stdout, "the collector's first word")
        yield process.stdout.split("listening on ")[1].strip(), file
    finally:
        process.end()


def environ(url: str, **more: str) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_ENDPOINT": url,
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
        "KEY": KEY,
        **more,
    }


def lines(*files: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@dataclass(frozen=True)
class Traced:
    """What is known of one run: by the collector, by the listeners, by the server, by what was said."""

    spans: list[dict[str, Any]]
    records: list[dict[str, Any]]
    seen: dict[str, str]  # traceparent by request id
    said: list[str]
    port: int
    result: Result

    def pairs(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Each record with its span."""
        by_id = {span["attributes"]["llm_locust.request_id"]: span for span in self.spans}
        return [(record, by_id[record["request_id"]]) for record in self.records]


OPTIONS = [
    "--otel",
    "--headless",
    "-u",
    "9",
    "-r",
    "100",
    "-t",
    "3s",
    "--drain",
    "0",
    "--out",
    "run",
    "--output-tokens",
    "5",
]


def swarm_of_three(folder: Path) -> Traced:
    """A master and two workers, each with a command of its own."""
    file, port = folder / "users.py", free_port()
    file.write_text(LOCUSTFILE)
    with ExitStack() as stack:
        url, spans = stack.enter_context(collector(folder))
        server = stack.enter_context(scripted_server(routes=ROUTES))

        def start(stdout: str, *options: str) -> Process:
            here = environ(url)
            return stack.enter_context(locust(folder, *options, locustfile=file, environ=here, stdout=stdout))

        as_master = ["--master", "--expect-workers", "2", "--master-bind-port", str(port)]
        keys = ["--api-key-env", "KEY", "--header", "X-Team=hush-team"]
        master = start("master", *as_master, *OPTIONS, *keys, "-H", server.url)
        workers = [start(f"worker-{i}", "--otel", *as_worker(port)) for i in range(2)]
        codes = [p.exit_code() for p in (master, *workers)]
        assert codes in ([1, 0, 0], [3, 0, 0]), master.stderr  # 3: on a busy machine the client was late
        served = [r for r in server.log() if r.method == "POST"]
        return Traced(
            lines(spans),
            lines(*folder.glob("records-*.jsonl")),
            {str(r.header("x-request-id")): str(r.header("traceparent")) for r in served},
            [line for p in (master, *workers) for line in p.lines],
            server.port,
            Result.read(folder / "run"),
        )


def one_run(folder: Path, env: dict[str, str], *options: str, url: str) -> Process:
    """A run of chat users alone, until its end."""
    count = ("-t", "60s", "--num-requests", "200")
    with locust(folder, *OPTIONS, *count, "-H", url, *options, environ=env) as process:
        assert process.exit_code() == 0, process.stderr
        return process


def sampled(folder: Path) -> tuple[list[dict[str, Any]], Result, Process]:
    """By two forked workers."""
    some = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.3"}
    with collector(folder) as (url, spans), simulation(folder / "sim") as sim:
        process = one_run(folder, environ(url, **some), *forked(2), url=sim.url)
        return lines(spans), Result.read(folder / "run"), process


def grpc(folder: Path) -> tuple[list[dict[str, Any]], Result, Process]:
    """Over gRPC, to a collector that takes its time."""
    with (
        collector(folder, "--grpc", "--delay", "1.5") as (url, spans),
        simulation(folder / "sim") as sim,
    ):
        env = environ(url, OTEL_EXPORTER_OTLP_PROTOCOL="grpc", OTEL_EXPORTER_OTLP_INSECURE="true")
        process = one_run(folder, env, "-u", "2", "-t", "4s", "--output-tokens", "50", url=sim.url)
        return lines(spans), Result.read(folder / "run"), process


def without_collector(folder: Path) -> Process:
    with simulation(folder / "sim") as sim:
        env = environ(f"http://127.0.0.1:{free_port()}")
        return one_run(folder, env, "--num-requests", "20", url=sim.url)


def without_sdk(folder: Path) -> Process:
    """The packages are not installed: what finds them first says so."""
    hidden = folder / "hidden" / "opentelemetry"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('hidden')\n")
    with simulation(folder / "sim") as sim:
        env = environ("http://127.0.0.1:1", PYTHONPATH=str(hidden.parent))
        return one_run(folder, env, "--num-requests", "20", url=sim.url)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cases = (swarm_of_three, sampled, grpc, without_collector, without_sdk)
    folder = tmp_path_factory.mktemp("tracing")
    return in_parallel(folder, {case.__name__: case for case in cases}, at_once=2)


@pytest.fixture(scope="module")
def traced(runs: dict[str, Any]) -> Traced:
    found: Traced = runs["swarm_of_three"]
    return found


def test_each_record_has_one_span_and_no_two_share_an_id(traced: Traced) -> None:
    assert len(traced.spans) == len(traced.records) == len(traced.result.rows()) > 20
    assert {record["request_id"] for record in traced.records} == traced.result.rows().keys()
    assert len(traced.pairs()) == len(traced.spans)
    assert len({span["trace_id"] for span in traced.spans}) == len(traced.spans)
    assert len({span["span_id"] for span in traced.spans}) == len(traced.spans)
    assert len({span["attributes"]["llm_locust.worker"] for span in traced.spans}) == 2
    assert {span["scope"] for span in traced.spans} == {"llm_locust"}


def test_the_server_was_told_the_spans_own_ids(traced: Traced) -> None:
    for record, span in traced.pairs():
        assert traced.seen[record["request_id"]] == f"00-{span['trace_id']}-{span['span_id']}-01"
        assert span["parent_id"] == ""
    assert traced.seen.keys() == traced.result.rows().keys()


def test_the_spans_times_are_the_records(traced: Traced) -> None:
    for record, span in traced.pairs():
        assert (span["start_ns"], span["end_ns"]) == (record["sent_ns"], record["ended_ns"])
        first = [] if record["first_ns"] is None else [record["sent_ns"] + record["first_ns"]]
        assert [at for _, at, _ in span["events"]] == first
    assert any(span["events"] for span in traced.spans)


def test_what_ends_badly_has_a_type_and_what_is_cancelled_has_none(traced: Traced) -> None:
    outcomes = {record["outcome"] for record in traced.records}
    assert outcomes == {"ok", "http_error", "cancelled"}
    for record, span in traced.pairs():
        failed = record["outcome"] == "http_error"
        assert span["attributes"].get("error.type") == ("503" if failed else None)
        assert span["status"] == (2 if failed else 0)
        assert span["attributes"]["llm_locust.outcome"] == record["outcome"]


def test_spans_of_every_kind_of_user_are_by_the_conventions(traced: Traced) -> None:
    by_name = {
        (span["name"], span["attributes"]["llm_locust.name"]): span
        for record, span in sorted(
            traced.pairs(), key=lambda pair: "llm_locust.tpot_s" in pair[1]["attributes"]
        )
        if record["outcome"] != "cancelled"  # of a late client's answers some have no TPOT: the last has one
    }
    chat, sdk = by_name["chat m", "chat"], by_name["chat m", "by the SDK"]
    assert by_name["text_completion m", "completions"]["kind"] == "SPAN_KIND_CLIENT"
    for span in (chat, sdk):
        found = span["attributes"]
        assert span["kind"] == "SPAN_KIND_CLIENT"
        assert found["gen_ai.provider.name"] == "openai"
        assert found["gen_ai.response.model"] == "scripted"
        assert found["gen_ai.response.finish_reasons"] == ["stop"]
        assert found["gen_ai.usage.input_tokens"] == 7
        assert found["gen_ai.usage.output_tokens"] == 5
        assert (found["server.address"], found["server.port"]) == ("127.0.0.1", traced.port)
        assert found["llm_locust.replica"] == "replica-7"
        assert found["gen_ai.response.time_to_first_chunk"] == found["llm_locust.ttft_s"] > 0.03
        assert found["llm_locust.tpot_s"] >= 0
        assert found["llm_locust.run"] == traced.result.manifest.id
    assert (chat["attributes"]["llm_locust.class"], chat["attributes"]["gen_ai.request.max_tokens"]) == (
        "gold",
        5,
    )
    assert "gen_ai.request.max_tokens" not in sdk["attributes"]


def test_no_prompt_no_answer_and_no_secret_is_in_a_span(traced: Traced) -> None:
    text = json.dumps(traced.spans)
    for secret in (PROMPT, ANSWER, KEY, "hush-team", "Bearer"):
        assert secret not in text


def test_each_worker_says_how_many_spans_it_exported(traced: Traced) -> None:
    told = [line.rsplit("OpenTelemetry: ", 1)[1] for line in traced.said if "OpenTelemetry: " in line]
    assert len(told) == 2, told
    assert sum(int(text.removesuffix(" spans exported")) for text in told) == len(traced.spans)


def test_forked_workers_export_theirs(runs: dict[str, Any]) -> None:
    spans, result, process = runs["sampled"]
    found = [span["attributes"] for span in spans]
    assert {of["llm_locust.request_id"] for of in found} <= result.rows().keys()
    assert len(spans) == len({of["llm_locust.request_id"] for of in found})
    assert len(spans) == len({(span["trace_id"], span["span_id"]) for span in spans})
    assert len({of["llm_locust.worker"] for of in found}) == 2
    told = [line.rsplit("OpenTelemetry: ", 1)[1] for line in process.lines if "OpenTelemetry: " in line]
    assert sum(int(text.removesuffix(" spans exported")) for text in told) == len(spans), told


def test_the_sampler_is_heeded(runs: dict[str, Any]) -> None:
    spans, result, _ = runs["sampled"]
    rows = len(result.rows())
    assert rows > 100
    assert 0.1 * rows < len(spans) < 0.6 * rows
    assert all(int(span["trace_id"][16:], 16) < 0.3 * 2**64 for span in spans)


def test_exports_over_grpc_do_not_hold_the_event_loop(runs: dict[str, Any]) -> None:
    spans, result, _ = runs["grpc"]
    assert {span["attributes"]["llm_locust.request_id"] for span in spans} == result.rows().keys()
    lags_ns = [row["client_lag_ns"] for row in result.rows().values() if row["client_lag_ns"] is not None]
    assert 0 < max(lags_ns) < 1.2e9


def test_without_a_collector_the_run_is_as_good_and_the_loss_is_told(runs: dict[str, Any]) -> None:
    process = runs["without_collector"]
    told = [line for line in process.lines if "OpenTelemetry: 0 spans exported" in line]
    assert told
    assert "WARNING" in told[-1]
    lost = re.findall(r"(\d+) (?:dropped|refused by the collector)", told[-1])
    assert sum(map(int, lost)) == 20


def test_without_the_packages_the_run_goes_on_and_says_what_to_install(runs: dict[str, Any]) -> None:
    process = runs["without_sdk"]
    assert any("pip install locust[otel]" in line for line in process.lines)
    assert sum("no spans from this process" in line for line in process.lines) == 1
    assert "Traceback" not in process.stderr
