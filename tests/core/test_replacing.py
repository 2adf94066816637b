"""Files are put in their place whole, and no link that waits there is followed."""

import os
from pathlib import Path

import pytest

from llm_locust.core.manifest import Manifest
from llm_locust.core.replacing import replacing
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


GOOD = ("20261122-041903-chat", "host.local_3f2a", "w-1", "_x", "a" * 200, "a:1@b+c")
BAD = ("", ".", "..", "../x", "a/b", "/x", ".x", "-x", "a\n", "a b", "a\0", "a" * 201, "é")


@pytest.mark.parametrize("name", GOOD)
def test_an_id_as_they_are_made_names_a_folder(name: str) -> None:
    assert check_folder_name(name, "the id") == name


@pytest.mark.parametrize("name", BAD)
def test_an_id_that_could_name_another_place_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"the id .* is no name for a folder"):
        check_folder_name(name, "the id")
    run = create_run_dir(tmp_path / "run")
    write_manifest(run, Manifest(id=name, name="x", started_ns=1, ended_ns=2))
    with pytest.raises(StoreError, match="is no name for a folder"):
        upload_run(run, str(tmp_path / "to"))
    assert sorted(os.listdir(tmp_path)) == ["run"]


@pytest.mark.parametrize("folder", ["../out", "spool/../../out", "spool/../other"])
def test_a_spool_lies_below_its_root_whatever_its_name_says(folder: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not lie under"):
        Spool(tmp_path / "root" / folder, tmp_path / "root")
