"""Merge of all that is left of a run: run directories, workers' spools, files of frames."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

import numpy as np

from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import Manifest, WorkerFacts
from llm_locust.core.stages import staged
from llm_locust.store.expired import dropped_facts, holdings_of, read_expired, write_expired
from llm_locust.store.facts import (
    Holding,
    account,
    added,
    all_here,
    bad_text,
    by_knowledge,
    file_of_tear,
    holdings,
    tear_text,
)
from llm_locust.store.files import REQUESTS_FILE, StoreError, create_run_dir, holds_a_run, write_manifest
from llm_locust.store.frames import (
    BadFrame,
    FrameHeader,
    FrameRef,
    Tear,
    placed_batches,
    unique_frames,
    without,
)
from llm_locust.store.requests import open_requests, write_requests
from llm_locust.store.seqs import covers, minus, overlap, parse_ranges
from llm_locust.store.sources import FRAME_SUFFIX, FoundSources, find, not_elsewhere

#: Why a run whose load has no recorded end is cut short: nobody knows whether it was to go on.
NO_END = (
    "the end of the load was never recorded: the master died or could not write it, "
    "or its run directory is not merged here"
)


@dataclass(frozen=True, slots=True)
class Merged:
    """Result of a merge.

    Attributes:
        manifest: of the run directory that was made.
        rows: its number of requests.
        duplicates: frames found more than once, or contained in the requests of a finished run.
        tears: positions of invalid bytes in files, where something may be missing.
        unreadable: a line for each file or frame that could not be used, and why.
    """

    manifest: Manifest
    rows: int
    duplicates: int
    tears: tuple[Tear, ...]
    unreadable: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Finished:
    """A finished run's requests that are used: those of ``workers``."""

    path: Path
    workers: frozenset[str]


def merge(sources: Sequence[Path], out: Path, run: str | None = None) -> Merged:
    """Make a run directory from ``sources``: run directories, spools, files of frames, in any mixture.

    Each batch is used once. Rows are ordered by (worker, seq): order and number of the sources, and the
    distribution of batches over files, do not change the result. A worker's rows from a finished run come
    before its other batches. Memory is bounded by a row group, and the index of all frames. The requests are
    written first, the manifest last.

    :attr:`Manifest.torn` lists invalid bytes, unless everything that every worker announced with its final
    counts is present: what a master's death cut off is then in its workers' spools. A frame without a valid
    batch is left out, and is listed in any case.

    What ``--keep`` dropped of a run counts as dropped unless the sources have a copy of it.

    A run whose manifest has no end of the load is cut short, even if no record is missing: its load may have
    been meant to go on.

    Args:
        sources: directories, searched recursively, or files.
        out: directory to create; it may exist, but must not hold a run.
        run: id of the run, if the sources have several.

    Raises:
        StoreError: nothing, or not enough, was found; there are several runs; ``out`` holds a run.
        OSError: a file cannot be read or written.
    """
    if holds_a_run(out):
        raise StoreError(f"{str(out)!r} holds a run already: name a new directory")
    everything = find(sources)
    found = everything.of_run(_chosen_run(everything, run))
    finished, of_finished = _finished(found)
    expired = not_elsewhere(found, of_finished)
    held = added(of_finished, holdings_of(expired))
    frames = unique_frames(f for f in found.frames if not _holds(held, f.header.worker, f.header.seq))
    create_run_dir(out)
    bad: list[BadFrame] = []
    best = by_knowledge(found.manifests.values())[0]
    rows = write_requests(out / REQUESTS_FILE, staged(_batches(finished, of_finished, frames, bad), best))
    try:
        manifest, tears = _accounted(found, without(frames, bad), held, bad)
        for each in expired:
            write_expired(out, each)
        manifest = replace(manifest, dropped=dropped_facts(expired))
        if manifest.ended_ns is None:  # its master died
            manifest = replace(manifest, ended_ns=_last_end_ns(out))
        manifest = _judged_by_its_end(manifest)
        write_manifest(out, manifest)
    except BaseException:
        (out / REQUESTS_FILE).unlink()
        raise
    unreadable = (*found.unreadable, *(each.why for each in bad))
    return Merged(manifest, rows, len(found.frames) - len(frames), tuple(tears), unreadable)


def _accounted(
    found: FoundSources, frames: Sequence[FrameRef], held: Mapping[str, Holding], bad: Sequence[BadFrame]
) -> tuple[Manifest, list[Tear]]:
    """Manifest of the data in finished runs and what was dropped (``held``), and in frames, and the tears
    that it lists."""
    held = added(held, holdings(f.header for f in frames))
    last_words = {w.id: w for w in sorted(found.last_words.values(), key=_lateness)}
    manifest = account(by_knowledge(found.manifests.values()), last_words, held)
    whole = all_here(manifest)
    tears = [] if whole else [t for t in found.tears if not _whole_elsewhere(t, held)]
    torn = [] if whole else _torn(found, tears)
    torn += [bad_text(each, found.names[each.frame.path]) for each in bad]
    return replace(manifest, torn=torn), tears


def _judged_by_its_end(manifest: Manifest) -> Manifest:
    """The manifest, cut short if its load has no recorded end; an earlier merge may have known less."""
    if manifest.stopped_ns is None:
        return replace(manifest, cut_short=True, stop_reason=manifest.stop_reason or NO_END)
    if manifest.stop_reason == NO_END:
        return replace(manifest, cut_short=False, stop_reason="")
    return manifest


def _chosen_run(found: FoundSources, run: str | None) -> str:
    """Run to merge (raises StoreError if it is ambiguous, or not enough of it was found)."""
    runs = found.runs
    if run is None and len(runs) > 1:
        raise StoreError(f"there are several runs: {', '.join(runs)}; choose one with --run ID")
    if run is not None and run not in runs:
        raise StoreError(f"there is nothing of run {run!r}; there are: {', '.join(runs) or 'none'}")
    left_out = "".join(f"; {line}" for line in found.unreadable)
    if run is None and not runs:
        torn = f"{len(found.tears)} torn pieces, " if found.tears else ""
        raise StoreError(f"there are no batches of a run ({torn}{len(found.names)} files){left_out}")
    chosen = runs[0] if run is None else run
    of_run = found.of_run(chosen)
    if not of_run.frames and not of_run.finished and not of_run.expired:
        raise StoreError(f"there are no batches of run {chosen}, only its manifest{left_out}")
    if not of_run.manifests:
        raise StoreError(
            f"there are batches of run {chosen}, but no manifest of it, which has the run's facts: "
            f"add the master's run directory or any worker's spool{left_out}"
        )
    return chosen


def _finished(found: FoundSources) -> tuple[list[_Finished], dict[str, Holding]]:
    """Finished run that each worker's requests are taken from, and the data that it has."""
    candidates: dict[str, list[tuple[Holding, Path]]] = {}
    for path in found.finished:
        dropped = holdings_of(read_expired(path))
        for facts in found.manifests[path].workers:
            here = _held_by(path, facts, dropped.get(facts.id, Holding())) if facts.received else Holding()
            if here.rows:
                candidates.setdefault(facts.id, []).append((here, path))
    workers_of: dict[Path, set[str]] = {}
    held: dict[str, Holding] = {}
    for worker, each in candidates.items():
        # The largest first; equal ones have the same requests, so that any will do.
        for holding, path in sorted(each, key=lambda c: (-sum(map(len, c[0].seqs)), c[0].seqs[0].start)):
            so_far = held.get(worker, Holding())
            if covers(so_far.seqs, holding.seqs):
                continue
            if overlap(so_far.seqs, holding.seqs):
                raise StoreError(
                    f"{str(path)!r} has a part of what another finished run has of worker {worker}, and "
                    "more: leave one of them out, or merge the frames that they were made of"
                )
            held[worker] = so_far + holding
            workers_of.setdefault(path, set()).add(worker)
    return [_Finished(path, frozenset(workers_of[path])) for path in sorted(workers_of)], held


def _held_by(path: Path, facts: WorkerFacts, dropped: Holding) -> Holding:
    """Batches of a worker that the requests of a finished run have: those received without the dropped."""
    try:
        seqs = tuple(parse_ranges(facts.received_seqs))
    except ValueError as e:
        raise StoreError(f"the manifest in {str(path)!r} cannot be used: worker {facts.id}: {e}") from e
    if not seqs:
        raise StoreError(
            f"the manifest in {str(path)!r} does not list the batches of worker {facts.id} in the run: "
            "leave it out, its content cannot be separated from batches elsewhere"
        )
    return Holding(facts.received - dropped.rows, tuple(minus(seqs, dropped.seqs)))


def _holds(held: Mapping[str, Holding], worker: str, seq: int) -> bool:
    return worker in held and any(seq in seqs for seqs in held[worker].seqs)


def _lateness(word: WorkerFacts) -> tuple[object, ...]:
    """Sort key of one worker's final facts; more than one are copies of a spool."""
    return (word.announced or 0, word.heard_ns or 0, repr(word))


def _whole_elsewhere(tear: Tear, held: Mapping[str, Holding]) -> bool:
    """Whether it is in a worker's file of one frame, and that frame is present: nothing was lost by it."""
    path = tear.path
    return (
        path.suffix == FRAME_SUFFIX
        and path.stem.isdecimal()
        and _holds(held, path.parent.name, int(path.stem))
    )


def _torn(found: FoundSources, tears: Sequence[Tear]) -> list[str]:
    """Lines of the manifest on these tears, and on those in files of finished runs that are gone."""
    earlier = [
        text
        for path in found.finished
        for text in found.manifests[path].torn
        if not (path / file_of_tear(text)).exists()
    ]
    return sorted({*earlier, *(tear_text(tear, found.names[tear.path]) for tear in tears)})


def _batches(
    finished: Sequence[_Finished],
    held: Mapping[str, Holding],
    frames: Sequence[FrameRef],
    bad: list[BadFrame],
) -> Iterator[RecordBatch]:
    """All batches by worker: from finished runs, and from frames by number; those before the first one of a
    finished run come first."""

    def place(header: FrameHeader) -> int:
        before = held.get(header.worker)
        return -1 if before and before.seqs and header.seq < before.seqs[0].start else len(finished)

    streams = [_by_worker(each, number) for number, each in enumerate(finished)]
    streams.append(((header.worker, place(header)), batch) for header, batch in placed_batches(frames, bad))
    return (batch for _, batch in heapq.merge(*streams, key=itemgetter(0)))


def _by_worker(finished: _Finished, place: int) -> Iterator[tuple[tuple[str, int], RecordBatch]]:
    """A finished run's requests in parts of one worker; they are sorted by worker."""
    for part in open_requests(finished.path).parts():
        if not len(part):
            continue
        labels = part.labels("worker")
        edges = np.flatnonzero(np.diff(labels.codes)) + 1
        for rows in np.split(np.arange(len(part)), edges):
            worker = labels.names[labels.codes[rows[0]]]
            if worker in finished.workers:
                yield (worker, place), RecordBatch(part.table.slice(int(rows[0]), len(rows)))


def _last_end_ns(out: Path) -> int | None:
    parts = open_requests(out).parts(["ended_ns"])
    return max((int(part.ints("ended_ns").max()) for part in parts if len(part)), default=None)
