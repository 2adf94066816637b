"""``timeseries.csv``: the run second by second."""

import io

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st
from metrics_cases import ORIGIN_NS, batch, columns, failed, manifest, request, requests

from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.metrics.requests.throughput import Credits, throughput
from llm_locust.metrics.window import Window
from llm_locust.report.run import analysis
from llm_locust.report.run.analysis import timeseries_csv

COUNTS = [
    *("started", "ok", "failed", "cancelled", "input_tokens", "output_tokens"),
    *("inputs", "images", "concurrency"),
]
LATENCIES = ["ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "e2el_p50_ms", "e2el_p99_ms"]
HEADS = ["second", "time", *COUNTS, *LATENCIES]


def series(*made: RequestRecord) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(timeseries_csv(batch(*made), manifest())))


def test_each_second_has_a_row_from_the_start_to_the_last_end() -> None:
    found = series(request(1.5, (0.1,)), request(3.2, (0.5, 2.5)))
    assert found.columns.tolist() == HEADS
    assert found["second"].tolist() == [0, 1, 2, 3, 4, 5]
    assert (
        found["time"].iloc[1] == str(np.datetime64(ORIGIN_NS // 10**9 + 1, "s")).replace("T", " ") + ".000Z"
    )
    assert found["started"].tolist() == [0, 1, 0, 1, 0, 0]
    assert found["ok"].tolist() == [0, 1, 0, 0, 0, 1]


def test_what_happens_at_the_edge_belongs_to_the_later_second() -> None:
    found = series(request(1.0, (0.5, 1.0)))
    assert found["started"].tolist() == [0, 1, 0]
    assert found["ok"].tolist() == [0, 0, 1]
    assert found["output_tokens"].tolist() == [0, 1, 1]


def test_requests_are_counted_by_how_they_ended() -> None:
    cancelled = request(0.2, (), ended=1.5, outcome=Outcome.CANCELLED)
    found = series(request(0.1, (0.1,)), failed(0.3), failed(0.4, Outcome.TIMEOUT), cancelled)
    assert found[["ok", "failed", "cancelled"]].to_numpy().tolist() == [[1, 2, 0], [0, 0, 1]]


def test_tokens_are_credited_where_their_events_arrive() -> None:
    found = series(request(0.5, (0.2, 0.6, 1.6), output_tokens=6, input_tokens=100))
    assert found["output_tokens"].tolist() == [2, 2, 2]
    assert found["input_tokens"].tolist() == [100, 0, 0]


def test_latencies_are_percentiles_of_the_ok_requests_that_ended_in_the_second() -> None:
    ttfts = [0.11, 0.23, 0.17, 0.5]
    made = [request(0.1, (t, t + 0.02)) for t in ttfts]
    found = series(*made, request(0.0, (0.9, 0.95), outcome=Outcome.TRUNCATED), failed(2.5))
    assert found["ttft_p50_ms"][0] == pytest.approx(np.percentile(ttfts, 50) * 1e3, abs=1e-3)
    assert found["ttft_p99_ms"][0] == pytest.approx(np.percentile(ttfts, 99) * 1e3, abs=1e-3)
    assert found["tpot_p50_ms"][0] == pytest.approx(20)
    assert found["e2el_p99_ms"][0] == pytest.approx((np.percentile(ttfts, 99) + 0.02) * 1e3, abs=1e-3)
    assert found.loc[1:, "ttft_p50_ms"].isna().all()


def test_a_second_without_an_answer_has_empty_cells_and_not_zeros() -> None:
    last = timeseries_csv(batch(request(0.0, (0.1,)), failed(1.0)), manifest()).splitlines()[-1]
    assert last.endswith(",,,,,,")


def test_a_run_without_requests_is_a_head_line() -> None:
    assert timeseries_csv(batch(), manifest()) == ",".join(HEADS) + "\n"


def test_a_worker_whose_clock_is_behind_has_rows_below_zero() -> None:
    assert series(request(-1.5, (0.1,)), request(0.5))["second"].tolist() == [-2, -1, 0]


def test_a_clock_that_is_years_off_does_not_make_a_row_for_each_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(analysis, "MOST_SECONDS", 1_000)  # a week of rows says no more
    lines = timeseries_csv(batch(request(0.0), request(3e8)), manifest()).count("\n")
    assert lines == 1_000 + 1


@given(st.lists(requests(), min_size=1, max_size=12))
def test_every_row_is_what_the_metrics_say_of_that_second(made: list[RequestRecord]) -> None:
    c, rows = columns(*made), np.arange(len(made))
    for second, row in series(*made).set_index("second").iterrows():
        start_ns = ORIGIN_NS + int(str(second)) * 10**9
        window = Window(start_ns, start_ns + 10**9, "one second")
        credits = Credits.of(c, window)
        measured = throughput(c, credits, rows)
        assert row.ok == measured["requests_per_s"]
        assert row.concurrency == pytest.approx(measured["concurrency_mean"], abs=1e-3)
        assert row.output_tokens == pytest.approx(np.nansum(credits.output_tokens), abs=1e-3)
        assert row.input_tokens == pytest.approx(np.nansum(credits.input_tokens), abs=1e-3)
