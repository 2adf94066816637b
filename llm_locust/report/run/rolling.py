"""``python -m llm_locust.report.run.rolling RUN``: the rolling summary of a run that goes on.

Each one reads only the frames that have come since the one before it, and those that may still have requests
of its span: a report of the latest span, exact, with the totals since the start (:mod:`.totals`). What it
keeps and what it writes meanwhile is in the run directory, and as large as one span.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import structs

from llm_locust.core.batch import RecordBatch
from llm_locust.core.files import replacing
from llm_locust.core.manifest import Manifest
from llm_locust.core.stages import staged
from llm_locust.figures.text import moment
from llm_locust.metrics.question import PLAIN
from llm_locust.metrics.window import iso
from llm_locust.report.inputs import Run, Source
from llm_locust.report.output import done_beside
from llm_locust.report.run.analysis import analyse, write_reports
from llm_locust.report.run.totals import (
    SO_FAR_DIR,
    FrameTotals,
    as_of_now,
    check_goes_on,
    counted,
    decode_totals,
    dropped_totals,
    encode_totals,
    span_after,
    until_ns_of,
)
from llm_locust.store import (
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
from llm_locust.store.facts import Holding
from llm_locust.store.frame_log import Expired, index_batches, read_expired
from llm_locust.store.frames import BadFrame, placed_batches

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
    return Source((Run(of_now, requests, run),), of_now, requests, merged=True, unreadable=()), until_ns


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


def main(argv: Sequence[str] | None = None) -> int:
    """Write one run's rolling summary; gives 0, or 1 with a line that says why there is none."""
    parser = argparse.ArgumentParser(
        prog="python -m llm_locust.report.run.rolling",
        description=f"Write summary and reports of a run that goes on into its directory {SO_FAR_DIR}.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    args = parser.parse_args(argv)
    return done_beside(lambda: write_so_far(args.run))


if __name__ == "__main__":
    sys.exit(main())
