"""Datasets of plain text: a prompt a line, or a prompt a file."""

from pathlib import Path

import pytest

from llm_locust.workload.datasets.load import load_dataset
from llm_locust.workload.datasets.row import DatasetError
from llm_locust.workload.text.prompts import Prompt


def test_each_line_that_is_not_blank_is_a_prompt_with_its_own_spaces(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone \r\n\r\n  two\u2028still two\n \nthree".encode())
    dataset = load_dataset(path)
    assert [p.text for p in dataset.prompts] == ["one ", "  two\u2028still two", "three"]
    assert dataset.lines == (1, 3, 5)


def test_each_file_of_a_folder_is_a_prompt_in_the_order_of_names(tmp_path: Path) -> None:
    for name, text in {"b.md": "two\nlines\n", "a.txt": "one", ".hidden": "x", "empty": "\n"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "inner").mkdir()
    assert load_dataset(tmp_path).prompts == (
        Prompt(text="one", id="a.txt"),
        Prompt(text="two\nlines\n", id="b.md"),
    )


def test_text_that_is_no_utf8_is_answered_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"fine\ncaf\xe9\n")
    for place, where in ((path, f"{path}:2"), (tmp_path, str(path))):
        with pytest.raises(DatasetError) as caught:
            load_dataset(place)
        assert str(caught.value).startswith(f"{where}: not UTF-8 at byte ")
        assert str(caught.value).endswith("; expected plain text")
