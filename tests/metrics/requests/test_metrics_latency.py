"""The latencies of single requests, by hand and against plain Python."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st
from metrics_cases import batch, columns, failed, request, requests, summarise_latency

from llm_locust.core.batch import RecordBatch
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.metrics.catalogue import FORMULAS, LATENCY, tpot
from llm_locust.metrics.columns import Part
from llm_locust.metrics.requests import latency
from llm_locust.metrics.requests.gaps import GapCourse
from llm_locust.metrics.requests.latency import (
    Measurable,
    adjusted_gaps,
    latency_figures,
    latency_tables,
    per_request,
)
from llm_locust.metrics.stats.bootstrap import order_cells
from llm_locust.metrics.stats.censoring import Durations
from llm_locust.metrics.window import Population


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


def test_itl_are_the_gaps_of_each_request_and_never_cross_from_one_to_the_next() -> None:
    gaps = latency.itl(columns(request(arrivals=(0.1, 0.3, 0.6)), failed(), request(arrivals=(9.0, 9.5))))
    assert gaps.offsets.tolist() == [0, 2, 2, 3]
    assert gaps.values_s == pytest.approx([0.2, 0.3, 0.5])


def test_itl_of_chosen_rows_come_in_that_order() -> None:
    c = columns(request(arrivals=(0.1, 0.3)), request(arrivals=(0.0, 0.5)), request(arrivals=(0.0, 0.7)))
    assert latency.itl(c, np.array([2, 0])).values_s == pytest.approx([0.7, 0.2])


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


def test_trap_16_no_times_are_invented_between_the_first_and_the_last() -> None:
    """Ten tokens in two events have one gap; their pace is another thing."""
    c = columns(request(arrivals=(0.1, 1.0), output_tokens=10))
    assert latency.itl(c).values_s == pytest.approx([0.9])
    assert tpot(c) == pytest.approx([0.1])


def test_trap_18_a_step_of_the_clock_changes_no_latency() -> None:
    """The client takes such a request's times from the monotonic clock; the mark alone is left."""
    steady, stepped = request(), request(clock_step_ns=-40_000_000)
    for metric in ("ttft", "ttfo", "e2el", "tpot", "schedule_delay"):
        assert one(metric, stepped) == one(metric, steady)


def test_trap_19_latency_from_scheduled_holds_the_time_that_the_client_was_late() -> None:
    record = request(0.0, (0.1, 0.2), late=3.0)
    assert one("ttft", record) == pytest.approx(0.1)
    assert one("ttft_scheduled", record) == pytest.approx(3.1)
    assert one("e2el_scheduled", record) == pytest.approx(3.2)


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


# --- tables -----------------------------------------------------------------------------------------

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


def test_figures_of_several_populations_are_each_of_its_own_answers() -> None:
    c = columns(*TEN)
    halves = [Population.of(c, np.ones(10, np.bool_), rows) for rows in np.split(np.arange(10), 2)]
    low, high = latency_figures(c, halves, ["ttft", "e2el"], {"p90": 90.0})
    assert (low["ttft"]["n"], high["ttft"]["n"]) == (5, 4)
    assert low["ttft"]["p90"] == pytest.approx(np.percentile([100, 200, 300, 400, 500], 90))
    assert high["e2el"]["p90"] == pytest.approx(np.percentile([650, 750, 850, 950], 90))
    hung = [lambda _: np.array([9.0]), lambda _: np.empty(0)]
    low, high = latency_figures(c, halves, ["ttft"], {"p90": 90.0}, hung)
    assert (low["ttft"]["p90"], low["ttft"]["censored"], high["ttft"]["censored"]) == (None, 1, 0)
