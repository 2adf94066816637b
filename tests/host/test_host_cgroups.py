"""Limits of a container, as files of both versions of cgroups have them."""

from pathlib import Path

import pytest

from llm_locust.host import cpu_limit_cores, memory_left_bytes

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
