"""A run directory with batches becomes one with its reports: called, and as a command."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from finish_cases import write_frames
from report_cases import manifest, write_run

from llm_locust.figures.verdict import RunVerdict
from llm_locust.report.run.analysis import build_report
from llm_locust.report.run.finish import FinishAnswer, finish_run, main
from llm_locust.store import (
    FRAMES_FILE,
    MANIFEST_FILE,
    REQUESTS_FILE,
    SUMMARY_FILE,
    StoreError,
    open_requests,
    write_manifest,
)


def command(*words: str | Path, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "llm_locust.report.run.finish", *map(str, words)],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=120,
        check=False,
    )


def answer(said: str) -> FinishAnswer:
    """What the command said, which is one line of JSON and nothing else."""
    (line,) = said.splitlines()
    return msgspec.json.decode(line, type=FinishAnswer)


def test_a_run_of_frames_gets_its_requests_and_the_reports_of_them(tmp_path: Path) -> None:
    report = finish_run(write_frames(tmp_path / "frames", gates="rps>99"))
    same = build_report(write_run(tmp_path / "written", gates="rps>99"))
    assert (report.exit_code, report.summary) == (1, same.summary)
    assert not (tmp_path / "frames" / FRAMES_FILE).exists()
    assert len(open_requests(tmp_path / "frames")) == 100


def test_a_run_that_is_finished_again_keeps_its_records(tmp_path: Path) -> None:
    first = finish_run(write_frames(tmp_path))
    assert finish_run(tmp_path) == first
    assert len(open_requests(tmp_path)) == 100


def test_a_run_whose_process_was_killed_between_parquet_and_removal_is_finished_from_its_frames(
    tmp_path: Path,
) -> None:
    frames = (write_frames(tmp_path) / FRAMES_FILE).read_bytes()
    first = finish_run(tmp_path)
    (tmp_path / FRAMES_FILE).write_bytes(frames)
    assert finish_run(tmp_path) == first
    assert not (tmp_path / FRAMES_FILE).exists()


def test_a_run_that_nothing_came_of_has_a_report_of_nothing(tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest(0))
    assert finish_run(tmp_path).summary.requests.scheduled == 0


def test_what_is_no_run_is_refused_and_nothing_is_written_into_it(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere"):
        finish_run(tmp_path / "nowhere")
    with pytest.raises(StoreError, match=r"manifest\.json"):
        finish_run(tmp_path)
    (write_frames(tmp_path) / MANIFEST_FILE).write_text("{")
    with pytest.raises(StoreError, match="is not a manifest"):
        finish_run(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {MANIFEST_FILE, FRAMES_FILE}


def test_the_command_says_the_exit_code_of_the_report(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_frames(tmp_path / "-run", gates="error_rate<=10%", workers_expected=2)
    done = command("--", "-run", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    said = answer(done.stdout).verdict
    assert said is not None
    assert (said.code, said.reason) == (4, "records are missing; --allow-incomplete accepts that")
    assert (tmp_path / "-run" / SUMMARY_FILE).exists()
    assert main(["--allow-incomplete", str(tmp_path / "-run")]) == 0
    assert answer(capfd.readouterr().out) == FinishAnswer(RunVerdict(0), error=None)


def test_the_command_says_what_is_wrong_in_one_line_and_without_a_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (write_frames(tmp_path / "run") / REQUESTS_FILE).mkdir()
    assert main([str(tmp_path / "run")]) == 1
    said = capfd.readouterr()
    assert said.err == ""
    error = answer(said.out).error or ""
    assert REQUESTS_FILE in error
    assert "\n" not in error
    assert (tmp_path / "run" / FRAMES_FILE).exists(), "the records stay"


def test_the_command_ends_well_where_nobody_reads_its_answer(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        words = [sys.executable, "-m", "llm_locust.report.run.finish", str(write_frames(tmp_path))]
        done = subprocess.run(words, stdout=closed, stderr=subprocess.PIPE, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / SUMMARY_FILE).exists()
