"""Samples that no server can have told are left out of what a report reads, and named."""

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from metrics_cases import columns, ns, request
from server_cases import WINDOW

from llm_locust.deployment.samples import SCHEMA, CheckedSamples
from llm_locust.figures.server_metrics import server_metrics
from llm_locust.metrics.server_series import read_server_series

GOOD = {"at_ns": ns(1.0), "target": "a:8000", "name": "running", "labels": "{}", "value": 1.0}


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.table({field.name: [row[field.name] for row in rows] for field in SCHEMA}).cast(SCHEMA)


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"value": 1e308}, "the value is not within ±1e+18"),
        ({"value": -math.inf}, "the value is not within ±1e+18"),
        ({"value": math.nan}, "the value is not within ±1e+18"),
        ({"at_ns": -1}, "the time is not between 1970 and 2116"),
        ({"at_ns": 2**63 - 1}, "the time is not between 1970 and 2116"),
        ({"labels": "le"}, "the labels are no JSON object of texts"),
        ({"labels": '{"gpu": 0}'}, "the labels are no JSON object of texts"),
        ({"labels": "[" * 10_000}, "the labels are no JSON object of texts"),
        ({"name": "ttft_s_bucket", "labels": '{"le": "foo"}'}, "a bucket's 'le' is no number"),
        ({"name": "ttft_s_bucket", "labels": '{"le": "nan"}'}, "a bucket's 'le' is no number"),
        ({"name": "ttft_s_bucket"}, "a bucket's 'le' is no number"),
    ],
)
def test_an_odd_sample_is_left_out_and_named_and_the_others_stay(odd: dict[str, Any], why: str) -> None:
    samples = CheckedSamples([table(GOOD, GOOD | odd), table(GOOD)])
    assert [kept.to_pylist() for kept in samples] == [[GOOD], [GOOD]]
    name = odd.get("name", "running")
    assert samples.failure == f"1 samples cannot be right and were left out: 1 of {name!r} ({why})"


def test_a_name_that_is_a_null_of_its_dictionary_is_left_out() -> None:
    made = table(GOOD, GOOD)
    names = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["running", None]))
    samples = CheckedSamples([made.set_column(2, SCHEMA.field("name"), names)])
    assert [kept.to_pylist() for kept in samples] == [[GOOD]]
    assert samples.failure.endswith("1 of 'None' (target or name is missing)")


def test_what_a_scrape_writes_stays_as_it_is() -> None:
    edges = [
        GOOD | {"name": "ttft_s_bucket", "labels": f'{{"le": "{edge}"}}', "value": 3.0}
        for edge in ("0.5", "+Inf", "1e-3")
    ]
    samples = CheckedSamples([table(GOOD, *edges)])
    assert [kept.to_pylist() for kept in samples] == [[GOOD, *edges]]
    assert samples.failure == ""


def test_of_many_kinds_the_most_frequent_are_named_on_one_line() -> None:
    rows = [GOOD | {"name": f"n{i}\nx", "value": math.nan} for i in range(6) for _ in range(i + 1)]
    samples = CheckedSamples([table(*rows)])
    assert [len(kept) for kept in samples] == [0]
    assert samples.failure.startswith("21 samples cannot be right and were left out: 6 of ")
    assert samples.failure.endswith(" and 3 other kinds")
    assert "\n" not in samples.failure


_NAMES = ["up", "running", "ttft_s_bucket", "ttft_s_count", "ttft_s_sum", "generation_tokens", "role"]
_LABELS = [
    "{}",
    '{"le": "0.1"}',
    '{"le": "+Inf"}',
    '{"le": "foo"}',
    '{"le": 1}',
    "[]",
    "null",
    '{"role": "x"}',
]
ANY = st.fixed_dictionaries(
    {
        "at_ns": st.floats(-5, 15).map(ns) | st.integers(-(2**63), 2**63 - 1),
        "target": st.sampled_from(["a", "b\n", ""]),
        "name": st.sampled_from(_NAMES) | st.text(max_size=4),
        "labels": st.sampled_from(_LABELS) | st.text(max_size=4),
        "value": st.floats() | st.floats(0, 100),
    }
)


@given(st.lists(ANY, max_size=8))
def test_no_file_keeps_the_servers_figures_from_being_made(rows: list[dict[str, Any]]) -> None:
    samples = CheckedSamples([table(*rows)])
    found = read_server_series(samples, WINDOW)
    server_metrics(found, columns(request()), WINDOW)
