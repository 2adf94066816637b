"""What the kernel says of this machine: limits of a container, CPU time taken, what has run out."""

import errno
from pathlib import Path

import pytest

from llm_locust.host import (
    CpuTaken,
    RunQueueWaits,
    Taken,
    cpu_limit_cores,
    exhausted,
    memory_left_bytes,
    reason_of,
)

# --- Limits of a container, as files of both versions of cgroups have them


MIB = 1 << 20


def system(folder: Path, groups: str, files: dict[str, str]) -> tuple[Path, Path]:
    """A /proc and cgroup file systems with these files."""
    proc, cgroups = folder / "proc", folder / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(groups)
    for name, text in files.items():
        (cgroups / name).parent.mkdir(parents=True, exist_ok=True)
        (cgroups / name).write_text(text)
    return proc, cgroups


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/pod\n", {"pod/cpu.max": "50000 100000\n"}, 0.5),
        ("0::/kube/pod\n", {"kube/pod/cpu.max": "max 100000\n", "kube/cpu.max": "150000 100000\n"}, 1.5),
        (
            "2:cpu,cpuacct:/pod\n0::/\n",
            {"cpu,cpuacct/pod/cpu.cfs_quota_us": "25000\n", "cpu,cpuacct/pod/cpu.cfs_period_us": "100000\n"},
            0.25,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ("0::/pod\n", {"pod/cpu.max": "max 100000\n"}, None),
        ("0::/pod\n", {"pod/cpu.max": "1 0\n"}, None),
        ("0::/pod\n", {"pod/cpu.max": "a b c\n"}, None),
        ("0::/pod\n", {}, None),
        ("nonsense", {}, None),
    ],
)
def test_the_cpu_limit_is_the_tightest_of_all_groups(
    tmp_path: Path, groups: str, files: dict[str, str], cores: float | None
) -> None:
    assert cpu_limit_cores(*system(tmp_path, groups, files)) == cores


@pytest.mark.parametrize(
    ("groups", "files", "left_mib"),
    [
        ("0::/pod\n", {"pod/memory.max": f"{512 * MIB}\n", "pod/memory.current": f"{100 * MIB}\n"}, 412),
        (
            "0::/pod\n",
            {
                "pod/memory.max": f"{512 * MIB}\n",
                "pod/memory.current": f"{500 * MIB}\n",
                "pod/memory.stat": f"anon 1\ninactive_file {300 * MIB}\n",
            },
            312,
        ),
        (
            "5:memory:/pod\n",
            {
                "memory/pod/memory.limit_in_bytes": f"{256 * MIB}\n",
                "memory/pod/memory.usage_in_bytes": f"{300 * MIB}\n",
            },
            0,
        ),
        (
            "5:memory:/\n",
            {"memory/memory.limit_in_bytes": "9223372036854771712\n", "memory/memory.usage_in_bytes": "1\n"},
            None,
        ),
        ("0::/pod\n", {"pod/memory.max": "max\n", "pod/memory.current": "1\n"}, None),
    ],
)
def test_the_memory_left_is_that_of_the_tightest_group(
    tmp_path: Path, groups: str, files: dict[str, str], left_mib: int | None
) -> None:
    expected = None if left_mib is None else left_mib * MIB
    assert memory_left_bytes(*system(tmp_path, groups, files)) == expected


def test_a_system_without_groups_sets_no_limit(tmp_path: Path) -> None:
    assert cpu_limit_cores(tmp_path, tmp_path) is None
    assert memory_left_bytes(tmp_path, tmp_path) is None


# --- CPU time that a process did not get, out of the kernel's counters


STAT = "cpu  {user} 0 100 5000 50 0 0 {steal} 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n"
LIMIT = "nr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 123\n"


@pytest.fixture
def cpu_system(tmp_path: Path) -> Path:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "cgroup").mkdir()
    stat(tmp_path)
    return tmp_path


def stat(cpu_system: Path, user: int = 1000, steal: int = 10) -> None:
    (cpu_system / "proc" / "stat").write_text(STAT.format(user=user, steal=steal))


def limit(cpu_system: Path, folder: str, periods: int, throttled: int) -> None:
    place = cpu_system / "cgroup" / folder
    place.mkdir(parents=True, exist_ok=True)
    (place / "cpu.stat").write_text(LIMIT.format(periods=periods, throttled=throttled))


def reader(cpu_system: Path, groups: str) -> CpuTaken:
    (cpu_system / "proc" / "self" / "cgroup").write_text(groups)
    return CpuTaken(cpu_system / "proc", cpu_system / "cgroup")


def test_steal_is_a_share_of_the_cpu_time_that_was_wanted_and_idling_is_not(cpu_system: Path) -> None:
    counters = reader(cpu_system, "0::/\n")
    before = counters.read()
    assert (before.wanted, before.stolen) == (1110, 10)
    stat(cpu_system, user=1090, steal=20)
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
def test_a_limit_is_found_in_both_versions_of_cgroups(cpu_system: Path, groups: str, folder: str) -> None:
    limit(cpu_system, folder, 100, 5)
    counters = reader(cpu_system, groups)
    before = counters.read()
    limit(cpu_system, folder, 150, 10)
    assert counters.read().throttled_percent(before) == pytest.approx(10.0)


def test_a_limit_of_a_group_above_counts_too(cpu_system: Path) -> None:
    limit(cpu_system, "kube", 100, 0)
    limit(cpu_system, "kube/pod", 0, 0)
    counters = reader(cpu_system, "0::/kube/pod\n")
    before = counters.read()
    limit(cpu_system, "kube", 200, 40)
    limit(cpu_system, "kube/pod", 50, 1)
    assert counters.read().throttled_percent(before) == pytest.approx(40)


def test_where_nothing_is_limited_nothing_is_throttled(cpu_system: Path) -> None:
    limit(cpu_system, "", 0, 0)
    counters = reader(cpu_system, "0::/\n")
    assert counters.read().throttled_percent(counters.read()) == 0.0


def waits(cpu_system: Path, **ns: int) -> None:
    for thread, waited_ns in ns.items():
        place = cpu_system / "proc" / "self" / "task" / thread
        place.mkdir(parents=True, exist_ok=True)
        (place / "schedstat").write_text(f"123456 {waited_ns} 7\n")


def test_the_wait_for_a_core_is_that_of_all_threads_new_ones_too(cpu_system: Path) -> None:
    counters = reader(cpu_system, "0::/\n")
    waits(cpu_system, t1=5_000, t2=100)
    before = counters.read().waits
    waits(cpu_system, t1=9_000, t2=100, t3=1_000)
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
def test_a_kernel_that_does_not_count_waits_tells_nothing(cpu_system: Path, text: str) -> None:
    waits(cpu_system, t1=1)
    (cpu_system / "proc" / "self" / "task" / "t1" / "schedstat").write_text(text)
    assert reader(cpu_system, "0::/\n").read().waits is None


def test_a_system_without_such_counters_tells_nothing(tmp_path: Path) -> None:
    counters = CpuTaken(tmp_path / "none", tmp_path / "none")
    taken = counters.read()
    assert taken == Taken()
    assert (taken.steal_percent(taken), taken.throttled_percent(taken)) == (None, None)
    assert taken.run_queue_percent(taken) is None


@pytest.mark.parametrize("text", ["", "cpu\n", "cpu a b c d e f g h\n", "cpu 1 2 3\n"])
def test_a_line_of_another_form_tells_nothing(cpu_system: Path, text: str) -> None:
    (cpu_system / "proc" / "stat").write_text(text)
    assert reader(cpu_system, "").read().stolen is None


def test_this_systems_own_counters_can_be_read() -> None:
    taken = CpuTaken().read()
    assert taken.wanted is None or taken.wanted > 0


# --- What has run out is said in words


@pytest.mark.parametrize(
    ("error", "begins"),
    [
        (MemoryError(), "memory has run out: raise `ulimit -v`"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory has run out"),
        (
            RuntimeError("can't start new thread"),
            "no more threads or processes can be started: raise `ulimit -u`",
        ),
        (OSError(errno.EMFILE, "x"), "Too many open files: raise `ulimit -n`"),
        (OSError(errno.ENFILE, "x"), "Too many open files in system: the whole machine"),
        (SystemError("(libev) epoll_create: Too many open files"), "Too many open files: raise `ulimit -n`"),
        (OSError(errno.ENOSPC, "x"), "No space left on device: free some of the disk"),
        (OSError(errno.EAGAIN, "Resource temporarily unavailable"), "no more threads or processes"),
    ],
)
def test_what_has_run_out_is_named_with_what_to_do(error: Exception, begins: str) -> None:
    assert str(exhausted(error)).startswith(begins)


@pytest.mark.parametrize(
    ("error", "words"),
    [(RuntimeError("x"), "x"), (OSError(errno.EACCES, "Permission denied"), "Permission denied")],
)
def test_other_errors_are_said_in_their_own_words(error: Exception, words: str) -> None:
    assert exhausted(error) is None
    assert reason_of(error) == words
