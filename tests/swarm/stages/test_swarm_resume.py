"""A sweep whose process is killed in its second stage of three, and resumed: the same stages, none twice."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
from swarm_process import LOCUSTFILES, Process, Result, Simulation, locust, simulation, wait_until

from llm_locust.core import EXIT_INVALID, EXIT_USAGE
from llm_locust.core.manifest import StageFacts
from llm_locust.core.stages import finished
from llm_locust.metrics.question import Question
from llm_locust.report.analysis import analyse
from llm_locust.report.inputs import Source
from llm_locust.store import StoreError, read_manifest

SWEEP = (
    *("--headless", "--input-tokens", "16", "--output-tokens", "12", "--warmup", "0.2s", "-r", "100"),
    *("--sweep", "users=1,2,3", "--stage-time", "2s", "--out", "run"),
)


@dataclass(frozen=True)
class Resumed:
    killed: Path
    refused: Process
    edited: Process
    process: Process
    again: Process
    result: Result
    seen: list[dict[str, Any]]  # by the server
    seen_again: int

    @property
    def stages(self) -> list[StageFacts]:
        return self.result.manifest.stages


def _stages(run: Path) -> list[StageFacts]:
    with suppress(StoreError):
        return read_manifest(run).stages
    return []


def _ended(
    folder: Path, sim: Simulation, words: Sequence[str], name: str, file: Path = LOCUSTFILES / "chat.py"
) -> Process:
    with locust(folder, "-H", sim.url, *SWEEP, "--resume", *words, locustfile=file, stdout=name) as process:
        process.exit_code()
    return process


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Resumed:
    folder = tmp_path_factory.mktemp("resumed")

    def is_in_second() -> bool:
        found = _stages(folder / "run")
        return len(found) == 2 and found[1].measured_ns is not None

    with simulation(folder) as sim:
        with locust(folder, "-H", sim.url, *SWEEP, locustfile=LOCUSTFILES / "chat.py") as process:
            wait_until(is_in_second, "the second stage")
            process.signal(SIGKILL)
            assert process.exit_code() == -SIGKILL
        refused = _ended(folder, sim, ("--stage-time", "1s", "--slo", "ttft=1s"), "refused")
        edited = folder / "edited" / "chat.py"
        edited.parent.mkdir()
        edited.write_text((LOCUSTFILES / "chat.py").read_text() + "# Another load.\n")
        refused_too = _ended(folder, sim, (), "refused_too", edited)
        process = _ended(folder, sim, (), "resumed")
        seen = list(sim.entries())
        again = _ended(folder, sim, (), "again")
        return Resumed(
            folder / "run" / "part-1",
            refused,
            refused_too,
            process,
            again,
            Result.read(folder / "run"),
            seen,
            len(list(sim.entries())),
        )


def test_other_settings_are_refused_with_what_differs(run: Resumed) -> None:
    assert run.refused.exit_code() == EXIT_USAGE
    assert "--slo was not given, now 'ttft=1s'; --stage-time was '2s', now '1s'" in run.refused.stderr


def test_an_edited_locustfile_is_refused_by_its_name(run: Resumed) -> None:
    assert run.edited.exit_code() == EXIT_USAGE
    assert "not the sweep in 'run': the content of 'chat.py' is another one" in run.edited.stderr


def test_the_stages_are_those_of_the_sweep_and_none_ran_twice(run: Resumed) -> None:
    assert run.process.exit_code() in (0, EXIT_INVALID), run.process.stderr
    assert [stage.asked for stage in finished(run.stages)] == [1, 2, 3]
    assert [(s.number, s.asked, s.repeated_as) for s in run.stages] == [
        *((0, 1, None), (1, 2, 2)),  # the first part
        *((2, 2, None), (3, 3, None)),
    ]
    first = read_manifest(run.killed)
    assert first.stopped_ns is None
    assert run.stages[0] == first.stages[0]
    begun_ns = run.stages[2].begun_ns
    of_first = run.result.requests.floats("stage") == 0
    assert of_first.any()
    assert (run.result.requests.ints("ended_ns")[of_first] < begun_ns).all()


def test_every_request_of_a_finished_stage_has_its_record(run: Resumed) -> None:
    rows = run.result.rows()
    done = finished(run.stages)
    assert run.result.summary["completeness"]["complete"]
    for entry in run.seen:
        if any(s.begun_ns <= entry["received_ns"] < (s.drained_ns or 0) for s in done):
            assert entry["request_id"] in rows
    (first, second) = run.result.summary["parts"]["parts"]
    assert first["lost"] >= 0
    assert (first["ended_by"], second["lost"]) == ("its master died and gave no reason", 0)


def test_the_interrupted_stage_is_no_result_and_says_so(run: Resumed) -> None:
    summary = run.result.summary
    cut = summary["stages"][1]
    assert (cut["is_result"], cut["figures"], cut["repeated_as"]) == (False, None, 2)
    assert cut["reasons"] == ["the run ended while it was under way; stage 2 repeats it"]
    assert "repeats" not in summary, "its repetition is no second measurement"
    assert all(summary["stages"][n]["figures"]["requests"]["ok"] for n in (0, 2, 3))
    assert "2 parts" in run.process.stdout


def test_it_is_one_run_again_whose_stages_can_be_asked_for(run: Resumed) -> None:
    found = analyse(Source.of(run.result.path), Question(where="stage==0")).summary
    assert found.requests.ok == run.result.summary["stages"][0]["figures"]["requests"]["ok"]


def test_nothing_is_left_to_resume(run: Resumed) -> None:
    assert run.seen_again == len(run.seen)
    assert run.again.exit_code() == run.process.exit_code()
    assert "is finished: its report is made again" in run.again.stderr
