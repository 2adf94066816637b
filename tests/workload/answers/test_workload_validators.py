"""Validators: what they let pass, what they refuse, and that none of them holds the event loop."""

import json
import time
from typing import Any

import pytest
from hypothesis import given, strategies as st

from llm_locust.workload.answers import REPETITION_WORDS, ValidatorError, check_of, checks_of, repetition
from llm_locust.workload.parts import Validator
from llm_locust.workload.text.prompts import WORDS, Prompt

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
