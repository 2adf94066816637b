"""``report.md``, as a pull request shows it; numbers and foreign text as reports print them."""

import math
import re
import unicodedata
from functools import cache
from typing import Any

import pytest
from hypothesis import given, strategies as st
from report_cases import lost_records, manifest, records, summary, told
from summaries import typed

from llm_locust.core.manifest import PipelineFacts
from llm_locust.core.record import Outcome
from llm_locust.figures.text import after, clean, count, moment, number, percent, seconds, short
from llm_locust.report.markdown import markdown as in_markdown

#: A bar that ends a cell: GFM takes one with a backslash for text, in code spans too.
BAR = re.compile(r"(?<!\\)\|")


def markdown(summary: dict[str, Any]) -> str:
    return in_markdown(typed(summary))


def tables(text: str) -> list[list[str]]:
    """The tables of a Markdown text, each as its lines."""
    blocks = (block.split("\n") for block in text.strip().split("\n\n"))
    return [lines for lines in blocks if lines[0].startswith("|")]


def table_of(text: str, head: str) -> list[list[str]]:
    """The rows of the table whose first head is ``head``, as stripped cells."""
    lines = next(lines for lines in tables(text) if lines[0].startswith(f"| {head}"))
    return [[cell.strip() for cell in BAR.split(line)[1:-1]] for line in lines[2:]]


@cache
def of_one_error() -> dict[str, Any]:
    return summary(records(bad=0) + records(ok=1, bad=0, outcome=Outcome.INVALID, error="placeholder"))


def with_error(message: str) -> dict[str, Any]:
    return of_one_error() | {"errors": [of_one_error()["errors"][0] | {"message": message}]}


def test_commit_pipeline_and_command_are_those_of_the_manifest() -> None:
    pipeline = PipelineFacts(commit="0123456789abcdef", url="https://ci.example/job/7")
    known = manifest(1, pipeline=pipeline, command=["locust", "--gate", "a b`c"])
    text = in_markdown(told(), None, known)
    assert "commit `0123456789ab`  \n[pipeline](<https://ci.example/job/7>) · [report.html]" in text
    assert "\n\n``locust --gate 'a b`c'``\n\n" in text


def test_torn_files_and_lost_requests_are_in_the_alert() -> None:
    text = markdown(summary(workers=lost_records(100, 7), torn=["a|b: at byte 1"]))
    assert (
        "> 7 requests without a record (lost): they count as not good, and are in no other number  " in text
    )
    assert "> `torn: a|b: at byte 1`  " in text


def test_text_from_outside_stands_in_code_spans() -> None:
    message = "@team <script>alert(1)</script> **b** [x](http://y) #1"
    assert table_of(markdown(with_error(message)), "Errors")[0][-1] == f"`{message}`"


def test_backticks_cannot_end_a_code_span() -> None:
    assert table_of(markdown(with_error("a `` b ` c")), "Errors")[0][-1] == "```a `` b ` c```"
    assert table_of(markdown(with_error("`a`")), "Errors")[0][-1] == "`` `a` ``"


@given(st.text(max_size=40))
def test_no_error_text_breaks_its_table(message: str) -> None:
    text = markdown(with_error(message))
    lines = next(lines for lines in tables(text) if lines[0].startswith("| Errors"))
    assert len(lines) == 3
    assert len(BAR.findall(lines[2])) == len(BAR.findall(lines[0]))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.000123, "0.00012"),
        (0.01234, "0.0123"),
        (0.9996, "1.00"),
        (1, "1.00"),
        (9.996, "10.0"),
        (99.96, "100"),
        (1234.6, "1,235"),
        (-3.456, "-3.46"),
        (math.inf, "∞"),
        (math.nan, "–"),
        (None, "–"),
    ],
)
def test_numbers_have_three_digits_or_their_whole_integer_part(value: float | None, text: str) -> None:
    assert number(value) == text


@given(st.floats(1e-3, 1e12))
def test_a_number_is_within_half_a_unit_of_its_third_digit(value: float) -> None:
    assert float(number(value).replace(",", "")) == pytest.approx(value, rel=0.00501)


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0, "0 %"),
        (1, "100 %"),
        (0.5, "50.0 %"),
        (0.0012, "0.12 %"),
        (1e-7, "<0.001 %"),
        (0.99996, "99.996 %"),
        (1 - 1e-9, ">99.999 %"),
        (None, "–"),
        (math.nan, "–"),
    ],
)
def test_a_share_is_written_as_per_cent(ratio: float | None, text: str) -> None:
    assert percent(ratio) == text


@given(st.integers(1, 10**7), st.integers(1, 10**7))
def test_only_all_is_100_per_cent_and_only_none_is_0(part: int, rest: int) -> None:
    text = percent(part / (part + rest))
    assert float(text.strip("<>% ")) not in (0.0, 100.0)


def test_counts_have_separators_and_spans_their_units() -> None:
    assert count(1234567) == "1,234,567"
    assert [seconds(s) for s in (58.2, 725, 93_780)] == ["58.2 s", "12 min 5 s", "26 h 3 min"]
    assert [count(None), seconds(math.nan)] == ["–", "–"]


def test_times_of_a_run_are_told_from_its_start() -> None:
    assert after("2026-11-21T09:30:05.100000Z", "2026-11-21T09:30:02Z") == "+3.10 s"
    assert after("2026-11-21T09:30:01Z", "2026-11-21T09:30:02Z") == "-1.00 s"
    assert moment("2026-11-21T10:30:02.5+01:00") == "2026-11-21 09:30:02 UTC"


def test_escape_sequences_go_as_a_whole() -> None:
    assert clean("\x1b[1;31mfull\x1b[0m \x1b]8;;http://x\x07link\x1b]8;;\x1b\\") == "full link"


def test_letters_of_every_script_stay() -> None:
    text = "żółć 模型 नमस्ते 👩\u200d💻"
    assert clean(text) == text


@given(st.text(st.characters(), max_size=60))
def test_clean_text_is_one_line_that_a_terminal_takes_as_it_is(text: str) -> None:
    cleaned = clean(text)
    assert cleaned == " ".join(cleaned.split())
    shown = cleaned.replace("\u200c", "").replace("\u200d", "")
    assert not [c for c in shown if unicodedata.category(c).startswith("C")]
    assert clean(cleaned) == cleaned


def test_what_is_cut_says_so() -> None:
    assert short("abcdef", 6) == "abcdef"
    assert short("abcdefg", 6) == "abcde…"
