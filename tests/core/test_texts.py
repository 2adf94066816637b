"""Numbers for people, terms, and one grammar of durations for whatever takes one."""

import argparse
import contextlib
import math
import re
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from llm_locust.cli.compare import add_arguments as add_compare_arguments
from llm_locust.core.texts import (
    UNITS_NS,
    Word,
    argument,
    figure,
    is_on,
    named_values,
    nearest,
    parse_duration,
    parse_time,
    parse_time_ns,
    plain_number,
    positive,
    probability,
    quantity,
    split_terms,
)
from llm_locust.deployment.replicas import ProfileSpan
from llm_locust.metrics.limits import parse_gates, parse_slo
from llm_locust.metrics.question import parse_window
from llm_locust.metrics.select import parse_where
from llm_locust.options.load import parse_slice
from llm_locust.options.option import parse_timeouts
from llm_locust.options.run import parse_stop_rules
from llm_locust.options.table import GRAMMAR
from llm_locust.scenario.document import parse_scenario
from llm_locust.sim.faults import parse_fault_plan, parse_plan
from llm_locust.workload.arrivals import parse_rate
from llm_locust.workload.draws import parse_times


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


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (7.41011, "7.41"),
        (9.996, "10.0"),
        (99.96, "100"),
        (1363.2, "1,363"),
        (-0.009, "-0.009"),
        (0.000042, "0.000042"),
        (math.inf, "∞"),
        (-math.inf, "-∞"),
        (math.nan, "–"),
    ],
)
def test_a_figure_has_three_digits_that_mean_something(value: float, text: str) -> None:
    assert figure(value) == text


@given(st.floats(min_value=-1e12, max_value=1e12).filter(lambda x: x == 0 or abs(x) > 1e-12))
def test_no_figure_has_an_exponent_and_it_is_within_a_hundredth_of_the_value(value: float) -> None:
    text = figure(value)
    assert re.fullmatch(r"-?[\d,]+(\.\d+)?", text)
    assert float(text.replace(",", "")) == pytest.approx(value, rel=0.06 if abs(value) < 1e-3 else 0.006)
    assert float(quantity(value).replace(",", "")) == float(text.replace(",", ""))


@pytest.mark.parametrize(
    ("value", "limit", "text"),
    [(250.04, 250.0, "250.04"), (249.9996, 250.0, "249.9996"), (0.12, 0.1204, "0.1200"), (251, 250, "251")],
)
def test_a_value_has_as_many_digits_more_as_tell_it_from_its_limit(
    value: float, limit: float, text: str
) -> None:
    assert figure(value, limit) == text


@given(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6))
def test_two_values_that_differ_are_told_apart(value: float, other: float) -> None:
    if value == pytest.approx(other, rel=1e-6):
        return
    assert figure(value, other) != figure(other, value)


@pytest.mark.parametrize(
    ("value", "text"), [(20.0, "20"), (1.5, "1.5"), (1200.0, "1,200"), (100.0, "100"), (0.25, "0.25")]
)
def test_a_quantity_has_no_zeros_at_its_end(value: float, text: str) -> None:
    assert quantity(value) == text


@pytest.mark.parametrize(("p", "text"), [(1e-9, "p < 0.001"), (0.0123, "p 0.012"), (0.5, "p 0.5")])
def test_a_small_probability_is_only_called_so(p: float, text: str) -> None:
    assert probability(p) == text


def parts(text: str) -> list[tuple[str, str, str]]:
    return [(t.name.text, t.op.text, t.value.text) for t in split_terms(text)]


def test_terms_are_split_at_spaces_and_commas_but_not_around_an_operator() -> None:
    assert parts("a>=1 b < 2,c=3 , d") == [("a", ">=", "1"), ("b", "<", "2"), ("c", "=", "3"), ("d", "", "")]
    assert parts(" ,, ") == []


def test_a_word_that_is_missing_is_empty_at_its_place() -> None:
    (term,) = split_terms("a= ")
    assert term.value == Word("", 3)
    first, second = split_terms("a b=1")
    assert first.op == Word("", 2)
    assert second.name == Word("b", 3)


@given(st.text(max_size=40))
def test_every_word_stands_in_the_text_where_it_says(text: str) -> None:
    for term in split_terms(text):
        for word in (term.name, term.op, term.value):
            assert text[word.position - 1 :].startswith(word.text)
        assert term.text


def test_only_a_decimal_number_is_a_plain_number() -> None:
    assert [plain_number(word) for word in ("2.5", "-1e3", "7")] == [2.5, -1000.0, 7.0]
    assert all(math.isnan(plain_number(word)) for word in ("", "x", "inf", "nan", "1_0", "1e999"))


def test_only_a_near_name_is_suggested() -> None:
    assert nearest("ttff", ["ttft", "e2el"]) == 'did you mean "ttft"? '
    assert nearest("zzz", ["ttft", "e2el"]) == ""


def test_an_error_points_at_its_word_or_at_where_it_is_missing() -> None:
    (term,) = split_terms("a= ")
    assert term.name.error_at("unknown") == 'at character 1, "a": unknown'
    assert term.value.error_at("a number belongs here") == "at character 3: a number belongs here"


def test_words_with_a_key_are_told_apart_and_none_is_given_twice() -> None:
    assert named_values([" a=1 ", "b", "c=", "d=x=y"]) == ({"a": "1", "c": "", "d": "x=y"}, ["b"])
    with pytest.raises(ValueError, match="a= is given twice, with '1' and '2'; leave one out"):
        named_values(["a=1", "a=2"])


def test_an_argument_is_what_is_read_of_it_or_refused_in_the_readers_words() -> None:
    assert argument(is_on)("on") is True
    assert argument(is_on)("off") is False
    assert positive("12") == 12
    with pytest.raises(argparse.ArgumentTypeError, match="'yes' is neither on nor off"):
        argument(is_on)("yes")


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", ""])
def test_a_number_below_1_is_not_positive(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a whole number of at least 1"):
        positive(text)
