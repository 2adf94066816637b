"""SLO texts, durations, and messages that point at the wrong word."""

import pytest
from hypothesis import given, strategies as st

from llm_locust.metrics.gates import SLO_METRICS, Slo, SloError, parse_slo


def complaint(text: str) -> str:
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
    message = complaint("ttft=500ms tpt=50ms")
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
def test_each_mistake_says_where_it_is_and_what_to_do(text: str, part: str) -> None:
    assert part in complaint(text)


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
