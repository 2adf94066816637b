"""A worker's spool: its frames on disk, one file each, until the master has them.

    FOLDER/manifest.json   the run's facts as sent by the master at its start
    FOLDER/00000017.frame  the batch of this number
    FOLDER/worker.json     the worker's final facts, if it ended before all was acknowledged

Nothing is synced: a killed process loses nothing that it wrote, because the kernel keeps it. A machine that
dies loses some seconds, but an fsync per batch would take milliseconds on the machine whose timing is
measured. Files have the same permissions as those of the run directory, and hold no more: whoever may read a
run may merge its spools.
"""

from contextlib import suppress
from pathlib import Path

from llm_locust.store.files import MANIFEST_FILE, write_json

WORKER_FILE = "worker.json"
SPOOLED = "*.frame"  # pattern of the frames' names


class Spool:
    """One worker's spool of one run. Its folder is created with the first write.

    Args:
        folder: this worker's own.
        root: neither it nor anything above it is removed by :meth:`close`; the folder must be below it.
    """

    def __init__(self, folder: Path, root: Path) -> None:
        if root not in folder.parents or ".." in folder.relative_to(root).parts:
            raise ValueError(f"the spool {str(folder)!r} is not below {str(root)!r}")
        self.folder = folder
        self._root = root

    def write(self, seq: int, frame: bytes) -> None:
        """Write a frame to disk, completely or not at all.

        Raises:
            OSError: it could not be written, or one with this number exists.
        """
        path = self._path(seq)
        try:
            file = path.open("xb", buffering=0)
        except FileNotFoundError:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = path.open("xb", buffering=0)
        try:
            with file:
                view = memoryview(frame)
                while view:
                    view = view[file.write(view) :]
        except BaseException:
            with suppress(OSError):
                path.unlink()
            raise

    def read(self, seq: int) -> bytes:
        """Read the frame with this number (raises OSError)."""
        return self._path(seq).read_bytes()

    def drop(self, seq: int) -> None:
        """Remove a frame; a missing one is not an error (raises OSError for any other reason)."""
        self._path(seq).unlink(missing_ok=True)

    def write_facts(self, name: str, value: object) -> None:
        """Write JSON next to the frames, atomically (raises OSError)."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / name, value)

    def close(self) -> bool:
        """Remove the folder, and then empty ones above it up to the root; return whether it is gone.

        A folder that holds a frame, or a foreign file, stays.
        """
        if not self.folder.is_dir():  # nothing was ever written
            return True
        try:
            if next(self.folder.glob(SPOOLED), None) is not None:
                return False
            for name in (MANIFEST_FILE, WORKER_FILE):
                (self.folder / name).unlink(missing_ok=True)
            self.folder.rmdir()
        except OSError:
            return False
        with suppress(OSError):  # it contains another worker's folder, or has just been removed
            for parent in self.folder.parents:
                if parent == self._root:
                    break
                parent.rmdir()
        return True

    def _path(self, seq: int) -> Path:
        return self.folder / f"{seq:08d}.frame"
