"""A run directory gets to where runs are kept: whole, or with a word on why not, and on from there."""

import fcntl
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from metrics_cases import request
from report_cases import Pauses, contents, copy, finished_run, manifest, whole

from llm_locust.cli.main import main
from llm_locust.core.batch import RecordBatch
from llm_locust.store import (
    FRAMES_FILE,
    FrameHeader,
    FrameLog,
    encode_frame,
    merge,
    read_manifest,
    read_requests,
    upload as module,
    write_manifest,
)
from llm_locust.store.files import MANIFEST_FILE, StoreError
from llm_locust.store.upload import (
    INDEX_FILE,
    Destination,
    RetryPolicy,
    Stored,
    Uploaded,
    UploadError,
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
        ("s3://B_ad/x", "names a bucket that cannot be"),
        ("s3://under_score/x", "names a bucket that cannot be"),
        ("s3://ab", "names a bucket that cannot be"),
        ("s3://two..dots", "names a bucket that cannot be"),
        ("gs://-first/x", "- and . and _, a letter or digit first"),
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
    assert main(["upload", str(run), str(tmp_path / "kept")]) == 0
    assert re.fullmatch(r"4 files \(\d\.\d MB\) sent to \S+/20261121-first\n", capsys.readouterr().out)
    assert main(["upload", str(run), str(tmp_path / "kept")]) == 0
    assert capsys.readouterr().out.endswith(", 4 were there already\n")


def test_the_command_says_what_went_wrong_and_ends_with_2(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["upload", str(run), "ftp://host/x"]) == 2
    assert capsys.readouterr().err.startswith("llm-locust upload: 'ftp://host/x' is of an unknown kind")
    with pytest.raises(SystemExit):
        main(["upload", str(run), "kept", "--attempts", "0"])


ROWS = 3
FIRST = "batches/000000000000000.frames"


def frame(seq: int) -> bytes:
    records = [request(seq + 0.1 * k, (0.05, 0.1), request_id=f"{seq}-{k}") for k in range(ROWS)]
    header = FrameHeader("20261121-first", "w1", seq, ROWS, ROWS * (seq + 1), 0)
    return encode_frame(header, RecordBatch.from_records(records, "w1").to_bytes())


class Soak:
    """A run directory as a master that goes on keeps it."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.path = path
        self.batches = 0
        self.log = FrameLog(path / FRAMES_FILE)
        self.note()

    def note(self) -> None:
        """What the master writes every few seconds."""
        known = manifest(ROWS * self.batches, stopped_ns=None)
        seqs = f"0-{self.batches - 1}" if self.batches > 1 else "0" if self.batches else ""
        worker = replace(known.workers[0], batches=self.batches, received_seqs=seqs)
        write_manifest(self.path, replace(known, workers=[worker]))

    def grow(self, batches: int) -> None:
        self.log.append(*(frame(self.batches + i) for i in range(batches)))
        self.batches += batches
        self.note()

    def summarise(self, text: str) -> None:
        (self.path / "so-far").mkdir(exist_ok=True)
        (self.path / "so-far" / "report.md").write_text(text)

    def end(self) -> None:
        """The report is there, the batches are another file."""
        (self.path / "requests.parquet").write_bytes(b"all requests")
        (self.path / FRAMES_FILE).unlink()


@pytest.fixture
def soak(tmp_path: Path) -> Iterator[Soak]:
    made = Soak(tmp_path / "run")
    yield made
    made.log.close()


def test_batches_go_up_once_in_slices_that_merge_to_the_run(soak: Soak, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    soak.grow(2)
    size = (soak.path / FRAMES_FILE).stat().st_size
    assert upload_run(soak.path, str(kept)).sent == (FIRST, MANIFEST_FILE)
    soak.grow(3)
    soak.summarise("so far")
    again = upload_run(soak.path, str(kept))
    assert again.sent == (f"batches/{size:015d}.frames", "so-far/report.md", MANIFEST_FILE)
    assert again.skipped == (FIRST,)
    merged = merge([copy(kept, soak.path)], tmp_path / "merged")
    assert (merged.rows, merged.duplicates, merged.tears) == (5 * ROWS, 0, ())
    assert len(read_requests(tmp_path / "merged")) == 5 * ROWS
    assert merged.manifest.workers[0].announced == 5 * ROWS


def test_nothing_is_sent_where_nothing_has_changed(soak: Soak, tmp_path: Path) -> None:
    soak.grow(2)
    upload_run(soak.path, str(tmp_path / "kept"))
    assert upload_run(soak.path, str(tmp_path / "kept")).bytes_sent == 0


def test_a_batch_that_is_being_written_waits_for_the_next_time(soak: Soak, tmp_path: Path) -> None:
    soak.grow(1)
    whole_until = (soak.path / FRAMES_FILE).stat().st_size
    with (soak.path / FRAMES_FILE).open("ab") as file:
        file.write(frame(1)[:-1])
    upload_run(soak.path, str(tmp_path / "kept"))
    assert (copy(tmp_path / "kept", soak.path) / FIRST).stat().st_size == whole_until


@given(cut=st.integers(0, 3), damaged=st.booleans())
def test_slices_follow_each_other_without_a_gap_up_to_the_last_whole_batch(
    tmp_path_factory: pytest.TempPathFactory, cut: int, damaged: bool
) -> None:
    path = tmp_path_factory.mktemp("slices") / FRAMES_FILE
    frames = [frame(seq) for seq in range(4)]
    content = b"".join(frames)
    first = sum(map(len, frames[:cut]))
    if damaged and cut < 3:  # in the batch behind the first slice; whole ones follow
        content = content[: first + 40] + b"#" + content[first + 41 :]
    path.write_bytes(content + b"LLB1 and no more")
    sent = {FIRST: Stored(first, "")} if first else {}
    parts = list(parts_of(path.parent, sent))
    assert [(part.start, part.stop) for part in parts] == [(0, first)] * bool(first) + [(first, len(content))]


def test_the_end_of_the_run_takes_the_slices_and_what_else_is_gone_away(soak: Soak, tmp_path: Path) -> None:
    soak.grow(2)
    soak.summarise("so far")
    upload_run(soak.path, str(tmp_path / "kept"))
    soak.end()
    assert upload_run(soak.path, str(tmp_path / "kept")).removed == (FIRST,)
    there = contents(copy(tmp_path / "kept", soak.path))
    del there["uploaded.json"]
    assert there == contents(soak.path)


def test_the_manifest_is_of_the_moment_before_the_batches_so_that_all_it_tells_of_is_there(
    soak: Soak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soak.grow(2)
    write = Destination.write

    def meanwhile(self: Destination, name: str, chunks: Iterator[bytes]) -> int:
        soak.grow(1)
        return write(self, name, chunks)

    monkeypatch.setattr(Destination, "write", meanwhile)
    upload_run(soak.path, str(tmp_path / "kept"))
    there = copy(tmp_path / "kept", soak.path)
    assert read_manifest(there).workers[0].received == 2 * ROWS
    assert (there / FIRST).read_bytes() == frame(0) + frame(1)


def test_the_manifest_stays_while_files_are_added_and_is_gone_while_others_are_changed(
    soak: Soak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soak.grow(1)
    soak.summarise("so far")
    upload_run(soak.path, str(tmp_path / "kept"))
    soak.grow(1)
    soak.summarise("further")
    there, write = copy(tmp_path / "kept", soak.path), Destination.write
    with_manifest: dict[str, bool] = {}

    def noted(self: Destination, name: str, chunks: Iterator[bytes]) -> int:
        with_manifest.setdefault(name, (there / MANIFEST_FILE).exists())
        return write(self, name, chunks)

    monkeypatch.setattr(Destination, "write", noted)
    added, changed, _ = upload_run(soak.path, str(tmp_path / "kept")).sent
    assert (with_manifest[added], with_manifest[changed]) == (True, False)


def test_a_run_that_ends_meanwhile_is_uploaded_as_it_is_then(
    soak: Soak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soak.grow(2)
    chunks = UploadPart.chunks

    def ended(self: UploadPart, digest: Any) -> Iterator[bytes]:
        if self.name == FIRST and (soak.path / FRAMES_FILE).exists():
            soak.end()
        return chunks(self, digest)

    monkeypatch.setattr(UploadPart, "chunks", ended)
    done = upload_run(soak.path, str(tmp_path / "kept"))
    assert done.sent == ("requests.parquet", MANIFEST_FILE)


def test_two_uploads_of_one_run_take_turns(soak: Soak, tmp_path: Path) -> None:
    soak.grow(1)
    folder = os.open(soak.path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        second = threading.Thread(target=upload_run, args=(soak.path, str(tmp_path / "kept")), daemon=True)
        second.start()
        second.join(0.2)
        assert second.is_alive()
        assert not (tmp_path / "kept").exists()
        fcntl.flock(folder, fcntl.LOCK_UN)
    finally:
        os.close(folder)
    second.join(120)
    assert (copy(tmp_path / "kept", soak.path) / MANIFEST_FILE).exists()


def test_an_upload_that_fails_leaves_what_it_sent_for_the_next_one(
    soak: Soak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soak.grow(1)
    soak.summarise("so far")
    write = Destination.write

    def failing(self: Destination, name: str, chunks: Iterator[bytes]) -> int:
        if name.startswith("so-far"):
            raise OSError("no room")
        return write(self, name, chunks)

    with monkeypatch.context() as patch:
        patch.setattr(Destination, "write", failing)
        with pytest.raises(UploadError, match="no room"):
            upload_run(soak.path, str(tmp_path / "kept"), RetryPolicy(attempts=1))
    done = upload_run(soak.path, str(tmp_path / "kept"))
    assert done.skipped == (FIRST,)
