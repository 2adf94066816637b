"""The disk that a run needs, what it goes on from, and processes beside it that hang."""

import argparse
import logging
import math
import shutil
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from metrics_cases import manifest, stage
from report_cases import write_run

from llm_locust.options.settings import Settings, UsageError, parse_settings
from llm_locust.store import create_run_dir, write_manifest
from llm_locust.swarm.channel.messages import RunInfo
from llm_locust.swarm.run import finishing
from llm_locust.swarm.run.disk import DiskWatch, check_room, need_of
from llm_locust.swarm.run.parts import changed, check_server, differences, digests, input_files
from llm_locust.swarm.run.run import versions
from llm_locust.swarm.web import reports

# --- Processes beside a run, a summary and an upload, that hang: they are killed, and a line says so


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose processes have no time at all."""
    monkeypatch.setattr(finishing, "PATIENCE_S", 0.0)
    monkeypatch.setattr(finishing, "UPLOAD_PATIENCE_S", 0.0)
    for module in (finishing, finishing):
        monkeypatch.setattr(module, "_SLOWEST_BYTES_PER_S", 1e12)
    return write_run(tmp_path / "run")


def test_an_upload_that_hangs_is_killed_and_said(run: Path, tmp_path: Path) -> None:
    done, told = finishing.upload_elsewhere(run, str(tmp_path / "away"))
    assert not done
    assert told == "the process that uploads was killed because it had not ended within 0 s"


def test_a_rolling_summary_that_hangs_is_killed_and_said(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not reports.summarise_elsewhere(run, lambda: run)
    assert "no rolling summary this time: its process was killed because it had not ended" in caplog.text


# --- A run says how much disk its plan needs, and what it takes; one that cannot fit is refused


DAY_S = 24 * 3600


class ByRate:
    """A user class of an open loop."""

    @staticmethod
    def follows_schedule(_: object) -> bool:
        return True


OPEN, CLOSED = [ByRate], [object]


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def settings(**given: Any) -> Settings:
    return parse_settings(argparse.Namespace(**{"output_tokens": "100", "out": "/tmp/day", **given}), {})


def room(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 50, 0, free))


def test_a_plan_of_a_rate_says_what_it_takes() -> None:
    need = need_of(settings(request_rate="20"), OPEN, 1, DAY_S, 2)
    assert need is not None
    assert need.whole is not None
    assert need.least is not None
    # 20/s of 100 tokens: by hand, 72,000 rows of some 700 to 900 bytes and 2,400 frames of 12 kB.
    assert 60e6 < need.an_hour < 120e6
    assert 24 * need.an_hour < need.whole < 48 * need.an_hour
    assert need.least < 24 * need.an_hour
    half = need_of(settings(request_rate="20"), OPEN, 1, DAY_S / 2, 2)
    assert half is not None
    assert half.whole == pytest.approx(need.whole / 2)
    # The number of users is the rate where nothing else says it.
    assert need_of(settings(), OPEN, 20, DAY_S, 2) == need


def test_a_bound_of_the_requests_bounds_the_disk() -> None:
    need = need_of(settings(request_rate="20", num_requests="100"), OPEN, 1, DAY_S, 2)
    assert need is not None
    assert need.whole is not None
    assert need.whole < 2e6 < need.an_hour


@pytest.mark.parametrize(
    ("given", "classes", "users"),
    [
        ({}, CLOSED, 20),  # the server's speed sets the rate
        ({"sweep": "rate=1,2"}, OPEN, 20),
        ({"arrival": "trace:/nowhere"}, OPEN, 20),
        ({}, OPEN, None),
    ],
)
def test_where_the_plan_has_no_number_of_requests_none_is_made_up(
    given: dict[str, Any], classes: list[type], users: int | None
) -> None:
    assert need_of(settings(**given), classes, users, DAY_S, 2) is None


def test_a_run_that_cannot_fit_is_refused_one_that_might_not_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    plan = (settings(request_rate="20"), OPEN, 1, DAY_S, 2)
    need = need_of(*plan)
    assert need is not None
    assert need.whole is not None
    assert need.least is not None
    levels = []
    for free in (2 * need.whole, 0.9 * need.whole, 1.1 * need.least):
        room(monkeypatch, int(free))
        check_room(*plan)
        levels.append(caplog.records[-1].levelname)
        assert "an hour" in caplog.records[-1].getMessage()
    assert levels == ["INFO", "WARNING", "WARNING"]
    caplog.clear()
    room(monkeypatch, int(101 * need.whole))
    check_room(*plan)
    assert not caplog.records, "a disk that has room for a hundred such runs is not spoken of"
    room(monkeypatch, int(0.9 * need.least))
    with pytest.raises(UsageError, match=r"at the least.*free: name a directory on a larger disk"):
        check_room(*plan)


@dataclass
class Disk:
    """A disk on which frames grow by so much a second."""

    free_bytes: float
    bytes_per_s: float
    left_s: float = math.inf
    now_s: float = 0.0

    def look_for(self, minutes: int, caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
        caplog.clear()
        caplog.set_level(logging.INFO)
        watch = DiskWatch(
            lambda: (int(self.now_s * self.bytes_per_s),) * 2,
            lambda: int(self.free_bytes - self.now_s * self.bytes_per_s),
            lambda: self.left_s - self.now_s,
            "runs/day",
        )
        for minute in range(minutes):
            self.now_s = minute * 60.0
            watch.look(self.now_s)
        return [(each.levelname, each.getMessage()) for each in caplog.records]


def test_the_measured_growth_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    (said,) = Disk(1e12, 1 << 20).look_for(30, caplog)
    assert said[0] == "INFO"
    assert "3.5 GiB an hour as measured" in said[1]


def test_a_disk_that_the_rest_of_the_run_fills_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    (said,) = Disk(30e9, 1e6, left_s=DAY_S).look_for(30, caplog)
    assert said[0] == "WARNING"
    assert "full in 499 min" in said[1]


def test_the_report_at_the_end_needs_room_too(caplog: pytest.LogCaptureFixture) -> None:
    assert [level for level, _ in Disk(200e9, 1e6, left_s=DAY_S).look_for(9, caplog)] == ["INFO"]
    (said,) = Disk(100e9, 1e6, left_s=DAY_S).look_for(9, caplog)
    assert said[0] == "WARNING"
    assert "too little for the report at its end" in said[1]


def test_without_an_end_the_last_hour_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    said = Disk(3 * 3600e6, 1e6).look_for(170, caplog)
    assert [level for level, _ in said] == ["INFO", "WARNING"]
    assert "full in 60 min" in said[1][1] or "full in 59 min" in said[1][1]


def test_a_load_that_writes_nothing_yet_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert Disk(1e9, 0.0).look_for(30, caplog) == []


def test_a_disk_that_does_not_say_its_size_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As file systems over object stores: 0 bytes, of which 0 are free."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 0))
    check_room(settings(request_rate="20"), OPEN, 1, DAY_S, 2)


# --- What a sweep that goes on is compared with: the version that made its load, and the server


SWEEP = {"sweep": "rate=5,10"}


def found(version: str | None) -> list[str]:
    made = {} if version is None else {"llm-locust": version}
    settings = parse_settings(Namespace(**SWEEP), {})
    then = manifest(options=dict(settings.text), stages=[stage(0, 1.0, 4.0)], versions=made)
    return differences(then, settings, {})


@pytest.mark.parametrize("version", [None, versions()["llm-locust"]])
def test_the_same_sweep_differs_in_nothing(version: str | None) -> None:
    assert found(version) == []


@pytest.mark.parametrize("sweep", ["rate=5,10", "users=1,2", "lengths=16:8,32:8"])
def test_what_locust_sets_when_a_load_begins_is_no_difference(sweep: str) -> None:
    settings = parse_settings(Namespace(sweep=sweep, num_users=None, spawn_rate=None), {})
    began = {**settings.text, "num_users": 1, "spawn_rate": 1}
    assert differences(manifest(options=began, stages=[stage(0, 1.0, 4.0)]), settings, {}) == []
    (text,) = differences(
        manifest(options={**began, "spawn_rate": 3}, stages=[stage(0, 1.0, 4.0)]), settings, {}
    )
    assert text == "--spawn-rate was 3, now 1"


def test_another_version_is_named_with_what_to_do() -> None:
    (text,) = found("0.0.1")
    assert text.startswith("llm-locust was 0.0.1, now ")
    assert text.endswith("install 0.0.1 again, or name another --out")


def test_each_file_that_the_load_is_made_of_is_compared_by_its_content(tmp_path: Path) -> None:
    data, lengths, own = (tmp_path / name for name in ("d.txt", "l.csv", "own.py"))
    folder = tmp_path / "prompts"
    folder.mkdir()
    (folder / "a.txt").write_text("hello")
    data.write_text("one\n")
    lengths.write_text("16\n")
    own.write_text("")

    def named(**options: str) -> dict[str, str]:
        return digests(input_files(parse_settings(Namespace(**SWEEP, **options), {}), [str(own)]))

    given = {"dataset": str(data), "output_tokens": f"file:{lengths}"}
    then = named(**given)
    assert then.keys() == {"own.py", str(data), str(lengths)}
    assert changed(then, named(**given)) == []
    for file in (data, lengths, own):
        before = file.read_text()
        file.write_text(before + "32\n")
        name = file.name if file is own else str(file)
        assert changed(then, named(**given)) == [f"the content of {name!r} is another one"]
        file.write_text(before)
    assert changed(then, named()) == [
        f"the file {str(file)!r} is not read any more" for file in (data, lengths)
    ]
    of_folder = named(dataset=str(folder))
    (folder / "a.txt").rename(folder / "b.txt")
    assert changed(of_folder, named(dataset=str(folder))) == [
        f"the content of {str(folder)!r} is another one"
    ]
    settings = parse_settings(Namespace(**SWEEP, **given), {})
    edited = manifest(options=dict(settings.text), stages=[stage(0, 1.0, 4.0)], files={**then, "own.py": "0"})
    assert differences(edited, settings, then) == ["the content of 'own.py' is another one"]


@pytest.mark.parametrize(("host", "says"), [("http://127.0.0.1:2", True), ("http://gateway", False)])
def test_a_simulator_at_a_new_port_says_how_to_keep_one(tmp_path: Path, host: str, says: bool) -> None:
    create_run_dir(tmp_path / "run")
    write_manifest(tmp_path / "run", manifest(host="http://127.0.0.1:1", options=SWEEP))
    info: RunInfo = {"host": host, "model": None}  # type: ignore[typeddict-item]
    with pytest.raises(UsageError) as raised:
        check_server([tmp_path / "run"], info)
    assert ("start `llm-locust sim` by itself" in str(raised.value)) is says
