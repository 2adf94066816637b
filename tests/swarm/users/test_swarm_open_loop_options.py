"""The options of an open loop as checked values."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from llm_locust.options.arrivals import LoadSettings, Slice, parse_load, parse_slice
from llm_locust.workload.arrivals import Process, TraceFile, constant

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:00:{second:02d}.0000000,{100 + second},10\n" for second in range(11)
)


def parse(**options: Any) -> LoadSettings:
    return parse_load(argparse.Namespace(**options))


def test_without_options_nothing_is_said_and_users_are_the_rate() -> None:
    assert parse() == parse(arrival="", request_rate=None, num_requests="") == LoadSettings()
    assert parse().users_are_rate
    assert parse().open_loop_option is None


def test_options_become_values() -> None:
    load = parse(arrival="gamma:2", request_rate="50", max_in_flight="8", num_requests="900")
    assert load.arrival == Process(2.0)
    assert load.rate == constant(50.0)
    assert (load.max_in_flight, load.num_requests) == (8, 900)
    assert not load.users_are_rate
    assert load.open_loop_option == "--arrival"


def test_a_trace_is_cut_and_stretched(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(TRACE)
    load = parse(arrival=f"trace:{path}", trace_scale="0.5", trace_slice="2s-6s")
    assert load.arrival == TraceFile(path)
    assert load.trace_slice == Slice(start_s=2.0, end_s=6.0)
    assert [(e.at_s, e.input_tokens) for e in load.open_trace()] == [
        (0, 102),
        (0.5, 103),
        (1, 104),
        (1.5, 105),
    ]


def test_a_trace_is_stretched_to_a_rate_and_that_scale_can_be_passed_on(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(TRACE)
    load = parse(arrival=f"trace:{path}", request_rate="4")
    trace = load.open_trace()
    assert trace.scale == pytest.approx(0.25)
    assert load.open_trace(trace.scale) == trace


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"arrival": "regular"}, "--arrival: arrival 'regular'"),
        ({"request_rate": "-1"}, "--request-rate: "),
        ({"num_requests": "0"}, "--num-requests: '0' is no whole number from 1"),
        ({"max_in_flight": "x"}, "--max-in-flight: 'x'"),
        ({"stop_when": "never"}, "--stop-when: stop rule 'never'"),
        ({"trace_scale": "2"}, "--trace-scale without a trace"),
        ({"trace_slice": "1s-2s"}, "--trace-slice without a trace"),
        ({"arrival": "trace:a.csv", "trace_scale": "0"}, "--trace-scale: scale '0'"),
        ({"arrival": "trace:a.csv", "trace_slice": "5s-2s"}, "--trace-slice: slice '5s-2s'"),
        ({"arrival": "trace:a.csv", "request_rate": "ramp:1..2,5s"}, "--request-rate: a trace has"),
        (
            {"arrival": "trace:a.csv", "request_rate": "5", "trace_scale": "2"},
            "--trace-scale beside --request-rate",
        ),
    ],
)
def test_what_cannot_be_used_is_named(options: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=r"^--") as error:
        parse(**options)
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)


def test_a_slice_may_be_open_on_either_side() -> None:
    assert parse_slice("10m-") == Slice(start_s=600.0)
    assert parse_slice("-90s") == Slice(end_s=90.0)
    for text in ("", "-", "10", "10m-x"):
        with pytest.raises(ValueError, match="slice"):
            parse_slice(text)
