"""Lines of files of trajectories; every error names the file and the line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from llm_locust.core.input_files import (
    TRAJECTORIES,
    FileReading,
    InputError,
    folder_files,
    input_lines,
    read_input,
)
from llm_locust.wire.dialects.dialect import Message
from llm_locust.workload.trajectories.trajectory import TrajectoryError

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
    """The file, or the files of JSON lines in the folder and below it, by name; else those of JSON.

    Hidden files and folders are left out.

    Raises:
        TrajectoryError: there is none.
        InputError: the folder cannot be read, or has too many files.
    """
    if not path.is_dir():
        return [path]
    there = folder_files(path, TRAJECTORIES.name, below=True)
    for suffixes in ((".jsonl", ".jsonl.gz"), _WHOLE):
        found = [each for each in there if each.name.endswith(suffixes)]
        if found:
            return found
    raise TrajectoryError(f"trajectories {str(path)!r}: no file in it ends in .jsonl, .jsonl.gz or .json")


def lines(given: Path) -> Iterator[FileLine]:
    """Lines of its :func:`files` that are not blank; gzip is decompressed (raises TrajectoryError).

    A JSON file whose first line is no document is one line as a whole.
    """
    reading = FileReading(TRAJECTORIES, given)
    try:
        for path in files(given):
            name = path.relative_to(given if path != given else given.parent).with_suffix("").as_posix()
            for number, raw in enumerate(input_lines(path, reading), 1):
                if number == 1 and path.name.endswith(_WHOLE) and not _is_document(raw):
                    document = read_input(path, TRAJECTORIES, reading)
                    reading.add_line(document, 1)
                    yield FileLine(path, name, 1, document)
                    break
                if not raw.isspace():
                    yield FileLine(path, name, number, raw)
    except InputError as e:
        raise TrajectoryError(str(e)) from e


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
