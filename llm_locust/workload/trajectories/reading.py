"""Lines of files of trajectories; every error names the file and the line."""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from llm_locust.wire.dialects.dialect import Message
from llm_locust.workload.trajectories.trajectory import TrajectoryError

#: Longest line, and most bytes of all files: a pool is held in memory.
MOST_LINE, MOST_BYTES = 64 << 20, 4 << 30

#: Longest pause between two turns: a day.
MOST_PAUSE_S = 86_400.0

#: Sub-agents of sub-agents of ..., at most.
MOST_LEVELS = 32

#: Files that may be one JSON document in several lines.
_WHOLE = (".json", ".json.gz")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FileLine:
    """A line that is not blank, and its number from 1.

    ``file`` names its file: the path in the folder that was given, without the last suffix.
    """

    path: Path
    file: str
    number: int
    raw: bytes

    @property
    def where(self) -> str:
        return f"{self.path}:{self.number}"


def files(path: Path) -> list[Path]:
    """The file, or the files of JSON lines in the folder and below it, by name; else those of JSON."""
    if not path.is_dir():
        return [path]
    for suffixes in ((".jsonl", ".jsonl.gz"), _WHOLE):
        found = sorted(p for p in path.rglob("*") if p.name.endswith(suffixes) and p.is_file())
        if found:
            return found
    raise TrajectoryError(f"trajectories {str(path)!r}: no file in it ends in .jsonl, .jsonl.gz or .json")


def lines(given: Path) -> Iterator[FileLine]:
    """Lines of its :func:`files` that are not blank; gzip is decompressed (raises TrajectoryError).

    A JSON file whose first line is no document is one line as a whole.
    """
    total = 0
    for path in files(given):
        number, file_name = 0, path.relative_to(given if path != given else given.parent).with_suffix("")
        try:
            with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as file:
                while raw := file.readline(MOST_LINE + 1):
                    if not number and path.name.endswith(_WHOLE) and not _is_document(raw):
                        raw += file.read(MOST_LINE + 1 - len(raw))
                    number, total = number + 1, total + len(raw)
                    if len(raw) > MOST_LINE or total > MOST_BYTES:
                        raise TrajectoryError(
                            f"{path}:{number}: larger than a line ({MOST_LINE >> 20} MiB) or a pool "
                            f"({MOST_BYTES >> 30} GiB) may be"
                        )
                    if raw.strip():
                        yield FileLine(path, file_name.as_posix(), number, raw)
        except (OSError, EOFError, zlib.error, ValueError) as e:
            if isinstance(e, TrajectoryError):
                raise
            raise TrajectoryError(f"trajectories {str(path)!r}: cannot be read: {e}") from e


def _is_document(raw: bytes) -> bool:
    try:
        msgspec.json.decode(raw, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def decoded(decoder: "msgspec.json.Decoder[T]", line: FileLine, expected: str) -> T:
    try:
        return decoder.decode(line.raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as e:
        raise TrajectoryError(f"{line.where}: {e}; expected {expected}") from e


def shared_messages(
    messages: Sequence[dict[str, Any]], before: tuple[Message, ...] | None
) -> tuple[Message, ...]:
    """The messages, those of the turn before being the same objects: a history is held once."""
    same = 0
    for a, b in zip(messages, before or (), strict=False):
        if a != b:
            break
        same += 1
    return (*(before or ())[:same], *messages[same:])
