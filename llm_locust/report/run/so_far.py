"""``llm-locust report RUN --so-far``: a report of a run that still goes on.

Files of frames are only ever appended to, so they can be read while they grow. What is judged ends early
enough that the requests before it have ended, all but the slowest thousandth: the ones still under way
have no record, and a window up to now would have too few of the slow ones.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from llm_locust.core.figures import quantity
from llm_locust.core.manifest import Manifest, StageFacts, WorkerFacts
from llm_locust.core.stages import staged
from llm_locust.metrics.sections.failures import iso
from llm_locust.metrics.stats.percentiles import ordered, percentile
from llm_locust.report.inputs.sources import Run, Source, open_source
from llm_locust.report.text import moment
from llm_locust.store import (
    FRAMES_FILE,
    REQUESTS_FILE,
    StoredRequests,
    StoreError,
    open_requests,
    read_manifest,
    unique_frames,
    write_requests,
)
from llm_locust.store.expired import dropped_facts, holdings_of, read_expired
from llm_locust.store.facts import Holding, added, bad_text, holdings
from llm_locust.store.frames import BadFrame, placed_batches, without
from llm_locust.store.segments import dropped_meanwhile, index_batches, segments_of

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
        of_run = Run(of_now, requests, run, tuple(expired))
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
    with TemporaryDirectory(prefix=".so-far-", dir=_room(run)) as place:
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


def _room(run: Path) -> Path | None:
    """A directory on the volume of the run, where this user may write; None for the system's."""
    return run.parent if os.access(run.parent, os.W_OK) else None


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
    known = {worker.id: worker for worker in manifest.workers}
    for worker in sorted(held.keys() - known.keys()):
        known[worker] = WorkerFacts(
            id=worker, index=len(known), announced=None, received=0, heard_ns=newest_ns
        )
    return replace(
        manifest,
        name=f"{manifest.name}, so far: until {moment(iso(until_ns))}",
        stopped_ns=until_ns,
        ended_ns=None,
        workers=[_worker(w, held.get(w.id, Holding()), newest_ns - _SILENT_NS) for w in known.values()],
    )


def _worker(facts: WorkerFacts, held: Holding, silent_before_ns: int) -> WorkerFacts:
    batches = sum(map(len, held.seqs))
    if not facts.left and (facts.heard_ns or 0) < silent_before_ns:
        return replace(facts, received=held.rows, batches=batches)
    return replace(facts, announced=held.rows, received=held.rows, batches=batches, in_flight=0, lost=False)
