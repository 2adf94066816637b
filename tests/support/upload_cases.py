"""A run that is to be uploaded, and what is found of it elsewhere."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from report_cases import write_run

from llm_locust.store.files import read_manifest


@dataclass(slots=True)
class Pauses:
    """How long was waited between attempts; at the n-th pause the n-th deed is done."""

    deeds: list[Callable[[], None]] = field(default_factory=list)
    taken_s: list[float] = field(default_factory=list)

    def __call__(self, pause_s: float) -> None:
        self.taken_s.append(pause_s)
        if len(self.taken_s) <= len(self.deeds):
            self.deeds[len(self.taken_s) - 1]()


def finished_run(path: Path) -> Path:
    """A run that has ended, with a spool that was left behind, a file half written and a link."""
    made = write_run(path)
    (made / "report.md").write_text("# Report\n")
    (made / "spool" / "w1").mkdir(parents=True)
    (made / "spool" / "w1" / "000001.frame").write_bytes(b"frame")
    (made / "report.md.part").write_text("half")
    (made / "link").symlink_to(made / "manifest.json")
    return made


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def whole(run: Path) -> dict[str, bytes]:
    """What a finished run amounts to elsewhere."""
    return {name: c for name, c in contents(run).items() if not name.endswith(".part") and name != "link"}


def copy(kept: Path, run: Path) -> Path:
    return kept / read_manifest(run).id
