"""All that a report draws: the run cut into spans, distributions, limits, relations, servers."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st
from metrics_cases import (
    ORIGIN_NS,
    Row,
    batch,
    columns,
    failed,
    manifest,
    ns,
    request,
    requests,
    rows,
    tables,
)

from llm_locust.core.arrow import SCHEMA
from llm_locust.core.batch import RecordBatch, Requests
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.figures.charts import (
    FEWEST_POINTS,
    GAP_BINS,
    LEVELS,
    MOST_DRAWN,
    PHASES,
    LimitedRun,
    OperatingPoint,
    RequestDetails,
    RunCharts,
    TokenFacts,
    front,
    gap_edges_s,
    levels_of,
    limit_curve,
    limit_surface,
    load_while_streaming,
    read_tokens,
    relation,
    run_charts,
    slow_request,
    slowest,
    theil_sen,
    ttft_by_input,
)
from llm_locust.figures.course import (
    MOST_BINS,
    MOST_CURVES,
    ServerCurves,
    TimeAxis,
    axis_window,
    failures_over_time,
    percentiles_over_time,
    rates_over_time,
    server_curves,
)
from llm_locust.metrics.catalogue import ttft
from llm_locust.metrics.columns import Part
from llm_locust.metrics.limits import Slo
from llm_locust.metrics.measured import measure
from llm_locust.metrics.question import Question
from llm_locust.metrics.requests.judgement import Limits, Missing, goodput, judge
from llm_locust.metrics.requests.latency import MeasuredFrom, per_request
from llm_locust.metrics.server_series import read_server_series

AXIS = TimeAxis(start_s=0.0, width_s=2.0, bins=5)


def run(n: int = 400) -> Part:
    """``n`` answers of three tokens over 10 s, whose TTFT grows from 50 ms on; one in ten failed."""
    every = 10 / n
    return columns(
        *(
            request(i * every, (0.05 + 0.001 * i, 0.5, 0.52))
            if i % 10
            else failed(i * every, Outcome.TIMEOUT if i % 20 else Outcome.HTTP_ERROR)
            for i in range(n)
        )
    )


def test_the_axis_covers_the_whole_run_in_round_spans() -> None:
    axis = TimeAxis.of(run(), started_s=-0.5)
    assert axis.start_s == -0.5
    assert axis.width_s == 1.0
    assert axis.edges_s[-1] > run().ended_s.max() >= axis.edges_s[-2]


def test_the_axis_begins_with_the_first_request_where_that_is_before_the_start() -> None:
    assert TimeAxis.of(run(), started_s=3.0).start_s == 0.0


def test_a_run_without_requests_has_an_axis_of_one_span() -> None:
    assert TimeAxis.of(columns(), 0.0).bins == 1


@given(st.floats(0.001, 1e7), st.integers(1, 50))
def test_no_run_has_more_spans_than_can_be_drawn(length_s: float, n: int) -> None:
    c = columns(*(request(length_s * i / n) for i in range(n)))
    axis = TimeAxis.of(c, 0.0)
    assert 1 <= axis.bins <= MOST_BINS + 1
    assert (axis.index(c.ended_s) >= 0).all()


def test_a_time_on_an_edge_is_of_the_span_that_begins_there() -> None:
    found = AXIS.index(np.array([-0.1, 0.0, 1.999, 2.0, 9.999, 10.0, np.nan]))
    assert found.tolist() == [-1, 0, 0, 1, 4, -1, -1]


def test_percentiles_are_those_of_the_ok_requests_that_ended_in_each_span() -> None:
    c = run()
    found = percentiles_over_time(AXIS, c, ttft(c))
    frame = pd.DataFrame({"at": c.ended_s // 2, "ttft": ttft(c)})[c.ok]
    by_span = frame[frame["at"] < 5].groupby("at")["ttft"]
    assert found["n"].tolist() == by_span.count().tolist()
    for key, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        assert found[key] == pytest.approx(by_span.quantile(q).to_numpy(), rel=1e-12)


def test_a_span_in_which_no_request_ended_has_no_percentile() -> None:
    c = columns(request(0.0))
    found = percentiles_over_time(AXIS, c, ttft(c))
    assert found["n"].tolist() == [1, 0, 0, 0, 0]
    assert np.isnan(found["p50"][1:]).all()


def test_rates_are_per_second_of_a_span() -> None:
    c = columns(request(0.0, (0.5, 1.0)), request(0.5, (0.5, 3.0)), failed(4.1))
    rates = rates_over_time(AXIS, c, np.array([2.0, 1, 0, 0, 0]))
    assert rates["sent"].tolist() == [1.0, 0, 0.5, 0, 0]
    assert rates["ok"].tolist() == [0.5, 0.5, 0, 0, 0]
    assert rates["failed"].tolist() == [0, 0, 0.5, 0, 0]
    assert rates["input_tokens"].tolist() == [10.0, 0, 0, 0, 0]
    assert rates["output_tokens"].tolist() == [1.0, 0.5, 0, 0, 0]
    assert rates["concurrency"][:2] == pytest.approx([(1.0 + 1.5) / 2, 1.5 / 2])


def test_failures_are_counted_by_outcome_and_cancelled_requests_are_none() -> None:
    c = columns(
        failed(1.0),
        failed(1.5),
        failed(3.0, Outcome.TIMEOUT),
        request(1.0, outcome=Outcome.CANCELLED),
        request(1.0),
    )
    found = failures_over_time(AXIS, c)
    assert {key: counts.tolist() for key, counts in found.items()} == {
        "http_error": [2, 0, 0, 0, 0],
        "timeout": [0, 1, 0, 0, 0],
    }


AXIS_of_tokens = TimeAxis(start_s=0.0, width_s=1.0, bins=20)
NONE = np.empty(0, np.int64)


def read(rows: RecordBatch) -> TokenFacts:
    return read_tokens(rows, ORIGIN_NS, AXIS_of_tokens, NONE)


def test_tokens_are_credited_where_their_events_arrived() -> None:
    facts = read(batch(request(0.0, (0.5, 1.5, 1.6), output_tokens=6), request(2.0, (0.1,))))
    assert facts.output_tokens[:3].tolist() == pytest.approx([2, 4, 1])
    assert facts.output_tokens.sum() == 7


def test_an_answer_without_events_counts_as_a_whole_at_its_end() -> None:
    facts = read(batch(request(0.0, (), ended=3.5, streamed=False, output_tokens=40)))
    assert facts.output_tokens[3] == 40


def test_each_gap_is_in_the_bin_of_its_size_and_the_span_in_which_it_ended() -> None:
    facts = read(batch(request(0.9, (0.05, 0.07, 0.17))))
    edges = gap_edges_s()
    places = np.argwhere(facts.gaps)
    assert [int(span) for _, span in places] == [0, 1]
    for (size, _), gap_s in zip(places, (0.02, 0.1), strict=True):
        assert edges[size] <= gap_s * 1.000001
        assert gap_s < edges[size + 1] * 1.000001


def test_gaps_beyond_the_scale_are_in_its_first_and_last_bin() -> None:
    facts = read(batch(request(0.0, (0.1, 0.1)), request(0.0, (0.1, 0.10001))))
    assert facts.gaps[0, 0] == 2
    long = TimeAxis(0.0, 100.0, 20)
    found = read_tokens(batch(request(0.0, (0.1, 1000.0))), ORIGIN_NS, long, NONE)
    assert found.gaps[GAP_BINS - 1].sum() == 1


@given(st.lists(requests(), max_size=12))
def test_every_gap_is_counted_once_whatever_the_parts(made: list) -> None:  # type: ignore[type-arg]
    rows = batch(*made)
    facts = read(rows)
    ok = [r for r in made if r.outcome is Outcome.OK and r.streamed]
    assert facts.gaps.sum() == sum(max(0, len(r.arrivals_ns) - 1) for r in ok)


def test_chosen_requests_are_told_with_their_longest_gap_and_worker() -> None:
    rows = RecordBatch.concat(
        [
            batch(request(0.0), worker="w1"),
            batch(request(0.0, (0.1, 0.3, 0.31), request_id="slow", headers_ns=ns(0.05)), worker="w2"),
        ]
    )
    facts = read_tokens(rows, ORIGIN_NS, AXIS_of_tokens, np.array([1]))
    details = facts.details[1]
    assert details.request_id == "slow"
    assert details.headers_s == pytest.approx(0.05)
    assert details.longest_gap_s == pytest.approx(0.2)
    assert [facts.worker.names[code] for code in facts.worker.codes] == ["w1", "w2"]


SLO = Slo(ttft_s=0.1, tpot_s=0.03, e2el_s=1.0)


def limited(c: Part, slo: Slo = SLO, lost: int = 0, measured_from: MeasuredFrom = "sent") -> LimitedRun:
    values = per_request(c)
    judgement = judge(c, values, Limits(slo), measured_from) if slo else None
    judged = np.flatnonzero(~c.cancelled)
    ok, cancelled = np.flatnonzero(c.ok), np.flatnonzero(c.cancelled)
    return LimitedRun(c, values, judgement, measured_from, ok, len(judged) + lost, cancelled)


def graded_run() -> Part:
    """Twenty answers with a TTFT of 10, 20 .. 200 ms and a pace of 10, 15 .. 105 ms; five failures."""
    made = [
        request(i * 0.1, tuple((i + 1) * 0.01 + k * (0.01 + 0.005 * i) for k in range(3))) for i in range(20)
    ]
    return columns(*made, *(failed(3.0) for _ in range(5)))


def test_a_limit_alone_is_held_by_the_share_at_or_below_it() -> None:
    curve = limit_curve(limited(graded_run()), "ttft")
    assert curve is not None
    ttft = np.arange(1, 21) * 0.01
    assert curve.alone == pytest.approx([(ttft <= limit_s + 1e-12).sum() / 25 for limit_s in curve.limits_s])
    assert (curve.alone[0], curve.alone[-1]) == (1 / 25, 20 / 25)


@given(st.lists(requests(), min_size=1, max_size=30), st.sampled_from(["sent", "scheduled"]))
def test_at_the_limits_of_the_slo_every_curve_says_what_the_summary_does(
    made: list[RequestRecord], measured_from: MeasuredFrom
) -> None:
    c = columns(*made)
    found = limited(c, lost=2, measured_from=measured_from)
    said = goodput(found.judgement, c, np.arange(len(c)), Missing(lost=2))
    for metric in ("ttft", "tpot", "e2el"):
        curve = limit_curve(found, metric)
        if curve is not None:
            (place,) = np.flatnonzero(curve.limits_s == found.limit_s(metric))
            assert curve.alone[place] == pytest.approx(said["attainment"][metric])
            assert curve.good[place] == pytest.approx(said["ratio"])
    surface = limit_surface(found)
    if surface is not None:
        cell = np.searchsorted(surface.tpot_s, 0.03), np.searchsorted(surface.ttft_s, 0.1)
        assert surface.good[cell] == pytest.approx(said["ratio"])


@given(st.lists(requests(), min_size=1, max_size=30))
def test_wider_limits_are_never_held_by_fewer(made: list[RequestRecord]) -> None:
    found = limited(columns(*made))
    for curve in (limit_curve(found, metric) for metric in ("ttft", "tpot", "e2el")):
        if curve is not None:
            assert (np.diff(curve.alone) >= 0).all()
            assert (np.diff(curve.good) >= 0).all()
            if curve.metric != "tpot" or not found.unpaced.any():  # who cannot be judged by it may be good
                assert (curve.good <= curve.alone).all()
    surface = limit_surface(found)
    if surface is not None:
        assert (np.diff(surface.good, axis=0) >= 0).all()
        assert (np.diff(surface.good, axis=1) >= 0).all()


def test_without_an_slo_the_curves_are_of_each_limit_alone() -> None:
    curve = limit_curve(limited(graded_run(), Slo()), "e2el")
    assert curve is not None
    assert curve.limit_s is None
    assert curve.good == pytest.approx(curve.alone)


def test_an_answer_of_one_token_breaks_no_limit_of_pace() -> None:
    c = columns(request(0.0, (0.05,)), request(0.0, (0.05, 0.5)))
    curve = limit_curve(limited(c, Slo()), "tpot")
    assert curve is not None
    assert curve.alone.tolist() == [1.0]
    assert limit_curve(limited(columns(request(0.0, (0.05,))), Slo()), "tpot") is None


def test_a_limit_that_differs_between_classes_is_no_line_of_the_curve() -> None:
    c = columns(request(0.0, (0.05, 0.06), slo_class="fast"), request(0.0, (0.2, 0.3), slo_class="slow"))
    values = per_request(c)
    limits = Limits(Slo(ttft_s=0.1), {"slow": Slo(ttft_s=0.5, tpot_s=0.05)})
    found = LimitedRun(c, values, judge(c, values, limits, "sent"), "sent", np.arange(2), 2, np.arange(0))
    curve = limit_curve(found, "ttft")
    assert curve is not None
    assert curve.limit_s is None
    assert (curve.alone[-1], curve.good[-1]) == (1.0, 0.5)
    assert curve.others == ("tpot",)


RNG = np.random.default_rng(5)


def test_the_slope_is_the_median_of_the_slopes_of_all_pairs() -> None:
    x, y = RNG.integers(0, 30, 40).astype(float), RNG.normal(size=40)
    line = theil_sen(x, y)
    assert line is not None
    pairs = itertools.combinations(range(40), 2)
    slopes = [(y[j] - y[i]) / (x[j] - x[i]) for i, j in pairs if x[i] != x[j]]
    assert line.slope == pytest.approx(np.median(slopes))
    assert line.intercept == pytest.approx(np.median(y - line.slope * x))
    assert line.low <= line.slope <= line.high


def test_a_line_is_found_beside_outliers() -> None:
    x = np.arange(100.0)
    y = 3 + 0.5 * x
    y[::5] += 1_000
    line = theil_sen(x, y)
    assert line is not None
    assert line.slope == pytest.approx(0.5, abs=0.2)
    assert not line.is_flat


def test_the_interval_holds_the_true_slope_in_nineteen_of_twenty_samples() -> None:
    held = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        x = rng.uniform(0, 10, 50)
        line = theil_sen(x, 2 * x + rng.standard_exponential(50))
        assert line is not None
        held += line.low <= 2 <= line.high
    assert held >= 180


def test_too_few_points_and_points_above_each_other_have_no_line() -> None:
    few = np.arange(FEWEST_POINTS - 1.0)
    assert theil_sen(few, few) is None
    assert theil_sen(np.ones(50), np.arange(50.0)) is None


def test_groups_are_percentiles_of_all_requests_and_not_of_the_sample() -> None:
    x, y = RNG.permutation(5_000).astype(float), RNG.exponential(size=5_000)
    found = relation(x, y)
    assert found.n == 5_000
    assert len(found.x) == MOST_DRAWN
    assert found.group_n.sum() == 5_000
    frame = pd.DataFrame({"group": (x // 250).astype(int), "x": x, "y": y}).groupby("group")
    assert found.group_x == pytest.approx(frame["x"].median().to_numpy())
    assert found.group_p50 == pytest.approx(frame["y"].median().to_numpy())
    assert found.group_p95 == pytest.approx(frame["y"].quantile(0.95).to_numpy())


@given(st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=1, max_size=300))
def test_equal_values_are_in_one_group(values: list[float]) -> None:
    found = relation(np.array(values), np.zeros(len(values)))
    assert len(found.group_x) <= 3
    assert found.group_n.sum() in (0, len(values))


def test_unknown_values_are_no_points() -> None:
    found = relation(np.array([1.0, np.nan, 3.0]), np.array([1.0, 2.0, np.nan]))
    assert found.n == 1
    assert relation(np.array([np.nan]), np.array([1.0])).n == 0


def test_what_hardly_varied_says_nothing() -> None:
    steady = relation(RNG.uniform(39.5, 40, 500), RNG.exponential(size=500))
    assert steady.is_narrow
    assert not relation(RNG.uniform(10, 40, 500), RNG.exponential(size=500)).is_narrow


def test_prefill_cost_comes_back_as_the_slope() -> None:
    c = columns(*(request(i * 0.01, (0.04 + 2e-5 * i, 1.0), input_tokens=i + 1) for i in range(300)))
    line = ttft_by_input(c, per_request(c), np.arange(300)).line
    assert line is not None
    assert line.slope == pytest.approx(2e-5, rel=1e-6)
    assert line.intercept == pytest.approx(0.04 - 2e-5, rel=1e-6)


def test_load_is_the_mean_concurrency_between_first_and_last_token() -> None:
    # The first streams from 1 to 3 s; the second is under way from 2 to 6 s.
    c = columns(request(0.0, (1.0, 3.0)), request(2.0, (2.0, 4.0)), request(9.0, (0.5,)))
    assert load_while_streaming(c)[:2] == pytest.approx([1.5, 1.0])
    assert np.isnan(load_while_streaming(c)[2])


SLO_of_run = "ttft=100ms tpot=30ms"


def made(n: int = 120) -> RecordBatch:
    """Two workers, the second of which sees everything 10 ms later."""
    first = [request(i * 0.05, (0.05, 0.07, 0.09 + 0.001 * i), request_id=f"a{i}") for i in range(n)]
    second = [request(i * 0.05, (0.06, 0.08, 0.10), request_id=f"b{i}") for i in range(n)]
    return RecordBatch.concat([batch(*first, failed(1.0), worker="w1"), batch(*second, worker="w2")])


def charts(requests: Requests, **facts: Any) -> RunCharts:
    known = manifest(**facts)
    return run_charts(requests, known, measure(requests, known, Question(slo=SLO_of_run, warmup_s=0.0)))


class InSmallParts:
    """The same requests, seven at a time."""

    def __init__(self, whole: RecordBatch) -> None:
        self.whole = whole

    def __len__(self) -> int:
        return len(self.whole)

    def parts(self, columns: Sequence[str] = SCHEMA.names) -> Iterator[RecordBatch]:
        for start in range(0, len(self), 7):
            yield RecordBatch(self.whole.table.select(list(columns)).slice(start, 7))


def test_levels_are_numpy_percentiles_as_far_as_single_samples_reach() -> None:
    values = np.sort(np.random.default_rng(1).exponential(size=1_000))
    found = levels_of(values)
    told = ~np.isnan(found)
    assert found[told] == pytest.approx(np.percentile(values, LEVELS[told]))
    assert LEVELS[told][-2] == pytest.approx(99.9)
    assert found[-1] == values[-1]
    assert np.isnan(levels_of(np.empty(0))).all()


def test_in_what_parts_records_are_read_changes_nothing() -> None:
    whole = made()
    np.testing.assert_equal(asdict(charts(InSmallParts(whole))), asdict(charts(whole)))


def test_each_worker_is_told_by_its_own_requests() -> None:
    workers = {w.name: w for w in charts(made()).workers}
    assert workers["w1"].requests == 121
    assert workers["w1"].error_rate == 1 / 121
    assert workers["w1"].ttft_p50_ms == pytest.approx(50)
    assert workers["w2"].ttft_p50_ms == pytest.approx(60)


def test_only_metrics_with_samples_have_a_distribution() -> None:
    assert set(charts(made()).distributions) == {"ttft", "tpot", "itl", "e2el"}
    assert "ttft_scheduled" in charts(made(), open_loop=True).distributions
    assert charts(batch(failed(0.0))).distributions == {}


def test_the_windows_are_on_the_axis_of_the_charts() -> None:
    found = charts(made(), stopped=5.0, started_ns=ORIGIN_NS - 1_000_000_000)
    ((start_s, end_s),) = found.windows_s
    assert [start_s, end_s] == pytest.approx([1.0, 6.0])


def test_the_slowest_requests_come_longest_first() -> None:
    found = charts(made()).slowest
    assert [r.request_id for r in found[:3]] == ["a119", "a118", "a117"]
    assert found[0].worker == "w1"
    assert found[0].total_s == pytest.approx(0.209)
    assert found[0].longest_gap_s == pytest.approx(0.139)


def test_a_run_without_requests_has_charts_without_points() -> None:
    found = charts(batch())
    assert (found.requests, found.slowest, found.curves, found.surface) == (0, (), (), None)
    assert found.ttft_by_input.n == 0


def phases(headers_s: float = np.nan, **fields: Any) -> list[float]:
    c = columns(request(**fields))
    found = slow_request(c, 0, RequestDetails("r", headers_s, np.nan), "w1")
    assert sum(found.phases.values()) == pytest.approx(found.total_s)
    return [round(found.phases[phase], 6) for phase in PHASES]


def test_a_request_s_time_is_told_by_what_it_was_waiting_for() -> None:
    told = phases(headers_s=0.3, arrivals=(0.3, 0.8), late=0.2, started_ns=ns(0.1), ended=1.1)
    assert told == [0.1, 0.1, 0.1, 0.2, 0.5, 0.1]


def test_what_never_came_was_waited_for_to_the_end() -> None:
    nothing = phases(arrivals=(), ended=10.0, outcome=Outcome.TIMEOUT)
    assert nothing == [0, 0, 10, 0, 0, 0]
    headers = phases(headers_s=2.0, arrivals=(), ended=10.0, outcome=Outcome.TIMEOUT)
    assert headers == [0, 0, 2, 8, 0, 0]
    unsent = phases(arrivals=(), ended=3.0, sent=False, outcome=Outcome.CONNECT_ERROR)
    assert unsent == [0, 3, 0, 0, 0, 0]


def test_the_slowest_are_counted_from_scheduled() -> None:
    c = columns(request(0.0, (1.0,)), request(0.0, (0.5,), late=2.0), request(0.0, (0.7,)))
    assert slowest(c, np.arange(3)).tolist() == [1, 0, 2]


CLIENT = columns(*(request(i * 0.1, (0.25, 0.27)) for i in range(90)))
ALL = range(11)


def told(*samples: Row) -> ServerCurves:
    series = read_server_series(tables(samples), axis_window(AXIS, CLIENT), AXIS.bins)
    found = server_curves(series, AXIS, CLIENT)
    assert found is not None
    return found


def test_a_state_is_the_mean_of_its_samples_in_each_span() -> None:
    curves = told(*rows("a", "running", [1, 3, 5, 7, 2, 2, 0, 0, 0, 0])).by_server["running"]
    assert curves["a"].tolist() == [2, 6, 2, 0, 0]


def test_a_server_that_gives_no_page_leaves_a_gap() -> None:
    axis = TimeAxis(start_s=0.0, width_s=0.1, bins=100)
    before, after = (
        rows("a", "kv_cache_usage", [0.5] * n, every_s=0.25, first_s=s) for n, s in ((8, 0.0), (4, 9.0))
    )
    samples = [*before, *after]
    fine = server_curves(
        read_server_series(tables(samples), axis_window(axis, CLIENT), axis.bins), axis, CLIENT
    )
    assert fine is not None
    unknown = np.isnan(fine.by_server["kv_cache_usage"]["a"])
    assert unknown[50:90].all()
    assert not unknown[:20].any()
    assert not unknown[90:].any()


def test_counters_are_rates_and_unknown_where_nobody_watched() -> None:
    curve = told(*rows("a", "generation_tokens", [100 * i for i in range(5)], first_s=2.0)).of_all[
        "generation_tokens_per_s"
    ]
    assert np.isnan(curve[0])
    assert curve[1:3] == pytest.approx([100, 100])
    assert np.isnan(curve[4])


def test_the_mean_ttft_of_servers_stands_beside_the_clients() -> None:
    sums = rows("a", "ttft_s_sum", [2.0 * i for i in ALL])
    counts = rows("a", "ttft_s_count", [10 * i for i in ALL])
    ttft = told(*sums, *counts).ttft_s
    assert ttft["client"] == pytest.approx([0.25] * 5)
    assert ttft["servers"] == pytest.approx([0.2] * 5)


def test_hits_are_the_share_of_what_was_looked_up_in_the_span_or_what_the_server_tells() -> None:
    counts = [
        *rows("a", "prefix_cache_queries", [100 * i for i in ALL]),
        *rows("a", "prefix_cache_hits", [25 * i for i in ALL]),
    ]
    curves = told(*counts, *rows("b", "prefix_cache_hit_rate", [0.4] * 10)).by_server["prefix_hits"]
    assert curves["a"] == pytest.approx([0.25] * 5)
    assert curves["b"] == pytest.approx([0.4] * 5)


def test_engines_and_gpus_of_one_target_have_curves_of_their_own_and_a_gpu_only_one() -> None:
    found = told(
        *rows("gw", "running", [1] * 10, engine="0"),
        *rows("gw", "running", [2] * 10, engine="1"),
        *rows("x", "power_w", [100] * 10, UUID="g0", gpu="0"),
        *rows("x", "power_w", [200] * 10, UUID="g1", gpu="1"),
        *rows("y", "power_w", [100] * 10, UUID="g0", gpu="0"),
    )
    assert {name: curve[0] for name, curve in found.by_server["running"].items()} == {
        "gw engine 0": 1, "gw engine 1": 2,
    }  # fmt: skip
    assert {name: curve[0] for name, curve in found.by_server["power_w"].items()} == {
        "x GPU 0": 100, "x GPU 1": 200,
    }  # fmt: skip
    assert found.of_all["running"].tolist() == [3] * 5


def test_of_many_servers_the_extremes_and_the_middle_are_told() -> None:
    many = [row for i in range(MOST_CURVES + 1) for row in rows(f"s{i}", "running", [i] * 10)]
    curves = told(*many).by_server["running"]
    assert {name: curve[0] for name, curve in curves.items()} == {"highest": 6, "median": 3, "lowest": 0}


def test_scrapes_that_failed_are_counted_for_each_target_that_had_any() -> None:
    many = [row for i in range(MOST_CURVES + 2) for row in rows(f"s{i}", "up", [0] * (10 - i))]
    failed = told(*rows("good", "up", [1] * 10), *many).failed
    assert list(failed) == [*(f"s{i}" for i in range(MOST_CURVES)), "2 others"]
    assert failed["s0"].tolist() == [2] * 5
    assert failed["2 others"].sum() == (10 - 6) + (10 - 7)


def test_without_any_server_there_are_no_curves() -> None:
    empty = read_server_series([], axis_window(AXIS, CLIENT), AXIS.bins)
    assert server_curves(empty, AXIS, CLIENT) is None


def pool(target: str, role: str, waiting: float, queue_s: float, took_s: float) -> list[Row]:
    """A server that ends ten requests a second."""
    means = {"queue_s": queue_s, "e2el_s": took_s}
    sums = {f"{name}_sum": [10 * mean_s * i for i in ALL] for name, mean_s in means.items()}
    counts = {f"{name}_count": [10 * i for i in ALL] for name in means}
    counters = [row for name, values in (sums | counts).items() for row in rows(target, name, values)]
    return [
        *counters,
        *rows(target, "waiting", [waiting] * 10),
        *rows(target, "role", [1] * 10, role=role, source="the run"),
    ]


def test_servers_with_roles_have_curves_of_their_queues_and_of_the_parts_of_the_ttft() -> None:
    transfers = [
        *rows("d", "kv_transfer_s_sum", [10 * 0.02 * i for i in ALL]),
        *rows("d", "kv_transfer_s_count", [10 * i for i in ALL]),
    ]
    first, second = pool("p1", "prefill", 2, 0.01, 0.1), pool("p2", "prefill", 4, 0.03, 0.2)
    by_role = told(*first, *second, *pool("d", "decode", 1, 0.04, 2.0), *transfers).by_role
    assert by_role is not None
    assert {name: curve.tolist() for name, curve in by_role.waiting.items()} == {
        "prefill servers": [6] * 5,
        "decode servers": [1] * 5,
    }
    parts_s = {
        "TTFT of the client": 0.25,
        "prefill server, queue": 0.02,
        "prefill server, whole request": 0.15,
        "KV transfer": 0.02,
        "decode server, queue": 0.04,
    }
    assert by_role.parts_s.keys() == parts_s.keys()
    for name, mean_s in parts_s.items():
        assert by_role.parts_s[name] == pytest.approx([mean_s] * 5), name


def test_without_roles_or_without_their_histograms_there_are_no_such_curves() -> None:
    assert told(*rows("a", "running", [1])).by_role is None
    by_role = told(*rows("a", "role", [1] * 10, role="prefill", source="the run")).by_role
    assert by_role is not None
    assert (by_role.parts_s, by_role.waiting) == ({}, {})


def point(user: float, gpu: float) -> OperatingPoint:
    return OperatingPoint("run", None, "", user, gpu, None)


def is_better(one: OperatingPoint, other: OperatingPoint) -> bool:
    at_least = one.user_tps >= other.user_tps and one.gpu_tps >= other.gpu_tps
    return at_least and (one.user_tps, one.gpu_tps) != (other.user_tps, other.gpu_tps)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), max_size=12))
def test_the_front_is_every_point_that_no_other_is_better_than(pairs: list[tuple[int, int]]) -> None:
    points = [point(*pair) for pair in pairs]
    expected = {i for i, p in enumerate(points) if not any(is_better(other, p) for other in points)}
    found = front(points)
    assert set(found) == expected
    assert len(found) == len(expected)
    assert [points[i].user_tps for i in found] == sorted(points[i].user_tps for i in found)
