"""Files that are written beside their place and put there whole."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

#: Ends the name of a file that is not whole yet.
PART_SUFFIX = ".part"


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of ``path`` when the block ends without an error.

    A reader sees the old file or the new one. Until then it has a name beside ``path`` that nobody can
    guess, and is opened only if nothing has that name: a link that waits in the directory is not followed.

    Raises:
        OSError: it cannot be made, or cannot take the place.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}{PART_SUFFIX}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666)
    try:
        with open(descriptor, "wb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
