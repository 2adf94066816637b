"""Prompts from plain text: one per line, or one per file of a folder."""

from collections.abc import Iterator
from pathlib import Path

from llm_locust.core.input_files import DATASET, FileReading, folder_files, input_lines, read_input
from llm_locust.workload.datasets.row import DatasetError, DatasetRow, where_not_utf8
from llm_locust.workload.text.prompts import Prompt


def text_line_rows(path: Path, reading: FileReading) -> Iterator[DatasetRow]:
    """Each line that is not blank, without its end (raises DatasetError with file and line, InputError)."""
    for number, line in enumerate(input_lines(path, reading), 1):
        text = _decoded(f"{path}:{number}", line, reading).rstrip("\r\n")
        if text.strip():
            yield DatasetRow(Prompt(text=text), number)


def folder_rows(path: Path, reading: FileReading) -> Iterator[DatasetRow]:
    """Whole text of each file, in the order of their names, which become the prompts' ids.

    Hidden files, subfolders and empty files are left out. A row's line is its file's number.

    Raises:
        DatasetError: a file is not text in UTF-8.
        InputError: the folder or a file cannot be read, or they are too many or too large.
    """
    for number, file in enumerate(folder_files(path, DATASET.name), 1):
        reading.add_row(0)
        text = _decoded(str(file), read_input(file, DATASET, reading), reading)
        if text.strip():
            yield DatasetRow(Prompt(text=text, id=file.name), number)


def _decoded(where: str, raw: bytes, reading: FileReading) -> str:
    """Text of a line or a file; empty if it is skipped."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        reading.skip(DatasetError(f"{where}: {where_not_utf8(raw)}; expected plain text"))
        return ""
