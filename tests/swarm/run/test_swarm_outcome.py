"""What the process that ran a load adds to the verdict on its records."""

from typing import Any

import pytest
from metrics_cases import batch, failed, manifest, request

from llm_locust.core.record import RequestRecord
from llm_locust.figures.summarise import summarise
from llm_locust.figures.summary import Summary, typed
from llm_locust.figures.verdict import RunVerdict, verdict
from llm_locust.swarm.roles.outcome import with_code_on_error, with_faults, without_gates


def summary(records: list[RequestRecord], **of_run: Any) -> Summary:
    return typed(summarise(batch(*records), manifest(**of_run)))


CUT = RunVerdict(4, "the run was cut short")


@pytest.mark.parametrize("code", [0, 1, 3])
@pytest.mark.parametrize(
    ("part_failed", "uploaded", "reason"),
    [
        (True, None, "a part of the load or of the harness failed: see the log"),
        (True, False, "a part of the load or of the harness failed: see the log"),
        (False, False, "the run was not copied to the destination of --upload"),
    ],
)
def test_a_part_that_failed_makes_a_result_incomplete_whatever_its_code_was(
    code: int, part_failed: bool, uploaded: bool | None, reason: str
) -> None:
    found = with_faults(RunVerdict(code, "for a reason"), part_failed=part_failed, uploaded=uploaded)
    assert found == RunVerdict(4, reason)


@pytest.mark.parametrize("found", [RunVerdict(0), RunVerdict(1, "1 of 1 gates failed"), CUT])
@pytest.mark.parametrize("uploaded", [None, True])
def test_without_a_fault_a_verdict_stays(found: RunVerdict, uploaded: bool | None) -> None:
    assert with_faults(found, part_failed=False, uploaded=uploaded) == found


def test_the_reason_of_an_incomplete_run_is_not_replaced_by_what_failed_after_it() -> None:
    assert with_faults(CUT, part_failed=True, uploaded=False) == CUT


@pytest.mark.parametrize(("failed", "asked", "code"), [(0, 1, 0), (3, 1, 1), (3, 7, 7), (3, 0, 0)])
def test_without_gates_failed_requests_have_the_code_that_was_asked_for(
    failed: int, asked: int, code: int
) -> None:
    assert with_code_on_error(without_gates(failed), asked).code == code


def test_without_gates_a_server_that_stood_still_has_failed_too() -> None:
    found = without_gates(0, "it stood still")
    assert (found.code, found.reason) == (1, "it stood still")
    assert with_code_on_error(found, 0) == RunVerdict(0)


@pytest.mark.parametrize(("gates", "asked", "code"), [("rps>0", 7, 7), ("rps>0", 0, 0), ("rps>99", 0, 1)])
def test_the_code_that_was_asked_for_is_that_of_failures_beside_gates_and_of_no_broken_gate(
    gates: str, asked: int, code: int
) -> None:
    found = verdict(summary([request(), failed(1.0)], gates=gates), manifest(gates=gates))
    assert found is not None
    assert with_code_on_error(found, asked).code == code
