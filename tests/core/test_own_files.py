"""Files of a run directory are read only where they are its own."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_locust.core.files import OwnFileError, own_file


def test_a_regular_file_is_its_own(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.touch()
    assert own_file(path) == path


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: path.symlink_to(__file__), "is a link, which is not followed"),
        (lambda path: path.symlink_to("nowhere"), "is a link, which is not followed"),
        (lambda path: os.mkfifo(path), "is not a regular file"),
        (lambda path: path.mkdir(), "is not a regular file"),
    ],
    ids=["link", "dead link", "pipe", "folder"],
)
def test_a_link_and_what_may_never_end_are_refused_with_what_to_do(
    tmp_path: Path, make: Callable[[Path], object], says: str
) -> None:
    make(tmp_path / "f")
    with pytest.raises(OwnFileError, match=f"f' {says}.*: put a copy of the file there"):
        own_file(tmp_path / "f")


def test_of_no_file_the_system_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        own_file(tmp_path / "none")
