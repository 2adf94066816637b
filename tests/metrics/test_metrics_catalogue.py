"""The one list of latencies: what holds for each row, and that docs and tables follow it."""

import math
import re
from pathlib import Path

import pytest
from metrics_cases import batch, columns, failed, manifest, request
from summaries import summarise

from llm_locust.core.record import Outcome
from llm_locust.figures.sides import METRICS, NOT_COMPARED
from llm_locust.metrics.catalogue import (
    FORMULAS,
    LATENCIES,
    LATENCY,
    LIVE,
    LatencyMetric,
    View,
    from_scheduled,
)
from llm_locust.metrics.limits import parse_gates, parse_slo
from llm_locust.metrics.select import FIELDS
from llm_locust.report.run_data import COMPUTED_COLUMNS

DOCS = Path(__file__).parents[2] / "docs"
_LINK = re.compile(r"\[([^]]*)]\([^)]*\)")

every_latency = pytest.mark.parametrize("metric", LATENCIES, ids=lambda m: m.key)


def documented() -> dict[str, tuple[str, str]]:
    """Definition and where it has none of each latency, from the table of docs/definitions.md."""
    text = _LINK.sub(r"\1", (DOCS / "definitions.md").read_text())
    table = text.partition("## Per request")[2].partition("**Output tokens.**")[0]
    rows = (line.strip("|").split(" | ") for line in table.splitlines() if line.startswith("| `"))
    return {key.strip(" `"): (what.strip(), undefined.strip(" |")) for key, what, undefined in rows}


@every_latency
def test_the_docs_define_it_in_the_words_of_the_catalogue(metric: LatencyMetric) -> None:
    assert documented()[metric.key] == (metric.definition, metric.undefined)


@every_latency
def test_the_docs_name_it_among_summary_keys_and_fields_of_expressions(metric: LatencyMetric) -> None:
    keys = (DOCS / "summary-keys.md").read_text().partition("`<metric>` is one of")[2].partition("\n\n")[0]
    assert f"`{metric.key}`" in keys
    if metric.formula is not None:
        fields = (DOCS / "notebooks.md").read_text().partition("`--where` knows")[2].partition("```")[0]
        assert f"`{metric.key}`" in fields


@every_latency
def test_a_row_is_in_the_summary_and_wherever_it_says(metric: LatencyMetric) -> None:
    found = summarise(batch(request(), failed()), manifest())
    for table in ("latency_ms", "latency_ms_adjusted"):
        assert metric.key in found[table]
    assert (metric.key in FIELDS) == (metric.column[0] in COMPUTED_COLUMNS) == (metric.key in FORMULAS)
    assert (f"p99_{metric.key}" in METRICS) == (f"max_{metric.key}" in NOT_COMPARED) == metric.is_gated
    if metric.is_gated:
        assert parse_gates(f"p99_{metric.key}<1s")[0].latency == metric.key
    if metric.is_limited:
        assert parse_slo(f"{metric.key}=1s").limits == {metric.key: 1.0}


@every_latency
def test_a_row_asks_for_nothing_that_its_kind_has_not(metric: LatencyMetric) -> None:
    if metric.is_limited:
        # What breaks a limit needs a lower bound of requests that were given up, in seconds.
        assert metric.end is not None or metric.key == "tpot"
        assert metric.per is None
    assert (metric.per is None) == (metric.unit == "ms")
    if metric.formula is None:
        one_a_request = {View.OVERVIEW, View.GROUPS, View.OVER_TIME, View.CURVES, View.SPANS}
        assert not metric.views & one_a_request
    if metric.per is not None:
        assert not metric.views & {View.DISTRIBUTIONS, View.OVER_TIME}, "their axes are milliseconds"
    assert (View.OVERVIEW in metric.views) <= (View.SHORT in metric.views) <= (View.REPORT in metric.views)
    assert (View.CURVES in metric.views) <= metric.is_limited
    assert (View.COMPARISON in metric.views) <= metric.is_gated
    assert metric.live is None or metric.live.buckets_s == tuple(sorted(metric.live.buckets_s))


def test_prefill_per_1k_input_is_of_requests_whose_input_is_known() -> None:
    made = [
        request(0.0, (0.1, 0.2), input_tokens=500),
        request(1.0, (0.3, 0.4), input_tokens=2000),
        request(2.0, (0.3, 0.4), input_tokens=None),
        request(3.0, (0.3, 0.4), input_tokens=0),
        request(4.0, (), streamed=False, input_tokens=500),
    ]
    values = FORMULAS["prefill_ms_per_1k_input"](columns(*made))
    assert values[:2] == pytest.approx([0.2, 0.15])
    assert all(map(math.isnan, values[2:]))
    found = summarise(batch(*made), manifest())["latency_ms"]["prefill_ms_per_1k_input"]
    assert (found["n"], found["min"], found["max"]) == (2, pytest.approx(150), pytest.approx(200))
    unknown = summarise(batch(*made[2:]), manifest())["latency_ms"]["prefill_ms_per_1k_input"]
    assert (unknown["n"], unknown["p50"], unknown["mean"]) == (0, None, None)


def test_prefill_per_1k_input_of_a_request_that_was_given_up_is_at_least_its_wait() -> None:
    """A long prompt that never got its first token must not leave the figures: they would look faster."""
    cut = request(2.0, (), ended=9.0, outcome=Outcome.CANCELLED, input_tokens=1000)
    found = summarise(batch(request(0.0, (0.1, 0.2), input_tokens=500), cut), manifest())
    table = found["latency_ms"]["prefill_ms_per_1k_input"]
    assert (table["n"], table["censored"]) == (1, 1)
    assert table["p99"] is None
    blind = request(2.0, (), ended=9.0, outcome=Outcome.CANCELLED, input_tokens=None)
    found = summarise(batch(request(0.0, (0.1, 0.2), input_tokens=500), blind), manifest())
    assert found["latency_ms"]["prefill_ms_per_1k_input"]["censored"] == 0


def test_keys_and_words_are_given_once() -> None:
    for field in ("key", "label", "short"):
        words = [getattr(metric, field) for metric in LATENCIES]
        assert len(set(words)) == len(words) == len(LATENCY)


def test_a_latency_from_scheduled_is_the_same_one_with_another_begin() -> None:
    assert from_scheduled(LATENCY["ttft"]) is LATENCY["ttft_scheduled"]
    assert from_scheduled(LATENCY["e2el"]) is LATENCY["e2el_scheduled"]
    for key in ("ttft_scheduled", "tpot", "schedule_delay"):
        assert from_scheduled(LATENCY[key]) is None


def test_live_latencies_are_counted_in_the_order_of_the_catalogue() -> None:
    """The sums and sketches of live messages have no names: their places are this order."""
    assert [m.key for m in LIVE] == [m.key for m in LATENCIES if m.live is not None]
