"""The master's store: each report once, spans that are what they say, and a bounded size."""

import operator
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from live_cases import START_S, Run, observation, worker
from metrics_cases import failed, request, requests

from llm_locust.core.record import RequestRecord
from llm_locust.figures.latency import LastLatency
from llm_locust.live.counts import OTHERS, SCALARS, LiveKey
from llm_locust.live.series import SPANS, Charts
from llm_locust.live.snapshot import live_end, snapshot
from llm_locust.live.state import GONE, MISSING, LiveRun
from llm_locust.live.store import HOUR_CELLS, MOST_MARKS, RECENT_CELLS, RUN_CELLS, LiveStore, TimeCells
from llm_locust.live.worker_report import (
    LiveReport,
    LiveSlice,
    PackedCounts,
    ReportError,
    decode_report,
    encode_report,
)
from llm_locust.metrics.columns import OUTCOMES
from llm_locust.report.inputs import LIVE_FILE, read_live_end, write_live_end
from llm_locust.store import StoreError


def test_a_report_that_comes_again_counts_once() -> None:
    run = Run()
    run.ended([request()])
    report = run.worker().report()
    assert run.store.take("w", report) == "counted"
    assert run.store.take("w", report) == "repeated"
    assert run.store.total.ended == 1
    assert run.store.missed == 0


def test_the_same_number_from_two_workers_is_two_reports() -> None:
    run = Run()
    run.ended([request()], "a")
    run.ended([request()], "b")
    run.report()
    assert run.store.total.ended == 2


def test_requests_of_a_lost_report_are_missed_not_guessed() -> None:
    run = Run()
    run.ended([request(), request()])
    run.worker().report()  # lost on its way
    run.ended([request()])
    run.report()
    assert run.store.total.ended == 1
    assert run.store.missed == 2
    assert [m.kind for m in run.store.marks] == ["missed"]


@given(
    st.lists(st.lists(requests(), max_size=3), min_size=1, max_size=5),
    st.lists(st.sampled_from(["once", "twice", "lost"]), min_size=5, max_size=5),
)
@settings(max_examples=30)
def test_whatever_happens_to_reports_nothing_counts_twice_and_the_rest_is_known(
    batches: list[list[RequestRecord]], fates: list[str]
) -> None:
    run = Run()
    arrived = 0
    for records, fate in zip(batches, fates, strict=False):
        run.ended(records)
        report = run.worker().report()
        for _ in range({"once": 1, "twice": 2, "lost": 0}[fate]):
            run.store.take("w", report)
        arrived += len(records) * (fate != "lost")
    run.report()
    assert run.store.total.ended == arrived
    assert run.store.missed == sum(map(len, batches)) - arrived


def greedy(seq: int, scalar: int, count: int) -> bytes:
    """A report whose sums are all as large as one report's may be."""
    packed = PackedCounts(LiveKey("m", "", ""), [scalar] * len(SCALARS), [5], [count])
    return encode_report(LiveReport("run", 0, seq, 0, [LiveSlice(0.0, [packed])]))


@pytest.mark.parametrize(("scalar", "count", "name"), [(2**53, 1, "records"), (0, 2**53, "latencies")])
def test_numbers_that_would_not_fit_into_64_bits_are_refused_and_those_that_do_stay_true(
    scalar: int, count: int, name: str
) -> None:
    store = LiveStore(lambda: START_S)
    store.begin(LiveRun(id="run"))
    fit = 2**62 // (scalar * len(OUTCOMES) or count)
    for seq in range(fit):
        assert store.take("w", greedy(seq, scalar, count)) == "counted"
    with pytest.raises(ReportError, match=f"^{name} would be 4.6"):
        store.take("w", greedy(fit, scalar, count))
    total = store.total
    assert total["good"] == fit * scalar
    assert total.records == fit * scalar * len(OUTCOMES) <= 2**62
    assert len(total.sketch("ttft")) == fit * count
    assert 2**62 - 2**57 < max(total.records, len(total.sketch("ttft"))) <= 2**62
    assert store.take("w", greedy(2000, 1, 1)) == "counted"
    store.reset()
    assert (store.total.records, store.full) == (0, ())


def test_a_sum_beyond_64_bits_stays_at_its_bound_and_is_said_to_be_larger() -> None:
    store = LiveStore(lambda: START_S)
    store.begin(LiveRun(id="run"))
    scalars = [2**53 if name == "output_tokens" else 1 for name in SCALARS]
    packed = PackedCounts(LiveKey("m", "", ""), scalars, [5], [1])
    slices = [LiveSlice(float(age), [packed]) for age in range(600)]
    for seq in range(3):
        assert store.take("w", encode_report(LiveReport("run", 0, seq, 600, slices))) == "counted"
    assert (store.total["output_tokens"], store.total["input_tokens"]) == (2**62 - 1, 1800)
    assert store.full == ("output_tokens",) == snapshot(store).full


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=600))
def test_any_number_of_tokens_is_counted_and_reported(tokens: list[int]) -> None:
    run = Run()
    run.ended([request(output_tokens=n, input_tokens=n) for n in tokens])
    run.report()
    total = run.store.total["output_tokens"]
    assert total == min(sum(min(n, 2**53) for n in tokens), 2**53)
    assert ("output_tokens" in run.store.full) == (total == 2**53)


def test_a_report_of_another_run_is_stale() -> None:
    run = Run()
    run.ended([request()])
    report = run.worker().report()
    run.store.begin(LiveRun(id="next"))
    assert run.store.take("w", report) == "stale"
    assert run.store.total.ended == 0


def test_a_reset_counts_anew_and_takes_no_report_from_before() -> None:
    run = Run()
    run.ended([request()])
    run.report()
    run.ended([request()])
    late = run.worker().report()
    run.clock.tick(10)
    run.store.reset()
    assert run.store.take("w", late) == "stale"
    assert run.store.total.ended == 0
    assert run.store.elapsed_s == 0
    assert [m.kind for m in run.store.marks] == ["reset"]
    run.worker().reset(run.store.epoch)
    run.ended([request()])
    run.report()
    assert (run.store.total.ended, run.store.missed) == (1, 0)


def test_a_damaged_report_changes_nothing() -> None:
    run = Run()
    bad = LiveReport("run", 0, 0, 5, [LiveSlice(0.0, [PackedCounts(LiveKey("a", "", ""), [1], [], [])])])
    with pytest.raises(ReportError, match="report 0 holds no live counts: 1 sums"):
        run.store.take("w", encode_report(bad))
    run.ended([request()])
    run.report()
    assert (run.store.total.ended, run.store.missed) == (1, 0)


def test_keys_of_all_workers_together_are_bounded() -> None:
    run = Run()
    for number in range(20):
        run.ended([request(replica=f"{number}-{i}") for i in range(20)], f"w{number}")
    run.report()
    assert len(run.store.content.totals) <= 128 + 32 + 1
    assert run.store.content.totals[LiveKey("chat", "", OTHERS)].ended == 400 - 128


def test_rates_are_of_the_seconds_that_a_span_has() -> None:
    run = Run()
    for _ in range(60):
        run.ended([request(arrivals=(0.05, 0.07)), failed()])
        run.report()
        run.clock.tick()
    recent, whole = snapshot(run.store, 10), snapshot(run.store)
    for figures, seconds in ((recent.total, 10), (whole.total, 60)):
        assert figures.seconds == seconds
        assert figures.requests_per_s == pytest.approx(1.0)
        assert figures.failures_per_s == pytest.approx(1.0)
        assert figures.output_tokens_per_s == pytest.approx(2.0)
        assert figures.goodput == 0.5
        assert figures.latencies["ttft"].p50_ms == pytest.approx(50, rel=0.01)
    assert recent.total.requests == 20
    assert whole.total.requests == 120


def test_a_recent_span_ends_where_the_reports_are_in() -> None:
    run = Run(settle_s=4.0)
    for second in range(30):
        run.ended([request()])
        if second % 3 == 2:
            run.report()
        run.clock.tick()
    recent = snapshot(run.store, 10)
    assert recent.end_s == START_S + 26
    assert recent.total.requests_per_s == pytest.approx(1.0)


def test_before_anything_ended_figures_are_undefined_and_not_nought() -> None:
    told = snapshot(Run().store, 10)
    assert told.total.goodput is None
    assert told.total.latencies["ttft"].p99_ms is None
    assert told.names == told.replicas == ()


def test_without_an_slo_there_is_no_goodput() -> None:
    run = Run()
    run.store.begin(LiveRun(id="run"))
    run.ended([request()])
    run.report()
    total = snapshot(run.store).total
    assert total.goodput is None
    assert total.good_requests_per_s is None
    assert total.attainment == {}


def test_rows_are_by_name_and_class_and_by_replica() -> None:
    run = Run()
    run.ended(
        [
            request(name="a", replica="r1"),
            request(name="a", replica="r2"),
            request(name="b", replica="r1", slo_class="fast"),
            failed(name="b"),
        ]
    )
    run.report()
    run.clock.tick()
    told = snapshot(run.store)
    assert [(row.key, row.figures.requests) for row in told.names] == [
        (LiveKey("a", "", ""), 2),
        (LiveKey("b", "", ""), 1),
        (LiveKey("b", "fast", ""), 1),
    ]
    assert [(row.key.replica, row.figures.requests) for row in told.replicas] == [("r1", 2), ("r2", 1)]


def test_concurrency_is_found_from_durations() -> None:
    run = Run()
    for _ in range(20):
        run.ended([request(arrivals=(0.5, 3.0))])
        run.report()
        run.clock.tick()
    assert snapshot(run.store).total.concurrency == pytest.approx(3.0)


def test_changes_of_load_and_workers_are_marked() -> None:
    run = Run()
    observe = run.store.observe
    observe(observation(4, worker("a"), worker("b")))
    observe(observation(4, worker("a"), worker("b"), target=8))
    observe(observation(8, worker("a"), worker("b", MISSING), worker("c")))
    observe(observation(8, worker("a", GONE), worker("b"), worker("c")))
    assert [(m.kind, m.text) for m in run.store.marks] == [
        ("users", "users 4 → 8"),
        ("lost", "worker b is lost"),
        ("came", "worker c came"),
        ("went", "worker a went"),
        ("back", "worker b is back"),
    ]


def test_marks_are_bounded() -> None:
    run = Run()
    for users in range(MOST_MARKS + 50):
        run.store.observe(observation(users))
    assert len(run.store.marks) == MOST_MARKS


def test_a_series_has_the_marks_of_its_span_from_before_its_first_point_too() -> None:
    run = Run()
    run.clock.tick(3)
    run.store.reset()
    run.clock.tick(7)
    charts, kinds = Charts(), list[list[str]]()
    run.worker().reset(run.store.epoch)
    for _ in range(2):
        run.ended([request()])
        run.report()
        run.clock.tick(400)
        kinds += [
            [mark.kind for mark in charts.series(run.store.at_rest(), span).marks] for span in ("5m", "run")
        ]
    assert kinds == [["reset"], ["reset"], [], ["reset"]]


def test_a_series_has_a_point_for_each_cell_and_nothing_that_may_still_change() -> None:
    run = Run(settle_s=2.0)
    for second in range(20):
        run.store.observe(observation(second, worker(in_flight=3, cpu_percent=40.0 + second)))
        run.ended([request(), failed()])
        run.report()
        run.clock.tick()
    told = Charts().series(run.store, "5m")
    assert told.at_s == [START_S + 2 * i for i in range(9)]
    assert told.columns["requests_per_s"] == [1.0] * 9
    assert told.columns["http_error_per_s"] == [1.0] * 9
    assert told.columns["goodput"] == [0.5] * 9
    assert told.columns["attainment_ttft"] == [0.5] * 9
    assert told.columns["concurrency"] == [3.0] * 9
    assert told.columns["users"] == [2 * i + 0.5 for i in range(9)]
    assert told.columns["cpu_percent_max"] == [41.0 + 2 * i for i in range(9)]
    np.testing.assert_allclose(np.array(told.columns["ttft_p99_ms"], dtype=float), 50, rtol=0.01)


def test_a_cell_that_gets_more_is_worked_out_again_and_no_other() -> None:
    run = Run()
    charts = Charts()
    for _ in range(3):
        run.ended([request()])
        run.report()
        run.clock.tick(2)
    assert charts.series(run.store, "5m").columns["requests_per_s"] == [0.5, 0.5, 0.5]
    run.clock.tick(-3)
    run.ended([request()], "late")
    run.report()
    run.clock.tick(3)
    assert charts.series(run.store, "5m").columns["requests_per_s"] == [0.5, 1.0, 0.5]


def test_after_the_stop_the_last_seconds_are_told_too() -> None:
    run = Run(settle_s=4.0)
    for _ in range(5):
        run.ended([request()])
        run.clock.tick()
    run.store.stop()
    run.report()
    run.clock.tick(60)
    assert Charts().series(run.store, "5m").columns["requests_per_s"] == [1.0, 1.0, 1.0]
    assert snapshot(run.store).total.requests_per_s == 1.0
    assert snapshot(run.store, 4).total.requests_per_s == pytest.approx(1.0)


def test_a_store_that_ran_for_a_day_is_small(capsys: pytest.CaptureFixture[str]) -> None:
    generator = np.random.default_rng(1)
    run = Run()
    records = [_answer(generator, i) for i in range(60)]
    run.ended(records)
    slices = _slices(run)
    tracemalloc.start()
    begin = tracemalloc.get_traced_memory()[0]
    seq = 0
    for step_s, steps in ((240.0, 344), (20.0, 165), (2.0, 150)):  # 23 h, 55 min, 5 min: all cells are full
        for _ in range(steps):
            run.clock.tick(step_s)
            run.store.observe(observation(seq % 50, worker(in_flight=40)))
            run.store.take("w", encode_report(LiveReport("run", 0, seq, 0, slices)))
            seq += 1
    size_mib = (tracemalloc.get_traced_memory()[0] - begin) / 2**20
    tracemalloc.stop()
    series = {span: Charts().series(run.store, span) for span in SPANS}
    points = {span: len(told.at_s) for span, told in series.items()}
    with capsys.disabled():
        print(f"\nlive store after 24 h, 6 keys: {size_mib:.1f} MiB; points: {points}")
    assert run.store.elapsed_s > 24 * 3600 - 400
    assert run.store.total.ended == seq * len(records)
    assert points["5m"] <= RECENT_CELLS
    assert points["1h"] <= HOUR_CELLS
    assert RUN_CELLS / 2 <= points["run"] <= RUN_CELLS
    assert size_mib < 8


def _answer(generator: np.random.Generator, number: int) -> RequestRecord:
    arrivals = np.cumsum(generator.lognormal(-3.5, 0.3, 40))
    return request(
        arrivals=tuple(arrivals.tolist()), name=f"task {number % 3}", replica=f"pod-{number // 3 % 2}"
    )


def _slices(run: Run) -> list[LiveSlice]:
    return decode_report(run.worker().report()).slices


times = st.lists(st.floats(0, 5000), max_size=60)
EVER = (float("-inf"), float("inf"))


def recent(most: int = 5) -> TimeCells[int]:
    return TimeCells(2.0, most, operator.add)


def whole(most: int = 8) -> TimeCells[int]:
    return TimeCells(2.0, most, operator.add, whole=True)


def test_values_of_one_cell_are_merged() -> None:
    cells = recent()
    for at_s in (4.0, 5.9, 6.0):
        cells.add(at_s, 1)
    assert list(cells.between(*EVER)) == [(4.0, 2), (6.0, 1)]


def test_the_oldest_cells_go_as_time_passes() -> None:
    cells = recent(most=3)
    for at_s in (0.0, 2.0, 4.0, 6.0):
        cells.add(at_s, 1)
    assert [at for at, _ in cells.between(*EVER)] == [2.0, 4.0, 6.0]
    cells.add(100.0, 1)
    assert [at for at, _ in cells.between(*EVER)] == [100.0]


def test_what_comes_too_late_is_left_out_and_what_comes_late_is_not() -> None:
    cells = recent(most=3)
    cells.add(10.0, 1)
    cells.add(6.0, 1)
    cells.add(4.0, 1)
    assert [at for at, _ in cells.between(*EVER)] == [6.0, 10.0]


def test_only_cells_that_lie_between_are_given() -> None:
    cells = recent()
    for at_s in (0.0, 2.0, 4.0):
        cells.add(at_s, 1)
    assert [at for at, _ in cells.between(1.0, 6.0)] == [2.0, 4.0]
    assert [at for at, _ in cells.between(0.0, 5.9)] == [0.0, 2.0]


@given(times)
def test_cells_of_the_whole_keep_every_value_in_few_cells(at: list[float]) -> None:
    cells = whole()
    for at_s in at:
        cells.add(at_s, 1)
    listed = list(cells.between(*EVER))
    assert sum(value for _, value in listed) == len(at)
    assert len(cells) == len(listed) <= 8
    for begin_s, value in listed:
        assert value == sum(begin_s <= at_s < begin_s + cells.width_s for at_s in at)


@given(times)
def test_cells_of_the_recent_past_have_all_that_is_recent(at: list[float]) -> None:
    cells = recent()
    for at_s in sorted(at):
        cells.add(at_s, 1)
    newest = max((at_s // 2 for at_s in at), default=0)
    assert len(cells) <= 5
    assert sum(v for _, v in cells.between(*EVER)) == sum(at_s // 2 > newest - 5 for at_s in at)


def run() -> Run:
    made = Run()
    made.ended([request(arrivals=(0.1, 0.2, 0.3)), request(arrivals=(0.1,)), failed()])
    made.report()
    return made


def test_all_requests_of_the_run_are_in_the_last_figures() -> None:
    end = live_end(run().store)
    assert (end.run, end.ok, end.failed, end.cancelled, end.ended) == ("run", 2, 1, 0, 3)
    assert (end.resets, end.missed) == (0, 0)
    assert end.latency_ms["ttft"].n == 2
    assert end.latency_ms["ttft"].p50 == pytest.approx(100, rel=end.relative_error)
    assert end.latency_ms["itl"].n == 2


def test_resets_and_lost_reports_are_told() -> None:
    made = run()
    made.store.reset()
    end = live_end(made.store)
    assert (end.resets, end.ended) == (1, 0)
    assert end.latency_ms["tpot"] == LastLatency(n=0)


def test_figures_come_back_as_they_were_and_only_to_their_own_run(tmp_path: Path) -> None:
    end = live_end(run().store)
    assert read_live_end(tmp_path, "run") is None
    write_live_end(tmp_path, end)
    assert read_live_end(tmp_path, "run") == end
    assert read_live_end(tmp_path, "another") is None


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / LIVE_FILE).write_text("{}")
    with pytest.raises(StoreError, match=r"live\.json.*can do without") as raised:
        read_live_end(tmp_path, "run")
    assert "\n" not in str(raised.value)
