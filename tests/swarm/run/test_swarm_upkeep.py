"""A soak's uploads: again and again while it goes on, where a failure is a warning; the last one decides."""

import fcntl
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM

import pytest
from swarm_process import Process, in_parallel, locust, simulation, wait_until

from llm_locust.store import merge, read_manifest

#: As ``--rolling-summary`` does it, in shorter time than that option allows.
LOCUSTFILE = """
from pathlib import Path

import gevent
from locust import events, task

from llm_locust import ChatUser
from llm_locust.swarm.live.watch import store_of
from llm_locust.swarm.web.rolling import summarise_forever


class Chat(ChatUser):
    @task
    def ask_one(self):
        self.chat()


@events.init.add_listener
def on_init(environment, **_):
    store = store_of(environment)
    going_on = lambda: Path("run") if store.run.id and store.content.stopped_s is None else None
    gevent.spawn(summarise_forever, 0.3, going_on, environment.parsed_options.upload)
"""

USUAL = ("--headless", "-u", "4", "-r", "10", "-t", "60s", "--out", "run")


@dataclass(slots=True)
class Seen:
    """A run that was uploaded to ``away``, and a copy of what was there while it went on."""

    code: int
    process: Process
    folder: Path
    then: Path | None = None


def _soak(folder: Path, blocked: bool) -> Seen:
    """The destination's parent is a file at first, where it is blocked."""
    (folder / "locustfile.py").write_text(LOCUSTFILE)
    if blocked:
        (folder / "place").write_text("a file")
    options = (*USUAL, "--output-tokens", "3", "--upload", str(folder / "place" / "away"))
    with (
        simulation(folder / "sim") as sim,
        locust(folder, *options, "-H", sim.url, locustfile=folder / "locustfile.py") as process,
    ):
        then = None
        if blocked:
            process.wait_for("WARNING.*no upload this time: .*place")
            (folder / "place").unlink()
        else:
            process.wait_for("INFO.* sent to ")
            away = folder / "place" / "away"
            wait_until(lambda: len(list(away.glob("*/batches/*.frames"))) > 1, "a second slice")
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


@pytest.fixture(scope="module")
def soaks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    return in_parallel(
        tmp_path_factory.mktemp("upkeep"),
        {"free": lambda at: _soak(at, False), "blocked": lambda at: _soak(at, True)},
    )


def test_what_is_there_while_the_run_goes_on_makes_the_run_so_far(
    soaks: dict[str, Seen], tmp_path: Path
) -> None:
    then = soaks["free"].then
    assert then is not None
    (there,) = then.iterdir()
    merged = merge([there], tmp_path / "merged")
    assert merged.tears == ()
    assert merged.rows >= sum(worker.received for worker in read_manifest(there).workers)
    assert merged.rows > 0


@pytest.mark.parametrize("kind", ["free", "blocked"])
def test_in_the_end_all_of_it_is_there_and_nothing_else(soaks: dict[str, Seen], kind: str) -> None:
    seen = soaks[kind]
    assert seen.code == 4, seen.process.stderr  # it was told to end before its time
    run = seen.folder / "run"
    there = seen.folder / "place" / "away" / read_manifest(run).id
    names = {p.relative_to(run) for p in run.rglob("*") if p.is_file()}
    found = {p.relative_to(there) for p in there.rglob("*") if p.is_file()} - {Path("uploaded.json")}
    assert found == names
    assert all((there / name).read_bytes() == (run / name).read_bytes() for name in names)


@pytest.mark.parametrize("kind", ["free", "blocked"])
def test_an_upload_in_between_that_fails_is_no_error(soaks: dict[str, Seen], kind: str) -> None:
    stderr = soaks[kind].process.stderr
    assert "/ERROR/" not in stderr
    assert "Traceback" not in stderr
    assert ("no upload this time" in stderr) == (kind == "blocked")
