"""What becomes of a run's directory while it goes on and when it is done."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM
from tempfile import TemporaryDirectory

import pytest
from swarm_process import Process, in_parallel, locust, simulation

from llm_locust.figures.summary import read_summary
from llm_locust.store import merge, open_requests, read_manifest

# --- What becomes of a run's directory when it is done: copied elsewhere, told on standard output


USUAL = ("--headless", "-u", "2", "-r", "10", "--out", "run", "--print-summary", "--output-tokens", "20")
SHORT = ("--num-requests", "8", "-t", "30s")

#: Workers send a batch every few seconds: two segments are older than the ten at the end.
KEPT = ("-t", "20s", "--keep", "10s")


def _run(folder: Path, to: str, *options: str) -> tuple[int, Process, Path]:
    (folder / "taken").write_text("a file")
    with (
        simulation(folder / "sim") as sim,
        locust(folder, *USUAL, *options, "-H", sim.url, "--upload", to) as process,
    ):
        return process.exit_code(), process, folder


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """A directory on another disk; None where there is none."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path_factory.getbasetemp().stat().st_dev:
        yield None
        return
    with TemporaryDirectory(dir=memory) as made:
        yield Path(made)


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, elsewhere: Path | None
) -> dict[str, tuple[int, Process, Path]]:
    return in_parallel(
        tmp_path_factory.mktemp("upload"),
        {
            "refused": lambda at: _run(at, str(at / "taken" / "x"), *SHORT),
            "kept": lambda at: _run(at, str(elsewhere or at / "away"), *KEPT),
        },
    )


def test_the_run_is_copied_whole_after_its_report(
    runs: dict[str, tuple[int, Process, Path]], elsewhere: Path | None
) -> None:
    code, process, folder = runs["kept"]
    assert code == 0, process.stderr
    there = (elsewhere or folder / "away") / read_manifest(folder / "run").id
    files = [file.relative_to(folder / "run") for file in (folder / "run").rglob("*") if file.is_file()]
    assert all((there / file).read_bytes() == (folder / "run" / file).read_bytes() for file in files)
    assert Path("report.html") in files


def test_the_last_line_on_standard_output_is_the_summary(
    runs: dict[str, tuple[int, Process, Path]],
) -> None:
    _, process, folder = runs["kept"]
    last = process.stdout.splitlines()[-1]
    assert json.loads(last) == json.loads((folder / "run" / "summary.json").read_text())


def test_a_run_that_could_not_be_copied_gives_exit_code_4_and_keeps_its_files(
    runs: dict[str, tuple[int, Process, Path]],
) -> None:
    code, process, _ = runs["refused"]
    assert code == 4
    assert len([line for line in process.stderr.splitlines() if "taken" in line and " ERROR: " in line]) <= 1
    assert "taken" in process.stderr
    assert "Traceback" not in process.stderr


def test_what_was_dropped_of_a_run_is_in_its_copy(
    runs: dict[str, tuple[int, Process, Path]], elsewhere: Path | None
) -> None:
    _, process, folder = runs["kept"]
    if elsewhere is None:
        assert "is on the same disk" in process.stderr
        return
    summary = read_summary((folder / "run" / "summary.json").read_bytes())
    assert summary.completeness.complete
    assert summary.dropped is not None
    here = open_requests(folder / "run")
    assert summary.dropped.records + len(here) == read_manifest(folder / "run").records_received
    merge([folder / "run", elsewhere], folder / "whole")
    rows = [row for part in open_requests(folder / "whole").parts() for row in part.table.to_pylist()]
    sent = [
        json.loads(line)["request_id"] for line in (folder / "sim" / "truth.jsonl").read_text().splitlines()
    ]
    assert len(sent) - 1 <= len(rows) == len({row["request_id"] for row in rows}) <= len(sent)  # a canary
    assert {row["request_id"] for row in rows} <= set(sent)


# --- A soak's uploads: again and again while it goes on, where a failure is a warning; the last one decides


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

UPKEEP_USUAL = ("--headless", "-u", "2", "-r", "10", "-t", "600s", "--out", "run", "--output-tokens", "20")


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
            *(*UPKEEP_USUAL, "--upload", str(away), "-H", sim.url),
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
