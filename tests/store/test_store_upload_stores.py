"""Uploads to the real APIs of object stores, on loopback: whole, cut, refused, and on from there."""

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from pyarrow import fs
from relay import Relay, relay
from report_cases import Pauses, finished_run, whole
from swarm_process import free_port

from llm_locust.store import upload as upload_files
from llm_locust.store.files import MANIFEST_FILE, read_manifest
from llm_locust.store.upload import (
    INDEX_FILE,
    RetryPolicy,
    UploadError,
    UploadPart,
    open_destination,
    upload_run,
)

pytestmark = pytest.mark.run
SECRET = "this-is-the-secret"


#: What a client finds in the environment. Nothing but the loopback is asked for an identity.
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "known-key-id",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}

S3_SERVER = "import sys; from moto.server import main; main(['-H', '127.0.0.1', '-p', sys.argv[1]])"

GS_SERVER = """
import logging, sys
from gcp_storage_emulator.server import create_server
logging.disable()
server = create_server("127.0.0.1", int(sys.argv[1]), in_memory=True)
server.start()
print("Running on", flush=True)
sys.stdin.read()
server.stop()
"""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket behind a network that fails when it is told to."""

    scheme: str
    name: str
    port: int
    network: Relay

    @property
    def address(self) -> str:
        return self._at(self.network.port)

    def contents(self) -> dict[str, bytes]:
        """The objects, read past the network that fails."""
        place = open_destination(self._at(self.port))
        listed = place.filesystem.get_file_info(fs.FileSelector(place.path, recursive=True))
        names = [info.path[len(place.path) + 1 :] for info in listed if info.type == fs.FileType.File]
        return {name: place.read(name) or b"" for name in names}

    def _at(self, port: int) -> str:
        return f"{self.scheme}://{self.name}/nightly?scheme=http&endpoint_override=127.0.0.1:{port}"


@contextmanager
def serving(command: str) -> Iterator[int]:
    """The port of a server in a process of its own that says when it runs."""
    port = free_port()
    with subprocess.Popen(
        [sys.executable, "-c", command, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert any("Running on" in line for line in server.stdout)
        yield port
        server.kill()


@pytest.fixture(scope="module")
def s3_port() -> Iterator[int]:
    pytest.importorskip("moto", reason="moto[server] serves the S3 API")
    with serving(S3_SERVER) as port:
        yield port


@pytest.fixture(scope="module")
def gs_port() -> Iterator[int]:
    pytest.importorskip("gcp_storage_emulator", reason="gcp-storage-emulator serves Google's API")
    with serving(GS_SERVER) as port:
        yield port


@pytest.fixture(scope="module")
def service_account(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made up one, with a key that signs."""
    key = generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    account = {"type": "service_account", "private_key_id": "1", "private_key": pem, "client_email": "a@b"}
    path = tmp_path_factory.mktemp("account") / "account.json"
    path.write_bytes(msgspec.json.encode(account))
    return path


@pytest.fixture(params=["s3", "gs"])
def bucket(
    request: pytest.FixtureRequest, service_account: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bucket]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(service_account))
    monkeypatch.setattr(upload_files, "CONNECT_TIMEOUT_S", 0.5)
    port: int = request.getfixturevalue(f"{request.param}_port")
    place = {"scheme": "http", "endpoint_override": f"127.0.0.1:{port}"}
    if request.param == "s3":
        store = fs.S3FileSystem(**place, allow_bucket_creation=True)
    else:
        store = fs.GcsFileSystem(**place, project_id="tests")
    name = f"runs-{secrets.token_hex(4)}"
    store.create_dir(name)
    with relay(port) as network:
        yield Bucket(request.param, name, port, network)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return finished_run(tmp_path / "run")


def in_bucket(run: Path) -> dict[str, bytes]:
    return {f"{read_manifest(run).id}/{name}": content for name, content in whole(run).items()}


def test_a_bucket_gets_all_files_and_a_second_upload_sends_none(run: Path, bucket: Bucket) -> None:
    done = upload_run(run, bucket.address)
    there = bucket.contents()
    assert there.pop(f"{read_manifest(run).id}/{INDEX_FILE}")
    assert there == in_bucket(run)
    assert upload_run(run, bucket.address).skipped == tuple(sorted(done.sent))


def test_what_the_run_has_no_more_goes_from_the_bucket(run: Path, bucket: Bucket) -> None:
    upload_run(run, bucket.address)
    (run / "spool" / "w1" / "000001.frame").unlink()
    assert upload_run(run, bucket.address).removed == ("spool/w1/000001.frame",)
    there = bucket.contents()
    assert there.pop(f"{read_manifest(run).id}/{INDEX_FILE}")
    assert there == in_bucket(run)


def test_a_server_that_is_down_at_first_is_waited_for(run: Path, bucket: Bucket) -> None:
    bucket.network.cut()
    pauses = Pauses([lambda: None, bucket.network.mend])
    upload_run(run, bucket.address, RetryPolicy(wait=pauses))
    assert pauses.taken_s == [1, 2]
    assert in_bucket(run).items() <= bucket.contents().items()


def test_an_upload_that_is_cut_midway_leaves_no_manifest_and_goes_on_where_it_ended(
    run: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / "requests.parquet").write_bytes(os.urandom(24_000_000))
    chunks = UploadPart.chunks

    def cut_short(*args: Any) -> Iterator[bytes]:
        for number, chunk in enumerate(chunks(*args)):
            if number == 18:
                bucket.network.cut()
            yield chunk

    monkeypatch.setattr(upload_files, "CHUNK_BYTES", 1_000_000)
    monkeypatch.setattr(UploadPart, "chunks", cut_short)
    before = whole(run)
    with pytest.raises(UploadError, match=r"AWS Error|GCS error UNAVAILABLE") as said:
        upload_run(run, bucket.address, RetryPolicy(attempts=2, wait=Pauses()))
    assert "\n" not in str(said.value)
    assert SECRET not in str(said.value)
    assert whole(run) == before
    left = {name.partition("/")[2] for name in bucket.contents()}
    assert "report.md" in left
    assert not left & {MANIFEST_FILE, "requests.parquet"}

    monkeypatch.setattr(UploadPart, "chunks", chunks)
    bucket.network.mend()
    done = upload_run(run, bucket.address)
    assert done.skipped == ("report.md",)
    assert in_bucket(run).items() <= bucket.contents().items()


def test_a_bucket_that_is_not_there_is_said_at_once(run: Path, bucket: Bucket) -> None:
    pauses = Pauses()
    with pytest.raises(UploadError, match=r"NO_SUCH_BUCKET|GCS error NOT_FOUND"):
        upload_run(run, bucket.address.replace(bucket.name, "no-such-bucket"), RetryPolicy(wait=pauses))
    assert not pauses.taken_s


@pytest.mark.parametrize("bucket", ["s3"], indirect=True)
def test_the_endpoint_may_come_from_the_environment(
    run: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{bucket.network.port}")
    to = f"s3://{bucket.name}/nightly"
    assert upload_run(run, to).to == f"{to}/{read_manifest(run).id}"
    assert in_bucket(run).items() <= bucket.contents().items()


@pytest.mark.parametrize("content", [None, "{}"])
def test_credentials_that_cannot_be_used_are_said_at_once_and_in_one_line(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    path = tmp_path / "account.json"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    pauses = Pauses()
    with pytest.raises(
        UploadError, match=r"GCS error \w+: no access token: \w.*; the files are kept"
    ) as said:
        upload_run(
            run,
            f"gs://runs/x?scheme=http&endpoint_override=127.0.0.1:{free_port()}",
            RetryPolicy(wait=pauses),
        )
    assert "\n" not in str(said.value)
    assert not pauses.taken_s


def test_what_was_sent_can_be_read_back_in_pieces_and_what_is_missing_is_said(bucket: Bucket) -> None:
    place = open_destination(bucket.address)
    place.write("batches/0.frames", iter([b"0123456789"]))
    place.sync("batches/0.frames")
    assert list(place.chunks("batches/0.frames", 4)) == [b"0123", b"4567", b"89"]
    with pytest.raises(FileNotFoundError):
        list(place.chunks("batches/1.frames", 4))
