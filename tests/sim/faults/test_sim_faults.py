import contextlib
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from llm_locust.sim.faults import FaultPlan, FaultPlanError, Refusal, http_status, parse_fault_plan


def test_a_plan_is_words_of_shares_and_a_refusal() -> None:
    plan = parse_fault_plan(" http_500=1%, reset=0.02  stall=.5%\nrefused=2s@10s ")
    assert plan == FaultPlan(
        (("http_500", 0.01), ("reset", 0.02), ("stall", 0.005)), Refusal(10_000_000_000, 2_000_000_000)
    )


def test_an_empty_plan_has_no_fault() -> None:
    assert parse_fault_plan("").pick(0.0) is None


def test_each_fault_gets_its_share_of_the_draws() -> None:
    plan = parse_fault_plan("http_429=10% garbage=25% cut=0%")
    picked = Counter(plan.pick(i / 1000) for i in range(1000))
    assert picked == {"http_429": 100, "garbage": 250, None: 650}


def test_shares_of_exactly_all_leave_no_request_whole() -> None:
    plan = parse_fault_plan("reset=50% cut=50%")
    assert {plan.pick(draw) for draw in (0.0, 0.4999, 0.5, 0.9999)} == {"reset", "cut"}


@pytest.mark.parametrize("name", ["plan.json", "plan.yaml", "plan.yml"])
def test_a_file_says_the_same_as_words(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(json.dumps({"http_503": 0.25, "slow": "3%", "refused": "1s@0"}))
    assert parse_fault_plan(str(path)) == parse_fault_plan("http_503=25% slow=3% refused=1s@0")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("reset=1% rest=1%", "word 2 of the fault plan, 'rest=1%': there is no fault 'rest'; did you"),
        ("http_302=1%", "there is no fault 'http_302'; did you mean"),
        ("earthquake=1%", "there is no fault 'earthquake'; known: close_before, reset, "),
        ("reset", "word 1 of the fault plan, 'reset': has no '='"),
        ("reset=often", "'often' is not a share; write 1% or 0.01"),
        ("reset=", "'' is not a share"),
        ("reset=5", "'5' is over 100%"),
        ("reset=60% cut=60%", "word 2 of the fault plan, 'cut=60%': the shares up to here are 1.2"),
        ("cut=1% cut=2%", "'cut' appears twice"),
        ("refused=1%", "must be a duration and a start, such as 2s@10s (refused closes the listening port"),
        ("refused=2s@soon", "'soon': not a duration"),
        ("nowhere/plan.yaml", "fault plan nowhere/plan.yaml: cannot be read: No such file"),
    ],
)  # fmt: skip
def test_a_bad_plan_is_one_line_that_points_at_the_word(text: str, says: str) -> None:
    with pytest.raises(FaultPlanError) as caught:
        parse_fault_plan(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("- reset", "must map faults to shares"),
        ("reset: [", "broken YAML"),
        ('reset: "\\U99999999"', "broken YAML"),
        ("[\n" * 1500, "broken YAML: too deep"),
        ("rest: 1%", "plan.yaml, key 'rest': there is no fault 'rest'"),
        ("reset:", "'None' is not a share"),
    ],
)
def test_a_bad_plan_file_is_one_line_with_the_files_name(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(content)
    with pytest.raises(FaultPlanError) as caught:
        parse_fault_plan(str(path))
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "status"), [("http_400", 400), ("http_599", 599), ("http_200", None), ("cut", None)]
)
def test_a_status_fault_names_its_status(fault: str, status: int | None) -> None:
    assert http_status(fault) == status


@given(st.text())
def test_no_text_raises_another_error(text: str) -> None:
    with contextlib.suppress(FaultPlanError):
        parse_fault_plan(text).pick(0.5)
