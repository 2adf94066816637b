"""Reports of this process's runs, for the web UI: by the run's id, and only files with known names."""

from dataclasses import dataclass
from pathlib import Path

from llm_locust.report.run.so_far import SO_FAR_DIR
from llm_locust.store import REPORT_HTML_FILE, REPORT_MD_FILE, SUMMARY_FILE, TIMESERIES_FILE

#: Files of a run directory that are served, with their types.
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
        """Whether there is a rolling summary and no report yet."""
        return not self.is_reported and (self.path / SO_FAR_DIR / REPORT_HTML_FILE).exists()


class Reports:
    """Runs of this process, the newest first. Nothing else on the disk can be requested."""

    def __init__(self) -> None:
        self._runs: dict[str, KnownRun] = {}

    def add(self, run: KnownRun) -> None:
        self._runs[run.id] = run

    @property
    def runs(self) -> list[KnownRun]:
        return list(reversed(self._runs.values()))

    def file(self, run: str, name: str, *, so_far: bool = False) -> Path | None:
        """Path of a run's file; None if there is none."""
        known = self._runs.get(run)
        if known is None or name not in SERVED:
            return None
        path = (known.path / SO_FAR_DIR if so_far else known.path) / name
        return path if path.is_file() else None
