"""Merge of all that is left of a run: run directories, workers' spools, files of frames."""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

import numpy as np
import pyarrow as pa

from llm_locust.core.arrow import open_parquet
from llm_locust.core.batch import BatchError, RecordBatch
from llm_locust.core.manifest import WORKER_FACTS_DECODER, Manifest, WorkerFacts
from llm_locust.core.stages import staged
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
from llm_locust.store.files import (
    MANIFEST_FILE,
    REQUESTS_FILE,
    StoreError,
    create_run_dir,
    existing_file,
    holds_a_run,
    own_file,
    read_manifest,
    read_own_file,
    write_manifest,
)
from llm_locust.store.frame_log import (
    EXPIRED_SUFFIX,
    WORKER_FILE,
    Expired,
    decode_expired,
    dropped_facts,
    holdings_of,
    read_expired,
    write_expired,
)
from llm_locust.store.frames import (
    BadFrame,
    FrameHeader,
    FrameIndex,
    FrameRef,
    Tear,
    covers,
    index_frames,
    joined,
    minus,
    overlap,
    parse_ranges,
    placed_batches,
    unique_frames,
    without,
)
from llm_locust.store.requests import StoredRequests, check_requests, open_requests, write_requests
from llm_locust.wire.payload import DECODE_ERRORS

# --- Sources of a merge: frames, manifests, workers' final facts and finished runs, wherever they are


FRAME_SUFFIX = ".frame"  # of a file with one frame, named by its number
FRAMES_SUFFIX = ".frames"


@dataclass(frozen=True, slots=True)
class FoundSources:
    """Content of the sources, by the files' and directories' real paths.

    Attributes:
        names: of each file, relative to the source that it was found in.
        manifests, last_words: by the directory that they are in.
        finished: directories with the requests of a run and its manifest.
        expired: of each segment that was dropped what is left of it.
        unreadable: a line for each file that could not be used, and why.
    """

    names: Mapping[Path, str]
    frames: Sequence[FrameRef]
    tears: Sequence[Tear]
    manifests: Mapping[Path, Manifest]
    last_words: Mapping[Path, WorkerFacts]
    finished: Sequence[Path]
    expired: Sequence[Expired]
    unreadable: Sequence[str]

    @property
    def runs(self) -> list[str]:
        """Ids of all runs that anything was found of."""
        return sorted(self.runs_with_records | {m.id for m in self.manifests.values()})

    @property
    def runs_with_records(self) -> set[str]:
        """Ids of runs of which there is more than a manifest."""
        finished = {self.manifests[path].id for path in self.finished}
        return finished | {f.header.run for f in self.frames} | {each.run for each in self.expired}

    def of_run(self, run: str) -> "FoundSources":
        """Content that belongs to this run.

        A directory belongs to the run of its manifest, or else to those of its frames. Without either, its
        tears may belong to any run, and its workers' final facts to the only run that there is.
        """
        runs_of: dict[Path, set[str]] = {}
        for frame in self.frames:
            runs_of.setdefault(frame.path.parent, set()).add(frame.header.run)
        runs_of |= {path: {m.id} for path, m in self.manifests.items()}
        only = len(self.runs) == 1
        return FoundSources(
            self.names,
            [f for f in self.frames if f.header.run == run],
            [t for t in self.tears if run in runs_of.get(t.path.parent, {run})],
            {path: m for path, m in self.manifests.items() if m.id == run},
            {p: w for p, w in self.last_words.items() if run in runs_of.get(p, {run} if only else ())},
            [path for path in self.finished if self.manifests[path].id == run],
            [each for each in self.expired if each.run == run],
            self.unreadable,
        )


def find(sources: Iterable[Path]) -> FoundSources:
    """Search directories, recursively, and single files.

    Raises:
        StoreError: a source does not exist, is a file of another kind, or has a link to one below it.
        OSError: a file or directory cannot be read.
    """
    names = _names(sources)
    indices = [_index(path) for path in names if path.suffix in (FRAME_SUFFIX, FRAMES_SUFFIX)]
    finished = [path.parent for path in names if path.name == REQUESTS_FILE]
    unreadable: list[str] = []
    manifests: dict[Path, Manifest] = {}
    last_words: dict[Path, WorkerFacts] = {}
    for directory in sorted({*finished, *(path.parent for path in names if path.name == MANIFEST_FILE)}):
        try:
            manifests[directory] = read_manifest(directory)
        except StoreError as e:
            unreadable.append(str(e))
    expired: list[Expired] = []
    for path in names:
        if path.name == WORKER_FILE:
            try:
                last_words[path.parent] = WORKER_FACTS_DECODER.decode(read_own_file(path))
            except (*DECODE_ERRORS, StoreError) as e:
                unreadable.append(f"{str(path)!r} is not a worker's last word: {e}")
        elif path.suffix == EXPIRED_SUFFIX:
            try:
                expired.append(decode_expired(path))
            except StoreError as e:
                unreadable.append(str(e))
    unreadable += [
        f"{str(path / REQUESTS_FILE)!r} is left out: only its manifest could say which batches it has"
        for path in finished
        if path not in manifests
    ]
    return FoundSources(
        names,
        [frame for index in indices for frame in index.frames],
        [tear for index in indices for tear in index.tears],
        manifests,
        last_words,
        [path for path in finished if path in manifests],
        list({(each.run, each.base): each for each in expired}.values()),
        unreadable,
    )


def not_elsewhere(found: FoundSources, held: Mapping[str, Holding]) -> list[Expired]:
    """Dropped segments of which a batch is in no other source.

    Raises:
        StoreError: a finished run has some of the batches of one, and not all.
    """
    here = {worker: list(each.seqs) for worker, each in held.items()}
    for frame in found.frames:
        here.setdefault(frame.header.worker, []).append(range(frame.header.seq, frame.header.seq + 1))
    whole = {worker: joined(seqs) for worker, seqs in here.items()}
    gone = [
        each
        for each in sorted(found.expired, key=lambda each: each.base)
        if not all(covers(whole.get(w, ()), batches.seqs) for w, batches in each.holdings().items())
    ]
    for worker, batches in holdings_of(gone).items():
        if worker in held and overlap(held[worker].seqs, batches.seqs):
            raise StoreError(
                f"a finished run has a part of the batches of worker {worker} that were dropped (--keep): "
                "add the copy of what was dropped, or leave that run out"
            )
    return gone


def holds_frames(directory: Path) -> bool:
    """Whether there are files of frames in the directory or below it, or what is left of dropped ones."""
    kinds = (FRAME_SUFFIX, FRAMES_SUFFIX, EXPIRED_SUFFIX)
    return any(path.suffix in kinds for path in _files_below(directory))


def _names(sources: Iterable[Path]) -> dict[Path, str]:
    """Every relevant file, with its shortest name; in an order that does not depend on the sources'."""
    names: dict[Path, str] = {}
    for source in sources:
        root = source.resolve()
        if root.is_dir():
            below = {path: path.relative_to(root).as_posix() for path in _files_below(root) if _counts(path)}
            for path in below:
                if path.is_symlink():
                    own_file(path)  # says what to do
        elif not root.exists():
            raise StoreError(f"{str(source)!r} does not exist: name run directories, spools or frame files")
        elif _counts(root):
            below = {root: root.name}
        else:
            raise StoreError(
                f"{str(source)!r} is not a file of a run: name directories, or files such as "
                f"batches{FRAMES_SUFFIX}, 00000001{FRAME_SUFFIX} or {MANIFEST_FILE}"
            )
        for path, name in below.items():
            names[path] = min(names.get(path, name), name, key=lambda text: (len(text), text))
    return dict(sorted(names.items()))


def _counts(path: Path) -> bool:
    return path.suffix in (FRAME_SUFFIX, FRAMES_SUFFIX, EXPIRED_SUFFIX) or path.name in (
        MANIFEST_FILE,
        WORKER_FILE,
        REQUESTS_FILE,
    )


def _files_below(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_file())


def _index(path: Path) -> FrameIndex:
    index = index_frames(path)
    # A file of one frame without content: it does not show what it was made for.
    if path.suffix == FRAME_SUFFIX and not index.frames and not index.tears:
        return FrameIndex(tears=(Tear(path, 0, 0),))
    return index


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
    if not of_run.runs_with_records:
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


# --- Recovery of a finished run whose file of requests is damaged


#: Most row groups listed in the manifest.
_MOST_NAMED = 20


def is_damaged(run: Path) -> bool:
    """Whether a part of the requests cannot be read (raises StoreError if nothing of them can)."""
    return any(isinstance(part, str) for part in _parts(open_requests(run)))


def salvage(run: Path, out: Path) -> Manifest:
    """Make a run directory of the readable row groups of ``run``; return its manifest.

    Unreadable row groups are listed in :attr:`~llm_locust.core.manifest.Manifest.torn`, and their records are
    missing. ``run`` is not changed.

    Raises:
        StoreError: the file's index cannot be read, so that nothing of it can, or there is no manifest.
        OSError: ``out`` cannot be written.
    """
    stored = open_requests(run)
    manifest = read_manifest(run)
    out.mkdir(parents=True, exist_ok=True)
    lost: list[str] = []
    received: dict[str, int] = {}
    write_requests(out / REQUESTS_FILE, _good(stored, lost, received))
    expired = read_expired(run)
    for each in expired:
        write_expired(out, each)
    dropped = holdings_of(expired)
    workers = [
        replace(w, received=received.get(w.id, 0) + dropped.get(w.id, Holding()).rows)
        for w in manifest.workers
    ]
    named = lost[:_MOST_NAMED]
    if len(lost) > _MOST_NAMED:
        named.append(f"{REQUESTS_FILE}: {len(lost) - _MOST_NAMED} more row groups cannot be read")
    manifest = replace(manifest, workers=workers, torn=[*manifest.torn, *named])
    write_manifest(out, manifest)
    return manifest


def _good(stored: StoredRequests, lost: list[str], received: dict[str, int]) -> Iterator[RecordBatch]:
    for part in _parts(stored):
        if isinstance(part, str):
            lost.append(part)
            continue
        labels = part.labels("worker")
        for name, rows in zip(
            labels.names, np.bincount(labels.codes, minlength=len(labels.names)), strict=True
        ):
            received[name] = received.get(name, 0) + int(rows)
        yield part


def _parts(stored: StoredRequests) -> Iterator[RecordBatch | str]:
    """Each row group, or a line on why it cannot be read."""
    path = existing_file(stored.path.parent, REQUESTS_FILE)
    with path.open("rb") as plain, open_parquet(plain) as file:
        for number in range(file.num_row_groups):
            try:
                check_requests(plain, file.metadata.row_group(number))
                table = file.read_row_group(number)
                table.validate(full=True)
                yield RecordBatch.from_table(table)
            except (pa.ArrowException, BatchError, OSError, ValueError) as e:
                rows = file.metadata.row_group(number).num_rows
                reason = next(iter(str(e).splitlines()), type(e).__name__)[:200].replace(": ", ", ")
                yield f"{REQUESTS_FILE}: row group {number} of {rows} records cannot be read ({reason})"
