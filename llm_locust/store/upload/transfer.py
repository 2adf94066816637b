"""Upload of a run directory to an object store or another file system.

At the destination a run has a folder of its own, named by its id. The manifest comes last, so that a folder
with one is complete. Before that comes ``uploaded.json``, which is updated file by file and lists what is
there for a later attempt.
"""

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from llm_locust.store.files import MANIFEST_FILE, check_folder_name, read_manifest
from llm_locust.store.upload.destination import Destination, UploadError, open_destination
from llm_locust.store.upload.files import Stored, UploadPart, dropped_slices, parts_of
from llm_locust.store.upload.guard import Change
from llm_locust.wire.payload import DECODE_ERRORS

#: At the destination: name -> size and SHA-256 of each file that is there.
INDEX_FILE = "uploaded.json"

LONGEST_PAUSE_S = 30.0

#: Errors that another attempt cannot change.
_FINAL = re.compile(
    "ACCESS_DENIED|NO_SUCH_BUCKET|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|INVALID_CLIENT_TOKEN_ID"
    "|MISSING_AUTHENTICATION_TOKEN|HTTP status 40[13]|PERMISSION_DENIED|UNAUTHENTICATED|Permanent error",
    re.IGNORECASE,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Uploaded:
    """Result of an upload.

    Attributes:
        to: the run's folder at the destination.
        sent: names of the files that were sent.
        skipped: names of those that were there already.
        removed: names of those that an earlier upload had sent, and the run no longer has.
        bytes_sent: total size of ``sent``.
    """

    to: str
    sent: tuple[str, ...]
    skipped: tuple[str, ...]
    removed: tuple[str, ...]
    bytes_sent: int

    def __str__(self) -> str:
        there = f", {len(self.skipped)} were there already" if self.skipped else ""
        return f"{len(self.sent)} files ({self.bytes_sent / 1e6:.1f} MB) sent to {self.to}{there}"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Number of attempts of a step, and the pause between them, which doubles each time up to 30 s."""

    attempts: int = 5
    pause_s: float = 1.0
    wait: Callable[[float], None] = time.sleep

    def try_again(self, step: Callable[[], T]) -> T:
        """Do the step; raise its last error after ``attempts`` failures, or if it is final."""
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


def upload_run(run: Path, to: str, patience: RetryPolicy | None = None) -> Uploaded:
    """Copy a run directory to ``to/<run id>``, or the part of it that is new or has changed.

    A file is skipped if ``uploaded.json`` there lists it with its present size and SHA-256, and the
    destination reports that size. New files are sent first. While others are changed, the manifest of an
    earlier upload is removed. Files of an earlier upload that no longer exist are deleted.

    A directory of a running run can be uploaded too, repeatedly: its manifest is that of the start of the
    upload, and everything that it lists is there. Two uploads of one directory take turns.

    Args:
        run: run directory with its manifest. It is not changed.
        to: ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``file:///path`` or a path. Credentials come from
            the environment.

    Raises:
        UploadError: in one line why it is incomplete; the local files are unchanged, and another upload goes
            on where this one ended.
        StoreError: ``run`` is not a run directory, or its id cannot be the name of a folder.
    """
    run_id = check_folder_name(read_manifest(run).id, f"{str(run)!r} cannot be uploaded: its run's id")
    destination = open_destination(to)
    try:
        with alone(run):
            return _everything(run, destination.folder(run_id), patience or RetryPolicy())
    except (OSError, pa.ArrowException) as e:
        raise UploadError(
            f"{str(run)!r} could not be uploaded to {destination.text!r}: {destination.reason(e)}; "
            f"the files are kept, `llm-locust upload {quote(str(run))} {quote(destination.text)}` goes on"
        ) from e


def _everything(run: Path, to: Destination, patience: RetryPolicy) -> Uploaded:
    while True:
        with suppress(_EndedError):
            return _Upload(run, to, patience).everything()


@contextmanager
def alone(run: Path) -> Iterator[None]:
    """Exclude other uploads of the directory; impossible on a file system without locks."""
    folder = os.open(run, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


class _GoneError(Exception):
    """A file that existed has disappeared."""


class _EndedError(Exception):
    """The run has ended meanwhile, and its batches are in another file."""


class _Upload:
    """One upload: what is there, and what is sent."""

    def __init__(self, run: Path, destination: Destination, patience: RetryPolicy) -> None:
        self._run = run
        self._to = destination
        self._patience = patience
        self._sent: dict[str, Stored] = {}

    def everything(self) -> Uploaded:
        # Before anything else is read, so that everything that it lists exists.
        manifest = (self._run / MANIFEST_FILE).read_bytes()
        index = self._patience.try_again(lambda: read_index(self._to))
        parts = {part.name: part for part in parts_of(self._run, index) if part.name != MANIFEST_FILE}
        names = sorted({*parts, *index, MANIFEST_FILE})
        sizes = self._patience.try_again(lambda: self._to.sizes(names))
        there = {name for name, part in parts.items() if _is_there(part, index, sizes)}
        known = _stored(manifest)
        up_to_date = index.get(MANIFEST_FILE) == known and sizes.get(MANIFEST_FILE) == known.size
        only_there = dropped_slices(self._run, index)
        removed = tuple(sorted((index.keys() - parts.keys() - only_there - {MANIFEST_FILE}) & sizes.keys()))
        if up_to_date and len(there) == len(parts) and not removed:
            return Uploaded(self._to.text, (), tuple(sorted({*there, MANIFEST_FILE})), (), 0)
        Change(self._run, self._to, index, removed).check()
        index = {name: stored for name, stored in index.items() if name in there | only_there}
        due = [part for name, part in parts.items() if name not in there]
        self._send([part for part in due if part.name not in sizes], index)
        changed = [part for part in due if part.name in sizes]
        if (changed or removed) and MANIFEST_FILE in sizes:
            self._remove(MANIFEST_FILE)
        self._send(changed, index)
        for name in removed:
            self._remove(name)
        self._send_manifest(manifest, index)
        bytes_sent = sum(stored.size for stored in self._sent.values())
        return Uploaded(self._to.text, tuple(self._sent), tuple(sorted(there)), removed, bytes_sent)

    def _send(self, parts: Sequence[UploadPart], index: dict[str, Stored]) -> None:
        """Send files, each followed by the updated index."""
        for part in parts:
            with suppress(_GoneError):  # a batch in the spool that the master has received meanwhile
                index[part.name] = self._sent[part.name] = self._patience.try_again(partial(self._copy, part))
                self._write_index(index)

    def _send_manifest(self, content: bytes, index: dict[str, Stored]) -> None:
        """Send the manifest last, and always: its presence means that everything else is there."""
        self._sent[MANIFEST_FILE] = _stored(content)
        self._write_index(index | {MANIFEST_FILE: _stored(content)})
        self._patience.try_again(lambda: self._to.write(MANIFEST_FILE, iter([content])))

    def _copy(self, part: UploadPart) -> Stored:
        digest = hashlib.sha256()
        try:
            size = self._to.write(part.name, part.chunks(digest))
        except FileNotFoundError as e:
            if part.path.exists():
                raise
            raise (_GoneError if part.stop is None else _EndedError) from e
        return Stored(size, digest.hexdigest())

    def _remove(self, name: str) -> None:
        def delete() -> None:
            with suppress(FileNotFoundError):
                self._to.delete(name)

        self._patience.try_again(delete)

    def _write_index(self, index: Mapping[str, Stored]) -> None:
        self._patience.try_again(lambda: write_index(self._to, index))


def write_index(to: Destination, index: Mapping[str, Stored]) -> None:
    """Write what is at a destination (raises OSError)."""
    content = msgspec.json.format(msgspec.json.encode({"schema": 1, "files": index}))
    to.write(INDEX_FILE, iter([content]))


def read_index(to: Destination) -> dict[str, Stored]:
    """What an earlier upload left at a destination; empty if it left no list that can be read."""
    content = to.read(INDEX_FILE)
    try:
        files = {} if content is None else msgspec.json.decode(content, type=dict[str, Any])["files"]
        return msgspec.convert(files, dict[str, Stored])
    except (*DECODE_ERRORS, KeyError):
        return {}


def _stored(content: bytes) -> Stored:
    return Stored(len(content), hashlib.sha256(content).hexdigest())


def _is_there(part: UploadPart, index: Mapping[str, Stored], sizes: Mapping[str, int]) -> bool:
    stored = index.get(part.name)
    return stored is not None and sizes.get(part.name) == stored.size and part.is_as(stored)
