"""What forms of the web UI may set, and where it listens."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

import psutil
import pytest
from swarm_process import PATIENCE_S, Process, free_port, locust, simulation, wait_until

# --- What forms of the web UI may set: whoever reaches it can send any field, with or without a browser


KEY = "sk-only-for-the-host-of-the-command-line"
EVIL = "http://127.0.0.1:9"

#: Shows every option, and what users are made of.
LOCUSTFILE = """
from flask import jsonify
from locust import events

from llm_locust import ScenarioUser


class Scenario(ScenarioUser):
    pass


@events.init.add_listener
def on_init(environment, **_):
    @environment.web_ui.app.route("/state")
    def state():
        shown = {k: repr(v) for k, v in vars(environment.parsed_options).items() if k != "llm_run"}
        own = {k: repr(v) for k, v in vars(Scenario).items() if not k.startswith("__")}
        environment_ = {"host": environment.host, "profile": environment.profile}
        return jsonify({"options": shown, "class": own, "environment": environment_})
"""

SCENARIO = """
classes:
  chat:
    output_tokens: 4
"""


@dataclass(frozen=True, slots=True)
class Ui:
    url: str
    process: Process
    folder: Path

    def send(self, path: str, body: bytes | None = None, **headers: str) -> tuple[int, str]:
        try:
            with urlopen(Request(self.url + path, body, headers), timeout=120) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as e:
            with e:
                return e.code, e.read().decode()

    def start(self, **form: str) -> dict[str, Any]:
        fields = {"user_count": "1", "spawn_rate": "10", **form}
        status, text = self.send("/swarm", urlencode(fields).encode())
        assert status == 200, text
        said: dict[str, Any] = json.loads(text)
        return said

    def set_user(self, **settings: object) -> tuple[int, str]:
        return self.send("/user", json.dumps(settings).encode())

    @property
    def state(self) -> Any:
        return json.loads(self.send("/state")[1])

    @property
    def runs(self) -> list[Path]:
        return sorted((self.folder / "runs").glob("*/manifest.json"))

    def wait_state(self, *states: str) -> None:
        def reached() -> bool:
            return json.loads(self.send("/stats/requests")[1])["state"] in states

        wait_until(reached, f"the state {states}")


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    folder = tmp_path_factory.mktemp("forms")
    (folder / "locustfile.py").write_text(LOCUSTFILE)
    (folder / "scenario.yaml").write_text(SCENARIO)
    (folder / "prompts.txt").write_text("What is this?\n")
    port = str(free_port())
    options = ["--web-port", port, "--api-key-env", "THE_KEY", "--scenario", "scenario.yaml"]
    options += ["--dataset", "prompts.txt", "--allow-host", "http://allowed.example:8000"]
    with (
        simulation(folder / "sim") as sim,
        locust(
            folder, *options, "-H", sim.url, locustfile=folder / "locustfile.py", environ={"THE_KEY": KEY}
        ) as process,
    ):
        made = Ui(f"http://127.0.0.1:{port}", process, folder)
        process.wait_for("Starting web interface")
        wait_until(lambda: _answers(made), "the web UI")
        yield made
        assert "Traceback" not in process.stderr
        assert KEY not in process.stderr


def _answers(ui: Ui) -> bool:
    try:
        return ui.send("/state")[0] == 200
    except OSError:
        return False


#: Each sets something that no form is for; with Locust's own view all but the last few were set.
ATTACKS: dict[str, dict[str, str]] = {
    "code by a validator": {"llm_scenario": '{"classes": {"a": {"validators": [{"function": "os:abort"}]}}}'},
    "any variable as a key": {"api_key_env": "HOME"},
    "the key to another host": {"host": EVIL},
    "the key to another port": {"host": "http://127.0.0.1"},
    "a host behind a user name": {"host": "http://allowed.example:8000@127.0.0.1:9"},
    "a host that loses its brackets": {"host": "http://<>127.0.0.1:9"},
    "a host with a tab": {"host": "http://127.0.0.1:9\t"},
    "another scheme": {"host": "https://allowed.example:8000"},
    "targets": {"targets": EVIL},
    "a header": {"header": "X-A=b"},
    "metrics of another host": {"metrics_url": f"{EVIL}/metrics"},
    "a metrics key": {"metrics_api_key_env": "HOME"},
    "any file as prompts": {"dataset": "/etc/passwd"},
    "any file as lengths": {"input_tokens": "file:/etc/passwd"},
    "any file as lengths of answers": {"output_tokens": " FILE :/etc/passwd"},
    "any file as a trace": {"arrival": "trace:/etc/passwd"},
    "any directory to write": {"out": "/tmp/elsewhere"},
    "an upload": {"upload": "s3://bucket/x"},
    "a spool": {"spool": "/tmp/elsewhere"},
    "the hosts that are allowed": {"allow_host": EVIL},
    "the names of the web UI": {"web_name": "evil.example"},
    "certificates": {"ca_cert": "/etc/passwd"},
    "a tokenizer": {"tokenizer": "/etc"},
    "Locust's report": {"html_file": "/tmp/elsewhere.html"},
    "Locust's CSV": {"csv_prefix": "/tmp/elsewhere"},
    "Locust's locustfile": {"locustfile": EVIL},
    "Locust's tags": {"tags": "a,b"},
    "the run's own facts": {"llm_run": "x"},
    "a field of its own": {"anything": "x"},
    "a run without end": {"run_time": "99999999h"},
    "users without number": {"user_count": "99999999999"},
    "a rate that is not a number": {"spawn_rate": "nan"},
    "a long value": {"slo": "ttft=1s " * 1000},
    "a line break": {"model": "a\nb"},
    "a value that does not parse": {"slo": "ttft=soon"},
    "a choice that is not there": {"request_rate": "-5"},
}


@pytest.mark.parametrize("attack", list(ATTACKS))
def test_a_form_that_sets_what_is_not_for_it_is_refused_and_nothing_is_set(ui: Ui, attack: str) -> None:
    form = ATTACKS[attack]
    before, said, runs = ui.state, len(ui.process.lines), ui.runs
    answer = ui.start(**form)
    assert not answer["success"]
    assert "\n" not in answer["message"]
    field = next(iter(form))
    assert field in answer["message"] or f"--{field.replace('_', '-')}" in answer["message"], answer
    assert ui.state == before
    assert ui.runs == runs
    refused = "refused a request to the web UI"
    wait_until(lambda: any(refused in line for line in ui.process.lines[said:]), refused)


def test_a_refused_host_names_the_option_that_allows_one(ui: Ui) -> None:
    assert "--allow-host" in ui.start(host=EVIL)["message"]


USER_ATTACKS: dict[str, dict[str, object]] = {
    "code by a validator": {"validators": ["os:abort"]},
    "headers": {"headers": {"X-A": "b"}},
    "another host": {"host": EVIL},
    "the endpoint": {"endpoint": "chat"},
    "a method": {"on_start": "x"},
    "a weight that is none": {"weight": "9"},
    "a weight without bound": {"weight": 10**12},
    "a flag as weight": {"fixed_count": True},
    "a task that there is not": {"tasks": ["__init__"]},
    "tasks that are no list": {"tasks": "conversation"},
    "an unknown class": {"user_class_name": "<script>alert(1)</script>"},
    "a class that is no name": {"user_class_name": ["Scenario"]},
}


@pytest.mark.parametrize("attack", list(USER_ATTACKS))
def test_settings_of_a_user_class_cannot_set_its_other_attributes(ui: Ui, attack: str) -> None:
    before = ui.state
    status, text = ui.set_user(**{"user_class_name": "Scenario", **USER_ATTACKS[attack]})
    assert status == 200
    assert not json.loads(text)["success"]
    assert ui.state == before


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'"x"', b"null", b"{}"])
def test_settings_that_are_no_settings_are_refused(ui: Ui, body: bytes) -> None:
    before = ui.state
    status, text = ui.send("/user", body)
    assert status == 200
    assert not json.loads(text)["success"]
    assert ui.state == before


@pytest.mark.parametrize("path", ["/swarm", "/stop", "/stats/reset", "/user"])
@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Host": "evil.example"}],
)
def test_a_forged_origin_or_name_is_refused_for_all_that_changes_something(
    ui: Ui, path: str, headers: dict[str, str]
) -> None:
    before, runs = ui.state, ui.runs
    assert ui.send(path, b"user_count=1&spawn_rate=1", **headers)[0] == 403
    assert ui.state == before
    assert ui.runs == runs


def test_a_body_without_end_is_refused(ui: Ui) -> None:
    assert ui.send("/swarm", b"model=" + b"x" * (2 << 20))[0] == 413
    assert ui.send("/user", b"[" + b" " * (2 << 20) + b"]")[0] == 413


def test_no_route_but_those_of_posts_changes_anything(ui: Ui) -> None:
    for path in ("/swarm", "/stop", "/stats/reset", "/user"):
        assert ui.send(path)[0] == 405


#: Settings of a user class that are allowed between runs.
RUNNING_USERS: tuple[dict[str, object], ...] = (
    {"weight": 7},
    {"fixed_count": 1},
    {"tasks": []},
    {"host": "http://allowed.example:8000"},
)


#: Requests that are none, or that are too large.
BROKEN: dict[str, bytes] = {
    "101 fields": b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 101 + b"\r\n",
    "a long field": b"GET / HTTP/1.1\r\nA: " + b"b" * 100_000 + b"\r\n\r\n",
    "a negative length": b"POST /swarm HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
    "100 MiB": b"POST /swarm HTTP/1.1\r\nHost: localhost\r\nContent-Length: 104857600\r\n\r\n",
    "a long path": b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
    "a path out of the reports": b"GET /llm/reports/..%2f..%2fx/manifest.json HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_request_that_is_broken_is_refused_and_is_no_traceback(ui: Ui, name: str) -> None:
    """As the fixture sees in the end."""
    place = urlsplit(ui.url)
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=PATIENCE_S) as connection:
        connection.sendall(BROKEN[name])
        assert connection.recv(12).startswith(b"HTTP/1.1 4")
    assert ui.send("/state")[0] == 200


def test_the_fields_of_locusts_own_form_are_taken_and_held_while_the_run_goes_on(ui: Ui) -> None:
    """Runs last: it starts a run."""
    host = ui.state["environment"]["host"]
    form = {"host": host, "run_time": "", "profile": "", "model": "", "slo": "ttft=2s", "gate": ""}
    assert ui.start(**form, output_tokens="4", dataset="prompts.txt", warmup="0s")["success"]
    ui.wait_state("running")
    assert len(ui.runs) == 1
    assert ui.state["options"]["slo"] == "'ttft=2s'"
    for change in ({"slo": "ttft=9s"}, {"output_tokens": "9"}, {"host": "http://allowed.example:8000"}):
        answer = ui.start(**change)
        assert not answer["success"]
        assert "while a run goes on" in answer["message"]
    assert ui.state["options"]["slo"] == "'ttft=2s'"
    for change in ({"user_classes": "Other"}, {"shape_class": "Steps"}, {"profile": "other"}):
        answer = ui.start(**change)
        assert not answer["success"]
        assert f"{next(iter(change))} cannot be changed while a run goes on" in answer["message"]
    for settings in RUNNING_USERS:
        before = ui.state
        status, text = ui.set_user(**{"user_class_name": "Scenario", **settings})
        assert (status, json.loads(text)["success"]) == (200, False)
        assert "while a run goes on" in json.loads(text)["message"]
        assert ui.state == before
    assert ui.start(user_count="2", slo="ttft=2s")["success"]
    assert ui.send("/stop", b"")[0] == 200
    ui.wait_state("stopped", "ready")
    assert KEY not in "".join(p.read_text() for p in ui.runs)
    assert ui.set_user(user_class_name="Scenario", weight=2, host="http://allowed.example:8000/v1")[0] == 201
    assert ui.start(host="http://allowed.example:8000")["message"] == "Swarming started"
    ui.process.wait_for("allowed.example.*cannot be reached")


# --- Where the web UI listens, and what is said of it


WARNING = "without --web-login: anyone who reaches it can start load"

#: Host names that are tried. Those of strangers, and one that a cluster's service may have.
NAMES = ("localhost", "127.0.0.1", "llm-locust-web", "ui.example", "evil.example")
FOREIGN = {"ui.example", "evil.example"}
ALL_FOREIGN = FOREIGN | {"llm-locust-web"}

WITH_A_NAME = ["--web-host", "*", "--web-name", "ui.example"]

#: Options, environment -> the address, whether there is a warning, and the names that are refused.
CASES: dict[str, tuple[list[str], dict[str, str], str, bool, set[str]]] = {
    "by default": ([], {}, "127.0.0.1", False, ALL_FOREIGN),
    "on all interfaces": (["--web-host", "*"], {}, "0.0.0.0", True, FOREIGN),
    "on all, by the environment": ([], {"LOCUST_WEB_HOST": "0.0.0.0"}, "0.0.0.0", True, FOREIGN),
    "on all, with a login": (["--web-host", "0.0.0.0", "--web-login"], {}, "0.0.0.0", False, set()),
    "on all, with a name": (WITH_A_NAME, {}, "0.0.0.0", True, ALL_FOREIGN - {"ui.example"}),
    "on another address of loopback": (["--web-host", "127.0.0.2"], {}, "127.0.0.2", False, ALL_FOREIGN),
}


def refused(address: str, port: int) -> set[str]:
    """The host names under which a web UI answers nobody."""
    found = set()
    for name in NAMES:
        connection = HTTPConnection(address, port, timeout=120)
        connection.request("POST", "/no-such-page", headers={"Host": f"{name}:{port}"})
        if connection.getresponse().status == 403:
            found.add(name)
        connection.close()
    return found


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, list[str], set[str]]]:
    """The address that each listens on, what it said, and the host names that it refused."""
    folder = tmp_path_factory.mktemp("listening")

    def run(name: str) -> tuple[str, list[str], set[str]]:
        options, environ, address, *_ = CASES[name]
        port = free_port()
        with locust(folder, "--web-port", str(port), *options, environ=environ, stdout=name) as process:

            def addresses() -> list[str]:
                found = psutil.Process(process.pid).net_connections("tcp")
                return [c.laddr.ip for c in found if c.status == "LISTEN" and c.laddr.port == port]

            wait_until(lambda: bool(addresses()), "the web UI")
            warned = list(process.lines)
            return addresses()[0], warned, refused(address.replace("0.0.0.0", "127.0.0.1"), port)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(CASES, pool.map(run, CASES), strict=True))


@pytest.mark.parametrize("case", list(CASES))
def test_it_listens_on_loopback_unless_told_and_warns_where_anyone_can_reach_it(
    listening: dict[str, tuple[str, list[str], set[str]]], case: str
) -> None:
    address, said, _ = listening[case]
    assert address.replace("::", "0.0.0.0") == CASES[case][2]
    assert sum(WARNING in line for line in said) == CASES[case][3], said


@pytest.mark.parametrize("case", list(CASES))
def test_names_that_a_strangers_page_can_have_are_refused_unless_there_is_a_login(
    listening: dict[str, tuple[str, list[str], set[str]]], case: str
) -> None:
    assert listening[case][2] == CASES[case][4]
