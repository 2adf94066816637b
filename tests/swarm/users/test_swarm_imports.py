"""What a process of a run imports: a worker neither report nor web pages nor pandas."""

import json
import subprocess
import sys
from pathlib import Path

from swarm_process import Result, as_worker, free_port, locust, simulation

#: What no worker has a use for.
NOT_A_WORKERS = (
    *("pandas", "rich", "prometheus_client.parser"),
    *("llm_locust.report", "llm_locust.swarm.roles.coordinator", "llm_locust.swarm.roles.master"),
    *("llm_locust.swarm.roles.local", "llm_locust.swarm.run.load_control"),
    *("llm_locust.swarm.web", "llm_locust.swarm.display"),
)

LOCUSTFILE = """
import json
import sys
from pathlib import Path

from locust import events, task
from locust.runners import WorkerRunner

from llm_locust import ChatUser


class Chat(ChatUser):
    @task
    def one_question(self):
        self.chat()


@events.quitting.add_listener
def note(environment, **_):
    role = "worker" if isinstance(environment.runner, WorkerRunner) else "master"
    Path(f"{role}.json").write_text(json.dumps(sorted(sys.modules)))
"""


def _not_a_workers(modules: list[str]) -> list[str]:
    return [m for m in modules for unwanted in NOT_A_WORKERS if m == unwanted or m.startswith(f"{unwanted}.")]


def test_user_classes_import_neither_report_nor_the_roles_of_a_run() -> None:
    code = """if True:
        import json, sys
        from types import SimpleNamespace
        import locust.main
        import llm_locust
        from llm_locust import (
            ChatUser, CompletionUser, ConversationUser, MessagesUser, OpenLoopUser, ResponsesUser,
            ScenarioUser,
        )
        from llm_locust.swarm import tracing_setup
        environment = SimpleNamespace(parsed_options=SimpleNamespace(otel=False))
        tracing_setup.attach_tracing(environment)
        assert tracing_setup.tracer_of(environment, "run", "worker") is None
        print(json.dumps(sorted(sys.modules)))
    """
    made = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=120, capture_output=True, text=True
    )
    modules = json.loads(made.stdout)
    assert "llm_locust.swarm.users.users" in modules
    assert not _not_a_workers(modules)
    assert "llm_locust.swarm.roles.worker" not in modules
    assert not [m for m in modules if m.startswith(("opentelemetry", "grpc"))], "without --otel"


def test_a_process_that_goes_without_pandas_converts_as_one_with_it() -> None:
    code = """if True:
        import sys
        if sys.argv[1] == "without":
            from llm_locust.report.output import block_pandas_import
            block_pandas_import()
        import numpy as np, pyarrow as pa
        floats = pa.array(np.array([1.5, np.nan]), from_pandas=True)
        print(floats.to_pylist(), pa.schema([("a", pa.int64())]).empty_table(), floats.to_numpy(False))
        print("pandas" in sys.modules, file=sys.stderr)
    """
    found = [
        subprocess.run([sys.executable, "-c", code, word], check=True, timeout=120, capture_output=True)
        for word in ("with", "without")
    ]
    assert found[0].stdout == found[1].stdout
    assert [done.stderr for done in found] == [b"True\n", b"False\n"]


def test_a_worker_that_has_made_a_run_imported_neither_report_nor_pandas(tmp_path: Path) -> None:
    locustfile = tmp_path / "locustfile.py"
    locustfile.write_text(LOCUSTFILE)
    with simulation(tmp_path) as sim:
        options = ["--headless", "-H", sim.url, "-u", "2", "-r", "2", "--num-requests", "20", "--out", "run"]
        port = free_port()
        as_master = ["--master", "--expect-workers", "1", "--master-bind-port", str(port)]
        with (
            locust(tmp_path, *as_master, *options, locustfile=locustfile) as master,
            locust(tmp_path, *as_worker(port), locustfile=locustfile, stdout="worker", cold=True) as worker,
        ):
            assert master.exit_code() == 0, master.stderr
            assert worker.exit_code() == 0, worker.stderr
    assert len(Result.read(tmp_path / "run").requests) == 20
    imported = json.loads((tmp_path / "worker.json").read_text())
    assert "llm_locust.swarm.roles.worker" in imported
    assert not _not_a_workers(imported)
