"""Headers with the limits of a class: what they say, and what contradicts them."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from parsed_settings import settings, settings_of

from llm_locust.options.settings import UsageError, parse_settings
from llm_locust.scenario.request_kind import parse_prefix, slo_headers

CLASSES = """
slo: {ttft: 2s, e2el: 30s}
slo_headers: x-llm-d-slo-
classes:
  chat: {slo: {ttft: 350ms, tpot: 12.5ms}}
  batch: {}
  free: {slo: {e2el: 60s}}
"""


def test_each_class_names_its_own_limits_or_else_those_of_the_run() -> None:
    found = settings_of(CLASSES)
    assert found.slo_headers("chat") == {"x-llm-d-slo-ttft-ms": "350", "x-llm-d-slo-tpot-ms": "12.5"}
    assert found.slo_headers("batch") == {"x-llm-d-slo-ttft-ms": "2000"}
    assert found.slo_headers("free") == {}  # its limit is of neither
    assert found.text["slo_headers"] == "x-llm-d-slo-"


def test_the_command_line_alone_is_enough_and_without_the_option_nothing_is_sent() -> None:
    given = {"slo": "ttft=0.5s tpot=50ms", "slo_headers": "X-SLO"}
    found = settings(**given)
    assert found.slo_headers("") == {"x-slo-ttft-ms": "500", "x-slo-tpot-ms": "50"}
    assert settings(slo=given["slo"]).slo_headers("") == {}


@given(st.floats(1e-6, 1e5, allow_nan=False))
def test_a_limit_is_said_exactly_and_as_a_plain_number(limit_s: float) -> None:
    said = slo_headers("x-slo", {"ttft": limit_s})["x-slo-ttft-ms"]
    assert float(said) == pytest.approx(limit_s * 1e3, rel=1e-11)
    assert set(said) <= set("0123456789.e+-")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "no request has a limit for ttft or tpot; give one by --slo, or by the slo of a class"),
        ({"slo": "e2el=1s"}, "no request has a limit for ttft or tpot"),
        ({"slo": "ttft=1s", "header": ["X-Slo-TTFT-ms=9"]}, "the header 'X-Slo-TTFT-ms' is given too"),
        ({"slo": "ttft=1s", "slo_headers": "x: y"}, "no header name"),
        ({"slo": "ttft=1s", "slo_headers": "{session}"}, "no start of a header name"),
    ],
)
def test_what_cannot_be_said_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=f"^--slo-headers.*{why}"):
        parse_settings(argparse.Namespace(**{"slo_headers": "x-slo", **given}), {})


def test_a_header_of_a_class_or_an_arm_that_says_it_too_is_refused() -> None:
    text = "{slo: {ttft: 1s}, slo_headers: x-slo, %s}"
    for more in (
        "headers: {x-slo-tpot-ms: 5}",
        "host: 'http://h:1', arms: {a: , b: {headers: {x-slo-ttft-ms: 5}}}",
    ):
        with pytest.raises(UsageError, match="is given too"):
            settings_of(text % more)


def test_lines_of_a_dataset_that_are_judged_by_other_limits_are_refused(tmp_path: Path) -> None:
    lines = [{"prompt": "a"}, {"prompt": "b", "class": "batch"}]
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UsageError, match="a line of the dataset is of class 'batch', whose limits differ"):
        settings_of(CLASSES.replace("{slo: {ttft", f"{{dataset: '{file}', slo: {{ttft"))
    alike = CLASSES.replace("350ms, tpot: 12.5ms", "2s").replace(
        "{slo: {ttft", f"{{dataset: '{file}', slo: {{ttft"
    )
    assert settings_of(alike).slo_headers("chat") == {"x-llm-d-slo-ttft-ms": "2000"}


def test_a_prefix_loses_its_last_dash() -> None:
    assert parse_prefix(" X-Slo- ") == "x-slo"
