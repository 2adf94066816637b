"""``llm-locust k8s run``, by the real kubectl against a fake API server."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from cluster_cases import RUNNING, FakeCluster, Run, ended, fake_cluster, pod
from k8s_tools import kubectl_on_path
from swarm_process import wait_until

from llm_locust.cli.main import main
from llm_locust.k8s import command as following

Start = Callable[..., Run]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    with kubectl_on_path(), fake_cluster(tmp_path / "cluster") as made:
        yield made


@pytest.fixture
def start(cluster: FakeCluster, tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def begin(*words: str) -> Run:
            folder = tmp_path / "here"
            folder.mkdir()
            run = Run(cluster, folder, *words)
            stack.callback(run.end)
            return run

        yield begin


def left(cluster: FakeCluster) -> tuple[int, int]:
    """How many objects were created, and how many removed."""
    made = [line for line in cluster.requests if line.startswith("POST") and "exec" not in line]
    gone = [line for line in cluster.requests if line.startswith("DELETE")]
    return len(made), len(gone)


def test_a_run_ends_with_its_own_code_its_log_and_its_files(
    cluster: FakeCluster, start: Start, tmp_path: Path
) -> None:
    run = start("--name", "nightly", "--out", "kept")
    name = cluster.name_of_the_run()
    assert name.startswith("nightly-")
    cluster.says("first")
    wait_until(lambda: "first" in run.out.read_text(), "the log", 60)
    cluster.writes(name, **{"manifest.json": "{}", "report.md": "fine" * 100_000})
    cluster.says("the report", '{"goodput": 1}')
    cluster.ends(3)
    assert run.code() == 3, run.said
    assert run.out.read_text().splitlines() == ["first", "the report", '{"goodput": 1}']
    kept = tmp_path / "here" / "kept"
    assert (kept / "report.md").read_text() == "fine" * 100_000
    assert [path.name for path in kept.parent.iterdir() if path.name.startswith(".")] == []
    assert cluster.was_fetched
    assert left(cluster) == (11, 11)
    assert not any("DELETE" in line and line.endswith("/namespaces/perf") for line in cluster.requests)


def test_what_cannot_start_ends_at_once_with_the_reason_and_the_end_of_its_log(
    cluster: FakeCluster, start: Start
) -> None:
    cluster.pods(pod("master", RUNNING), pod("worker", ended(1), "Failed"))
    cluster.says("Traceback")
    run = start()
    assert run.code() == 2
    assert "ended with code 1 as soon as it had started" in run.said
    assert "Traceback" in run.said
    assert left(cluster) == (11, 11)


def test_a_job_whose_pods_are_refused_says_why(cluster: FakeCluster, start: Start) -> None:
    cluster.pods()
    message = 'pods "x" is forbidden: exceeded quota'
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e"},
        "reason": "FailedCreate",
        "message": message,
    }
    (cluster.folder / "events.json").write_text(json.dumps([event]))
    run = start()
    assert run.code() == 2
    assert message in run.said


def test_objects_that_are_refused_leave_nothing(cluster: FakeCluster, start: Start) -> None:
    (cluster.folder / "refuses").write_text("jobs is forbidden: you cannot create them")
    run = start()
    assert run.code() == 2
    assert "jobs is forbidden" in run.said


def test_a_master_that_is_killed_gives_4_and_its_reason(cluster: FakeCluster, start: Start) -> None:
    cluster.pods(pod("master", ended(137, "OOMKilled"), "Failed"), pod("worker", RUNNING))
    run = start()
    assert run.code() == 4
    assert "ended with code 137: OOMKilled" in run.said


def test_a_master_whose_pod_is_gone_gives_4_and_what_is_on_its_volume(
    cluster: FakeCluster, start: Start, tmp_path: Path
) -> None:
    run = start("--out", "kept", "--volume", "results")
    name = cluster.name_of_the_run()
    cluster.says("loading")
    wait_until(lambda: "loading" in run.out.read_text(), "the log", 60)
    cluster.writes(name, **{"manifest.json": "{}"})
    cluster.pods(pod("worker", RUNNING))
    assert run.code() == 4, run.said
    assert "the master's pod is gone" in run.said
    assert (tmp_path / "here" / "kept" / "manifest.json").read_text() == "{}"
    assert left(cluster) == (12, 12)  # the pod that read the volume among them


def test_a_run_out_of_reach_gives_4_and_nothing_of_it_is_removed(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(following, "_OUT_OF_REACH_S", 1.0)
    monkeypatch.setenv("KUBECONFIG", str(cluster.folder / "kubeconfig"))
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text("users: 5\nrun_time: 1m\nhost: http://llm:8000\n")

    def leave() -> None:
        wait_until(lambda: "/log?" in "".join(requests_of(cluster)), "the log", 60)
        (cluster.folder / "away").touch()

    with ThreadPoolExecutor(1) as pool:
        left_it = pool.submit(leave)
        code = main(["k8s", "run", "--scenario", "s.yaml", "--workers", "1", "-n", "perf"])
        left_it.result()
    said = capsys.readouterr().err
    assert code == 4, said
    assert "the run is left to itself" in said
    assert "of the master's pod until 15 minutes after its end" in said
    assert "remove it later by: kubectl -n perf delete" in said
    assert left(cluster) == (11, 0)


def requests_of(cluster: FakeCluster) -> list[str]:
    return cluster.requests if (cluster.folder / "requests").exists() else []


def test_a_log_that_is_cut_off_goes_on_where_it_was_and_a_run_that_could_not_start_has_no_files(
    cluster: FakeCluster, start: Start, tmp_path: Path
) -> None:
    (cluster.folder / "cut").touch()  # the server ends each answer after what there is
    run = start("--out", "kept")
    cluster.says("one", "two")
    wait_until(lambda: "two" in run.out.read_text(), "the log", 60)
    cluster.says("three")
    wait_until(lambda: "three" in run.out.read_text(), "the log", 60)
    cluster.ends(2)
    assert run.code() == 2
    assert run.out.read_text().split() == ["one", "two", "three"]
    assert not (tmp_path / "here" / "kept").exists()


def test_ctrl_c_ends_the_run_in_order_and_cleans_up(
    cluster: FakeCluster, start: Start, tmp_path: Path
) -> None:
    run = start("--out", "kept")
    name = cluster.name_of_the_run()
    run.interrupt()
    wait_until((cluster.folder / "interrupted").exists, "the signal in the pod", 60)
    cluster.writes(name, **{"report.md": "short"})
    cluster.ends(4)
    assert run.code() == 4
    assert (tmp_path / "here" / "kept" / "report.md").read_text() == "short"
    assert left(cluster) == (11, 11)


def test_a_second_ctrl_c_ends_it_at_once_and_cleans_up(cluster: FakeCluster, start: Start) -> None:
    run = start()
    cluster.name_of_the_run()
    run.interrupt()
    wait_until((cluster.folder / "interrupted").exists, "the signal in the pod", 60)
    run.interrupt()
    assert run.code() == 4
    assert left(cluster) == (11, 11)


def test_an_interrupted_transfer_is_tried_again_and_then_said(
    cluster: FakeCluster, start: Start, tmp_path: Path
) -> None:
    run = start("--out", "kept")
    name = cluster.name_of_the_run()
    cluster.writes(name, **{"report.md": "fine"})
    (cluster.folder / "truncates").touch()
    cluster.ends(0)
    assert run.code() == 4
    assert "did not arrive" in run.said
    assert not list((tmp_path / "here").glob("*kept*"))
