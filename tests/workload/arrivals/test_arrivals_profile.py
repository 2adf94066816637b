"""Rates over time: Λ against a numeric integral, its inverse, and live changes."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from llm_locust.workload.arrivals import (
    Leg,
    Process,
    Profile,
    RateSegment,
    Schedule,
    constant,
    piecewise,
    sine,
)
from llm_locust.workload.arrivals.parse import parse_rate

TEXTS = [
    "10",
    "ramp:10..100,60s",
    "ramp:0..100,60s,100..100,60s,100..0,60s",
    "ramp:90..10,30s",
    "steps:10@60s,0@20s,50@30s,5",
    "sine:50,40,90s",
    "sine:50,50,40s",
    "spike:5,80,50s,20s",
    "spike:0,80,50s,20s",
]

rates = st.floats(0, 1000).map(lambda rate: round(rate, 3))
seconds = st.floats(0.001, 100_000).map(lambda s: round(s, 3))
straight = st.lists(st.builds(Leg, rates, rates, seconds), min_size=1, max_size=6).map(piecewise)
waves = st.builds(
    lambda mean, part, period: sine(mean, mean * part, period),
    st.floats(0.01, 1000),
    st.floats(0, 1),
    st.floats(0.1, 1e6),
)
profiles = st.one_of(straight, waves)


def integral(profile: Profile, until_s: float) -> float:
    """∫ rate dt by the midpoint rule in steps of 10 ms: no jump of these profiles is within a step."""
    steps = round(until_s * 100)
    middles = (np.arange(steps) + 0.5) * until_s / steps
    return math.fsum(profile.rate(t) for t in middles.tolist()) * until_s / steps


@pytest.mark.parametrize("text", TEXTS)
def test_load_is_the_integral_of_the_rate(text: str) -> None:
    profile = parse_rate(text)
    assert float(profile.load(210.0)) == pytest.approx(integral(profile, 210.0), rel=1e-6)


@pytest.mark.parametrize("text", TEXTS)
def test_constant_arrivals_in_every_window_are_the_integral_over_it(text: str) -> None:
    profile = parse_rate(text)
    edges = np.arange(0, 251.0, 10.0)
    at_s = Schedule(Process(0.0), profile, seed=0).times(250.0).at_s
    counts = np.searchsorted(at_s, edges)
    assert np.all(np.abs(counts - profile.load(edges)) <= 1 + 1e-9)


@pytest.mark.parametrize("text", TEXTS)
def test_poisson_arrivals_in_every_window_are_poisson_of_the_integral_over_it(text: str) -> None:
    profile = parse_rate(text)
    edges = np.arange(0, 251.0, 10.0)
    at_s = np.concatenate([Schedule(Process(1.0), profile, seed=s).times(250.0).at_s for s in range(15)])
    counts, expected = np.histogram(at_s, edges)[0], 15 * np.diff(profile.load(edges))
    assert np.all(counts[expected < 1e-9] == 0)
    busy = expected > 1
    z = (counts[busy] - expected[busy]) / np.sqrt(expected[busy])
    assert np.all(np.abs(z) < 5)
    assert 0.3 < np.mean(z**2) < 2.5


@given(profiles, st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_load_of_the_inverse_is_what_was_asked(profile: Profile, parts: list[float]) -> None:
    u = np.array(parts) * float(profile.load(200_000.0))
    t = profile.time(u)
    reached = np.isfinite(t)
    # A rounding of t moves Λ by the rate there; a sine is solved to the last digits of a period.
    fastest = max(s.rate + s.amplitude for s in profile.segments)
    period_s = profile.segments[0].period_s
    slack = 1e-12 * (1 + u[reached] + fastest * t[reached]) + 2e-15 * fastest * period_s
    assert np.all(np.abs(profile.load(t[reached]) - u[reached]) <= slack)
    # Only what is never exceeded has no time.
    assert np.all(u[~reached] >= float(profile.load(1e12)))


@given(profiles, st.lists(st.floats(0, 1), min_size=2, max_size=20))
def test_the_inverse_ascends(profile: Profile, parts: list[float]) -> None:
    u = np.sort(np.array(parts)) * float(profile.load(200_000.0))
    t = profile.time(u)
    assert np.all(t[1:] >= t[:-1] * (1 - 1e-12))


@pytest.mark.parametrize("period_s", [60.0, 86_400.0])
@pytest.mark.parametrize("part", [0.1, 0.9, 0.99])
def test_the_inverse_of_a_sine_is_right_to_a_microsecond_over_ten_periods(
    period_s: float, part: float
) -> None:
    profile = sine(20.0, 20.0 * part, period_s)
    u = np.linspace(0, float(profile.load(10 * period_s)), 10_001)
    t = profile.time(u)
    assert np.all(profile.load(t + 1e-6) > u)
    assert np.all(profile.load(t - 1e-6)[1:] < u[1:])


def test_a_sine_that_touches_zero_is_inverted_there_too() -> None:
    profile = sine(50.0, 50.0, 40.0)
    u = float(profile.load(30.0)) + np.array([-1e-6, 0, 1e-6])
    t = profile.time(u)
    assert np.all(np.abs(profile.load(t) - u) < 1e-11)
    assert t == pytest.approx(30.0, abs=0.02)


def test_nothing_arrives_while_the_rate_is_zero_not_even_at_its_start() -> None:
    profile = parse_rate("steps:10@60s,0@20s,50")
    at_s = profile.time(np.arange(598.0, 604.0))
    assert at_s == pytest.approx([59.8, 59.9, 80.0, 80.02, 80.04, 80.06])


def test_what_a_rate_that_ends_at_zero_never_reaches_is_at_infinity() -> None:
    profile = parse_rate("steps:10@6s,0")
    assert profile.time([59.0, 60.0, 61.0]).tolist() == [pytest.approx(5.9), np.inf, np.inf]


def test_a_single_value_may_be_asked_as_well_as_an_array() -> None:
    for profile in (constant(4.0), sine(4.0, 2.0, 10.0)):
        assert profile.time(8.0).shape == profile.load(2.0).shape == ()
        assert float(profile.time(profile.load(2.0))) == pytest.approx(2.0)


def test_the_rate_at_a_jump_is_the_one_after_it_and_before_zero_there_is_none() -> None:
    profile = parse_rate("spike:5,80,50s,20s")
    assert [profile.rate(t) for t in (-1, 0, 49.9, 50, 69.9, 70, 1e9)] == [0, 5, 5, 80, 80, 5, 5]
    assert profile.load([-5.0, 0.0]).tolist() == [0, 0]


@given(profiles, st.floats(0, 1e5), rates)
def test_a_change_keeps_what_was_before_and_has_its_rate_from_then_on(
    profile: Profile, at_s: float, rate: float
) -> None:
    changed = profile.changed_at(at_s, rate)
    before: NDArray[np.float64] = np.linspace(0, at_s, 50)
    assert np.array_equal(changed.load(before), profile.load(before))
    load = float(profile.load(at_s))
    for later_s in (0.0, 1.0, 1e4):
        assert changed.rate(at_s + later_s) == rate
        assert float(changed.load(at_s + later_s)) == pytest.approx(load + rate * later_s, abs=1e-6)
    u = before[before < at_s] / at_s * load if load else np.empty(0)
    same = np.isclose(changed.time(u), profile.time(u), rtol=1e-12, atol=0)
    assert np.all(same | (changed.time(u) == at_s))


def test_a_later_change_replaces_an_earlier_one_that_was_still_to_come() -> None:
    profile = constant(10.0).changed_at(60.0, 50.0)
    assert profile.changed_at(30.0, 20.0) == constant(10.0).changed_at(30.0, 20.0)
    assert profile.changed_at(60.0, 20.0) == constant(10.0).changed_at(60.0, 20.0)
    assert profile.changed_at(-1.0, 20.0) == constant(20.0)


@pytest.mark.parametrize(
    ("segments", "what"),
    [
        ((), "starts at 0 s"),
        ((RateSegment(1.0, 5.0),), "starts at 0 s"),
        ((RateSegment(0.0, 5.0, slope=1.0),), "its last rate has no end"),
        ((RateSegment(0.0, 5.0), RateSegment(0.0, 6.0)), "at 0 s follows one at 0 s"),
        ((RateSegment(0.0, -1.0),), "falls below 0"),
        ((RateSegment(0.0, 5.0, slope=-1.0), RateSegment(6.0, 0.0)), "falls below 0"),
        ((RateSegment(0.0, 5.0, amplitude=6.0),), "amplitude 6 is not in 0 .. 5"),
        ((RateSegment(0.0, 5.0, amplitude=-0.5),), "amplitude -0.5 is not in 0 .. 5"),
        ((RateSegment(0.0, 5.0, amplitude=1.0, period_s=0.0),), "needs a period above 0 s"),
        ((RateSegment(0.0, math.nan),), "is not finite"),
        ((RateSegment(0.0, math.inf),), "is not finite"),
    ],
)
def test_segments_that_are_no_profile_are_refused(segments: tuple[RateSegment, ...], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        Profile(segments)
