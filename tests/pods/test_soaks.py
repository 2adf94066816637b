"""The overlay soak, whose master is killed; a report that takes more memory than its container has."""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from k8s_tools import documents
from swarm_process import wait_until

from llm_locust.core.manifest import Manifest
from llm_locust.figures.summary import Summary, read_summary
from llm_locust.report.inputs import open_source
from llm_locust.store import SUMMARY_FILE, StoreError, read_manifest
from llm_locust.store.facts import parts_of
from pods.cases import named, rendered
from pods.cluster import Cluster, log, playing, volume

#: What the master of a soak that was killed has for its load to be back.
BACK_WITHIN_S = 20

#: The limit of the report's container.
MEMORY_OF_REPORTS = "memory: 4Gi"

#: What a file is called while it is written.
TEMPORARY = ".llm-locust-*"

LOGIN = {"llm-locust-web": {"user": "operator", "password": "only of this test"}}


@dataclass(frozen=True, slots=True)
class Soak:
    """What is left of one.

    Attributes:
        killed_ns: when its master was killed.
        idle_share: of the CPU, from then until its load was back.
        rolling: summary of the latest span, while the first part ran.
        restarts: of the master's pod, by container.
    """

    folder: Path
    killed_ns: int
    idle_share: float
    rolling: Summary
    restarts: dict[str, int]

    @property
    def summary(self) -> Summary:
        return read_summary((self.folder / SUMMARY_FILE).read_bytes())


@dataclass(frozen=True, slots=True)
class NoReport:
    """A run whose report was killed."""

    folder: Path
    code: int
    said: str
    restarts: dict[str, int]


def run_soak(folder: Path) -> tuple[Soak, NoReport]:
    """The soak, and beside it the run without a report, both against the demo's simulator."""
    name = named("soak")
    demo = documents(rendered(folder, name, workers=1))
    sim = [each for each in demo if each["metadata"]["name"] == f"{name}-llm-locust-sim"]
    target = ("--target", f"http://{name}-llm-locust-sim:8000")
    words = (*target, "--env", "LOCUST_RUN_TIME=90s", "--env", "LLM_LOCUST_ROLLING_SUMMARY=15s")
    own = rendered(folder, name, *words, workers=2, overlay="soak")
    manifests = own + "---\n" + yaml.safe_dump_all(sim)
    with playing(manifests, folder, name, LOGIN) as cluster, ThreadPoolExecutor(1) as pool:
        other = pool.submit(run_with_little_memory, folder, *target)
        soak = volume(cluster.master, "/runs") / "soak"
        wait_for_records(cluster, soak / "part-1")
        so_far = soak / "part-1" / "so-far" / SUMMARY_FILE
        wait_until(so_far.exists, "a rolling summary", 120)
        rolling = read_summary(so_far.read_bytes())
        before = cpu_times()
        killed_ns = cluster.master.kill()
        wait_for_records(cluster, soak / "part-2")
        spent = [after - earlier for earlier, after in zip(before, cpu_times(), strict=True)]
        wait_until(lambda: is_whole(soak), "the report of both parts", 240)
        left = shutil.copytree(soak, folder / "left", ignore=shutil.ignore_patterns(TEMPORARY))
        made = Soak(left, killed_ns, spent[3] / sum(spent), rolling, dict(cluster.master.restarts))
        return made, other.result()


def run_with_little_memory(folder: Path, *target: str) -> NoReport:
    name = named("oom")
    manifests = rendered(folder, name, *target, workers=1, overlay="jobset", run_time_s=6)
    assert manifests.count(MEMORY_OF_REPORTS) == 1
    small = manifests.replace(MEMORY_OF_REPORTS, "memory: 64Mi")
    with playing(small, folder, name) as cluster:
        master = cluster.master
        code = master.exit_code()
        said = "".join(log(master))
        (run,) = volume(master, "/runs").glob("*/manifest.json")
        left = shutil.copytree(run.parent, folder / "left-without-report")
        return NoReport(left, code, said, dict(master.restarts))


def is_whole(run: Path) -> bool:
    """Whether a report is there and nothing of it is being written."""
    files = (run / name for name in (SUMMARY_FILE, "report.md", "report.html"))
    return all(file.exists() for file in files) and not list(run.glob(TEMPORARY))


def wait_for_records(cluster: Cluster, part: Path) -> None:
    """Until the master has records of every worker in this part."""

    def under_way() -> bool:
        try:
            received = [worker.received for worker in read_manifest(part).workers]
        except (StoreError, OSError):  # there is none yet, or it is being written
            return False
        return len(received) >= len(cluster.workers()) and all(received)

    wait_until(under_way, f"records of every worker in {part.name}", 240)


def cpu_times() -> list[int]:
    """Of all CPUs together: user, nice, system, idle, and so on."""
    return [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Soak, NoReport]:
    return run_soak(tmp_path_factory.mktemp("soaks"))


@pytest.fixture
def soak(runs: tuple[Soak, NoReport]) -> Soak:
    return runs[0]


@pytest.fixture
def no_report(runs: tuple[Soak, NoReport]) -> NoReport:
    return runs[1]


def test_a_soak_whose_master_was_killed_has_one_report_that_names_the_gap(soak: Soak) -> None:
    parts = soak.summary.parts
    assert parts is not None
    assert [part.name for part in parts.parts] == ["part-1", "part-2"]
    (gap,) = parts.gaps
    assert gap.why == "its master died and gave no reason"
    assert soak.restarts["master"] == 1
    assert "after part-1" in (soak.folder / "report.md").read_text()


def test_its_load_is_back_20_s_after_the_kill(soak: Soak) -> None:
    with open_source(parts_of(soak.folder)[1:]) as source:
        first_ns = min(int(part.table["started_ns"].to_numpy().min()) for part in source.requests.parts())
    back_s = (first_ns - soak.killed_ns) * 1e-9
    print(f"load back after {back_s:.1f} s, {soak.idle_share:.0%} of the CPU idle meanwhile")
    assert back_s > 0
    if back_s > BACK_WITHIN_S and soak.idle_share < 0.2:
        pytest.skip(f"back after {back_s:.1f} s, on a machine with {soak.idle_share:.0%} of its CPU idle")
    assert back_s <= BACK_WITHIN_S


def test_a_soak_lasts_as_long_as_the_overlay_says_not_the_scenario(soak: Soak) -> None:
    facts: list[Manifest] = [read_manifest(part) for part in parts_of(soak.folder)]
    last_ns = facts[-1].ended_ns
    assert last_ns is not None
    assert last_ns - facts[0].started_ns > 45e9


def test_its_rolling_summaries_are_made_in_the_container_of_reports(soak: Soak) -> None:
    assert soak.rolling.requests.ok
    assert soak.restarts["report"] == 0


def test_a_report_out_of_memory_leaves_the_run_and_its_master(no_report: NoReport) -> None:
    assert no_report.code == 4, no_report.said
    assert "Traceback" not in no_report.said
    assert "signal 9" in no_report.said
    assert no_report.restarts["master"] == 0


def test_its_report_is_made_afterwards_from_all_records(no_report: NoReport, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "llm-locust"),
            "report",
            str(no_report.folder),
            "--out",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 3), done.stderr  # 3: it was too short for some of its gates
    manifest = read_manifest(no_report.folder)
    summary = read_summary((tmp_path / SUMMARY_FILE).read_bytes())
    assert summary.requests.ok
    assert summary.completeness.records_received == sum(worker.announced or 0 for worker in manifest.workers)
