"""Files of a run directory, which is hostile.

A link in it could lead to any file of this machine; a pipe or a device may never begin, or have no end.
"""

import stat
from pathlib import Path


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
