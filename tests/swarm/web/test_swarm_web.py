"""Runs that are started and stopped in the web UI; its class picker while one goes on."""

import json
import re
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from scripted import refusing_port
from swarm_process import Process, Result, forked, free_port, in_parallel, locust, simulation, wait_until

# --- Runs that are started and stopped in the web UI: each has a directory of its own


SECRET = "sk-hush-hush"


@dataclass(frozen=True, slots=True)
class Ui:
    """Locust's web UI, as a browser uses it."""

    url: str
    process: Process

    def get(self, path: str) -> str:
        with urlopen(self.url + path, timeout=120) as answer:
            text: str = answer.read().decode()
            return text

    def post(self, path: str, **form: str) -> dict[str, Any]:
        with urlopen(self.url + path, data=urlencode(form).encode(), timeout=120) as answer:
            content: dict[str, Any] = json.loads(answer.read())
            return content

    @property
    def state(self) -> str:
        return str(json.loads(self.get("/stats/requests"))["state"])

    def start(self, **form: str) -> None:
        assert self.post("/swarm", user_count="6", spawn_rate="100", **form)["success"]

    def stop(self) -> float:
        """Press stop; gives how long the answer took."""
        since = time.monotonic()
        assert self.post("/stop")["success"]
        return time.monotonic() - since

    def wait_ready(self, workers: int) -> None:
        def ready() -> bool:
            try:
                return int(json.loads(self.get("/worker-count"))["worker_count"]) >= workers
            except OSError:
                return False

        wait_until(ready, "the web UI and its workers")


@dataclass(frozen=True, slots=True)
class Session:
    """What came of one process with a web UI, in which several runs were made."""

    code: int
    process: Process
    runs: list[Result]
    seen: list[set[str]]  # the request ids that each of the two servers saw
    stops_s: list[float]
    refused: list[str]  # what was said of each start that could not be done
    state_after_refusal: str
    page: str


def _session(*topology: str) -> Callable[[Path], Session]:
    def run(folder: Path) -> Session:
        port = str(free_port())
        options = [*topology, "--web-host", "127.0.0.1", "--web-port", port, "--out", "run"]
        options += ["--header", f"Authorization=Bearer {SECRET}", "--output-tokens", "20"]
        with (
            simulation(folder / "one") as one,
            simulation(folder / "two") as two,
            refusing_port() as closed,
            locust(
                folder, *options, *_allowed(two.url, f"http://127.0.0.1:{closed}"), "-H", one.url
            ) as process,
        ):
            ui = Ui(f"http://127.0.0.1:{port}", process)
            ui.wait_ready(2 if topology else 0)
            page = ui.get("/")

            ui.start()
            one.wait_entries(10)
            stops_s = [ui.stop()]
            seen_before = len(one.entries())

            ui.start(host=two.url, slo="ttft=2s")
            two.wait_entries(10)
            with ThreadPoolExecutor(2) as both:
                stops_s += [f.result() for f in [both.submit(ui.stop), both.submit(ui.stop)]]

            before = len(process.said)
            ui.start(host=f"http://127.0.0.1:{closed}")
            process.wait_for("cannot be reached")
            answer = ui.post("/swarm", user_count="6", spawn_rate="100", host=two.url, slo="ttft=soon")
            assert not answer["success"]
            process.wait_for("soon")
            refused, state = process.said[before:], ui.state

            ui.start(host=one.url, slo="")
            one.wait_entries(seen_before + 20)
            process.signal(signal.SIGTERM)
            code = process.exit_code()
            seen = [{entry["request_id"] for entry in sim.entries()} for sim in (one, two)]
            runs = [Result.read(folder / name) for name in ("run", "run-2", "run-3")]
            return Session(code, process, runs, seen, stops_s, refused, state, page)

    return run


def _allowed(*hosts: str) -> list[str]:
    return [word for host in hosts for word in ("--allow-host", host)]


SESSIONS = {"one process": _session(), "two workers": _session(*forked(2))}


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Session]:
    return in_parallel(tmp_path_factory.mktemp("web"), SESSIONS)


@pytest.fixture(params=list(SESSIONS))
def session(request: pytest.FixtureRequest, sessions: dict[str, Session]) -> Session:
    return sessions[request.param]


def test_each_start_makes_a_run_of_its_own_and_each_is_complete(session: Session) -> None:
    assert all(run.manifest.complete for run in session.runs), session.process.stderr
    assert len({run.manifest.id for run in session.runs}) == 3
    assert session.process.stdout.count("Latency, ms") == 3


def test_each_run_has_the_records_of_its_own_requests_only(session: Session) -> None:
    first, second, third = (run.rows() for run in session.runs)
    assert not first.keys() & third.keys()
    for rows, seen in ((first | third, session.seen[0]), (second, session.seen[1])):
        # More than these the server did not see: a start that was refused sent nothing.
        assert seen <= rows.keys()
        assert {rows[other]["outcome"] for other in rows.keys() - seen} <= {"cancelled"}
    for rows in (first, second, third):
        assert sum(row["outcome"] == "ok" for row in rows.values()) >= 10


def test_a_start_takes_host_and_slo_from_the_form(session: Session) -> None:
    first, second, third = session.runs
    assert first.manifest.host == third.manifest.host != second.manifest.host
    assert [run.manifest.slo for run in session.runs] == ["", "ttft=2s", ""]
    assert second.summary["goodput"]["ratio"] is not None


def test_the_second_run_has_its_own_prompts(session: Session) -> None:
    assert len({run.manifest.seed for run in session.runs}) == 3


def test_stop_answers_soon_and_twice(session: Session) -> None:
    assert len(session.stops_s) == 3
    assert max(session.stops_s) < 8


def test_a_start_that_cannot_be_done_says_so_in_one_line_and_the_process_lives_on(session: Session) -> None:
    assert len(session.refused) == 2, session.refused
    assert "cannot be reached" in session.refused[0]
    assert "--slo" in session.refused[1]
    assert "soon" in session.refused[1]
    assert session.state_after_refusal in ("ready", "stopped")


def test_a_refused_start_does_not_spoil_the_exit_code_of_a_later_run(session: Session) -> None:
    assert session.code == 0


def test_header_values_are_in_no_file_log_or_page(session: Session) -> None:
    assert SECRET not in session.page
    assert SECRET not in session.process.stderr
    assert SECRET not in session.process.stdout
    for run in session.runs:
        for path in run.path.iterdir():
            assert SECRET.encode() not in path.read_bytes(), path


def test_nothing_is_left_running_and_no_traceback_is_logged(session: Session) -> None:
    assert session.process.left_over() == []
    assert "Traceback" not in session.process.stderr


# --- The class picker while a run goes on: Locust's dialog *Edit running load test* changes its users only


LOCUSTFILE = """
from flask import jsonify
from locust import LoadTestShape, events, task

from llm_locust import ChatUser


class Chosen(ChatUser):
    @task
    def ask_one(self):
        self.chat()


class Other(ChatUser):
    @task
    def ask_one(self):
        self.chat()


class Steps(LoadTestShape):
    def tick(self):
        return 3, 10


@events.init.add_listener
def on_init(environment, **_):
    @environment.web_ui.app.route("/chosen")
    def chosen():
        shape = type(environment.shape_class).__name__
        return jsonify([[cls.__name__ for cls in environment.user_classes], shape])
"""

NO_SHAPE = "NoneType"


def ask(url: str, form: Sequence[tuple[str, str]] | None = None) -> Any:
    data = None if form is None else urlencode(form).encode()
    with urlopen(url, data, timeout=120) as answer:
        return json.loads(answer.read())


def reaches(url: str, users: int, state: str) -> bool:
    try:
        told = ask(f"{url}/stats/requests")
    except OSError:
        return False
    return bool(told["state"] == state and told["user_count"] == users)


def test_a_start_while_the_last_requests_of_a_run_are_under_way_is_refused(tmp_path: Path) -> None:
    port = str(free_port())
    options = ["--web-host", "127.0.0.1", "--web-port", port, "--out", "run", "--output-tokens", "30"]
    with (
        simulation(tmp_path / "sim", "--step-base", "100ms") as sim,
        locust(tmp_path, *options, "-H", sim.url) as process,
    ):
        ui = Ui(f"http://127.0.0.1:{port}", process)
        ui.wait_ready(0)
        ui.start()
        under_way = re.compile(r"^llm_locust_concurrency [1-9]", re.M)
        wait_until(lambda: under_way.search(ui.get("/metrics")) is not None, "a request")
        with ThreadPoolExecutor(1) as beside:
            stopping = beside.submit(ui.stop)
            process.wait_for("draining")
            answer = ui.post("/swarm", user_count="6", spawn_rate="100")
            stopping.result()
        wait_until(lambda: ui.state == "stopped", "the end of the run")
        ui.start()
        wait_until((tmp_path / "run-2" / "manifest.json").exists, "the next run")
        wait_until(lambda: under_way.search(ui.get("/metrics")) is not None, "a request of it")
        process.signal(signal.SIGTERM)
        assert process.exit_code() == 0
    assert not answer["success"]
    assert "start the next one when they have ended" in answer["message"]
    assert Result.read(tmp_path / "run").manifest.complete
    assert Result.read(tmp_path / "run-2").manifest.complete


def test_editing_a_running_test_keeps_the_classes_and_the_shape_that_were_picked(tmp_path: Path) -> None:
    (tmp_path / "locustfile.py").write_text(LOCUSTFILE)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    options = ["--web-port", str(port), "--class-picker", "--output-tokens", "4"]
    with (
        simulation(tmp_path / "sim") as sim,
        locust(tmp_path, *options, "-H", sim.url, locustfile=tmp_path / "locustfile.py") as process,
    ):
        wait_until(lambda: reaches(url, 0, "ready"), "the web UI")
        ramp = ("spawn_rate", "10")
        both = [("user_classes", "Chosen"), ("user_classes", "Other")]
        start = [("user_count", "1"), ramp, ("user_classes", "Chosen"), ("shape_class", "Default")]
        assert ask(f"{url}/swarm", start)["success"]
        wait_until(lambda: reaches(url, 1, "running"), "the run")

        dialog = [("user_count", "2"), ramp, *both]  # what Locust's page sends
        assert ask(f"{url}/swarm", dialog)["success"]
        wait_until(lambda: reaches(url, 2, "running"), "the second user")
        assert ask(f"{url}/chosen") == [["Chosen"], NO_SHAPE]

        for change in (("user_classes", "Other"), ("shape_class", "Steps")):
            answer = ask(f"{url}/swarm", [("user_count", "2"), ramp, change])
            assert not answer["success"]
            assert f"{change[0]} cannot be changed while a run goes on" in answer["message"]
            assert ask(f"{url}/chosen") == [["Chosen"], NO_SHAPE]
        ask(f"{url}/stop", [])
        wait_until(lambda: reaches(url, 0, "stopped"), "the end of the run")

        assert ask(f"{url}/swarm", [("user_count", "1"), ramp, *both, ("shape_class", "Steps")])["success"]
        wait_until(lambda: reaches(url, 3, "running"), "the run of the shape")
        assert ask(f"{url}/swarm", dialog)["success"]
        assert ask(f"{url}/chosen") == [["Chosen", "Other"], "Steps"]
        assert reaches(url, 3, "running")
        assert "Traceback" not in process.stderr
