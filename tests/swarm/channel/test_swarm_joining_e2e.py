"""With the run's secret: a worker that waits long for its master, and one whose master is killed."""

from contextlib import ExitStack
from pathlib import Path
from signal import SIGKILL

from chaos import wait_batches
from swarm_process import Process, Result, as_worker, free_port, locust, simulation

SECRET = ["--swarm-secret-env", "SECRET_OF_A_TEST"]
ENVIRON = {"SECRET_OF_A_TEST": "a secret of the run, for tests"}
LOAD = ["--headless", "-u", "2", "-r", "100", "--output-tokens", "5"]


def test_a_worker_joins_a_late_master_ends_with_it_and_its_successor_joins_the_next(tmp_path: Path) -> None:
    port = free_port()
    as_master = ["--master", "--master-bind-host", "127.0.0.1", "--master-bind-port", str(port)]
    options = [*as_master, "--expect-workers", "1", *LOAD, *SECRET]
    with simulation(tmp_path) as sim, ExitStack() as stack:

        def master(name: str, run_time: str) -> list[str]:
            return [*options, "-H", sim.url, "-t", run_time, "--out", name]

        def worker(name: str) -> Process:
            words = [*as_worker(port), *SECRET, "-L", "DEBUG"]
            return stack.enter_context(locust(tmp_path, *words, environ=ENVIRON, stdout=name))

        early = worker("early")
        early.wait_for("Failed to connect to master .* retry 2/")  # ZeroMQ keeps three hellos by now
        first = stack.enter_context(
            locust(tmp_path, *master("first", "60s"), environ=ENVIRON, stdout="first.out")
        )
        wait_batches(tmp_path / "first", workers=1)
        assert "was dropped" not in first.stderr
        first.signal(SIGKILL)
        first.exit_code()
        second = stack.enter_context(
            locust(tmp_path, *master("second", "2s"), environ=ENVIRON, stdout="second.out")
        )
        assert early.exit_code() == 4, early.stderr
        later = worker("later")  # as its supervisor does
        assert second.exit_code() == 0, second.stderr + later.stderr
        assert later.exit_code() == 0, later.stderr
    assert "this worker ends: a master is there again" in early.stderr
    assert "Traceback" not in early.stderr + second.stderr + later.stderr
    assert Result.read(tmp_path / "second").rows()
