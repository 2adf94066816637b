"""A hostile destination: the upload ends with one line, in little memory, and harms nothing."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from object_store import ENVIRONMENT, Answer, Asked, ObjectStore, object_store
from process_limits import little_memory
from report_cases import Pauses, contents, copy, finished_run
from swarm_process import PATIENCE_S

from llm_locust.cli.main import main
from llm_locust.store.files import read_manifest
from llm_locust.store.upload import INDEX_FILE, MOST_READ_BYTES, RetryPolicy, UploadError, upload_run

#: Memory that an upload to such a store may take beside the run's own files.
MOST_GROWTH = 600 << 20


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with object_store() as made:
        yield made


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return finished_run(tmp_path / "run")


def refusal(run: Path, to: str) -> str:
    with pytest.raises(UploadError) as caught, little_memory(MOST_GROWTH):
        upload_run(run, to, RetryPolicy(attempts=1, wait=Pauses()))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_bucket_is_never_listed(run: Path, store: ObjectStore) -> None:
    for _ in range(2):
        upload_run(run, store.address)
    assert not any("list-type" in asked.about for asked in store.asked)


@pytest.mark.parametrize("size", [MOST_READ_BYTES + 1, 1 << 50])
def test_a_list_of_sent_files_that_is_too_large_is_refused(run: Path, store: ObjectStore, size: int) -> None:
    part = Answer(
        206, b" " * (MOST_READ_BYTES + 1), (("Content-Range", f"bytes 0-{MOST_READ_BYTES}/{size}"),)
    )

    def instead(asked: Asked, usual: Answer) -> Answer:
        if not asked.name.endswith(INDEX_FILE):
            return usual
        return Answer(200, size=size) if asked.method == "HEAD" else part

    store.instead = instead
    assert f"{INDEX_FILE} there is larger than 64 MiB, and no file of a run is" in refusal(run, store.address)


def test_an_error_of_a_store_is_cut_and_its_library_says_nothing_itself(
    run: Path, store: ObjectStore, capfd: pytest.CaptureFixture[str]
) -> None:
    words = b"<Error><Code>InternalError</Code><Message>&#27;[31m%b</Message></Error>" % (b"m" * 100_000)
    ends = {"POST", "uploadId"}
    store.instead = lambda asked, usual: Answer(200, words) if ends <= {asked.method, *asked.about} else usual
    assert main(["upload", str(run), store.address, "--attempts", "1"]) == 2
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert said.strip().isprintable()
    assert len(said) < 2_000


#: The command, with less patience.
HASTY = """
import sys
from functools import partial
from llm_locust.cli.main import main
from llm_locust.store import upload

upload.RetryPolicy = partial(upload.RetryPolicy, within_s=0.2)
sys.exit(main(["upload", *sys.argv[1:]]))
"""


def test_a_store_that_does_not_come_to_an_end_is_left_with_one_line(run: Path, store: ObjectStore) -> None:
    """Nor does the process wait for it when it ends, as Python and Arrow do for what is under way."""
    ended = threading.Event()

    def instead(_: Asked, usual: Answer) -> Answer:
        ended.wait(PATIENCE_S)
        return usual

    store.instead = instead
    try:
        upload = [sys.executable, "-c", HASTY, str(run), store.address]
        done = subprocess.run(upload, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    finally:
        ended.set()
    assert done.returncode == 2
    assert "it answered so slowly that a step was not done in 0 s; the files are kept" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["../../victim", "a/../../../victim", "./../../victim", "/victim", "a\0"])
def test_a_list_there_names_no_file_outside_of_the_folder(run: Path, tmp_path: Path, name: str) -> None:
    kept = tmp_path / "kept"
    upload_run(run, str(kept))
    victim = tmp_path / "victim"
    victim.write_text("precious")
    index = copy(kept, run) / INDEX_FILE
    listed = json.loads(index.read_text())
    listed["files"][name] = {"size": 8, "sha256": ""}
    index.write_text(json.dumps(listed))
    (run / "report.md").write_text("changed")
    done = upload_run(run, str(kept))
    assert done.removed == ()
    assert victim.read_text() == "precious"


def test_a_link_in_the_folder_is_not_written_through(run: Path, tmp_path: Path) -> None:
    elsewhere, there = tmp_path / "elsewhere", tmp_path / "kept" / read_manifest(run).id
    elsewhere.mkdir()
    there.mkdir(parents=True)
    (there / "spool").symlink_to(elsewhere)
    assert "is outside of the destination: a folder there is a link" in refusal(run, str(tmp_path / "kept"))
    assert contents(elsewhere) == {}
