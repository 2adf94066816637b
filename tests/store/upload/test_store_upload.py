"""A run directory gets to where runs are kept: whole, or with a word on why not, and on from there."""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from upload_cases import Pauses, contents, copy, finished_run, whole

from llm_locust.cli.upload import main
from llm_locust.store.files import MANIFEST_FILE, StoreError
from llm_locust.store.upload import transfer as module
from llm_locust.store.upload.destination import Destination, UploadError
from llm_locust.store.upload.transfer import (
    INDEX_FILE,
    RetryPolicy,
    Uploaded,
    UploadPart,
    parts_of,
    upload_run,
)

KEY, SECRET = "known-key-id", "this-is-the-secret"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return finished_run(tmp_path / "run")


@pytest.mark.parametrize("form", ["{}", "file://{}", "file://localhost{}"])
def test_a_run_is_copied_whole_into_a_folder_of_its_id(run: Path, tmp_path: Path, form: str) -> None:
    done = upload_run(run, form.format(tmp_path / "kept"))
    there = contents(copy(tmp_path / "kept", run))
    index = json.loads(there.pop(INDEX_FILE))
    assert there == whole(run)
    assert sorted(done.sent) == sorted(index["files"]) == sorted(there)
    assert done.bytes_sent == sum(map(len, there.values()))


def test_the_manifest_comes_last_and_the_index_before_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    write = Destination.write

    def noted(self: Destination, name: str, chunks: Iterator[bytes]) -> int:
        written.append(name)
        return write(self, name, chunks)

    monkeypatch.setattr(Destination, "write", noted)
    upload_run(run, str(tmp_path / "kept"))
    assert written[-2:] == [INDEX_FILE, MANIFEST_FILE]
    assert written.count(MANIFEST_FILE) == 1


def test_what_is_there_already_is_not_sent_again(run: Path, tmp_path: Path) -> None:
    first = upload_run(run, str(tmp_path))
    again = upload_run(run, str(tmp_path))
    assert again == Uploaded(first.to, (), tuple(sorted(first.sent)), (), 0)


def test_a_file_that_changed_is_sent_and_the_manifest_after_it(run: Path, tmp_path: Path) -> None:
    upload_run(run, str(tmp_path))
    text = (run / "report.md").read_text()
    (run / "report.md").write_text(text[::-1])  # of the same size
    assert upload_run(run, str(tmp_path)).sent == ("report.md", MANIFEST_FILE)
    assert (copy(tmp_path, run) / "report.md").read_text() == text[::-1]


def test_a_file_that_was_cut_at_the_destination_is_sent_again(run: Path, tmp_path: Path) -> None:
    upload_run(run, str(tmp_path))
    os.truncate(copy(tmp_path, run) / "requests.parquet", 10)
    assert upload_run(run, str(tmp_path)).sent == ("requests.parquet", MANIFEST_FILE)


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"files": 3}', b"\xff", b'{"files": {"report.md": {}}}'])
def test_an_index_that_cannot_be_read_is_none(run: Path, tmp_path: Path, damage: bytes) -> None:
    first = upload_run(run, str(tmp_path))
    (copy(tmp_path, run) / INDEX_FILE).write_bytes(damage)
    assert upload_run(run, str(tmp_path)).sent == first.sent


def test_a_spooled_batch_that_goes_meanwhile_is_left_out(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list(parts_of(run, {}))

    def acknowledged(*_: object) -> Iterator[UploadPart]:
        (run / "spool" / "w1" / "000001.frame").unlink()
        return iter(found)

    monkeypatch.setattr(module, "parts_of", acknowledged)
    done = upload_run(run, str(tmp_path))
    assert "spool/w1/000001.frame" not in done.sent
    assert (copy(tmp_path, run) / MANIFEST_FILE).exists()


def test_what_was_cut_while_it_was_read_is_not_left_there(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(self: UploadPart, _: object) -> Iterator[bytes]:
        yield b"half"
        raise OSError("this disk is broken")

    monkeypatch.setattr(UploadPart, "chunks", torn)
    with pytest.raises(UploadError, match="this disk is broken"):
        upload_run(run, str(tmp_path / "kept"), RetryPolicy(attempts=1))
    assert not contents(tmp_path / "kept")


def test_a_directory_that_cannot_be_written_is_said_in_one_line_and_keeps_the_files(
    run: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    before, pauses = contents(run), Pauses()
    with pytest.raises(UploadError, match=r"could not be uploaded to .*/file.*`llm-locust upload ") as said:
        upload_run(run, str(tmp_path / "file" / "below"), RetryPolicy(attempts=4, wait=pauses))
    assert "\n" not in str(said.value)
    assert contents(run) == before


def test_a_step_is_tried_again_after_pauses_that_double_up_to_a_bound() -> None:
    pauses = Pauses()
    with pytest.raises(OSError, match="no luck"):
        RetryPolicy(attempts=8, wait=pauses).try_again(_failing("no luck"))
    assert pauses.taken_s == [1, 2, 4, 8, 16, 30, 30]


@pytest.mark.parametrize("refusal", ["AWS Error ACCESS_DENIED during", "AWS Error NO_SUCH_BUCKET during"])
def test_what_another_attempt_cannot_change_is_not_tried_again(refusal: str) -> None:
    pauses = Pauses()
    with pytest.raises(OSError, match=refusal):
        RetryPolicy(wait=pauses).try_again(_failing(refusal))
    assert not pauses.taken_s


def _failing(text: str) -> Callable[[], None]:
    def step() -> None:
        raise OSError(text)

    return step


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("ftp://host/x", "of an unknown kind"),
        ("s3:///prefix", "names no bucket"),
        ("s3://bucket/x?acl=public", "'acl' is not a setting of s3://"),
        ("s3://bucket/x?scheme=ftp", "Invalid S3 connection scheme 'ftp'"),
        ("gs://bucket/x?anonymous=yes", "anonymous=yes: write true or false"),
        ("file://elsewhere/x", "names another host"),
        ("", "an empty address"),
    ],
)
def test_an_address_that_cannot_be_used_is_said(run: Path, address: str, reason: str) -> None:
    with pytest.raises(UploadError, match=re.escape(reason)):
        upload_run(run, address)


def test_an_address_with_credentials_in_it_is_refused_and_not_repeated(run: Path) -> None:
    with pytest.raises(UploadError, match="set them in the environment instead") as said:
        upload_run(run, f"s3://{KEY}:{SECRET}@bucket/x")
    assert SECRET not in str(said.value)


def test_what_is_no_run_is_not_uploaded(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"holds no manifest\.json"):
        upload_run(tmp_path, str(tmp_path / "kept"))
    assert not (tmp_path / "kept").exists()


def test_the_command_says_in_one_line_what_it_did(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run), str(tmp_path / "kept")]) == 0
    assert re.fullmatch(r"4 files \(\d\.\d MB\) sent to \S+/20261121-first\n", capsys.readouterr().out)
    assert main([str(run), str(tmp_path / "kept")]) == 0
    assert capsys.readouterr().out.endswith(", 4 were there already\n")


def test_the_command_says_what_went_wrong_and_ends_with_2(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run), "ftp://host/x"]) == 2
    assert capsys.readouterr().err.startswith("llm-locust upload: 'ftp://host/x' is of an unknown kind")
    with pytest.raises(SystemExit):
        main([str(run), "kept", "--attempts", "0"])
