"""What the process that ran a load adds to the verdict on its records."""

from typing import Any

import pytest
from metrics_cases import batch, failed, manifest, request

from llm_locust.core.record import RequestRecord
from llm_locust.figures.summarise import summarise
from llm_locust.figures.summary import Summary, typed
from llm_locust.figures.verdict import RunVerdict, verdict
from llm_locust.swarm.roles.outcome import RunEnd, exit_verdict, without_gates


def summary(records: list[RequestRecord], **of_run: Any) -> Summary:
    return typed(summarise(batch(*records), manifest(**of_run)))


CUT = RunVerdict(4, "the run was cut short")
FAILED = without_gates(3)
BROKEN = RunVerdict(1, "1 of 1 gates failed")

#: What happened, and the code and reason that it gives; the first in each pair of rows rules over the second.
ENDS: dict[str, tuple[dict[str, Any], int, str]] = {
    "refused": ({"is_refused": True, "has_run": False, "judged": None}, 2, "the run was refused"),
    "refused with a report": ({"is_refused": True, "judged": CUT, "given": 7}, 2, "the run was refused"),
    "no load": ({"has_run": False, "judged": None, "given": 7}, 2, "no load was sent"),
    "none was asked for": ({"has_run": False, "was_to_run": False, "judged": None}, 0, ""),
    "none was asked for, and a listener's code": (
        {"has_run": False, "was_to_run": False, "judged": None, "given": 7},
        7,
        "the locustfile has set it",
    ),
    "no report": ({"judged": None, "part_failed": True, "given": 7}, 4, "there is no report"),
    "cut short": ({"judged": CUT, "part_failed": True, "is_uploaded": False}, 4, "the run was cut short"),
    "a part failed": ({"judged": BROKEN, "part_failed": True, "is_uploaded": False}, 4, "a part of the load"),
    "not uploaded": ({"judged": BROKEN, "is_uploaded": False}, 4, "the run was not copied"),
    "uploaded": ({"judged": BROKEN, "is_uploaded": True, "given": 7}, 1, "1 of 1 gates failed"),
    "failures": ({"judged": FAILED}, 1, "3 requests failed"),
    "failures with a code": ({"judged": FAILED, "code_on_error": 7, "given": 8}, 7, "3 requests failed"),
    "failures that are accepted": ({"judged": FAILED, "code_on_error": 0}, 0, ""),
    "failures that are accepted, and a listener's code": (
        {"judged": FAILED, "code_on_error": 0, "given": 8},
        8,
        "the locustfile has set it",
    ),
    "a server that stood still": ({"judged": without_gates(0, "it stood still")}, 1, "it stood still"),
    "a broken gate": ({"judged": BROKEN, "code_on_error": 0}, 1, "1 of 1 gates failed"),
    "all well": ({"judged": RunVerdict(0), "is_uploaded": True, "given": 0}, 0, ""),
}


@pytest.mark.parametrize(("facts", "code", "reason"), ENDS.values(), ids=ENDS)
def test_a_process_ends_with_the_first_code_that_applies(
    facts: dict[str, Any], code: int, reason: str
) -> None:
    found = exit_verdict(RunEnd(**facts))
    assert found.code == code
    assert found.reason.startswith(reason)


@pytest.mark.parametrize(("gates", "asked", "code"), [("rps>0", 7, 7), ("rps>0", 0, 0), ("rps>99", 0, 1)])
def test_the_code_that_was_asked_for_is_that_of_failures_beside_gates_and_of_no_broken_gate(
    gates: str, asked: int, code: int
) -> None:
    found = verdict(summary([request(), failed(1.0)], gates=gates), manifest(gates=gates))
    assert exit_verdict(RunEnd(judged=found, code_on_error=asked)).code == code
