"""Files that are written beside their place and put there whole."""

import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

#: Ends the name of a file that is not whole yet.
PART_SUFFIX = ".part"

_STARTED_S = time.time()


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of ``path`` when the block ends without an error.

    A reader sees the old file or the new one. Until then it has a name beside ``path`` that nobody can
    guess, and is opened only if nothing has that name: a link that waits in the directory is not followed.
    What writers that were killed have left of the same file is removed first.

    Raises:
        OSError: it cannot be made, or cannot take the place.
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
    with suppress(OSError):  # locked, or gone, or a link, or of another user: it stays
        if part.lstat().st_mtime >= _STARTED_S:
            return
        descriptor = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()
        finally:
            os.close(descriptor)
