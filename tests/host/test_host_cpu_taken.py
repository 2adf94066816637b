"""CPU time that a process did not get, out of the kernel's counters."""

from pathlib import Path

import pytest

from llm_locust.host import CpuTaken, RunQueueWaits, Taken

STAT = "cpu  {user} 0 100 5000 50 0 0 {steal} 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n"
LIMIT = "nr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 123\n"


@pytest.fixture
def system(tmp_path: Path) -> Path:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "cgroup").mkdir()
    stat(tmp_path)
    return tmp_path


def stat(system: Path, user: int = 1000, steal: int = 10) -> None:
    (system / "proc" / "stat").write_text(STAT.format(user=user, steal=steal))


def limit(system: Path, folder: str, periods: int, throttled: int) -> None:
    place = system / "cgroup" / folder
    place.mkdir(parents=True, exist_ok=True)
    (place / "cpu.stat").write_text(LIMIT.format(periods=periods, throttled=throttled))


def reader(system: Path, groups: str) -> CpuTaken:
    (system / "proc" / "self" / "cgroup").write_text(groups)
    return CpuTaken(system / "proc", system / "cgroup")


def test_steal_is_a_share_of_the_cpu_time_that_was_wanted_and_idling_is_not(system: Path) -> None:
    counters = reader(system, "0::/\n")
    before = counters.read()
    assert (before.wanted, before.stolen) == (1110, 10)
    stat(system, user=1090, steal=20)
    assert counters.read().steal_percent(before) == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("groups", "folder"),
    [
        ("0::/kube/pod\n", "kube/pod"),
        ("0::/\n", ""),
        ("0::/../other\n", ""),
        ("4:memory:/a\n2:cpu,cpuacct:/kube\n0::/\n", "cpu,cpuacct/kube"),
        ("1:cpu:/kube\n", "cpu/kube"),
        ("0::/kube\n", "unified/kube"),
    ],
)
def test_a_limit_is_found_in_both_versions_of_cgroups(system: Path, groups: str, folder: str) -> None:
    limit(system, folder, 100, 5)
    counters = reader(system, groups)
    before = counters.read()
    limit(system, folder, 150, 10)
    assert counters.read().throttled_percent(before) == pytest.approx(10.0)


def test_a_limit_of_a_group_above_counts_too(system: Path) -> None:
    limit(system, "kube", 100, 0)
    limit(system, "kube/pod", 0, 0)
    counters = reader(system, "0::/kube/pod\n")
    before = counters.read()
    limit(system, "kube", 200, 40)
    limit(system, "kube/pod", 50, 1)
    assert counters.read().throttled_percent(before) == pytest.approx(40)


def test_where_nothing_is_limited_nothing_is_throttled(system: Path) -> None:
    limit(system, "", 0, 0)
    counters = reader(system, "0::/\n")
    assert counters.read().throttled_percent(counters.read()) == 0.0


def waits(system: Path, **ns: int) -> None:
    for thread, waited_ns in ns.items():
        place = system / "proc" / "self" / "task" / thread
        place.mkdir(parents=True, exist_ok=True)
        (place / "schedstat").write_text(f"123456 {waited_ns} 7\n")


def test_the_wait_for_a_core_is_that_of_all_threads_new_ones_too(system: Path) -> None:
    counters = reader(system, "0::/\n")
    waits(system, t1=5_000, t2=100)
    before = counters.read().waits
    waits(system, t1=9_000, t2=100, t3=1_000)
    after = counters.read().waits
    assert before is not None
    assert after is not None
    then = Taken(waits=RunQueueWaits(0, before.ns))
    assert Taken(waits=RunQueueWaits(10_000, after.ns)).run_queue_percent(then) == pytest.approx(50.0)


def test_a_thread_that_ended_or_whose_id_is_another_ones_takes_nothing_off() -> None:
    then = Taken(waits=RunQueueWaits(0, {"1": 500, "2": 900}))
    assert Taken(waits=RunQueueWaits(100, {"2": 10, "3": 20})).run_queue_percent(then) == pytest.approx(20.0)
    assert then.run_queue_percent(then) == 0.0, "no time went by"


def test_this_process_has_threads_with_waits() -> None:
    counters = CpuTaken()
    percent = counters.read().run_queue_percent(counters.read())
    assert percent is None or percent >= 0.0


@pytest.mark.parametrize("text", ["", "12", "12 x 3"])
def test_a_kernel_that_does_not_count_waits_tells_nothing(system: Path, text: str) -> None:
    waits(system, t1=1)
    (system / "proc" / "self" / "task" / "t1" / "schedstat").write_text(text)
    assert reader(system, "0::/\n").read().waits is None


def test_a_system_without_such_counters_tells_nothing(tmp_path: Path) -> None:
    counters = CpuTaken(tmp_path / "none", tmp_path / "none")
    taken = counters.read()
    assert taken == Taken()
    assert (taken.steal_percent(taken), taken.throttled_percent(taken)) == (None, None)
    assert taken.run_queue_percent(taken) is None


@pytest.mark.parametrize("text", ["", "cpu\n", "cpu a b c d e f g h\n", "cpu 1 2 3\n"])
def test_a_line_of_another_form_tells_nothing(system: Path, text: str) -> None:
    (system / "proc" / "stat").write_text(text)
    assert reader(system, "").read().stolen is None


def test_this_systems_own_counters_can_be_read() -> None:
    taken = CpuTaken().read()
    assert taken.wanted is None or taken.wanted > 0
