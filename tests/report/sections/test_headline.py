"""The answer of a report in one line: result, cause, exit code."""

from typing import Any

import pytest
from msgspec import structs
from report_cases import held_back, lost_records, records, summary, told

from llm_locust.core.record import Outcome
from llm_locust.figures.summary import Summary, typed
from llm_locust.figures.verdict import RunVerdict
from llm_locust.report.sections.findings import findings
from llm_locust.report.sections.headline import verdict

SLOW = {"kind": "slow", "text": "replica-2 is 4.5 times slower than the others", "replica": "replica-2"}


def gated(*gates: tuple[str, float | None, bool], reason: str | None = None, **sections: Any) -> Summary:
    """A summary with gates ``(text, value, passed)``, none of whose requests failed."""
    outcomes = [
        {"text": text, "value": value, "at_least": None, "passed": passed, "reason": reason, "note": None}
        for text, value, passed in gates
    ]
    return typed({**summary(records(bad=0)), "gates": outcomes, **sections})


def uneven(*causes: dict[str, str]) -> dict[str, Any]:
    return {"fairness": {**summary()["fairness"], "causes": list(causes)}}


def test_a_failed_run_names_its_broken_gates_the_cause_and_the_code() -> None:
    found = gated(
        ("goodput>=95%", 0.65, False), ("error_rate<1%", 0.02, False), ("rps>1", 9.5, True), **uneven(SLOW)
    )
    assert verdict(found, RunVerdict(1, "2 of 3 gates failed")).line == (
        "FAIL: goodput 65.0 % (at least 95 % required), error rate 2.0 % (below 1 %) · "
        "cause: replica-2 is 4.5 times slower than the others · exit 1"
    )


def test_a_passed_run_has_its_gates_with_their_figures_and_the_code() -> None:
    found = gated(("goodput>=95%", 0.992, True), ("p95_ttft<800ms", 143.2, True), ("rps>1", 9.5, True))
    assert verdict(found, RunVerdict(0)).line == (
        "PASS: goodput 99.2 % (at least 95 %), p95 TTFT 143 ms (below 800 ms), "
        "9.5 requests/s (above 1) · exit 0"
    )


def test_a_passed_run_with_a_finding_has_it_as_a_reservation() -> None:
    found = gated(("goodput>=95%", 0.992, True), **uneven(SLOW))
    assert " · but: replica-2 is 4.5 times slower" in verdict(found, RunVerdict(0)).line


def test_an_invalid_client_that_is_not_required_to_be_valid_says_why_the_code_is_0() -> None:
    made = records(bad=0, kernel_stamps=False, client_lag_ns=30_000_000)
    line = verdict(typed(summary(made, gates="rps>1")), RunVerdict(0)).line
    assert line.startswith("PASS: 9.3 requests/s (above 1) · but: the client is invalid: ")
    assert line.endswith(" · exit 0, as --require-valid was not given")


@pytest.mark.parametrize(
    ("gate", "value", "words"),
    [
        ("goodput>=95%", 0.9496, "goodput 94.96 % (at least 95 % required)"),
        ("error_rate<1%", 0.01, "error rate 1.0 % (below 1 % required)"),
        ("error_rate<1%", 0.010001, "error rate 1.0001 % (below 1 % required)"),
        ("p99_ttft<=800ms", 800.4, "p99 TTFT 800.4 ms (at most 800 ms required)"),
        ("p99_9_e2el<30s", 41234.0, "p99.9 E2EL 41.2 s (below 30 s required)"),
        ("certified p99_ttft<2s", 2600.0, "certified p99 TTFT 2,600 ms (below 2 s required)"),
        ("output_tps>2000", 1234.5, "1,234 output tokens/s (above 2,000 required)"),
        ("standstill_s<=2", 5.25, "standstill 5.25 s (at most 2 s required)"),
    ],
)
def test_a_figure_is_told_with_as_many_digits_as_tell_it_from_its_limit(
    gate: str, value: float, words: str
) -> None:
    assert verdict(gated((gate, value, False)), RunVerdict(1, "it broke")).result == words


def test_a_gate_that_could_not_tell_says_why_instead_of_a_figure_that_holds() -> None:
    why = "cannot tell: p99 needs 100 samples, there are 50"
    found = gated(("p99_ttft<800ms", 143.0, False), reason=why)
    assert verdict(found, RunVerdict(1, "x")).result == f"p99 TTFT (below 800 ms required): {why}"
    found = gated(("goodput>=95%", None, False), reason="no SLO was given")
    assert verdict(found, RunVerdict(1, "x")).result == ("goodput (at least 95 % required): no SLO was given")


def test_gates_that_the_run_cannot_judge_are_unknown() -> None:
    why = "cannot tell: p99 needs 100 samples, there are 50"
    found = gated(("p99_ttft<800ms", 143.0, False), ("rps>1", 9.5, True), reason=why)
    found = structs.replace(found, gates=[structs.replace(found.gates[0], undecided=True), found.gates[1]])
    told = verdict(found, RunVerdict(3, "1 of 2 gates cannot be judged", is_undecided=True))
    assert told.line == f"UNKNOWN: p99 TTFT (below 800 ms): {why} · exit 3"
    assert verdict(found).word == "UNKNOWN"


def test_many_gates_are_counted_after_the_first() -> None:
    found = gated(*((f"rps>{i}", 0.5, False) for i in range(1, 7)))
    assert verdict(found, RunVerdict(1, "x")).result.endswith("(above 3), 3 more gates")


@pytest.mark.parametrize(
    ("code", "word"), [(1, "FAIL"), (3, "INVALID"), (4, "INCOMPLETE"), (17, "FAIL"), (0, "PASS")]
)
def test_each_code_has_its_word_and_the_reason_of_what_no_gate_decided(code: int, word: str) -> None:
    found = verdict(told(), RunVerdict(code, "a reason" if code else ""))
    assert found.word == word
    assert found.line.endswith(f" · exit {code}")
    assert ("a reason" in found.result) is bool(code)


def test_without_gates_failed_requests_speak_against_the_run_and_a_good_one_says_what_it_had() -> None:
    assert verdict(told()).line == (
        "FAIL: 5 of 100 requests failed, and no gate says how many may · cause: 5 failures: HTTP 503, no room"
    )
    good = verdict(typed(summary(records(bad=0, ok=10), slo="")))
    assert good.line == "PASS: 10 requests, none failed, no gate was given · exit 0"


def test_the_cause_of_errors_is_no_slow_replica_and_the_cause_of_late_answers_no_error() -> None:
    made = {**summary(), **uneven(SLOW)}
    gate = {"text": "error_rate<1%", "value": 0.05, "at_least": None, "passed": False}
    errors = typed({**made, "gates": [{**gate, "reason": "x", "note": None}]})
    assert verdict(errors, RunVerdict(1, "x")).cause == "5 failures: HTTP 503, no room"
    late = typed({**made, "gates": [{**gate, "text": "p50_ttft<1ms", "reason": "x", "note": None}]})
    assert verdict(late, RunVerdict(1, "x")).cause.startswith("replica-2 is 4.5 times slower")


def test_what_spoils_the_figures_comes_before_what_they_show() -> None:
    made = held_back(records(kernel_stamps=False, client_lag_ns=None))
    found = typed({**summary(made, workers=lost_records(100, 7)), **uneven(SLOW)})
    assert [each.key for each in findings(found)] == [
        *("records", "client", "replicas", "buffered", "limits", "failures"),
    ]
    assert verdict(found, RunVerdict(4, "records are missing")).cause == "worker-1: lost, 7 records missing"


def test_a_kind_of_failure_is_told_by_its_first_text_and_not_by_its_pattern() -> None:
    late = records(ok=1, bad=0, outcome=Outcome.TIMEOUT, error="no event within 60 s (first)")
    made = [*records(bad=0), *late]
    found = next(each for each in findings(typed(summary(made))) if each.key == "failures")
    assert found.text == "1 failure: too late, no event within 60 s (first)"


def test_gates_that_cannot_tell_for_one_reason_are_named_with_it_once() -> None:
    few = "cannot tell: the limit needs 100 requests, there are 32"
    found = gated(("goodput>=99%", 1.0, False), ("error_rate<1%", 0.0, False), reason=few)
    gates = [structs.replace(gate, undecided=True) for gate in found.gates]
    line = verdict(structs.replace(found, gates=gates), RunVerdict(3, is_undecided=True)).line
    assert line == f"UNKNOWN: goodput (at least 99 %), error rate (below 1 %): {few} · exit 3"


def test_requests_that_mostly_failed_are_the_cause_beside_a_client_that_was_late() -> None:
    late = records(ok=20, bad=80, kernel_stamps=False, client_lag_ns=30_000_000)
    line = verdict(typed(summary(late, gates="goodput>=95%", slo="ttft=1s"))).line
    assert " · cause: 80 failures: HTTP 503, no room" in line
    few = records(ok=99, bad=1, kernel_stamps=False, client_lag_ns=30_000_000)
    line = verdict(typed(summary(few, gates="goodput>=99.9%", slo="ttft=10ms"))).line
    assert " · cause: the client is invalid: " in line
