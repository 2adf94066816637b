"""The reports of this process's runs, for the web UI: by the run's id, of files with known names only."""

from dataclasses import dataclass
from pathlib import Path

from llm_locust.report.run.so_far import SO_FAR_DIR
from llm_locust.store import REPORT_HTML_FILE, REPORT_MD_FILE, SUMMARY_FILE, TIMESERIES_FILE

#: What is handed out of a run directory, with its type.
SERVED = {
    REPORT_HTML_FILE: "text/html; charset=utf-8",
    REPORT_MD_FILE: "text/plain; charset=utf-8",
    SUMMARY_FILE: "application/json",
    TIMESERIES_FILE: "text/csv; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class KnownRun:
    id: str
    path: Path
    host: str
    model: str

    @property
    def is_reported(self) -> bool:
        return (self.path / REPORT_HTML_FILE).exists()

    @property
    def is_reported_so_far(self) -> bool:
        """There is a rolling summary, and nothing better yet."""
        return not self.is_reported and (self.path / SO_FAR_DIR / REPORT_HTML_FILE).exists()


class Reports:
    """The runs that this process made, the newest first. Nothing else on the disk can be asked for."""

    def __init__(self) -> None:
        self._runs: dict[str, KnownRun] = {}

    def add(self, run: KnownRun) -> None:
        self._runs[run.id] = run

    @property
    def runs(self) -> list[KnownRun]:
        return list(reversed(self._runs.values()))

    def file(self, run: str, name: str, *, so_far: bool = False) -> Path | None:
        """The file of a run that has this name; None where there is none."""
        known = self._runs.get(run)
        if known is None or name not in SERVED:
            return None
        path = (known.path / SO_FAR_DIR if so_far else known.path) / name
        return path if path.is_file() else None
