"""A master that is killed leaves its directory and its workers' spools: from these the run is made again."""

import time
from signal import SIGKILL, SIGTERM

import pytest
from chaos import UNHURRIED, USUAL, Survived, merge, unrecorded, wait_batches, wait_more, wait_senders
from swarm_process import simulation, swarm

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


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Survived:
    """The master dies; one worker is told to end, as Kubernetes would, the other one notices.

    The spool of the first one is elsewhere, that of the other one next to the run.
    """
    folder = tmp_path_factory.mktemp("master")
    out, locustfile = folder / "run", folder / "impatient.py"
    locustfile.write_text(IMPATIENT)
    with (
        simulation(folder, *UNHURRIED) as sim,
        swarm(
            folder,
            2,
            *(*USUAL, "--flush-timeout", "1s", "-H", sim.url),
            locustfile=locustfile,
            first_worker=["--spool", "elsewhere"],
        ) as (master, workers),
    ):
        wait_batches(out, workers=2)
        wait_more(sim)
        master.signal(SIGKILL)
        at_ns = time.time_ns()
        code = master.exit_code()
        wait_senders(sim, 2, since_ns=at_ns)
        workers[0].signal(SIGTERM)
        for worker in workers:
            worker.exit_code()
    merged = merge(folder / "merged", out, folder / "elsewhere")
    return Survived(code, master, workers, out, sim, at_ns, merged)


def test_a_merge_has_every_request_that_the_server_saw(run: Survived) -> None:
    assert run.merged is not None
    assert run.code == -SIGKILL
    assert not (run.path / "requests.parquet").exists()
    assert unrecorded(run.truth, run.merged.rows) == []
    after = [row for row in run.merged.rows.values() if row["scheduled_ns"] > run.at_ns]
    assert len({row["worker"] for row in after}) == 2


def test_the_merged_run_is_complete_and_has_its_report(run: Survived) -> None:
    merged = run.merged
    assert merged is not None
    # Every record is there, and still the run was cut short: its load has no end that anybody recorded.
    assert merged.code == 4, merged.errors
    assert merged.result.manifest.complete
    assert merged.result.manifest.cut_short
    assert "CUT SHORT: the end of the load was never recorded" in " ".join(merged.output.split())
    assert merged.result.manifest.id in (run.path / "manifest.json").read_text()
    assert all(w.announced == w.received > 0 for w in merged.result.manifest.workers)
    assert merged.result.summary["requests"]["ok"] > 30
    assert "Latency, ms" in merged.output


def test_workers_without_a_master_end_and_say_where_their_records_are(run: Survived) -> None:
    for worker in run.workers:
        assert "Traceback" not in worker.stderr
        assert [line for line in worker.said if "llm-locust merge" in line]
