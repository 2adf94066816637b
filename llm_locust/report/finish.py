"""What a run directory gets once its last record is in: its report, or that of all parts of a run."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from shlex import quote

import msgspec
import numpy as np
from msgspec import structs

from llm_locust.core.manifest import Manifest
from llm_locust.core.stages import finished, records_missing, resumed
from llm_locust.deployment.server_metrics import SERVER_METRICS_FILE, SamplesError, compact_samples
from llm_locust.figures.run_facts import PartFacts, PartGap, Parts
from llm_locust.figures.verdict import verdict
from llm_locust.metrics.question import PLAIN
from llm_locust.metrics.window import iso
from llm_locust.report.analysis import Report, analyse, build_report, write_reports
from llm_locust.report.inputs import Source, StoredRun, open_source
from llm_locust.store import (
    FRAMES_FILE,
    REQUESTS_FILE,
    StoreError,
    compact,
    holds_frames,
    read_manifest,
    write_manifest,
    write_requests,
)
from llm_locust.store.facts import SPOOL_DIR, parts_of
from llm_locust.store.merge import find
from llm_locust.store.requests import note_dropped

logger = logging.getLogger(__name__)


def finish_run(run: Path, *, allow_incomplete: bool = False) -> Report:
    """Put a run's batches into one Parquet file, and the samples of its servers into another, then write its
    summary and reports; the manifest gets what the check of the live figures has found.

    A run that was finished before, or that was cut off while it was, can be finished again.

    Args:
        run: a run directory with its manifest and, unless they are compacted already, its frames.
        allow_incomplete: missing records do not make the exit code 4.

    Raises:
        ValueError: manifest, batches or limits that cannot be used (StoreError, BatchError, SloError, ...).
        OSError: a file cannot be read or written.
    """
    read_manifest(run)  # what is no run is refused before anything is written into it
    # Without frames ``compact`` makes an empty file: of a run that has its records it would take them.
    # Segments may be on their way out where the file of requests is there: it appears as a whole.
    if (run / FRAMES_FILE).exists() or not (run / REQUESTS_FILE).exists():
        compact(run)
    else:
        note_dropped(run)
    with suppress(SamplesError, OSError):  # it can be read as it is, as far as it can be read at all
        compact_samples(run / SERVER_METRICS_FILE)
    give_way(run)
    report = build_report(run, allow_incomplete=allow_incomplete)
    if checked := report.summary.live_check:
        write_manifest(run, replace(read_manifest(run), live_check=msgspec.to_builtins(checked)))
    return report


def give_way(run: Path) -> None:
    """Set the warm-up of a run to 0 if it gives way and every request began in it."""
    manifest = read_manifest(run)
    if not manifest.warmup_gives_way or not manifest.warmup_s or manifest.is_sweep:
        return
    parts = [part.ints("scheduled_ns") for part in Source.of(run).requests.parts(["scheduled_ns"])]
    scheduled_ns = np.concatenate([np.empty(0, np.int64), *parts])
    if len(scheduled_ns) and scheduled_ns.max() < scheduled_ns.min() + manifest.warmup_s * 1e9:
        logger.warning(
            "%s began in the first %g s: the default warm-up is left out, and they are measured",
            "the only request" if len(scheduled_ns) == 1 else f"all {len(scheduled_ns):,} requests",
            manifest.warmup_s,
        )
        write_manifest(run, replace(manifest, warmup_s=0.0))


def advice(run: Path, *, out_of_memory: bool = False) -> str:
    """What a person can do where the report of a run was not made."""
    where = ", on a machine with more memory" if out_of_memory else ""
    return (
        f"the records are in {str(run)!r}: "
        f"`llm-locust merge {quote(str(run))} --out NEW` makes the report of them{where}"
    )


# --- One report of all parts of a restartable run or a sweep.
#
# A sweep becomes one run directory again, whose requests and stages are those of all parts. Parts whose
# master died are read from their frames, from the spools in their directories, and from what their workers
# delivered later. Everything temporary is in the directory itself, and is removed.


KILLED = "its master died and gave no reason"


def join_parts(folder: Path, *, allow_incomplete: bool = False) -> Report:
    """Write summary and reports of all parts into their common directory.

    Raises:
        StoreError: there is no part, or one cannot be read.
        ValueError, OSError: as :func:`~llm_locust.report.analysis.build_report`.
    """
    parts = parts_of(folder)
    if not parts:
        raise StoreError(f"{str(folder)!r} holds no part of a run")
    manifests = [read_manifest(path) for path in parts]
    spool = folder / SPOOL_DIR
    spools = [spool] * holds_frames(spool)
    held = find([*parts, *spools]).runs_with_records
    # A part that ended in its first warm-up has none, or one whose master died before its first batch.
    empty = [path for path, part in zip(parts, manifests, strict=True) if part.id not in held]
    parts = [path for path in parts if path not in empty] or parts
    with open_source([*parts, *spools], beside=folder) as source:
        runs = [_ended(run) for run in source.runs]
        facts = parts_facts(runs, names_of(parts, runs))
        if manifests[0].is_sweep:
            whole = _one_sweep(folder, source, runs, manifests)
        else:
            whole = replace(source, runs=tuple(runs), manifest=_whole(source, runs, empty))
        if len(parts) == len(runs):
            runs = [replace(run, path=path) for run, path in zip(runs, parts, strict=True)]
        whole = replace(whole, parts=tuple(runs))
        found = analyse(whole, PLAIN)
        named = structs.replace(found.summary.run, name=folder.name)
        summary = structs.replace(found.summary, run=named, parts=facts)
        judged = verdict(summary, found.manifest, allow_incomplete)
        write_reports(folder, replace(found, summary=summary), judged)
        return Report(summary, judged)


def _one_sweep(
    folder: Path, source: Source, runs: Sequence[StoredRun], manifests: Sequence[Manifest]
) -> Source:
    """The run directory of a sweep in parts, written anew; the parts stay as they are."""
    settled = [_settled(run) for run in runs]
    whole, last = _whole(source, settled, ()), manifests[-1]
    stages = resumed([manifest.stages for manifest in manifests])
    left = len(finished(stages)) < last.stages_planned or (stages and stages[-1].drained_ns is None)
    if not left and not whole.options.get("find"):  # what ended it then came after its last stage
        whole = replace(whole, cut_short=False, stop_reason="")
    write_requests(folder / REQUESTS_FILE, (batch for run in settled for batch in run.requests.parts()))
    write_manifest(
        folder,
        replace(
            whole,
            name=folder.name,
            drained_ns=last.drained_ns,
            stages=stages,
            stages_planned=last.stages_planned,
            workers=[
                replace(worker, index=index)
                for index, worker in enumerate(each for run in settled for each in run.manifest.workers)
            ],
            torn=[text for run in settled for text in run.manifest.torn],
            server_metrics=None,  # each part has its own
            live_check={},
        ),
    )
    return Source.of(folder)


def _settled(run: StoredRun) -> StoredRun:
    """A part of a sweep without the loss of what its last stage, which is repeated, had under way.

    Only where every record is here that the workers had when the stage before it had drained, and those were
    the same workers all the time: what one has lost that left before is not of the last stage.
    """
    manifest = run.manifest
    done = [stage for stage in manifest.stages if stage.drained_ns is not None]
    if manifest.complete or any(stage.made.keys() != done[-1].made.keys() for stage in done):
        return run
    if done:
        last = done[-1]
        assert last.drained_ns is not None
        is_faulty = any(stage.fault for stage in manifest.stages if stage.number <= last.number)
        if is_faulty or not last.made or records_missing(run.requests, last.made, last.drained_ns):
            return run
    workers = [replace(w, announced=w.received, in_flight=0, lost=False) for w in manifest.workers]
    return replace(run, manifest=replace(manifest, workers=workers, torn=[]))


def names_of(parts: Sequence[Path], runs: Sequence[StoredRun]) -> list[str]:
    """Directory of each run; merged ones have it nowhere else. Both are in the order of their beginnings."""
    return [path.name for path in parts] if len(parts) == len(runs) else [run.manifest.name for run in runs]


def parts_facts(runs: Sequence[StoredRun], names: Sequence[str]) -> Parts:
    """Facts of each part, and of the time between two.

    Args:
        runs: the parts, ascending in time and with a stop each.
    """
    parts: list[PartFacts] = []
    edges: list[tuple[int, int]] = []
    for run, name in zip(runs, names, strict=True):
        begin_ns, stop_ns = _load_of(run)
        edges.append((begin_ns, stop_ns))
        parts.append(
            PartFacts(
                name=name,
                run=run.manifest.id,
                start=iso(begin_ns),
                end=iso(stop_ns),
                seconds=(stop_ns - begin_ns) * 1e-9,
                requests=len(run.requests) + (run.manifest.dropped.records if run.manifest.dropped else 0),
                lost=run.manifest.records_lost,
                ended_by=run.manifest.stop_reason or "the end that it was given",
            )
        )
    gaps = [
        PartGap(
            after=before.name,
            start=before.end,
            end=following.start,
            seconds=max(0.0, (next_ns - end_ns) * 1e-9),
            why=before.ended_by,
        )
        for (before, following), ((_, end_ns), (next_ns, _)) in zip(
            pairwise(parts), pairwise(edges), strict=True
        )
    ]
    down_s, whole_s = sum(gap.seconds for gap in gaps), (edges[-1][1] - edges[0][0]) * 1e-9
    return Parts(parts=parts, gaps=gaps, down_s=down_s, down_share=down_s / whole_s if whole_s > 0 else None)


def _load_of(run: StoredRun) -> tuple[int, int]:
    """Beginning and end of a part's load."""
    begins_ns = [int(s.min()) for s in _scheduled(run)] + [each.first_ns for each in run.expired]
    begin_ns = min(begins_ns, default=run.manifest.started_ns)
    stop_ns = run.manifest.stopped_ns
    return begin_ns, begin_ns if stop_ns is None else max(begin_ns, stop_ns)


def _scheduled(run: StoredRun) -> Iterator["np.ndarray[tuple[int], np.dtype[np.int64]]"]:
    for part in run.requests.parts(["scheduled_ns"]):
        if len(part):
            yield part.ints("scheduled_ns")


def _ended(run: StoredRun) -> StoredRun:
    """A part with the end of its load: the last scheduled request, if its master could not note a stop."""
    manifest = run.manifest
    if manifest.stopped_ns is not None:
        return run
    last_ns = max((int(s.max()) + 1 for s in _scheduled(run)), default=manifest.started_ns)
    last_ns = max(last_ns, manifest.kept_from_ns or 0)
    last_ns = max([last_ns, *(s.ended_ns for s in manifest.stages if s.drained_ns and s.ended_ns)])
    return replace(run, manifest=replace(manifest, stopped_ns=last_ns, stop_reason=KILLED))


def _whole(source: Source, runs: Sequence[StoredRun], empty: Iterable[Path]) -> Manifest:
    """The manifest of all parts: its end is the last part's, and only what ended that one cuts it short."""
    last = runs[-1].manifest
    why = "its master died before it had a record, so what it sent is unknown"
    return replace(
        source.manifest,
        torn=[*source.manifest.torn, *(f"{path.name}: {why}" for path in empty)],
        stopped_ns=last.stopped_ns,
        stop_reason=last.stop_reason,
        cut_short=last.cut_short or last.stop_reason == KILLED,
    )
