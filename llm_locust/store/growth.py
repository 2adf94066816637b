"""Disk that the records of a load take: in frames while it goes on, in the Parquet file at its end."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: Bytes of a frame beside its rows: Arrow's schema and its dictionaries.
_FRAME_BYTES = 12_400

#: Bytes of a row and of each of its token arrivals, compressed with its batch, as it is in memory, and in the
#: Parquet file. Arrivals compress the worse the more irregular they are, and have a second time each where
#: one read brought several of them: these are between the two.
_PACKED_ROW, _PACKED_ARRIVAL = 130, 9.0
_PLAIN_ROW, _PLAIN_ARRIVAL = 310, 16.0
_KEPT_ROW, _KEPT_ARRIVAL = 120, 5.5

#: Size in memory above which a batch is not compressed, as in core/batch.py.
_PACKED_UP_TO = 1 << 20


@dataclass(frozen=True, slots=True)
class Growth:
    """Bytes of the frames of a load, and of the Parquet file that is made of them before they are removed."""

    frames: float
    kept: float

    @property
    def peak(self) -> float:
        return self.frames + self.kept


def growth_of(requests: float, tokens: float, batches: float) -> Growth:
    """Growth by that many requests with that many token arrivals each, in that many batches."""
    if requests <= 0:
        return Growth(0.0, 0.0)
    batches = min(requests, max(1.0, batches))
    plain = _PLAIN_ROW + _PLAIN_ARRIVAL * tokens
    is_packed = plain * requests / batches <= _PACKED_UP_TO
    row = _PACKED_ROW + _PACKED_ARRIVAL * tokens if is_packed else plain
    kept = requests * (_KEPT_ROW + _KEPT_ARRIVAL * tokens)
    return Growth(batches * _FRAME_BYTES + requests * row, kept)


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder and below; those that go meanwhile have none."""
    size = 0
    for file in folder.rglob("*"):
        with suppress(OSError):
            size += file.stat().st_size if file.is_file() else 0
    return size


def size_text(size_bytes: float) -> str:
    """A size for a person: ``1.3 GiB``."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f} {name}"
    return f"{size_bytes / 1024:.0f} KiB"
