"""Percentiles, their intervals, and the adjusted ones."""

import math
import os
import subprocess
import sys
from random import Random

import numpy as np
import pytest
from hypothesis import given, strategies as st
from metrics_cases import summarise_latency

from llm_locust.metrics.stats.censoring import PERCENTILES, moments, ordered, parse_percentiles, percentile

samples = st.lists(st.floats(0, 1e4), min_size=1, max_size=60)


@given(samples, st.floats(0, 100))
def test_a_percentile_is_numpys_linear_one(values: list[float], percent: float) -> None:
    expected = float(np.percentile(values, percent))
    assert percentile(ordered(np.array(values)), percent) == pytest.approx(expected, rel=1e-12, abs=1e-300)


@given(samples, st.randoms())
def test_the_order_of_samples_changes_no_figure_but_how_sure_it_is(
    values: list[float], random: Random
) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)
    one, other = summarise_latency(np.array(shuffled)), summarise_latency(np.array(values))
    unsure = ("ci95", "n_effective")
    assert {key: one[key] for key in one if key not in unsure} == {
        key: other[key] for key in other if key not in unsure
    }


@given(st.lists(samples, min_size=1, max_size=5))
def test_pooled_figures_are_those_of_the_concatenation(parts: list[list[float]]) -> None:
    everything = [v for part in parts for v in part]
    pooled = summarise_latency(np.concatenate([np.array(part) for part in parts]))
    assert pooled["n"] == len(everything)
    assert pooled["mean"] == pytest.approx(sum(everything) / len(everything) * 1e3)
    assert pooled["p99"] == pytest.approx(float(np.percentile(everything, 99)) * 1e3)
    assert pooled["max"] == max(everything) * 1e3


def test_trap_13_a_percentile_is_of_the_pool_and_exact_not_an_average_and_not_a_bucket() -> None:
    fast, slow = np.full(900, 0.104), np.full(100, 1.0)
    pooled = summarise_latency(np.concatenate([fast, slow]))
    assert pooled["p50"] == pytest.approx(104.0)  # Locust's buckets would say 100
    assert pooled["p95"] == pytest.approx(1000.0)
    averaged = (summarise_latency(fast)["p95"] + summarise_latency(slow)["p95"]) / 2
    assert pooled["p95"] != pytest.approx(averaged)
    assert summarise_latency(np.full(9, 0.114))["p50"] == pytest.approx(114.0)


def test_mean_and_deviation_are_of_the_population_in_milliseconds() -> None:
    figures = summarise_latency(np.array([0.1, 0.2, np.nan, 0.6]))
    assert figures["n"] == 3
    assert figures["mean"] == pytest.approx(300)
    assert figures["std"] == pytest.approx(math.sqrt((200**2 + 100**2 + 300**2) / 3))
    assert (figures["min"], figures["max"]) == pytest.approx((100, 600))


def test_moments_of_many_slices_are_those_of_the_whole() -> None:
    values = np.sort(np.random.default_rng(1).gamma(2.0, size=2_500_000))
    assert moments(values) == pytest.approx((values.mean(), values.std()), rel=1e-12)


def test_adjusted_percentiles_that_fall_on_a_failure_are_named_and_have_no_value() -> None:
    figures = summarise_latency(np.linspace(0.1, 0.2, 90), failed=10)
    assert figures["n"] == 100
    assert figures["beyond"] == ["p90", "p95", "p99", "p99_9", "max"]
    assert all(figures[key] is None for key in figures["beyond"])
    assert figures["mean"] is None
    assert figures["p50"] == pytest.approx(
        1e3 * float(np.percentile([*np.linspace(0.1, 0.2, 90), *[9] * 10], 50))
    )


def test_a_population_of_failures_alone_is_all_beyond() -> None:
    figures = summarise_latency(np.empty(0), failed=3)
    assert figures["n"] == 3
    assert figures["beyond"] == ["min", *PERCENTILES, "max"]


@given(samples, st.integers(0, 40))
def test_failures_never_make_a_percentile_smaller(values: list[float], failures: int) -> None:
    plain, adjusted = summarise_latency(np.array(values)), summarise_latency(np.array(values), failures)
    for key in PERCENTILES:
        assert key in adjusted["beyond"] or adjusted[key] >= plain[key] * (1 - 1e-12)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor: nothing to compare with")
def test_a_standard_deviation_has_the_same_digits_on_any_number_of_processors() -> None:
    code = (
        "import numpy as np\n"
        "from llm_locust.metrics.stats.censoring import moments\n"
        "draw = np.random.default_rng(1)\n"
        "print([moments(np.sort(draw.lognormal(-3, 1, 40_000))) for _ in range(30)])"
    )
    texts = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"OPENBLAS_NUM_THREADS": threads},
            capture_output=True,
            check=True,
        ).stdout
        for threads in ("1", "2")
    ]
    assert texts[0] == texts[1]


def test_percentiles_are_named_by_their_figures_and_come_in_their_order() -> None:
    named = {"p10": 10.0, "p50": 50.0, "p99": 99.0, "p99_9": 99.9, "p99_999999": 99.999999}
    assert parse_percentiles("99.9, 50 99,10\n50.0 99.999999") == named
    assert [*parse_percentiles("99,50")] == ["p50", "p99"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        *(
            (word, f'"{word}" is no percentile')
            for word in ("0", "100", "-1", "p50", "1e1", "99.1234567", "nan")
        ),
        ("50 x", '"x" is no percentile'),
        (" , ", "0 percentiles: name 1 to 20"),
        (",".join(map(str, range(1, 22))), "21 percentiles: name 1 to 20"),
    ],
)
def test_what_is_no_percentile_is_refused_by_its_name(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        parse_percentiles(text)
