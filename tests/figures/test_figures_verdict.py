"""The verdict on a run: its line, its exit code, and the bad runs that must not get 0."""

from typing import Any

import pytest
from metrics_cases import batch, failed, manifest, request
from msgspec import structs
from msgspec.structs import replace
from report_cases import held_back, lost_records, records, summary, told
from summaries import summarise, typed

from llm_locust.core.manifest import Manifest, TaskException, WorkerFacts
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.figures.run_facts import AnalysisFacts
from llm_locust.figures.search import SearchAnswer, SearchFacts
from llm_locust.figures.summary import Summary
from llm_locust.figures.verdict import RunVerdict, stood_still, verdict
from llm_locust.metrics.limits import parse_gates
from llm_locust.report.headline import findings, headline_of


def judged(records: list[RequestRecord], run: Manifest, **options: Any) -> RunVerdict | None:
    return verdict(typed(summarise(batch(*records), run)), run, **options)


def code(records: list[RequestRecord], run: Manifest, **options: Any) -> int | None:
    found = judged(records, run, **options)
    return None if found is None else found.code


def worker(announced: int, received: int) -> list[WorkerFacts]:
    return [WorkerFacts(id="w1", index=0, announced=announced, received=received)]


WHOLE: dict[str, Any] = {"workers": worker(1, 1)}
MISSING: dict[str, Any] = {"workers": worker(9, 1)}
RAISING: dict[str, Any] = {"task_exceptions": [TaskException(error="KeyError: 'x'", count=3)]}
INVALID = request(kernel_stamps=False, client_lag_ns=10**9)


@pytest.mark.parametrize(
    ("record", "fields", "expected"),
    [
        (request(), WHOLE, None),
        (request(), {**WHOLE, "gates": "rps>0"}, 0),
        (request(), {**WHOLE, "gates": "rps>0 rps>99"}, 1),
        (request(), MISSING, 4),
        (request(), {**MISSING, "gates": "rps>99"}, 4),
        (request(), {**MISSING, **RAISING}, 4),
        (request(), {**WHOLE, "cut_short": True, "stop_reason": "no worker was left", "gates": "rps>0"}, 4),
        (INVALID, WHOLE, None),
        (INVALID, {**WHOLE, "require_valid": True}, 3),
        (INVALID, {**WHOLE, "require_valid": True, "gates": "rps>99"}, 3),
        (INVALID, {**MISSING, "require_valid": True}, 4),
        (request(), {**WHOLE, **RAISING, "gates": "rps>99"}, 3),
    ],
)
def test_missing_comes_before_invalid_and_invalid_before_a_broken_gate(
    record: RequestRecord, fields: dict[str, Any], expected: int | None
) -> None:
    assert code([record], manifest(**fields)) == expected


def test_missing_records_can_be_allowed() -> None:
    assert code([request()], manifest(**MISSING, gates="rps>0"), allow_incomplete=True) == 0


#: Every one ran to its end with all its records, and with gates that a missing figure might pass.
BAD_RUNS: dict[str, tuple[list[RequestRecord], dict[str, Any]]] = {
    "nothing was sent": ([], {}),
    "the warm-up swallowed all": ([request(1.0), request(2.0)], {"warmup_s": 9.0}),
    "only first tries of requests sent again": ([request(outcome=Outcome.RESENT)], {}),
    "a hung server": ([request(k, (), ended=10.0, outcome=Outcome.CANCELLED) for k in range(3)], {}),
    "every request failed": ([failed(k) for k in range(3)], {}),
    "every task raised, and sent nothing": ([], RAISING),
    "every task raised, after its request": ([request(k) for k in range(3)], RAISING),
}


@pytest.mark.parametrize("name", list(BAD_RUNS))
def test_a_run_that_measured_nothing_or_another_load_is_invalid_whatever_gates_say(name: str) -> None:
    records, fields = BAD_RUNS[name]
    for gates in ("", "error_rate<=100%"):
        found = judged(records, manifest(**fields, gates=gates))
        assert found is not None
        broken = found.code == 1 and "gates failed" in found.reason
        assert broken or found.code == 3, gates


#: Four of ten fail, in 5 ms as the others answer, so that every gate that does not count them holds.
FOUR_OF_TEN = [failed(k) if k < 4 else request(k, (0.004, 0.005)) for k in range(10)]


@pytest.mark.parametrize(
    "gates",
    [
        *("p50_ttft<1s", "p75_ttft>1ms", "rps>0", "output_tps>0", "requests>5", "standstill_s<=2"),
        *("max_ttft>0s", "error_rate>1%", "goodput<=100%", "p50_schedule_delay<1s", "p50_e2el<1s rps>0"),
    ],
)
def test_a_gate_that_limits_no_failures_leaves_the_check_that_none_may_fail(gates: str) -> None:
    found = judged(FOUR_OF_TEN, manifest(**WHOLE, gates=gates, slo="e2el=1s"))
    assert found is not None
    assert (found.code, found.is_of_failures) == (1, True)
    assert found.reason.startswith("4 of 10 requests failed, and no gate limits that")


@pytest.mark.parametrize(
    "gate",
    [
        *("error_rate<1%", "goodput>=10%", "p90_ttft<1s", "p99_e2el<1s", "max_itl<1s", "mean_ttft<1s"),
        *("certified p90_ttft<1s", "p99_9_tpot<1s"),
    ],
)
def test_a_gate_that_many_failures_break_says_how_many_may_fail(gate: str) -> None:
    (limit,) = parse_gates(gate)
    assert limit.limits_failures
    accepted = f"rps>0 {gate if gate == 'goodput>=10%' else 'error_rate<=40%'}"
    assert code(FOUR_OF_TEN, manifest(**WHOLE, gates=accepted, slo="e2el=1s")) == 0


def test_failures_of_the_warm_up_are_named_apart_and_fail_no_run() -> None:
    run = manifest(**WHOLE, warmup_s=4.0, gates="p50_ttft<1s")
    assert code(FOUR_OF_TEN, run) == 0
    counts = summarise(batch(*FOUR_OF_TEN), run)["requests"]
    assert (counts["failed"], counts["failed_outside"]) == (0, 4)


def test_who_selects_failed_requests_is_not_told_that_they_failed() -> None:
    run = manifest(**WHOLE, gates="rps>=0")
    summary = typed(summarise(batch(*FOUR_OF_TEN), run))
    selected = replace(summary, analysis=AnalysisFacts([], "outcome!=ok", 10, 10, None, []))
    assert verdict(selected, run) == RunVerdict(0)


def test_failed_requests_beside_one_that_succeeded_are_for_the_caller_without_gates() -> None:
    assert judged([request(), failed(1.0)], manifest(**WHOLE)) is None


def searched(record: RequestRecord, gates: str, at_most: float | None) -> RunVerdict | None:
    run = manifest(**WHOLE, gates=gates)
    answer = SearchAnswer(
        None,
        None,
        None,
        None,
        at_most=at_most,
        limit="ok",
        good_per_s=None,
        good_low=None,
        good_high=None,
        is_resolved=False,
        why="over",
    )
    search = SearchFacts(objective="max rate", unit="requests/s", stages=[], answer=answer)
    return verdict(replace(typed(summarise(batch(record), run)), search=search), run)


@pytest.mark.parametrize(
    ("record", "gates", "expected"),
    [(request(), "", 0), (failed(), "", 3), (failed(), "error_rate<=100%", 3)],
)
def test_a_search_in_which_no_request_succeeded_has_no_code_of_success(
    record: RequestRecord, gates: str, expected: int
) -> None:
    found = searched(record, gates, at_most=0.5)
    assert found is not None
    assert found.code == expected


@pytest.mark.parametrize("gates", ["", "rps>0", "edge>=30"])
def test_a_search_without_an_answer_is_invalid_whatever_gates_say(gates: str) -> None:
    assert searched(request(), gates, at_most=None) == RunVerdict(3, "the search has no answer: over")


def test_a_gate_on_an_edge_of_which_an_upper_bound_is_known_breaks() -> None:
    assert searched(request(), "edge>=30", at_most=0.5) == RunVerdict(1, "1 of 1 gates failed")


def hung_from(at: float) -> list[RequestRecord]:
    """Three users, and a server that answers none from then on; the run ends after 10 s."""
    well = [request(i * 0.05) for i in range(round(at / 0.05))]
    return [*well, *(request(at + i, (), ended=9.9, outcome=Outcome.CANCELLED) for i in (0.01, 0.02, 0.03))]


@pytest.mark.parametrize(
    ("at", "gates", "expected"),
    [
        (5.0, "error_rate<1%", 1),
        (5.0, "error_rate<50% standstill_s<=9", 0),
        (5.0, "error_rate<1% standstill_s<=9", 3),  # three requests were given up, and may have failed
        (5.0, "error_rate<1% standstill_s<=2", 1),
        (5.0, "error_rate<1% standstill_s>=0", 1),
        (9.5, "error_rate<1%", 0),
    ],
)
def test_a_server_that_stood_still_fails_a_run_whose_few_requests_hold_their_gates(
    at: float, gates: str, expected: int
) -> None:
    found = judged(hung_from(at), manifest(**WHOLE, gates=gates))
    assert found is not None
    assert found.code == expected
    if "standstill_s<" not in gates and expected:
        assert found.reason.startswith("the server stood still for 4.8")


def test_without_gates_it_is_for_the_process_that_ran_the_load_to_fail_a_standstill() -> None:
    run = manifest(**WHOLE)
    assert judged(hung_from(5.0), run) is None
    summary = typed(summarise(batch(*hung_from(5.0)), run))
    assert stood_still(summary).startswith("the server stood still for 4.8")
    assert not stood_still(typed(summarise(batch(*hung_from(9.5)), run)))


@pytest.mark.parametrize(
    ("unsent", "gates", "expected"),
    [
        (8, "error_rate<100%", 3),
        (8, "error_rate<100% goodput>=50%", 0),
        (8, "error_rate<100% goodput>=95%", 1),
        (8, "rps>99", 1),
        (1, "error_rate<100%", 0),
    ],
)
def test_a_load_of_which_much_was_never_sent_is_not_the_one_asked_for(
    unsent: int, gates: str, expected: int
) -> None:
    sent = [request(k * 0.1, (0.11, 0.12)) for k in range(10)]
    workers = [WorkerFacts(id="w1", index=0, announced=10, received=10, unsent=unsent)]
    found = judged(sent, manifest(workers=workers, open_loop=True, gates=gates, slo="e2el=1s"))
    assert found is not None
    assert found.code == expected, found
    assert ("8 of 18 requests were never sent" in found.reason) is (expected == 3)


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


def test_a_passed_run_with_a_finding_has_it_as_a_reservation() -> None:
    found = gated(("goodput>=95%", 0.992, True), **uneven(SLOW))
    assert " · but: replica-2 is 4.5 times slower" in headline_of(found, RunVerdict(0)).line


def test_an_invalid_client_that_is_not_required_to_be_valid_says_why_the_code_is_0() -> None:
    made = records(bad=0, kernel_stamps=False, client_lag_ns=30_000_000)
    line = headline_of(typed(summary(made, gates="rps>1")), RunVerdict(0)).line
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
    assert headline_of(gated((gate, value, False)), RunVerdict(1, "it broke")).result == words


def test_a_gate_that_could_not_tell_says_why_instead_of_a_figure_that_holds() -> None:
    why = "cannot tell: p99 needs 100 samples, there are 50"
    found = gated(("p99_ttft<800ms", 143.0, False), reason=why)
    assert headline_of(found, RunVerdict(1, "x")).result == f"p99 TTFT (below 800 ms required): {why}"
    found = gated(("goodput>=95%", None, False), reason="no SLO was given")
    assert headline_of(found, RunVerdict(1, "x")).result == (
        "goodput (at least 95 % required): no SLO was given"
    )


def test_gates_that_the_run_cannot_judge_are_unknown() -> None:
    why = "cannot tell: p99 needs 100 samples, there are 50"
    found = gated(("p99_ttft<800ms", 143.0, False), ("rps>1", 9.5, True), reason=why)
    found = structs.replace(found, gates=[structs.replace(found.gates[0], undecided=True), found.gates[1]])
    told = headline_of(found, RunVerdict(3, "1 of 2 gates cannot be judged", is_undecided=True))
    assert told.line == f"UNKNOWN: p99 TTFT (below 800 ms): {why} · exit 3"
    assert headline_of(found).word == "UNKNOWN"


def test_many_gates_are_counted_after_the_first() -> None:
    found = gated(*((f"rps>{i}", 0.5, False) for i in range(1, 7)))
    assert headline_of(found, RunVerdict(1, "x")).result.endswith("(above 3), 3 more gates")


@pytest.mark.parametrize(
    ("code", "word"), [(1, "FAIL"), (3, "INVALID"), (4, "INCOMPLETE"), (17, "FAIL"), (0, "PASS")]
)
def test_each_code_has_its_word_and_the_reason_of_what_no_gate_decided(code: int, word: str) -> None:
    found = headline_of(told(), RunVerdict(code, "a reason" if code else ""))
    assert found.word == word
    assert found.line.endswith(f" · exit {code}")
    assert ("a reason" in found.result) is bool(code)


def test_the_cause_of_errors_is_no_slow_replica_and_the_cause_of_late_answers_no_error() -> None:
    made = {**summary(), **uneven(SLOW)}
    gate = {"text": "error_rate<1%", "value": 0.05, "at_least": None, "passed": False}
    errors = typed({**made, "gates": [{**gate, "reason": "x", "note": None}]})
    assert headline_of(errors, RunVerdict(1, "x")).cause == "5 failures: HTTP 503, no room"
    late = typed({**made, "gates": [{**gate, "text": "p50_ttft<1ms", "reason": "x", "note": None}]})
    assert headline_of(late, RunVerdict(1, "x")).cause.startswith("replica-2 is 4.5 times slower")


def test_what_spoils_the_figures_comes_before_what_they_show() -> None:
    made = held_back(records(kernel_stamps=False, client_lag_ns=None))
    found = typed({**summary(made, workers=lost_records(100, 7)), **uneven(SLOW)})
    assert [each.key for each in findings(found)] == [
        *("records", "client", "replicas", "buffered", "limits", "failures"),
    ]
    assert (
        headline_of(found, RunVerdict(4, "records are missing")).cause == "worker-1: lost, 7 records missing"
    )


def test_a_kind_of_failure_is_told_by_its_first_text_and_not_by_its_pattern() -> None:
    late = records(ok=1, bad=0, outcome=Outcome.TIMEOUT, error="no event within 60 s (first)")
    made = [*records(bad=0), *late]
    found = next(each for each in findings(typed(summary(made))) if each.key == "failures")
    assert found.text == "1 failure: too late, no event within 60 s (first)"


def test_gates_that_cannot_tell_for_one_reason_are_named_with_it_once() -> None:
    few = "cannot tell: the limit needs 100 requests, there are 32"
    found = gated(("goodput>=99%", 1.0, False), ("error_rate<1%", 0.0, False), reason=few)
    gates = [structs.replace(gate, undecided=True) for gate in found.gates]
    line = headline_of(structs.replace(found, gates=gates), RunVerdict(3, is_undecided=True)).line
    assert line == f"UNKNOWN: goodput (at least 99 %), error rate (below 1 %): {few} · exit 3"


def test_requests_that_mostly_failed_are_the_cause_beside_a_client_that_was_late() -> None:
    late = records(ok=20, bad=80, kernel_stamps=False, client_lag_ns=30_000_000)
    line = headline_of(typed(summary(late, gates="goodput>=95%", slo="ttft=1s"))).line
    assert " · cause: 80 failures: HTTP 503, no room" in line
    few = records(ok=99, bad=1, kernel_stamps=False, client_lag_ns=30_000_000)
    line = headline_of(typed(summary(few, gates="goodput>=99.9%", slo="ttft=10ms"))).line
    assert " · cause: the client is invalid: " in line
