"""Parts of a restartable run: their order, and whether another one follows."""

from pathlib import Path

import pytest
from metrics_cases import manifest, ns

from llm_locust.store import StoreError, write_manifest
from llm_locust.store.facts import course_of, next_part, parts_of


def part(folder: Path, number: int, **facts: object) -> Path:
    path = folder / f"part-{number}"
    path.mkdir(parents=True)
    write_manifest(path, manifest(None, **facts))
    return path


def test_a_new_directory_begins_with_part_1_and_has_all_its_time(tmp_path: Path) -> None:
    course = course_of(tmp_path / "day")
    assert (course.parts, course.over) == ((), "")
    assert course.left_s(60.0, ns(0.0)) == 60.0
    assert next_part(tmp_path / "day").name == "part-1"


def test_parts_are_ordered_by_number_and_the_next_one_is_above_all(tmp_path: Path) -> None:
    for number in (10, 2, 9):
        part(tmp_path, number)
    (tmp_path / "part-11").mkdir()  # a master that died before its first manifest
    (tmp_path / "part-x").mkdir()
    assert [path.name for path in parts_of(tmp_path)] == ["part-2", "part-9", "part-10"]
    assert next_part(tmp_path).name == "part-12"


@pytest.mark.parametrize(
    ("last", "over"),
    [
        ({"ended_ns": None, "stopped_ns": None}, False),  # killed
        ({"ended_ns": 5, "stopped_ns": 4, "cut_short": True}, False),  # SIGTERM, no worker left
        ({"ended_ns": 5, "stopped_ns": 4, "cut_short": True, "ended_in_order": True}, True),  # a stop rule
        ({"ended_ns": 5, "stopped_ns": 4, "cut_short": False}, True),  # a person, its time
        ({"ended_ns": None, "stopped_ns": 4}, True),  # killed while the report was made
    ],
)
def test_a_part_follows_unless_the_load_was_ended_in_order(
    tmp_path: Path, last: dict[str, object], over: bool
) -> None:
    part(tmp_path, 1, cut_short=True, ended_ns=3)
    part(tmp_path, 2, **last)
    assert bool(course_of(tmp_path).over) is over


def test_the_time_of_the_whole_counts_from_the_first_part(tmp_path: Path) -> None:
    part(tmp_path, 1, started_ns=ns(0.0))
    part(tmp_path, 2, started_ns=ns(50.0))
    course = course_of(tmp_path)
    assert course.left_s(3600.0, ns(600.0)) == pytest.approx(3000.0)
    assert course.left_s(3600.0, ns(4000.0)) == 0.0
    assert course.left_s(3600.0, ns(-50.0)) == 3600.0  # a clock that was set back makes no time


def test_a_run_that_was_not_restartable_is_refused(tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest(None))
    with pytest.raises(StoreError, match="was not restartable"):
        course_of(tmp_path)
