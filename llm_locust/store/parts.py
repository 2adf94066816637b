"""Parts of a restartable run: one run directory for each start of its master, ``part-1``, ``part-2``, ..."""

import re
from dataclasses import dataclass
from pathlib import Path

from llm_locust.core.manifest import Manifest
from llm_locust.store.files import MANIFEST_FILE, StoreError, holds_a_run, read_manifest

#: Of workers on the master's machine, in a run directory.
SPOOL_DIR = "spool"

_PART = re.compile(r"part-([1-9]\d{0,5})")


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a restartable run has come.

    Attributes:
        parts: run directories so far, in order.
        begun_ns: start of the first part, by its own clock; None without one.
        over: why no further part follows; empty if one does.
    """

    parts: tuple[Path, ...] = ()
    begun_ns: int | None = None
    over: str = ""

    def left_s(self, run_time_s: float, now_ns: int) -> float:
        """Rest of the whole run's time; 0 if it is over."""
        gone_s = 0.0 if self.begun_ns is None else (now_ns - self.begun_ns) * 1e-9
        return max(0.0, run_time_s - max(0.0, gone_s))


def parts_of(folder: Path) -> list[Path]:
    """The run directories of a restartable run that have a manifest, in order."""
    return [path for path in _numbered(folder) if (path / MANIFEST_FILE).is_file()]


def next_part(folder: Path) -> Path:
    """Directory of the next part: its number is one above the largest, whatever that one holds."""
    return folder / f"part-{max(map(_number, _numbered(folder)), default=0) + 1}"


def course_of(folder: Path) -> RunProgress:
    """How far the run in a directory has come.

    Raises:
        StoreError: the directory holds a run that is not one of parts, or a manifest cannot be read.
    """
    if holds_a_run(folder):
        raise StoreError(f"{str(folder)!r} holds a run that was not restartable: name another directory")
    parts = parts_of(folder)
    if not parts:
        return RunProgress()
    first, last = read_manifest(parts[0]), read_manifest(parts[-1])
    return RunProgress(tuple(parts), first.started_ns, "" if goes_on(last) else "its load was ended in order")


def adopt(folder: Path) -> None:
    """Make the run in a directory the first part of itself (raises OSError).

    The manifest is moved last: until then it can be done again. Spools stay where their workers write.
    """
    part = folder / "part-1"
    part.mkdir(exist_ok=True)
    for path in sorted(folder.iterdir(), key=lambda path: path.name == MANIFEST_FILE):
        if path.name != SPOOL_DIR and not _PART.fullmatch(path.name):
            path.rename(part / path.name)


def goes_on(manifest: Manifest) -> bool:
    """Whether a part was ended by something else than its own end: its master died, or was told to end."""
    return manifest.stopped_ns is None or (manifest.cut_short and not manifest.ended_in_order)


def _numbered(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("part-*") if _PART.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=_number)


def _number(path: Path) -> int:
    match = _PART.fullmatch(path.name)
    return int(match[1]) if match else 0
