"""What was given up is not absent: a hung server passes no gate, however its requests ended.

- A server took no connection any more, and the run ended: requests that were never sent had no TTFT from
  sent, so that goodput was 100 %, p99 TTFT that of the others, and all gates passed. Now they count from
  started.
- A request that was cut had three events of four tokens, and no count by the server: its pace was that of
  events, four times too slow, and it was bad. Now it has the run's tokens per event.
- A server hung, and its requests timed out before the run ended: p99 TTFT was that of the others, and gates
  on latencies passed. Now they are censored like cut ones.
- A quarter of the requests that were due was never sent: a gate on ttft_scheduled passed. Now it is open.
- A steady window left out a hung server, and said that the run's goodput was 100 %. Now it is the run's own.
- Seven of eight users hung from the warm-up on: the window had the eighth's requests alone, its goodput was
  100 %, and its gates passed. Now the seven are bad, and leave the latencies open.
- ``report --warmup 0`` still left out what was due in the run's own warm-up and never sent.
- A fault ended a run early, and its exit code was 2: every case of its JUnit file passed. Now one fails.
"""

from dataclasses import replace
from typing import Any

import pytest
from metrics_cases import batch, manifest, request

from llm_locust.core.manifest import Manifest
from llm_locust.core.record import Outcome, RequestRecord, TokenSource
from llm_locust.figures.summarise import summarise
from llm_locust.figures.summary import typed
from llm_locust.figures.verdict import verdict
from llm_locust.metrics.question import Question
from llm_locust.report.formats.junit import junit
from llm_locust.report.sections.findings import boxes, findings

ANSWER = (0.1, 0.2, 0.3, 0.4, 0.5)
LATENCIES = "p95_ttft<1s p95_e2el<2s"


def answered(**fields: Any) -> list[RequestRecord]:
    """Eight users, answers of 0.5 s until 5 s."""
    return [request(k * 0.5, ANSWER, user=u, **fields) for k in range(10) for u in range(8)]


def cut(at: float, end: float, arrivals: tuple[float, ...] = (), **fields: Any) -> RequestRecord:
    return request(at, arrivals, ended=end, outcome=Outcome.CANCELLED, **fields)


def told(records: list[RequestRecord], run: Manifest) -> tuple[dict[str, Any], int | None]:
    found = summarise(batch(*records), run)
    judged = verdict(typed(found), run)
    return found, None if judged is None else judged.code


def test_a_server_that_takes_no_connection_any_more_is_not_good() -> None:
    run = manifest(stopped=14.0, slo="ttft=500ms", gates=f"goodput>=95% {LATENCIES}")
    found, code = told([*answered(), *(cut(5.0, 14.0, sent=False) for _ in range(8))], run)
    assert found["goodput"]["ratio"] == pytest.approx(80 / 88)  # printed 1.0
    assert found["goodput"]["first_failed"]["ttft"] == found["requests"]["cut_broken"] == 8
    assert found["latency_ms"]["ttft"]["p99"] is None  # printed 100
    assert found["latency_ms"]["ttft"]["at_least"]["p99"] == pytest.approx(9_000)
    assert [gate["passed"] for gate in found["gates"]] == [False, False, False]  # all passed
    assert code == 1


def test_requests_that_were_just_connecting_at_the_end_move_nothing() -> None:
    run = manifest(stopped=5.0, slo="ttft=500ms", gates=f"goodput>=95% {LATENCIES}")
    found, code = told([*answered(), *(cut(4.999, 5.0, sent=False) for _ in range(8))], run)
    assert (found["goodput"]["ratio"], code) == (1.0, 0)
    assert found["latency_ms"]["e2el"]["p99"] == pytest.approx(500)


def test_the_pace_of_a_cut_answer_is_that_of_its_tokens() -> None:
    """Twelve tokens in three events, of 0.4 s: 72 ms a token, not 400."""
    uncounted = cut(5.0, 5.9, (0.1, 0.5, 0.9), output_tokens=None, token_source=TokenSource.EVENTS)
    answers = answered(output_tokens=20)
    run = manifest(stopped=6.0, slo="tpot=150ms")
    found, _ = told([*answers, *(uncounted for _ in range(8))], run)
    assert found["goodput"]["ratio"] == 1.0  # printed 0.91
    assert found["requests"]["cut_broken"] == 0
    slow = replace(uncounted, ended_ns=uncounted.ended_ns + 2_000_000_000)
    found, _ = told([*answers, *(slow for _ in range(8))], run)
    assert found["requests"]["cut_broken"] == 8  # 2.8 s for 12 gaps


def timed_out(at: float, within_s: float, arrivals: tuple[float, ...] = ()) -> RequestRecord:
    return request(at, arrivals, ended=at + within_s, outcome=Outcome.TIMEOUT, error="no byte")


def test_a_latency_is_no_better_for_a_shorter_time_out() -> None:
    """Whether a hung request ends by its time-out or by the end of the run: it lasted longer than that."""
    run = manifest(stopped=14.0, gates=LATENCIES)
    found, code = told([*answered(), *(timed_out(5.0, 3.0) for _ in range(8))], run)
    ttft = found["latency_ms"]["ttft"]
    assert (ttft["n"], ttft["censored"], ttft["p99"]) == (80, 8, None)  # printed 100 ms
    assert ttft["at_least"]["p99"] == pytest.approx(3_000)
    assert "p99" in found["latency_ms_adjusted"]["ttft"]["beyond"]
    assert [gate["passed"] for gate in found["gates"]] == [False, False]  # both passed
    assert code == 1


def test_of_a_stream_that_timed_out_between_two_tokens_the_first_is_observed() -> None:
    found, _ = told([*answered(), *(timed_out(5.0, 3.0, (0.1, 0.2)) for _ in range(8))], manifest())
    latencies = found["latency_ms"]
    assert (latencies["ttft"]["n"], latencies["ttft"]["censored"]) == (88, 0)
    assert (latencies["e2el"]["n"], latencies["e2el"]["censored"]) == (80, 8)
    assert latencies["tpot"]["n"] == 80
    assert found["latency_ms_adjusted"]["ttft"]["n"] == 88


def test_requests_that_were_never_sent_leave_open_what_is_counted_from_scheduled() -> None:
    """The bound of requests in flight was reached: 30 of 110 that were due are not there."""
    gates = "p99_ttft_scheduled<1s p99_schedule_delay<1s p50_ttft_scheduled<1s"
    run = manifest(stopped=14.0, open_loop=True, gates=gates)
    run = replace(run, workers=[replace(each, unsent=30) for each in run.workers])
    found, code = told(answered(), run)
    late = found["latency_ms"]["ttft_scheduled"]
    assert (late["p99"], late["censored"], late["at_least"]["p99"]) == (None, 30, pytest.approx(100))
    assert late["p50"] == pytest.approx(100)  # whatever they would have taken
    assert found["latency_ms"]["ttft"]["p99"] == pytest.approx(100)
    assert [gate["passed"] for gate in found["gates"]] == [False, False, True]  # all passed
    assert "30 requests were given up before they ended or never sent" in found["gates"][0]["reason"]
    assert code == 3


def test_what_a_steady_window_left_out_is_judged_as_the_run_is() -> None:
    hung = [cut(5.0, 9.0, user=u) for u in range(8)]
    late = [request(9.0, ANSWER, user=u) for u in range(2)]
    records = [*answered(), *hung, *late]
    found = summarise(batch(*records), manifest(stopped=14.0, slo="ttft=500ms"), Question(window="steady"))
    run = summarise(batch(*records), manifest(stopped=14.0, slo="ttft=500ms"))
    left = found["window"]["left_out"]
    assert left["goodput_ratio_run"] == run["goodput"]["ratio"] == pytest.approx(82 / 90)  # printed 1.0
    assert left["ttft_p99_ms_run"] == run["latency_ms"]["ttft"]["p99"] is None  # printed 100


def test_a_run_that_a_fault_ended_early_fails_in_junit_as_its_exit_code_does() -> None:
    run = manifest(slo="ttft=500ms", gates="goodput>=95%", cut_short=True, stop_reason="no worker was left")
    found, code = told(answered(), run)
    assert code == 4
    text = junit(typed(found))
    assert 'failures="1"' in text  # printed 0
    assert 'message="a fault ended the run before its time">no worker was left' in text


def test_what_was_never_sent_is_in_the_goodput_of_its_class() -> None:
    """Half of the load was of the class ``slow``, of which 30 requests were never sent."""
    records = [replace(r, slo_class="slow" if i % 2 else "fast") for i, r in enumerate(answered())]
    run = manifest(stopped=14.0, slo="ttft=500ms", open_loop=True)
    of_class = [replace(each, unsent=30, unsent_by_class={"slow": 30}) for each in run.workers]
    by_class = told(records, replace(run, workers=of_class))[0]["by_class"]
    assert by_class["slow"]["goodput"]["ratio"] == pytest.approx(40 / 70)  # printed 1.0
    assert (by_class["slow"]["requests"]["unsent"], by_class["fast"]["requests"]["unsent"]) == (30, 0)
    assert by_class["fast"]["goodput"]["ratio"] == 1.0
    untold = [replace(each, unsent=30) for each in run.workers]
    by_class = told(records, replace(run, workers=untold))[0]["by_class"]
    assert by_class["slow"]["requests"]["unsent"] is None


def one_of_eight(*others: RequestRecord) -> list[RequestRecord]:
    """A user whose answers of 0.25 s come until 10 s, and what the other users had."""
    return [*(request(k * 0.25, (0.1, 0.2, 0.25), user=0) for k in range(40)), *others]


WARMED_UP: dict[str, Any] = {"stopped": 10.0, "warmup_s": 2.0}
GATED: dict[str, Any] = {"slo": "ttft=500ms e2el=2s", "gates": f"goodput>=95% {LATENCIES}"}


@pytest.mark.parametrize(
    "hung",
    [
        cut(1.5, 10.0),
        cut(1.5, 10.0, sent=False),
        cut(1.5, 10.0, (0.1, 0.2)),
        cut(1.5, 10.0, (0.1, 0.6)),
        cut(1.5, 6.0, abandoned=True),
        request(1.5, (), ended=5.0, outcome=Outcome.TIMEOUT),
    ],
    ids=["cut", "connecting", "stalled before", "stalled after", "left", "timed out"],
)
def test_users_who_hang_from_the_warm_up_on_are_in_the_goodput_of_the_window(hung: RequestRecord) -> None:
    others = [replace(hung, user=u, slo_class="slow", replica="b") for u in range(1, 8)]
    found, code = told(one_of_eight(*others), manifest(**WARMED_UP, **GATED))
    assert found["requests"]["scheduled"] == 32
    assert found["goodput"]["ratio"] == pytest.approx(32 / 39)  # printed 1.0
    assert found["goodput"]["first_failed"]["stuck"] == found["requests"]["stuck"] == 7
    assert found["by_class"]["slow"]["goodput"]["ratio"] == 0.0
    e2el = found["latency_ms"]["e2el"]
    assert (e2el["p99"], e2el["censored"]) == (None, 7)  # printed 250
    assert e2el["at_least"]["p99"] == pytest.approx((hung.ended_ns - others[0].started_ns) / 1e6 - 500)
    assert [gate["passed"] for gate in found["gates"]][::2] == [False, False]  # all passed
    assert code == 1
    told_in = [line.text for box in boxes(findings(typed(found))) for line in box.lines]
    assert any(text.startswith(("HUNG: 7 of ", "STUCK: 7 requests")) for text in told_in)
    assert {each["name"]: each["goodput_ratio"] for each in found["replicas"]} == {"b": 0.0}


@pytest.mark.parametrize(
    "slow",
    [
        request(0.0, (8.0, 9.0)),
        cut(1.5, 2.4),
        cut(0.5, 1.9),
        request(1.5, (), ended=2.4, outcome=Outcome.TIMEOUT),
        request(1.5, (), ended=9.0, outcome=Outcome.TRUNCATED),
        cut(1.5, 3.9, (0.1, 1.0, 2.0)),
    ],
)
def test_a_slow_warm_up_does_not_reach_into_the_window(slow: RequestRecord) -> None:
    run = manifest(**WARMED_UP, **GATED)
    found, code = told(one_of_eight(*(replace(slow, user=u) for u in range(1, 8))), run)
    assert (found["requests"]["stuck"], found["goodput"]["ratio"], code) == (0, 1.0, 0)
    assert found["latency_ms"]["e2el"]["censored"] == 0


def test_without_a_limit_a_request_is_stuck_as_a_deployment_stands_still() -> None:
    others = [cut(1.5, 4.4), cut(1.5, 4.6), cut(1.5, 9.9, (0.5, 6.0))]  # 10 medians are 2.5 s
    found, _ = told(one_of_eight(*others), manifest(**WARMED_UP))
    assert (found["requests"]["stuck"], found["goodput"]["ratio"]) == (1, None)
    paced = [cut(1.5, 9.9, (0.5, 6.0)), cut(1.5, 9.9, (0.5, 1.0))]
    found, _ = told(one_of_eight(*paced), manifest(**WARMED_UP, slo="tpot=10s"))
    assert found["requests"]["stuck"] == 1


@pytest.mark.parametrize(("warmup_s", "unsent"), [(None, 20), (5.0, 20), (8.0, 20), (1.0, 30), (0.0, 30)])
def test_what_was_never_sent_in_the_warm_up_counts_where_that_is_not_left_out(
    warmup_s: float | None, unsent: int
) -> None:
    run = manifest(stopped=14.0, slo="ttft=500ms", open_loop=True, warmup_s=5.0)
    workers = [replace(w, unsent=30, unsent_warmup=10, unsent_by_class={"": 20}) for w in run.workers]
    late = [request(8.0 + k * 0.1, ANSWER) for k in range(10)]
    found = summarise(batch(*answered(), *late), replace(run, workers=workers), Question(warmup_s=warmup_s))
    assert found["requests"]["unsent"] == unsent  # printed 20
    assert found["goodput"]["first_failed"]["unsent"] == unsent
