"""What a plan may say."""

import contextlib
import json
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from hypothesis import given, strategies as st

from llm_locust.sim.faults import Action, PlanError, PlanStep, check_plan, parse_factor, parse_plan

S = 1_000_000_000
EXAMPLE = "10s kill 2; 20s start 2; 30s slow 1 3x; 40s normal 1; 50s drain 0"
#: What is written in 300 characters and is a million values long.
ALIASES = "- &a [x, x]\n" + "".join(f"- &{b} [*{a}, *{a}]\n" for a, b in pairwise("abcdefghijklmnopqrst"))
STEPS = (
    PlanStep(10 * S, Action.KILL, 2),
    PlanStep(20 * S, Action.START, 2),
    PlanStep(30 * S, Action.SLOW, 1, 3.0),
    PlanStep(40 * S, Action.NORMAL, 1),
    PlanStep(50 * S, Action.DRAIN, 0),
)


def test_a_plan_is_steps_in_words() -> None:
    assert parse_plan(EXAMPLE) == STEPS


def test_steps_are_in_order_of_time_however_they_are_written() -> None:
    assert parse_plan(" 20s start 2;\n10s   kill 2 ;; ") == STEPS[:2]


def test_steps_of_one_time_keep_the_order_in_which_they_are_written() -> None:
    assert [step.replica for step in parse_plan("1s kill 2; 1s kill 0; 1s kill 1")] == [2, 0, 1]


@pytest.mark.parametrize("name", ["plan.yaml", "plan.yml", "plan.json"])
def test_a_file_says_the_same_as_words(tmp_path: Path, name: str) -> None:
    items = [
        {"at": "30s", "action": "slow", "replica": 1, "factor": "3x"},
        {"at": "10s", "action": "kill", "replica": 2},
        {"at": "40s", "action": "normal", "replica": "1"},
    ]
    path = tmp_path / name
    path.write_text(json.dumps(items) if name.endswith("json") else yaml.safe_dump(items))
    assert parse_plan(str(path)) == (STEPS[0], STEPS[2], STEPS[3])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("10s kil 2", "word 2 of the plan, 'kil': there is no action 'kil'; did you mean 'kill'?"),
        ("10s explode 2", "there is no action 'explode'; known: kill, start, drain, slow, normal"),
        (
            "1s kill 2; soon start 2",
            "word 4 of the plan, 'soon': a step begins with its time: 'soon': not a",
        ),
        ("10 kill 2", "word 1 of the plan, '10': a step begins with its time: '10': a number without a unit"),
        ("10s kill", "word 2 of the plan, 'kill': the step ends too early; write such as '10s kill 2'"),
        ("10s kill x2", "word 3 of the plan, 'x2': 'x2' is not the number of a replica"),
        ("10s kill -1", "'-1' is not the number of a replica: they count from 0"),
        ("10s kill 2 20s start 2", "word 4 of the plan, '20s': nothing follows 'kill 2'; put ';'"),
        ("10s slow 2", "word 3 of the plan, '2': 'slow 2' needs a factor, such as 3x"),
        ("10s slow 2 fast", "word 4 of the plan, 'fast': 'fast' is not a factor from 0.001 to 1000"),
        ("10s slow 2 0x", "'0x' is not a factor"),
        ("10s slow 2 3x 4", "word 5 of the plan, '4': nothing follows the factor"),
        ("nowhere/plan.yaml", "plan nowhere/plan.yaml: cannot be read: No such file or directory"),
    ],
)
def test_a_bad_plan_is_one_line_that_points_at_the_word(text: str, says: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse_plan(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("10s: kill", "must be a list of steps"),
        ("[", "broken YAML"),
        ('- "\\U99999999"', "broken YAML"),
        (ALIASES, "more than 10,000 values"),
        ("- kill", "step 1, 'kill': must map at, action, replica, factor to values"),
        ("- {at: 1s, action: kill, replika: 0}", "there is no key 'replika'; did you mean 'replica'?"),
        ("- {at: 1s, action: kill}", "step 1: has no 'replica'"),
        (
            "- {at: 1, action: kill, replica: 0}",
            "step 1, at: a step begins with its time: '1': a number",
        ),
        ("- {at: 1s, action: kill, replica: 0, factor: 3x}", "step 1: kill takes no factor"),
        ("- {at: 1s, action: slow, replica: 0}", "step 1: slow needs a factor"),
    ],
)
def test_a_bad_file_is_one_line_with_its_name_and_step(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(content)
    with pytest.raises(PlanError) as caught:
        parse_plan(str(path))
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_plan_whose_steps_fit_each_other_passes() -> None:
    check_plan(parse_plan(EXAMPLE), 3)
    check_plan(parse_plan("1s drain 0; 2s kill 0; 3s start 0; 4s kill 0; 5s slow 0 2x"), 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("10s kill 4", "word 2 of the plan, 'kill': there is no replica 4; there are 0 to 3"),
        ("10s start 1", "at 10 s replica 1 serves already: kill or drain it before"),
        ("20s kill 1; 10s kill 1", "word 2 of the plan, 'kill': at 20 s replica 1 is dead already"),
        ("1s kill 1; 2s start 1; 3s start 1", "at 3 s replica 1 serves already"),
        ("1s kill 1; 2s drain 1", "at 2 s replica 1 serves no more: start it before"),
    ],
)
def test_steps_that_cannot_be_done_are_told_before_the_start(text: str, says: str) -> None:
    with pytest.raises(PlanError) as caught:
        check_plan(parse_plan(text), 4)
    assert says in str(caught.value)


@pytest.mark.parametrize(("text", "factor"), [("3x", 3.0), ("3", 3.0), ("0.5x", 0.5), (".5", 0.5)])
def test_a_factor_is_a_number_with_or_without_an_x(text: str, factor: float) -> None:
    assert parse_factor(text) == factor


@given(st.text() | st.text(alphabet="0123456789smx;kildranowtup .\n"))
def test_no_text_raises_another_error(text: str) -> None:
    with contextlib.suppress(PlanError):
        check_plan(parse_plan(text), 2)
