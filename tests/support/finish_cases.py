"""Run directories as a master leaves them when the last record is in: manifest and frames."""

from pathlib import Path
from typing import Any

from report_cases import manifest, records

from llm_locust.core.batch import RecordBatch
from llm_locust.core.record import RequestRecord
from llm_locust.store import FRAMES_FILE, FrameHeader, FrameLog, encode_frame, write_manifest


def write_frames(run: Path, made: list[RequestRecord] | None = None, times: int = 1, **facts: Any) -> Path:
    """A run of ``made`` (:func:`report_cases.records` without it) in four batches, sent ``times`` over."""
    rows = records() if made is None else made
    size = -(-len(rows) // 4)
    batches = [RecordBatch.from_records(rows[i : i + size], "w1") for i in range(0, len(rows), size)]
    payloads = [(len(batch), batch.to_bytes()) for batch in batches]
    run.mkdir(parents=True, exist_ok=True)
    log = FrameLog(run / FRAMES_FILE)
    for seq, (n, payload) in enumerate(payloads * times):
        log.append(encode_frame(FrameHeader("20261121-first", "w1", seq, n), payload))
    log.close()
    write_manifest(run, manifest(len(rows) * times, **facts))
    return run
