"""A run in parts says what the run as a whole says, however it is cut."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st
from metrics_cases import batch, failed, manifest, request, requests

from llm_locust.core import batch as batch_module
from llm_locust.core.arrow import SCHEMA
from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import Manifest
from llm_locust.core.record import RequestRecord
from llm_locust.figures.summarise import summarise
from llm_locust.metrics.question import Question
from llm_locust.metrics.requests import gaps
from llm_locust.metrics.stats.sketch import RELATIVE_ERROR
from llm_locust.report.run.analysis import timeseries_csv

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

    @settings(max_examples=8)
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
