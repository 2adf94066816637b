"""What Locust documents for a locustfile, tried on users of this package: it works, or one line says why not.

No run here has an end of its own within the test's patience: each ends by its locustfile, or at once.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from csv import DictReader
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from swarm_process import Result, forked, in_parallel, locust, simulation

USER = """
import gevent
from locust import constant, events, tag, task
from locust.exception import StopUser
from locust.runners import WorkerRunner

from llm_locust import ChatUser, events as ours


class Asker(ChatUser):
    wait_time = constant(0.02)

    @task
    def ask_one(self):
        self.chat("hello")
        {task}
"""

COUNTED = "asked = vars(type(self)).get('asked', 0) + 1; type(self).asked = asked\n        if asked == 10: "

LISTENER = """

@events.init.add_listener
def begin(environment, **_):
    @{hook}.add_listener
    def end(**_):
        if environment.runner.stats.total.num_requests >= 10:
            environment.runner.quit()
"""

STOPPER = """

@events.request.add_listener
def stop(**_):
    Asker.ended = vars(Asker).get("ended", 0) + 1
    if Asker.ended > 4:
        raise StopUser
"""

CHECKER = """

def check(runner):
    while runner.stats.total.num_requests < 10:
        gevent.sleep(0.05)
    runner.stop()


@events.init.add_listener
def begin(environment, **_):
    if not isinstance(environment.runner, WorkerRunner):
        gevent.spawn(check, environment.runner)
"""

NESTED = """

@events.test_stopping.add_listener
@events.test_stop.add_listener
def again(environment, **_):
    environment.runner.quit()
"""

SPAWNED = """

@events.init.add_listener
def begin(environment, **_):
    @events.spawning_complete.add_listener
    def end(**_):
        while environment.runner.stats.total.num_requests < 10:
            gevent.sleep(0.02)
        environment.runner.quit()
"""

STARTED = """

@events.test_start.add_listener
def leave(environment, **_):
    environment.runner.quit()
"""

CODE = """

@events.quitting.add_listener
def decide(environment, **_):
    environment.process_exit_code = {code}


@events.quit.add_listener
def leave(**_):
    {leave}
"""

CATCHING = """
        while True:
            try:
                self.chat("hello")
            except:
                pass
"""

TAGGED = """
from locust import tag, task

from llm_locust import ChatUser


class Admin(ChatUser):
    @tag("admin")
    @task
    def ask_one(self):
        self.chat("hello")


class Guest(ChatUser):
    @tag("guest")
    @task
    def ask_one(self):
        self.chat("hello")
"""

DYING = """
from locust import task

from llm_locust import ChatUser


class Asker(ChatUser):
    def on_start(self):
        {}["token"]

    @task
    def ask_one(self):
        self.chat("hello")
"""

BESIDE = """
from locust import FastHttpUser, HttpUser, constant, task

from llm_locust import ChatUser


class Asker(ChatUser):
    wait_time = constant(0.05)

    @task
    def ask_one(self):
        self.chat("hello")


class Looker(HttpUser):
    wait_time = constant(0.05)

    @task
    def look(self):
        self.client.get("/health", name="health")
        self.client.get("/nowhere")


class Fast(FastHttpUser):
    wait_time = constant(0.05)

    @task
    def look(self):
        self.client.get("/v1/models")
"""

LOGIN = """
import requests
from locust import task

from llm_locust import ChatUser


class Member(ChatUser):
    def on_start(self):
        self.asked = 0
        self.log_in("first")

    def log_in(self, time):
        known = {"user": f"{self.number}-{time}"}
        answer = requests.post(f"{self.host}/login", json=known, timeout=10)
        self.headers = {"Authorization": f"Bearer {answer.json()['token']}"}

    @task
    def ask_one(self):
        self.chat("hello")
        self.asked += 1
        if self.asked == 5:
            self.log_in("again")
"""

SETS = """
from locust import SequentialTaskSet, TaskSet, constant, tag, task

from llm_locust import ChatUser


class Visitor(ChatUser):
    wait_time = constant(0.1)

    @task
    class Visit(TaskSet):
        @tag("talk")
        @task
        class Talk(SequentialTaskSet):
            @task
            def ask_one(self):
                self.user.chat("hello", name="one")

            @task
            def ask_two(self):
                self.user.chat("hello", name="two")
                self.interrupt(reschedule=False)

        @tag("silent")
        @task
        def look(self):
            self.user.chat("hello", name="never")
"""

USUAL = ("--headless", "-r", "100", "--out", "run", "--output-tokens", "4", "--drain", "20s")
LONG = ("-u", "3", "-t", "600s")


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    said: str
    page: str
    result: Result | None

    @property
    def last(self) -> str:
        """The last lines of the report as one: the result, its cause, the code."""
        return " ".join(self.page.rstrip().rpartition("\n\n")[2].split())

    @property
    def reason(self) -> str:
        assert self.result is not None
        return self.result.manifest.stop_reason


def _user(task: str = "pass", *more: str) -> str:
    return USER.replace("{task}", task) + "".join(more)


def _run(locustfile: str, *options: str) -> Callable[[Path], Ended]:
    def run(folder: Path) -> Ended:
        (folder / "asker.py").write_text(locustfile)
        with (
            simulation(folder / "sim") as sim,
            locust(folder, *USUAL, *options, "-H", sim.url, locustfile=folder / "asker.py") as process,
        ):
            code = process.exit_code()
            done = (folder / "run" / "summary.json").exists()
            result = Result.read(folder / "run") if done else None
            return Ended(code, process.stderr, process.stdout, result)

    return run


@contextmanager
def _members_only() -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """A server that gives each user a token, and refuses all other requests without one; what it was sent."""
    asked: list[tuple[str, str | None]] = []

    class Door(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked.append((self.path, self.headers.get("Authorization")))
            if self.path == "/login":
                self._answer(200, json.dumps({"token": f"t{json.loads(body)['user']}"}))
            elif not (self.headers.get("Authorization") or "").startswith("Bearer t"):
                self._answer(401, "{}")
            else:
                chunk = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}
                self._answer(200, f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n", "text/event-stream")

        def _answer(self, status: int, text: str, kind: str = "application/json") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


ENDING = {
    "quit in a task": _run(_user(COUNTED + "self.environment.runner.quit()"), *LONG),
    "stop in a task": _run(_user(COUNTED + "self.environment.runner.stop()"), *LONG),
    "quit in a task of a worker": _run(_user(COUNTED + "self.environment.runner.quit()"), *LONG, *forked(2)),
    "sys.exit() in a task": _run(_user(COUNTED + "raise SystemExit"), *LONG),
    "quit in a listener to requests": _run(_user("pass", LISTENER.format(hook="events.request")), *LONG),
    "quit in a listener to our records": _run(_user("pass", LISTENER.format(hook="ours.llm_request")), *LONG),
    "stop by a checking greenlet": _run(_user("pass", CHECKER), *LONG),
    "quit in a listener to the last user's start": _run(_user("pass", SPAWNED), *LONG),
    "quit again in listeners to the end": _run(
        _user(COUNTED + "self.environment.runner.quit()", NESTED), *LONG
    ),
}
BRIEF = ("-u", "2", "-t", "1s")
GATE = (*BRIEF, "--gate", "p50_ttft<0.001ms")
OTHERS = {
    "0 and a broken gate": _run(_user("pass", CODE.format(code=0, leave="pass")), *GATE),
    "sys.exit(0) by a listener": _run(_user("pass", CODE.format(code=0, leave="raise SystemExit(0)")), *GATE),
    "7 by a listener": _run(_user("pass", CODE.format(code=7, leave="pass")), *BRIEF),
    "catching everything": _run(_user("pass\n" + CATCHING), *BRIEF),
    "a tag of one class": _run(TAGGED, *BRIEF, "--tags", "guest"),
    "a tag of none": _run(TAGGED, *BRIEF, "--tags", "gest"),
    "beside HttpUsers": _run(BESIDE, "-u", "3", "-t", "3s"),
    "beside HttpUsers of two workers": _run(BESIDE, "-u", "6", "-t", "3s", *forked(2)),
    "stopping users by a listener": _run(_user("pass", STOPPER), *BRIEF),
    "dying in on_start": _run(DYING, *LONG),
    "sys.exit(7) in a task": _run(_user(COUNTED + "raise SystemExit(7)"), *LONG),
    "sys.exit(7) in a task of a worker": _run(_user(COUNTED + "raise SystemExit(7)"), *LONG, *forked(2)),
    "quit in a listener to the start": _run(_user("pass", STARTED), *LONG),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    return in_parallel(tmp_path_factory.mktemp("hooks"), {**ENDING, **OTHERS})


@pytest.mark.parametrize("name", ENDING)
def test_a_load_that_the_locustfile_ends_is_over_complete_and_not_cut_short(
    name: str, runs: dict[str, Ended]
) -> None:
    run = runs[name]
    assert run.result is not None, run.said
    assert run.code == 0, run.said + run.page
    assert run.result.manifest.complete
    assert not run.result.manifest.cut_short
    assert 10 <= len(run.result.requests) < 300, "it ended soon, not after 600 s"
    if name != "stop by a checking greenlet":
        assert run.reason == "the locustfile (runner.stop or runner.quit)"
    assert "Traceback" not in run.said


@pytest.mark.parametrize("name", ["0 and a broken gate", "sys.exit(0) by a listener"])
def test_no_listener_turns_a_broken_gate_into_a_success(name: str, runs: dict[str, Ended]) -> None:
    assert runs[name].code == 1, runs[name].said
    assert runs[name].last.startswith("FAIL")
    assert runs[name].last.endswith("exit 1")


def test_a_listener_may_end_a_user(runs: dict[str, Ended]) -> None:
    run = runs["stopping users by a listener"]
    assert run.result is not None, run.said
    assert 5 <= len(run.result.requests) < 20, "each user ends soon, not after 2 s"


def test_a_listener_may_make_a_failure_of_a_run_that_is_none(runs: dict[str, Ended]) -> None:
    run = runs["7 by a listener"]
    assert run.code == 7
    assert "the locustfile has set it (process_exit_code)" in run.last


@pytest.mark.parametrize("name", ["sys.exit(7) in a task", "sys.exit(7) in a task of a worker"])
def test_a_task_that_exits_ends_the_load_with_its_code_and_a_whole_report(
    name: str, runs: dict[str, Ended]
) -> None:
    run = runs[name]
    assert run.result is not None, run.said
    assert run.code == 7, run.said
    assert run.result.manifest.complete
    assert "the locustfile ends the load (sys.exit(7))" in run.said
    assert "Traceback" not in run.said


def test_users_that_catch_everything_end_with_the_load(runs: dict[str, Ended]) -> None:
    run = runs["catching everything"]
    assert run.result is not None
    assert run.result.manifest.complete
    assert run.code == 0, run.said


def test_a_class_without_a_task_of_the_tags_is_left_out_and_a_tag_of_none_refused(
    runs: dict[str, Ended],
) -> None:
    one, none = runs["a tag of one class"], runs["a tag of none"]
    assert one.code == 0, one.said
    assert "the tags leave no task of Admin: no user of that class is started" in one.said
    assert "Traceback" not in one.said + none.said
    assert none.code == 2
    assert none.said.rstrip().rpartition("\n")[2] == (
        "llm-locust: error: --tags and --exclude-tags leave no task of Admin, Guest: tasks have the tags "
        "'admin', 'guest'"
    )


def test_users_that_all_die_in_on_start_end_the_run_at_once_with_one_traceback(
    runs: dict[str, Ended],
) -> None:
    run = runs["dying in on_start"]
    assert run.code == 3
    assert run.said.count("Traceback") == 1
    assert "KeyError: 'token'" in run.last
    assert "at asker.py:9 in on_start" in run.last


def test_a_load_that_a_listener_to_its_start_ends_is_refused_at_once(runs: dict[str, Ended]) -> None:
    run = runs["quit in a listener to the start"]
    assert run.code == 2
    assert "ERROR: a listener to test_start ends the load (runner.stop or quit) before it begins" in run.said
    assert "Traceback" not in run.said


@pytest.mark.parametrize("name", ["beside HttpUsers", "beside HttpUsers of two workers"])
def test_requests_of_locusts_own_users_are_in_a_table_and_their_failures_fail_no_run(
    name: str, runs: dict[str, Ended]
) -> None:
    run = runs[name]
    assert run.result is not None
    assert run.code == 0, run.said + run.page
    found = {each["name"]: each for each in run.result.summary["other_requests"]}
    assert found.keys() == {"health", "/nowhere", "/v1/models"}, "and none of ours"
    assert found["/nowhere"]["failures"] == found["/nowhere"]["requests"] > 0
    assert found["health"]["failures"] == found["/v1/models"]["failures"] == 0
    assert all(0 < each["p50_ms"] <= each["p95_ms"] for each in found.values())
    counted = sum(each.requests for worker in run.result.manifest.workers for each in worker.others)
    assert counted == sum(each["requests"] for each in found.values())
    lost = found["/nowhere"]["failures"]
    assert f"{lost} of {counted} other requests failed: GET /nowhere" in run.page


def test_locusts_own_files_have_the_tasks_of_nested_sets_by_name_and_as_often_as_they_were_sent(
    tmp_path: Path,
) -> None:
    (tmp_path / "asker.py").write_text(SETS)
    with simulation(tmp_path / "sim") as sim:
        load = ["-u", "2", "--num-requests", "40", "-t", "60s", "--tags", "talk", "-H", sim.url]
        files = ["--csv", "stats", "--html", "page.html", "--json-file", "stats"]
        with locust(tmp_path, *USUAL, *load, *files, locustfile=tmp_path / "asker.py") as process:
            assert process.exit_code() == 0, process.stderr
    counted = Counter(row["name"] for row in Result.read(tmp_path / "run").rows().values())
    assert set(counted) == {"one", "two"}
    assert counted.total() == 40
    assert abs(counted["one"] - counted["two"]) <= 2, "each user asks both in turn"
    told = {each["name"]: each["num_requests"] for each in json.loads((tmp_path / "stats.json").read_text())}
    assert told == dict(counted)
    assert all(f'"{name}"' in (tmp_path / "page.html").read_text() for name in counted)
    with (tmp_path / "stats_stats.csv").open() as file:
        rows = {row["Name"]: int(row["Request Count"]) for row in DictReader(file)}
    assert rows.keys() == {*counted, "Aggregated"}
    assert all(0 < rows[name] <= counted[name] for name in counted), "Locust writes this file once a second"


def test_users_log_in_in_on_start_and_each_sends_its_own_token(tmp_path: Path) -> None:
    (tmp_path / "asker.py").write_text(LOGIN)
    with _members_only() as (url, asked):
        options = ["-u", "3", "-t", "2s", "-H", url, "--model", "m", "--canary", "off"]
        with locust(tmp_path, *USUAL, *options, locustfile=tmp_path / "asker.py") as process:
            assert process.exit_code() == 0, process.stderr
    assert {path for path, _ in asked} == {"/login", "/v1/chat/completions"}, "no look at /models"
    tokens = {token for path, token in asked if path != "/login"}
    assert tokens == {f"Bearer t{user}-{time}" for user in range(3) for time in ("first", "again")}
