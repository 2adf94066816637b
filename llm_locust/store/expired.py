"""What is left of a segment that was dropped: ``batches/<base>.expired``, its batches' numbers and totals.

It counts only while its batches are in no file of the run: it is written before the segment is removed, and a
crash between the two leaves both.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from llm_locust.core.manifest import Count, Nanoseconds
from llm_locust.core.replacing import replacing
from llm_locust.core.run_facts import DroppedFacts
from llm_locust.store.facts import Holding, added
from llm_locust.store.files import REQUESTS_FILE, StoreError, read_own_file
from llm_locust.store.frames import FrameHeader
from llm_locust.store.segments import SEGMENTS_DIR, segment_name
from llm_locust.store.seqs import parse_ranges
from llm_locust.wire.payload import DECODE_ERRORS

EXPIRED_SUFFIX = ".expired"

EXPIRED_SCHEMA = 1


class ExpiredBatches(msgspec.Struct, frozen=True):
    """One worker's batches of a segment: records, numbers as ranges, header of the last one."""

    rows: Count
    seqs: str
    newest: FrameHeader


class Expired(msgspec.Struct, frozen=True, kw_only=True):
    """A segment that was dropped.

    Attributes:
        base, size, sha256: place and content of the segment.
        to: folder that has a copy of it.
        workers: its batches, by worker.
        first_ns, until_ns: first schedule and last end of its requests, on the run's axis.
        totals: of its requests, for the report's figures since the start.
    """

    schema: int = EXPIRED_SCHEMA
    run: str
    base: Annotated[int, Meta(ge=0, lt=10**18)]
    size: Count
    sha256: str
    to: str
    workers: dict[str, ExpiredBatches]
    first_ns: Nanoseconds
    until_ns: Nanoseconds
    totals: bytes

    @property
    def end(self) -> int:
        """Place at which the segment ended."""
        return self.base + self.size

    @property
    def rows(self) -> int:
        """Number of its records."""
        return sum(each.rows for each in self.workers.values())

    def holdings(self) -> dict[str, Holding]:
        """Its batches as present data, by worker."""
        return {
            worker: Holding(each.rows, tuple(parse_ranges(each.seqs)), each.newest)
            for worker, each in self.workers.items()
        }


def decode_expired(path: Path) -> Expired:
    """Content of a file (raises StoreError or OSError if it cannot be read)."""
    try:
        found = msgspec.json.decode(read_own_file(path), type=Expired)
        if found.schema > EXPIRED_SCHEMA:
            raise StoreError(f"it has schema {found.schema}, this version reads up to {EXPIRED_SCHEMA}")
        found.holdings()
    except (*DECODE_ERRORS, ValueError) as e:
        raise StoreError(
            f"{str(path)!r} does not say what was dropped: {e}. The run's upload has it too: copy it back "
            "from there; or remove it, copy the upload back, and `llm-locust merge RUN COPY --out NEW`"
        ) from e
    return found


def read_expired(run: Path) -> list[Expired]:
    """What was dropped of the run in a directory, in order (raises StoreError or OSError).

    All of a run that has ended: its file of requests has been made without these. Before that, only where the
    segment itself is gone.
    """
    has_ended = (run / REQUESTS_FILE).exists()
    found = [decode_expired(path) for path in (run / SEGMENTS_DIR).glob(f"*{EXPIRED_SUFFIX}")]
    counts = [each for each in found if has_ended or not (run / segment_name(each.base)).exists()]
    return sorted(counts, key=lambda each: each.base)


def write_expired(run: Path, expired: Expired) -> None:
    """Write it so that it outlives a loss of power (raises OSError)."""
    path = (run / segment_name(expired.base)).with_suffix(EXPIRED_SUFFIX)
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(expired)))
        file.flush()
        os.fsync(file.fileno())
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make new and removed names in a directory outlive a loss of power (raises OSError)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_void(run: Path) -> None:
    """Remove what does not count in a run without a file of requests, because the segment is there."""
    for path in (run / SEGMENTS_DIR).glob(f"*{EXPIRED_SUFFIX}"):
        if path.with_suffix(".frames").exists():
            path.unlink()


def holdings_of(expired: Iterable[Expired]) -> dict[str, Holding]:
    """Their batches together, by worker."""
    return added(*(each.holdings() for each in expired))


def facts_together(some: Iterable[DroppedFacts | None]) -> DroppedFacts | None:
    """What was dropped in all of them; None if nothing was."""
    known = [each for each in some if each is not None]
    if not known:
        return None
    return DroppedFacts(
        records=sum(each.records for each in known),
        batches=sum(each.batches for each in known),
        until_ns=max(each.until_ns for each in known),
        to=", ".join(dict.fromkeys(each.to for each in known)),
    )


def dropped_facts(expired: Iterable[Expired]) -> DroppedFacts | None:
    """Facts for the manifest; None of nothing."""
    return facts_together(
        DroppedFacts(
            records=each.rows,
            batches=sum(sum(map(len, held.seqs)) for held in each.holdings().values()),
            until_ns=each.until_ns,
            to=each.to,
        )
        for each in expired
    )
