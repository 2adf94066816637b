"""Whether somebody was served all the time: standstills, outages of a replica, recovery of goodput."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from metrics_cases import at_random, batch, columns, failed, manifest, ns, request
from msgspec import to_builtins
from scripted_loads import Course, Load
from summaries import summarise, typed

from llm_locust.core.batch import Labels
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.figures.reliability import (
    ROLLING,
    OutageSpan,
    in_flight,
    outages,
    recovery,
    reliability,
    signs,
    standstill,
)
from llm_locust.figures.text import seconds
from llm_locust.figures.verdict import stood_still
from llm_locust.metrics.catalogue import LATENCIES
from llm_locust.metrics.columns import Part, groups
from llm_locust.metrics.limits import Slo
from llm_locust.metrics.requests.judgement import Limits, judge
from llm_locust.metrics.requests.latency import per_request
from llm_locust.metrics.standstill import LEAST_S, MOST, Silences, Standstills, StreamHoles
from llm_locust.metrics.stats.proportions import Proportion
from llm_locust.metrics.window import Population, Window

TEN = Window(ns(0.0), ns(10.0), "")


def told(
    *records: RequestRecord, window: Window = TEN, slo: Slo | None = None, busy: bool = True
) -> dict[str, Any]:
    """The section; ``busy``: a request that ends long after the window is under way all the time."""
    if records and busy:
        records = (*records, request(0.0, (500.0,), request_id="all the time"))
    c = columns(*records)
    population = Population.of(c, window.scheduled(c), c.scheduled_s.argsort())
    judgement = judge(c, per_request(c), Limits(slo), "sent") if slo else None
    silences = Silences.of(c, StreamHoles.of(c), window, judgement)
    of = (batch(*records), c, population, judgement, window, silences)
    found: dict[str, Any] = to_builtins(reliability(*of))
    return found


def ends(*at: float, **fields: Any) -> list[RequestRecord]:
    """Answers that end at these times, their first event 0.1 s after they were sent."""
    return [request(end - 0.2, (0.1, 0.2), **fields) for end in at]


def test_only_seconds_with_a_request_under_way_count() -> None:
    found = told(*ends(0.5, 4.1), request(7.0, (2.5,)), busy=False)
    assert (found["seconds"], found["ok_share"]) == (6, 0.5)  # 0; 3 and 4; 7, 8 and 9
    gap = [*ends(*(0.1 * i for i in range(3, 30))), *ends(*(7 + 0.1 * i for i in range(3, 30)))]
    assert told(*gap, busy=False)["ok_share"] == 1.0


def test_what_is_left_of_a_second_at_the_end_is_no_second() -> None:
    found = told(*ends(0.5, 2.7), window=Window(ns(0.0), ns(2.9), ""))
    assert (found["seconds"], found["ok_share"]) == (2, 0.5)


def test_the_edges_of_the_window_end_a_span() -> None:
    assert told(*ends(7.0))["longest_without_ok"] == {"seconds": pytest.approx(7.0), "start_s": 0.0}
    assert told(*ends(2.0))["longest_without_ok"] == {
        "seconds": pytest.approx(8.0),
        "start_s": pytest.approx(2.0),
    }
    assert told(failed(5.0))["longest_without_ok"] == {"seconds": 10.0, "start_s": 0.0}


def test_the_time_between_the_windows_of_two_runs_is_nobodys() -> None:
    window = Window(ns(0.0), ns(106.0), "", gaps=((ns(4.0), ns(100.0)),))
    found = told(*ends(0.5, 3.5, 100.5), window=window)
    assert (found["seconds"], found["ok_share"]) == (10, 0.3)
    assert found["longest_without_ok"] == {"seconds": pytest.approx(5.5), "start_s": pytest.approx(100.5)}


@pytest.mark.parametrize("window", [TEN, Window(ns(0.0), ns(0.5), "")])
def test_of_nothing_asked_and_of_less_than_a_second_nothing_is_told(window: Window) -> None:
    records = [] if window is TEN else ends(0.3)
    found = told(*records, window=window, slo=Slo(ttft_s=1.0))
    shares = ("ok_share", "good_share", "longest_without_ok", "longest_without_good")
    assert [found[key] for key in shares] == [None] * 4


def test_without_an_slo_nothing_is_good_or_bad() -> None:
    found = told(*ends(0.5))
    assert found["good_share"] is found["longest_without_good"] is None


@given(st.lists(st.floats(0.0, 12.0), max_size=12))
def test_no_share_is_over_one_and_no_span_over_the_window(at: list[float]) -> None:
    found = told(*ends(*at), request(1.0, (99.0,)))
    assert 0 <= found["ok_share"] <= 1
    span = found["longest_without_ok"]
    assert 0 <= span["start_s"] <= span["start_s"] + span["seconds"] <= 10.0 + 1e-6
    assert not any(span["start_s"] + 1e-6 < t < span["start_s"] + span["seconds"] - 1e-6 for t in at)


def test_a_summary_has_it_over_its_window() -> None:
    facts = manifest(stopped=10.0, warmup_s=4.0, slo="ttft=1s")
    found = summarise(batch(*(request(float(i), retries=1) for i in range(10))), facts)["reliability"]
    assert (found["seconds"], found["good_share"], found["retries"]["total"]) == (6, 1.0, 6)


WINDOW = Window(ns(0.0), ns(100.0), "")


def times(outage: OutageSpan) -> list[float | None]:
    return [outage.from_s, outage.to_s]


def found(*records: RequestRecord, window: Window = WINDOW) -> dict[str, list[OutageSpan]]:
    c = columns(*records)
    every = signs(c, np.flatnonzero(c.replica.codes >= 0))
    return {name: outages(c, rows, lambda: every, window) for name, rows in groups(c.replica)}


def steady(replica: str, times: list[float]) -> list[RequestRecord]:
    return [request(t, replica=replica) for t in times]


EVERY = [i / 5 for i in range(500)]


def test_a_replica_that_dies_midway_is_told_with_the_time_of_its_last_token() -> None:
    a, b = steady("a", EVERY), steady("b", [t for t in EVERY if t < 40])
    out = found(*a, *b)
    assert out["a"] == []
    (outage,) = out["b"]
    assert times(outage) == [pytest.approx(39.89), None]
    assert outage.seconds == pytest.approx(60.11)
    assert outage.others == pytest.approx(2 * 60 * 5, abs=3)


def test_one_that_comes_back_is_told_with_both_times() -> None:
    b = steady("b", [t for t in EVERY if not 30 <= t < 45])
    (outage,) = found(*steady("a", EVERY), *b)["b"]
    assert times(outage) == [pytest.approx(29.89), pytest.approx(45.05)]


def test_one_that_comes_late_has_no_beginning() -> None:
    (outage,) = found(*steady("a", EVERY), *steady("b", [t for t in EVERY if t >= 20]))["b"]
    assert times(outage) == [None, pytest.approx(20.05)]


def test_a_pause_of_all_is_nobodys_outage() -> None:
    paused = [t for t in EVERY if not 30 <= t < 50]
    assert found(*steady("a", paused), *steady("b", paused)) == {"a": [], "b": []}


def test_a_single_replica_has_no_others_to_serve_meanwhile() -> None:
    assert found(*steady("a", [t for t in EVERY if t < 40])) == {"a": []}


def test_a_long_answer_is_being_served_all_the_time() -> None:
    slow = [request(t, (1.0, 10.0, 19.0), replica="b") for t in np.arange(0, 80, 2.0)]
    gap = [request(0.0, (0.1, *np.arange(1.0, 99.0, 1.0).tolist()), replica="c")]
    assert found(*steady("a", EVERY), *slow, *gap) == {"a": [], "b": [], "c": []}


def test_a_rare_replica_is_not_out_between_its_requests() -> None:
    rare = steady("b", [float(t) for t in range(3, 100, 7)])
    assert found(*steady("a", EVERY), *rare)["b"] == []


def test_random_routing_makes_no_outage() -> None:
    pick = at_random(3)
    assert not any(found(*(request(t, replica=pick(0)) for t in EVERY)).values())


def test_failures_without_a_token_are_no_sign_of_life_and_broken_streams_are() -> None:
    dead = [failed(t, replica="b") for t in EVERY if t >= 40]
    broken = [request(t, replica="b", outcome=Outcome.TRUNCATED) for t in EVERY if t >= 40]
    b = steady("b", [t for t in EVERY if t < 40])
    assert len(found(*steady("a", EVERY), *b, *dead)["b"]) == 1
    assert found(*steady("a", EVERY), *b, *broken)["b"] == []


def test_time_outside_of_the_window_is_nobodys_outage() -> None:
    b = steady("b", [t for t in EVERY if t < 40])
    assert found(*steady("a", EVERY), *b, window=Window(ns(0), ns(39.0), ""))["b"] == []
    two = Window(ns(0), ns(100.0), "", ((ns(39.0), ns(99.0)),))
    assert found(*steady("a", EVERY), *b, window=two)["b"] == []


def test_requests_in_flight_are_means_over_time_in_each_part() -> None:
    c: Part = columns(request(0.0, (5.0,)), request(5.0, (2.5,)), request(8.0, sent=False, arrivals=()))
    assert isinstance(c.replica, Labels)
    assert in_flight(c, np.arange(3), Window(ns(0), ns(10), ""), 4) == pytest.approx([1, 1, 1, 0])


ALL_GOOD = Proportion(400, 400)
AT_S = np.arange(1000) / 10


@pytest.mark.parametrize("bad_until", [120, 500, 900])
def test_it_ends_with_the_last_bad_request_where_all_were_good_before(bad_until: int) -> None:
    good = np.arange(1000) >= bad_until
    # All 50 must be good: the interval before begins at 99.05 %.
    assert recovery(AT_S, good, ALL_GOOD, 0.0).seconds == pytest.approx(bad_until / 10)
    assert recovery(AT_S, good, ALL_GOOD, 5.0).seconds == pytest.approx(bad_until / 10 - 5)


def test_the_order_of_the_records_does_not_matter() -> None:
    order = np.random.default_rng(1).permutation(1000)
    good = (AT_S < 20) | (AT_S >= 40)
    assert recovery(AT_S[order], good[order], ALL_GOOD, 0.0).seconds == pytest.approx(40)


def test_a_second_fall_counts_and_a_share_that_stays_low_is_not_back() -> None:
    twice = (AT_S < 10) | ((AT_S >= 20) & (AT_S < 60)) | (AT_S >= 70)
    assert recovery(AT_S, twice, ALL_GOOD, 0.0).seconds == pytest.approx(70)
    assert recovery(AT_S, AT_S < 60, ALL_GOOD, 0.0).seconds is None
    assert recovery(AT_S, np.arange(1000) % 2 == 0, ALL_GOOD, 0.0).seconds is None


def test_without_a_fall_it_took_no_time_and_too_few_requests_tell_nothing() -> None:
    good = np.ones(1000, np.bool_)
    assert recovery(AT_S, good, ALL_GOOD, 0.0).seconds == 0
    assert recovery(AT_S, ~good, Proportion(0, 400), 0.0).seconds is None
    assert recovery(AT_S, good, Proportion(ROLLING - 1, ROLLING - 1), 0.0).seconds is None
    assert recovery(AT_S, good, ALL_GOOD, 95.1).seconds is None
    assert recovery(AT_S, good, ALL_GOOD, 95.0).seconds == 0


def test_a_share_so_low_before_that_nothing_is_a_fall_does_not_recover_at_once() -> None:
    none = np.zeros(1000, np.bool_)
    few = slice(0, 190)  # of 200 in a row the widest rolling share would show a fall
    assert recovery(AT_S[few], none[few], Proportion(120, 1000), 0.0).seconds is None
    assert recovery(AT_S[few], ~none[few], Proportion(120, 1000), 0.0).seconds is None
    assert recovery(AT_S, none, Proportion(120, 1000), 0.0).seconds is None
    assert recovery(AT_S, AT_S > 50, Proportion(500, 1000), 0.0).seconds == pytest.approx(
        50, abs=ROLLING / 10
    )


def test_chance_alone_is_rarely_a_fall() -> None:
    rng, at_s = np.random.default_rng(7), np.arange(5000) / 50
    found = [
        recovery(at_s, rng.random(5000) < 0.9, Proportion(round(rng.binomial(1000, 0.9)), 1000), 0.0).seconds
        for _ in range(100)
    ]
    assert sum(each != 0 for each in found) <= 10  # 5 % at most, by Bonferroni


def test_a_partial_fall_is_found_to_within_half_a_rolling_share() -> None:
    """A share of 98 % that falls to 50 % and comes back at 60 s."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        good = rng.random(1000) < np.where((AT_S >= 10) & (AT_S < 60), 0.5, 0.98)
        found = recovery(AT_S, good, Proportion(980, 1000), 0.0).seconds
        assert found is not None
        assert found == pytest.approx(60, abs=ROLLING / 10)


@pytest.mark.parametrize(("before", "after"), [(0.95, 0.8), (0.95, 0.88), (0.99, 0.95)])
def test_a_shallow_fall_to_the_end_is_neither_no_fall_nor_a_recovery(before: float, after: float) -> None:
    """With rolling shares of 50 alone, 95 % that became 88 % for good were 0 s, or any time."""
    at_s, unseen = np.arange(2000) / 10, 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        share = Proportion(int(rng.binomial(1000, before)), 1000)
        unseen += recovery(at_s, rng.random(2000) < after, share, 0.0).at_least_s is None
    assert unseen <= 6


def test_a_shallow_fall_ends_where_it_ends_to_within_a_wide_rolling_share() -> None:
    at_s, found = np.arange(10_000) / 10, []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        good = rng.random(10_000) < np.where(at_s < 500, 0.88, 0.95)
        found.append(recovery(at_s, good, Proportion(950, 1000), 0.0).seconds or 0.0)
    assert np.median(found) == pytest.approx(500, abs=80)


def test_what_is_not_known_says_why_and_what_was_not_back_has_a_lower_bound() -> None:
    good = np.ones(1000, np.bool_)
    late = recovery(AT_S, AT_S < 60, ALL_GOOD, 0.0)
    assert late.at_least_s == pytest.approx(95)
    assert late.seconds is None
    assert late.why is None
    for before, since_s, why in (
        (Proportion(0, 400), 0.0, "no request before it was good"),
        (Proportion(49, 49), 0.0, "49 requests before it are too few: 50 are needed"),
        (ALL_GOOD, 95.15, "48 requests after it are too few: 50 are needed"),
    ):
        found = recovery(AT_S, good, before, since_s)
        assert (found.seconds, found.at_least_s, found.why) == (None, None, why)


def standstills_of(*records: RequestRecord, window: Window = TEN, slo: Slo | None = None) -> Standstills:
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
    assert spans(standstills_of(*QUICK, cut(1.0, 9.0), cut(2.0, 9.0))) == [(1.0, 8.0, 2)]


def test_where_nothing_is_under_way_it_begins_with_the_next_request() -> None:
    assert spans(standstills_of(*QUICK, cut(4.0, 9.0), cut(4.5, 9.0))) == [(4.0, 5.0, 2)]
    assert standstills_of(*QUICK, *well(9.0)).n == 0


def test_a_token_of_one_request_ends_the_silence_of_all() -> None:
    other = request(1.0, tuple(0.5 * k for k in range(1, 18)))
    assert standstills_of(*QUICK, other, cut(1.0, 9.0), cut(2.0, 9.0)).n == 0


def test_a_hole_in_a_stream_is_as_silent_as_a_wait_for_a_first_token() -> None:
    holed = [request(1.0, (0.1, 0.2, 7.0, 7.1)), request(1.0, (0.1, 0.2, 7.05, 7.2))]
    assert spans(standstills_of(*QUICK, *holed)) == [(1.2, 6.8, 2)]


def test_the_drain_is_out() -> None:
    assert spans(standstills_of(*QUICK, cut(2.0, 40.0), cut(2.5, 40.0))) == [(2.0, 8.0, 2)]
    assert standstills_of(*QUICK, *well(9.8), cut(9.5, 40.0), cut(9.5, 40.0)).n == 0


def test_a_deployment_that_takes_no_connection_stands_still() -> None:
    connecting = cut(0.0, 9.0, sent=False)
    assert spans(standstills_of(connecting, connecting)) == [(0.0, 9.0, 2)]


def test_a_rejection_is_an_answer_and_what_the_client_gave_up_is_none() -> None:
    waiting = cut(0.9, 9.9), cut(0.9, 9.9)
    rejected = [failed(0.9 * k) for k in range(1, 12)]
    assert standstills_of(*QUICK, *waiting, *rejected).n == 0
    gave_up = [
        request(float(at), (), ended=at + 0.9, outcome=outcome)
        for at, outcome in ((1, Outcome.TIMEOUT), (3, Outcome.CONNECT_ERROR), (5, Outcome.TIMEOUT))
    ]
    assert spans(standstills_of(*QUICK, *waiting, *gave_up)) == [(1.0, 8.9, 3)]


def test_the_time_between_the_windows_of_two_runs_is_in_none() -> None:
    window = Window(ns(0.0), ns(106.0), "", gaps=((ns(4.0), ns(100.0)),))
    found = standstills_of(*QUICK, cut(1.0, 105.0), cut(1.0, 105.0), window=window)
    assert spans(found) == [(1.0, 3.0, 2), (100.0, 5.0, 2)]


@pytest.mark.parametrize(
    ("slo", "n"), [(None, 0), (Slo(ttft_s=8.0), 0), (Slo(ttft_s=1.0), 1), (Slo(tpot_s=9.0), 0)]
)
def test_a_wait_of_one_user_alone_is_one_only_if_it_broke_a_limit(slo: Slo | None, n: int) -> None:
    alone = request(1.0, (7.0, 7.1))
    assert standstills_of(*QUICK, alone, slo=slo).n == n
    assert standstills_of(*QUICK, cut(1.0, 9.0), slo=slo).n == 1


@pytest.mark.parametrize(
    ("slo", "n"),
    [
        *((None, 1), (Slo(ttft_s=1.0), 1), (Slo(tpot_s=9.0), 1)),
        *((Slo(**{f"{each.key}_s": 8.0}), 0) for each in LATENCIES if each.is_limited and each.end),
    ],
)
def test_waits_within_the_limit_on_them_are_none(slo: Slo | None, n: int) -> None:
    late = request(1.0, (7.0, 7.1))
    assert standstills_of(*QUICK, late, late, slo=slo).n == n


@pytest.mark.parametrize(
    ("slo", "n"), [(Slo(tpot_s=9.0, ttft_s=9.0), 1), (Slo(e2el_s=9.0), 0), (Slo(e2el_scheduled_s=9.0), 0)]
)
def test_a_pace_that_is_held_on_average_is_no_limit_on_a_hole(slo: Slo, n: int) -> None:
    holed = request(1.0, (0.1, 0.2, 7.0, 7.1))
    assert standstills_of(*QUICK, holed, holed, slo=slo).n == n


def test_what_others_usually_wait_is_slow_and_not_still() -> None:
    thinking = [request(0.0, (3.0, 3.1)), request(3.2, (3.0, 3.1))]
    found = standstills_of(*thinking, request(6.4, (3.2, 3.3)), request(6.5, (3.1, 3.2)))
    assert (found.n, found.slow_n) == (0, 3)
    assert found.slow_longest_s == pytest.approx(3.2)
    assert found.slow_seconds == pytest.approx(9.2)


def test_each_class_has_waits_of_its_own() -> None:
    slow = [request(3.0 * k, (2.9, 3.0), slo_class="slow") for k in range(3)]
    quick = [request(9.1, (6.0, 6.1), slo_class="chat")] * 2 + [request(0.1 * k) for k in range(80)]
    window = Window(ns(0.0), ns(20.0), "")
    assert standstills_of(*slow, *quick, window=window).n == 0  # all of one class: 3 s are a habit
    chat = [request(0.1 * k, slo_class="chat") for k in range(80)]
    assert standstills_of(*slow, *quick[:2], *chat, window=window).n == 1


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
    found = standstills_of(*records, window=Window(ns(0.0), ns(20.0), ""))
    assert found.seconds + found.slow_seconds == pytest.approx(silent_moments(records, 20.0), abs=1e-5)
