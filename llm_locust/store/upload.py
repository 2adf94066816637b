"""A run directory's way to where runs are kept: an object store or another file system.

At the destination a run has a folder of its own, named by its id. The manifest comes last, so that a folder
that has one is whole; before it comes ``uploaded.json``, which is kept up to date file by file and tells a
later attempt what is there already.
"""

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, BinaryIO, TypeVar

import msgspec

from llm_locust.store.destination import Destination, UploadError, open_destination
from llm_locust.store.files import MANIFEST_FILE, read_manifest

#: At the destination: name -> size and SHA-256 of each file that is there.
INDEX_FILE = "uploaded.json"

CHUNK_BYTES = 8 * 1024 * 1024
LONGEST_PAUSE_S = 30.0

#: What another attempt cannot change.
_FINAL = re.compile(
    "ACCESS_DENIED|NO_SUCH_BUCKET|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|INVALID_CLIENT_TOKEN_ID"
    "|MISSING_AUTHENTICATION_TOKEN|HTTP status 40[13]|PERMISSION_DENIED|UNAUTHENTICATED",
    re.IGNORECASE,
)

T = TypeVar("T")


class Stored(msgspec.Struct, frozen=True):
    """A file as it was sent: its size in bytes, and the SHA-256 of its content in hexadecimal digits."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Uploaded:
    """What an upload did.

    Attributes:
        to: the run's folder at the destination.
        sent: names of the files that were sent.
        skipped: names of those that were there already.
        bytes_sent: size of ``sent`` together.
    """

    to: str
    sent: tuple[str, ...]
    skipped: tuple[str, ...]
    bytes_sent: int

    def __str__(self) -> str:
        there = f", {len(self.skipped)} were there already" if self.skipped else ""
        return f"{len(self.sent)} files ({self.bytes_sent / 1e6:.1f} MB) sent to {self.to}{there}"


@dataclass(frozen=True, slots=True)
class Patience:
    """How often a step is tried, and how long is waited between: twice as long each time, 30 s at most."""

    attempts: int = 5
    pause_s: float = 1.0
    wait: Callable[[float], None] = time.sleep

    def try_again(self, step: Callable[[], T]) -> T:
        """Do the step; its last error is raised when it has failed ``attempts`` times, or for good."""
        pause_s = self.pause_s
        for left in range(self.attempts - 1, -1, -1):
            try:
                return step()
            except OSError as e:
                if not left or isinstance(e, PermissionError) or _FINAL.search(str(e)):
                    raise
            self.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        raise ValueError(f"{self.attempts} attempts: at least one is needed")


def upload_run(run: Path, to: str, patience: Patience | None = None) -> Uploaded:
    """Copy a run directory to ``to/<run id>``.

    A file is skipped where ``uploaded.json`` there names it with the size and SHA-256 that it has here, and
    the destination says that the size is so. While files are changed, the manifest of an earlier upload is
    not there. A directory of a run that goes on can be uploaded too: each file as far as it has got.

    Args:
        run: run directory with its manifest. It is only read.
        to: ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``file:///path`` or a path. Credentials come
            from the environment.

    Raises:
        UploadError: in one line why not everything is there; the files here are as they were, and another
            upload goes on where this one ended.
        StoreError: ``run`` is no run directory.
    """
    run_id = read_manifest(run).id
    destination = open_destination(to)
    try:
        return _Upload(run, destination.folder(run_id), patience or Patience()).everything()
    except OSError as e:
        raise UploadError(
            f"{str(run)!r} could not be uploaded to {destination.text!r}: {destination.reason(e)}; "
            f"the files are kept, `llm-locust upload {quote(str(run))} {quote(destination.text)}` goes on"
        ) from e


class _GoneError(Exception):
    """A file that was there is not there any more."""


class _Upload:
    """One upload: what is there, and what is sent."""

    def __init__(self, run: Path, destination: Destination, patience: Patience) -> None:
        self._run = run
        self._to = destination
        self._patience = patience

    def everything(self) -> Uploaded:
        there = self._patience.try_again(self._read_index)
        sizes = self._patience.try_again(self._to.sizes)
        names = list(_names(self._run))
        skipped = tuple(name for name in names if self._is_there(name, there, sizes))
        # Last, and always: that it is there says that all else is.
        due = [name for name in names if name not in skipped and name != MANIFEST_FILE]
        if due or MANIFEST_FILE not in skipped:
            return self._send_all([*due, MANIFEST_FILE], skipped, there, sizes)
        return Uploaded(self._to.text, (), skipped, 0)

    def _send_all(
        self, due: list[str], skipped: tuple[str, ...], there: Mapping[str, Stored], sizes: Mapping[str, int]
    ) -> Uploaded:
        if MANIFEST_FILE in sizes:
            self._patience.try_again(lambda: self._to.delete(MANIFEST_FILE))
        index = {name: stored for name, stored in there.items() if name in skipped and name != MANIFEST_FILE}
        sent: dict[str, Stored] = {}
        for name in due:
            with suppress(_GoneError):  # a batch in the spool that the master has by now
                sent[name] = self._send(name, index)
        return Uploaded(
            self._to.text,
            tuple(sent),
            tuple(name for name in skipped if name not in sent),
            sum(stored.size for stored in sent.values()),
        )

    def _send(self, name: str, index: dict[str, Stored]) -> Stored:
        """Send one file; the index that says so follows it, or comes before it where it is the manifest."""
        if name == MANIFEST_FILE:
            content = (self._run / name).read_bytes()
            stored = Stored(len(content), hashlib.sha256(content).hexdigest())
            self._write_index(index | {name: stored})
            self._patience.try_again(lambda: self._to.write(name, iter([content])))
            return stored
        stored = self._patience.try_again(lambda: self._copy(name))
        index[name] = stored
        self._write_index(index)
        return stored

    def _copy(self, name: str) -> Stored:
        digest = hashlib.sha256()
        try:
            file = (self._run / name).open("rb")
        except FileNotFoundError as e:
            raise _GoneError from e
        with file:
            size = self._to.write(name, _chunks(file, digest))
        return Stored(size, digest.hexdigest())

    def _write_index(self, index: Mapping[str, Stored]) -> None:
        content = msgspec.json.format(msgspec.json.encode({"schema": 1, "files": index}))
        self._patience.try_again(lambda: self._to.write(INDEX_FILE, iter([content])))

    def _read_index(self) -> dict[str, Stored]:
        """What an earlier upload has left; nothing where it left nothing that can be read."""
        content = self._to.read(INDEX_FILE)
        try:
            files = {} if content is None else msgspec.json.decode(content, type=dict[str, Any])["files"]
            return msgspec.convert(files, dict[str, Stored])
        except (msgspec.DecodeError, msgspec.ValidationError, KeyError, UnicodeDecodeError):
            return {}

    def _is_there(self, name: str, there: Mapping[str, Stored], sizes: Mapping[str, int]) -> bool:
        stored = there.get(name)
        if stored is None or sizes.get(name) != stored.size:
            return False
        digest = hashlib.sha256()
        size = 0
        with suppress(FileNotFoundError), (self._run / name).open("rb") as file:
            size = sum(len(chunk) for chunk in _chunks(file, digest))
        return stored == Stored(size, digest.hexdigest())


def _chunks(file: BinaryIO, digest: "hashlib._Hash") -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
        yield chunk


def _names(run: Path) -> Iterator[str]:
    """The files of a run directory, by their paths inside it; links and files half written are none."""
    for folder, folders, files in os.walk(run):
        folders.sort()
        for file in sorted(files):
            path = Path(folder, file)
            if path.is_file() and not path.is_symlink() and path.suffix != ".part" and file[0] != ".":
                yield path.relative_to(run).as_posix()
