"""A run in parts says what the run as a whole says; which requests and which span it is judged by."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st
from metrics_cases import ORIGIN_NS, batch, columns, failed, manifest, ns, request, requests
from summaries import summarise

from llm_locust.core import batch as batch_module
from llm_locust.core.arrow import SCHEMA
from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import Manifest
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.metrics.question import Question
from llm_locust.metrics.requests import gaps
from llm_locust.metrics.stats.sketch import RELATIVE_ERROR
from llm_locust.metrics.steady_window import asked_load, steady_window
from llm_locust.metrics.window import Population, Window, run_window
from llm_locust.report.csv_tables import timeseries_csv

FACTS = manifest(slo="ttft=300ms tpot=100ms e2el=1s", gates="p99_itl<1s", warmup_s=0.5, open_loop=True)


@dataclass(frozen=True, slots=True)
class Cut:
    """Records as parts of their own, each with its own numbering of texts."""

    records: list[RequestRecord]
    cuts: list[int]

    def __len__(self) -> int:
        return len(self.records)

    def parts(self, columns: Sequence[str] = SCHEMA.names) -> Iterator[RecordBatch]:
        for start, stop in pairwise([0, *sorted(c % (len(self) + 1) for c in self.cuts), len(self)]):
            yield RecordBatch.from_table(batch(*self.records[start:stop]).table, columns)


def seconds(made: Cut | RecordBatch, facts: Manifest = FACTS) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(timeseries_csv(made, facts)))


@pytest.mark.parametrize(("exact", "window"), [(0, "run"), (5, "steady"), (1000, "run")])
def test_any_split_into_parts_gives_the_same_summary(
    exact: int, window: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gaps, "EXACT_GAPS", exact)

    @settings(max_examples=4)
    @given(st.lists(requests(), max_size=10), st.lists(st.integers(0, 10), max_size=5))
    def holds(records: list[RequestRecord], cuts: list[int]) -> None:
        whole = summarise(batch(*records), FACTS, Question(window=window))
        assert summarise(Cut(records, cuts), FACTS, Question(window=window)) == whole

    holds()


@settings(max_examples=12)
@given(st.lists(requests(), max_size=10), st.lists(st.integers(0, 10), max_size=5))
def test_any_split_into_parts_gives_the_same_seconds(records: list[RequestRecord], cuts: list[int]) -> None:
    # Sums in another order may be rounded to another last digit.
    pd.testing.assert_frame_equal(
        seconds(Cut(records, cuts)), seconds(batch(*records)), check_dtype=False, rtol=0, atol=1.001e-3
    )


def test_a_batch_in_memory_is_worked_on_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    made = batch(*(request(i / 10, name=f"n{i % 3}") for i in range(20)))
    whole, by_second = summarise(made, FACTS), timeseries_csv(made, FACTS)
    monkeypatch.setattr(batch_module, "PART_ROWS", 3)
    assert [len(part) for part in made.parts()] == [3, 3, 3, 3, 3, 3, 2]
    assert (summarise(made, FACTS), timeseries_csv(made, FACTS)) == (whole, by_second)


def itl_tables(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Every table of gaps, taken out of the summary."""
    parts = [summary, *summary["by_name"].values(), *summary["by_class"].values()]
    return [part[key].pop("itl") for part in parts for key in ("latency_ms", "latency_ms_adjusted")]


def near(told: float | None, true: float | None, error: float) -> bool:
    """Within a relative error, or not defined in either."""
    return told is true is None or told == pytest.approx(true, rel=error)


def test_counted_gaps_differ_from_kept_ones_by_the_stated_error_and_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(3)
    streams = [
        request(i / 10, tuple(np.cumsum(rng.gamma(2, 0.01, 50)).tolist()), name=f"n{i % 2}")
        for i in range(90)
    ]
    made = batch(*streams, failed(2.0, name="n1"), request(3.0, name="n0", slo_class="fast"))
    kept = summarise(made, FACTS)
    monkeypatch.setattr(gaps, "EXACT_GAPS", 0)
    counted = summarise(made, FACTS)
    pairs = list(zip(itl_tables(kept), itl_tables(counted), strict=True))
    assert len(pairs) == 2 * (1 + 2 + 2)
    for true, told in pairs:
        assert (true.pop("relative_error"), told.pop("relative_error")) == (0.0, RELATIVE_ERROR)
        exact = {"n": true["n"], "beyond": true["beyond"]}
        assert exact == {"n": told["n"], "beyond": told["beyond"]}
        for key in true.keys() - exact.keys() - {"ci95", "n_effective"}:
            assert near(
                told[key], true[key], 1e-9 if key in ("mean", "std", "min", "max") else RELATIVE_ERROR
            )
        for key, ends in true["ci95"].items():
            # Of another edge of a bin, where the percentile itself is at another side of its middle.
            assert all(map(near, told["ci95"][key] or [], ends or [], [0.01] * 2))
            assert (told["ci95"][key] is None) == (ends is None)
    for summary in (kept, counted):  # gaps between events by the names of others
        summary["compat"]["aiperf"].pop("inter_chunk_latency_ms")
        summary["compat"]["vllm"].pop("itl_ms")
    assert counted | {"gates": []} == kept | {"gates": []}


def test_the_run_is_from_the_first_scheduled_request_after_warm_up_to_the_stop() -> None:
    c = columns(request(2.0), request(1.0), request(9.0, ended=14.0))
    window = run_window(c, manifest(stopped=10.0), warmup_s=3.0)
    assert (window.start_ns, window.end_ns) == (ns(4.0), ns(10.0))
    assert window.seconds == 6.0
    assert "3 s warm-up" in window.rule


def test_without_a_stop_the_last_end_is_just_inside() -> None:
    c = columns(request(1.0, ended=3.0), request(2.0, ended=5.0))
    window = run_window(c, manifest(stopped=None), warmup_s=0.0)
    assert window.end_ns == ns(5.0) + 1
    assert window.ended(c).all()


def test_a_run_without_requests_begins_at_its_start() -> None:
    assert run_window(columns(), manifest(10.0), 2.0).start_ns == ns(2.0)
    assert run_window(columns(), manifest(None), 2.0).seconds == 0.0


def test_a_warm_up_longer_than_the_run_leaves_an_empty_window() -> None:
    window = run_window(columns(request(0.0)), manifest(10.0), 60.0)
    assert window.seconds == 0.0
    assert not window.scheduled(columns(request(60.0))).any()


@given(st.integers(0, 10**15), st.integers(0, 10**13))
def test_the_start_is_inside_and_the_end_outside_to_the_nanosecond(start: int, length: int) -> None:
    window = Window(ORIGIN_NS + start, ORIGIN_NS + start + length + 2, "")
    edges = [window.start_ns - 1, window.start_ns, window.end_ns - 1, window.end_ns]
    c = columns(*(replace(request(), scheduled_ns=edge, ended_ns=edge) for edge in edges))
    assert window.scheduled(c).tolist() == [False, True, True, False]
    assert window.ended(c).tolist() == [False, True, True, False]


def test_the_population_is_what_was_scheduled_inside_whenever_it_ended() -> None:
    c = columns(
        request(0.5, ended=5.0),  # warm-up, though it ended inside
        request(1.0),
        request(9.9, ended=30.0),  # ended in the drain
        failed(5.0),
        request(6.0, outcome=Outcome.CANCELLED),
        request(10.0),
    )
    scheduled = Window(ns(1.0), ns(10.0), "").scheduled(c)
    population = Population.of(c, scheduled, np.arange(len(c)))
    assert population.ok.tolist() == [1, 2]
    assert population.failed.tolist() == [3]
    assert population.cancelled.tolist() == [4]
    assert population.judged.tolist() == [1, 2, 3]
    assert population.all.tolist() == [1, 2, 3, 4]


def steady(*records: RequestRecord, seconds: float = 100.0) -> Window:
    load = asked_load(batch(*records), manifest(seconds), ns(0.0))
    return steady_window(load, columns(*records), Window(ns(0.0), ns(seconds), "run"))


def test_steady_takes_the_plateau_without_ramp_and_drain() -> None:
    """Eleven users join a second apart, stay until 90, and leave a second apart."""
    window = steady(*(request(float(i), (90.0,), ended=90.0 + i, user=i) for i in range(11)))
    assert window.start_ns == ns(9.0)  # ten of eleven are within 10 %
    assert window.end_ns == ns(91.0)
    assert window.rule == "steady: load within 10 % of 11 users"


def test_steady_is_not_broken_by_the_instant_between_two_requests() -> None:
    window = steady(*(request(float(i), (0.98,), user=7) for i in range(100)))
    assert window.seconds == pytest.approx(100.0)


def test_steady_without_any_request_is_the_run() -> None:
    window = steady()
    assert (window.start_ns, window.end_ns) == (ns(0.0), ns(100.0))
    assert window.rule == "run (no steady span: nothing was sent)"
    assert steady(request(user=1), seconds=0.0).seconds == 0.0
