"""The latencies and gaps of single requests, by hand and against plain Python."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from metrics_cases import ORIGIN_NS, batch, columns, failed, request, requests, summarise_latency

from llm_locust.core.batch import RecordBatch
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.metrics import columns as ragged
from llm_locust.metrics.catalogue import FORMULAS, LATENCY
from llm_locust.metrics.columns import Part
from llm_locust.metrics.requests import gaps, latency
from llm_locust.metrics.requests.gaps import (
    GapCourse,
    PooledGaps,
    first_token_wide,
    joined,
    on_time_ratio,
    program_stamped,
    summarise_on_time,
)
from llm_locust.metrics.requests.latency import (
    Measurable,
    Samples,
    adjusted_gaps,
    at_least,
    cut_pace_s,
    latency_tables,
    most_gaps,
    per_request,
    with_stuck,
    with_unsent,
)
from llm_locust.metrics.stats.bootstrap import Order, order_cells, time_cells
from llm_locust.metrics.stats.censoring import Durations, percentile
from llm_locust.metrics.stats.sketch import RELATIVE_ERROR, Histogram
from llm_locust.metrics.window import Population, Window


def one(metric: str, record: RequestRecord) -> float:
    formula = FORMULAS.get(metric) or getattr(latency, metric)
    return float(formula(columns(record))[0])


def test_each_latency_of_a_plain_request_is_its_formula() -> None:
    record = request(1.0, (0.05, 0.07, 0.10), late=0.01, first_answer_ns=70_000_000, rtt_ns=300_000)
    expected = {
        "ttft": 0.05,
        "ttfo": 0.07,
        "e2el": 0.10,
        "tpot": 0.025,
        "user_tps": 40.0,
        "schedule_delay": 0.01,
        "ttft_scheduled": 0.06,
        "e2el_scheduled": 0.11,
        "connect": 0.01,
        "rtt": 0.0003,
        "client_lag": 0.00002,
    }
    assert {m: one(m, record) for m in expected} == pytest.approx(expected, abs=1e-9)


def test_trap_7_the_time_of_the_usage_chunk_or_done_is_no_part_of_tpot_or_e2el() -> None:
    record = request(0.0, (0.1, 0.2, 0.3), ended=5.0)
    assert one("e2el", record) == pytest.approx(0.3)
    assert one("tpot", record) == pytest.approx(0.1)


def test_trap_11_what_is_not_defined_is_nan_and_never_0() -> None:
    failure = failed()
    assert all(math.isnan(one(m, failure)) for m in ("ttft", "ttfo", "e2el", "tpot", "user_tps"))
    assert math.isnan(one("tpot", request(arrivals=(0.1,), output_tokens=1)))
    assert math.isnan(one("connect", request(reused=True)))
    assert math.isnan(one("client_lag", request(client_lag_ns=None)))
    unsent = request(arrivals=(), sent=False, outcome=Outcome.CONNECT_ERROR)
    assert math.isnan(one("schedule_delay", unsent))
    empty = summarise_latency(np.array([np.nan]))
    assert empty["n"] == 0
    assert all(empty[key] is None for key in ("mean", "std", "min", "p50", "p99", "max"))


def test_an_answer_that_was_not_streamed_is_one_event() -> None:
    whole = request(0.0, (), ended=2.0, streamed=False, output_tokens=50)
    with_arrival = request(0.0, (1.9,), ended=2.0, streamed=False, output_tokens=50)
    assert one("e2el", whole) == pytest.approx(2.0)
    assert one("e2el", with_arrival) == pytest.approx(1.9)
    for record in (whole, with_arrival):
        assert all(math.isnan(one(m, record)) for m in ("ttft", "ttfo", "tpot", "ttft_scheduled"))
        assert latency.itl(columns(record)).values_s.size == 0
    assert math.isnan(one("e2el", failed(streamed=False)))


@pytest.mark.parametrize("arrivals", [(0.1,), (0.1, 0.1, 0.1)])
def test_tokens_that_all_came_at_once_have_no_pace(arrivals: tuple[float, ...]) -> None:
    record = request(arrivals=arrivals, output_tokens=5)
    assert math.isnan(one("tpot", record))
    assert math.isnan(one("user_tps", record))


def plain(record: RequestRecord) -> dict[str, float]:
    """ttft, e2el, tpot by the book, without numpy arrays over rows."""
    arrivals = [a / 1e9 for a in record.arrivals_ns.tolist()]
    n = record.output_tokens
    if n is None and record.streamed and arrivals:
        n = len(arrivals)
    undefined = math.nan
    ttft = arrivals[0] if arrivals and record.streamed else undefined
    e2el = arrivals[-1] if arrivals else undefined
    if not arrivals and not record.streamed and record.outcome is Outcome.OK and record.sent_ns is not None:
        e2el = (record.ended_ns - record.sent_ns) / 1e9
    tpot = (e2el - ttft) / (n - 1) if n is not None and n >= 2 and e2el > ttft else undefined
    return {"ttft": ttft, "e2el": e2el, "tpot": tpot}


@given(st.lists(requests(), max_size=12))
def test_columns_give_what_each_request_gives_alone(records: list[RequestRecord]) -> None:
    values = per_request(columns(*records))
    for i, record in enumerate(records):
        for metric, expected in plain(record).items():
            assert values[metric][i] == pytest.approx(expected, abs=1e-9, nan_ok=True), metric


@given(st.lists(st.lists(requests(), max_size=5), max_size=4))
def test_itl_of_merged_workers_are_all_their_gaps(workers: list[list[RequestRecord]]) -> None:
    batches = [batch(*records, worker=f"w{i}") for i, records in enumerate(workers)]
    pooled = latency.itl(Part.from_batch(RecordBatch.concat(batches), 0)).values_s
    single = [
        (b - a) / 1e9
        for records in workers
        for r in records
        if r.streamed
        for a, b in pairwise(r.arrivals_ns.tolist())
    ]
    assert pooled == pytest.approx(single)


def test_metrics_and_per_request_name_the_same() -> None:
    metrics = per_request(columns())
    assert set(LATENCY) == {*metrics, "itl"}
    assert len(metrics) == len(LATENCY) - 1


#: Nine answers whose TTFT is 0.1 to 0.9 s, each with a gap of 50 ms, and one that failed.
TEN = [*(request(float(i), (0.1 * i, 0.1 * i + 0.05)) for i in range(1, 10)), failed(10.0)]


def everything(*records: RequestRecord) -> tuple[Part, Population]:
    c = columns(*records)
    return c, Population.of(c, np.ones(len(c), np.bool_), np.arange(len(c)))


def test_each_latency_has_a_plain_table_and_one_in_which_each_failure_is_beyond_all() -> None:
    c, population = everything(*TEN)
    gaps = Durations(np.full(9, 0.05))
    asked = Measurable(population, lambda: gaps, order_cells(c, population.all), np.ones(1))
    ((plain, adjusted),) = latency_tables(c, [asked], {"p50": 50.0, "p80": 80.0, "p95": 95.0})
    assert [*plain] == [*adjusted] == [*LATENCY]
    ttft_ms = 100.0 * np.arange(1, 10)
    for key, percent in (("p50", 50), ("p80", 80), ("p95", 95)):
        assert plain["ttft"][key] == pytest.approx(np.percentile(ttft_ms, percent))
    for key, percent in (("p50", 50), ("p80", 80)):
        assert adjusted["ttft"][key] == pytest.approx(np.percentile([*ttft_ms, 1e9], percent))
    assert (plain["ttft"]["n"], adjusted["ttft"]["n"]) == (9, 10)
    assert (plain["ttft"]["beyond"], adjusted["ttft"]["beyond"]) == ([], ["p95", "max"])
    assert (plain["itl"]["n"], plain["itl"]["p50"]) == (9, pytest.approx(50.0))
    assert (adjusted["itl"]["n"], adjusted["itl"]["beyond"]) == (10, ["p95", "max"])


def test_what_was_not_sent_or_hung_is_in_the_tables_of_what_it_could_change() -> None:
    c, population = everything(*TEN)
    asked = Measurable(
        population,
        lambda: Durations(np.empty(0)),
        order_cells(c, population.all),
        np.ones(1),
        unsent=5,
        stuck_s=lambda metric: np.array([7.0, 8.0] if metric == "ttft" else []),
    )
    for table in latency_tables(c, [asked])[0]:
        assert {metric: figures["censored"] for metric, figures in table.items() if figures["censored"]} == {
            "ttft": 2,
            "ttft_scheduled": 5,
            "e2el_scheduled": 5,
            "schedule_delay": 5,
        }


@pytest.mark.parametrize(
    ("gaps", "in_cells"), [(6, [4.0, 0.0]), (0, [2.0, 0.0])], ids=["2 an answer", "no gaps"]
)
def test_a_failed_request_has_as_many_endless_gaps_as_an_answer_and_where_it_was(
    gaps: int, in_cells: list[float]
) -> None:
    _, population = everything(request(), request(), request(), failed(), failed())
    course = GapCourse(2)
    course.add(np.full(gaps, 20_000_000), np.array([gaps]), np.array([1]))
    found = adjusted_gaps(Durations(np.full(gaps, 0.02), course=course), population, np.array([2.0, 0.0]))
    assert (len(found.observed), found.infinite) == (gaps, sum(in_cells))
    assert found.course is not None
    assert (found.course.counts - course.counts).tolist() == in_cells


def test_what_was_never_sent_leaves_open_what_counts_from_scheduled_and_nothing_else() -> None:
    found = Durations.of(np.array([1.0, 2.0]))
    left_open = with_unsent(found, "ttft_scheduled", 3)
    assert left_open.censored.tolist() == [0.0, 0.0, 0.0]
    assert left_open.observed is found.observed
    assert left_open.trend  # later ones may be longer
    assert with_unsent(found, "ttft", 3) is found
    assert with_unsent(found, "ttft_scheduled", 0) is found


def test_what_hung_from_before_leaves_open_what_it_could_change() -> None:
    found = Durations.of(np.array([1.0, 2.0]), np.array([0.5]))
    assert with_stuck(found, np.empty(0)) is found
    left_open = with_stuck(found, np.array([3.0, 0.2]))
    assert left_open.censored.tolist() == [0.2, 0.5, 3.0]
    assert math.isnan(left_open.quantile(1.0))


@pytest.mark.parametrize(("input_tokens", "bound_s"), [(500, 2 * 2.0), (4_000, 2 / 4), (None, math.nan)])
def test_a_latency_per_input_is_at_least_the_time_until_it_was_given_up_per_input(
    input_tokens: int | None, bound_s: float
) -> None:
    c = columns(request(1.0, (), ended=3.0, outcome=Outcome.CANCELLED, input_tokens=input_tokens))
    assert at_least(c, "prefill_ms_per_1k_input") == pytest.approx([bound_s], nan_ok=True)


ANSWERS = [request(0.0, (1.0,)), request(1.0, (2.0,)), request(2.0, (3.0,))]
TIMED_OUT = request(3.0, (), ended=5.5, outcome=Outcome.TIMEOUT)


@pytest.mark.parametrize(
    ("records", "censored", "infinite"),
    [
        (ANSWERS, [], 0),
        ([*ANSWERS, failed(3.0)], [], 1),
        ([*ANSWERS, TIMED_OUT], [2.5], 1),
        ([*ANSWERS, TIMED_OUT, failed(4.0)], [2.5], 2),
    ],
)
def test_the_adjusted_durations_have_each_failed_request_once_and_without_end(
    records: list[RequestRecord], censored: list[float], infinite: int
) -> None:
    c, n = columns(*records), len(records)
    population = Population.of(c, np.ones(n, np.bool_), np.arange(n))
    order, samples = order_cells(c, population.all), Samples.of(c, per_request(c), "e2el")
    plain = samples.durations(population, order)
    adjusted = samples.adjusted(population, plain, order)
    assert (plain.censored.tolist(), plain.infinite) == (censored, 0)
    assert (adjusted.censored.tolist(), adjusted.infinite) == ([], infinite)
    assert plain.observed == pytest.approx([1, 2, 3])
    assert adjusted.observed == pytest.approx([1, 2, 3])
    assert adjusted.course is not None
    assert adjusted.course.counts.tolist() == [1] * n
    assert adjusted.course.sums == pytest.approx([1, 2, 3] + [math.inf] * infinite)
    assert adjusted.course.at_most(np.array([2.0, 1e9])).sum(axis=1).tolist() == [2, 3]


def test_a_request_that_was_given_up_is_a_part_of_those_that_lasted_longer() -> None:
    """Of three that took 1, 2 and 3 s one ended after 1.5 s: for its interval, half a request up to 2 s."""
    given_up = request(3.0, (), ended=4.5, outcome=Outcome.CANCELLED)
    c = columns(request(0.0, (1.0,)), request(1.0, (2.0,)), request(2.0, (3.0,)), given_up)
    population = Population.of(c, np.ones(4, np.bool_), np.arange(4))
    order = order_cells(c, population.all)
    course = Samples.of(c, per_request(c), "e2el").durations(population, order).course
    assert course is not None
    assert course.at_most(np.array([1.0, 2.0, 3.0])).sum(axis=1) == pytest.approx([1.0, 2.5, 4.0])
    assert course.sums == pytest.approx([1.0, 2.0, 3.0, 2.5])  # the mean of those that lasted longer
    whole = Durations.of(np.array([1.0, 2.0, 3.0]), np.array([1.5]))
    assert whole.moments()[0] == pytest.approx(course.sums.sum() / 4)


def test_a_request_that_was_given_up_may_have_no_end_where_others_have_none() -> None:
    """Cut after 1.5 s, it is one of those that took 2 and 3 s and of the one that failed: a third each."""
    given_up = request(3.0, (), ended=4.5, outcome=Outcome.CANCELLED)
    c = columns(*ANSWERS, given_up, failed(5.0))
    population = Population.of(c, np.ones(5, np.bool_), np.arange(5))
    order, samples = order_cells(c, population.all), Samples.of(c, per_request(c), "e2el")
    course = samples.adjusted(population, samples.durations(population, order), order).course
    assert course is not None
    assert course.at_most(np.array([1.0, 2.0, 3.0])).sum(axis=1) == pytest.approx([1.0, 2 + 1 / 3, 3 + 2 / 3])
    assert course.counts.tolist() == [1] * 5


def test_where_every_request_was_given_up_none_is_known_to_be_at_most_anything() -> None:
    c = columns(*(request(float(at), (), ended=9.0, outcome=Outcome.CANCELLED) for at in range(3)))
    population = Population.of(c, np.ones(3, np.bool_), np.arange(3))
    found = Samples.of(c, per_request(c), "e2el").durations(population, order_cells(c, population.all))
    assert (len(found.observed), found.censored.tolist()) == (0, [7.0, 8.0, 9.0])
    assert np.isnan(found.moments()).all()
    assert found.course is not None
    assert found.course.counts.tolist() == [1, 1, 1]
    assert found.course.at_most(np.array([1e9])).sum() == 0


@pytest.mark.parametrize(
    ("arrivals", "ended", "pace_s"),
    [
        ((1.0, 1.1, 1.2, 1.3), 1.35, 0.1),  # three gaps; the next token would have been in time
        ((1.0, 1.1, 1.2, 1.3), 2.0, 1.0 / 4),  # it would not: its gap is at least the silence
        ((1.0, 1.1), 9.0, 8.0 / 2),
        ((1.0,), 9.0, math.nan),  # of one event nothing is known
        ((), 9.0, math.nan),
        ((1.0, 1.0), 9.0, math.nan),  # both came at once: no time was spent on a token
    ],
)
def test_the_pace_of_a_cut_answer_is_that_of_its_tokens_or_of_the_silence_that_was_longer(
    arrivals: tuple[float, ...], ended: float, pace_s: float
) -> None:
    cut = request(0.0, arrivals, ended=ended, outcome=Outcome.CANCELLED)
    whole = request(0.0, arrivals, ended=ended)
    found = cut_pace_s(columns(cut, whole))
    assert found == pytest.approx([pace_s, math.nan], nan_ok=True)  # a whole answer has its TPOT


@pytest.mark.parametrize(
    ("arrivals", "asked", "gaps"),
    [
        ((1.0, 1.1), 50, 49),  # as many as were asked for, and the first has none
        ((1.0, 1.1), None, 2),  # one more than came
        ((1.0, 1.1), 1, 2),  # more came than were asked for
        ((1.0,), None, 1),
        ((), None, math.nan),  # nothing came, and nothing was asked for
    ],
)
def test_a_cut_answer_may_yet_have_the_gaps_that_were_asked_for_and_one_at_least(
    arrivals: tuple[float, ...], asked: int | None, gaps: float
) -> None:
    cut = request(0.0, arrivals, ended=2.0, outcome=Outcome.CANCELLED, asked_output_tokens=asked)
    assert most_gaps(columns(cut)) == pytest.approx([gaps], nan_ok=True)


RECORDS = [
    request(arrivals=(0.1, 0.3, 0.6), name="chat", slo_class="fast"),
    request(arrivals=(0.1, 0.5), name="long", slo_class="fast"),
    request(arrivals=(0.1, 0.6), name="long"),
    request(arrivals=(0.1,), name="chat"),
    request(arrivals=(0.1, 0.9), streamed=False),
]


def pooled(records: list[RequestRecord], exact: int, parts: int = 1) -> PooledGaps:
    pool = PooledGaps(exact)
    for rows in np.array_split(np.arange(len(records)), parts):
        part = Part.from_batch(batch(*(records[i] for i in rows)), ORIGIN_NS)
        pool.add(part, np.arange(len(part)))
    return pool


def test_gaps_are_pooled_by_name_and_class_and_never_cross_from_one_request_to_the_next() -> None:
    pool = pooled(RECORDS, exact=100)
    assert pool.ascending() == pytest.approx([0.2, 0.3, 0.4, 0.5])
    assert pool.ascending(name="long") == pytest.approx([0.4, 0.5])
    assert pool.ascending(slo_class="fast") == pytest.approx([0.2, 0.3, 0.4])
    assert pool.ascending(name="chat", slo_class="") == pytest.approx([])
    assert pool.relative_error == 0.0


def test_a_course_without_gaps_adds_nothing_to_another() -> None:
    none, some, nothing = GapCourse(2), GapCourse(2), np.empty(0, np.int64)
    none.add(nothing, nothing, nothing)
    some.add(np.array([2, 3]), np.array([1, 1]), np.array([0, 1]))
    whole = joined([some, none])
    assert whole is not None
    assert whole.counts.tolist() == some.counts.tolist() == [1, 1]
    assert whole.sums == pytest.approx([2e-9, 3e-9])
    assert none.table.size == 0
    twice = joined([some, none, some])
    assert twice is not None
    assert twice.counts.tolist() == [2, 2]
    assert twice.sums == pytest.approx([4e-9, 6e-9])
    assert joined([]) is None


def test_gaps_of_no_time_make_no_room_for_what_no_gap_can_be() -> None:
    """Bins begin at 1 ns, 256 to a power of two: the 23 of them up to 5 ms, and not the 127 below."""
    course = GapCourse(1)
    course.add(np.array([0, 0, 0, 5_000_000]), np.array([4]), np.array([0]))
    assert course.at_most(np.array([0.0, 1e-9, 0.004])).tolist() == [[3], [3], [3]]
    assert course.table.shape[1] < 23 * 256


@pytest.mark.parametrize(("within_bin", "at_most"), [(0.2, 5), (0.8, 15)])
def test_a_limit_within_a_bin_counts_its_gaps_where_that_is_nearer(within_bin: float, at_most: int) -> None:
    """Bins above 2^20 ns are 4096 ns wide; of 20 gaps 10 are in that of the limit, 5 below and 5 above it."""
    start_ns, wide_ns = 1 << 20, 4096
    gaps_ns = np.repeat([start_ns - 1000, start_ns + 5, start_ns + wide_ns], [5, 10, 5])
    course = GapCourse(1)
    course.add(gaps_ns, np.array([20]), np.array([0]))
    assert course.at_most(np.array([(start_ns + within_bin * wide_ns) / 1e9])).tolist() == [[at_most]]


def test_names_beyond_the_most_have_no_course_and_nor_has_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaps, "MOST_COURSES", 1)
    part = Part.from_batch(batch(*RECORDS[1:]), ORIGIN_NS)  # first long and fast, then long
    pool = PooledGaps(100)
    pool.add(part, np.arange(len(part)), time_cells(Window(0, 10**9, "test"), part, part.scheduled_s))
    courses = [pool.course(slo_class=name) for name in ("", "fast")]
    assert sum(course is None for course in courses) == 1
    assert pool.course() is None
    assert len(pool.ascending()) == 2


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_more_gaps_than_are_kept_are_counted_whatever_the_parts(parts: int) -> None:
    pool, kept = pooled(RECORDS, exact=3, parts=parts), pooled(RECORDS, exact=4, parts=parts)
    assert (pool.relative_error, kept.relative_error) == (RELATIVE_ERROR, 0.0)
    for asked in ({}, {"name": "long"}, {"name": "chat"}, {"slo_class": "fast"}):
        counted, true = pool.ascending(**asked), kept.ascending(**asked)
        assert isinstance(counted, Histogram)
        assert isinstance(true, np.ndarray)
        assert len(counted) == len(true)
        for percent in (0, 50, 99, 100):
            assert percentile(counted, percent) == pytest.approx(
                percentile(true, percent), rel=RELATIVE_ERROR
            )


@pytest.mark.parametrize("exact", [3, 4])
def test_further_durations_are_ranked_among_the_gaps_kept_or_counted(exact: int) -> None:
    found = pooled(RECORDS, exact).ascending_with(np.array([0.25, 0.9]))
    assert isinstance(found, Histogram) == (exact == 3)
    assert [found[rank] for rank in range(len(found))] == pytest.approx(
        [0.2, 0.25, 0.3, 0.4, 0.5, 0.9], rel=RELATIVE_ERROR
    )


@pytest.mark.parametrize("exact", [100, 0])
def test_the_time_after_the_last_token_of_a_cut_answer_is_a_gap_that_was_cut(exact: int) -> None:
    made = [
        request(0.0, (0.1, 0.3), ended=1.0, outcome=Outcome.CANCELLED, name="chat"),
        request(1.0, (0.5,), ended=1.75, outcome=Outcome.CANCELLED, name="long", slo_class="fast"),
        request(2.0, (), ended=9.0, outcome=Outcome.CANCELLED),  # no token yet: no gap had begun
        request(3.0, (0.1,), ended=9.0, outcome=Outcome.CANCELLED, streamed=False),
        request(4.0, (0.1,), ended=9.0),  # not asked for
    ]
    pool = PooledGaps(exact)
    pool.add_silences(columns(*made), np.arange(4))
    found = pool.ascending()
    assert [found[rank] for rank in range(len(found))] == pytest.approx([0.25, 0.7], rel=RELATIVE_ERROR)
    of_one = pool.ascending(name="long")
    assert (len(of_one), of_one[0]) == (1, pytest.approx(0.25, rel=RELATIVE_ERROR))


def test_gaps_that_fill_many_pieces_are_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ragged, "PIECE", 2)
    assert pooled(RECORDS, exact=100).ascending() == pytest.approx([0.2, 0.3, 0.4, 0.5])
    assert len(pooled(RECORDS, exact=0).ascending()) == 4


@pytest.mark.parametrize(
    ("arrivals", "lag_ms", "is_wide"),
    [
        ((0.05, 0.05, 0.07), 1.0, True),
        ((0.05, 0.05, 0.07), 0.99, False),
        ((0.05, 0.05, 0.07), None, True),
        ((0.05, 0.06, 0.06), 9.0, False),
        ((2.0, 2.0, 2.001), 9.0, False),
        ((2.0, 2.0, 2.001), 21.0, True),
        ((2.0, 2.0, 2.03), 9.0, True),
        ((0.05,), 9.0, False),
        ((), 9.0, False),
    ],
)
def test_a_first_token_is_wide_where_a_read_that_may_have_been_late_brought_it_with_the_next(
    arrivals: tuple[float, ...], lag_ms: float | None, is_wide: bool
) -> None:
    made = request(arrivals=arrivals, client_lag_ns=None if lag_ms is None else round(lag_ms * 1e6))
    assert first_token_wide(columns(request(), made)).tolist() == [False, is_wide]


def test_only_an_answer_that_was_read_has_timestamps_of_the_program() -> None:
    own: dict[str, Any] = {"kernel_stamps": False}
    refused = request(arrivals=(), ended=0.1, outcome=Outcome.CONNECT_ERROR, **own)
    told = columns(request(), request(**own), refused, replace(refused, status=503))
    assert program_stamped(told).tolist() == [False, True, False, True]


def ratio(record: RequestRecord, ttft: float = 0.5, tpot: float = 0.1) -> float:
    return float(on_time_ratio(columns(record), np.array([0]), ttft, tpot)[0])


def test_of_an_event_with_many_tokens_only_the_first_can_be_late() -> None:
    assert ratio(request(arrivals=(0.5, 2.0), output_tokens=10)) == pytest.approx(0.9)


def test_with_fewer_tokens_than_events_each_event_is_a_part_of_one() -> None:
    assert ratio(request(arrivals=(0.5, 0.9, 1.0, 1.1), output_tokens=2)) == pytest.approx(0.25)


def test_any_number_of_tokens_in_a_damaged_file_has_a_ratio() -> None:
    assert ratio(request(arrivals=(0.5, 0.6), output_tokens=2**62)) == 1.0


def test_without_a_token_there_is_no_ratio() -> None:
    assert math.isnan(ratio(failed()))
    assert math.isnan(ratio(request(streamed=False)))
    counted = request(arrivals=(), ended=1.0, output_tokens=5)  # but none was seen to come
    ratios = on_time_ratio(columns(counted, request(arrivals=(0.5, 0.9))), np.array([0, 1]), 0.5, 0.1)
    assert ratios == pytest.approx([np.nan, 0.5], nan_ok=True)


def test_the_share_of_a_run_is_the_mean_of_its_requests_with_their_jerky_end() -> None:
    shares = np.random.default_rng(1).permutation(np.append(np.linspace(0.5, 1.0, 401), np.nan))
    found = summarise_on_time(shares, Order.even(402))
    assert found.n == 401
    assert [found.mean, found.p1, found.p5] == pytest.approx([0.75, 0.505, 0.525])
    low, high = found.ci95["mean"] or (None, None)
    assert low is not None
    assert high is not None
    assert low < 0.75 < high
    assert set(summarise_on_time(shares).ci95.values()) == {None}, "in no order"


def test_without_limits_on_the_pace_nothing_is_in_time_or_late() -> None:
    found = summarise_on_time(None)
    assert found.mean is None
    assert found.n == 0


def by_the_book(arrivals_ms: list[int], ttft_ms: int, tpot_ms: int) -> float:
    deadline, in_time = ttft_ms, 0
    for at in arrivals_ms:
        in_time += at <= deadline
        deadline = (at if at > deadline else deadline) + tpot_ms
    return in_time / len(arrivals_ms)


gaps_of_pace = st.lists(st.integers(0, 300), min_size=1, max_size=10)


@pytest.mark.parametrize("piece", [1, 7, 1 << 21])
def test_many_requests_are_judged_as_each_alone(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ragged, "PIECE", piece)

    @given(st.lists(gaps_of_pace, min_size=1, max_size=6), st.integers(1, 500), st.integers(1, 200))
    def holds(many: list[list[int]], ttft_ms: int, tpot_ms: int) -> None:
        arrivals = [np.cumsum(g).tolist() for g in many]
        c = columns(*(request(arrivals=tuple(ms / 1000 for ms in a)) for a in arrivals))
        ratios = on_time_ratio(c, np.arange(len(many)), ttft_ms / 1000, tpot_ms / 1000)
        assert ratios == pytest.approx([by_the_book(a, ttft_ms, tpot_ms) for a in arrivals])

    holds()
