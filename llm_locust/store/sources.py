"""Sources of a merge: frames, manifests, workers' final facts and finished runs, wherever they are."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from llm_locust.core.manifest import Manifest, WorkerFacts
from llm_locust.store.expired import EXPIRED_SUFFIX, Expired, decode_expired, holdings_of
from llm_locust.store.facts import Holding
from llm_locust.store.files import (
    MANIFEST_FILE,
    REQUESTS_FILE,
    StoreError,
    own_file,
    read_manifest,
    read_own_file,
)
from llm_locust.store.frames import FrameIndex, FrameRef, Tear, index_frames
from llm_locust.store.seqs import covers, joined, overlap
from llm_locust.store.spool import WORKER_FILE
from llm_locust.wire.payload import DECODE_ERRORS

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
        runs = {f.header.run for f in self.frames} | {each.run for each in self.expired}
        return sorted(runs | {m.id for m in self.manifests.values()})

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
                last_words[path.parent] = msgspec.json.decode(read_own_file(path), type=WorkerFacts)
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
