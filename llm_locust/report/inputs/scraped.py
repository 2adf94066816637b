"""What was scraped of a run's servers, for whichever window is asked for."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copyfile

from llm_locust.core.manifest import Manifest
from llm_locust.deployment.samples_check import CheckedSamples
from llm_locust.deployment.samples_file import SERVER_METRICS_FILE, SamplesError, holds_samples, read_samples
from llm_locust.metrics.deployment.server_series import PARTS, ServerSeries, joined, read_server_series
from llm_locust.metrics.window import Window
from llm_locust.report.inputs.live_figures import LIVE_FILE
from llm_locust.report.text import seconds
from llm_locust.store import MANIFEST_FILE, StoreError, read_manifest

#: The Parquet file, and the streams that it is made of.
_SAMPLES = "server_metrics*"


@dataclass(frozen=True, slots=True)
class Scraped:
    """The samples of one run, or of its parts in order, read anew each time: they are never all in memory.

    ``paths`` are the files, each with why its samples are not those of the whole part, empty where they are.
    """

    paths: tuple[tuple[Path, str], ...]

    @classmethod
    def of(cls, runs: Iterable[tuple[Path, Manifest]]) -> "Scraped | None":
        """What run directories hold; None where no server was scraped."""
        held = [
            (path, manifest, manifest.server_metrics is not None or holds_samples(path / SERVER_METRICS_FILE))
            for path, manifest in runs
        ]
        if not any(scraped for *_, scraped in held):
            return None
        failures = [_failure(manifest) if scraped else "nothing was scraped" for _, manifest, scraped in held]
        if len(held) > 1:
            failures = [
                failure and f"{path.name}: {failure}"
                for (path, *_), failure in zip(held, failures, strict=True)
            ]
        files = (path / SERVER_METRICS_FILE for path, *_ in held)
        return cls(tuple(zip(files, failures, strict=True)))

    def series(self, window: Window, parts: int = PARTS) -> ServerSeries:
        """In so many equal parts of the window. A file that cannot be read is a failure, not an error:
        the report can do without."""
        return joined([_series(path, window, parts, failure) for path, failure in self.paths])


def _series(path: Path, window: Window, parts: int, failure: str) -> ServerSeries:
    samples = CheckedSamples(read_samples(path))
    try:
        found = read_server_series(samples, window, parts, failure)
    except SamplesError as e:
        return read_server_series([], window, parts, str(e))
    return replace(found, failure="; ".join(filter(None, [failure, samples.failure])))


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
                    if path.is_file() and not path.is_symlink() and not (out / path.name).exists():
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
