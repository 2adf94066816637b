"""Files that are written next to their destination and moved there when complete."""

import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

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
