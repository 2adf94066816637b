"""What was scraped of a run's servers, for whichever window is asked for."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile

from llm_locust.core.manifest import Manifest
from llm_locust.deployment.samples_file import SERVER_METRICS_FILE, SamplesError, holds_samples, read_samples
from llm_locust.metrics.deployment.server_series import PARTS, ServerSeries, read_server_series
from llm_locust.metrics.window import Window
from llm_locust.report.inputs.live_figures import LIVE_FILE
from llm_locust.report.text import seconds
from llm_locust.store import MANIFEST_FILE, StoreError, read_manifest

#: The Parquet file, and the streams that it is made of.
_SAMPLES = "server_metrics*"


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


def carry_over(sources: Iterable[Path], out: Path, run: str) -> None:
    """Copy what run directories among ``sources``, and below them, have beside their records: the samples of
    the run's servers, its last live figures.

    Raises:
        OSError: a file cannot be copied.
    """
    for source in sources:
        for manifest in [*source.rglob(MANIFEST_FILE)] if source.is_dir() else ():
            if manifest.parent.resolve() != out.resolve() and _is_of(manifest.parent, run):
                for path in [*manifest.parent.glob(_SAMPLES), manifest.parent / LIVE_FILE]:
                    if path.is_file() and not (out / path.name).exists():
                        copyfile(path, out / path.name)


def _is_of(path: Path, run: str) -> bool:
    try:
        return read_manifest(path).id == run
    except (StoreError, OSError):  # said already, by who reads the records
        return False


def _failure(manifest: Manifest) -> str:
    facts = manifest.server_metrics
    if facts is None or not facts.failure:
        return ""
    after_s = ((facts.failed_ns or manifest.started_ns) - manifest.started_ns) * 1e-9
    return f"the scraper {facts.failure}, {seconds(max(0.0, after_s))} after the start"
