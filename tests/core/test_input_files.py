"""Files within bounds: read, refused, put in their place whole; small YAML; a run's own."""

import bz2
import fcntl
import gzip
import logging
import lzma
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from llm_locust.core import files
from llm_locust.core.files import (
    DATASET,
    FREE_BLANK_LINES,
    SETTINGS,
    FileBounds,
    FileReading,
    InputError,
    OwnFileError,
    SmallYamlError,
    first_bytes,
    folder_files,
    input_lines,
    open_plain,
    own_file,
    plain_name,
    read_input,
    read_small_yaml,
    replacing,
    text_lines,
)
from llm_locust.core.manifest import Manifest
from llm_locust.store import Spool, StoreError, create_run_dir, write_manifest, write_text
from llm_locust.store.files import check_folder_name
from llm_locust.store.upload import upload_run

SMALL = FileBounds("dataset", 10_000, line_bytes=100, lines=20, items=10)


def written(folder: Path, content: bytes, name: str = "data") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def refusal(path: Path, bounds: FileBounds) -> str:
    with pytest.raises(InputError) as caught:
        list(input_lines(path, FileReading(bounds, path)))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@given(st.lists(st.text("ab,é \r", max_size=5), max_size=8), st.booleans(), st.booleans())
def test_lines_are_those_of_the_file_packed_or_not_without_its_mark(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], has_mark: bool, is_packed: bool
) -> None:
    content = "\n".join(parts).encode()
    raw = (b"\xef\xbb\xbf" if has_mark else b"") + content
    path = written(tmp_path_factory.mktemp("f"), gzip.compress(raw) if is_packed else raw)
    assert b"".join(input_lines(path, FileReading(DATASET, path))) == content
    assert "".join(text_lines(path, FileReading(DATASET, path))) == content.decode()
    assert read_input(path, DATASET) == content
    assert first_bytes(path, "dataset") == content


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"x" * 101, ":1: longer than 100 bytes, the limit of a line"),
        (b"fine\n" + b"y" * 500 + b"\n", ":2: longer than 100 bytes, the limit of a line"),
        (b"a\n" * 21, ":21: more than 20 lines, the limit of such a file"),
        (b"[" + b"1," * 11 + b"1]\n", ":1: more than 10 values in one line, the limit of such a file"),
        (b"{" * 12 + b"\n", ":1: more than 10 values in one line"),
        ((b" " * 90 + b"\n") * 200, ": longer than 9.77 KiB, the limit of such a file"),
    ],
)
def test_what_is_out_of_a_bound_is_refused_with_its_line_packed_or_not(
    tmp_path: Path, content: bytes, why: str
) -> None:
    for name, data in (("plain", content), ("packed", gzip.compress(content))):
        assert why.removeprefix(": ") in refusal(written(tmp_path, data, name), SMALL)


def test_blank_lines_are_as_many_as_other_lines_and_some(tmp_path: Path) -> None:
    path = written(tmp_path, b"\n" * FREE_BLANK_LINES)
    assert len(list(input_lines(path, FileReading(DATASET, path)))) == FREE_BLANK_LINES
    assert f":{FREE_BLANK_LINES + 1}: 10,001 blank lines beside 0 others" in refusal(
        written(tmp_path, b"\r\n" * (FREE_BLANK_LINES + 1)), DATASET
    )
    path = written(tmp_path, b"a\n\n" * (FREE_BLANK_LINES + 5))
    assert (
        sum(1 for line in input_lines(path, FileReading(DATASET, path)) if line.strip())
        == FREE_BLANK_LINES + 5
    )


def test_a_packed_file_may_expand_to_some_times_its_size_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, gzip.compress(b"the same line\n" * 100_000))
    assert sum(map(len, input_lines(path, FileReading(DATASET, path)))) == 1_400_000
    monkeypatch.setattr(files, "FREELY_EXPANDED", 1 << 20)
    assert "cannot be read: it expands to more than" in refusal(path, DATASET)
    with pytest.raises(InputError, match="200 times its size; unpack it first"):
        read_input(path, DATASET)


@pytest.mark.parametrize(
    ("begin", "name"),
    [
        (b"\x28\xb5\x2f\xfd\x04", "compressed by zstd; unpack it"),
        (bz2.compress(b"a"), "compressed by bzip2; unpack it"),
        (lzma.compress(b"a"), "compressed by xz; unpack it"),
        (b"PK\x03\x04\x14", "compressed by zip; unpack it"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "a pointer of Git LFS"),
    ],
)
def test_what_is_compressed_in_another_way_or_not_the_file_itself_is_named(
    tmp_path: Path, begin: bytes, name: str
) -> None:
    assert f"cannot be read: it is {name}" in refusal(written(tmp_path, begin), DATASET)


@pytest.mark.parametrize("cut", [12, 40, -5])
def test_a_packed_file_that_is_cut_or_damaged_is_refused(tmp_path: Path, cut: int) -> None:
    packed = gzip.compress(bytes(range(256)) * 50)
    assert "cannot be read: " in refusal(written(tmp_path, packed[:cut]), replace(DATASET, lines=10**6))
    assert "cannot be read: " in refusal(written(tmp_path, packed[:20] + b"\0" * 20), DATASET)


def test_time_and_memory_are_bounded_and_a_trace_that_the_load_reads_is_not_timed(tmp_path: Path) -> None:
    path = written(tmp_path, b"x" * 99 + b"\n" + (b"y" * 99 + b"\n") * 50_000)
    assert "not read within 0 s: 976 KiB, 10,000 lines in" in refusal(path, replace(DATASET, seconds=0))
    assert "it takes more than -1 bytes of memory" in refusal(path, replace(DATASET, held_bytes=-1))
    untimed = FileReading(replace(DATASET, seconds=0, held_bytes=-1), path, is_timed=False)
    assert len(list(input_lines(path, untimed))) == 50_001


def test_where_the_system_does_not_tell_a_process_its_memory_only_time_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_STATM", tmp_path / "none")
    path = written(tmp_path, b"line\n" * 10_000)
    assert len(list(input_lines(path, FileReading(replace(DATASET, held_bytes=0), path)))) == 10_000
    assert "not read within 0 s" in refusal(path, replace(DATASET, seconds=0))


def test_rows_of_a_table_are_bounded_as_lines_are(tmp_path: Path) -> None:
    reading = FileReading(SMALL, tmp_path / "table")
    for number in range(20):
        reading.add_row(number)
    with pytest.raises(InputError, match=r"table:20: more than 20 lines, the limit of such a file"):
        reading.add_row(20)


class Replaced:
    """The path of a file in whose place another one is, once its kind has been looked at."""

    def __init__(self, first: Path, then: Path) -> None:
        self._paths = [first, then]

    def __fspath__(self) -> str:
        return str(self._paths.pop(0) if len(self._paths) > 1 else self._paths[0])


def test_a_pipe_that_took_the_place_of_a_file_is_neither_waited_for_nor_left_open(tmp_path: Path) -> None:
    file, pipe, handles = written(tmp_path, b"a"), tmp_path / "pipe", Path("/proc/self/fd")
    os.mkfifo(pipe)
    before = len([*handles.iterdir()])
    for path in (pipe, Replaced(file, pipe)):
        with pytest.raises(InputError, match="it is a pipe, not a file"):
            open_plain(path)
    assert len([*handles.iterdir()]) == before


@pytest.mark.parametrize("cut", [12, 40])
def test_the_first_bytes_of_what_cannot_be_read_are_refused_as_the_file_is(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path, gzip.compress(bytes(range(256)))[:cut])
    with pytest.raises(InputError, match=r"dataset .*data': cannot be read: "):
        first_bytes(path, "dataset")
    with pytest.raises(InputError, match="cannot be read: embedded null byte"):
        first_bytes(Path("a\0b"), "dataset")


@pytest.mark.parametrize(
    ("name", "plain"), [("a.csv.gz", "a.csv"), ("a.CSV.GZ", "a.CSV"), ("a.gz.csv", "a.gz.csv"), ("a", "a")]
)
def test_the_name_of_a_packed_file_says_its_format_too(name: str, plain: str) -> None:
    assert plain_name(Path(name)) == Path(plain)


def test_a_long_reading_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = written(tmp_path, (b"y" * 99 + b"\n") * 50_000)
    monkeypatch.setattr(files, "QUIET_S", 1e9)
    list(input_lines(path, FileReading(DATASET, path)))
    assert caplog.messages == []
    monkeypatch.setattr(files, "QUIET_S", 0.0)
    list(input_lines(path, FileReading(DATASET, path)))
    assert [text.split(":")[0] for text in caplog.messages] == [f"reading dataset {str(path)!r}"]
    assert "976 KiB, 10,000 lines" in caplog.messages[0]


def test_lines_are_skipped_up_to_a_number_and_counted(tmp_path: Path) -> None:
    path = written(tmp_path, b"a\n\xff\nb\n\xfe\nc\n")
    reading = FileReading(DATASET, path, most_skipped=2)
    assert list(text_lines(path, reading)) == ["a\n", "\n", "b\n", "\n", "c\n"]
    assert (reading.skipped, reading.first_skipped) == (2, f"{path}:2: not UTF-8, byte 1 is 0xff")
    with pytest.raises(InputError, match=r"data:4: not UTF-8.*; 1 lines before it were skipped, and no more"):
        list(text_lines(path, FileReading(DATASET, path, most_skipped=1)))
    with pytest.raises(InputError, match=r"data:2: not UTF-8, byte 1 is 0xff$"):
        list(text_lines(path, FileReading(DATASET, path)))


def test_a_folder_has_its_files_by_name_without_hidden_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volume of Kubernetes has each file twice: as a link, and in a hidden folder."""
    for name in ("b/2", "b/1", "a", "..data/c", ".hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "c").symlink_to("..data/c")
    (tmp_path / "z").symlink_to("nowhere")
    names = [str(path.relative_to(tmp_path)) for path in folder_files(tmp_path, "trajectories", below=True)]
    assert names == ["a", "b/1", "b/2", "c"]
    assert [path.name for path in folder_files(tmp_path, "dataset")] == ["a", "c"]
    monkeypatch.setattr(files, "MOST_FILES", 3)
    with pytest.raises(InputError, match="more than 3 files and folders"):
        folder_files(tmp_path, "trajectories", below=True)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        folder_files(tmp_path / "none", "trajectories")


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("trace", files.TRACE),
        ("trajectories", files.TRAJECTORIES),
        ("dataset", DATASET),
        ("lengths", files.LENGTHS),
        ("tokenizer file", files.TOKENIZER),
        ("scenario, profile, faults, model's shape", SETTINGS),
    ],
)
def test_the_page_has_the_bounds(name: str, bounds: FileBounds) -> None:
    page = (Path(__file__).parents[2] / "docs" / "data-files.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith(f"| {name} | "))
    cells = [cell.strip() for cell in row.strip("|").split("|")][1:]
    of_lines = (files._size(bounds.line_bytes), f"{bounds.lines:,}", f"{bounds.items:,}")
    assert cells[0] == files._size(bounds.expanded_bytes)
    assert tuple(cells[1:4]) in (of_lines, ("", "", ""))
    assert cells[4] == f"{bounds.seconds:g} s"
    assert cells[5] in (files._size(bounds.held_bytes), "read as the load needs it")


def test_a_whole_file_is_bounded_too(tmp_path: Path) -> None:
    assert len(read_input(written(tmp_path, b" " * 65_536), SETTINGS)) == 65_536
    for content in (b" " * 65_537, gzip.compress(b" " * 10_000_000)):
        with pytest.raises(InputError, match="longer than 64 KiB, the limit of such a file"):
            read_input(written(tmp_path, content), SETTINGS)


def test_skipped_lines_are_told_with_why_the_first_was() -> None:
    assert files.skipped_text(1, "d.jsonl:3: no object") == "1 line skipped, the first: d.jsonl:3: no object"
    assert files.skipped_text(1200, "x").startswith("1,200 lines skipped")


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


@pytest.fixture(autouse=True)
def _few_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """FileReading 10,000 values takes a second."""
    monkeypatch.setattr(files, "MAX_VALUES", 1_000)


@pytest.mark.parametrize(
    ("raw", "content"),
    [
        (b"a: [1, 2.5, x]", {"a": [1, 2.5, "x"]}),
        (b'{"a": null}', {"a": None}),
        (b"\xef\xbb\xbfa: \xc3\xa9", {"a": "é"}),
        (b"", None),
        (b"[" + b"1," * 999 + b"]", [1] * 999),  # with the list itself 1,000 values
        (b" " * SETTINGS.expanded_bytes, None),
    ],
)
def test_a_small_file_is_its_values(tmp_path: Path, raw: bytes, content: Any) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(raw)
    assert read_small_yaml(path) == content


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"a: [", "broken YAML: "),
        (b'a: "\\UFFFFFFFF"', "broken YAML: "),
        (b"a: 2026-13-01", "broken YAML: "),
        (b"[" * 500, "broken YAML: too deep"),
        (b"a: \xff", "cannot be read: it is not UTF-8"),
        (b" " * (SETTINGS.expanded_bytes + 1), "longer than 64 KiB"),
        (b"[" + b"1," * 1_000 + b"]", "more than 1,000 values"),
        (b"{" + b"".join(b"%d: 1, " % i for i in range(500)) + b"}", "more than 1,000 values"),
        (
            b"a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\nb: &b ["
            + b"*a, " * 40
            + b"]\nc: ["
            + b"*b, " * 40
            + b"]",
            "with its aliases replaced, it has more than 1,000 values",
        ),
    ],
)
def test_what_is_too_much_or_no_yaml_is_refused_in_one_line(tmp_path: Path, raw: bytes, why: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(raw)
    with pytest.raises(SmallYamlError) as told:
        read_small_yaml(path)
    assert why in str(told.value)
    assert str(told.value).isprintable()
    assert len(str(told.value)) <= 500


@pytest.mark.parametrize("name", ["none.yaml", "a\0b"])
def test_a_file_that_cannot_be_opened_is_refused_without_its_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(SmallYamlError, match="cannot be read: ") as told:
        read_small_yaml(tmp_path / name)
    assert str(tmp_path) not in str(told.value)
