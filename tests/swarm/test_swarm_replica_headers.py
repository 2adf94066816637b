"""Which response header names the replica: whole runs behind a balancer that names itself first."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

from swarm_process import Result, forked, locust

LOAD = ("--headless", "-u", "4", "-r", "4", "--num-requests", "24", "--output-tokens", "2", "--out", "run")

ANSWER = b"".join(
    b"data: %b\n\n" % line
    for line in (
        b'{"choices": [{"index": 0, "delta": {"content": "a"}}]}',
        b'{"choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": "stop"}]}',
        b"[DONE]",
    )
)


@contextmanager
def balancer(*, lists_by_itself: bool) -> Iterator[str]:
    """A balancer with three replicas in turn, named in X-Upstream. It may list the models by itself."""
    turns = count()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            models = {"object": "list", "data": [{"id": "m", "object": "model"}]}
            self._send(json.dumps(models).encode(), "application/json", by_itself=lists_by_itself)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._send(ANSWER, "text/event-stream")

        def log_message(self, *_: object) -> None:
            pass

        def _send(self, body: bytes, kind: str, *, by_itself: bool = False) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Served-By", "lb-1")
            if not by_itself:
                self.send_header("X-Upstream", f"10.0.0.{next(turns) % 3}:8000")
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def run(folder: Path, *options: str, lists_by_itself: bool) -> tuple[Result, str]:
    with balancer(lists_by_itself=lists_by_itself) as url:
        with locust(folder, *LOAD, "-H", url, *options) as process:
            assert process.exit_code() == 0, process.stderr
        return Result.read(folder / "run"), process.stderr


def test_the_header_that_tells_replicas_apart_is_taken_if_a_look_before_the_load_shows_it(
    tmp_path: Path,
) -> None:
    found, said = run(tmp_path, *forked(2), lists_by_itself=False)
    assert "x-upstream names the replicas: 3 values in 8 answers, while x-served-by had one (lb-1)" in said
    assert [each["name"] for each in found.summary["replicas"]] == [f"10.0.0.{n}:8000" for n in range(3)]
    assert found.summary["fairness"]["better_header"] is None


def test_else_the_report_names_it_by_the_answers_to_all_workers(tmp_path: Path) -> None:
    found, _ = run(tmp_path, *forked(2), lists_by_itself=True)
    assert [each["name"] for each in found.summary["replicas"]] == ["lb-1"]
    part = found.summary["fairness"]
    counted = {each["name"]: (each["answers"], each["values"]) for each in part["headers"]}
    assert counted == {"x-served-by": (24, 1), "x-upstream": (24, 3)}
    assert part["better_header"] == "x-upstream"
    advice = "every answer has x-served-by: lb-1, but x-upstream names 3 replicas"
    assert advice in found.report()


def test_a_header_of_the_users_is_left_in_its_place(tmp_path: Path) -> None:
    found, _ = run(tmp_path, "--replica-header", "X-Served-By", lists_by_itself=False)
    assert [each["name"] for each in found.summary["replicas"]] == ["lb-1"]
    assert found.summary["fairness"]["better_header"] == "x-upstream"
