"""Failures, given up, stalled and left-out requests: fast refusals and hung servers that passed."""

from dataclasses import replace
from typing import Any

import pytest
from metrics_cases import batch, failed, manifest, request
from report_cases import summary
from summaries import summarise, typed

from llm_locust.core.manifest import Manifest
from llm_locust.core.record import Outcome, RequestRecord, TokenSource
from llm_locust.figures import gates
from llm_locust.figures.parts import breakdown
from llm_locust.figures.sessions import by_turn
from llm_locust.figures.verdict import verdict
from llm_locust.metrics.measured import measure
from llm_locust.metrics.question import Question
from llm_locust.report.formats import junit
from llm_locust.report.headline import boxes, findings


def refusing(ok: int = 40, refused: int = 60) -> list[RequestRecord]:
    answers = [request(i * 0.01, (0.1, 0.12, 0.14)) for i in range(ok)]
    return answers + [failed(5 + i * 0.01) for i in range(refused)]


def judged_each(gates: list[str], made: list[RequestRecord]) -> list[tuple[Any, ...]]:
    found = summary(made, gates=" ".join(gates))["gates"]
    assert [each["text"] for each in found] == gates
    return [(each["passed"], each["value"], each["reason"], each["note"]) for each in found]


def judged(gate: str, made: list[RequestRecord]) -> tuple[Any, ...]:
    return judged_each([gate], made)[0]


@pytest.mark.parametrize("statistic", ["p50", "p99", "max"])
def test_an_upper_limit_on_a_latency_is_of_all_requests(statistic: str) -> None:
    metrics = ("ttft", "ttfo", "tpot", "itl", "e2el", "ttft_started")
    gates = [f"{statistic}_{metric}<500ms" for metric in metrics]
    for passed, value, reason, note in judged_each(gates, refusing()):
        assert (passed, value, note) == (False, None, "over all requests: 60 % failed")
        assert reason.startswith(
            f"60 % failed: the {statistic} of all requests falls on a failed one; of the others it is "
        )
    for passed, value, reason, note in judged_each(gates, refusing(120, 0)):
        assert (passed, value is None, reason, note) == (True, False, None, None)


def test_the_tables_own_percentile_stays_that_of_the_answers() -> None:
    found = summary(refusing(), gates="p99_ttft<500ms")
    assert found["latency_ms"]["ttft"]["p99"] == pytest.approx(100.0)


def test_few_failures_leave_a_percentile_where_it_is_and_are_told() -> None:
    assert judged("p50_ttft<500ms", refusing(95, 5)) == (
        True, pytest.approx(100.0), None, "over all requests: 5 % failed",
    )  # fmt: skip


def test_failures_are_samples_beyond_a_percentile() -> None:
    assert judged("p99_ttft<500ms", refusing(199, 1))[0]
    assert not judged("p99_ttft<500ms", refusing(198, 2))[0]


def test_a_mean_shows_nothing_where_many_failed() -> None:
    passed, value, reason, note = judged("mean_ttft<500ms", refusing(20, 80))
    assert (passed, value, note) == (False, pytest.approx(100.0), "of requests with an answer: 80 % failed")
    assert reason == "80 % failed, and a mean cannot include them; limit a percentile"
    assert judged("mean_ttft<500ms", refusing(99, 1))[0]


def test_a_mean_is_bounded_by_the_slowest_where_few_failed() -> None:
    passed, value, _, note = judged("mean_ttft<500ms", refusing(98, 2))
    assert (passed, value) == (True, pytest.approx(100.0))
    assert note == "2 % failed: 100 ms if each had been as slow as the slowest"
    slow = request(6.0, (30.0, 30.02), ended=40.0)
    (found,) = summary([*refusing(98, 2), slow], gates="mean_ttft<500ms")["gates"]
    assert (found["passed"], found["undecided"]) == (False, True)  # 0.4 s, and 1 s with two of 30 s
    assert found["reason"].startswith("cannot tell: 1.98 % failed, and a mean cannot include them")


def test_a_lower_limit_on_an_answers_latency_is_of_the_answers() -> None:
    assert judged("p50_ttft>1ms", refusing())[0]


@pytest.mark.parametrize("statistic", ["mean", "p50", "max"])
def test_what_is_before_the_answer_cannot_be_told_of_those_that_failed(statistic: str) -> None:
    gate = f"{statistic}_schedule_delay<500ms"
    passed, _, reason, _ = judged(gate, refusing())
    assert not passed
    assert reason.startswith("cannot tell: 60 requests failed or were given up and have no schedule_delay")
    assert judged(gate, refusing(120, 0))[0]


def test_a_gate_that_cannot_tell_is_printed_with_its_reason_and_the_failures() -> None:
    found = summary(refusing(50, 1), gates="p99_ttft<500ms mean_ttft<500ms p50_ttft<500ms")
    section = gates.show(typed(found))
    assert section is not None
    assert section.table is not None
    assert [row.cells[-1] for row in section.table.rows] == [
        "1.96 % failed: the p99 of all requests falls on a failed one; of the others it is 100 ms",
        "1.96 % failed: 100 ms if each had been as slow as the slowest",
        "over all requests: 1.96 % failed",
    ]


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


WELL = [request(i * 0.05) for i in range(100)]
PACE = ["max_itl<1s", "p99_itl<1s", "mean_itl<500ms", "max_tpot<1s", "p99_tpot<1s", "mean_tpot<500ms"]
PREFILL = ["max_prefill_ms_per_1k_input<20s", "p99_prefill_ms_per_1k_input<20s"]


def stalled(n: int, *arrivals: float, **known: Any) -> list[RequestRecord]:
    return [request(5 + i * 0.01, arrivals, ended=14.0, outcome=Outcome.CANCELLED, **known) for i in range(n)]


CERTIFIED = "certified p90_tpot<1s"
GOOD_PACE = tuple(0.05 + 0.4 * i for i in range(22))


def test_where_no_stream_stalled_limits_on_the_pace_hold() -> None:
    assert all(passed for passed, *_ in judged_each([*PACE, *PREFILL, CERTIFIED], WELL))


@pytest.mark.parametrize(
    ("gates", "streams", "says"),
    [
        (PACE, stalled(20, 0.05, 0.07), " is not < "),
        (PACE, stalled(20, *GOOD_PACE), None),
        (PACE, stalled(20), None),  # who left before the first token has no pace to be judged
        (["p90_tpot<1s"], stalled(20, 0.05), "cannot tell: 20 requests were given up and have no tpot"),
        (["p90_tpot<1s"], stalled(5, 0.05, 0.07), None),  # fewer than lie beyond the percentile
        ([CERTIFIED], stalled(20, 0.05, 0.07), "is not < 1,000 ms"),
        (PREFILL, stalled(20, input_tokens=None), "cannot tell: 20 requests were given up and have no "),
    ],
)
def test_streams_that_stalled_break_limits_on_the_pace_and_others_do_not(
    gates: list[str], streams: list[RequestRecord], says: str | None
) -> None:
    for passed, _, reason, _ in judged_each(gates, [*WELL, *streams]):
        assert passed is (says is None), reason
        assert says is None or says in reason


ANSWER_of_left_out = (0.1, 0.2, 0.3)


def test_a_replica_that_hung_from_the_warm_up_on_has_no_percentile_of_its_few_answers() -> None:
    hung = [
        request(0.1, (), ended=13.9, outcome=Outcome.CANCELLED, replica="a", name=f"chat{i % 2}")
        for i in range(10)
    ]
    made = [request(k * 0.1, ANSWER_of_left_out, replica="ab"[k % 2]) for k in range(100)] + hung
    run = manifest(stopped=14.0, slo="ttft=500ms", warmup_s=2.0)
    a, b = summarise(batch(*made), run)["replicas"]
    assert (a["ttft_p99_ms"], b["ttft_p99_ms"]) == (None, 100.0)  # printed 100 for both
    assert a["at_least"]["ttft_p99_ms"] > 10_000
    measured = measure(batch(*made), run, Question(warmup_s=2.0))
    groups = breakdown(measured, batch(*made), "replica").groups
    assert groups["a"].latency_ms["ttft"]["p99"] is None
    assert groups["a"].latency_ms["ttft"]["censored"] == 10


def test_the_table_by_turn_says_how_many_of_its_turns_are_in_no_latency() -> None:
    turns = [request(k * 0.1, ANSWER_of_left_out, session=f"s{k % 9}", turn=k % 2) for k in range(40)]
    cut = [request(5.0, (), ended=13.9, outcome=Outcome.CANCELLED, session="x", turn=1) for _ in range(5)]
    late = [request(5.0, (), ended=9.0, outcome=Outcome.TIMEOUT, session="y", turn=1) for _ in range(2)]
    found = summarise(batch(*turns, *cut, *late), manifest(stopped=14.0))
    assert [each["left_out"] for each in found["sessions"]["by_turn"]] == [0, 7]
    section = by_turn(typed(found))
    assert section is not None
    said = "latencies cover 40 ok turns and are too low: 7 unfinished ones excluded"
    assert section.notes[0].text == said
    whole = by_turn(typed(summarise(batch(*turns), manifest(stopped=14.0))))
    assert whole is not None
    assert not any("left out" in note.text for note in whole.notes)
