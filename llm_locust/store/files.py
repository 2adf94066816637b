"""Files of the run directory: their names, and atomic writing of JSON and text."""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

import msgspec

from llm_locust.core.files import OwnFileError, own_file as regular_file, replacing
from llm_locust.core.manifest import MANIFEST_DECODER, MANIFEST_SCHEMA, Manifest
from llm_locust.wire.payload import DECODE_ERRORS

MANIFEST_FILE = "manifest.json"
REQUESTS_FILE = "requests.parquet"
SUMMARY_FILE = "summary.json"
REPORT_MD_FILE = "report.md"
REPORT_HTML_FILE = "report.html"
TIMESERIES_FILE = "timeseries.csv"
STAGES_FILE = "stages.csv"
REPEATS_FILE = "repeats.csv"
CURVE_FILE = "curve.csv"
ARMS_FILE = "arms.csv"
FRAMES_FILE = "batches.frames"

#: Of a JSON file of a run directory, which takes up to 28 times as much memory. The manifest of 1,000 workers
#: has some 8 MB.
MOST_JSON_BYTES = 16 << 20

#: Longer JSON is written without spaces.
_MOST_INDENTED_BYTES = 1 << 20

#: Of a value of the manifest that has no type.
_MOST_UNTYPED_BYTES = 2 << 20

_FOLDER_NAME = re.compile(r"\w[\w.@+:-]{0,199}", re.ASCII)


class StoreError(ValueError):
    """A run directory or file that cannot be used; the text names it and says what to do."""


class _Outline(msgspec.Struct):
    """The version of a manifest, and as they are the values without a type, which memory could not hold."""

    schema: int | None = None
    options: msgspec.Raw = msgspec.Raw()
    scenario_document: msgspec.Raw = msgspec.Raw()
    live_check: msgspec.Raw = msgspec.Raw()


_OUTLINE = msgspec.json.Decoder(_Outline)
_UNTYPED = ("options", "scenario_document", "live_check")


def create_run_dir(path: Path) -> Path:
    """Create the run directory and check that it can be written.

    Raises:
        StoreError: it exists and holds another run, or it cannot be created or written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path):
            pass
    except OSError as e:
        raise StoreError(f"the run directory {str(path)!r} cannot be written: {e.strerror or e}") from e
    return path


def holds_a_run(path: Path) -> bool:
    return any((path / name).exists() for name in (MANIFEST_FILE, REQUESTS_FILE, FRAMES_FILE))


def read_manifest(run: Path) -> Manifest:
    """Read the manifest of a run directory.

    Raises:
        StoreError: it is missing, is not JSON of a manifest, or comes from a later version.
    """
    path = existing_file(run, MANIFEST_FILE)
    try:
        data = read_own_file(path)
        outline = _OUTLINE.decode(data)
        if outline.schema is not None and outline.schema > MANIFEST_SCHEMA:
            raise StoreError(
                f"{str(path)!r} has schema {outline.schema}, this version reads up to {MANIFEST_SCHEMA}: "
                "use the llm-locust that wrote it, or a later one"
            )
        for name in _UNTYPED:
            if len(getattr(outline, name)) > _MOST_UNTYPED_BYTES:
                raise StoreError(f"{str(path)!r} is not a manifest: its {name} are larger than 2 MiB")
        return MANIFEST_DECODER.decode(data)
    except StoreError:
        raise
    except (*DECODE_ERRORS, OSError) as e:
        raise StoreError(f"{str(path)!r} is not a manifest: {e}") from e


def write_manifest(run: Path, manifest: Manifest) -> None:
    write_json(run / MANIFEST_FILE, manifest)


def write_json(path: Path, value: object) -> None:
    """Write JSON atomically, indented if it is short: a reader sees the old file or the new one."""
    content = msgspec.json.encode(value)
    is_short = len(content) <= _MOST_INDENTED_BYTES
    write_text(path, (msgspec.json.format(content, indent=2) if is_short else content) + b"\n")


def write_text(path: Path, text: str | bytes) -> None:
    """Write a text, or its UTF-8, atomically."""
    with replacing(path) as file:
        file.write(text.encode() if isinstance(text, str) else text)


def sync(path: Path) -> None:
    """Make a file, or the names in a directory, outlive a loss of power (raises OSError)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_folder_name(text: str, what: str) -> str:
    """Check an id that is used as the name of a folder, and return it.

    Raises:
        StoreError: it could name another place, such as ``../x``; ``what`` describes the id.
    """
    if not _FOLDER_NAME.fullmatch(text):
        raise StoreError(
            f"{what} {text[:200]!r} is not a valid folder name: it may have 200 letters, digits and any of "
            "._@+:- and must start with a letter, a digit or _"
        )
    return text


def existing_file(run: Path, name: str) -> Path:
    if not run.is_dir():
        raise StoreError(f"{str(run)!r} is not a directory: name a run directory, such as runs/demo")
    path = run / name
    if not os.path.lexists(path):
        is_of_parts = any(run.glob(f"part-*/{name}"))
        hint = "name its parts, as part-1" if is_of_parts else "is it a run directory whose run has ended?"
        raise StoreError(f"{str(run)!r} holds no {name}: {hint}")
    return own_file(path)


def own_file(path: Path) -> Path:
    """As :func:`llm_locust.core.files.own_file` (raises StoreError or OSError)."""
    try:
        return regular_file(path)
    except OwnFileError as e:
        raise StoreError(str(e)) from None


def read_own_file(path: Path) -> bytes:
    """Content of a JSON file of a run directory.

    Raises:
        StoreError: as :func:`own_file`; or it is larger than :data:`MOST_JSON_BYTES`.
        OSError: there is none, or it cannot be read.
    """
    # Not waiting: between the two calls another one may have put a pipe there.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(own_file(path), flags), "rb") as file:
        content = file.read(min(os.fstat(file.fileno()).st_size, MOST_JSON_BYTES) + 1)
    if len(content) > MOST_JSON_BYTES:
        raise StoreError(f"{str(path)!r} is larger than {MOST_JSON_BYTES >> 20} MiB: it is no file of a run")
    return content


# --- Disk that the records of a load take: in frames while it goes on, in the Parquet file at its end


#: Bytes of a frame beside its rows: Arrow's schema and its dictionaries.
_FRAME_BYTES = 12_400

#: Bytes of a row and of each of its token arrivals, compressed with its batch, as it is in memory, and in the
#: Parquet file. Arrivals compress the worse the more irregular they are, and have a second time each where
#: one read brought several of them: these are between the two.
_PACKED_ROW, _PACKED_ARRIVAL = 130, 9.0
_PLAIN_ROW, _PLAIN_ARRIVAL = 310, 16.0
_KEPT_ROW, _KEPT_ARRIVAL = 120, 5.5

#: Size in memory above which a batch is not compressed, as in core/batch.py.
_PACKED_UP_TO = 1 << 20


@dataclass(frozen=True, slots=True)
class Growth:
    """Bytes of the frames of a load, and of the Parquet file that is made of them before they are removed."""

    frames: float
    kept: float

    @property
    def peak(self) -> float:
        return self.frames + self.kept


def growth_of(requests: float, tokens: float, batches: float) -> Growth:
    """Growth by that many requests with that many token arrivals each, in that many batches."""
    if requests <= 0:
        return Growth(0.0, 0.0)
    batches = min(requests, max(1.0, batches))
    plain = _PLAIN_ROW + _PLAIN_ARRIVAL * tokens
    is_packed = plain * requests / batches <= _PACKED_UP_TO
    row = _PACKED_ROW + _PACKED_ARRIVAL * tokens if is_packed else plain
    kept = requests * (_KEPT_ROW + _KEPT_ARRIVAL * tokens)
    return Growth(batches * _FRAME_BYTES + requests * row, kept)


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder and below; those that go meanwhile have none."""
    size = 0
    for file in folder.rglob("*"):
        with suppress(OSError):
            size += file.stat().st_size if file.is_file() else 0
    return size


def size_text(size_bytes: float) -> str:
    """A size for a person: ``1.3 GiB``."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f} {name}"
    return f"{size_bytes / 1024:.0f} KiB"
