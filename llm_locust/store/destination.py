"""Destination folder for files: in an object store, or in a file system."""

import argparse
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, urlsplit

import pyarrow as pa
from pyarrow import fs

from llm_locust.core.files import replacing
from llm_locust.store.files import sync
from llm_locust.wire.foreign_text import blanked, public_url, url_secret

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
    known = _S3_SETTINGS if address.scheme == "s3" else _GS_SETTINGS
    if unknown := sorted(dict(parse_qsl(address.query, keep_blank_values=True)).keys() - set(known)):
        raise UploadError(
            f"{unknown[0]!r} is not a setting of {address.scheme}://; allowed is {', '.join(known)}"
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


# --- ``python -m llm_locust.store.destination DESTINATION``: whether a destination of uploads answers.


#: The name of a file that is not there, whose size is asked for: a bucket that is there says so.
_NO_FILE = ".llm-locust"


def main(argv: Sequence[str] | None = None) -> int:
    """Ask once, and write nothing there; gives 0 where it answers, else 1 and one line that says why not."""
    parser = argparse.ArgumentParser(
        prog="python -m llm_locust.store.destination", description="Ask whether a destination answers."
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
