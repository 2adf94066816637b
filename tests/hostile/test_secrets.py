"""Known keys in every place that a user may put one: none is in a file, page, log, metric or span."""

import json
import os
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from signal import SIGTERM
from threading import Thread
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import urlopen

import pyarrow.parquet as pq
import pytest
from swarm_process import Process, as_worker, free_port, locust, wait_until

API = "sk-api-0aB1cD2eF3gH4iJ5"
HEADER = "hdr-Team-9zY8xW7vU6tS5r"
CLASS = "cls-Head-5rT6yU7iO8pA9s"
PASSWORD = "open-Sesame-4dF5gH6jK7"
BASIC = b64encode(f"alice:{PASSWORD}".encode()).decode()
METRICS = "mtr-Token-1qW2eR3tY4uI5"
EXPORTER = "otl-Head-2sD3fG4hJ5kL6m"
KEYS = (API, HEADER, CLASS, PASSWORD, BASIC, METRICS, EXPORTER)

LOCUSTFILE = f"""
from locust import task

from llm_locust import ChatUser, OpenAIUser


class Chat(ChatUser):
    headers = {{"X-Class": "{CLASS}"}}

    @task
    def one(self):
        self.chat("hello")


class Unnamed(ChatUser):
    def wrong(answer, prompt):
        return f"it said {{answer}}"

    validators = (wrong,)

    @task
    def one(self):
        self.chat("hello", name="checked")


class Sdk(OpenAIUser):
    @task
    def one(self):
        messages = [dict(role="user", content="hello")]
        for _ in self.client.chat.completions.create(model=self.model, messages=messages, stream=True):
            pass
"""


class Echo(BaseHTTPRequestHandler):
    """Says the keys that it was sent in every place that an answer has."""

    protocol_version = "HTTP/1.1"
    numbers = count()

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            return self._body(200, json.dumps({"data": [{"id": "m"}]}).encode(), "application/json")
        keys = self._keys()
        if next(self.numbers) % 5 == 4:
            return self._raw(f"HTTP/1.1 what {keys[0]}\r\n\r\n".encode())
        name = f'model_name="{keys[0]}"'
        page = f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{{name}}} 3\n"
        return self._body(200, page.encode(), "text/plain")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(0.03)  # some 200 requests a second are many enough
        number = next(self.numbers)
        keys = self._keys()
        key, every = keys[number % len(keys)], " and ".join(keys)
        ways = (
            lambda: self._body(
                401, json.dumps({"error": {"message": f"no: {every}"}}).encode(), "application/json"
            ),
            lambda: self._body(500, f"{quote(key, safe='')} {key[:12]}".encode(), "text/plain"),
            lambda: self._named(key),
            lambda: self._named(key),
            lambda: self._stream([json.dumps({"error": {"message": f"stopped by {every}"}})]),
            lambda: self._body(302, b"", "text/plain", {"Location": f"/elsewhere?key={key}"}),
            lambda: self._body(200, b"{}", f"text/{key}"),
            lambda: self._stream(["{" + key]),
            lambda: self._raw(f"HTTP/1.1 {key}\r\n\r\n".encode()),
            lambda: self._raw(f"HTTP/1.1 200 OK\r\n{key}\r\n\r\n".encode()),
            lambda: self._body(200, b"x", "text/event-stream", {"Content-Encoding": key}),
        )
        ways[number % len(ways)]()

    def _keys(self) -> list[str]:
        names = ("Authorization", "X-Team", "X-Class", "Proxy-Authorization")
        said = [self.headers[name].split()[-1] for name in names if self.headers[name]]
        return [*said, PASSWORD] if BASIC in said else said

    def _named(self, key: str) -> None:
        """An answer that is whole: the key as model, finish reason, text and replica."""
        first = {"choices": [{"index": 0, "delta": {"content": f"you sent {key}"}}], "model": key}
        last = {"choices": [{"index": 0, "delta": {}, "finish_reason": f"because {key}"}], "model": key}
        self._stream([json.dumps(first), json.dumps(last), "[DONE]"], {"X-Served-By": f"replica-{key}"})

    def _stream(self, events: list[str], headers: dict[str, str] | None = None) -> None:
        body = "".join(f"data: {event}\n\n" for event in events).encode()
        self._body(200, body, "text/event-stream", headers)

    def _body(self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _raw(self, answer: bytes) -> None:
        self.wfile.write(answer)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


class EchoServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that leaves a broken answer is no error here."""


@contextmanager
def echo() -> Iterator[str]:
    server = EchoServer(("127.0.0.1", 0), Echo)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


PAGES = (
    *("/", "/stats/requests", "/stats/requests/csv", "/stats/failures/csv", "/stats/report", "/exceptions"),
    *("/exceptions/csv", "/tasks", "/logs", "/worker-count", "/metrics", "/llm/charts", "/llm/series"),
    *("/llm/series.csv", "/llm/names.csv", "/llm/replicas.csv", "/llm/reports"),
)


def fetched(url: str) -> str:
    try:
        with urlopen(url, timeout=120) as answer:
            return str(answer.read().decode())
    except HTTPError as e:
        with e:
            return str(e.read().decode())


def answers(url: str) -> bool:
    try:
        return int(json.loads(fetched(f"{url}/worker-count"))["worker_count"]) == 1
    except (URLError, OSError):
        return False


def requests(url: str) -> int:
    return int(json.loads(fetched(f"{url}/stats/requests"))["stats"][-1]["num_requests"])


@contextmanager
def collector(folder: Path) -> Iterator[str]:
    script = str(Path(__file__).parent.parent / "support" / "otlp_collector.py")
    process = Process([sys.executable, script, str(folder / "spans.jsonl")], folder, stdout="collector")
    try:
        wait_until(lambda: "listening on " in process.stdout, "the collector's first word")
        yield process.stdout.split("listening on ")[1].strip()
    finally:
        process.end()


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Everything that a run under echoing servers left, or showed: by its place."""
    folder = tmp_path_factory.mktemp("echo")
    (folder / "users.py").write_text(LOCUSTFILE)
    web, port = free_port(), free_port()
    found: dict[str, str] = {}
    with collector(folder) as otlp, echo() as url:
        environ = {"API_KEY": API, "METRICS_KEY": METRICS, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
        environ |= {"OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
        environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = otlp
        environ["OTEL_EXPORTER_OTLP_HEADERS"] = f"authorization Bearer {EXPORTER}"  # quoted, since invalid
        options = ["--master", "--master-bind-port", str(port), "--web-port", str(web), "-H", url, "--otel"]
        options += [
            "--out",
            "run",
            "--spool",
            "spool",
            "--api-key-env",
            "API_KEY",
            f"--header=X-Team={HEADER}",
        ]
        options += ["--header", f"Proxy-Authorization=Basic {BASIC}", "--output-tokens", "4"]
        options += ["--metrics-url", f"{url}/metrics", "--metrics-api-key-env", "METRICS_KEY"]
        options += ["--metrics-interval", "0.2s", "--csv", "locust", "--html", "locust.html", "-L", "DEBUG"]
        ui, users = f"http://127.0.0.1:{web}", folder / "users.py"
        with (
            locust(folder, *options, locustfile=users, environ=environ, stdout="master") as master,
            locust(
                folder, "--otel", *as_worker(port), locustfile=users, environ=environ, stdout="worker"
            ) as worker,
        ):
            wait_until(lambda: answers(ui), "the web UI and its worker")
            form = urlencode({"user_count": 6, "spawn_rate": 100}).encode()
            with urlopen(f"{ui}/swarm", form, timeout=120) as answer:
                found["the answer to a start"] = answer.read().decode()
            wait_until(lambda: requests(ui) > 140, "two times each way with each key")
            wait_until(lambda: "Error code" in fetched(f"{ui}/exceptions"), "an exception of the SDK")
            found |= {f"page {path}": fetched(ui + path) for path in PAGES}
            urlopen(f"{ui}/stop", b"", timeout=120).close()
            wait_until(lambda: (folder / "run" / "report.html").exists(), "the report")
            wait_until(lambda: (folder / "spans.jsonl").exists(), "spans")
            found |= {f"page {path} later": fetched(ui + path) for path in PAGES}
            master.signal(SIGTERM)
            master.exit_code()
            worker.exit_code()
            found |= {"master's log": master.stderr, "worker's log": worker.stderr}
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "users.py" and "__pycache__" not in path.parts:
            found[str(path.relative_to(folder))] = path.read_bytes().decode("latin-1")
    found |= {f"{k} in plain": v for k, v in _unpacked(folder / "run").items()}
    return found


def _unpacked(run: Path) -> dict[str, str]:
    """Parquet files as text: their pages are packed."""
    return {path.name: str(pq.read_table(path).to_pylist()) for path in run.glob("*.parquet")}


def test_no_key_that_was_echoed_is_in_a_file_page_log_metric_or_span(seen: dict[str, str]) -> None:
    for key in KEYS:
        for spelling in (key, quote(key, safe=""), key[:12]):
            assert [place for place, text in seen.items() if spelling in text] == []


def test_what_held_the_keys_is_there_without_them(seen: dict[str, str]) -> None:
    records = seen["requests.parquet in plain"]
    assert "no: *** and ***" in records
    assert "stopped by *** and ***" in records
    assert "'replica': 'replica-***'" in records
    assert "'finish_reason': 'because ***'" in records
    assert "it said you sent ***" in records
    assert "***" in seen["server_metrics.parquet in plain"]
    assert "replica-***" in seen["spans.jsonl"]
    assert "because ***" in seen["spans.jsonl"]
    assert "***" in seen["page /exceptions"]
    assert "***" in seen["page /logs"]
    assert "Header format invalid" in seen["master's log"]
    assert "--header=X-Team=***" in json.loads(seen["run/manifest.json"])["command"]


WITH_PASSWORD, WITH_TOKEN = "http://me:hush-hush@127.0.0.1:9", "http://127.0.0.1:9/m?token=hush-hush"

REFUSED: dict[str, tuple[list[str], dict[str, str], str]] = {
    "a password in -H": (["-H", WITH_PASSWORD], {}, "-H"),
    "a password with a slash in -H": (["-H", "http://me:hush/hush@127.0.0.1:9"], {}, "-H"),
    "a token in -H": (["-H", WITH_TOKEN], {}, "-H"),
    "a password in --targets": (["--targets", WITH_PASSWORD], {}, "--targets"),
    "a token in --targets": (["--targets", WITH_TOKEN], {}, "--targets"),
    "a password in --replica-url": (["--replica-url", WITH_PASSWORD], {}, "--replica-url"),
    "a password in --allow-host": (["--allow-host", WITH_PASSWORD], {}, "--allow-host"),
    "a password in --metrics-url": (["--metrics-url", WITH_PASSWORD], {}, "--metrics-url"),
    "a token in --metrics-url": (["--metrics-url", WITH_TOKEN], {}, "--metrics-url"),
    "keys in --upload": (["--upload", "s3://KEY:hush-hush@bucket/x"], {}, "--upload"),
    "a token in --upload": (["--upload", "s3://bucket/x?token=hush-hush"], {}, "--upload"),
    "an endpoint's password in --upload": (
        ["--upload", "s3://bucket/x?endpoint_override=http://me:hush-hush@host"], {}, "--upload"
    ),
    "the key as the variable's name": (["--api-key-env", "sk-hush-hush"], {}, "--api-key-env"),
    "the metrics key as the variable's name": (
        ["--metrics-url", "http://127.0.0.1:9", "--metrics-api-key-env", "sk-hush-hush"], {}, "--metrics-url"
    ),
    "a password in the environment's targets": (
        [], {"LLM_LOCUST_TARGETS": WITH_PASSWORD}, "--targets"
    ),
    "a token in the scenario": (["--scenario", "scenario.yaml"], {}, "upload"),
}  # fmt: skip


#: Each of them headless, and some with the web UI: before the load begins, the way is the same.
CASES = [(name, False) for name in REFUSED] + [
    ("a password in -H", True),
    ("a token in --metrics-url", True),
]


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, Path]]:
    """Exit code, all that was said, and the folder; with the web UI and without."""
    cases = {case: tmp_path_factory.mktemp("refused") for case in CASES}

    def run(case: tuple[str, bool]) -> tuple[int, str, Path]:
        (name, ui), folder = case, cases[case]
        options, environ, _ = REFUSED[name]
        (folder / "scenario.yaml").write_text("upload: s3://bucket/x?token=hush-hush\n")
        host = [] if "-H" in options else ["-H", "http://127.0.0.1:9"]
        how = ["--web-port", str(free_port())] if ui else ["--headless", "-t", "1s"]
        with locust(folder, *how, *host, *options, environ=environ) as process:
            code = process.exit_code()
            return code, process.stderr + process.stdout, folder

    with ThreadPoolExecutor(2) as pool:
        return {f"{name} {ui}": said for (name, ui), said in zip(cases, pool.map(run, cases), strict=True)}


@pytest.mark.parametrize(("name", "ui"), CASES)
def test_a_key_in_an_address_ends_the_process_in_a_line_that_names_the_option(
    refused: dict[str, Any], name: str, ui: bool
) -> None:
    code, said, folder = refused[f"{name} {ui}"]
    assert code == 2, said
    assert REFUSED[name][2] in said
    assert "hush-hush" not in said
    assert "hush@" not in said
    assert "Traceback" not in said
    written = [
        path for path in folder.rglob("*") if path.is_file() and path.name not in ("scenario.yaml", "stdout")
    ]
    assert [p for p in written if b"hush" in p.read_bytes()] == [], os.fspath(folder)
