"""Parts of ``k8s run`` without a cluster: what pods say, a resumed log, the process that holds a pod."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster_cases import RUNNING, ended, pod, waiting

from llm_locust.k8s.following.cluster import read_state
from llm_locust.k8s.following.files import Resumed
from llm_locust.k8s.following.run import asked_to_end


def test_a_run_under_way_has_no_trouble() -> None:
    state = read_state([pod("master", RUNNING), pod("worker", RUNNING)], 1)
    assert (state.is_running, state.code, state.trouble, state.waiting) == (True, None, None, "")


@pytest.mark.parametrize(
    ("reason", "message", "is_fatal"),
    [
        ("ContainerCreating", "", False),
        ("ErrImagePull", "connection reset by peer", False),  # another attempt may do
        ("ErrImagePull", "manifest unknown", True),
        ("ImagePullBackOff", "", True),
        ("InvalidImageName", "", True),
        ("CreateContainerConfigError", 'secret "x" not found', True),
    ],
)
def test_only_what_does_not_pass_by_itself_is_trouble(reason: str, message: str, is_fatal: bool) -> None:
    state = read_state([pod("master", waiting(reason, message), "Pending")], 1)
    assert (state.trouble is not None) == is_fatal
    assert not is_fatal or {reason, message} <= {
        word.strip() for word in [*str(state.trouble).split(":"), ""]
    }


@pytest.mark.parametrize(
    ("container", "is_fatal"),
    [
        (ended(2, seconds=5), True),
        (ended(2, seconds=50), False),  # it had its part in the run
        (ended(137, "OOMKilled"), False),
        (ended(0, "Completed"), False),
    ],
)
def test_a_worker_that_fails_at_once_is_trouble_and_one_that_is_killed_is_not(
    container: dict[str, Any], is_fatal: bool
) -> None:
    state = read_state([pod("master", RUNNING), pod("worker", container)], 1)
    assert (state.trouble is not None) == is_fatal


def test_a_pod_that_finds_no_node_is_waited_for_and_named() -> None:
    message = "0/3 nodes are available: insufficient cpu"
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    late = pod("worker", {}, "Pending", conditions=[condition], containerStatuses=[])
    state = read_state([pod("master", RUNNING), late], 1)
    assert state.trouble is None
    assert state.waiting.startswith("1 of 2 pods run; ")
    assert message in state.waiting


def test_an_evicted_master_has_ended() -> None:
    evicted = pod("master", {}, "Failed", reason="Evicted", message="low on memory", containerStatuses=[])
    state = read_state([evicted], 1)
    assert (state.code, state.reason) == (137, "Evicted: low on memory")


def test_a_job_past_its_deadline_is_said_when_its_pod_is_gone() -> None:
    condition = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "too long"}
    metadata = {"name": "x", "labels": {"app.kubernetes.io/component": "master"}}
    job = {"kind": "Job", "metadata": metadata, "status": {"conditions": [condition]}}
    assert "DeadlineExceeded" in str(read_state([job], 1).trouble)


def test_a_log_that_is_read_again_gives_each_line_once() -> None:
    lines = [
        "2026-01-01T10:00:00.1Z a",
        "2026-01-01T10:00:00.1Z b",
        "2026-01-01T10:00:00.15Z c",
        "2026-01-01T10:00:00.15Z c",
        "2026-01-01T10:00:01Z d",
    ]
    for cut in range(len(lines) + 1):
        log = Resumed()
        taken = [log.take(line) for line in lines[:cut]]
        log.restart()
        taken += [log.take(line) for line in lines]
        assert [text for text in taken if text is not None] == ["a", "b", "c", "c", "d"], cut


def hold(folder: Path, seconds: int, code: str) -> "subprocess.Popen[bytes]":
    environ = {**os.environ, "LLM_LOCUST_HOLD": str(folder)}
    words = ["-P", "-m", "llm_locust.k8s.hold", str(seconds), sys.executable, "-c", code]
    return subprocess.Popen([sys.executable, *words], env=environ, stdout=subprocess.PIPE)


def test_a_pod_stays_until_its_files_are_fetched_and_ends_with_the_runs_code(tmp_path: Path) -> None:
    (tmp_path / "fetched").touch()
    with hold(tmp_path, 600, "raise SystemExit(3)") as process:
        assert process.wait(60) == 3
    assert (tmp_path / "ended").read_text() == "3\n"


def test_a_pod_whose_files_nobody_fetches_ends_all_the_same(tmp_path: Path) -> None:
    with hold(tmp_path, 0, "raise SystemExit(1)") as process:
        assert process.wait(60) == 1


def test_a_signal_goes_to_the_run(tmp_path: Path) -> None:
    code = "import signal, sys; signal.signal(2, lambda *_: sys.exit(4)); print('on', flush=True)"
    with hold(tmp_path, 0, f"{code}; signal.pause()") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"on\n"
        process.send_signal(2)
        assert process.wait(60) == 4


@pytest.mark.parametrize(
    ("numbers", "asked_for"),
    [
        ((), (False, False)),
        ((signal.SIGINT,), (True, False)),
        ((signal.SIGINT, signal.SIGINT), (True, True)),
        ((signal.SIGTERM,), (True, True)),
    ],
)
def test_sigterm_and_a_second_ctrl_c_ask_for_an_end_at_once(
    numbers: tuple[signal.Signals, ...], asked_for: tuple[bool, bool]
) -> None:
    with asked_to_end() as asked:
        for number in numbers:
            signal.raise_signal(number)
            asked.wait(60)
        assert (asked.to_end, asked.at_once) == asked_for
