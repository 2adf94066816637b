"""The live view against the records, in words."""

from typing import Any

import msgspec

from llm_locust.figures.live_check import LiveCheck, remarks as live_check
from llm_locust.figures.section import Tone

LARGEST = {"metric": "ttft", "place": "p99", "live_ms": 105.0, "exact_ms": 100.0, "difference": 0.05}


def check(**part: Any) -> LiveCheck:
    known: dict[str, Any] = {"within": True, "reason": None, "unequal": [], "largest": LARGEST}
    rest = {"relative_error": 0.01, "requests": {"live": 9, "records": 9}, "latency_ms": {}}
    return msgspec.convert(known | rest | part, LiveCheck)


def told(**part: Any) -> tuple[str, Tone]:
    (line,) = live_check(check(**part))
    return line.text, line.tone


def test_what_is_within_the_stated_error_is_said_faintly() -> None:
    assert told(largest=LARGEST | {"difference": 0.0042}) == (
        "live percentiles matched the records to within 0.42 %",
        Tone.FAINT,
    )


def test_what_is_beyond_it_is_a_warning_with_the_percentile_that_is_furthest_off() -> None:
    assert told(within=False) == (
        "live percentiles differ from the records by 5.0 % (p99 TTFT: live 105, records 100 ms)",
        Tone.WARN,
    )


def test_other_samples_are_a_warning() -> None:
    text, tone = told(within=False, unequal=["tpot"])
    assert (text, tone) == (
        "the live view and the records have different numbers of samples: tpot",
        Tone.WARN,
    )


def test_what_could_not_be_compared_has_its_reason_and_is_no_alarm() -> None:
    text, tone = told(within=None, reason="the live figures cover 3 fewer requests", largest=None)
    assert text == "live percentiles not compared: the live figures cover 3 fewer requests"
    assert tone is Tone.FAINT


def test_without_a_check_or_a_sample_nothing_is_said() -> None:
    assert not [*live_check(None), *live_check(check(largest=None))]
