"""A run directory gets to where runs are kept: whole, or with a word on why not, and on from there."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyarrow import fs
from relay import Relay, relay
from report_cases import write_run

from llm_locust.store import upload as module
from llm_locust.store.destination import Destination, UploadError, open_destination
from llm_locust.store.files import MANIFEST_FILE, StoreError, read_manifest
from llm_locust.store.upload import INDEX_FILE, Patience, Uploaded, upload_run
from llm_locust.store.upload_command import main

KEY, SECRET = "known-key-id", "this-is-the-secret"


@dataclass(slots=True)
class Pauses:
    """How long was waited between attempts; at the n-th pause the n-th deed is done."""

    deeds: list[Callable[[], None]] = field(default_factory=list)
    taken_s: list[float] = field(default_factory=list)

    def __call__(self, pause_s: float) -> None:
        self.taken_s.append(pause_s)
        if len(self.taken_s) <= len(self.deeds):
            self.deeds[len(self.taken_s) - 1]()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run, with a spool that was left behind."""
    made = write_run(tmp_path / "run")
    (made / "report.md").write_text("# Report\n")
    (made / "spool" / "w1").mkdir(parents=True)
    (made / "spool" / "w1" / "000001.frame").write_bytes(b"frame")
    (made / "report.md.part").write_text("half")
    (made / "link").symlink_to(made / "manifest.json")
    return made


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def whole(run: Path) -> dict[str, bytes]:
    """What a run amounts to elsewhere."""
    return {name: c for name, c in contents(run).items() if not name.endswith(".part") and name != "link"}


def copy(kept: Path, run: Path) -> Path:
    return kept / read_manifest(run).id


# On a file system.


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
    assert again == Uploaded(first.to, (), tuple(sorted(first.sent)), 0)


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
    names = list(module._names(run))

    def acknowledged(_: Path) -> Iterator[str]:
        (run / "spool" / "w1" / "000001.frame").unlink()
        return iter(names)

    monkeypatch.setattr(module, "_names", acknowledged)
    done = upload_run(run, str(tmp_path))
    assert "spool/w1/000001.frame" not in done.sent
    assert (copy(tmp_path, run) / MANIFEST_FILE).exists()


def test_a_directory_that_cannot_be_written_is_said_in_one_line_and_keeps_the_files(
    run: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    before, pauses = contents(run), Pauses()
    with pytest.raises(UploadError, match=r"could not be uploaded to .*/file.*`llm-locust upload ") as said:
        upload_run(run, str(tmp_path / "file" / "below"), Patience(attempts=4, wait=pauses))
    assert "\n" not in str(said.value)
    assert contents(run) == before


def test_a_step_is_tried_again_after_pauses_that_double_up_to_a_bound() -> None:
    pauses = Pauses()
    with pytest.raises(OSError, match="no luck"):
        Patience(attempts=8, wait=pauses).try_again(_failing("no luck"))
    assert pauses.taken_s == [1, 2, 4, 8, 16, 30, 30]


@pytest.mark.parametrize("refusal", ["AWS Error ACCESS_DENIED during", "AWS Error NO_SUCH_BUCKET during"])
def test_what_another_attempt_cannot_change_is_not_tried_again(refusal: str) -> None:
    pauses = Pauses()
    with pytest.raises(OSError, match=refusal):
        Patience(wait=pauses).try_again(_failing(refusal))
    assert not pauses.taken_s


def _failing(text: str) -> Callable[[], None]:
    def step() -> None:
        raise OSError(text)

    return step


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("ftp://host/x", "of no known kind"),
        ("s3:///prefix", "names no bucket"),
        ("s3://bucket/x?acl=public", "'acl' is no setting of s3://"),
        ("file://elsewhere/x", "names another host"),
        ("", "an empty address"),
    ],
)
def test_an_address_that_cannot_be_used_is_said(run: Path, address: str, reason: str) -> None:
    with pytest.raises(UploadError, match=re.escape(reason)):
        upload_run(run, address)


def test_an_address_with_credentials_in_it_is_refused_and_not_repeated(run: Path) -> None:
    with pytest.raises(UploadError, match="the environment has to have them") as said:
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
    assert capsys.readouterr().err.startswith("llm-locust upload: 'ftp://host/x' is of no known kind")
    with pytest.raises(SystemExit):
        main([str(run), "kept", "--attempts", "0"])


# To a real S3 API.


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket behind a network that fails when it is told to."""

    port: int
    network: Relay

    @property
    def address(self) -> str:
        return f"s3://runs/nightly?scheme=http&endpoint_override=127.0.0.1:{self.network.port}"

    def contents(self) -> dict[str, bytes]:
        """The objects, read past the network that fails."""
        place = open_destination(f"s3://runs/nightly?scheme=http&endpoint_override=127.0.0.1:{self.port}")
        return {name: place.read(name) or b"" for name in place.sizes()}


@pytest.fixture(scope="module")
def s3_port() -> Iterator[int]:
    pytest.importorskip("moto", reason="moto[server] serves the S3 API")
    command = "import sys; from moto.server import main; main(['-H', '127.0.0.1', '-p', '0'])"
    with subprocess.Popen([sys.executable, "-c", command], stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        said = next(line for line in server.stderr if "Running on" in line)
        yield int(said.rpartition(":")[2])
        server.kill()


@pytest.fixture
def bucket(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    for name, value in {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    s3 = fs.S3FileSystem(
        scheme="http",
        endpoint_override=f"127.0.0.1:{s3_port}",
        allow_bucket_creation=True,
        allow_bucket_deletion=True,
    )
    s3.create_dir("runs")
    with relay(s3_port) as network:
        yield Bucket(s3_port, network)
    s3.delete_dir("runs")


def in_bucket(run: Path) -> dict[str, bytes]:
    return {f"{read_manifest(run).id}/{name}": content for name, content in whole(run).items()}


def test_a_bucket_gets_all_files_and_a_second_upload_sends_none(run: Path, bucket: Bucket) -> None:
    done = upload_run(run, bucket.address)
    there = bucket.contents()
    assert there.pop(f"{read_manifest(run).id}/{INDEX_FILE}")
    assert there == in_bucket(run)
    assert upload_run(run, bucket.address).skipped == tuple(sorted(done.sent))


def test_the_endpoint_may_come_from_the_environment(
    run: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{bucket.network.port}")
    assert upload_run(run, "s3://runs/nightly").to == f"s3://runs/nightly/{read_manifest(run).id}"
    assert in_bucket(run).items() <= bucket.contents().items()


def test_a_server_that_is_down_at_first_is_waited_for(run: Path, bucket: Bucket) -> None:
    bucket.network.cut()
    pauses = Pauses([lambda: None, bucket.network.mend])
    upload_run(run, bucket.address, Patience(wait=pauses))
    assert pauses.taken_s == [1, 2]
    assert in_bucket(run).items() <= bucket.contents().items()


def test_an_upload_that_is_cut_midway_leaves_no_manifest_and_goes_on_where_it_ended(
    run: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / "requests.parquet").write_bytes(os.urandom(12_000_000))
    chunks = module._chunks

    def cut_short(*args: object) -> Iterator[bytes]:
        for number, chunk in enumerate(chunks(*args)):  # type: ignore[arg-type]
            if number == 7:
                bucket.network.cut()
            yield chunk

    monkeypatch.setattr(module, "CHUNK_BYTES", 1_000_000)
    monkeypatch.setattr(module, "_chunks", cut_short)
    before = contents(run)
    with pytest.raises(UploadError, match="AWS Error") as said:
        upload_run(run, bucket.address, Patience(attempts=2, wait=Pauses()))
    assert "\n" not in str(said.value)
    assert SECRET not in str(said.value)
    assert contents(run) == before
    left = {name.partition("/")[2] for name in bucket.contents()}
    assert "report.md" in left
    assert not left & {MANIFEST_FILE, "requests.parquet"}

    monkeypatch.setattr(module, "_chunks", chunks)
    bucket.network.mend()
    done = upload_run(run, bucket.address)
    assert done.skipped == ("report.md",)
    assert in_bucket(run).items() <= bucket.contents().items()


def test_a_bucket_that_is_not_there_is_said_at_once(run: Path, bucket: Bucket) -> None:
    pauses = Pauses()
    with pytest.raises(UploadError, match="NO_SUCH_BUCKET"):
        upload_run(run, bucket.address.replace("//runs", "//no-such-bucket"), Patience(wait=pauses))
    assert not pauses.taken_s
