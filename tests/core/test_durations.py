"""One grammar of durations: every option, scenario key and simulator setting takes the same texts."""

import argparse
import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from llm_locust.cli.compare import add_arguments as add_compare_arguments
from llm_locust.core.texts import UNITS_NS, parse_duration, parse_time, parse_time_ns
from llm_locust.deployment.profiler import ProfileSpan
from llm_locust.metrics.gates import parse_gates, parse_slo
from llm_locust.metrics.question import parse_window
from llm_locust.metrics.select.where import parse_where
from llm_locust.options.arrivals import parse_slice
from llm_locust.options.option import parse_timeouts
from llm_locust.options.run import parse_stop_rules
from llm_locust.options.table import GRAMMAR
from llm_locust.scenario.document import parse_scenario
from llm_locust.sim.faults import parse_fault_plan, parse_plan
from llm_locust.workload.arrivals import parse_rate
from llm_locust.workload.lengths import parse_times


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        *[("20ms", 20_000_000), ("1.5s", 1_500_000_000), ("50us", 50_000), ("7ns", 7), ("2m", 120 * 10**9)],
        *[("2min", 120 * 10**9), ("1h", 3600 * 10**9), ("2.m", 120 * 10**9), (" .5ms ", 500_000)],
        *[("0", 0), ("0s", 0), ("1m30s", 90 * 10**9), ("1h30m", 5400 * 10**9), ("1s1ns", 10**9 + 1)],
        *[("0.5h", 1800 * 10**9), ("1.4ns", 1), ("1.6ns", 2)],
    ],
)
def test_a_duration_is_numbers_with_units(text: str, ns: int) -> None:
    assert parse_time_ns(text) == ns
    assert parse_duration(text) == pytest.approx(ns / 1e9, abs=1e-9, rel=1e-12)


def test_seconds_are_the_nearest_float() -> None:
    assert parse_duration("50ms") == 0.05
    assert parse_duration("250us") == 250e-6
    assert parse_duration("100ms") == 0.1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *[("", "not a duration"), ("ms", "not a duration"), ("-1ms", "not a duration")],
        *[("nan", "not a duration"), ("infs", "not a duration"), ("٣ms", "not a duration")],
        *[("20", "a number without a unit: add one, as 20ms or 20s"), ("1m30", "a number without a unit")],
        *[
            ("20 parsecs", 'unknown unit "parsecs"'),
            ("1m 30s", "no blanks: write 1m30s"),
            ("90 s", "no blanks: write 90s"),
            ("90 seconds", 'unknown unit "seconds": write 90s'),
            ("5Minutes", 'unknown unit "Minutes": write 5m'),
            ("2hrs", 'unknown unit "hrs": write 2h'),
            ("1e3ms", 'unknown unit "e"'),
            ("1d", 'unknown unit "d"'),
        ],
        *[("1ms2s", "from the largest to the smallest"), ("1s1s", "from the largest to the smallest")],
        *[("9" * 30 + "s", "too long: at most ten years"), ("9" * 10**3 + "s", "too long: at most 100")],
        *[("1.2.3s", "a number without a unit"), ("1_0s", 'unknown unit "_"')],
    ],
)
def test_anything_else_is_refused_with_what_to_write(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        parse_duration(text)
    assert not text or text not in str(caught.value) or len(text) < 3
    for parse in (parse_time, parse_time_ns):
        with pytest.raises(ValueError, match=reason) as caught:
            parse(text)
        assert repr(text) in str(caught.value)


@given(st.text() | st.from_regex(r"[0-9.]{1,5}(ns|us|ms|s|m|h)[0-9.]{0,3}[a-z]{0,2}", fullmatch=True))
def test_no_text_raises_another_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_time_ns(text) >= 0


@given(st.dictionaries(st.sampled_from(list(UNITS_NS)), st.integers(0, 10**4), min_size=1))
def test_parts_add_up(parts: dict[str, int]) -> None:
    text = "".join(f"{parts[unit]}{unit}" for unit in reversed(UNITS_NS) if unit in parts)
    assert parse_time_ns(text) == sum(n * UNITS_NS[unit] for unit, n in parts.items())


def _compare_warmup(text: str) -> object:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_compare_arguments(parser)
    return parser.parse_args(["a", "b", "--warmup", text.removeprefix("warmup=")])


def _scenario(text: str) -> object:
    return parse_scenario(text, "s.yaml", GRAMMAR)


#: Where a duration may stand, with ``{}`` in its place.
PLACES: dict[str, Callable[[str], object]] = {
    "ttft={}": parse_slo,
    "p99_ttft<{}": parse_gates,
    "ttft>{}": parse_where,
    "first={}": parse_timeouts,
    "0s-{}": parse_slice,
    "{}-20h": parse_window,
    "{}@1s": ProfileSpan.parse,
    "1s@{}": ProfileSpan.parse,
    "error_rate>20% over {}": parse_stop_rules,
    "refused=1s@{}": parse_fault_plan,
    "{} kill 1": parse_plan,
    "ramp:1..2,{}": parse_rate,
    "exponential:{}": parse_times,
    "warmup={}": _compare_warmup,
    "warmup: {}": _scenario,
    "drain: {}": _scenario,
    "stop: {{error_rate: 20% over {}}}": _scenario,
    "conversation: {{turns: 3, think_time: {}}}": _scenario,
    "timeouts: {{gap: {}}}": _scenario,
    "slo: {{ttft: {}}}": _scenario,
}


@pytest.mark.parametrize("place", PLACES)
def test_every_place_takes_the_same_texts_and_refuses_others_in_the_same_words(place: str) -> None:
    for text in ("1h", "2m", "90s", "1h30m", "1m30s", "1500000us"):
        PLACES[place](place.format(text))
    for text, reason in (
        ("1parsec", 'unknown unit "parsec": write one of'),
        ("7", "a number without a unit: add one"),
    ):
        with pytest.raises((ValueError, argparse.ArgumentError)) as caught:
            PLACES[place](place.format(text))
        assert reason in str(caught.value)


def test_a_run_time_that_locust_could_not_read_is_written_in_seconds() -> None:
    assert parse_scenario("run_time: 0.5h", "s.yaml", GRAMMAR).options["run_time"] == "1800s"
    assert parse_scenario("run_time: 1h30m", "s.yaml", GRAMMAR).options["run_time"] == "1h30m"
    assert parse_scenario("run_time: 90", "s.yaml", GRAMMAR).options["run_time"] == "90"
    with pytest.raises(ValueError, match="a run lasts whole seconds"):
        parse_scenario("run_time: 1500ms", "s.yaml", GRAMMAR)
