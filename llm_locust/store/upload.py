"""Upload of a run directory: to an object store, or to another file system.

At the destination a run has a folder of its own, named by its id. The manifest comes last, so that a folder
with one is complete. Before that comes ``uploaded.json``, which is updated file by file and lists what is
there for a later attempt."""

import argparse
import fcntl
import hashlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar
from urllib.parse import SplitResult, parse_qsl, urlsplit

import msgspec
import pyarrow as pa
from pyarrow import fs

from llm_locust.core.files import replacing
from llm_locust.core.manifest import MANIFEST_DECODER, Manifest
from llm_locust.store.files import (
    FRAMES_FILE,
    MANIFEST_FILE,
    REQUESTS_FILE,
    check_folder_name,
    read_manifest,
    sync,
)
from llm_locust.store.frame_log import (
    EXPIRED_DECODER,
    EXPIRED_SUFFIX,
    Segment,
    base_of,
    read_expired,
    segment_name,
    segments_of,
)
from llm_locust.store.frames import covers, index_frames, joined, parse_ranges
from llm_locust.store.merge import FRAMES_SUFFIX
from llm_locust.wire.foreign_text import blanked, public_url, url_secret
from llm_locust.wire.payload import DECODE_ERRORS

# --- The destination: a folder in an object store, or in a file system


#: Timeouts of one request to an object store, after which another one may be tried.
CONNECT_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 30.0

#: A list of files, a manifest, what is known of dropped segments: the files that are read, not copied.
MOST_READ_BYTES = 64 << 20

#: Files whose sizes are asked for at a time.
ASKED_AT_ONCE = 8

#: Allowed settings after the question mark of an address; the SDKs take the others from the environment.
_S3_SETTINGS = ("region", "scheme", "endpoint_override")
_GS_SETTINGS = ("scheme", "endpoint_override", "project_id", "anonymous")

#: Names that a bucket can have, by the rules of Amazon S3 and of Google Cloud Storage.
_BUCKETS = {
    "s3": re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"),
    "gs": re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"),
}

_FORMS = "s3://bucket/prefix, gs://bucket/prefix, file:///path or a path"

#: Parts of an error of Google's client: source positions, and the rest.
_GOOGLE = re.compile(
    r"google::cloud::Status\((\w+): (?:.*? a last message of )?"
    r"(.* underlying error message was: )?(.*?) error_info="
)

#: Characters of an error, which may quote what a store answered.
_MOST_REASON = 1_000

#: Secrets in the environment, in case a store's error quotes one.
_SECRETS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID")


class UploadError(ValueError):
    """An incomplete upload; the text says in one line why, and what to do."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A folder of a file system.

    Attributes:
        text: the folder as a person writes it; it holds no secret.
        filesystem: its file system.
        path: the folder in it.
    """

    text: str
    filesystem: fs.FileSystem
    path: str

    def folder(self, name: str) -> "Destination":
        """Subfolder of this name."""
        address, mark, settings = self.text.partition("?")
        text = f"{address.rstrip('/')}/{name}{mark}{settings}"
        return replace(self, text=text, path=f"{self.path.rstrip('/')}/{name}")

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Name -> size in bytes of each of these files that is there (raises OSError).

        They are asked for by name: the folder is not listed, because a list may have no end.
        """
        asked = list(names)
        with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
            found = zip(asked, pool.map(self._size, asked), strict=True)
            return {name: size for name, size in found if size is not None}

    def read(self, name: str) -> bytes | None:
        """Content of a small file; None if it does not exist.

        Raises:
            OSError: it cannot be read, or is larger than :data:`MOST_READ_BYTES`.
        """
        if self._size(name) is None:
            return None
        with self.filesystem.open_input_stream(f"{self.path}/{name}") as stream:
            content: bytes = stream.read(MOST_READ_BYTES + 1)
        if len(content) > MOST_READ_BYTES:
            raise OSError(f"{name} there is larger than {MOST_READ_BYTES >> 20} MiB, and no file of a run is")
        return content

    def chunks(self, name: str, size: int) -> Iterator[bytes]:
        """Content of a file in pieces of at most ``size`` bytes (raises OSError)."""
        with self.filesystem.open_input_stream(f"{self.path}/{name}") as stream:
            while chunk := stream.read(size):
                yield chunk

    def sync(self, name: str) -> None:
        """Make a file outlive a loss of power (raises OSError); an object store has done that."""
        if isinstance(self.filesystem, fs.LocalFileSystem):
            target = Path(self.path, name)
            for path in (target, target.parent):
                sync(path)

    def write(self, name: str, chunks: Iterator[bytes]) -> int:
        """Create or replace a file, completely or not at all; return its size in bytes.

        An object appears when its last part is there. On a file system it is first written to a temporary
        file.

        Raises:
            OSError: it was not written, or has another size than what was sent.
        """
        target = f"{self.path}/{name}"
        size = 0
        if isinstance(self.filesystem, fs.LocalFileSystem):
            self._check_inside(name)
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            with replacing(Path(target)) as file:
                for chunk in chunks:
                    size += file.write(chunk)
        else:
            try:
                with self.filesystem.open_output_stream(target) as stream:
                    for chunk in chunks:
                        stream.write(chunk)
                        size += len(chunk)
            except BaseException:
                with suppress(OSError):  # if reading was interrupted, the object was created all the same
                    self.filesystem.delete_file(target)
                raise
        if (found := self._size(name)) != size:
            raise OSError(f"{name}: {size} bytes were sent, {found} are there")
        return size

    def delete(self, name: str) -> None:
        """Remove a file (raises OSError)."""
        if isinstance(self.filesystem, fs.LocalFileSystem):
            self._check_inside(name)
        self.filesystem.delete_file(f"{self.path}/{name}")

    def reason(self, error: Exception) -> str:
        """Error text in one line of bounded length and without the environment's secrets."""
        text = " ".join(str(error).split()) or type(error).__name__
        if found := _GOOGLE.search(text):
            text = f"GCS error {found[1]}: {'no access token: ' if found[2] else ''}{found[3]}"
        text = blanked(text, filter(None, map(os.environ.get, _SECRETS)))
        return text if len(text) <= _MOST_REASON else text[:_MOST_REASON] + "…"

    def _check_inside(self, name: str) -> None:
        """Raise OSError if a link that somebody put into the folder leads a file of this name out of it."""
        if not Path(self.path, name).parent.resolve().is_relative_to(Path(self.path).resolve()):
            raise OSError(f"{self.path}/{name} is outside of the destination: a folder there is a link")

    def _size(self, name: str) -> int | None:
        """Size of a file in bytes; None if it does not exist (raises OSError)."""
        path = f"{self.path}/{name}"
        if self.filesystem.type_name != "s3":
            info = self.filesystem.get_file_info(path)
            return info.size if info.type == fs.FileType.File else None
        try:  # of an object that is not there, get_file_info lists those whose names begin with its name
            with self.filesystem.open_input_file(path) as file:
                size: int = file.size()
                return size
        except FileNotFoundError:
            return None


def is_inside(name: str) -> bool:
    """Whether a file of this name is in the folder that the name is added to."""
    return "\0" not in name and not {"", ".", ".."} & {*name.split("/")}


def open_destination(text: str) -> Destination:
    """Folder of an address. The network is not used yet.

    Raises:
        UploadError: not an address of a known kind, or one with credentials in it.
    """
    address = check_address(text)
    if address.scheme in ("", "file"):
        return _local(text, address)
    settings = dict(parse_qsl(address.query))
    try:
        filesystem = (_s3 if address.scheme == "s3" else _gs)(settings)
    except (pa.ArrowException, OSError) as e:
        raise UploadError(f"{text!r}: {e}") from e
    return Destination(text, filesystem, address.netloc + address.path.rstrip("/"))


def check_address(text: str) -> SplitResult:
    """Parse an address for :func:`open_destination`, without a client of its store.

    Raises:
        UploadError: as there.
    """
    try:
        address = urlsplit(text)
    except ValueError as e:
        raise UploadError(f"{public_url(text)!r} is not an address; allowed is {_FORMS}") from e
    if address.scheme not in ("", "file", "s3", "gs"):
        raise UploadError(f"{public_url(text)!r} is of an unknown kind; allowed is {_FORMS}")
    if address.scheme and "://" in text:
        # A bucket's name has no colon; a secret after it may contain a slash, and so end the name.
        if "@" in address.netloc or ":" in address.netloc:
            found: str | None = "credentials"
        else:
            found = url_secret(text) or next(
                filter(None, (url_secret(value) for _, value in parse_qsl(address.query))), None
            )
        if found:
            raise UploadError(
                f"an address of {address.scheme}:// with {found} in it: set them in the environment instead"
            )
    if address.scheme == "file" and (address.query or address.fragment):
        raise UploadError(f"{public_url(text)!r}: file:// takes no settings")
    if address.scheme in ("", "file"):
        return address
    if not address.netloc:
        raise UploadError(f"{public_url(text)!r} names no bucket; allowed is {_FORMS}")
    if not _BUCKETS[address.scheme].fullmatch(address.netloc):
        raise UploadError(
            f"{public_url(text)!r} names a bucket that cannot be: its name has 3 characters or more, small "
            f"letters, digits, - and .{' and _' * (address.scheme == 'gs')}, a letter or digit first and last"
        )
    settings = _S3_SETTINGS if address.scheme == "s3" else _GS_SETTINGS
    if unknown := sorted(dict(parse_qsl(address.query, keep_blank_values=True)).keys() - set(settings)):
        raise UploadError(
            f"{unknown[0]!r} is not a setting of {address.scheme}://; allowed is {', '.join(settings)}"
        )
    return address


def _local(text: str, address: SplitResult) -> Destination:
    if address.scheme and address.netloc not in ("", "localhost"):
        raise UploadError(f"{text!r} names another host; write file:///path")
    path = address.path if address.scheme else text
    if not path:
        raise UploadError(f"an empty address; allowed is {_FORMS}")
    return Destination(text, fs.LocalFileSystem(), Path(path).absolute().as_posix())


def _s3(settings: dict[str, str]) -> fs.FileSystem:
    return fs.S3FileSystem(
        **(_endpoint(os.environ) | settings),
        connect_timeout=CONNECT_TIMEOUT_S,
        request_timeout=REQUEST_TIMEOUT_S,
        # Attempts are counted, and paused between, in one place: by the caller.
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),
    )


def _endpoint(environ: Mapping[str, str]) -> dict[str, str]:
    """Endpoint for S3 from the environment, which Arrow itself does not read."""
    url = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    if not url:
        return {}
    scheme, mark, place = url.partition("://")
    return {"scheme": scheme, "endpoint_override": place.rstrip("/")} if mark else {"endpoint_override": url}


def _gs(settings: dict[str, str]) -> fs.FileSystem:
    anonymous = settings.pop("anonymous", "false")
    if anonymous not in ("true", "false"):
        raise UploadError(f"anonymous={anonymous}: write true or false")
    # One attempt of its own is short, as with S3.
    limit = timedelta(seconds=CONNECT_TIMEOUT_S)
    return fs.GcsFileSystem(anonymous=anonymous == "true", **settings, retry_time_limit=limit)


# --------------------
# Content of a run directory at its destination: files, and slices of those that only grow.
#
# During a run its batches are appended to one file, which may have gigabytes, or to segments. They are sent
# in slices of whole frames, ``batches/<place>.frames``, each once: ``llm-locust merge`` reads them like the
# files themselves.
# --------------------


CHUNK_BYTES = 8 * 1024 * 1024


class Stored(msgspec.Struct, frozen=True):
    """A file as sent: its size in bytes, and the SHA-256 of its content in hexadecimal digits."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class UploadPart:
    """A file to be sent, or bytes [``start``, ``stop``) of one.

    Attributes:
        name: at the destination.
        stop: None for the end of the file at the time of reading.
    """

    name: str
    path: Path
    start: int = 0
    stop: int | None = None

    def most_bytes(self) -> int:
        """Its size now, in bytes; 0 if it is gone."""
        if self.stop is not None:
            return self.stop - self.start
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def is_as(self, stored: Stored) -> bool:
        """Whether it has this content. For a slice the size is enough: frames are never changed."""
        if self.stop is not None:
            return self.stop - self.start == stored.size
        try:
            if self.path.stat().st_size != stored.size:
                return False
            digest = hashlib.sha256()
            size = sum(map(len, self.chunks(digest)))
        except FileNotFoundError:
            return False
        return stored == Stored(size, digest.hexdigest())

    def chunks(self, digest: "hashlib._Hash") -> Iterator[bytes]:
        """Its bytes, which also update ``digest`` (raises OSError)."""
        with self.path.open("rb") as file:
            file.seek(self.start)
            left = None if self.stop is None else self.stop - self.start
            while chunk := file.read(CHUNK_BYTES if left is None else min(CHUNK_BYTES, left)):
                left = None if left is None else left - len(chunk)
                digest.update(chunk)
                yield chunk


def parts_of(run: Path, sent: Mapping[str, Stored]) -> Iterator[UploadPart]:
    """Current content of a run directory, without links, hidden files and unfinished ones.

    Args:
        sent: files sent by an earlier upload: slices continue after its last one.

    Raises:
        OSError: the file of batches cannot be read.
    """
    for folder, folders, files in os.walk(run):
        folders.sort()
        for file in sorted(files):
            path = Path(folder, file)
            name = path.relative_to(run).as_posix()
            if not path.is_file() or path.is_symlink() or path.suffix == ".part" or file[0] == ".":
                continue
            base = 0 if name == FRAMES_FILE else base_of(path)
            if base is not None and path.suffix == FRAMES_SUFFIX:
                yield from _slices(path, base, sent)
            else:
                yield UploadPart(name, path)


def _slices(path: Path, base: int, sent: Mapping[str, Stored]) -> Iterator[UploadPart]:
    """Slices that were sent, then all later ones up to the end of the last complete frame."""
    try:
        size = path.stat().st_size
        slices = list(slices_of(base, size, sent))
        for name, start, stop in slices:
            yield UploadPart(name, path, start, stop)
        start = slices[-1][-1] if slices else 0
        frames = index_frames(path, start).frames
    except FileNotFoundError:  # the run has ended: its batches are in another file now
        return
    if frames:
        yield UploadPart(segment_name(base + start), path, start, frames[-1].offset + frames[-1].length)


def slices_of(base: int, size: int, sent: Mapping[str, Stored]) -> Iterator[tuple[str, int, int]]:
    """Name, start and end of each slice of a file of frames that was sent, from its start up to a hole."""
    start = 0
    while (stored := sent.get(segment_name(base + start))) and 0 < stored.size <= size - start:
        yield segment_name(base + start), start, start + stored.size
        start += stored.size


def dropped_slices(run: Path, sent: Iterable[str]) -> set[str]:
    """Names of the slices that were sent of what the run has dropped (raises StoreError or OSError)."""
    gone = [range(each.base, each.end) for each in read_expired(run)]
    return {
        name
        for name in sent
        if (base := base_of(Path(name))) is not None and any(base in each for each in gone)
    }


# --- Whether an upload may take the place of what is at its destination: only if the directory has all of its
# batches. An older copy of a run directory has not, nor one without what ``--keep`` left of dropped
# segments


Batches = Mapping[str, Sequence[range]]


@dataclass(frozen=True, slots=True)
class Change:
    """What an upload is about to do.

    Attributes:
        index: files that an earlier upload sent.
        removed: those of them that are no longer in the run directory.
    """

    run: Path
    to: Destination
    index: Mapping[str, Stored]
    removed: Iterable[str]

    def check(self) -> None:
        """Check that no batch is lost by it.

        Raises:
            UploadError: one would be; the text says what to do.
            OSError: the destination, or the run directory, cannot be read.
        """
        here = _received(read_manifest(self.run))
        there = [found for found in (_manifest_at(self.to), *self._expired_there()) if found]
        for batches in there:
            if any(not covers(here.get(worker, []), seqs) for worker, seqs in batches.items()):
                raise self._refusal("batches of this run that are not in")
        if not self._is_whole() or any(not self._covers(name) for name in self.removed):
            raise self._refusal("records that are no longer, or not yet, in")

    def _refusal(self, what: str) -> UploadError:
        run, to = quote(str(self.run)), quote(self.to.text)
        return UploadError(
            f"{self.to.text!r} has {what} {str(self.run)!r}, which may be an older or an incomplete copy: "
            "nothing was sent or removed. Upload the run's own directory; where that is gone, "
            f"copy {to} back, `llm-locust merge {run} COPY --out NEW`, and upload NEW"
        )

    def _expired_there(self) -> Iterable[Batches]:
        """Batches of dropped segments by the files that only the destination has."""
        names = (name for name in self.removed if name.endswith(EXPIRED_SUFFIX))
        for name in names:
            try:
                found = EXPIRED_DECODER.decode(self.to.read(name) or b"")
                yield {worker: held.seqs for worker, held in found.holdings().items()}
            except (*DECODE_ERRORS, ValueError):
                continue

    def _is_whole(self) -> bool:
        """Whether what the run directory has dropped is all that its manifest says of it."""
        dropped = read_manifest(self.run).dropped
        expired = sum(each.rows for each in read_expired(self.run))
        return dropped is None or expired >= dropped.records

    def _covers(self, name: str) -> bool:
        """Whether the content of a slice, or of the file of requests, is in the run directory elsewhere."""
        has_ended = (self.run / REQUESTS_FILE).exists()
        if name == REQUESTS_FILE:
            return has_ended
        base = base_of(Path(name))
        if has_ended or base is None or not name.endswith(FRAMES_SUFFIX):
            return True
        end = base + self.index[name].size
        return any(s.base <= base and end <= s.base + s.size for s in segments_of(self.run))


def _manifest_at(to: Destination) -> Batches:
    """Batches by the manifest there; none if it has none that can be read."""
    try:
        return _received(MANIFEST_DECODER.decode(to.read(MANIFEST_FILE) or b""))
    except DECODE_ERRORS:
        return {}


def _received(manifest: Manifest) -> Batches:
    """Batches by worker; of a manifest that names none, and of numbers that are not such, none."""
    found: dict[str, list[range]] = {}
    for worker in manifest.workers:
        try:
            found[worker.id] = joined([*found.get(worker.id, []), *parse_ranges(worker.received_seqs)])
        except ValueError:
            continue
    return found


#: At the destination: name -> size and SHA-256 of each file that is there.
INDEX_FILE = "uploaded.json"

#: Names that are read of it; each is asked for.
_MOST_LISTED = 100_000

LONGEST_PAUSE_S = 30.0

#: Time that an attempt of a step may take at a store: a constant, and the pace of its bytes. A store's client
#: has a limit on silence only, and a byte a second is none.
STEP_WITHIN_S, SLOWEST_BYTES_PER_S = 120.0, 64 << 10

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


class SlowStoreError(UploadError):
    """A store that took too long. A thread still waits for it, and would hold the process at its end."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Number of attempts of a step, and the pause between them, which doubles each time up to 30 s.

    Attributes:
        within_s: time that an attempt may take, beside that for its bytes; None is unlimited.
    """

    attempts: int = 5
    pause_s: float = 1.0
    wait: Callable[[float], None] = time.sleep
    within_s: float | None = STEP_WITHIN_S

    def try_again(self, step: Callable[[], T], size: int = 0) -> T:
        """Do the step; raise its last error after ``attempts`` failures, or if it is final.

        Args:
            size: bytes that it may send.

        Raises:
            SlowStoreError: it has not ended in time; there is no further attempt.
        """
        pause_s = self.pause_s
        for left in range(self.attempts - 1, -1, -1):
            try:
                return self._in_time(step, size)
            except OSError as e:
                if not left or isinstance(e, PermissionError) or _FINAL.search(str(e)):
                    raise
            self.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        raise ValueError(f"{self.attempts} attempts: at least one is needed")

    def _in_time(self, step: Callable[[], T], size: int) -> T:
        if self.within_s is None:
            return step()
        done: Future[T] = Future()

        def work() -> None:
            try:
                done.set_result(step())
            except BaseException as e:
                done.set_exception(e)

        threading.Thread(target=work, daemon=True).start()
        within_s = self.within_s + size / SLOWEST_BYTES_PER_S
        try:
            return done.result(within_s)
        except TimeoutError:
            if done.done():  # it is the step's own
                raise
        raise SlowStoreError(f"it answered so slowly that a step was not done in {within_s:.0f} s")


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
    patience = patience or RetryPolicy()
    if isinstance(destination.filesystem, fs.LocalFileSystem):
        patience = replace(patience, within_s=None)
    try:
        with alone(run):
            while True:
                with suppress(_EndedError):
                    return _Upload(run, destination.folder(run_id), patience).everything()
    except (OSError, pa.ArrowException, SlowStoreError) as e:
        raise (SlowStoreError if isinstance(e, SlowStoreError) else UploadError)(
            f"{str(run)!r} could not be uploaded to {destination.text!r}: {destination.reason(e)}; "
            f"the files are kept, `llm-locust upload {quote(str(run))} {quote(destination.text)}` goes on"
        ) from e


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
        sizes = self._patience.try_again(lambda: self._to.sizes(names), len(names) * SLOWEST_BYTES_PER_S)
        there = {name for name, part in parts.items() if _is_there(part, index, sizes)}
        stored = _stored(manifest)
        up_to_date = index.get(MANIFEST_FILE) == stored and sizes.get(MANIFEST_FILE) == stored.size
        only_there = dropped_slices(self._run, index)
        removed = tuple(sorted((index.keys() - parts.keys() - only_there - {MANIFEST_FILE}) & sizes.keys()))
        if up_to_date and len(there) == len(parts) and not removed:
            return Uploaded(self._to.text, (), tuple(sorted({*there, MANIFEST_FILE})), (), 0)
        self._patience.try_again(Change(self._run, self._to, index, removed).check)
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
                copied = self._patience.try_again(partial(self._copy, part), part.most_bytes())
                index[part.name] = self._sent[part.name] = copied
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
    """What an earlier upload left at a destination; empty if it left no list that can be read.

    Whoever can write there can write the list: names that lead out of the folder are left out of it.
    """
    content = to.read(INDEX_FILE)
    try:
        files = {} if content is None else msgspec.json.decode(content, type=dict[str, Any])["files"]
        found = msgspec.convert(files, dict[str, Stored])
    except (*DECODE_ERRORS, KeyError):
        return {}
    return {name: stored for name, stored in islice(found.items(), _MOST_LISTED) if is_inside(name)}


def _stored(content: bytes) -> Stored:
    return Stored(len(content), hashlib.sha256(content).hexdigest())


def _is_there(part: UploadPart, index: Mapping[str, Stored], sizes: Mapping[str, int]) -> bool:
    stored = index.get(part.name)
    return stored is not None and sizes.get(part.name) == stored.size and part.is_as(stored)


# --- Whether a destination has the bytes that were sent to it: read back, and compared by their SHA-256


def has_segment(run: Path, segment: Segment, to: Destination) -> Stored | None:
    """Size and SHA-256 of a segment that the destination has too, byte by byte; None if it has not.

    Each slice of it there must be of whole frames, because `llm-locust merge` reads one slice at a time. A
    write that failed, and was uploaded before it was overwritten, leaves others. What the destination has
    instead is taken off its list, so that the next upload sends the segment again, in one slice.

    Args:
        to: folder of the run.

    Raises:
        OSError: something cannot be read or written, at the destination or here.
    """
    digest = hashlib.sha256()
    size = sum(map(len, UploadPart("", segment.path).chunks(digest)))
    here = Stored(size, digest.hexdigest())
    with alone(run):
        index = read_index(to)
        slices = list(slices_of(segment.base, size, index))
        ends = {frame.offset + frame.length for frame in index_frames(segment.path).frames}
        names = [name for name, *_ in slices]
        is_whole = all(stop in ends for *_, stop in slices)
        if is_whole and _content(to, names) == here:
            return here
        if names:  # without its first slice the others are no longer of it: the next upload removes them
            write_index(to, {name: stored for name, stored in index.items() if name != names[0]})
    return None


def _content(to: Destination, names: Iterable[str]) -> Stored | None:
    """Files one after the other; None if one does not exist."""
    digest, size = hashlib.sha256(), 0
    try:
        for name in names:
            to.sync(name)
            for chunk in to.chunks(name, CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
    except FileNotFoundError:
        return None
    return Stored(size, digest.hexdigest())


# --- ``python -m llm_locust.store.upload DESTINATION``: whether a destination answers; nothing is sent


#: The name of a file that is not there, whose size is asked for: a bucket that is there says so.
_NO_FILE = ".llm-locust"


def main(argv: Sequence[str] | None = None) -> int:
    """Ask once, and write nothing there; gives 0 where it answers, else 1 and one line that says why not."""
    parser = argparse.ArgumentParser(
        prog="python -m llm_locust.store.upload", description="Ask whether a destination answers."
    )
    parser.add_argument("to", metavar="DESTINATION", help="as of --upload")
    args = parser.parse_args(argv)
    try:
        destination = open_destination(args.to)
    except UploadError as e:
        print(e)
        return 1
    try:
        destination.sizes([_NO_FILE])
    except (pa.ArrowException, OSError) as e:
        print(destination.reason(e))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
