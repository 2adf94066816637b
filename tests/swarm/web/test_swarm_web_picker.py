"""The class picker while a run goes on: Locust's dialog *Edit running load test* changes its users only."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from swarm_process import free_port, locust, simulation, wait_until

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
