"""A closed loop by the time of its users, beside that by its requests."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from metrics_cases import batch, failed, manifest, request, stage
from report_cases import records, summary as report_summary
from scripted_loads import FOR_EVER, Asked, Course, Load
from summaries import summarise, typed

from llm_locust.core.manifest import ArmFacts
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.figures.goodput import show as goodput
from llm_locust.figures.summary import Summary
from llm_locust.figures.user_time import TimeShares, UserTime
from llm_locust.report.headline import findings


def summary(*records: RequestRecord, **fields: Any) -> Summary:
    return typed(summarise(batch(*records), manifest(**{"slo": "ttft=1s", **fields})))


def told(*records: RequestRecord, **fields: Any) -> UserTime:
    found = summary(*records, **fields).user_time
    assert found is not None
    return found


def good(times: UserTime) -> TimeShares:
    assert times.good is not None
    return times.good


def sent(at: float, lasts: float, user: int = 0, **fields: Any) -> RequestRecord:
    """Good if its first token comes within 1 s: with the last one."""
    return request(at, (lasts,), user=user, **fields)


def test_good_time_is_a_share_of_all_that_users_had_a_request_and_not_of_what_they_thought() -> None:
    found = told(sent(0.0, 0.5), sent(3.0, 0.5), sent(6.0, 3.0))
    assert found.users == 1
    assert found.seconds == pytest.approx(4.0)
    assert good(found).share == pytest.approx(1.0 / 4.0)


def test_neither_time_outside_of_the_window_nor_a_request_from_before_it_counts() -> None:
    found = told(sent(0.0, 3.0), sent(4.0, 0.5), sent(8.0, 40.0), warmup_s=1.0)
    assert found.seconds == pytest.approx(2.0 + 0.5 + 2.0)
    assert good(found).share == pytest.approx(0.5 / (0.5 + 2.0))


def test_a_request_from_before_the_window_that_is_stuck_in_it_counts() -> None:
    found = told(sent(0.0, 0.5), cut(0.6, 0), sent(4.0, 0.5, 1), warmup_s=1.0)
    assert good(found).share == pytest.approx(0.5 / (0.5 + 9.0))


def test_the_pause_after_a_failure_is_lost_but_for_what_users_pause_anyway() -> None:
    thinking = [sent(0.0, 0.5), sent(1.5, 0.5), sent(3.0, 0.5)]  # 1 s each
    refused = [failed(4.5, user=0), sent(9.0, 0.5)]
    found = told(*thinking, *refused)
    assert found.backoff_s == pytest.approx(4.499 - 1.0)
    assert good(found).share == pytest.approx(2.0 / (2.0 + 0.001 + 3.499), rel=1e-3)


def test_after_a_last_failure_a_user_backs_off_to_the_end() -> None:
    assert told(sent(0.0, 0.5), failed(0.5, user=0)).backoff_s == pytest.approx(9.499)


def test_what_a_user_got_next_stands_for_the_time_that_it_waited() -> None:
    found = told(sent(0.0, 3.0), sent(3.0, 0.5), sent(3.5, 0.5))
    assert good(found).share == pytest.approx(1.0 / 4.0)
    assert good(found).by_user == 1.0
    late = told(sent(0.0, 3.0), sent(3.0, 3.0), sent(6.0, 0.5))
    assert good(late).by_user == pytest.approx(0.5)


def test_of_a_few_users_no_request_stands_for_the_moment() -> None:
    several = [sent(0.1 * user, 0.5, user) for user in range(5)]
    assert good(told(*several[:4])).by_moment is None
    assert good(told(*several)).by_moment == 1.0


def cut(at: float, user: int, arrivals: tuple[float, ...] = ()) -> RequestRecord:
    return request(at, arrivals, ended=40.0, outcome=Outcome.CANCELLED, user=user)


SERVED = [sent(0.25 * i, 0.2, user) for i in range(38) for user in (0, 1)]


@pytest.mark.parametrize("arrivals", [(), (0.1, 0.2)])
@pytest.mark.parametrize("slo", ["ttft=1s", "tpot=50ms", ""])
def test_users_that_get_nothing_more_to_the_end_hang_whatever_the_limits(
    arrivals: tuple[float, ...], slo: str
) -> None:
    found = told(*SERVED, cut(2.0, 7, arrivals), cut(4.0, 8, arrivals), slo=slo)
    sign = arrivals[-1] if arrivals else 0.0
    assert (found.users, found.hung.n) == (4, 2)
    assert found.hung.from_s == pytest.approx(2.0 + sign)
    assert found.hung.seconds == pytest.approx(14.0 - 2 * sign)
    assert found.hung_text == f"2 of 4 users hung from {2.0 + sign:.3g} s on"
    if slo:
        assert good(found).share == pytest.approx(15.2 / (15.2 + 14.0), rel=1e-2)


def test_who_is_cut_as_early_as_answers_usually_come_or_answered_in_the_drain_does_not_hang() -> None:
    assert told(*SERVED, cut(9.8, 7)).hung.n == 0
    assert told(*SERVED, sent(2.0, 20.0, 7)).hung.n == 0
    slow = [sent(2.2 * i, 2.0, user) for i in range(4) for user in (0, 1)]
    assert told(*slow, cut(5.0, 7)).hung.n == 0  # 5 s are not three times of what is usual


@pytest.mark.parametrize("fields", [{"open_loop": True}, {"options": {"find": "max rate under goodput>=9%"}}])
def test_an_open_loop_a_sweep_and_requests_without_users_have_none(fields: dict[str, Any]) -> None:
    assert summary(*SERVED, **fields).user_time is None
    assert summary(request(1.0)).user_time is None
    assert summarise(batch(*SERVED), manifest(), rows_of_run=99).get("user_time") is None


def half_of_ten_hang(asked: Asked) -> Course:
    return Course(ttft=FOR_EVER if asked.at_s > 8 and asked.user % 2 else 0.1)


def test_who_hangs_from_before_the_window_on_does_so_from_the_warm_up() -> None:
    found = told(*SERVED, cut(0.5, 7), warmup_s=2.0)
    assert found.hung_text == "1 of 3 users hung from the warm-up on"


def test_a_gate_that_the_requests_hold_and_the_time_does_not_says_both_numbers() -> None:
    records = Load(40.0).closed(10, half_of_ten_hang)
    found = summary(*records, stopped=40.0, gates="goodput>=90% goodput>=50%")
    strict, loose = found.gates
    assert (strict.passed, loose.passed) == (False, True)
    shares = "99 % of the requests were good, but only 60.4 % of the users' time"
    assert strict.reason == f"{shares}: 5 of 10 users hung from 8.33 s on"
    assert strict.value == found.goodput.ratio
    assert "% of the users' time" in goodput(found).lines[0].text
    hung = next(each for each in findings(found) if each.key == "hung")
    assert hung.text == "5 of 10 users hung from 8.33 s on"


def test_users_that_hang_in_one_arm_break_its_gate_and_not_that_of_the_other() -> None:
    records = [
        replace(record, arm="b" if record.outcome is Outcome.CANCELLED or i % 2 else "a")
        for i, record in enumerate(Load(40.0).closed(10, half_of_ten_hang))
    ]
    arms = [ArmFacts(name=name, url=f"http://{name}/v1", share=0.5) for name in "ab"]
    found = summary(*records, stopped=40.0, gates="goodput>=90%", arms=arms, slo="ttft=1s tpot=50ms")
    good, bad = found.gates
    assert (good.arm, good.passed, bad.arm, bad.passed) == ("a", True, "b", False)
    assert "% of the users' time: 5 of 10 users hung from 8.33 s on" in str(bad.reason)


def test_a_gate_on_a_part_of_the_requests_is_one_on_the_users_time_there() -> None:
    everything = Load(40.0).closed(10, half_of_ten_hang)
    records = [r for i, r in enumerate(everything) if i % 3 or r.outcome is Outcome.CANCELLED]
    asked = manifest(slo="ttft=1s", stopped=40.0, gates="goodput>=90%")
    found = typed(summarise(batch(*records), asked, rows_of_run=len(records)))
    assert found.user_time is None  # the report of a part does not say what users did
    (gate,) = found.gates
    assert "5 of 10 users hung" in str(gate.reason)


@pytest.mark.parametrize(("users", "is_result"), [(half_of_ten_hang, False), (lambda _: Course(), True)])
def test_a_stage_whose_users_hang_is_no_result_and_its_search_counts_what_they_did_not_send(
    users: Any, is_result: bool
) -> None:
    records = Load(40.0, drain=5.0).closed(10, users)
    options = {"find": "max concurrency under goodput>=90%"}
    stages = [stage(0, 10.0, 40.0, kind="users", asked=10)]
    found = summary(*records, stopped=40.0, options=options, stages=stages)
    assert found.stages is not None
    (only,) = found.stages
    assert only.is_result is is_result
    assert any("5 of 10 users hung" in reason for reason in only.reasons) is not is_result
    assert found.search is not None
    (read,) = found.search.stages
    assert read.limits[0].share == pytest.approx(1.0 if is_result else 0.5, abs=0.02)
    assert (read.shows == "broken") is not is_result


WHAT = " have no TTFT, which breaks its limit"


def whole(record: RequestRecord, **fields: Any) -> RequestRecord:
    """The same request, its answer not streamed."""
    return replace(record, streamed=False, arrivals_ns=np.zeros(0, np.int64), first_answer_ns=None, **fields)


def said(made: list[RequestRecord], **facts: Any) -> list[str]:
    section = goodput(typed(report_summary(made, **facts)))
    return [line.text for line in section.lines if WHAT in line.text]


@pytest.mark.parametrize("limit", ["ttft=1s", "ttft_started=1s", "ttft_scheduled=1s"])
def test_answers_that_have_no_first_token_are_named_where_it_has_a_limit(limit: str) -> None:
    made = [whole(r, name="embed") if i % 4 == 0 else r for i, r in enumerate(records(ok=80, bad=0))]
    (line,) = said(made, slo=limit)
    assert line.startswith(f"20 of 20 answers of embed{WHAT}")


def test_some_answers_of_one_name_are_counted() -> None:
    made = [whole(r) if i < 10 else r for i, r in enumerate(records(ok=80, bad=0))]
    (line,) = said([replace(r, name="chat") for r in made])
    assert line.startswith(f"10 of 80 answers of chat{WHAT}")


def test_beside_requests_that_failed_their_number_is_a_lower_bound() -> None:
    made = [whole(r) if i < 10 else r for i, r in enumerate(records(ok=80, bad=5))]
    (line,) = said([replace(r, name="chat") for r in made])
    assert line.startswith(f"at least 10 of 80 answers of chat{WHAT}")


def test_nothing_is_said_where_every_answer_has_one_or_no_limit_is_on_it() -> None:
    made = records(ok=80, bad=5)
    assert said(made) == []
    assert said([whole(r) for r in made if r.status == 200], slo="e2el=2s") == []


def test_a_class_without_such_a_limit_is_not_meant() -> None:
    made = [
        whole(r, name="embed", slo_class="whole") if i % 4 == 0 else r
        for i, r in enumerate(records(ok=80, bad=0))
    ]
    assert len(said(made)) == 1
    assert said(made, class_slos={"whole": {"e2el": 2.0}}) == []
