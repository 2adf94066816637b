"""What was scraped of a run's servers, for whichever window is asked for."""

from dataclasses import dataclass
from pathlib import Path

from llm_locust.deployment.samples_file import SERVER_METRICS_FILE, SamplesError, holds_samples, read_samples
from llm_locust.manifest import Manifest
from llm_locust.metrics.server_series import PARTS, ServerSeries, read_server_series
from llm_locust.metrics.window import Window
from llm_locust.report.text import seconds


@dataclass(frozen=True, slots=True)
class Scraped:
    """The samples beside ``path``, read anew each time: they are never all in memory. ``failure`` is why they
    are not those of the whole run; empty where they are."""

    path: Path
    failure: str = ""

    @classmethod
    def of(cls, run: Path, manifest: Manifest) -> "Scraped | None":
        """What a run directory holds; None where no server was scraped."""
        path, facts = run / SERVER_METRICS_FILE, manifest.server_metrics
        if facts is None and not holds_samples(path):
            return None
        return cls(path, _failure(manifest))

    def series(self, window: Window, parts: int = PARTS) -> ServerSeries:
        """In so many equal parts of the window. A file that cannot be read is a failure, not an error:
        the report can do without."""
        try:
            return read_server_series(read_samples(self.path), window, parts, self.failure)
        except SamplesError as e:
            return read_server_series([], window, parts, str(e))


def _failure(manifest: Manifest) -> str:
    facts = manifest.server_metrics
    if facts is None or not facts.failure:
        return ""
    after_s = ((facts.failed_ns or manifest.started_ns) - manifest.started_ns) * 1e-9
    return f"the scraper {facts.failure}, {seconds(max(0.0, after_s))} after the start"
