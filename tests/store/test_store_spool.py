"""A spool holds whole frames until they are dropped, and leaves nothing of itself behind."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from process_limits import files_limited_to

from llm_locust.store import MANIFEST_FILE, WORKER_FILE, Spool


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root may write everywhere; nobody may not."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "runs" / "demo"
    root.mkdir(parents=True)
    return root


@pytest.fixture
def spool(root: Path) -> Spool:
    return Spool(root / "spool" / "w1", root)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_nothing_is_made_before_the_first_write(spool: Spool, root: Path) -> None:
    assert names(root) == []
    assert spool.close()
    assert names(root) == []


def test_a_frame_is_a_file_of_its_own_named_by_its_number(spool: Spool) -> None:
    spool.write(17, b"frame")
    assert names(spool.folder) == ["00000017.frame"]
    assert spool.read(17) == b"frame"


def test_a_frame_is_never_written_over_another(spool: Spool) -> None:
    spool.write(1, b"first")
    with pytest.raises(FileExistsError):
        spool.write(1, b"second")
    assert spool.read(1) == b"first"


def test_of_a_write_that_fails_midway_nothing_stays(spool: Spool) -> None:
    spool.write(0, b"x")
    with files_limited_to(100_000), pytest.raises(OSError, match="File too large"):
        spool.write(1, b"x" * 300_000)
    assert names(spool.folder) == ["00000000.frame"]
    spool.write(1, b"again")
    assert spool.read(1) == b"again"


def test_a_folder_that_was_removed_is_made_again(spool: Spool) -> None:
    spool.write(0, b"x")
    spool.drop(0)
    spool.folder.rmdir()
    spool.write(1, b"y")
    assert spool.read(1) == b"y"


def test_a_spool_where_a_file_is_cannot_be_written(root: Path) -> None:
    (root / "spool").write_text("a file")
    with pytest.raises(NotADirectoryError):
        Spool(root / "spool" / "w1", root).write(0, b"x")


def test_a_read_only_folder_cannot_be_written(spool: Spool, root: Path) -> None:
    root.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with without_privileges(), pytest.raises(PermissionError):
        spool.write(0, b"x")
    root.chmod(stat.S_IRWXU)
    spool.write(0, b"x")
    assert spool.read(0) == b"x"


def test_dropping_a_frame_that_is_not_there_is_no_error(spool: Spool) -> None:
    spool.drop(3)
    spool.write(3, b"x")
    spool.drop(3)
    spool.drop(3)
    assert names(spool.folder) == []


def test_closing_removes_the_facts_the_folder_and_what_is_empty_above_it_up_to_the_root(
    spool: Spool, root: Path
) -> None:
    spool.write_facts(MANIFEST_FILE, {"id": "run"})
    spool.write_facts(WORKER_FILE, {"id": "w1"})
    spool.write(0, b"x")
    spool.drop(0)
    assert spool.close()
    assert root.is_dir()
    assert names(root) == []


@pytest.mark.parametrize("name", ["00000007.frame", "notes.txt"])
def test_closing_leaves_a_folder_that_holds_a_frame_or_a_file_of_somebody_else(
    spool: Spool, name: str
) -> None:
    spool.write_facts(MANIFEST_FILE, {"id": "run"})
    (spool.folder / name).write_bytes(b"precious")
    assert not spool.close()
    assert (spool.folder / name).read_bytes() == b"precious"


def test_a_folder_that_keeps_a_frame_keeps_its_facts(spool: Spool) -> None:
    spool.write_facts(MANIFEST_FILE, {"id": "run"})
    spool.write(0, b"x")
    assert not spool.close()
    assert names(spool.folder) == ["00000000.frame", MANIFEST_FILE]


def test_closing_leaves_the_spool_of_another_worker(spool: Spool, root: Path) -> None:
    other = Spool(root / "spool" / "w2", root)
    spool.write(0, b"x")
    other.write(0, b"y")
    spool.drop(0)
    assert spool.close()
    assert names(root / "spool") == ["w2"]
    other.drop(0)
    assert other.close()
    assert names(root) == []


def test_a_spool_must_lie_under_its_root(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not below"):
        Spool(tmp_path / "a", tmp_path / "b")
