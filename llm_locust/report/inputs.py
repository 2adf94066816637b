"""Inputs of a report: records, scraped metrics, the last live figures."""

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest, NodeHealth, TaskException, task_exceptions
from llm_locust.deployment.server_metrics import (
    SERVER_METRICS_FILE,
    CheckedSamples,
    SamplesError,
    holds_samples,
    read_samples,
)
from llm_locust.figures.latency import LiveEnd
from llm_locust.figures.text import seconds
from llm_locust.metrics.answers import Answers, ByPrompt
from llm_locust.metrics.measured import measured_from
from llm_locust.metrics.question import PLAIN, Question
from llm_locust.metrics.select import Pooled, without_first_tries
from llm_locust.metrics.server_series import PARTS, ServerSeries, joined, read_server_series
from llm_locust.metrics.structs import largest
from llm_locust.metrics.window import Window
from llm_locust.store import (
    MANIFEST_FILE,
    REQUESTS_FILE,
    StoreError,
    holds_frames,
    merge,
    open_requests,
    read_manifest,
    write_json,
)
from llm_locust.store.files import read_own_file
from llm_locust.store.frame_log import Expired, facts_together, read_expired
from llm_locust.store.merge import find, is_damaged, salvage
from llm_locust.wire.payload import DECODE_ERRORS

# --- ``live.json``: the last live figures of a run, from the process that showed them to the one that checks


LIVE_FILE = "live.json"


def write_live_end(run: Path, end: LiveEnd) -> None:
    """Keep them in the run directory (raises OSError)."""
    write_json(run / LIVE_FILE, end)


def read_live_end(run: Path, id_: str) -> LiveEnd | None:
    """Those of the run with this id; None where there are none.

    Raises:
        StoreError: the file is not of live figures.
    """
    path = run / LIVE_FILE
    try:
        end = msgspec.json.decode(read_own_file(path), type=LiveEnd)
    except FileNotFoundError:
        return None
    except StoreError:
        raise
    except (*DECODE_ERRORS, OSError) as e:
        raise StoreError(
            f"{str(path)!r} holds no live figures; remove it, the report can do without: {e}"
        ) from e
    return end if end.run == id_ else None


# --- What was scraped of a run's servers, for whichever window is asked for


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


# --- Which requests a report is of: those of one run, of several pooled, or of what is left of a run


#: What a process was at its worst.
_WORST = (
    *("hub_lag_ms_p99", "hub_lag_ms_max", "paused_ms_max", "cpu_percent_max", "rss_mib_max"),
    *("steal_percent", "throttled_percent", "run_queue_percent"),
)


@dataclass(frozen=True, slots=True)
class StoredRun:
    """One run: what is known of it, and its requests, which are read when they are asked for.

    ``path`` is the directory that has what was scraped of its servers and its last live figures; ``expired``
    is what is left of the batches that were dropped.
    """

    manifest: Manifest
    requests: Requests
    path: Path | None = None
    expired: tuple[Expired, ...] = ()

    @classmethod
    def of(cls, path: Path, beside: Path | None = None) -> "StoredRun":
        """A run directory whose requests are in one file (raises StoreError)."""
        manifest = read_manifest(path)
        requests = open_requests(path).held_if_small()
        return cls(manifest, requests, beside or path, tuple(read_expired(path)))


@dataclass(frozen=True, slots=True)
class Source:
    """What a report is made of.

    Attributes:
        runs: each run on its own, in the order of their beginnings.
        manifest, requests: of all of them together; of one run its own.
        merged: whether batches had to be put together first; nothing was written into their directories.
        unreadable: a line for each file that could not be used then, and why.
        parts: of one run, ascending in time: what was scraped of its servers is that of all of them.
    """

    runs: tuple[StoredRun, ...]
    manifest: Manifest
    requests: Requests
    merged: bool
    unreadable: tuple[str, ...]
    parts: tuple[StoredRun, ...] = ()

    @property
    def scraped(self) -> list[tuple[Path, Manifest]]:
        """Directories with samples of the servers of one run; none of several, which may have had others."""
        of_one = self.parts or (self.runs if len(self.runs) == 1 else ())
        return [(run.path, run.manifest) for run in of_one if run.path is not None]

    @classmethod
    def of(cls, path: Path) -> "Source":
        """One run directory whose requests are in one file (raises StoreError)."""
        run = StoredRun.of(path)
        return cls((run,), run.manifest, run.requests, merged=False, unreadable=())


def answers_of(run: Path) -> ByPrompt:
    """What a run's answers were worth, by their prompts' ids (raises StoreError)."""
    requests = without_first_tries(open_requests(run))
    return ByPrompt.of(Answers.of(requests), np.arange(len(requests)))


@contextmanager
def open_source(
    paths: Sequence[Path],
    question: Question = PLAIN,
    *,
    skip_bad: bool = False,
    beside: Path | None = None,
) -> Iterator[Source]:
    """The requests of run directories, spools and files of batches, in any mixture, as one population.

    What is left of a run (a spool, a directory of a run that was not finished) is merged in a temporary
    directory, together with every other source of the same run, and is there while the context lasts.

    Args:
        question: without limits in it several runs need the same.
        skip_bad: leave out what of a finished run's requests cannot be read; its records are then missing.
        beside: directory that has room for the temporary one; None for that of the first source, or the
            system's where it cannot be written.

    Raises:
        StoreError: a source cannot be read, or the runs do not make one population.
        BatchError, OSError: as :func:`~llm_locust.store.merge` raises them.
    """
    room = beside or (writable(paths[0].resolve().parent) if paths else None)
    with TemporaryDirectory(prefix=".llm-locust-", dir=room) as made:
        if skip_bad:
            paths = [_salvaged(path, Path(made) / f"salvaged-{n}") for n, path in enumerate(paths)]
        directories, unreadable = _directories(paths, Path(made))
        runs = [StoredRun.of(path, beside) for path, beside in directories]
        runs.sort(key=lambda run: (run.manifest.started_ns, run.manifest.id))
        merged = any(Path(made) in directory.parents for directory, _ in directories)
        yield _source(runs, question, merged, unreadable)


def writable(place: Path) -> Path | None:
    """A directory whose volume has room for the data of a run; None, for the system's, if it is read-only."""
    return place if os.access(place, os.W_OK) else None


def _salvaged(path: Path, made: Path) -> Path:
    """The run directory itself, or where its requests are damaged a new one of what can be read."""
    if not (path / REQUESTS_FILE).exists() or not is_damaged(path):
        return path
    salvage(path, made)
    return made


def _directories(paths: Sequence[Path], made: Path) -> tuple[list[tuple[Path, Path]], tuple[str, ...]]:
    """One run directory for each run, some of them made now, and what could not be read meanwhile. With each
    the one that has the samples of its servers, which are not merged."""
    finished = [path for path in paths if (path / REQUESTS_FILE).exists()]
    left = [path for path in paths if path not in finished]
    for path in left:
        if not path.is_file() and not (path.is_dir() and holds_frames(path)):
            read_manifest(path)  # says what is missing there, if it is the manifest
            open_requests(path)
    by_id: dict[str, list[Path]] = {}
    for path in finished:
        by_id.setdefault(read_manifest(path).id, []).append(path)
    broken = find(left).runs if left else []
    if left and not broken:
        merge(left, made / "none")  # says why nothing can be made of it
    directories: list[tuple[Path, Path]] = []
    unreadable: list[str] = []
    for run in dict.fromkeys([*by_id, *broken]):
        sources = by_id.get(run, []) + (left if run in broken else [])
        if sources == by_id.get(run) and len(sources) == 1:
            directories.append((sources[0], sources[0]))
        else:
            new = made / str(len(directories))
            unreadable += merge(sources, new, run).unreadable
            directories.append((new, _with_samples(sources, run) or new))
    return directories, tuple(dict.fromkeys(unreadable))


def _with_samples(sources: Sequence[Path], run: str) -> Path | None:
    """The first of them that is a directory of this run and holds samples of its servers."""
    for path in sources:
        if holds_samples(path / SERVER_METRICS_FILE) and read_manifest(path).id == run:
            return path
    return None


def _source(
    runs: Sequence[StoredRun], question: Question, merged: bool, unreadable: tuple[str, ...]
) -> Source:
    if len(runs) == 1:
        return Source((runs[0],), runs[0].manifest, runs[0].requests, merged, unreadable)
    _refuse_shared_requests(runs)
    requests = Pooled(tuple(run.requests for run in runs))
    manifest = _pooled_manifest([run.manifest for run in runs], question)
    return Source(tuple(runs), manifest, requests, merged, unreadable)


def _refuse_shared_requests(runs: Sequence[StoredRun]) -> None:
    """A request that is in two of the runs would be counted twice."""
    ids = [_ids(run.requests) for run in runs]
    counts = pc.value_counts(pa.concat_arrays(ids))
    shared = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    if len(shared):
        raise StoreError(
            f"{len(shared)} requests, such as {shared[0].as_py()!r}, are in more than one of the runs "
            f"{', '.join(run.manifest.id for run in runs)}: leave out the copies"
        )


def _ids(requests: Requests) -> pa.Array:
    """The ids of a run's requests, each once."""
    parts = [part.table.column("request_id").combine_chunks() for part in requests.parts(["request_id"])]
    return pc.unique(pa.concat_arrays(parts))


def _pooled_manifest(manifests: Sequence[Manifest], question: Question) -> Manifest:
    """One manifest for all runs: their workers together, and the texts that they share."""
    if len({measured_from(m) for m in manifests}) > 1:
        raise StoreError(
            "the runs judge their requests from different moments (sent and scheduled): report on each alone"
        )
    stopped_ns = [m.stopped_ns for m in manifests]
    first = manifests[0]
    if any(m.class_slos != first.class_slos for m in manifests):
        raise StoreError("the runs' classes have different SLOs: report on each alone")
    return replace(
        first,
        id=_joined([m.id for m in manifests]),
        name=_joined([m.name for m in manifests]),
        stopped_ns=None if None in stopped_ns else max(ns for ns in stopped_ns if ns is not None),
        ended_ns=max((m.ended_ns for m in manifests if m.ended_ns is not None), default=None),
        host=_joined([m.host for m in manifests]) or None,
        model=_joined([m.model for m in manifests]) or None,
        scenario=_joined([m.scenario for m in manifests]) or None,
        versions={
            key: _joined([m.versions.get(key) for m in manifests])
            for key in dict.fromkeys(key for m in manifests for key in m.versions)
        },
        slo=_alike("SLOs", "--slo", [m.slo for m in manifests], question.slo),
        gates=_alike("gates", "--gate", [m.gates for m in manifests], question.gates),
        stop_reason=_joined([m.stop_reason for m in manifests]),
        cut_short=any(m.cut_short for m in manifests),
        task_exceptions=_raised(manifests),
        require_valid=any(m.require_valid for m in manifests),
        workers_expected=sum(m.workers_expected for m in manifests),
        workers=[
            replace(worker, index=index)
            for index, worker in enumerate(worker for m in manifests for worker in m.workers)
        ],
        clock_steps=sum(m.clock_steps for m in manifests),
        torn=[text for m in manifests for text in m.torn],
        messages_dropped=_dropped(manifests),
        skipped_lines={file: n for m in manifests for file, n in m.skipped_lines.items()},
        server_calls=[call for m in manifests for call in m.server_calls],
        targets=list(dict.fromkeys(target for m in manifests for target in m.targets)),
        arms=list({arm.name: arm for m in manifests for arm in m.arms}.values()),
        replicas_ready=list(dict.fromkeys(name for m in manifests for name in m.replicas_ready)),
        master=_worst([m.master for m in manifests]),
        dropped=facts_together(m.dropped for m in manifests),
        calibration=max(
            (m.calibration for m in manifests if m.calibration is not None),
            key=lambda found: math.inf if found.ttft_ms is None else found.ttft_ms,  # unknown: the worst
            default=None,
        ),
    )


def _raised(manifests: Sequence[Manifest]) -> list[TaskException]:
    """The exceptions of all runs' tasks, equal ones together."""
    kinds: Counter[tuple[str, str]] = Counter()
    for manifest in manifests:
        for each in manifest.task_exceptions:
            kinds[each.error, each.where] += each.count
    return task_exceptions(kinds)


def _dropped(manifests: Sequence[Manifest]) -> dict[str, dict[str, int]]:
    """The messages that were dropped in all runs, by sender and kind."""
    total: dict[str, Counter[str]] = {}
    for manifest in manifests:
        for sender, kinds in manifest.messages_dropped.items():
            total.setdefault(sender, Counter()).update(kinds)
    return {sender: dict(kinds) for sender, kinds in total.items()}


def _worst(masters: Sequence[NodeHealth]) -> NodeHealth:
    """How the master of any of the runs fared at its worst; its memory over time is each run's own."""
    worst: dict[str, Any] = {name: largest(getattr(each, name) for each in masters) for name in _WORST}
    return replace(NodeHealth(cells=[cell for each in masters for cell in each.cells]), **worst)


def _joined(texts: Sequence[str | None]) -> str:
    return ", ".join(dict.fromkeys(text for text in texts if text))


def _alike(what: str, option: str, texts: Sequence[str], asked: str | None) -> str:
    if asked is None and len(set(texts)) > 1:
        each = ", ".join(f'"{text}"' for text in dict.fromkeys(texts))
        raise StoreError(f"the runs have different {what} ({each}): give one for all by {option}")
    return texts[0] if asked is None else asked
