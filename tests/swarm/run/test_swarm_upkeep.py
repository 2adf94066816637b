"""A soak's uploads: again and again while it goes on, where a failure is a warning; the last one decides."""

import fcntl
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM

import pytest
from swarm_process import Process, locust, simulation

from llm_locust.store import merge, read_manifest

#: As ``--rolling-summary`` does it, in shorter time than that option allows.
LOCUSTFILE = """
from pathlib import Path

import gevent
from locust import events, task

from llm_locust import ChatUser
from llm_locust.swarm.live import store_of
from llm_locust.swarm.web.reports import summarise_forever


class Chat(ChatUser):
    @task
    def ask_one(self):
        self.chat()


@events.init.add_listener
def on_init(environment, **_):
    store = store_of(environment)
    going_on = lambda: Path("run") if store.run.id and store.content.stopped_s is None else None
    gevent.spawn(summarise_forever, 2.5, going_on, environment.parsed_options.upload)
"""

USUAL = ("--headless", "-u", "2", "-r", "10", "-t", "600s", "--out", "run", "--output-tokens", "20")


@dataclass(slots=True)
class Seen:
    """A run that was uploaded to ``away``, and a copy of what was there while it went on."""

    code: int
    process: Process
    folder: Path
    then: Path


@pytest.fixture(scope="module")
def soak(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """The destination's parent is a file at first."""
    folder = tmp_path_factory.mktemp("upkeep")
    (folder / "locustfile.py").write_text(LOCUSTFILE)
    (folder / "place").write_text("a file")
    away = folder / "place" / "away"
    with (
        simulation(folder / "sim") as sim,
        locust(
            folder,
            *(*USUAL, "--upload", str(away), "-H", sim.url),
            locustfile=folder / "locustfile.py",
        ) as process,
    ):
        process.wait_for("WARNING.*no upload this time: .*place")
        (folder / "place").unlink()
        process.wait_for(r"files \(.*\) sent to ")
        then = _copied_between_uploads(folder)
        process.signal(SIGTERM)
        return Seen(process.exit_code(), process, folder, then)


def _copied_between_uploads(folder: Path) -> Path:
    """Uploads of one directory take turns: none is under way while its lock is held."""
    run = os.open(folder / "run", os.O_RDONLY)
    try:
        fcntl.flock(run, fcntl.LOCK_EX)
        return shutil.copytree(folder / "place" / "away", folder / "then")
    finally:
        os.close(run)


def test_what_is_there_while_the_run_goes_on_makes_the_run_so_far(soak: Seen, tmp_path: Path) -> None:
    (there,) = soak.then.iterdir()
    merged = merge([there], tmp_path / "merged")
    assert merged.tears == ()
    assert merged.rows >= sum(worker.received for worker in read_manifest(there).workers)
    assert merged.rows > 0


def test_in_the_end_all_of_it_is_there_and_nothing_else(soak: Seen) -> None:
    assert soak.code == 4, soak.process.stderr  # it was told to end before its time
    run = soak.folder / "run"
    there = soak.folder / "place" / "away" / read_manifest(run).id
    names = {p.relative_to(run) for p in run.rglob("*") if p.is_file()}
    found = {p.relative_to(there) for p in there.rglob("*") if p.is_file()} - {Path("uploaded.json")}
    assert found == names
    assert all((there / name).read_bytes() == (run / name).read_bytes() for name in names)


def test_an_upload_in_between_that_fails_is_no_error(soak: Seen) -> None:
    assert " ERROR: " not in soak.process.stderr
    assert "Traceback" not in soak.process.stderr
