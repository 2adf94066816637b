"""Files are put in their place whole, and no link that waits there is followed."""

import fcntl
import os
from pathlib import Path

import pytest

from llm_locust.core.files import replacing
from llm_locust.core.manifest import Manifest
from llm_locust.store import Spool, StoreError, create_run_dir, write_manifest, write_text
from llm_locust.store.files import check_folder_name
from llm_locust.store.upload.transfer import upload_run


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["x"]


def test_of_a_file_that_failed_nothing_is_left(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")

    def fail_halfway() -> None:
        with replacing(path) as file:
            file.write(b"new")
            raise ValueError("halfway")

    with pytest.raises(ValueError, match="halfway"):
        fail_halfway()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["x"]


def test_no_link_in_the_directory_is_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    run = tmp_path / "run"
    run.mkdir()
    for name in ("x", "x.part", ".write-probe"):
        (run / name).symlink_to(victim)
    create_run_dir(run)
    write_text(run / "x", "new")
    assert victim.read_text() == "precious"
    assert (run / "x").read_text() == "new"
    assert not (run / "x").is_symlink()


def test_what_a_killed_writer_left_goes_with_the_next_writing_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x"
    dead, young, locked, other, odd, link = (
        tmp_path / name
        for name in (
            f"x.{'0' * 16}.part",
            f"x.{'1' * 16}.part",
            f"x.{'2' * 16}.part",
            f"y.{'3' * 16}.part",
            "x.mine.part",
            f"x.{'4' * 16}.part",
        )
    )
    for file in (dead, young, locked, other, odd):
        file.write_text("half")
    link.symlink_to(odd)
    for file in (dead, locked, other, odd, link):
        os.utime(file, (1, 1), follow_symlinks=False)
    with locked.open() as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        write_text(path, "new")
    kept = {path, young, locked, other, odd, link}
    assert set(tmp_path.iterdir()) == kept
    write_text(path, "newer")  # the writer of that one has ended
    assert set(tmp_path.iterdir()) == kept - {locked}


def test_a_file_that_is_being_written_survives_a_process_that_writes_the_same(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with replacing(path) as file:
        file.write(b"slow")
        (part,) = tmp_path.iterdir()
        os.utime(part, (1, 1))
        write_text(path, "fast")
        assert part.exists()
    assert path.read_text() == "slow"


GOOD = ("20261122-041903-chat", "host.local_3f2a", "w-1", "_x", "a" * 200, "a:1@b+c")
BAD = ("", ".", "..", "../x", "a/b", "/x", ".x", "-x", "a\n", "a b", "a\0", "a" * 201, "é")


@pytest.mark.parametrize("name", GOOD)
def test_an_id_as_they_are_made_names_a_folder(name: str) -> None:
    assert check_folder_name(name, "the id") == name


@pytest.mark.parametrize("name", BAD)
def test_an_id_that_could_name_another_place_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"the id .* is not a valid folder name"):
        check_folder_name(name, "the id")
    run = create_run_dir(tmp_path / "run")
    write_manifest(run, Manifest(id=name, name="x", started_ns=1, ended_ns=2))
    with pytest.raises(StoreError, match="is not a valid folder name"):
        upload_run(run, str(tmp_path / "to"))
    assert sorted(os.listdir(tmp_path)) == ["run"]


@pytest.mark.parametrize("folder", ["../out", "spool/../../out", "spool/../other"])
def test_a_spool_lies_below_its_root_whatever_its_name_says(folder: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not below"):
        Spool(tmp_path / "root" / folder, tmp_path / "root")
