"""A worker's spool: its frames on disk, each in a file of its own, until the master has them.

    FOLDER/manifest.json   the run's facts as the master told them when it began
    FOLDER/00000017.frame  the batch of this number
    FOLDER/worker.json     the worker's last word, where it ended before all was acknowledged

Nothing is synced: a process that is killed loses nothing of what it wrote, for the kernel keeps it;
a machine that dies loses some seconds, and an fsync a batch would cost the disk milliseconds each on
the machine whose timing is measured. Files are as open to others as those of the run directory, and
hold no more: whoever may read a run may merge its spools.
"""

from contextlib import suppress
from pathlib import Path

from llm_locust.store.files import MANIFEST_FILE, write_json

WORKER_FILE = "worker.json"
SPOOLED = "*.frame"  # the pattern of the frames' names


class Spool:
    """One worker's spool of one run. Its folder is made with the first write.

    Args:
        folder: this worker's own.
        root: what :meth:`close` must not remove, nor anything above it; the folder lies under it.
    """

    def __init__(self, folder: Path, root: Path) -> None:
        if root not in folder.parents or ".." in folder.relative_to(root).parts:
            raise ValueError(f"the spool {str(folder)!r} does not lie under {str(root)!r}")
        self.folder = folder
        self._root = root

    def write(self, seq: int, frame: bytes) -> None:
        """Put a frame on disk, whole or not at all.

        Raises:
            OSError: it could not be written, or one of this number is there.
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
        """The frame of this number (raises OSError)."""
        return self._path(seq).read_bytes()

    def drop(self, seq: int) -> None:
        """Remove a frame; one that is not there is no error (raises OSError for any other reason)."""
        self._path(seq).unlink(missing_ok=True)

    def write_facts(self, name: str, value: object) -> None:
        """Write JSON beside the frames, atomically (raises OSError)."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / name, value)

    def close(self) -> bool:
        """Remove the folder, and those above it up to the root that are empty then.

        Gives whether the folder is gone. One that holds a frame, or a file of somebody else, stays.
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
        with suppress(OSError):  # another worker's folder is in it, or has just been removed
            for parent in self.folder.parents:
                if parent == self._root:
                    break
                parent.rmdir()
        return True

    def _path(self, seq: int) -> Path:
        return self.folder / f"{seq:08d}.frame"
