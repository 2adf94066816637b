"""Recovery of a finished run whose file of requests is damaged."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from llm_locust.core.batch import BatchError, RecordBatch
from llm_locust.core.manifest import Manifest
from llm_locust.store.expired import holdings_of, read_expired, write_expired
from llm_locust.store.facts import Holding
from llm_locust.store.files import REQUESTS_FILE, existing_file, read_manifest, write_manifest
from llm_locust.store.requests import StoredRequests, check_requests, open_requests, write_requests

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
    with path.open("rb") as plain, pq.ParquetFile(plain) as file:
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
