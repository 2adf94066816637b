"""Records of an earlier part that its workers still hold when the master is there again."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_locust.core.manifest import Manifest
from llm_locust.store import MANIFEST_FILE, WORKER_FILE, FrameLog, Spool, StoreError, read_manifest
from llm_locust.store.files import check_folder_name
from llm_locust.swarm.channel.messages import BatchMessage, CountsMessage, worker_facts
from llm_locust.swarm.delivery.collector import Collector
from llm_locust.swarm.process.event_loop import off_the_hub

logger = logging.getLogger(__name__)

#: Folder of an earlier part with what came after its master's death: frames, and workers' final facts.
LATE_DIR = "late"

#: Called with (run, worker, seq) when a batch is on disk.
Acknowledge = Callable[[str, str, int], None]


@dataclass(slots=True)
class _Part:
    path: Path
    manifest: Manifest
    collector: Collector | None = None


class EarlierParts:
    """Takes batches and final counts of parts whose master died, from the workers that those parts list.

    They are written next to the part's own files, where a merge, and the report of all parts, finds them.
    """

    def __init__(self, parts: Sequence[Path], acknowledge: Acknowledge) -> None:
        self._acknowledge = acknowledge
        self._parts: dict[str, _Part] = {}
        for path in parts:
            try:
                manifest = read_manifest(path)
            except StoreError as e:
                logger.warning("what is still held of an earlier part is not taken: %s", e)
                continue
            if manifest.ended_ns is None:
                self._parts[manifest.id] = _Part(path, manifest)

    @property
    def takes(self) -> list[str]:
        """Ids of the runs of these parts."""
        return list(self._parts)

    def knows(self, worker: str) -> bool:
        """Whether a worker took part in one of them."""
        return any(w.id == worker for part in self._parts.values() for w in part.manifest.workers)

    def accept(self, worker: str, batch: BatchMessage) -> bool:
        """Write a batch of an earlier part, then acknowledge it; return whether it belongs to one."""
        part = self._parts.get(batch.run)
        if part is None or not any(w.id == worker for w in part.manifest.workers):
            return False
        if part.collector is None:
            part.collector = self._collector(part)
        if part.collector is not None:
            part.collector.accept(worker, batch.seq, batch.rows, batch.frame)
        return True

    def done(self, worker: str, counts: CountsMessage) -> None:
        """Write a worker's final facts, so that it does not count as lost."""
        part = self._parts.get(counts.run)
        known = None if part is None else next((w for w in part.manifest.workers if w.id == worker), None)
        if part is None or known is None:
            return
        if part.collector is not None:
            part.collector.settle()
        try:
            place = part.path / LATE_DIR
            spool = Spool(place / check_folder_name(worker, "a worker's id"), place)
            off_the_hub(spool.write_facts, MANIFEST_FILE, part.manifest)
            off_the_hub(spool.write_facts, WORKER_FILE, worker_facts(worker, known.index, counts))
            logger.info("worker %s has delivered what it held of %s", worker, part.path.name)
        except (OSError, ValueError) as e:
            logger.error("the final counts of worker %s in %s are not kept: %s", worker, part.path.name, e)

    def close(self) -> None:
        """Close their files."""
        for part in self._parts.values():
            if part.collector is not None:
                try:
                    part.collector.close()
                except OSError as e:
                    logger.error("late records of %s: %s", part.path.name, e)

    def _collector(self, part: _Part) -> Collector | None:
        folder = part.path / LATE_DIR
        try:
            folder.mkdir(exist_ok=True)
            log = FrameLog(folder / f"{time.time_ns():020d}.frames")
        except OSError as e:  # they stay with the worker
            logger.error("late records of %s cannot be written: %s", part.path.name, e)
            return None
        run = part.manifest.id
        return Collector(log, lambda worker, seq: self._acknowledge(run, worker, seq))
