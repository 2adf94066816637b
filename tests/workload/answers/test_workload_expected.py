"""Expected answers: which answers are right, in the forms that models write them."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from llm_locust.workload.answers import (
    ExpectedError,
    choice_of,
    expected_answer,
    is_correct,
    normalised,
    number_of,
)
from llm_locust.workload.datasets.load import load_dataset
from llm_locust.workload.datasets.row import DatasetError


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("B", "B"),
        ("b", "B"),
        (" (B) ", "B"),
        ("**B**", "B"),
        ("B.", "B"),
        ("`C`", "C"),
        ("Answer: B", "B"),
        ("answer: (B)", "B"),
        ("The answer is B.", "B"),
        ("The correct answer is **D**, because A is too small.", "D"),
        ("Final Answer: $\\boxed{E}$", "E"),
        ("The answer is option C.", "C"),
        ("A is wrong. **Answer:** B", "B"),
        ("The answer is A. No, wait: the answer is B.", "B"),
        ("B) Paris", "B"),
        ("C. Because it is warmer", "C"),
        ("I think it is (D) since the others are too large", "D"),
        ("Both fit, but **A. Paris** fits better", "A"),
        ("Let us see.\n\\boxed{C}", "C"),
        ("I would choose option D here", "D"),
        ("Thinking it over,\nB\n", "B"),
        ("A good question that nobody can answer", None),
        ("The answer is a matter of taste", None),
        ("The answer is Berlin", None),
        ("F", None),
        ("", None),
    ],
)
def test_a_choice_is_found_in_the_usual_forms(answer: str, letter: str | None) -> None:
    assert choice_of(answer) == letter


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("42", 42),
        ("3 + 4 = 7", 7),
        ("The total is $1,234.50.", 1234.5),
        ("1,000,000 people", 1_000_000),
        ("12 345 km", 345),
        ("12\u202f345 km", 12_345),
        ("about 5kg", 5),
        ("50%", 50),
        ("-3.5 °C", -3.5),
        ("−7", -7),
        (".5", 0.5),
        ("6.02e23 per mol", 6.02e23),
        ("between 10-20", 20),
        ("\\boxed{17}", 17),
        ("x=3.", 3),
        ("choose 1, 2 or 3", 3),
        ("1,2345", 2345),
        ("9 bottles of H2O", 9),
        ("none at all", None),
        ("", None),
    ],
)
def test_the_last_number_counts_whatever_stands_around_it(answer: str, number: float | None) -> None:
    assert number_of(answer) == number


@given(st.floats(allow_nan=False, allow_infinity=False, width=32), st.sampled_from(["", " km", "%", "."]))
def test_a_number_that_is_written_is_read_back(value: float, unit: str) -> None:
    assert number_of(f"so it is {value!r}{unit}") == value


@pytest.mark.parametrize("answer", ["Paris", " paris.\n", "**Paris**", '"PARIS"', "“Ｐaris”"])
def test_exact_forgives_case_white_space_and_what_stands_around(answer: str) -> None:
    assert is_correct(answer, expected_answer("Paris")) is True


@pytest.mark.parametrize("answer", ["Paris, France", "Pari s", ""])
def test_exact_forgives_nothing_else(answer: str) -> None:
    assert is_correct(answer, expected_answer("Paris", "exact")) is False


@given(st.text(max_size=30))
def test_a_normalised_text_stays_as_it_is(text: str) -> None:
    assert normalised(normalised(text)) == normalised(text)


@pytest.mark.parametrize(
    ("value", "kind", "answer", "right"),
    [
        ({"choice": "b"}, None, "Answer: B", True),
        ("(B)", "choice", "Answer: C", False),
        ("B", "choice", "no idea", False),
        (7, "number", "it is 7.0 apples", True),
        ("1,234 km", "number", "1234", True),
        (0.1, "number", "0.10000001", True),
        (0.1, "number", "0.1001", False),
        (0, "number", "0", True),
        (7, "number", "seven", False),
        ({"regex": r"(?i)\bparis\b"}, "exact", "It is PARIS!", True),
        ({"regex": r"^paris$"}, None, "It is paris", False),
        (42, None, "42", True),
    ],
)
def test_an_answer_is_held_against_the_lines_kind_else_the_classs(
    value: Any, kind: str | None, answer: str, right: bool
) -> None:
    assert is_correct(answer, expected_answer(value, kind)) is right


def test_a_pattern_that_is_given_up_tells_neither_right_nor_wrong() -> None:
    assert is_correct("a" * 200 + "b", expected_answer({"regex": r"^(a|aa)+$"})) is None


@pytest.mark.parametrize(
    ("value", "kind", "error"),
    [
        ({"exact": "a", "regex": "b"}, None, "one key, of exact, choice, number, regex"),
        ({"letter": "a"}, None, "kind 'letter': there are exact, choice, number, regex"),
        ("a", "letter", "kind 'letter'"),
        ("F", "choice", "a letter from A to E"),
        ("AB", "choice", "a letter from A to E"),
        ("many", "number", "a finite number"),
        (float("nan"), "number", "a finite number"),
        ("(", "regex", "expected a regular expression"),
        (".", "exact", "nothing is left of it to compare"),
        ([1], None, "a text or a number"),
        (True, None, "a text or a number"),
        (None, None, "a text or a number"),
    ],
)
def test_an_expected_answer_that_nothing_can_equal_is_refused(
    value: Any, kind: str | None, error: str
) -> None:
    with pytest.raises(ExpectedError) as raised:
        expected_answer(value, kind)
    assert error in str(raised.value)


@given(st.text(max_size=200))
def test_any_answer_can_be_held_against_any_kind(answer: str) -> None:
    for value, kind in (("x", "exact"), ("B", "choice"), (3, "number"), ("x+", "regex")):
        assert is_correct(answer, expected_answer(value, kind)) in (True, False)


def test_a_datasets_line_carries_its_expected_answer_and_does_not_send_it(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"prompt": "1 + 1?", "expected": {"number": 2}}\n{"prompt": "a?", "expected": "b"}\n')
    table = tmp_path / "table.csv"
    table.write_text("prompt,expected\n1 + 1?,2\na?,\n")
    one, other = load_dataset(lines).prompts
    assert (one.expected, other.expected) == ({"number": 2}, "b")
    assert "expected" not in one.extra
    assert [prompt.expected for prompt in load_dataset(table).prompts] == ["2", None]


def test_an_expected_answer_of_no_known_kind_names_its_line(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text('"fine"\n{"prompt": "a?", "expected": {"letter": "b"}}\n')
    with pytest.raises(DatasetError, match=r"lines\.jsonl:2: .*there are exact, choice, number, regex"):
        load_dataset(lines)
