"""Whether an upload may take the place of what is at its destination: only if the directory has all of its
batches. An older copy of a run directory has not, nor one without what ``--keep`` left of dropped segments.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import msgspec

from llm_locust.core.manifest import Manifest
from llm_locust.store.expired import EXPIRED_SUFFIX, Expired, read_expired
from llm_locust.store.files import MANIFEST_FILE, REQUESTS_FILE, read_manifest
from llm_locust.store.segments import base_of, segments_of
from llm_locust.store.seqs import covers, joined, parse_ranges
from llm_locust.store.sources import FRAMES_SUFFIX
from llm_locust.store.upload.destination import Destination, UploadError
from llm_locust.store.upload.files import Stored
from llm_locust.wire.payload import DECODE_ERRORS

Batches = Mapping[str, Sequence[range]]


@dataclass(frozen=True, slots=True)
class Change:
    """What an upload is about to do.

    Attributes:
        index: files that an earlier upload sent.
        removed: those of them that are no longer in the run directory.
    """

    run: Path
    to: Destination
    index: Mapping[str, Stored]
    removed: Iterable[str]

    def check(self) -> None:
        """Check that no batch is lost by it.

        Raises:
            UploadError: one would be; the text says what to do.
            OSError: the destination, or the run directory, cannot be read.
        """
        here = _received(read_manifest(self.run))
        there = [found for found in (_manifest_at(self.to), *self._expired_there()) if found]
        for batches in there:
            if any(not covers(here.get(worker, []), seqs) for worker, seqs in batches.items()):
                raise self._refusal("batches of this run that are not in")
        if not self._is_whole() or any(not self._covers(name) for name in self.removed):
            raise self._refusal("records that are no longer, or not yet, in")

    def _refusal(self, what: str) -> UploadError:
        run, to = quote(str(self.run)), quote(self.to.text)
        return UploadError(
            f"{self.to.text!r} has {what} {str(self.run)!r}, which may be an older or an incomplete copy: "
            "nothing was sent or removed. Upload the run's own directory; where that is gone, "
            f"copy {to} back, `llm-locust merge {run} COPY --out NEW`, and upload NEW"
        )

    def _expired_there(self) -> Iterable[Batches]:
        """Batches of dropped segments by the files that only the destination has."""
        names = (name for name in self.removed if name.endswith(EXPIRED_SUFFIX))
        for name in names:
            try:
                found = msgspec.json.decode(self.to.read(name) or b"", type=Expired)
                yield {worker: held.seqs for worker, held in found.holdings().items()}
            except (*DECODE_ERRORS, ValueError):
                continue

    def _is_whole(self) -> bool:
        """Whether what the run directory has dropped is all that its manifest says of it."""
        dropped = read_manifest(self.run).dropped
        known = sum(each.rows for each in read_expired(self.run))
        return dropped is None or known >= dropped.records

    def _covers(self, name: str) -> bool:
        """Whether the content of a slice, or of the file of requests, is in the run directory elsewhere."""
        has_ended = (self.run / REQUESTS_FILE).exists()
        if name == REQUESTS_FILE:
            return has_ended
        base = base_of(Path(name))
        if has_ended or base is None or not name.endswith(FRAMES_SUFFIX):
            return True
        end = base + self.index[name].size
        return any(s.base <= base and end <= s.base + s.size for s in segments_of(self.run))


def _manifest_at(to: Destination) -> Batches:
    """Batches by the manifest there; none if it has none that can be read."""
    try:
        return _received(msgspec.json.decode(to.read(MANIFEST_FILE) or b"", type=Manifest))
    except DECODE_ERRORS:
        return {}


def _received(manifest: Manifest) -> Batches:
    """Batches by worker; of a manifest that names none, and of numbers that are not such, none."""
    found: dict[str, list[range]] = {}
    for worker in manifest.workers:
        try:
            found[worker.id] = joined([*found.get(worker.id, []), *parse_ranges(worker.received_seqs)])
        except ValueError:
            continue
    return found
