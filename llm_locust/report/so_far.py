"""A run that still goes on: a report of it so far, its rolling summary, and what its stages show.

Files of frames are only ever appended to, so they can be read while they grow. What is judged ends early
enough that the requests before it have ended, all but the slowest thousandth: the ones still under way
have no record, and a window up to now would have too few of the slow ones.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
from msgspec import structs

from llm_locust.core.batch import RecordBatch
from llm_locust.core.files import replacing
from llm_locust.core.manifest import Manifest, StageFacts, WorkerFacts
from llm_locust.core.stages import records_missing, staged
from llm_locust.core.texts import quantity
from llm_locust.figures.objective import Probe, parse_objective, stage_probe
from llm_locust.figures.stages import Stage, stages, touching
from llm_locust.figures.text import moment
from llm_locust.metrics.measured import measure
from llm_locust.metrics.question import PLAIN
from llm_locust.metrics.stage_course import FigureEstimate, is_enough, look_at, parse_until
from llm_locust.metrics.stats.censoring import ordered, percentile
from llm_locust.metrics.window import Window, iso
from llm_locust.report.analysis import analyse, write_reports
from llm_locust.report.dropping import (
    FrameTotals,
    counted,
    decode_totals,
    dropped_totals,
    encode_totals,
    span_after,
)
from llm_locust.report.inputs import Source, StoredRun, open_source, writable
from llm_locust.report.output import one_line
from llm_locust.store import (
    FRAMES_FILE,
    REQUESTS_FILE,
    FrameRef,
    StoredRequests,
    StoreError,
    create_run_dir,
    open_requests,
    read_manifest,
    unique_frames,
    write_requests,
)
from llm_locust.store.facts import Holding, added, bad_text, holdings
from llm_locust.store.frame_log import (
    Expired,
    dropped_facts,
    dropped_meanwhile,
    holdings_of,
    index_batches,
    read_expired,
    segments_of,
)
from llm_locust.store.frames import BadFrame, placed_batches, without

#: Where the rolling summaries of a run are, in its directory.
SO_FAR_DIR = "so-far"

#: Such a share of the requests (in per cent) takes no longer than the time that is left out at the end.
_ENDED_PERCENT = 99.9

#: A worker that was heard so much longer ago than another one is lost, as far as is known now.
_SILENT_NS = 20_000_000_000


@contextmanager
def open_so_far(run: Path) -> Iterator[Source]:
    """The requests of a run directory as far as they have come, while the context lasts.

    A run that has ended is itself. Nothing is written into the directory.

    Raises:
        StoreError: no run, or one of which no request has ended long enough ago.
        BatchError, OSError: what is there cannot be read.
    """
    if (run / REQUESTS_FILE).exists():
        with open_source([run]) as source:
            yield source
        return
    manifest = read_manifest(run)
    expired = read_expired(run)
    manifest = replace(manifest, dropped=dropped_facts(expired))
    with _received(run, manifest) as (requests, held, bad):
        held = added(held, holdings_of(expired))
        until_ns = until_ns_of(requests, manifest)
        torn = [bad_text(each, each.frame.path.relative_to(run).as_posix()) for each in bad]
        of_now = replace(as_of_now(manifest, held, until_ns), torn=torn)
        unreadable = tuple(each.why for each in bad)
        of_run = StoredRun(of_now, requests, run, tuple(expired))
        yield Source((of_run,), of_now, requests, merged=True, unreadable=unreadable)


@contextmanager
def open_stages(run: Path, stages: list[StageFacts]) -> Iterator[tuple[Manifest, StoredRequests]]:
    """Manifest and requests of a run that goes on, or of its earlier part, while the context lasts.

    Args:
        stages: those of the run until now; its manifest may have older facts of them.

    Raises:
        StoreError: no run, or one of which no request has been recorded.
        BatchError, OSError: what is there cannot be read.
    """
    manifest = replace(read_manifest(run), stages=stages)
    if (run / REQUESTS_FILE).exists():  # an earlier part of a search, which was ended in order
        yield manifest, open_requests(run)
        return
    with _received(run, manifest) as (requests, held, _):
        until_ns = max(stage.drained_ns or stage.ended_ns or stage.begun_ns for stage in stages)
        yield as_of_now(manifest, held, until_ns), requests


@contextmanager
def _received(
    run: Path, manifest: Manifest
) -> Iterator[tuple[StoredRequests, Mapping[str, Holding], list[BadFrame]]]:
    """The requests of a run as far as they have come, what each worker sent, and the frames that cannot be
    read."""
    check_goes_on(run)
    with TemporaryDirectory(prefix=".so-far-", dir=writable(run.parent)) as place:
        frames = unique_frames(index_batches(run).frames)
        bad: list[BadFrame] = []
        batches = (batch for _, batch in placed_batches(frames, bad))
        try:
            rows = write_requests(Path(place) / REQUESTS_FILE, staged(batches, manifest))
        except FileNotFoundError as e:
            raise dropped_meanwhile(run) from e
        if not rows:
            raise StoreError(f"of {str(run)!r} no request has been recorded yet: ask again in a few seconds")
        held = holdings(frame.header for frame in without(frames, bad))
        yield open_requests(Path(place)), held, bad


def check_goes_on(run: Path) -> None:
    """Check that a run has files of frames (raises StoreError)."""
    if not segments_of(run):
        raise StoreError(
            f"{str(run)!r} holds neither {FRAMES_FILE} nor {REQUESTS_FILE}: is it a run directory?"
        )


def until_ns_of(requests: StoredRequests, manifest: Manifest) -> int:
    """The end of what can be judged, on the run's axis."""
    parts = list(requests.parts(["scheduled_ns", "ended_ns"]))
    scheduled_ns = np.concatenate([part.ints("scheduled_ns") for part in parts])
    ended_ns = np.concatenate([part.ints("ended_ns") for part in parts])
    took_s = percentile(ordered((ended_ns - scheduled_ns) * 1e-9), _ENDED_PERCENT)
    until_ns = int(ended_ns.max()) - round(took_s * 1e9)
    if until_ns <= max(int(scheduled_ns.min()) + round(manifest.warmup_s * 1e9), manifest.kept_from_ns or 0):
        raise StoreError(
            f"{manifest.name!r} has not run long enough: its requests take up to {quantity(took_s)} s, and "
            "only what was asked for that long before the last end, and after the warm-up, can be judged"
        )
    return until_ns


def as_of_now(manifest: Manifest, held: Mapping[str, Holding], until_ns: int) -> Manifest:
    """The manifest of a run that goes on: what has not come yet is not lost, but for silent workers'."""
    newest_ns = max((worker.heard_ns or 0 for worker in manifest.workers), default=0)
    by_id = {worker.id: worker for worker in manifest.workers}
    for worker in sorted(held.keys() - by_id.keys()):
        by_id[worker] = WorkerFacts(
            id=worker, index=len(by_id), announced=None, received=0, heard_ns=newest_ns
        )
    return replace(
        manifest,
        name=f"{manifest.name}, so far: until {moment(iso(until_ns))}",
        stopped_ns=until_ns,
        ended_ns=None,
        workers=[_worker(w, held.get(w.id, Holding()), newest_ns - _SILENT_NS) for w in by_id.values()],
    )


def _worker(facts: WorkerFacts, held: Holding, silent_before_ns: int) -> WorkerFacts:
    batches = sum(map(len, held.seqs))
    if not facts.left and (facts.heard_ns or 0) < silent_before_ns:
        return replace(facts, received=held.rows, batches=batches)
    return replace(facts, announced=held.rows, received=held.rows, batches=batches, in_flight=0, lost=False)


# --------------------
# The rolling summary of a run that goes on.
#
# Each one reads only the frames that have come since the one before it, and those that may still have
# requests of its span: a report of the latest span, exact, with the totals since the start (:mod:`.totals`).
# What it keeps and what it writes meanwhile is in the run directory, and as large as one span.
# --------------------


#: In ``so-far``: what the next rolling summary goes on from.
STATE_FILE = "state.msgpack"


def write_so_far(run: Path) -> Path:
    """Write summary and reports of a run's latest span; return their directory.

    A reading that was interrupted is repeated by the next one: the state is written last.

    Raises:
        StoreError: no run, or one of which no request has ended long enough ago.
        BatchError, ValueError, OSError: it cannot be read or written.
    """
    manifest = read_manifest(run)
    out = create_run_dir(run / SO_FAR_DIR)
    check_goes_on(run)
    totals = _after_dropped(_read_totals(out / STATE_FILE, manifest.id), read_expired(run))
    frames = index_batches(run, totals.span_bytes).frames
    now = counted(totals, frames, manifest)
    with TemporaryDirectory(prefix=".span-", dir=out) as place:
        source, until_ns = _span(run, Path(place), frames, totals, manifest)
        found = analyse(source, PLAIN)
        summary = structs.replace(
            found.summary,
            run=structs.replace(found.summary.run, so_far=True),
            since_start=now.since_start(judged=bool(manifest.slo or manifest.class_slos)),
        )
        write_reports(out, replace(found, summary=summary), None)
    with replacing(out / STATE_FILE) as file:
        file.write(encode_totals(span_after(now, frames, until_ns)))
    return out


def _read_totals(path: Path, run: str) -> FrameTotals:
    try:
        return decode_totals(path.read_bytes(), run)
    except FileNotFoundError:
        return FrameTotals(run=run)


def _after_dropped(totals: FrameTotals, expired: Sequence[Expired]) -> FrameTotals:
    """The totals to go on from: those of the dropped frames where these do not have all of them. The next
    span begins after what was dropped."""
    gone = dropped_totals(totals.run, expired)
    if totals.read_bytes < gone.read_bytes:
        return gone
    if totals.span_bytes < gone.span_bytes:
        span_ns = max(filter(None, (totals.span_ns, gone.span_ns)), default=None)
        return structs.replace(totals, span_bytes=gone.span_bytes, span_ns=span_ns)
    return totals


def _span(
    run: Path, place: Path, frames: Sequence[FrameRef], totals: FrameTotals, manifest: Manifest
) -> tuple[Source, int]:
    """The requests of the latest span, and its end."""
    rows: Counter[str] = Counter()
    written = write_requests(place / REQUESTS_FILE, staged(_batches(frames, totals.span_ns, rows), manifest))
    if not written:
        when = "yet" if totals.span_ns is None else "since the last rolling summary"
        raise StoreError(f"of {str(run)!r} no request has been recorded {when}")
    requests = open_requests(place)
    of_span = manifest if totals.span_ns is None else _from(manifest, requests, totals.span_ns)
    until_ns = until_ns_of(requests, of_span)
    of_now = as_of_now(of_span, {worker: Holding(n) for worker, n in rows.items()}, until_ns)
    if totals.span_ns is not None:
        name = f"{manifest.name}, latest span: {moment(iso(totals.span_ns))} to {moment(iso(until_ns))}"
        of_now = replace(of_now, name=name)
    return Source((StoredRun(of_now, requests, run),), of_now, requests, merged=True, unreadable=()), until_ns


def _from(manifest: Manifest, requests: StoredRequests, span_ns: int) -> Manifest:
    """The manifest of a span. Its warm-up ends where the span begins, and has what was in flight there: such
    requests deliver tokens in the span, and are none of its population."""
    parts = requests.parts(["scheduled_ns"])
    first_ns = min(int(part.ints("scheduled_ns").min()) for part in parts if len(part))
    begin_ns = max(span_ns, manifest.started_ns + round(manifest.warmup_s * 1e9))
    return replace(manifest, started_ns=first_ns, warmup_s=max(0.0, (begin_ns - first_ns) * 1e-9))


def _batches(frames: Sequence[FrameRef], from_ns: int | None, rows: Counter[str]) -> Iterator[RecordBatch]:
    """Requests that ended at ``from_ns`` or later; their number by worker is added to ``rows``."""
    bad: list[BadFrame] = []
    for header, batch in placed_batches(unique_frames(frames), bad):
        found = batch if from_ns is None else batch.filter(batch.ints("ended_ns") >= from_ns)
        rows[header.worker] += len(found)
        if len(found):
            yield found


# --- What stages of a run that goes on show: read apart from the process that drives them


class StageQuestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is asked of a run with these stages, as far as they are known.

    ``find`` and ``until`` (as the options) are about the last one; ``figures`` are numbers of stages. Those
    in ``undrained`` have ended without a drain: they are left out until nearly all their requests have ended.
    """

    stages: list[StageFacts]
    find: str = ""
    until: str = ""
    figures: list[int] = []
    undrained: list[int] = []


class StageAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The command's one line of JSON: what was asked for, or why it cannot be read.

    ``probe`` answers ``find``; ``is_enough`` and ``half``, of a figure's interval, ``until``. ``figures`` are
    as in the ``stages`` of a summary.
    """

    probe: Probe | None = None
    is_enough: bool = False
    half: float | None = None
    figures: list[Stage] = []
    error: str | None = None


def answer_of(run: Path, question: StageQuestion) -> StageAnswer:
    """The answer, from the records that have come.

    Raises:
        ValueError: the run or the question cannot be read, or has no record of the stage yet (StoreError,
            BatchError, ObjectiveError, ...).
        OSError: a file cannot be read.
    """
    with open_stages(run, question.stages) as (manifest, requests):
        probe, look, enough, last = None, None, False, question.stages[-1]
        if question.find:
            missing = _missing(requests, last)
            probe = (
                Probe(last.asked, no_result=f"{missing:,} records of it and of earlier stages are missing")
                if missing
                else stage_probe(requests, manifest, PLAIN, parse_objective(question.find), last)
            )
        if question.until:
            look, enough = _look(requests, manifest, question.until)
        early = {
            stage.number
            for stage in question.stages
            if stage.number in question.undrained and not _has_ended(requests, stage, manifest)
        }
        wanted = frozenset(question.figures) - early
        found = stages(requests, manifest, PLAIN, len(requests), wanted) if wanted else []
        return StageAnswer(probe, enough, None if look is None else look.half, found)


def _missing(requests: StoredRequests, stage: StageFacts) -> int:
    """Records that the workers had when a stage had drained, and that are not here; 0 where it is unknown.

    What a master that was killed had not yet received is in the spools, and in no other count.
    """
    return 0 if stage.drained_ns is None else records_missing(requests, stage.made, stage.drained_ns)


def _look(requests: StoredRequests, manifest: Manifest, text: str) -> tuple[FigureEstimate, bool]:
    """The figure of the last stage as far as its requests have ended, and whether it is narrow enough."""
    until, stage = parse_until(text), manifest.stages[-1]
    until_ns = _until_ns(requests, stage, manifest)
    if stage.measured_ns is None or until_ns <= stage.measured_ns:
        raise ValueError("no request of its measured part has ended long enough ago")
    window = Window(stage.measured_ns, until_ns, "measured part of the stage, so far")
    m = measure(touching(requests, window), manifest, replace(PLAIN, window=window))
    found = look_at(m, until)
    return found, is_enough(found, until)


def _has_ended(requests: StoredRequests, stage: StageFacts, manifest: Manifest) -> bool:
    """Whether nearly all requests of a stage that has no drain have ended."""
    try:
        return stage.ended_ns is not None and _until_ns(requests, stage, manifest) >= stage.ended_ns
    except StoreError:
        return False


def _until_ns(requests: StoredRequests, stage: StageFacts, manifest: Manifest) -> int:
    """The time up to which nearly all requests have ended, and their records are here from every worker.

    Raises:
        StoreError: a worker that takes part has no record of the stage yet. Its share of the load may be the
            slow one.
    """
    ends: dict[str, int] = {}
    took_ns = []
    for part in requests.parts(["scheduled_ns", "ended_ns", "worker"]):
        scheduled_ns, ended_ns = part.ints("scheduled_ns"), part.ints("ended_ns")
        theirs = scheduled_ns >= stage.begun_ns
        labels = part.labels("worker")
        took_ns.append((ended_ns - scheduled_ns)[theirs])
        for code, name in enumerate(labels.names):
            of_worker = ended_ns[theirs & (labels.codes == code)]
            if len(of_worker):
                ends[name] = max(ends.get(name, 0), int(of_worker.max()))
    if not ends:
        raise StoreError("no request of the stage has been recorded yet")
    workers = [worker.id for worker in manifest.workers if not worker.left]
    silent = sorted(set(workers) - ends.keys())
    idle = max(0, len(workers) - round(stage.asked)) if stage.kind == "users" else 0  # those without a user
    if len(silent) > idle:
        raise StoreError(f"no request of the stage has been recorded by {one_line(', '.join(silent))} yet")
    took = percentile(ordered(np.concatenate(took_ns).astype(np.float64)), _ENDED_PERCENT)
    return min(ends.values()) - round(took)
