"""When a server stood still: what is silent, what is usual, and one figure of it everywhere."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st
from metrics_cases import batch, columns, failed, manifest, ns, request
from scripted_loads import Course, Load

from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.figures.reliability import standstill
from llm_locust.figures.summarise import summarise
from llm_locust.figures.summary import typed
from llm_locust.figures.text import seconds
from llm_locust.figures.verdict import stood_still
from llm_locust.metrics.gates import Slo
from llm_locust.metrics.requests.goodput import Limits, judge
from llm_locust.metrics.requests.latency import per_request
from llm_locust.metrics.standstill import LEAST_S, MOST, Silences, Standstills, StreamHoles
from llm_locust.metrics.window import Window

TEN = Window(ns(0.0), ns(10.0), "")


def told(*records: RequestRecord, window: Window = TEN, slo: Slo | None = None) -> Standstills:
    c = columns(*records)
    judgement = judge(c, per_request(c), Limits(slo), "sent") if slo else None
    return Silences.of(c, StreamHoles.of(c), window, judgement).standstills()


def spans(found: Standstills) -> list[tuple[float, float, int]]:
    return [(round(each.start_s, 6), round(each.seconds, 6), each.in_flight) for each in found.spans]


def well(*at: float) -> list[RequestRecord]:
    """Answers of 0.2 s."""
    return [request(begun, (0.1, 0.2)) for begun in at]


def cut(at: float, end: float, arrivals: tuple[float, ...] = (), **fields: Any) -> RequestRecord:
    return request(at, arrivals, ended=end, outcome=Outcome.CANCELLED, **fields)


QUICK = well(*(0.2 * i for i in range(5)))


def test_a_time_without_any_event_while_requests_are_under_way_is_a_standstill() -> None:
    assert spans(told(*QUICK, cut(1.0, 9.0), cut(2.0, 9.0))) == [(1.0, 8.0, 2)]


def test_where_nothing_is_under_way_it_begins_with_the_next_request() -> None:
    assert spans(told(*QUICK, cut(4.0, 9.0), cut(4.5, 9.0))) == [(4.0, 5.0, 2)]
    assert told(*QUICK, *well(9.0)).n == 0


def test_a_token_of_one_request_ends_the_silence_of_all() -> None:
    other = request(1.0, tuple(0.5 * k for k in range(1, 18)))
    assert told(*QUICK, other, cut(1.0, 9.0), cut(2.0, 9.0)).n == 0


def test_a_hole_in_a_stream_is_as_silent_as_a_wait_for_a_first_token() -> None:
    holed = [request(1.0, (0.1, 0.2, 7.0, 7.1)), request(1.0, (0.1, 0.2, 7.05, 7.2))]
    assert spans(told(*QUICK, *holed)) == [(1.2, 6.8, 2)]


def test_the_drain_is_out() -> None:
    assert spans(told(*QUICK, cut(2.0, 40.0), cut(2.5, 40.0))) == [(2.0, 8.0, 2)]
    assert told(*QUICK, *well(9.8), cut(9.5, 40.0), cut(9.5, 40.0)).n == 0


def test_a_deployment_that_takes_no_connection_stands_still() -> None:
    connecting = cut(0.0, 9.0, sent=False)
    assert spans(told(connecting, connecting)) == [(0.0, 9.0, 2)]


def test_a_rejection_is_an_answer_and_what_the_client_gave_up_is_none() -> None:
    waiting = cut(0.9, 9.9), cut(0.9, 9.9)
    rejected = [failed(0.9 * k) for k in range(1, 12)]
    assert told(*QUICK, *waiting, *rejected).n == 0
    gave_up = [
        request(float(at), (), ended=at + 0.9, outcome=outcome)
        for at, outcome in ((1, Outcome.TIMEOUT), (3, Outcome.CONNECT_ERROR), (5, Outcome.TIMEOUT))
    ]
    assert spans(told(*QUICK, *waiting, *gave_up)) == [(1.0, 8.9, 3)]


def test_the_time_between_the_windows_of_two_runs_is_in_none() -> None:
    window = Window(ns(0.0), ns(106.0), "", gaps=((ns(4.0), ns(100.0)),))
    found = told(*QUICK, cut(1.0, 105.0), cut(1.0, 105.0), window=window)
    assert spans(found) == [(1.0, 3.0, 2), (100.0, 5.0, 2)]


@pytest.mark.parametrize(
    ("slo", "n"), [(None, 0), (Slo(ttft_s=8.0), 0), (Slo(ttft_s=1.0), 1), (Slo(tpot_s=9.0), 0)]
)
def test_a_wait_of_one_user_alone_is_one_only_if_it_broke_a_limit(slo: Slo | None, n: int) -> None:
    alone = request(1.0, (7.0, 7.1))
    assert told(*QUICK, alone, slo=slo).n == n
    assert told(*QUICK, cut(1.0, 9.0), slo=slo).n == 1


@pytest.mark.parametrize(
    ("slo", "n"),
    [(None, 1), (Slo(ttft_s=8.0), 0), (Slo(e2el_s=8.0), 0), (Slo(ttft_s=1.0), 1), (Slo(tpot_s=9.0), 1)],
)
def test_waits_within_the_limit_on_them_are_none(slo: Slo | None, n: int) -> None:
    late = request(1.0, (7.0, 7.1))
    assert told(*QUICK, late, late, slo=slo).n == n


@pytest.mark.parametrize(("slo", "n"), [(Slo(tpot_s=9.0, ttft_s=9.0), 1), (Slo(e2el_s=9.0), 0)])
def test_a_pace_that_is_held_on_average_is_no_limit_on_a_hole(slo: Slo, n: int) -> None:
    holed = request(1.0, (0.1, 0.2, 7.0, 7.1))
    assert told(*QUICK, holed, holed, slo=slo).n == n


def test_what_others_usually_wait_is_slow_and_not_still() -> None:
    thinking = [request(0.0, (3.0, 3.1)), request(3.2, (3.0, 3.1))]
    found = told(*thinking, request(6.4, (3.2, 3.3)), request(6.5, (3.1, 3.2)))
    assert (found.n, found.slow_n) == (0, 3)
    assert found.slow_longest_s == pytest.approx(3.2)
    assert found.slow_seconds == pytest.approx(9.2)


def test_each_class_has_waits_of_its_own() -> None:
    slow = [request(3.0 * k, (2.9, 3.0), slo_class="slow") for k in range(3)]
    quick = [request(9.1, (6.0, 6.1), slo_class="chat")] * 2 + [request(0.1 * k) for k in range(80)]
    window = Window(ns(0.0), ns(20.0), "")
    assert told(*slow, *quick, window=window).n == 0  # all of one class: 3 s are a habit
    chat = [request(0.1 * k, slo_class="chat") for k in range(80)]
    assert told(*slow, *quick[:2], *chat, window=window).n == 1


def every_four_seconds(until: float) -> dict[str, Any]:
    load = Load(until, freezes=[(at, at + 1.5) for at in range(4, round(until), 4)])
    records = load.closed(4, lambda asked: Course(ttft=0.05 + 0.02 * asked.rng.random()))
    run = manifest(stopped=until, gates="error_rate<1% standstill_s<=1")
    return summarise(batch(*records), run)


def test_all_are_summed_and_the_figure_is_one_everywhere() -> None:
    summary = every_four_seconds(200.0)
    found = summary["reliability"]["standstill"]
    assert found["n"] == 49
    assert len(found["spans"]) == MOST
    assert found["seconds"] == pytest.approx(49 * 1.5, abs=1.0)
    (gate,) = (gate for gate in summary["gates"] if gate["text"].startswith("standstill"))
    assert gate["value"] == found["seconds"]
    assert f"for {found['seconds']:.3g} s of 200 s" in stood_still(typed(summary))
    section = standstill(typed(summary))
    assert section is not None
    assert f"49 times, {seconds(found['seconds'])} in all" in section.lines[1].text


def silent_moments(records: list[RequestRecord], last: float) -> float:
    """How long nothing came though requests were under way, for more than a second: by every event."""
    events = [0.0, last]
    under_way = []
    for record in records:
        begun = (record.sent_ns or record.started_ns) - ns(0.0)
        events += [(begun + at) / 1e9 for at in record.arrivals_ns.tolist()]
        if record.outcome not in (Outcome.CANCELLED, Outcome.TIMEOUT, Outcome.CONNECT_ERROR):
            events.append((record.ended_ns - ns(0.0)) / 1e9)
        under_way.append((begun / 1e9, (record.ended_ns - ns(0.0)) / 1e9))
    events = sorted(min(max(event, 0.0), last) for event in events)
    total = 0.0
    for since, until in pairwise(events):
        at, busy = since, 0.0
        for begin, end in sorted(under_way):
            begin, end = max(begin, at), min(end, until)
            if end > begin:
                busy, at = busy + end - begin, end
        total += busy if until - since > LEAST_S and busy > LEAST_S else 0.0
    return total


_TIMES = st.tuples(st.integers(0, 40), st.integers(1, 60), st.sampled_from(["ok", "holed", "cut"]))


@given(st.lists(_TIMES, min_size=1, max_size=12))
def test_silences_are_those_that_going_through_every_event_finds(
    some: list[tuple[int, int, str]],
) -> None:
    made: dict[str, Callable[[float, float], RequestRecord]] = {
        "ok": lambda at, lasts: request(at, (lasts,)),
        "holed": lambda at, lasts: request(at, (lasts / 8, lasts / 4, lasts)),
        "cut": lambda at, lasts: cut(at, at + lasts),
    }
    records = [made[how](at * 0.2501309, lasts * 0.2497003) for at, lasts, how in some]
    found = told(*records, window=Window(ns(0.0), ns(20.0), ""))
    assert found.seconds + found.slow_seconds == pytest.approx(silent_moments(records, 20.0), abs=1e-5)
