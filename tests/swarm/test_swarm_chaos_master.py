"""A master that is killed leaves its directory and its workers' spools: from these the run is made again."""

import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest
from chaos import UNHURRIED, USUAL, Survived, merge, unrecorded, wait_batches, wait_more
from swarm_process import in_parallel, simulation, swarm

#: Locust's workers end by themselves when they have heard nothing of their master, usually for a minute.
IMPATIENT = """
import locust.runners
from locust import task

from llm_locust import ChatUser

locust.runners.MASTER_HEARTBEAT_TIMEOUT = 3


class Chat(ChatUser):
    @task
    def ask_one(self):
        self.chat()
"""


def _killed(spool: str | None) -> Callable[[Path], Survived]:
    """The master dies; one worker is told to end, as Kubernetes would, the other one notices."""

    def run(folder: Path) -> Survived:
        out = folder / "run"
        locustfile = folder / "impatient.py"
        locustfile.write_text(IMPATIENT)
        options = [*USUAL, "--flush-timeout", "1s", *([] if spool is None else ["--spool", spool])]
        with (
            simulation(folder, *UNHURRIED) as sim,
            swarm(folder, 2, *options, "-H", sim.url, locustfile=locustfile) as (master, workers),
        ):
            wait_batches(out, workers=2)
            wait_more(sim)
            master.signal(SIGKILL)
            at_ns = time.time_ns()
            code = master.exit_code()
            wait_more(sim)
            workers[0].signal(SIGTERM)
            for worker in workers:
                worker.exit_code()
        spools = [] if spool is None else [folder / spool]
        return Survived(code, master, workers, out, sim, at_ns, merge(folder / "merged", out, *spools))

    return run


SCENARIOS: dict[str, Callable[[Path], Survived]] = {
    "spools beside the run": _killed(None),
    "spools elsewhere": _killed("elsewhere"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Survived]:
    return in_parallel(tmp_path_factory.mktemp("master"), SCENARIOS)


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_a_merge_has_every_request_that_the_server_saw(name: str, runs: dict[str, Survived]) -> None:
    run = runs[name]
    assert run.merged is not None
    assert run.code == -SIGKILL
    assert not (run.path / "requests.parquet").exists()
    assert unrecorded(run.truth, run.merged.rows) == []
    assert max(row["scheduled_ns"] for row in run.merged.rows.values()) > run.at_ns


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_the_merged_run_is_complete_and_has_its_report(name: str, runs: dict[str, Survived]) -> None:
    merged = runs[name].merged
    assert merged is not None
    # Every record is there, and still the run was cut short: its load has no end that anybody recorded.
    assert merged.code == 4, merged.errors
    assert merged.result.manifest.complete
    assert merged.result.manifest.cut_short
    assert "CUT SHORT: the end of the load was never recorded" in " ".join(merged.output.split())
    assert merged.result.manifest.id in (runs[name].path / "manifest.json").read_text()
    assert all(w.announced == w.received > 0 for w in merged.result.manifest.workers)
    assert merged.result.summary["requests"]["ok"] > 100
    assert "Latency, ms" in merged.output


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_workers_without_a_master_end_and_say_where_their_records_are(
    name: str, runs: dict[str, Survived]
) -> None:
    for worker in runs[name].workers:
        assert "Traceback" not in worker.stderr
        assert [line for line in worker.said if "llm-locust merge" in line]
