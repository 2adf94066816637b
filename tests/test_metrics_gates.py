"""Gate texts and what they say of a run."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_locust.metrics.gates import GateError, Kind, evaluate, parse_gates
from llm_locust.metrics.latency import METRICS, summarise_latency


def summary(**changes: Any) -> dict[str, Any]:
    figures = summarise_latency(np.array([0.1, 0.2, 0.3]))
    known: dict[str, Any] = {
        "requests": {"population": 100, "error_rate": 0.02},
        "goodput": {"ratio": 0.95, "requests_per_s": 9.5},
        "latency_ms": dict.fromkeys(METRICS, figures),
        "throughput": {
            "requests_per_s": 10.0,
            "input_tokens_per_s": 100.0,
            "output_tokens_per_s": 2000.0,
            "total_tokens_per_s": 2100.0,
        },
    }
    return {**known, **changes}


def complaint(text: str) -> str:
    with pytest.raises(GateError) as caught:
        parse_gates(text)
    return str(caught.value)


def passed(text: str, **changes: Any) -> list[bool]:
    return [result["passed"] for result in evaluate(parse_gates(text), summary(**changes))]


def test_the_contracts_own_text_is_read() -> None:
    gates = parse_gates("goodput>=95% p99_ttft<800ms error_rate<1% output_tps>2000")
    assert [(g.metric, g.op, g.limit, g.kind) for g in gates] == [
        ("goodput", ">=", 0.95, Kind.SHARE),
        ("p99_ttft", "<", 800.0, Kind.LATENCY),
        ("error_rate", "<", 0.01, Kind.SHARE),
        ("output_tps", ">", 2000.0, Kind.NUMBER),
    ]


def test_every_metric_and_statistic_can_be_gated() -> None:
    statistics = ("mean", "p50", "p75", "p90", "p95", "p99", "p99_9", "max")
    latencies = ["ttft", "ttfo", "tpot", "itl", "e2el", "schedule_delay", "ttft_scheduled", "e2el_scheduled"]
    latencies += ["ttft_started", "connect"]
    texts = [f"{s}_{m}<1s" for s in statistics for m in latencies]
    texts += ["goodput>50%", "goodput_rps>1", "error_rate<5%", "output_tps>1", "input_tps>1", "total_tps>1"]
    texts += ["rps>1", "requests>1"]
    assert all(passed(" ".join(texts)))


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("goodput>=95%", True),
        ("goodput>95%", False),
        ("goodput >= 0.95", True),
        ("rps>=10.00", True),
        ("error_rate<=2%", True),
        ("error_rate<2%", False),
        ("p50_ttft<=200ms", True),
        ("p50_ttft<0.2s", False),
        ("p50_ttft > 199000us", True),
        ("requests>=100", True),
        ("rps<10", False),
    ],
)
def test_a_gate_compares_in_the_unit_it_was_written_in(text: str, holds: bool) -> None:
    assert passed(text) == [holds]


def test_a_broken_gate_says_what_was_found_and_a_held_one_nothing() -> None:
    broken, held = evaluate(parse_gates("p50_ttft < 100ms, goodput>=90%"), summary())
    assert broken == {
        "text": "p50_ttft<100ms",
        "value": 200.0,
        "passed": False,
        "reason": "200 ms is not < 100 ms",
    }
    assert held == {"text": "goodput>=90%", "value": 0.95, "passed": True, "reason": None}


def test_trap_11_a_gate_without_samples_fails_and_says_so() -> None:
    nothing = summary(
        requests={"population": 0, "error_rate": None},
        goodput={"ratio": None, "requests_per_s": None},
        latency_ms=dict.fromkeys(METRICS, summarise_latency(np.empty(0))),
    )
    for result in evaluate(
        parse_gates("p99_ttft<1s error_rate<1% goodput<=100% output_tps<9999 rps>=0"), nothing
    ):
        assert (result["passed"], result["value"]) == (False, None)
        assert result["reason"].startswith("no samples")


def test_a_gate_on_the_number_of_requests_is_answered_by_none_at_all() -> None:
    (result,) = evaluate(parse_gates("requests>=1"), summary(requests={"population": 0, "error_rate": None}))
    assert (result["value"], result["passed"]) == (0.0, False)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("goodput>=95% p98_ttft<1s", 'at character 14, "p98_ttft": unknown metric; did you mean "p99_ttft"?'),
        ("goodputs>95%", 'did you mean "goodput'),
        ("p99.9_ttft<1s", 'did you mean "p99_9_ttft"?'),
        ("p99_ttft<800", 'at character 10, "800": a number without a unit'),
        ("p99_ttft<80%", 'unknown unit "%"'),
        ("p99_ttft<", "at character 10: no limit after p99_ttft<"),
        ("p99_ttft", "at character 9: after p99_ttft write one of >=, >, <=, <"),
        ("p99_ttft=1s", 'at character 9, "=": after p99_ttft write one of'),
        ("goodput>=95", 'at character 10, "95": goodput is a share of at most 100%'),
        ("goodput>=95ms", "goodput is a share: write it as 95% or 0.95"),
        ("error_rate<-1%", "needs a number, as 95%"),
        ("rps>10s", 'rps is a plain number: leave out "s"'),
        ("rps>many", "rps needs a number"),
        (">5", 'at character 1, ">": no metric before it'),
    ],
)
def test_each_mistake_says_where_it_is_and_what_to_do(text: str, part: str) -> None:
    assert part in complaint(text)


@given(st.text(st.sampled_from("goodputrs_9%<>= ,.50m\n") | st.characters(), max_size=30))
def test_any_text_is_gates_or_one_line_of_complaint(text: str) -> None:
    message = ""
    try:
        gates = parse_gates(text)
    except GateError as e:
        message, gates = str(e), ()
    assert len(message.splitlines()) <= 1
    assert all(gate.limit >= 0 for gate in gates)


def test_no_text_is_no_gate() -> None:
    assert parse_gates(" ") == ()
