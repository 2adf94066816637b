"""Manifests of a run in parts: of several processes, and of each start of its master."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import msgspec

from llm_locust.core.manifest import Manifest, NodeHealth, WorkerFacts
from llm_locust.store.files import MANIFEST_FILE, StoreError, holds_a_run, read_manifest
from llm_locust.store.frames import BadFrame, FrameHeader, Tear, joined, ranges_text, seq_ranges
from llm_locust.wire.foreign_text import clean_name

# --- Manifest of a run whose facts were written by several processes


@dataclass(frozen=True, slots=True)
class Holding:
    """Present data of one worker: records, batch numbers as ranges, the last batch's header if any."""

    rows: int = 0
    seqs: tuple[range, ...] = ()
    newest: FrameHeader | None = None

    def __add__(self, other: "Holding") -> "Holding":
        """Sum of two without a common batch."""
        headers = [h.newest for h in (self, other) if h.newest is not None]
        return Holding(
            self.rows + other.rows,
            tuple(joined([*self.seqs, *other.seqs])),
            max(headers, key=_progress, default=None),
        )


def holdings(headers: Iterable[FrameHeader]) -> dict[str, Holding]:
    """Content of frames, by worker.

    Args:
        headers: each (worker, seq) once, those of one worker consecutively.
    """
    held = {}
    for worker, group in groupby(headers, key=lambda header: header.worker):
        each = list(group)
        seqs = tuple(seq_ranges(header.seq for header in each))
        held[worker] = Holding(sum(header.rows for header in each), seqs, max(each, key=_progress))
    return held


def added(*some: Mapping[str, Holding]) -> dict[str, Holding]:
    """Sums by worker of data without a common batch."""
    held: dict[str, Holding] = {}
    for each in some:
        for worker, holding in each.items():
            held[worker] = held.get(worker, Holding()) + holding
    return held


def by_knowledge(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Manifests of one run, the most complete first, independent of the order given.

    A manifest is written at the run's start, repeatedly during it, and at its end. So the order is: one that
    has the end, then one that has the stop, then the one with most workers, then the one with the latest
    report of a worker.
    """
    return sorted(manifests, key=_knowledge, reverse=True)


def _knowledge(m: Manifest) -> tuple[object, ...]:
    heard_ns = max((w.heard_ns or 0 for w in m.workers), default=0)
    # The text decides between equals, so that the order does not depend on how they were found.
    return (
        m.ended_ns is not None,
        m.stopped_ns is not None,
        len(m.workers),
        heard_ns,
        m.records_announced,
        msgspec.json.encode(m),
    )


def account(
    manifests: Sequence[Manifest], last_words: Mapping[str, WorkerFacts], held: Mapping[str, Holding]
) -> Manifest:
    """Manifest of a run of which this data is present.

    It is the most complete manifest, with its workers' facts computed again: see :func:`_account`. A worker
    that no manifest lists has the index in its own facts, or else the next free one.

    Args:
        manifests: ordered by :func:`by_knowledge`, at least one.
        last_words: each worker's own facts, written when it ended.
        held: present data of each worker.
    """
    reports: dict[str, list[_ReportedFacts]] = {}
    for manifest in manifests:
        for facts in manifest.workers:
            final = facts.left or (manifest.ended_ns is not None and not facts.lost)
            reports.setdefault(facts.id, []).append(_ReportedFacts(facts, final))
    for worker in sorted((last_words.keys() | held.keys()) - reports.keys()):
        taken = {each[0].facts.index for each in reports.values()}
        facts = last_words.get(worker) or WorkerFacts(id=worker, index=-1, announced=None, received=0)
        if facts.index < 0 or facts.index in taken:
            facts = replace(facts, index=1 + max(taken, default=-1))
        reports[worker] = [_ReportedFacts(facts, final=False)]
    workers = [
        _account(each, last_words.get(worker), held.get(worker, Holding()))
        for worker, each in reports.items()
    ]
    stopped_ns = next((m.stopped_ns for m in manifests if m.stopped_ns is not None), None)
    return replace(
        manifests[0], stopped_ns=stopped_ns, workers=sorted(workers, key=lambda w: (w.index, w.id))
    )


@dataclass(frozen=True, slots=True)
class _ReportedFacts:
    """A manifest's facts of a worker, and whether they date from after the worker's final counts."""

    facts: WorkerFacts
    final: bool


def _account(reports: Sequence[_ReportedFacts], word: WorkerFacts | None, held: Holding) -> WorkerFacts:
    """Facts of one worker.

    Announced is the largest known count, and ``in_flight`` the one reported with it; between equal counts the
    worker's own facts are used, then the most complete manifest's. Received is what is present. Without final
    counts the worker is lost. Everything else is from the most complete manifest, or from the worker itself
    if that manifest was written before its end.
    """
    newest = reports[0].facts
    if word is not None and not reports[0].final:
        newest = replace(
            newest,
            dropped=max(newest.dropped, word.dropped),
            unsent=word.unsent,
            unsent_warmup=word.unsent_warmup,
            unsent_by_class=word.unsent_by_class,
            in_flight_ns=newest.in_flight_ns if word.in_flight_ns is None else word.in_flight_ns,
            heard_ns=max(filter(None, (newest.heard_ns, word.heard_ns)), default=None),
            clock=word.clock or newest.clock,
            health=newest.health if word.health == NodeHealth() else word.health,
            others=word.others or newest.others,
            replica_headers=word.replica_headers or newest.replica_headers,
        )
    counts = [(facts.announced, facts.in_flight) for facts in (word, *(t.facts for t in reports)) if facts]
    if held.newest is not None:
        counts.append((held.newest.finished, held.newest.in_flight or 0))
    announced, in_flight = max(counts, key=lambda each: -1 if each[0] is None else each[0])
    return replace(
        newest,
        announced=announced,
        in_flight=in_flight,
        received=held.rows,
        batches=sum(map(len, held.seqs)),
        received_seqs=ranges_text(held.seqs),
        lost=(word is None or word.lost) and not any(t.final for t in reports),
    )


def _progress(header: FrameHeader) -> tuple[int, int]:
    return (-1 if header.finished is None else header.finished, header.seq)


def all_here(manifest: Manifest) -> bool:
    """Whether every worker sent its final counts, and all records that it announced are present.

    Invalid bytes do not count: nothing that belongs to the run can be in them.
    """
    announced = all(worker.announced is not None for worker in manifest.workers)
    return announced and replace(manifest, torn=[]).complete


def tear_text(tear: Tear, name: str) -> str:
    """Line of :attr:`~llm_locust.core.manifest.Manifest.torn`."""
    return f"{name}: bytes {tear.start} to {tear.end} are not a frame" if tear.end else f"{name}: is empty"


def bad_text(bad: BadFrame, name: str) -> str:
    """Line of :attr:`~llm_locust.core.manifest.Manifest.torn` on a frame without a valid batch."""
    frame = bad.frame
    whose = clean_name(frame.header.worker).replace(":", " ")
    return (
        f"{name}: bytes {frame.offset} to {frame.offset + frame.length} hold no batch that can be read, "
        f"number {frame.header.seq} of worker {whose} with {frame.header.rows} records"
    )


def file_of_tear(text: str) -> Path:
    """File named in a line of ``torn``."""
    return Path(text.rpartition(": ")[0])


# --- Parts of a restartable run: one run directory for each start of its master, ``part-1``, ``part-2``,


#: Of workers on the master's machine, in a run directory.
SPOOL_DIR = "spool"

_PART = re.compile(r"part-([1-9]\d{0,5})")


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a restartable run has come.

    Attributes:
        parts: run directories so far, in order.
        begun_ns: start of the first part, by its own clock; None without one.
        over: why no further part follows; empty if one does.
    """

    parts: tuple[Path, ...] = ()
    begun_ns: int | None = None
    over: str = ""

    def left_s(self, run_time_s: float, now_ns: int) -> float:
        """Rest of the whole run's time; 0 if it is over."""
        gone_s = 0.0 if self.begun_ns is None else (now_ns - self.begun_ns) * 1e-9
        return max(0.0, run_time_s - max(0.0, gone_s))


def parts_of(folder: Path) -> list[Path]:
    """The run directories of a restartable run that have a manifest, in order."""
    return [path for path in _numbered(folder) if (path / MANIFEST_FILE).is_file()]


def next_part(folder: Path) -> Path:
    """Directory of the next part: its number is one above the largest, whatever that one holds."""
    return folder / f"part-{max(map(_number, _numbered(folder)), default=0) + 1}"


def course_of(folder: Path) -> RunProgress:
    """How far the run in a directory has come.

    Raises:
        StoreError: the directory holds a run that is not one of parts, or a manifest cannot be read.
    """
    if holds_a_run(folder):
        raise StoreError(f"{str(folder)!r} holds a run that was not restartable: name another directory")
    parts = parts_of(folder)
    if not parts:
        return RunProgress()
    first, last = read_manifest(parts[0]), read_manifest(parts[-1])
    return RunProgress(tuple(parts), first.started_ns, "" if goes_on(last) else "its load was ended in order")


def adopt(folder: Path) -> None:
    """Make the run in a directory the first part of itself (raises OSError).

    The manifest is moved last: until then it can be done again. Spools stay where their workers write.
    """
    part = folder / "part-1"
    part.mkdir(exist_ok=True)
    for path in sorted(folder.iterdir(), key=lambda path: path.name == MANIFEST_FILE):
        if path.name != SPOOL_DIR and not _PART.fullmatch(path.name):
            path.rename(part / path.name)


def goes_on(manifest: Manifest) -> bool:
    """Whether a part was ended by something else than its own end: its master died, or was told to end."""
    return manifest.stopped_ns is None or (manifest.cut_short and not manifest.ended_in_order)


def _numbered(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("part-*") if _PART.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=_number)


def _number(path: Path) -> int:
    match = _PART.fullmatch(path.name)
    return int(match[1]) if match else 0
