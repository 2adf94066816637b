"""Prompts from plain text: one per line, or one per file of a folder."""

from collections.abc import Iterator
from pathlib import Path

from llm_locust.workload.datasets.row import DatasetError, DatasetRow, where_not_utf8
from llm_locust.workload.text.prompts import Prompt


def text_line_rows(path: Path) -> Iterator[DatasetRow]:
    """Each line that is not blank, without its end (raises DatasetError with file and line, OSError)."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            text = _decoded(f"{path}:{number}", line).rstrip("\r\n")
            if text.strip():
                yield DatasetRow(Prompt(text=text), number)


def folder_rows(path: Path) -> Iterator[DatasetRow]:
    """Whole text of each file, in the order of their names, which become the prompts' ids.

    Hidden files, subfolders and empty files are left out. A row's line is its file's number.

    Raises:
        DatasetError: a file is not text in UTF-8.
        OSError: one cannot be read.
    """
    files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    for number, file in enumerate(files, 1):
        text = _decoded(str(file), file.read_bytes())
        if text.strip():
            yield DatasetRow(Prompt(text=text, id=file.name), number)


def _decoded(where: str, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise DatasetError(f"{where}: {where_not_utf8(raw)}; expected plain text") from e
