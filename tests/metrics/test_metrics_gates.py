"""SLO and gate texts, messages that point at the wrong word, and what gates say of a run."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from metrics_cases import plain, summarise_latency
from summaries import faked

from llm_locust.figures.gate_rules import GateEvidence, evaluate as evaluate_with
from llm_locust.metrics.catalogue import LATENCY
from llm_locust.metrics.limits import (
    SLO_METRICS,
    Gate,
    GateError,
    MetricKind,
    Slo,
    SloError,
    parse_gates,
    parse_slo,
)
from llm_locust.metrics.stats.censoring import Durations, summarise
from llm_locust.metrics.structs import LatencyTable

#: Latencies in seconds.
SAMPLES = np.tile([0.1, 0.2, 0.3], 400)
NO_SLO: dict[str, Any] = {"slo": {}, "slo_by_class": {}}


def summary(**changes: Any) -> dict[str, Any]:
    figures = summarise_latency(SAMPLES)
    known: dict[str, Any] = {
        "requests": {"population": 100, "error_rate": 0.0}
        | {"scheduled": 100, "ok": 100, "failed": 0, "cancelled": 0},
        "goodput": {"ratio": 0.95, "judged": 100, "requests_per_s": 9.5, **NO_SLO},
        "tokens": {"faults": {"not_used": 0.0}},
        "latency_ms": dict.fromkeys(LATENCY, figures),
        "latency_ms_adjusted": dict.fromkeys(LATENCY, figures),
        "window": {"seconds": 10.0},
        "throughput": {
            "requests_per_s": 10.0,
            "input_tokens_per_s": 100.0,
            "output_tokens_per_s": 2000.0,
            "total_tokens_per_s": 2100.0,
        },
    }
    if "latency_ms" in changes:
        known["latency_ms_adjusted"] = changes["latency_ms"]
    return {**known, **changes}


def evaluate(gates: tuple[Gate, ...], summary: dict[str, Any], **samples: Any) -> list[dict[str, Any]]:
    durations = Durations.of(samples.pop("observed", SAMPLES), **samples)
    tables = {
        which: {metric: LatencyTable(figures) for metric, figures in summary[which].items()}
        for which in ("latency_ms", "latency_ms_adjusted")
    }
    faults, seconds = summary["tokens"]["faults"], summary["window"]["seconds"]
    evidence = GateEvidence(lambda _: durations, seconds=seconds, not_used=faults["not_used"])
    tokens = {"output": {"p50": None}} | summary["tokens"]
    part = faked({**summary, **tables, "tokens": tokens})
    return [plain(each) for each in evaluate_with(gates, part, evidence)]


def complaint(text: str) -> str:
    with pytest.raises(GateError) as caught:
        parse_gates(text)
    return str(caught.value)


def passed(text: str, **changes: Any) -> list[bool]:
    return [result["passed"] for result in evaluate(parse_gates(text), summary(**changes))]


def test_the_contracts_own_text_is_read() -> None:
    gates = parse_gates("goodput>=95% p99_ttft<800ms error_rate<1% output_tps>2000")
    assert [(g.metric, g.op, g.limit, g.kind) for g in gates] == [
        ("goodput", ">=", 0.95, MetricKind.SHARE),
        ("p99_ttft", "<", 800.0, MetricKind.LATENCY),
        ("error_rate", "<", 0.01, MetricKind.SHARE),
        ("output_tps", ">", 2000.0, MetricKind.NUMBER),
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
    ("text", "n", "reason"),
    [
        ("p99_ttft<800ms", 99, "cannot tell: p99 needs 100 samples, there are 99: run for about 11 s"),
        ("p99_ttft<800ms", 100, None),
        (
            "p99_9_ttft<=800ms",
            999,
            "cannot tell: p99_9 needs 1,000 samples, there are 999: run for about 11 s",
        ),
        ("p99_9_ttft<=800ms", 1000, None),
        ("p50_ttft<800ms", 1, "cannot tell: p50 needs 2 samples, there are 1: run for about 20 s"),
        ("mean_ttft<800ms", 1, None),
        ("max_ttft<800ms", 1, None),
        ("p99_ttft>1ms", 20, None),
        ("p99_ttft<1ms", 20, "100 ms is not < 1 ms"),
    ],
)
def test_an_upper_limit_on_a_percentile_needs_as_many_samples_as_have_one_beyond_it(
    text: str, n: int, reason: str | None
) -> None:
    latencies = dict.fromkeys(LATENCY, summarise_latency(np.full(n, 0.1)))
    (result,) = evaluate(parse_gates(text), summary(latency_ms=latencies))
    assert (result["passed"], result["reason"]) == (reason is None, reason)


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
    assert passed(text, requests={"population": 100, "error_rate": 0.02}) == [holds]


def cut_off(n: int = 90, cut: int = 10) -> dict[str, Any]:
    """Answers of 1 s, and some that had waited for 12.8 s when the run ended."""
    figures = summarise(Durations.of(np.full(n, 1.0), np.full(cut, 12.8)), 1e3)
    return summary(latency_ms=dict.fromkeys(LATENCY, figures))


@pytest.mark.parametrize(
    ("gate", "holds", "reason"),
    [
        ("p50_e2el<2s", True, None),
        ("p99_e2el<20s", False, "undetermined: 10 requests were given up before they ended, so it is"),
        (
            "p99_e2el<=12.8s",
            False,
            "undetermined: 10 requests were given up before they ended, so it is",
        ),
        ("p99_e2el<12.8s", False, "at least 12,800 ms is not < 12,800 ms: 10 requests were given up before"),
        ("p99_e2el<1s", False, "at least 12,800 ms is not < 1,000 ms: 10 requests were given up before they"),
        ("p99_e2el>1s", True, None),
        ("p99_e2el>=12.8s", True, None),
        ("p99_e2el>20s", False, "undetermined: 10 requests were given up before they ended, so it is"),
        ("mean_e2el<99s", False, "undetermined: 10 requests were given up before they ended, so it is"),
    ],
)
def test_a_gate_on_what_cut_requests_leave_open_fails_unless_the_bound_decides(
    gate: str, holds: bool, reason: str | None
) -> None:
    (result,) = evaluate(parse_gates(gate), cut_off())
    assert result["passed"] is holds
    assert (result["reason"] or "").startswith(reason or "")
    assert (result["reason"] is None) == holds
    assert (result["value"] is None) == (gate[:3] != "p50")
    assert result["at_least"] == {"p99": 12800.0, "mean": pytest.approx(2180.0)}.get(gate.split("_")[0])


@given(
    st.sampled_from(["<", "<=", ">", ">="]),
    st.lists(st.floats(0, 20), min_size=10, max_size=10),
    st.floats(0.001, 40).map(lambda s: round(s, 3)),
)
def test_a_gate_that_passes_would_have_passed_whatever_the_cut_ones_had_taken(
    op: str, more: list[float], limit_s: float
) -> None:
    (result,) = evaluate(parse_gates(f"p99_e2el{op}{limit_s}s"), cut_off())
    truth = np.quantile([*[1.0] * 90, *(12.8 + extra for extra in more)], 0.99)
    if result["passed"]:
        assert truth > limit_s - 1e-9 if ">" in op else truth < limit_s


def test_the_longest_of_all_may_be_one_that_was_given_up_however_early_that_was() -> None:
    figures = summarise(Durations.of(np.full(90, 1.0), np.full(10, 0.1)), 1e3)
    gates = parse_gates("max_e2el<2s max_e2el>0.5s p90_e2el<2s")
    below, above, percentile = evaluate(gates, summary(latency_ms=dict.fromkeys(LATENCY, figures)))
    assert not below["passed"]
    assert below["reason"].startswith("cannot tell: 10 requests were given up before they ended")
    assert above["passed"]
    assert percentile["passed"]


def test_a_run_of_which_every_request_was_cut_has_bounds_and_a_goodput() -> None:
    nothing = cut_off(0, 10) | {"requests": {"population": 0, "error_rate": None}}
    nothing["goodput"] = {"ratio": 0.0, "judged": 10, "requests_per_s": 0.0, **NO_SLO}
    results = evaluate(parse_gates("goodput>=95% p99_e2el<1s error_rate<1% rps>=0"), nothing)
    assert [result["passed"] for result in results] == [False] * 4
    assert [result["reason"][:12] for result in results] == [
        "0% is not >=",
        "at least 12,",
        *["no samples: "] * 2,
    ]


def test_a_gate_on_goodput_without_an_slo_says_that_it_lacks_one() -> None:
    lacking = summary(goodput={"ratio": None, "judged": None, "requests_per_s": None, **NO_SLO})
    for result in evaluate(parse_gates("goodput>=95% goodput_rps>1"), lacking):
        assert (result["passed"], result["reason"]) == (False, "no SLO was given: nothing is good or bad")


def test_trap_11_a_gate_without_samples_fails_and_says_so() -> None:
    nothing = summary(
        requests={"population": 0, "error_rate": None},
        goodput={"ratio": None, "judged": 0, "requests_per_s": None, **NO_SLO},
        latency_ms=dict.fromkeys(LATENCY, summarise_latency(np.empty(0))),
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


def test_a_certified_gate_is_on_the_upper_bound_of_its_percentile() -> None:
    of_10_000 = np.arange(1, 10_001) / 1e4
    held, broken = evaluate(
        parse_gates("certified p99_ttft<=992.4ms certified p99_ttft<992.4ms"), summary(), observed=of_10_000
    )
    # MLPerf's loadgen takes the 77th highest of 10,000 samples.
    assert (held["value"], held["passed"], held["reason"]) == (pytest.approx(992.4), True, None)
    assert (broken["passed"], broken["reason"]) == (False, "992.4 ms is not < 992.4 ms")
    assert broken["text"] == "certified p99_ttft<992.4ms"


def test_a_certified_gate_cannot_tell_of_too_few_samples() -> None:
    (result,) = evaluate(parse_gates("certified p99_ttft<1h"), summary(), observed=np.ones(661))
    assert (result["value"], result["passed"]) == (None, False)
    assert (
        result["reason"]
        == "cannot tell: a certified p99 needs 662 samples, there are 661: run for about 11 s"
    )
    (result,) = evaluate(parse_gates("certified p99_ttft<1h"), summary(), observed=np.ones(662))
    assert result["passed"]


def test_failed_and_cut_requests_are_longer_than_any_certified_limit() -> None:
    for counted in ({"failed": 100}, {"censored": np.full(100, 0.001)}):
        gates = parse_gates("certified p90_ttft<1h")
        (result,) = evaluate(gates, summary(), observed=np.ones(900), **counted)
        assert (result["value"], result["passed"]) == (None, False)
        assert "failed or was given up" in result["reason"]


def test_only_upper_limits_on_percentiles_are_certified() -> None:
    for text in ("certified mean_ttft<1s", "certified p99_ttft>1s", "certified goodput>=95%", "certified"):
        assert "certified is followed by an upper limit on a percentile" in complaint(text)
    assert "unknown metric" in complaint("certified certified p99_ttft<1s")


def edge(text: str, **answer: Any) -> dict[str, Any]:
    known = {"load": None, "low": None, "high": None, "at_least": None, "why": "12 stages were allowed"}
    (found,) = evaluate(parse_gates(text), summary(search={"answer": {**known, **answer}}))
    return found


def test_a_gate_on_the_edge_is_on_the_lower_end_of_its_interval() -> None:
    assert edge("edge>=30", load=35.0, low=31.0, high=39.0)["passed"]
    found = edge("edge>=30", load=35.0, low=29.0, high=41.0)
    assert (found["passed"], found["value"], found["reason"]) == (False, 29.0, "29 is not >= 30")


def test_a_lower_bound_of_the_edge_passes_and_never_breaks_a_gate_for_sure() -> None:
    assert edge("edge>=30", at_least=32.0)["passed"]
    found = edge("edge>=30", at_least=16.0)
    assert not found["passed"]
    assert found["reason"] == "cannot tell: the edge is only known to be at least 16"


def test_an_edge_without_an_interval_and_a_run_without_a_search_hold_no_gate() -> None:
    assert "12 stages were allowed" in edge("edge>=30", load=99.0)["reason"]
    (found,) = evaluate(parse_gates("edge>=30"), summary())
    assert (found["passed"], found["reason"]) == (False, "cannot tell: the run is not a search (--find)")
    assert "write edge>=30" in complaint("edge<30")


@pytest.mark.parametrize("gate", ["p99_tpot<=1s", "output_tps>=10", "total_tps>=10", "goodput>=1%"])
def test_a_gate_on_tokens_says_that_they_are_not_the_servers_own(gate: str) -> None:
    """Its counts contradict the events that came: the gate is on what came."""
    goodput = {"ratio": 0.95, "judged": 100, "requests_per_s": 9.5, **NO_SLO, "slo": {"tpot": 50.0}}
    [odd] = evaluate(parse_gates(gate), summary(goodput=goodput, tokens={"faults": {"not_used": 0.5}}))
    assert odd["note"] == "tokens of 50 % of the answers by what came: the server's counts contradict them"
    [few] = evaluate(parse_gates(gate), summary(goodput=goodput, tokens={"faults": {"not_used": 0.001}}))
    assert (odd["passed"], few["note"]) == (True, None)


@pytest.mark.parametrize("gate", ["p99_ttft<=1s", "rps>=1", "goodput>=1%"])
def test_a_gate_that_needs_no_token_count_says_nothing_of_them(gate: str) -> None:
    [other] = evaluate(parse_gates(gate), summary(tokens={"faults": {"not_used": 1.0}}))
    assert other["note"] is None


AT_ONCE: dict[str, Any] = {
    **dict.fromkeys(LATENCY, summarise_latency(SAMPLES)),
    "itl": summarise_latency(SAMPLES * 1e-6),
    "tpot": summarise_latency(SAMPLES * 1e-6),
}

PACE = {"slo": {"tpot": 20.0}, "slo_by_class": {}}


@pytest.mark.parametrize("text", ["p95_tpot<20ms", "p50_itl<20ms", "goodput>=90%"])
def test_a_pace_of_answers_that_came_at_once_after_a_silence_is_not_the_servers(text: str) -> None:
    goodput = {"ratio": 0.95, "judged": 100, "requests_per_s": 9.5}
    tokens = {"faults": {"not_used": 0.0}, "output": {"p50": 40.0}}
    known = {"goodput": {**goodput, **PACE}, "tokens": tokens}
    observed = SAMPLES * 1e-6
    (found,) = evaluate(parse_gates(text), summary(latency_ms=AT_ONCE, **known), observed=observed)
    assert found["undecided"]
    assert "answers came at once, as from a buffer" in found["reason"]
    one_token = {**AT_ONCE, "itl": {**AT_ONCE["itl"], "p50": None}}
    few = {**known, "tokens": {**tokens, "output": {"p50": 1.0}}}
    streamed = {**AT_ONCE, "ttft": {**AT_ONCE["ttft"], "p50": 100.0}}
    for latency_ms, others in ((streamed, known), *([] if "itl" in text else [(one_token, few)])):
        (fair,) = evaluate(parse_gates(text), summary(latency_ms=latency_ms, **others), observed=observed)
        assert fair["passed"], fair


def complaint_of_slo(text: str) -> str:
    with pytest.raises(SloError) as caught:
        parse_slo(text)
    return str(caught.value)


def test_limits_are_in_seconds_whatever_their_unit() -> None:
    assert parse_slo("ttft=500ms tpot=50000us e2el=10s ttft_scheduled=0.5m") == Slo(
        ttft_s=0.5, tpot_s=0.05, e2el_s=10.0, ttft_scheduled_s=30.0
    )


def test_a_limit_on_what_is_no_latency_is_refused_with_its_name() -> None:
    with pytest.raises(TypeError, match="ttff_s"):
        Slo(ttff_s=1.0)


def test_commas_and_spaces_around_the_sign_are_allowed() -> None:
    assert parse_slo(" ttft = 500ms,tpot= 50ms ,") == Slo(ttft_s=0.5, tpot_s=0.05)


def test_no_text_is_no_limit_and_false() -> None:
    assert not parse_slo("  ")
    assert parse_slo("e2el=1s")


def test_an_unknown_metric_is_pointed_at_with_its_place_and_the_nearest_name() -> None:
    message = complaint_of_slo("ttft=500ms tpt=50ms")
    assert message.startswith('SLO: at character 12, "tpt": unknown metric; did you mean "tp')
    assert all(metric in message for metric in SLO_METRICS)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("ttft=500", 'at character 6, "500": a number without a unit: add one, as 500ms or 500s'),
        (
            "ttft=500ms tpot=50day",
            'at character 17, "50day": unknown unit "day": write one of ns, us',
        ),
        ("ttft=fast", 'at character 6, "fast": not a duration'),
        ("ttft=-5ms", 'at character 6, "-5ms": not a duration'),
        ("ttft=nan", "not a duration"),
        ("ttft=0ms", 'at character 6, "0ms": a limit must be above 0'),
        ("ttft=", "at character 6: no limit; write ttft=500ms"),
        ("ttft tpot=50ms", "at character 5: write a limit as ttft=500ms"),
        ("ttft<500ms", 'at character 5, "<": write a limit as ttft=500ms'),
        ("=500ms", 'at character 1, "=": no metric before it'),
        ("ttft=1s tpot=1s ttft=2s", 'at character 17, "ttft": is there twice'),
        ("ttft=" + "9" * 400 + "s", "too long"),
        ("TTFT=1s", 'did you mean "ttft"?'),
        ("itl=50ms", "unknown metric"),
    ],
)
def test_each_mistake_says_where_it_is_and_what_to_do_of_slo(text: str, part: str) -> None:
    assert part in complaint_of_slo(text)


@given(st.text(st.sampled_from("tfpoe2l_s=<>! ,.05m\n") | st.characters(), max_size=30))
def test_any_text_is_an_slo_or_one_line_of_complaint(text: str) -> None:
    message = ""
    try:
        limits = parse_slo(text).limits
    except SloError as e:
        message, limits = str(e), {}
    assert len(message.splitlines()) <= 1
    assert all(limit > 0 for limit in limits.values())


@given(st.dictionaries(st.sampled_from(SLO_METRICS), st.integers(1, 10**6)))
def test_what_is_written_is_what_is_read(limits_ms: dict[str, int]) -> None:
    text = " ".join(f"{metric}={ms}ms" for metric, ms in limits_ms.items())
    assert parse_slo(text).limits == pytest.approx({m: ms / 1000 for m, ms in limits_ms.items()})


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), float("inf")])
def test_a_limit_made_in_python_has_to_be_a_number_above_0(limit: float) -> None:
    with pytest.raises(SloError, match=r"the limit of tpot is .* s; it must be above 0"):
        Slo(tpot_s=limit)
