"""Checks of this machine, each as a function of figures."""

from pathlib import Path

import pytest

from llm_locust.client.probing import StampTrial
from llm_locust.doctor.finding import Finding, Status
from llm_locust.doctor.machine import (
    Cpu,
    LoopLag,
    ServerTime,
    judge_clock_source,
    judge_files,
    judge_loop,
    judge_memory,
    judge_ports,
    judge_quota,
    judge_reader,
    judge_server_clock,
    judge_stamps as judge_kernel_stamps,
    judge_steal,
    judge_throttling,
)
from llm_locust.host import (
    ClockSource,
    FileLimits,
    Ports,
    clock_source,
    cpu_limit_cores,
    ephemeral_ports,
    memory_available_bytes,
)

MIB = 1 << 20


def judged(finding: Finding, status: Status, *words: str) -> None:
    """The status is as expected, the words are there, and a warning or failure says what to change."""
    assert finding.status is status, finding
    for word in words:
        assert word in f"{finding.figure} | {finding.change}"
    assert bool(finding.change) or status in (Status.OK, Status.SKIPPED)


@pytest.mark.parametrize(
    ("hard", "users", "status", "words"),
    [
        (None, 1_000_000, Status.OK, "unlimited"),
        (1_048_576, 1_000, Status.OK, "1,064 needed for 1,000 users"),
        (256, 10, Status.WARN, "over 192 requests at once fail"),
        (256, 200, Status.FAIL, "ulimit -n 264"),
        (1_023, 959, Status.WARN, "ulimit -n 65536"),
        (1_024, 961, Status.FAIL, "1,024 at most, 1,025 needed for 961 users"),
    ],
)
def test_open_files_are_held_against_the_users(
    hard: int | None, users: int, status: Status, words: str
) -> None:
    judged(judge_files(FileLimits(64, hard), users), status, words)


@pytest.mark.parametrize(
    ("ports", "users", "status", "words"),
    [
        (Ports(32_768, 60_999, 12), 1_000, Status.OK, "28,232 (32768-60999), 12 in TIME_WAIT"),
        (Ports(32_768, 60_999, None), 28_233, Status.FAIL, "28,233 needed"),
        (Ports(32_768, 60_999, None), 28_232, Status.WARN, "ip_local_port_range"),
        (Ports(32_768, 60_999, 20_000), 10, Status.WARN, "20,000 in TIME_WAIT"),
        (Ports(60_999, 32_768, 0), 10, Status.FAIL, "0 ("),
        (None, 10, Status.SKIPPED, "does not report"),
    ],
)
def test_local_ports_are_held_against_the_users(
    ports: Ports | None, users: int, status: Status, words: str
) -> None:
    judged(judge_ports(ports, users), status, words)


def test_ports_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    assert ephemeral_ports(tmp_path) is None
    (tmp_path / "sys/net/ipv4").mkdir(parents=True)
    (tmp_path / "sys/net/ipv4/ip_local_port_range").write_text("1024\t65535\n")
    assert ephemeral_ports(tmp_path) == Ports(1024, 65535, None)
    (tmp_path / "net").mkdir()
    (tmp_path / "net/sockstat").write_text("sockets: used 9\nTCP: inuse 5 orphan 0 tw 77 alloc 6 mem 1\n")
    assert ephemeral_ports(tmp_path) == Ports(1024, 65535, 77)
    (tmp_path / "sys/net/ipv4/ip_local_port_range").write_text("many\n")
    assert ephemeral_ports(tmp_path) is None


@pytest.mark.parametrize(
    ("left_mib", "users", "status", "words"),
    [
        (8_192, 1_000, Status.OK, "8,192 MiB left, about 250 MiB needed for 1,000 users"),
        (400, 1_000, Status.WARN, "memory limit"),
        (128, 10, Status.FAIL, "151 MiB needed"),
        (None, 10, Status.SKIPPED, "does not report"),
    ],
)
def test_memory_is_held_against_the_users(
    left_mib: int | None, users: int, status: Status, words: str
) -> None:
    judged(judge_memory(None if left_mib is None else left_mib * MIB, users), status, words)


def test_memory_left_is_that_of_the_machine_or_of_a_tighter_container(tmp_path: Path) -> None:
    assert memory_available_bytes(tmp_path, tmp_path) is None
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    2048 kB\n")
    assert memory_available_bytes(tmp_path, tmp_path) == 2 * MIB
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/\n")
    (tmp_path / "memory.max").write_text(f"{MIB}\n")
    (tmp_path / "memory.current").write_text("0\n")
    assert memory_available_bytes(tmp_path, tmp_path) == MIB


def cpu(
    cores: int = 4,
    limit_cores: float | None = None,
    steal_percent: float | None = 0.0,
    throttled_percent: float | None = 0.0,
) -> Cpu:
    return Cpu(cores, limit_cores, steal_percent, throttled_percent, measured_s=1.5)


@pytest.mark.parametrize(
    ("found", "status", "words"),
    [
        (cpu(), Status.OK, "4 cores, no limit below that"),
        (cpu(limit_cores=8), Status.OK, "no limit below that"),
        (cpu(limit_cores=2.5), Status.OK, "at most 2 workers"),
        (cpu(limit_cores=0.5), Status.WARN, "0.500 of 4 cores, by the container's CPU limit"),
    ],
)
def test_a_cpu_limit_below_one_core_is_named(found: Cpu, status: Status, words: str) -> None:
    judged(judge_quota(found), status, words)


def test_a_cpu_limit_of_a_container_is_named(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/kubepods/pod\n")
    (tmp_path / "groups/kubepods/pod").mkdir(parents=True)
    (tmp_path / "groups/kubepods/pod/cpu.max").write_text("20000 100000\n")
    limit = cpu_limit_cores(tmp_path / "proc", tmp_path / "groups")
    judged(judge_quota(cpu(limit_cores=limit)), Status.WARN, "0.200 of 4 cores")


@pytest.mark.parametrize(
    ("percent", "throttling", "steal"),
    [
        (None, Status.SKIPPED, Status.SKIPPED),
        (0.0, Status.OK, Status.OK),
        (1.5, Status.WARN, Status.OK),
        (5.0, Status.WARN, Status.WARN),
        (11.0, Status.WARN, Status.WARN),
    ],
)
def test_cpu_taken_is_a_warning_from_where_a_report_says_that_it_starved_a_late_client(
    percent: float | None, throttling: Status, steal: Status
) -> None:
    judged(judge_throttling(cpu(throttled_percent=percent)), throttling)
    judged(judge_steal(cpu(steal_percent=percent)), steal)


def test_a_late_event_loop_is_a_warning() -> None:
    judged(judge_loop(LoopLag(0.2, 40.0, 1.0)), Status.OK, "0.200 ms late (p99), 40.0 ms at most")
    judged(judge_loop(LoopLag(1.1, 1.1, 1.0)), Status.WARN, "other programs")


@pytest.mark.parametrize(
    ("trial", "status", "words"),
    [
        (StampTrial(32, 32, 0, 12_300), Status.OK, "32 of 32 reads on loopback have one, 12.3 µs"),
        (StampTrial(32, 31, 0, 9_000), Status.WARN, "31 of 32"),
        (StampTrial(32, 0, 0, None), Status.WARN, "gVisor"),
        (StampTrial(32, 32, 2, 9_000), Status.WARN, "2 of them are wrong"),
        (None, Status.WARN, "loopback cannot be used"),
    ],
)
def test_a_kernel_that_does_not_stamp_every_read_is_named(
    trial: StampTrial | None, status: Status, words: str
) -> None:
    judged(judge_kernel_stamps(trial), status, words)


def test_a_reader_in_python_is_said_with_its_reason() -> None:
    judged(judge_reader(None), Status.OK, "a thread in C")
    judged(judge_reader("the C module was not built"), Status.WARN, "the C module was not built")


@pytest.mark.parametrize(
    ("source", "status"),
    [
        (ClockSource("tsc", 60), Status.OK),
        (ClockSource("kvm-clock", 90), Status.OK),
        (ClockSource(None, 90), Status.OK),
        (ClockSource("hpet", 90), Status.WARN),
        (ClockSource("tsc", 1_200), Status.WARN),
    ],
)
def test_a_slow_clock_is_named(source: ClockSource, status: Status) -> None:
    judged(judge_clock_source(source), status, "ns a reading")


def test_the_cost_of_a_reading_is_that_of_the_fastest_batch(tmp_path: Path) -> None:
    (tmp_path / "current").write_text("tsc\n")
    times = iter(range(0, 10**9, 70))
    source = clock_source(tmp_path / "current", lambda: next(times))
    assert source.name == "tsc"
    assert source.reading_ns == pytest.approx(70, rel=0.01)
    assert clock_source(tmp_path / "none").name is None


@pytest.mark.parametrize(
    ("date", "status", "words"),
    [
        ("Thu, 01 Jan 1970 00:16:40 GMT", Status.OK, "within 1 s"),
        ("Thu, 01 Jan 1970 00:16:39 GMT", Status.OK, "within 1 s"),
        ("Thu, 01 Jan 1970 00:16:45 GMT", Status.WARN, "4.50 s ahead"),
        ("Thu, 01 Jan 1970 00:16:30 GMT", Status.WARN, "9.00 s behind"),
        ("Thu, 01 Jan 1970 00:16:42 GMT", Status.OK, "1.50 s ahead"),
        ("tomorrow", Status.SKIPPED, "not a date"),
        ("Thu, 01 Jan 99999999 00:16:40 GMT", Status.SKIPPED, "not a date"),
        (None, Status.SKIPPED, "no Date"),
    ],
)
def test_the_servers_clock_is_as_far_off_as_date_proves(date: str | None, status: Status, words: str) -> None:
    judged(judge_server_clock(ServerTime(date, before_s=1_000.0, after_s=1_000.5)), status, words)


def test_without_an_answer_there_is_no_clock() -> None:
    judged(judge_server_clock(None), Status.SKIPPED)
