"""One run out of all that is left of it: run directories, workers' spools, files of frames."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

import numpy as np

from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import Manifest, WorkerFacts
from llm_locust.store.facts import (
    Holding,
    account,
    all_here,
    bad_text,
    by_knowledge,
    file_of_tear,
    holdings,
    tear_text,
)
from llm_locust.store.files import REQUESTS_FILE, StoreError, create_run_dir, holds_a_run, write_manifest
from llm_locust.store.frames import BadFrame, FrameRef, Tear, placed_batches, unique_frames, without
from llm_locust.store.requests import open_requests, write_requests
from llm_locust.store.seqs import covers, overlap, parse_ranges
from llm_locust.store.sources import FRAME_SUFFIX, Found, find


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge made.

    Attributes:
        manifest: of the run directory that was made.
        rows: requests in it.
        duplicates: frames that were found once more, or are in the requests of a finished run.
        tears: where files hold bytes that are no frame, of which something may be missing.
        unreadable: a line for each file or frame that could not be used, and why.
    """

    manifest: Manifest
    rows: int
    duplicates: int
    tears: tuple[Tear, ...]
    unreadable: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Finished:
    """A finished run's requests, as far as they are taken from it: those of ``workers``."""

    path: Path
    workers: frozenset[str]


def merge(sources: Sequence[Path], out: Path, run: str | None = None) -> Merged:
    """Make a run directory out of ``sources``: run directories, spools, files of frames, in any mixture.

    Each batch is taken once. Rows are ordered by (worker, seq): order and number of the sources, and how
    batches are spread over files, do not change the result. What a finished run has of a worker comes
    before that worker's batches which it has not. Memory is bounded by a row group, and the index of
    all frames. The requests are written first, the manifest last.

    Bytes that are no frame are told by :attr:`Manifest.torn` unless all is here that every worker
    announced with its final word: what a master's death cut off is then in its workers' spools. A frame
    that holds no batch is left out, and is told in any case.

    Args:
        sources: directories, searched with all below them, or files.
        out: the directory to make; it may be there, but hold no run.
        run: the id of the run, where the sources hold several.

    Raises:
        StoreError: nothing, or not enough, was found; there are several runs; ``out`` holds a run.
        OSError: a file cannot be read or written.
    """
    if holds_a_run(out):
        raise StoreError(f"{str(out)!r} holds a run already: name a new directory")
    everything = find(sources)
    found = everything.of_run(_chosen_run(everything, run))
    finished, held = _finished(found)
    frames = unique_frames(f for f in found.frames if not _holds(held, f.header.worker, f.header.seq))
    create_run_dir(out)
    bad: list[BadFrame] = []
    rows = write_requests(out / REQUESTS_FILE, _batches(finished, frames, bad))
    try:
        manifest, tears = _accounted(found, without(frames, bad), held, bad)
        if manifest.ended_ns is None:  # its master died
            manifest = replace(manifest, ended_ns=_last_end_ns(out))
        write_manifest(out, manifest)
    except BaseException:
        (out / REQUESTS_FILE).unlink()
        raise
    unreadable = (*found.unreadable, *(each.why for each in bad))
    return Merged(manifest, rows, len(found.frames) - len(frames), tuple(tears), unreadable)


def _accounted(
    found: Found, frames: Sequence[FrameRef], held: dict[str, Holding], bad: Sequence[BadFrame]
) -> tuple[Manifest, list[Tear]]:
    """The manifest of what finished runs (``held``) and frames have, and the tears that it tells of."""
    for worker, holding in holdings(f.header for f in frames).items():
        held[worker] = held.get(worker, Holding()) + holding
    last_words = {w.id: w for w in sorted(found.last_words.values(), key=_lateness)}
    manifest = account(by_knowledge(found.manifests.values()), last_words, held)
    whole = all_here(manifest)
    tears = [] if whole else [t for t in found.tears if not _whole_elsewhere(t, held)]
    torn = [] if whole else _torn(found, tears)
    torn += [bad_text(each, found.names[each.frame.path]) for each in bad]
    return replace(manifest, torn=torn), tears


def _chosen_run(found: Found, run: str | None) -> str:
    """The run to merge (StoreError where it is not clear which, or not enough was found of it)."""
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
    if not of_run.frames and not of_run.finished:
        raise StoreError(f"there are no batches of run {chosen}, only its manifest{left_out}")
    if not of_run.manifests:
        raise StoreError(
            f"there are batches of run {chosen}, but no manifest of it, which says what the run was: "
            f"add the master's run directory or any worker's spool{left_out}"
        )
    return chosen


def _finished(found: Found) -> tuple[list[_Finished], dict[str, Holding]]:
    """Which finished run each worker's requests are taken from, and what is there of it then."""
    candidates: dict[str, list[tuple[Holding, Path]]] = {}
    for path in found.finished:
        for facts in found.manifests[path].workers:
            if facts.received:
                candidates.setdefault(facts.id, []).append((_held_by(path, facts), path))
    workers_of: dict[Path, set[str]] = {}
    held: dict[str, Holding] = {}
    for worker, each in candidates.items():
        # The largest first; of equal ones, whose requests are the same, any.
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


def _held_by(path: Path, facts: WorkerFacts) -> Holding:
    try:
        seqs = tuple(parse_ranges(facts.received_seqs))
    except ValueError as e:
        raise StoreError(f"the manifest in {str(path)!r} cannot be used: worker {facts.id}: {e}") from e
    if not seqs:
        raise StoreError(
            f"the manifest in {str(path)!r} does not say which batches of worker {facts.id} the run has: "
            "leave it out, what is there of it cannot be told from its batches elsewhere"
        )
    return Holding(facts.received, seqs)


def _holds(held: Mapping[str, Holding], worker: str, seq: int) -> bool:
    return worker in held and any(seq in seqs for seqs in held[worker].seqs)


def _lateness(word: WorkerFacts) -> tuple[object, ...]:
    """Orders one worker's last words, of which there is one but for copies of a spool."""
    return (word.announced or 0, word.heard_ns or 0, repr(word))


def _whole_elsewhere(tear: Tear, held: Mapping[str, Holding]) -> bool:
    """It is of a worker's file of one frame, and that frame is here: nothing was lost by it."""
    path = tear.path
    return (
        path.suffix == FRAME_SUFFIX
        and path.stem.isdecimal()
        and _holds(held, path.parent.name, int(path.stem))
    )


def _torn(found: Found, tears: Sequence[Tear]) -> list[str]:
    """The manifest's words on these tears, and on those that finished runs had in files that are gone."""
    earlier = [
        text
        for path in found.finished
        for text in found.manifests[path].torn
        if not (path / file_of_tear(text)).exists()
    ]
    return sorted({*earlier, *(tear_text(tear, found.names[tear.path]) for tear in tears)})


def _batches(
    finished: Sequence[_Finished], frames: Sequence[FrameRef], bad: list[BadFrame]
) -> Iterator[RecordBatch]:
    """All batches by worker: what finished runs have of it, then its frames by number."""
    streams = [_by_worker(each, place) for place, each in enumerate(finished)]
    streams.append(((header.worker, len(finished)), batch) for header, batch in placed_batches(frames, bad))
    return (batch for _, batch in heapq.merge(*streams, key=itemgetter(0)))


def _by_worker(finished: _Finished, place: int) -> Iterator[tuple[tuple[str, int], RecordBatch]]:
    """A finished run's requests in parts of one worker; they are ordered by it."""
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
