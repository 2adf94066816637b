"""Gates on some of a run's requests that held because those never sent, or lost, were left out.

- Of 2,200 requests of two arms 2,000 were never sent: without arms the goodput was 9 %, and each arm had
  100 %, and held every gate. So it was with 1,000 lost requests and --allow-incomplete.
- A stage of a sweep with 400 of 600 requests never sent had a goodput of 33 %; ``--where stage==1`` had
  100 %, and held its gates. A certified gate on the stage before, which had sent all, failed.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from metrics_cases import ns, request, stage
from report_cases import lost_records, seen_worker, summary, write_run

from llm_locust.cli.main import main
from llm_locust.core.manifest import ArmFacts, StageFacts
from llm_locust.figures.arms import show as arms_sections
from llm_locust.figures.goodput import show as goodput_section
from llm_locust.figures.summary import typed
from llm_locust.report.markdown import markdown

ARMS = [ArmFacts(name=name, url="http://x", share=1.0) for name in "ab"]
OF_ARMS = [request(i * 0.04, arm="ab"[i % 2], name="chat") for i in range(200)]
ENDING = "and it is not known to which arm they belong"


def of_arms(gates: str, *, unsent: int = 0, lost: int = 0) -> dict[str, Any]:
    workers = lost_records(200, lost) if lost else [seen_worker(0, 200)]
    workers = [replace(worker, unsent=unsent) for worker in workers]
    return summary(OF_ARMS, arms=ARMS, open_loop=True, slo="ttft=100ms", gates=gates, workers=workers)


@pytest.mark.parametrize(
    "gate",
    [
        "goodput>=95%",
        "p99_ttft_scheduled<200ms",
        "max_e2el_scheduled<200ms",
        "mean_ttft_scheduled<200ms",
        "p50_schedule_delay<200ms",
        "certified p50_ttft_scheduled<200ms",
    ],
)
def test_a_gate_of_an_arm_cannot_tell_if_it_holds_only_without_the_requests_never_sent(gate: str) -> None:
    assert [each["passed"] for each in of_arms(gate)["gates"]] == [True, True]
    found = of_arms(gate, unsent=2000)
    why = f"cannot tell: 2,000 requests were never sent, {ENDING}"
    assert [(each["passed"], each["reason"]) for each in found["gates"]] == [(False, why)] * 2
    assert found["requests"]["unsent"] == 2000
    assert found["arms"][0]["figures"]["requests"]["unsent"] is None


def test_a_gate_that_requests_never_sent_cannot_change_holds_for_each_arm() -> None:
    found = of_arms("error_rate<1% certified p50_ttft<200ms rps>1 goodput_rps>1", unsent=2000, lost=1000)
    assert all(each["passed"] for each in found["gates"])


def test_a_gate_holds_for_each_arm_that_would_have_held_it_with_all_requests_without_a_record() -> None:
    found = of_arms("goodput>=95% p50_ttft_scheduled<200ms", unsent=2, lost=3)  # 100 of 105 are 95.2 %
    assert [each["passed"] for each in found["gates"]] == [True] * 4
    (first, *_) = of_arms("goodput>=96%", unsent=1, lost=4)["gates"]
    assert first["reason"] == f"cannot tell: 1 request was never sent and 4 requests were lost, {ENDING}"


def test_a_gate_that_an_arm_breaks_by_its_own_requests_says_so() -> None:
    (first, *_) = of_arms("p99_ttft_scheduled<10ms", unsent=2000)["gates"]
    assert first["reason"] == "50 ms is not < 10 ms"


def test_the_section_of_arms_says_how_many_requests_no_arm_has() -> None:
    (section, *_) = arms_sections(typed(of_arms("", unsent=2000, lost=3)))
    said = "2,000 requests of the run never sent, 3 requests of the run lost: it is not known to which arm"
    assert any(note.text.startswith(said) for note in section.notes)
    (section, *_) = arms_sections(typed(of_arms("")))
    assert not any("not known" in note.text for note in section.notes)


def reported(run: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """The exit code of a report, and its summary."""
    code = main(["report", str(run), "--out", str(run / "again"), *options])
    return code, json.loads((run / "again" / "summary.json").read_text())


def outcomes(found: dict[str, Any]) -> list[tuple[bool, str | None]]:
    return [(each["passed"], each["reason"]) for each in found["gates"]]


def test_no_arm_holds_a_goodput_without_the_requests_that_were_lost(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", OF_ARMS, arms=ARMS, workers=lost_records(200, 1000), slo="ttft=100ms")
    code, found = reported(run, "--gate", "goodput>=95%", "--allow-incomplete")
    assert code == 1
    assert outcomes(found) == [(False, f"cannot tell: 1,000 requests were lost, {ENDING}")] * 2
    assert found["goodput"]["ratio"] == pytest.approx(200 / 1200)


GATES = "goodput>=95% p99_ttft_scheduled<200ms certified p50_ttft_scheduled<200ms p99_ttft<200ms"


def sweep(path: Path, *, in_stage: int = 400, in_all: int = 400, lost: int = 0) -> Path:
    """A sweep of 100 requests, then of 200 beside ``in_stage`` that were never sent."""
    made = [request(i * 0.1, stage=0) for i in range(100)]
    made += [request(20 + i * 0.05, stage=1) for i in range(200)]
    stages: Sequence[StageFacts] = [
        stage(0, 0.0, 10.0, kind="rate", asked=10.0, begun_ns=ns(0.0)),
        stage(1, 20.0, 30.0, kind="rate", asked=60.0, begun_ns=ns(20.0), unsent=in_stage),
    ]
    (worker,) = lost_records(300, lost) if lost else [seen_worker(0, 300)]
    return write_run(
        path,
        made,
        open_loop=True,
        stages=stages,
        workers=[replace(worker, unsent=in_all)],
        stopped_ns=ns(30.0),
        slo="ttft=100ms",
        options={"sweep": "rate=10,60"},
    )


def test_a_gate_on_one_stage_of_a_sweep_counts_the_requests_that_it_never_sent(tmp_path: Path) -> None:
    run = sweep(tmp_path / "run")
    _, whole = reported(run)
    code, found = reported(run, "--where", "stage==1", "--gate", GATES)
    assert code == 1
    assert [each["passed"] for each in found["gates"]] == [False, False, False, True]
    assert found["requests"]["unsent"] == 400
    assert found["goodput"]["ratio"] == whole["stages"][1]["figures"]["goodput"]["ratio"] == 200 / 600


def test_a_gate_on_a_stage_that_sent_all_holds_whatever_other_stages_did_not_send(tmp_path: Path) -> None:
    code, found = reported(sweep(tmp_path / "run"), "--where", "stage == 0", "--gate", GATES)
    assert (code, outcomes(found)) == (0, [(True, None)] * 4)
    assert found["requests"]["unsent"] == 0


@pytest.mark.parametrize("where", ["stage in (0)", "stage==0 and output_tokens>0", "stage<1"])
def test_a_gate_on_another_selection_cannot_tell_if_it_holds_only_without_them(
    tmp_path: Path, where: str
) -> None:
    code, found = reported(sweep(tmp_path / "run"), "--where", where, "--gate", GATES)
    why = (
        "cannot tell: 400 requests were never sent, and it is not known whether they are among the selected "
        "requests"
    )
    assert (code, outcomes(found)) == (1, [(False, why)] * 3 + [(True, None)])
    (note,) = [each for each in goodput_section(typed(found)).notes if "not counted" in each.text]
    assert note.text.startswith(
        "400 requests of the run never sent: it is not known whether they belong here"
    )
    assert note.text in markdown(typed(found))


def test_a_request_never_sent_that_no_stage_counts_may_be_of_any_stage(tmp_path: Path) -> None:
    """The run ended during a stage, which then does not count its own."""
    _, found = reported(sweep(tmp_path / "run", in_stage=0), "--where", "stage==1", "--gate", "goodput>=95%")
    ((passed, reason),) = outcomes(found)
    assert not passed
    assert reason is not None
    assert reason.startswith("cannot tell: 400 requests were never sent")


def test_a_lost_request_may_be_of_any_stage(tmp_path: Path) -> None:
    run = sweep(tmp_path / "run", in_stage=0, in_all=0, lost=50)
    asked = ("--allow-incomplete", "--where", "stage==0", "--gate")
    code, found = reported(run, *asked, "goodput>=95% p99_ttft_scheduled<200ms")
    assert [each["passed"] for each in found["gates"]] == [False, True]
    assert "50 requests were lost" in found["gates"][0]["reason"]
    assert code == 1
    assert reported(run, *asked, "goodput>=60%")[0] == 0  # 100 of at most 150


def test_a_gate_on_a_selection_of_a_run_that_lacks_no_request_holds(tmp_path: Path) -> None:
    run = sweep(tmp_path / "run", in_stage=0, in_all=0)
    code, found = reported(run, "--where", "stage==1 and output_tokens>0", "--gate", GATES)
    assert (code, outcomes(found)) == (0, [(True, None)] * 4)
