"""Figures over repeats, with an interval that has what differs between them."""

import csv
import io
import math

import numpy as np
import pytest
from metrics_cases import batch, manifest, request, stage

from llm_locust.figures.stages import over, repeats, show_repeats as shown_repeats
from llm_locust.figures.summarise import summarise
from llm_locust.figures.summary import typed
from llm_locust.report.csv_tables import repeats_csv
from llm_locust.report.markdown import markdown

#: TTFT in ms of three repeats of two loads, in turn.
TTFT = {0: 50.0, 1: 80.0, 2: 56.0, 3: 84.0, 4: 53.0, 5: 82.0}


def found() -> dict[str, object]:
    records = [
        request(10 * number + 1 + i / 10, (ms / 1e3, ms / 1e3 + 0.01), user=1)
        for number, ms in TTFT.items()
        for i in range(50)
    ]
    stages = [
        stage(n, 10 * n + 0.9, 10 * n + 6.0, asked=1.0 + n % 2, repeat=n // 2, fault="lost" if n == 5 else "")
        for n in TTFT
    ]
    known = manifest(60.0, options={"sweep": "users=1,2", "repeat": "3"}, stages=stages)
    return summarise(batch(*records), known)


def test_each_load_has_mean_and_interval_over_its_results() -> None:
    summary = typed(found())
    one, two = summary.repeats or []
    assert (one.asked, one.stages, one.results) == (1.0, [0, 2, 4], 3)
    assert (two.asked, two.stages, two.results) == (2.0, [1, 3, 5], 2)
    ttft = one.figures["ttft_p50_ms"]
    assert ttft.mean == pytest.approx(53.0)
    reach = 4.302653 * 3.0 / math.sqrt(3)  # Student's t of 2 degrees of freedom
    assert ttft.ci95 == pytest.approx((53.0 - reach, 53.0 + reach), rel=1e-6)
    reach = 12.706205 * math.sqrt(8) / math.sqrt(2)
    assert two.figures["ttft_p50_ms"].ci95 == pytest.approx((82.0 - reach, 82.0 + reach), rel=1e-6)


def test_a_run_without_inputs_has_no_column_of_them() -> None:
    section = shown_repeats(typed(found()))
    assert section is not None
    assert section.table is not None
    assert [column.head for column in section.table.columns if "inputs" in column.head] == []


def test_repeats_are_in_the_tables_and_in_a_file() -> None:
    summary = typed(found())
    text = markdown(summary)
    assert "53.0 ± 7.45" in text
    assert "2 of 3" in text
    rows = list(csv.DictReader(io.StringIO(repeats_csv(summary) or "")))
    assert [row["results"] for row in rows] == ["3", "2"]
    assert float(rows[0]["ttft_p50_ms_low"]) < 53 < float(rows[0]["ttft_p50_ms_high"])
    once = typed(summarise(batch(request(1.0)), manifest(10.0, stages=[stage(0, 0.5, 5.0)])))
    assert repeats_csv(once) is None
    assert once.repeats is None


@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_the_interval_holds_the_mean_in_95_of_100(n: int) -> None:
    drawn = np.random.default_rng(n).normal(10.0, 1.0, (2000, n))
    held = [low <= 10.0 <= high for low, high in (over(row.tolist())["ci95"] for row in drawn)]
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)


def test_a_figure_of_one_repeat_has_no_interval_and_of_none_no_value() -> None:
    assert over([3.0, None])["ci95"] is None
    assert over([None, math.nan]) == {"n": 0, "mean": None, "min": None, "max": None, "ci95": None}


def test_a_repeat_in_which_all_failed_counts_for_the_rates_and_not_as_a_result() -> None:
    figures = {
        "latency_ms": {metric: {"p50": None, "p99": None} for metric in ("ttft", "tpot", "e2el")},
        "throughput": {"requests_per_s": 0.0, "output_tokens_per_s": 0.0, "inputs_per_s": None},
        "requests": {"error_rate": 1.0},
        "goodput": {"ratio": 0.0},
    }
    held = {**figures, "goodput": {"ratio": 1.0}, "requests": {"error_rate": 0.0}}
    common = {"kind": "users", "asked": 2.0}
    (found,) = repeats(
        [
            {**common, "number": 0, "is_result": True, "all_failed": False, "figures": held},
            {**common, "number": 1, "is_result": False, "all_failed": True, "figures": figures},
        ]
    )
    assert found["results"] == 1
    assert (found["figures"]["goodput"]["n"], found["figures"]["goodput"]["mean"]) == (2, 0.5)
    assert found["figures"]["error_rate"]["mean"] == 0.5
