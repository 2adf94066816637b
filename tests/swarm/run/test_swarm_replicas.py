"""No load before all replicas are there, and which response header names them."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from signal import SIGINT

import pytest
from swarm_process import Result, as_worker, forked, free_port, locust, simulation, wait_until

from llm_locust.deployment.replicas import ProfileError, ProfileSpan
from llm_locust.deployment.targets import Reuse
from llm_locust.options.deployment import DeploymentSettings, parse_urls, patience_s
from llm_locust.store import read_manifest
from llm_locust.swarm.run.servers import ServerCalls

# --- No load before all replicas are there: whole runs against deployments that are there in part


ONCE = ("--headless", "-u", "2", "-r", "2", "-t", "2s", "--output-tokens", "40")


@contextmanager
def replicas(folder: Path, count: int, first_port: int = 0) -> Iterator[list[str]]:
    """Replicas with ports of their own; gives their URLs."""
    options = ("--replicas", str(count), "--replica-ports", str(first_port))
    with simulation(folder, *options):
        out = folder / "sim.out"
        wait_until(lambda: out.read_text().count(" on http") >= count + 1, "the replicas' ports")
        lines = [line for line in out.read_text().splitlines() if line.startswith("replica-")]
        yield [line.split(" on ")[1].removesuffix("/v1") for line in lines]


def free_ports(count: int) -> int:
    """The first of ``count`` ports in a row that nobody listens on."""
    for first in range(21_000, 29_000, count):
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError("no free ports")


def asked_of(folder: Path) -> int:
    return (folder / "truth.jsonl").read_text().count("\n")


# -- readiness ------------------------------------------------------------------------------


def test_five_of_eight_replicas_are_no_deployment_and_the_line_names_the_three(tmp_path: Path) -> None:
    first = free_ports(3)
    with replicas(tmp_path / "up", 5) as up:
        down = [f"http://127.0.0.1:{first + i}" for i in range(3)]
        options = ("--targets", ",".join(up + down), "--ready-timeout", "2s", "--out", "run")
        with locust(tmp_path, *ONCE, *options) as run:
            assert run.exit_code() == 2
        (said,) = [line for line in run.said if "does not start" in line]
        assert "5 of 8 replicas are ready" in said
        assert all(url in said for url in down)
        assert not any(url in said for url in up)
        assert not (tmp_path / "run" / "manifest.json").exists()
        assert asked_of(tmp_path / "up") == 5  # one token of each, and no load


def test_the_load_starts_when_the_missing_ones_have_come(tmp_path: Path) -> None:
    first = free_ports(3)
    with replicas(tmp_path / "up", 5) as up:
        down = [f"http://127.0.0.1:{first + i}" for i in range(3)]
        options = ("--targets", ",".join(up + down), "--ready-timeout", "30s", "--out", "run")
        with locust(tmp_path, *ONCE, *options) as run:
            run.wait_for("5 of 8 replicas are ready")
            with replicas(tmp_path / "late", 3, first):
                run.wait_for("all 8 replicas are ready")
                assert run.exit_code() == 0
                manifest = read_manifest(tmp_path / "run")
                assert sorted(manifest.replicas_ready) == sorted(up + down)
                assert manifest.ready_s is not None
                assert len(manifest.targets) == 8
                assert asked_of(tmp_path / "late") > 3


def test_a_master_asks_its_target_once_its_workers_are_there(tmp_path: Path) -> None:
    port, target = free_port(), free_ports(1)
    common = ("--headless", "-u", "1", "--num-requests", "2", "-t", "120s", "--output-tokens", "4")
    wait = ("--ready-timeout", "100s", "-H", f"http://127.0.0.1:{target}", "--out", "run")
    master = ("--master", "--master-bind-port", str(port), "--master-bind-host", "127.0.0.1")
    with locust(tmp_path, *common, *wait, *master) as run:
        run.wait_for("waiting for 1 workers, then for the target")
        assert "replicas are ready" not in run.stderr
        with locust(tmp_path, *as_worker(port), stdout="worker") as worker:
            run.wait_for("0 of 1 replicas are ready")
            with simulation(tmp_path / "late", "--port", str(target)):
                run.wait_for("1 replica is ready after")
                assert run.exit_code() == 0, run.stderr
                assert worker.exit_code() == 0
    assert read_manifest(tmp_path / "run").ready_s is not None


def test_workers_that_never_come_end_the_start(tmp_path: Path) -> None:
    bound = ("--expect-workers", "2", "--expect-workers-max-wait", "1", "--ready-timeout", "100s")
    master = ("--master", "--master-bind-port", str(free_port()), "-H", "http://127.0.0.1:9")
    with locust(tmp_path, *ONCE, *bound, *master) as run:
        assert run.exit_code() == 2
    assert "0 of 2 workers have joined after 1 s" in run.stderr


def test_replicas_are_counted_through_the_balancer(tmp_path: Path) -> None:
    with simulation(tmp_path, "--replicas", "4") as sim:
        with locust(tmp_path, *ONCE, "-H", sim.url, "--expect-replicas", "4", "--out", "all") as run:
            assert run.exit_code() == 0
        assert read_manifest(tmp_path / "all").replicas_ready == [f"replica-{i}" for i in range(4)]
        few = ("--expect-replicas", "5", "--ready-timeout", "2s", "--out", "few")
        with locust(tmp_path, *ONCE, "-H", sim.url, *few) as run:
            assert run.exit_code() == 2
        assert "4 of 5 replicas answered" in run.stderr
        assert "1 are missing" in run.stderr


def test_a_refused_key_is_said_at_once(tmp_path: Path) -> None:
    with simulation(tmp_path, "--api-key", "sesame") as sim:
        began_s = time.monotonic()
        with locust(tmp_path, *ONCE, "-H", sim.url, "--ready-timeout", "60s") as run:
            assert run.exit_code() == 2
        assert "requests without a key (HTTP 401)" in run.stderr
        assert time.monotonic() - began_s < 30


def test_ctrl_c_ends_the_wait(tmp_path: Path) -> None:
    missing = f"http://127.0.0.1:{free_ports(1)}"
    with locust(tmp_path, *ONCE, "--targets", missing, "--ready-timeout", "60s") as run:
        run.wait_for("0 of 1 replicas are ready")
        run.signal_group(SIGINT)
        assert run.exit_code() != 0
    assert "Traceback" not in run.stderr


def test_replicas_are_waited_for_where_somebody_names_them() -> None:
    assert patience_s(DeploymentSettings()) is None
    assert patience_s(DeploymentSettings(expect_replicas=2)) == 60
    assert patience_s(DeploymentSettings(targets=("http://a",), ready_timeout_s=5)) == 5
    assert patience_s(DeploymentSettings(ready_timeout_s=7)) == 7
    assert DeploymentSettings().reuse == Reuse(None)


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("http://a:1,http://b:2", ("http://a:1", "http://b:2")),
        (" http://a:1 , http://a:1 ", ("http://a:1",)),
        ("dns+http://a:1", ("dns+http://a:1",)),
        ("", ()),
    ],
)
def test_urls_are_listed_with_commas_or_spaces(text: str, urls: tuple[str, ...]) -> None:
    assert parse_urls(text) == urls


@pytest.mark.parametrize(
    ("text", "what"),
    [("ftp://a", "ftp://a"), ("dns+https://a", "certificates"), ("http://u:p@a", "leave user")],
)
def test_another_url_is_refused_by_name(text: str, what: str) -> None:
    with pytest.raises(ValueError, match=what) as error:
        parse_urls(text)
    assert "u:p" not in str(error.value)


# -- calls beside the load ------------------------------------------------------------------


class Server:
    """Notes what is posted; refuses what it does not know."""

    def __init__(self, *paths: str) -> None:
        self.paths = paths
        self.posted: list[str] = []

    def post(self, url: str) -> int:
        path = "/" + url.split("/", 3)[3]
        self.posted.append(path)
        return 200 if path in self.paths else 404


def calls(
    server: Server,
    settings: DeploymentSettings,
    clock: list[int],
    told: Callable[[str], None] = lambda _: None,
    **more: float,
) -> ServerCalls:
    return ServerCalls(
        settings,
        ["http://a/v1", "http://b/v1"],
        server.post,
        lambda: clock[0],
        warmup_s=more.get("warmup_s", 0.0),
        run_s=more.get("run_s"),
        on_call=told,
    )


def test_the_profiler_of_every_replica_starts_and_stops_at_its_moment() -> None:
    server, clock = Server("/start_profile", "/stop_profile"), [0]

    def now() -> bool:
        clock[0] += 100_000_000
        return False

    told: list[str] = []
    made = calls(server, DeploymentSettings(profile=ProfileSpan(1.0, 2.0)), clock, told.append)
    made.watch(0, now)
    assert told == ["/start_profile: 2 replicas", "/stop_profile: 2 replicas"]
    assert server.posted == ["/start_profile"] * 2 + ["/stop_profile"] * 2
    assert [round(call.at_ns * 1e-9) for call in made.made] == [2, 2, 3, 3]
    assert all(call.done for call in made.made)


def test_a_profiler_that_was_started_is_stopped_with_the_run() -> None:
    server, clock = Server("/start_profile", "/stop_profile"), [3_000_000_000]
    made = calls(server, DeploymentSettings(profile=ProfileSpan(60.0, 2.0)), clock)
    ends = iter([False, False])
    made.watch(0, lambda: next(ends, True))
    assert server.posted == ["/start_profile"] * 2 + ["/stop_profile"] * 2


def test_a_run_that_ends_before_the_profile_asks_nothing() -> None:
    server, clock = Server("/start_profile", "/stop_profile"), [0]
    made = calls(server, DeploymentSettings(profile=ProfileSpan(1.0, 2.0)), clock)
    made.watch(0, lambda: True)
    assert (server.posted, made.made) == ([], [])
    with pytest.raises(ProfileError, match="the run is over after 1 s"):
        calls(server, DeploymentSettings(profile=ProfileSpan(1.0, 2.0)), clock, run_s=1.0)


def test_prefix_caches_are_emptied_before_the_load_and_before_what_is_measured() -> None:
    server, clock = Server("/flush_cache"), [5_000_000_000]
    made = calls(server, DeploymentSettings(reset_prefix_cache="both"), clock, warmup_s=5.0)
    made.before_load()
    assert sorted(server.posted) == ["/flush_cache"] * 2 + ["/reset_prefix_cache"] * 2
    made.watch(0, lambda: False)
    assert server.posted.count("/flush_cache") == 4
    assert [(call.path, call.status) for call in made.made] == [("/flush_cache", 200)] * 4


def test_a_server_without_it_is_named(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    made = calls(server, DeploymentSettings(reset_prefix_cache="start"), [0])
    made.before_load()
    assert not any(call.done for call in made.made)
    assert "2 of 2 replicas did not: http://a/v1 (404), http://b/v1 (404)" in caplog.text


def test_a_run_profiles_every_replica_and_says_so(tmp_path: Path) -> None:
    with replicas(tmp_path / "sim", 2) as urls:
        asks = ("--profile-server", "1s@1s", "--reset-prefix-cache", "both", "--warmup", "500ms")
        options = ("--headless", "-u", "2", "-t", "4s", "--out", "run", "--output-tokens", "40")
        with locust(tmp_path, *options, "--targets", ",".join(urls), *asks) as run:
            assert run.exit_code() == 0, run.stderr
        truth = (tmp_path / "sim" / "truth.jsonl.events.jsonl").read_text()
        events = [json.loads(line) for line in truth.splitlines()]
        for replica in ("replica-0", "replica-1"):
            done = [e["action"] for e in events if e["replica"] == replica]
            assert done == ["reset_prefix_cache"] * 2 + ["start_profile", "stop_profile"]
        result = Result.read(tmp_path / "run")
        calls = result.manifest.server_calls
        assert len(calls) == 8
        assert all(call.done for call in calls)
        assert "profiler started at 1" in (report := result.report())
        assert "of the window: its cost is part of the latencies" in report


# --- Which response header names the replica: whole runs behind a balancer that names itself first


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
