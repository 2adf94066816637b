"""Rates over time and sweeps, and how they are written."""

import math
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from numpy.typing import NDArray

from llm_locust.options.load import parse_sweep
from llm_locust.workload.arrivals import (
    ArrivalError,
    Leg,
    Process,
    Profile,
    RateSegment,
    Schedule,
    TraceFile,
    constant,
    parse_arrival,
    parse_rate,
    piecewise,
    sine,
)

# --- Arrivals and rates as text


@pytest.mark.parametrize(
    ("text", "process"),
    [
        ("constant", Process(0.0)),
        (" poisson ", Process(1.0)),
        ("gamma:0.5", Process(0.5)),
        ("gamma: 2", Process(2.0)),
        ("trace:traces/azure.csv", TraceFile(Path("traces/azure.csv"))),
        ("trace:C:/a.csv", TraceFile(Path("C:/a.csv"))),
    ],
)
def test_each_arrival_is_understood(text: str, process: Process | TraceFile) -> None:
    assert parse_arrival(text) == process


@pytest.mark.parametrize(
    ("text", "profile"),
    [
        ("10", constant(10)),
        (" 0.5 ", constant(0.5)),
        ("ramp:10..100,60s", piecewise([Leg(10, 100, 60)])),
        ("ramp:0..9,1m,9..9,500ms,9..0,3s", piecewise([Leg(0, 9, 60), Leg(9, 9, 0.5), Leg(9, 0, 3)])),
        ("steps:10@60s,50@30s", piecewise([Leg(10, 10, 60), Leg(50, 50, 30)])),
        ("steps: 10 @ 60s , 50", piecewise([Leg(10, 10, 60), Leg(50, 50, 0)])),
        ("sine:50,40,24h", sine(50, 40, 86_400)),
        ("spike:5,50,10s,2s", piecewise([Leg(5, 5, 10), Leg(50, 50, 2), Leg(5, 5, 0)])),
        ("spike:5,50,0s,2s", piecewise([Leg(50, 50, 2), Leg(5, 5, 0)])),
    ],
)
def test_each_rate_is_understood(text: str, profile: Profile) -> None:
    assert parse_rate(text) == profile


def test_a_ramp_holds_its_last_rate_and_a_spike_falls_back() -> None:
    assert [parse_rate("ramp:10..100,60s").rate(t) for t in (0, 30, 60, 1e6)] == [10, 55, 100, 100]
    assert [parse_rate("spike:5,50,10s,2s").rate(t) for t in (9, 10, 12)] == [5, 50, 5]
    assert [parse_rate("steps:10@60s,50@30s").rate(t) for t in (59, 60, 1e6)] == [10, 50, 50]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "allowed are"),
        ("poison", "allowed are"),
        ("poisson:1", "allowed are"),
        ("gamma", "allowed are"),
        ("trace:", "allowed are"),
        ("gamma:", "CV '' is not a number"),
        ("gamma:nan", "CV 'nan' is not a number"),
        ("gamma:0", "CV '0' is not above 0"),
        ("gamma:1e9", "CV 1e+09 is not in 0.001 .. 100"),
    ],
)
def test_a_wrong_arrival_says_the_value_and_what_is_allowed_in_one_line(text: str, what: str) -> None:
    with pytest.raises(ArrivalError) as error:
        parse_arrival(text)
    message = str(error.value)
    assert message.startswith(f"arrival {text!r}: ")
    assert what in message
    assert message.endswith("allowed are constant, poisson, gamma:CV or trace:FILE")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "the rate '' is not a number"),
        ("fast", "the rate 'fast' is not a number"),
        ("nan", "'nan' is not a number"),
        ("1_0", "'1_0' is not a number"),
        # What other tools write as a rate: what does the same here.
        ("inf", "leave the rate out, and give the requests at once by --users"),
        ("Infinity", "all at once is --users N --num-requests N"),
        ("10/s", "rates are per second: write 10"),
        ("5 req/s", "rates are per second: write 5"),
        ("-1", "'-1' is not in 0 .. 1,000,000 requests/s"),
        ("2e6", "'2e6' is not in 0 .. 1,000,000 requests/s"),
        ("0", "always 0"),
        ("ramp:0..0,10s", "always 0"),
        ("saw:1,2", "no profile 'saw'"),
        ("ramp:10..100", "'10..100' has no partner"),
        ("ramp:10,60s", "'10' is not FROM..TO"),
        ("ramp:10..x,60s", "TO 'x' is not a number"),
        ("ramp:10..20,60", "DURATION '60': a number without a unit"),
        ("ramp:10..20,0s", "DURATION '0s' is not above 0 s"),
        ("steps:10,20@5s", "'10' is not RATE@DURATION"),
        ("steps:", "RATE '' is not a number"),
        ("steps:1@999999999h,2", "too long: at most ten years"),
        ("sine:50,40", "'50,40' should be MEAN,AMPLITUDE,PERIOD"),
        ("sine:50,60,10s", "the amplitude 60 is not in 0 .. 50"),
        ("spike:1,2,3s", "'1,2,3s' should be BASE,PEAK,AT,FOR"),
        ("spike:1,2,3,4s", "AT '3': a number without a unit"),
    ],
)
def test_a_wrong_rate_says_the_value_and_what_is_allowed_in_one_line(text: str, what: str) -> None:
    with pytest.raises(ArrivalError) as error:
        parse_rate(text)
    message = str(error.value)
    assert message.startswith(f"request rate {text!r}: ")
    assert what in message
    assert "allowed are 10, ramp:10..100,60s, " in message
    assert "\n" not in message


words = st.lists(
    st.sampled_from(
        ["ramp:", "steps:", "sine:", "spike:", "10", "0", "1e5", "..", ",", "@", "5s", "1h", "-"]
    ),
    max_size=9,
).map("".join)


@given(words | st.text(max_size=30))
@example("ramp:1..2,1e5s")
@example("sine:1e5,1e5,0.0000000001us")
def test_no_text_gives_anything_but_a_profile_or_an_arrival_error(text: str) -> None:
    with suppress(ArrivalError):
        profile = parse_rate(text)
        assert float(profile.load(1e6)) >= 0
    with suppress(ArrivalError):
        parse_arrival(text)


# --- Rates over time: Λ against a numeric integral, its inverse, and live changes


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


# --- The grammar of --sweep


@pytest.mark.parametrize(
    ("text", "kind", "values"),
    [
        ("users=1,2,4", "users", (1, 2, 4)),
        ("rate=0.5, 2", "rate", (0.5, 2)),
        ("users=8", "users", (8,)),
        ("users=16,1", "users", (16, 1)),
        ("rate=linear:1..10,10", "rate", tuple(range(1, 11))),
        ("users=geometric:1..256,9", "users", tuple(2**i for i in range(9))),
        ("rate=geometric:1..8,4", "rate", (1, 2, 4, 8)),
    ],
)
def test_what_is_written_is_what_is_applied(text: str, kind: str, values: tuple[float, ...]) -> None:
    found = parse_sweep(text)
    assert (found.kind, found.values) == (kind, values)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1,2,4", "must begin with users=, agents=, rate=, lengths= or prefix-share="),
        ("threads=1", "'threads' is not users, agents, rate, lengths, prefix-share or prefixes"),
        ("users=1 users=2", "it has users= twice"),
        ("users=1 rate=2", "users= beside rate=: a run has one kind of load"),
        ("agents=1 lengths=1:2", "trajectories have recorded lengths"),
        ("prefixes=3", "prefixes= without prefix-share="),
        ("users=1,2 prefix-share=0%", "an experiment varies one thing"),
        ("lengths=1:2 prefix-share=0%", "an experiment varies one thing"),
        ("agents=2 prefix-share=0%", "an experiment varies one thing"),
        ("prefix-share=50", "'50' is not a share such as 50%"),
        ("prefix-share=", "'' is not a share such as 50%"),
        ("prefix-share=x%", "'x' is not a number"),
        ("prefix-share=-5%", "'-5' is not a number"),
        ("prefix-share=100%", "each prompt needs an end of its own"),
        ("prefix-share=0%,50%,50.0%", "it has the share 50% twice"),
        ("prefix-share=0% prefixes=0", "prefixes=0 is not a whole number in 1 .. 10,000"),
        ("prefix-share=0% prefixes=1e3", "prefixes=1e3 is not a whole number"),
        ("prefix-share=0% prefixes=0000010000000", "prefixes=0000010000000 is not a whole number in 1 .. 10"),
        ("lengths=", "'' is not a pair of lengths"),
        ("lengths=128", "'128' is not a pair of lengths"),
        ("lengths=128:32:1", "is not a pair of lengths"),
        ("lengths=-1:32", "is not a pair of lengths"),
        ("lengths=0:32", "0 tokens are not in 1 .. 10,000,000"),
        ("lengths=128:99999999999999999999999", "are not in 1 .. 10,000,000"),
        ("lengths=128:32,128:32", "it has the lengths 128:32 twice"),
        ("users=linear:1..150,150 lengths=1:1,2:2", "it has 150 loads at 2 pairs of lengths, at most 200"),
        ("users=", "'' is not a number above 0"),
        ("users=0,1", "0 users are not in 1"),
        ("users=-1", "'-1' is not a number above 0"),
        ("users=nan", "'nan' is not a number above 0"),
        ("users=1_0", "'1_0' is not a number above 0"),
        ("rate=0", "without 0"),
        ("rate=1e9", "is not a number above 0"),
        ("users=1000001", "are not in 1 .. 1,000,000"),
        ("users=2,2", "the same load twice in a row"),
        ("users=linear:1..3,9", "the same load twice in a row"),
        ("rate=linear:1..10", "is not linear:FROM..TO,COUNT"),
        ("rate=cubic:1..10,3", "is not linear:FROM..TO,COUNT"),
        ("rate=linear:1..10,1", "COUNT '1' is not in 2 .. 200"),
        ("rate=linear:1..10,201", "COUNT '201' is not in 2 .. 200"),
        ("rate=geometric:0..10,3", "FROM '0' is not above 0"),
        ("rate=" + ",".join(str(i) for i in range(1, 300)), "it has 299 loads, at most 200"),
    ],
)
def test_what_is_not_a_sweep_is_refused_with_what_is_allowed(text: str, why: str) -> None:
    with pytest.raises(ValueError, match="allowed are users=1,2,4,8") as error:
        parse_sweep(text)
    assert why in str(error.value)


@given(st.text(max_size=40))
def test_no_text_raises_anything_else(text: str) -> None:
    with suppress(ValueError):
        assert parse_sweep(text).values


SIZES = st.integers(1, 10_000_000)


@given(
    name=st.sampled_from(["users", "rate", ""]),
    loads=st.lists(st.integers(1, 1000), min_size=1, max_size=10, unique=True),
    pairs=st.lists(st.tuples(SIZES, SIZES), min_size=1, max_size=10, unique=True),
    between=st.sampled_from([" ", "   ", "\n"]),
    lengths_first=st.booleans(),
)
def test_loads_and_lengths_are_what_is_written_in_whichever_order(
    name: str, loads: list[int], pairs: list[tuple[int, int]], between: str, *, lengths_first: bool
) -> None:
    parts = [f"{name}={','.join(map(str, loads))}"] if name else []
    parts.append("lengths=" + ", ".join(f"{a}:{b}" for a, b in pairs))
    found = parse_sweep(between.join(parts[::-1] if lengths_first else parts))
    assert found.values == (tuple(loads) if name else ())
    assert [(pair.input_tokens, pair.output_tokens) for pair in found.lengths] == pairs
    assert found.kind == ("rate" if name == "rate" else "users")
    assert found.stages == len(pairs) * (len(loads) if name else 1)
    assert found.of_users(7).values == (tuple(loads) if name else (7,))


def test_shares_are_stages_at_one_load() -> None:
    found = parse_sweep("users=4 prefix-share=0%,50%,87.5% prefixes=3")
    assert (found.values, found.shares, found.prefixes, found.stages) == ((4.0,), (0.0, 0.5, 0.875), 3, 3)
    alone = parse_sweep("prefix-share=90%")
    assert (alone.values, alone.shares, alone.prefixes, alone.name) == ((), (0.9,), 10, "prefix-share")
