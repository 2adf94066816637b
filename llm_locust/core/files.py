"""Files that a person gives or that a run directory has, read within bounds; files replaced as a whole."""

import fcntl
import gzip
import logging
import os
import re
import resource
import secrets
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, cast

import yaml

# --------------------
# Files that a person gives, read within bounds: every reader of such a file opens it here.
#
# A bound is on what a file expands to, not on its size: a gzip file of 1 MB can hold 1 GiB. A file that is
# larger is refused in one line, before it is in memory. What is no regular file (a pipe, a device, a
# socket) is refused without being opened, because it may have no end, or never begin. A reading of more
# than two seconds says how far it is.
# --------------------


logger = logging.getLogger(__name__)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class FileBounds:
    """FileBounds of one kind of file.

    Attributes:
        name: what errors call such a file.
        expanded_bytes: of the file, or of all files of a folder, decompressed.
        line_bytes: of a line, or of an item of a JSON list.
        lines: lines that are not blank; items of a JSON list; rows of a table; files of a folder.
        items: values in a line, counted by the commas and opening brackets in it, also those in texts.
        seconds: from the first byte to the last.
        held_bytes: growth of the process's memory meanwhile.
    """

    name: str
    expanded_bytes: int
    line_bytes: int = MIB
    lines: int = 10_000_000
    items: int = 1 << 20
    seconds: float = 600.0
    held_bytes: int = 8 * GIB


#: A scenario; a simulator's profile and its faults; a model's shape; a fault plan.
SETTINGS = FileBounds("file", 64 * KIB)

#: Read as the load needs it, and never held. A line holds 131,072 hash ids at most: 2 million tokens in
#: blocks of 16.
TRACE = FileBounds("trace", 64 * GIB, line_bytes=MIB, lines=200_000_000, items=1 << 17)

#: Held in memory, as are their histories.
TRAJECTORIES = FileBounds("trajectories", 4 * GIB, line_bytes=64 * MIB, items=1 << 22)

#: Held in memory; prompts, and the answers that are expected of them. A line may have images in it.
DATASET = FileBounds("dataset", 4 * GIB, line_bytes=64 * MIB, lines=5_000_000)

#: Held in memory as numbers.
LENGTHS = FileBounds("file", GIB, line_bytes=64 * KIB)

#: The largest ones that are published have 40 MB.
TOKENIZER = FileBounds("tokenizer file", 256 * MIB)

#: Compressed files may expand to this size, and beyond it to so many times their own size: JSON lines do to 5
#: to 40 times, a file that is made to fill a memory to 1,000 times.
FREELY_EXPANDED, MOST_EXPANSION = 64 * MIB, 200

#: Blank lines are ignored, and read: so many, and beyond them as many as there are other lines.
FREE_BLANK_LINES = 10_000

#: Files and folders that are looked at in a folder.
MOST_FILES = 200_000

#: A reading says how far it is after the first time, and then after each further one.
QUIET_S, INTERVAL_S = 2.0, 5.0

#: Bytes, and lines, between two looks at the clock and at the memory.
_LOOK_BYTES, _LOOK_LINES = 4 * MIB, 10_000

#: Pieces in which a whole file is read.
_PIECE = MIB

#: What is unpacked at once. The standard library's 8 KiB take twice the time.
_UNPACKED_AT_ONCE = 128 * KIB

_STATM = Path("/proc/self/statm")

_BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"

_MOST_MAGIC = 48

#: What Git has in place of a large file that was not fetched.
_LFS = b"version https://git-lfs.github.com/spec/"

#: First bytes of what is compressed in a way that is not read.
_COMPRESSED = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh91AY&SY": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x04\x22\x4d\x18": "lz4",
    b"PK\x03\x04": "zip",
}

_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "Is a directory"),
    (stat.S_ISFIFO, "it is a pipe, not a file: write what comes out of it to a file first"),
    (stat.S_ISCHR, "it is a device, not a file"),
    (stat.S_ISBLK, "it is a device, not a file"),
    (stat.S_ISSOCK, "it is a socket, not a file"),
)


class InputError(ValueError):
    """A file that cannot be read within its bounds; one line. ``why`` is the text without the place."""

    def __init__(self, text: str, why: str = "") -> None:
        super().__init__(text)
        self.why = why or text

    @classmethod
    def of(cls, name: str, path: "str | os.PathLike[str]", line: int, why: str) -> "InputError":
        """Of a file, or of a line if ``line`` is not 0; a library's words may hold any characters."""
        why = "".join(c if c.isprintable() else "?" for c in why)
        return cls(f"{os.fspath(path)}:{line}: {why}" if line else f"{name} {os.fspath(path)!r}: {why}", why)


def skipped_text(lines: int, first: str) -> str:
    """How many lines could not be read, and why the first of them could not."""
    return f"{lines:,} {'line' if lines == 1 else 'lines'} skipped, the first: {first}"


class FileReading:
    """What is read of one file, or of the files of a folder, against its bounds.

    Args:
        path: of the file or the folder, for texts.
        most_skipped: how many lines that cannot be read are skipped.
        is_timed: whether the bounds on time and memory hold. They do not for a trace that is read as the load
            needs it: most of its time is the load's.
    """

    def __init__(
        self,
        bounds: FileBounds,
        path: "str | os.PathLike[str]",
        *,
        most_skipped: int = 0,
        is_timed: bool = True,
    ) -> None:
        self.bounds = bounds
        self.bytes = self.lines = self.blank = self.skipped = 0
        self.first_skipped = ""
        self._most_skipped = most_skipped
        self._path = path
        self._is_timed = is_timed
        self._looked = 0
        self._began = self._said = time.monotonic()
        self._held = _resident() if is_timed else 0

    def error(self, why: str, line: int = 0) -> InputError:
        return InputError.of(self.bounds.name, self._path, line, why)

    def skip(self, error: ValueError) -> None:
        """Skip a line that cannot be read, and count it; raise ``error`` if there are too many."""
        if self.skipped >= self._most_skipped:
            if not self._most_skipped:
                raise error
            raise type(error)(f"{error}; {self.skipped:,} lines before it were skipped, and no more may be")
        self.skipped += 1
        self.first_skipped = self.first_skipped or str(error)

    def add(self, size: int, line: int = 0) -> None:
        """Count ``size`` bytes.

        Raises:
            InputError: they are too many, or the time or the memory is used up.
        """
        self.bytes += size
        if self.bytes > self.bounds.expanded_bytes:
            raise self.error(
                f"longer than {_size(self.bounds.expanded_bytes)}, the limit of such a file", line
            )
        if self.bytes - self._looked >= _LOOK_BYTES and self._is_timed:
            self._looked = self.bytes
            self._look()

    def add_line(self, raw: bytes, number: int) -> None:
        """Count a line, or an item of a list, and check it (raises InputError, as :meth:`add`)."""
        bounds = self.bounds
        if len(raw) > bounds.line_bytes:
            raise self.error(f"longer than {_size(bounds.line_bytes)}, the limit of a line", number)
        if len(raw) < 2 or raw.isspace():
            self.blank += 1
            if self.blank > FREE_BLANK_LINES + self.lines:
                raise self.error(f"{self.blank:,} blank lines beside {self.lines:,} others", number)
        else:
            self.lines += 1
            if self.lines > bounds.lines or self.lines % _LOOK_LINES == 0:
                self._check_lines(number)
            # An upper bound of the values in a line of JSON or CSV.
            if len(raw) > bounds.items and sum(map(raw.count, (b",", b"[", b"{"))) > bounds.items:
                raise self.error(
                    f"more than {bounds.items:,} values in one line, the limit of such a file", number
                )
        self.add(len(raw), number)

    def add_row(self, number: int) -> None:
        """Count a line that is not blank (raises InputError)."""
        self.lines += 1
        self._check_lines(number)

    def _check_lines(self, number: int) -> None:
        if self.lines > self.bounds.lines:
            raise self.error(f"more than {self.bounds.lines:,} lines, the limit of such a file", number)
        if self.lines % _LOOK_LINES == 0 and self._is_timed:
            self._look()

    def _look(self) -> None:
        now, bounds = time.monotonic(), self.bounds
        if now - self._began > bounds.seconds:
            raise self.error(f"not read within {bounds.seconds:g} s: {self}")
        if _resident() - self._held > bounds.held_bytes:
            raise self.error(f"it takes more than {_size(bounds.held_bytes)} of memory: {self}")
        if now - self._began >= QUIET_S and (self._said == self._began or now - self._said >= INTERVAL_S):
            self._said = now
            logger.info("reading %s %r: %s", bounds.name, os.fspath(self._path), str(self))

    def __str__(self) -> str:
        return f"{_size(self.bytes)}, {self.lines:,} lines in {time.monotonic() - self._began:.0f} s so far"


def folder_files(folder: Path, name: str, *, below: bool = False) -> list[Path]:
    """The files in a folder, by name, without hidden ones; with ``below`` also those of its subfolders.

    Raises:
        InputError: the folder cannot be read, or has more than :data:`MOST_FILES`.
    """
    found: list[Path] = []
    seen = 0
    try:
        for at, folders, files in os.walk(folder, onerror=_raise):
            folders[:] = sorted(each for each in folders if below and not each.startswith("."))
            seen += len(folders) + len(files)
            if seen > MOST_FILES:
                raise InputError.of(name, folder, 0, f"more than {MOST_FILES:,} files and folders")
            found += (Path(at, file) for file in files if not file.startswith("."))
    except OSError as e:
        raise InputError.of(name, folder, 0, _unreadable(e)) from e
    return sorted(path for path in found if path.is_file())


def _raise(error: OSError) -> None:
    raise error


def open_input(path: "str | os.PathLike[str]", name: str = "file") -> BinaryIO:
    """Open a regular file, decompressed if it is a gzip file.

    Raises:
        InputError: it cannot be opened, or is no regular file.
    """
    file = open_plain(path, name)
    try:
        begin = file.read(_MOST_MAGIC)
        if begin.startswith(_LFS):
            raise OSError("it is a pointer of Git LFS and not the file itself; fetch it with git lfs pull")
        for magic, name_of in _COMPRESSED.items():
            if begin.startswith(magic):
                raise OSError(f"it is compressed by {name_of}; unpack it first, or compress it by gzip")
        file.seek(0)
        if begin.startswith(_GZIP):
            return BufferedReader(cast(RawIOBase, _Unpacked(file)), _UNPACKED_AT_ONCE)
        return file
    except OSError as e:
        file.close()
        raise InputError.of(name, path, 0, _unreadable(e)) from e


def open_plain(path: "str | os.PathLike[str]", name: str = "file") -> BufferedReader:
    """As :func:`open_input`, with its bytes as they are."""
    try:
        _check_kind(name, path, os.stat(path).st_mode)
        # Not waiting: between the two calls another one may have put a pipe there.
        file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115
    except InputError:
        raise
    except (OSError, ValueError) as e:  # ValueError: a path with a null byte
        raise InputError.of(name, path, 0, _unreadable(e)) from e
    try:
        _check_kind(name, path, os.fstat(file.fileno()).st_mode)
    except InputError:
        file.close()
        raise
    return file


def input_lines(path: Path, reading: FileReading) -> Iterator[bytes]:
    """Lines of a file, decompressed, with their ends and including blank ones; the first one without its BOM.

    Raises:
        InputError: with the line's number: it cannot be read, or is out of the bounds.
    """
    number = 0
    try:
        with open_input(path, reading.bounds.name) as file:
            while raw := file.readline(reading.bounds.line_bytes + 1):
                number += 1
                if number == 1:
                    raw = raw.removeprefix(_BOM)
                reading.add_line(raw, number)
                yield raw
    except (OSError, EOFError, zlib.error) as e:
        raise InputError.of(reading.bounds.name, path, number + 1, _unreadable(e)) from e


def text_lines(path: Path, reading: FileReading) -> Iterator[str]:
    """As :func:`input_lines`, decoded; a lone carriage return ends a line too, as in tables.

    Raises:
        InputError: also for a line that is not UTF-8, if it may not be skipped.
    """
    for number, raw in enumerate(input_lines(path, reading), 1):
        for part in raw.splitlines(keepends=True) if b"\r" in raw else (raw,):
            try:
                yield part.decode()
            except UnicodeDecodeError as e:
                reading.skip(reading.error(f"not UTF-8, byte {e.start + 1} is 0x{part[e.start]:02x}", number))
                yield "\n"  # for the numbers of the lines after it


def plain_name(path: Path) -> Path:
    """The path without the suffix of a compressed file."""
    return path.with_suffix("") if path.suffix.lower() == ".gz" else path


def read_input(path: Path, bounds: FileBounds, reading: FileReading | None = None) -> bytes:
    """Content of a file, decompressed, without its BOM.

    Raises:
        InputError: it cannot be read, or is out of the bounds.
    """
    reading = reading or FileReading(bounds, path)
    pieces = []
    try:
        with open_input(path, bounds.name) as file:
            if os.fstat(file.fileno()).st_size > bounds.expanded_bytes:
                reading.add(bounds.expanded_bytes + 1)
            while piece := file.read(min(_PIECE, bounds.expanded_bytes + 1)):
                reading.add(len(piece))
                pieces.append(piece)
    except (OSError, EOFError, zlib.error) as e:
        raise InputError.of(bounds.name, path, 0, _unreadable(e)) from e
    return b"".join(pieces).removeprefix(_BOM)


def first_bytes(path: Path, name: str, size: int = 4096) -> bytes:
    """The first bytes of a file, decompressed, without its BOM (raises InputError)."""
    try:
        with open_input(path, name) as file:
            return file.read(size).removeprefix(_BOM)
    except (OSError, EOFError, zlib.error) as e:
        raise InputError.of(name, path, 0, _unreadable(e)) from e


class _Unpacked(gzip.GzipFile):
    """A gzip file that is refused when it expands to too many times its size."""

    def __init__(self, file: BinaryIO) -> None:
        self._packed = file
        size = os.fstat(file.fileno()).st_size
        self._most = max(FREELY_EXPANDED, MOST_EXPANSION * size)
        super().__init__(fileobj=file, mode="rb")

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        if self.tell() > self._most:
            raise OSError(
                f"it expands to more than {_size(self._most)}, {MOST_EXPANSION} times its size; unpack it "
                "first, if that is what it should be"
            )
        return data

    def close(self) -> None:
        super().close()
        self._packed.close()


def _check_kind(name: str, path: "str | os.PathLike[str]", mode: int) -> None:
    if not stat.S_ISREG(mode):
        what = next((text for is_kind, text in _KINDS if is_kind(mode)), "it is not a file")
        raise InputError.of(name, path, 0, f"cannot be read: {what}")


def _unreadable(error: Exception) -> str:
    return f"cannot be read: {getattr(error, 'strerror', None) or error}"


def _resident() -> int:
    """Bytes of the process's memory that are in use; 0 where that is not known."""
    try:
        return int(_STATM.read_bytes().split()[1]) * resource.getpagesize()
    except OSError:  # macOS
        return 0


def _size(size: float) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:g} bytes"


# --------------------
# Files of a run directory, which is hostile.
#
# A link in it could lead to any file of this machine; a pipe or a device may never begin, or have no end.
# --------------------


class OwnFileError(ValueError):
    """What is no file of its own; the text names it and says what to do."""


def own_file(path: Path) -> Path:
    """The path of a regular file that is no link.

    Raises:
        OwnFileError: it is a link, or no regular file.
        OSError: there is none.
    """
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        raise OwnFileError(f"{str(path)!r} is a link, which is not followed: put a copy of the file there")
    if not stat.S_ISREG(mode):
        raise OwnFileError(f"{str(path)!r} is not a regular file: put a copy of the file there")
    return path


# --- Files that are written next to their destination and moved there when complete


#: Suffix of a file that is not complete yet.
PART_SUFFIX = ".part"

_STARTED_S = time.time()


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that replaces ``path`` when the block ends without an error.

    A reader sees either the old file or the new one. Until then the file has an unpredictable name next to
    ``path`` and is created exclusively, so that a link planted in the directory is not followed. Leftovers of
    the same file from killed writers are removed first.

    Raises:
        OSError: it cannot be created, or cannot replace the old one.
    """
    _remove_leftovers(path)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}{PART_SUFFIX}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666)
    try:
        with open(descriptor, "wb") as file:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield file
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _remove_leftovers(path: Path) -> None:
    """Remove unfinished files of ``path`` that are older than this process and that no writer has locked."""
    name = re.compile(re.escape(path.name) + r"\.[0-9a-f]{16}" + re.escape(PART_SUFFIX))
    with suppress(OSError), os.scandir(path.parent) as entries:
        found = [Path(entry.path) for entry in entries if name.fullmatch(entry.name)]
        for part in found:
            _remove_dead(part)


def _remove_dead(part: Path) -> None:
    with suppress(OSError):  # locked, gone, a link, or another user's: it stays
        if part.lstat().st_mtime >= _STARTED_S:
            return
        descriptor = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()
        finally:
            os.close(descriptor)


# --- Short YAML files written by people, read safely


#: Most values and keys, with aliases replaced by their content.
MAX_VALUES = 10_000

_MOST_CHARS = 500


class SmallYamlError(ValueError):
    """A file that cannot be read; one line that says why, without its path."""

    def __init__(self, why: str) -> None:
        super().__init__("".join(c if c.isprintable() else "?" for c in " ".join(why.split())[:_MOST_CHARS]))


def read_small_yaml(path: Path) -> Any:
    """Read a YAML or JSON file as plain values.

    Raises:
        SmallYamlError: it cannot be read, is not YAML in UTF-8, is larger than
            :data:`~llm_locust.core.files.SETTINGS`, or has more than :data:`MAX_VALUES`.
    """
    text = _text(path)
    try:
        content = yaml.safe_load(text)
    except RecursionError:
        raise SmallYamlError("broken YAML: too deep") from None
    except (yaml.YAMLError, ValueError, OverflowError) as e:  # an escape or a number out of range
        raise SmallYamlError(f"broken YAML: {e}") from e
    if not _is_small(content):
        raise SmallYamlError(f"with its aliases replaced, it has more than {MAX_VALUES:,} values")
    return content


def _text(path: Path) -> str:
    try:
        return read_input(path, SETTINGS).decode()
    except InputError as e:
        raise SmallYamlError(e.why) from e
    except UnicodeDecodeError:
        raise SmallYamlError("cannot be read: it is not UTF-8") from None


def _is_small(content: Any) -> bool:
    waiting, seen = [content], 0
    while waiting:
        value = waiting.pop()
        seen += 1
        if seen + len(waiting) > MAX_VALUES:
            return False
        if isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set):
            waiting += value
    return True
