"""Validators and expected answers: what they let pass, what they refuse; none holds the event loop."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from llm_locust.workload.answers import (
    REPETITION_WORDS,
    ExpectedError,
    Validator,
    ValidatorError,
    check_of,
    checks_of,
    choice_of,
    expected_answer,
    is_correct,
    normalised,
    number_of,
    repetition,
)
from llm_locust.workload.datasets import DatasetError, load_dataset
from llm_locust.workload.prompts import WORDS, Prompt

# --- Validators: what they let pass, what they refuse, and that none of them holds the event loop


PROSE = " ".join(WORDS[i * 37 % len(WORDS)] for i in range(len(WORDS)))
PERSON = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
}


def why_not(kind: str, argument: Any, text: str) -> str | None:
    return check_of(Validator(kind, argument)).why_not(text, None)


def own(answer: str, prompt: Prompt | None) -> bool | str:
    """What a user writes: an answer has to repeat its prompt."""
    if prompt is None:
        return True
    return prompt.text in answer if prompt.text else "no text was asked"


@pytest.mark.parametrize(
    ("kind", "argument", "text"),
    [
        ("regex", r"\b\d{4}\b", "in 1969 it was"),
        ("regex", r"^yes", "yes, sir"),
        ("contains", "Paris", "It is Paris."),
        ("contains", ("Paris", "France"), "Paris, in France"),
        ("json_schema", PERSON, '{"name": "Ada", "age": 36}'),
        ("json_schema", PERSON, ' {"name": "Ada"}\n'),
        ("max_repetition", 0.2, PROSE),
        ("max_repetition", 0.0, "one two three"),
        ("max_repetition", 1, "so " * 500),
    ],
)
def test_an_answer_that_holds_passes(kind: str, argument: Any, text: str) -> None:
    assert why_not(kind, argument, text) is None


@pytest.mark.parametrize(
    ("kind", "argument", "text", "why"),
    [
        ("regex", r"^\d+$", "about 5", "not found in the answer"),
        ("contains", ("Paris", "France"), "Paris", "'France' is not in the answer"),
        ("json_schema", PERSON, '{"age": 3}', "does not fit the schema at /required"),
        ("json_schema", PERSON, '{"name": "Ada", "age": -1}', "at /properties/age/minimum"),
        ("json_schema", PERSON, "here you are: {}", "the answer is not JSON"),
        ("json_schema", PERSON, "", "the answer is not JSON"),
        ("json_schema", PERSON, "[" * 50_000, "the answer is not JSON"),
        ("max_repetition", 0.5, "and so on " * 50, "over 50% of the answer is repetition"),
    ],
)
def test_an_answer_that_does_not_hold_is_told_why(kind: str, argument: Any, text: str, why: str) -> None:
    told = why_not(kind, argument, text)
    assert told is not None
    assert why in told


@pytest.mark.parametrize(
    ("kind", "argument", "error"),
    [
        ("rgx", "a", "no validator 'rgx'; there are regex, contains"),
        ("regex", "(", "expected a regular expression"),
        ("regex", 5, "expected a regular expression as text"),
        ("contains", (), "expected a text, or a list of texts"),
        ("contains", ("a", 1), "expected a text, or a list of texts"),
        ("json_schema", "{}", "expected a JSON schema as a mapping"),
        ("json_schema", {"type": "thing"}, "expected a JSON schema"),
        ("json_schema", {"$ref": "http://127.0.0.1:9/x.json"}, "is not fetched"),
        ("max_repetition", 1.5, "expected a share from 0 to 1"),
        ("max_repetition", True, "expected a share from 0 to 1"),
        ("max_repetition", float("nan"), "expected a share from 0 to 1"),
        ("function", "own", "expected module:function"),
        ("function", "no_such_module_here:f", "importing 'no_such_module_here' failed"),
        ("function", "json:no_such", "has no function 'no_such'"),
    ],
)
def test_a_validator_that_cannot_be_used_is_said_in_one_line(kind: str, argument: Any, error: str) -> None:
    with pytest.raises(ValidatorError) as raised:
        check_of(Validator(kind, argument))
    assert error in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_function_of_the_users_own_gets_answer_and_prompt() -> None:
    for check in checks_of([own, Validator("function", f"{__name__}:own")]):
        assert check.why_not("you said hello", Prompt(text="hello")) is None
        assert check.why_not("what?", Prompt(text="hello")) == "said no"
        assert check.why_not("what?", Prompt(messages=({"role": "user", "content": "x"},))) == (
            "no text was asked"
        )


@pytest.mark.parametrize("returned", [None, 1, [], 0.5])
def test_a_function_that_returns_neither_truth_nor_text_is_an_error(returned: Any) -> None:
    with pytest.raises(TypeError, match="a validator returns True, False or a text"):
        check_of(lambda answer, prompt: returned).why_not("a", None)


def test_what_is_no_function_is_no_validator() -> None:
    with pytest.raises(ValidatorError, match="expected a Validator, or a function"):
        check_of("own")  # type: ignore[arg-type]


def test_repetition_is_the_share_of_4_grams_that_came_before() -> None:
    # a b c d a b c d e: of six 4-grams (abcd bcda cdab dabc abcd bcde) one came before.
    assert repetition("a b c d a b c d e") == pytest.approx(1 / 6)
    assert repetition("a a a a a") == pytest.approx(1 / 2)
    assert repetition("a b c") is None
    assert repetition("") is None


@given(st.lists(st.sampled_from("abc"), min_size=4, max_size=60))
def test_repetition_agrees_with_counting(words: list[str]) -> None:
    grams = ["".join(words[i : i + 4]) for i in range(len(words) - 3)]
    again = sum(gram in grams[:i] for i, gram in enumerate(grams))
    assert repetition(" ".join(words)) == pytest.approx(again / len(grams))


def test_an_answer_that_ends_in_a_circle_is_found_out_however_long_it_began_well() -> None:
    well = " ".join(map(str, range(100_000)))
    assert repetition(well) == 0
    assert (repetition(well + " and so on" * REPETITION_WORDS) or 0) > 0.99


@pytest.mark.parametrize("pattern", [r"^(\w+\s?)*!$", r"(a|aa)+$", r"(a*)*b", r"(?=(a+)+$)x"])
def test_a_catastrophic_pattern_gives_up_in_milliseconds(pattern: str) -> None:
    check = check_of(Validator("regex", pattern))
    text = "a" * 50_000 + " and more"
    started = time.process_time()
    told = check.why_not(text, None)
    assert time.process_time() - started < 0.05
    assert told is not None


def test_a_pattern_that_was_given_up_is_rejected_with_what_to_do() -> None:
    told = why_not("regex", r"^(a|aa)+$", "a" * 200 + "b")
    assert told == "gave up after 2 ms; write a pattern that backtracks less"


LONG_TEXT = (PROSE + " ") * 13
LONG_JSON = json.dumps({"people": [{"name": f"n{i}", "age": i} for i in range(3_400)]})


@pytest.mark.parametrize(
    ("kind", "argument", "text", "tenth"),
    [
        ("regex", "no such words", LONG_TEXT, LONG_TEXT[: len(LONG_TEXT) // 10]),
        ("contains", "no such words", LONG_TEXT, LONG_TEXT[: len(LONG_TEXT) // 10]),
        ("max_repetition", 0.5, LONG_TEXT, LONG_TEXT[: len(LONG_TEXT) // 10]),
        (
            "json_schema",
            {"properties": {"people": {"type": "array", "items": PERSON}}},
            LONG_JSON,
            json.dumps({"people": json.loads(LONG_JSON)["people"][:340]}),
        ),
    ],
)
def test_an_answer_of_90_kb_takes_ten_times_as_long_as_one_of_9(
    kind: str, argument: Any, text: str, tenth: str
) -> None:
    """Measured: 0.03 to 0.7 ms for 90 kB. An algorithm that is not linear in the length takes longer."""
    assert len(text) > 80_000
    check = check_of(Validator(kind, argument))

    def took_s(text: str, times: int) -> float:
        started = time.process_time()
        for _ in range(times):
            check.why_not(text, None)
        return time.process_time() - started

    assert min(took_s(text, 10) for _ in range(5)) < 4 * min(took_s(tenth, 100) for _ in range(5))


# --- Expected answers: which answers are right, in the forms that models write them


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
