"""A run directory as the master has it while the run goes on."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from metrics_cases import manifest, ns

from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import WorkerFacts
from llm_locust.core.record import RequestRecord
from llm_locust.store import FRAMES_FILE, FrameHeader, FrameLog, encode_frame, write_manifest

Batch = tuple[str, list[RequestRecord]]


@contextmanager
def going_on(run: Path, batches: Sequence[Batch], **facts: object) -> Iterator[FrameLog]:
    """A run directory as the master has it while the run goes on; each worker's batches are numbered."""
    run.mkdir(exist_ok=True)
    workers = [
        WorkerFacts(id=name, index=i, announced=999, received=0, in_flight=3, lost=True, heard_ns=ns(60.0))
        for i, name in enumerate(dict.fromkeys(worker for worker, _ in batches))
    ]
    known: dict[str, object] = {"workers": workers, "slo": "ttft=1s", "name": "soak"}
    write_manifest(run, manifest(None, **{**known, **facts}))
    log = FrameLog(run / FRAMES_FILE)
    seqs: dict[str, int] = {}
    for worker, records in batches:
        seq = seqs[worker] = seqs.get(worker, -1) + 1
        log.append(frame(worker, seq, records))
    try:
        yield log
    finally:
        log.close()


def frame(worker: str, seq: int, records: Sequence[RequestRecord]) -> bytes:
    batch = RecordBatch.from_records(list(records), worker)
    return encode_frame(FrameHeader("run", worker, seq, len(records)), batch.to_bytes())
