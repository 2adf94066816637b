"""Arrivals and rates as text."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st

from llm_locust.workload.arrivals import (
    ArrivalError,
    Leg,
    Process,
    Profile,
    TraceFile,
    constant,
    parse_arrival,
    parse_rate,
    piecewise,
    sine,
)


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
