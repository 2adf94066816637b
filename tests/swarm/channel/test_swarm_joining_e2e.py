"""A worker that waits long for its master, and whose master is killed, takes part with the run's secret."""

from contextlib import ExitStack
from pathlib import Path
from signal import SIGKILL

from chaos import wait_batches
from swarm_process import Result, as_worker, free_port, locust, simulation

SECRET = ["--swarm-secret-env", "SECRET_OF_A_TEST"]
ENVIRON = {"SECRET_OF_A_TEST": "a secret of the run, for tests"}
LOAD = ["--headless", "-u", "2", "-r", "100", "--output-tokens", "5"]


def test_a_worker_with_a_secret_joins_a_late_master_and_the_next_one(tmp_path: Path) -> None:
    port = free_port()
    as_master = ["--master", "--master-bind-host", "127.0.0.1", "--master-bind-port", str(port)]
    options = [*as_master, "--expect-workers", "1", *LOAD, *SECRET]
    with simulation(tmp_path) as sim, ExitStack() as stack:

        def master(name: str, run_time: str) -> list[str]:
            return [*options, "-H", sim.url, "-t", run_time, "--out", name]

        worker = stack.enter_context(
            locust(tmp_path, *as_worker(port), *SECRET, "-L", "DEBUG", environ=ENVIRON, stdout="worker")
        )
        worker.wait_for("Failed to connect to master .* retry 2/")  # ZeroMQ keeps three hellos by now
        first = stack.enter_context(
            locust(tmp_path, *master("first", "60s"), environ=ENVIRON, stdout="first.out")
        )
        wait_batches(tmp_path / "first", workers=1)
        assert "dropped (unproven" not in first.stderr
        first.signal(SIGKILL)
        first.exit_code()
        second = stack.enter_context(
            locust(tmp_path, *master("second", "2s"), environ=ENVIRON, stdout="second.out")
        )
        assert second.exit_code() == 0, second.stderr + worker.stderr
        assert worker.exit_code() in (0, 4), worker.stderr  # 4: it holds records of the first run
    assert "this worker starts anew to join it" in worker.stderr
    assert "Traceback" not in worker.stderr + second.stderr
    assert Result.read(tmp_path / "second").rows()
