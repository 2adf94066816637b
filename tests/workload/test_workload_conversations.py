"""What a person says in a conversation, and what of the turns before is sent again."""

from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, strategies as st

from llm_locust.workload.conversations import (
    AnsweredTurn,
    ConversationError,
    ConversationId,
    ConversationPlan,
    ShareGptConversation,
    ShareGptTurn,
    carry_on,
    drawn_script,
    exchange,
    manner,
    parse_plan,
    script_of,
    script_of_dialogue,
    turn_count,
    with_history,
)
from llm_locust.workload.draws import LengthError, TimesError, parse_lengths
from llm_locust.workload.plan import Workload, WorkloadSpec
from llm_locust.workload.prompts import Prompt
from llm_locust.workload.synthetic import SharedPrefix

PLACE = ConversationId(7, 0, 3, 0)


def said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def talked(carried: int | None, turns: int = 3) -> list[Prompt]:
    """The requests of a conversation of 10-token questions and 4-token answers."""
    past: tuple[AnsweredTurn, ...] = ()
    requests = []
    for k in range(turns):
        new = Prompt(text=f"q{k}", asked_input_tokens=10)
        requests.append(with_history(new, past))
        past = carry_on(past, exchange(new, f"a{k}", 4), carried)
    return requests


def test_the_first_turn_is_sent_as_it_is() -> None:
    assert talked(None)[0] == Prompt(text="q0", asked_input_tokens=10)


def test_a_full_history_is_all_that_was_asked_and_answered_in_order() -> None:
    assert talked(None)[2].messages == (
        *(said("user", "q0"), said("assistant", "a0")),
        *(said("user", "q1"), said("assistant", "a1")),
        said("user", "q2"),
    )


def test_a_history_of_the_last_turn_begins_with_its_question() -> None:
    assert talked(1)[2].messages == (said("user", "q1"), said("assistant", "a1"), said("user", "q2"))


def test_without_history_each_turn_stands_alone() -> None:
    assert talked(0) == [Prompt(text=f"q{k}", asked_input_tokens=10) for k in range(3)]


@pytest.mark.parametrize(
    ("carried", "asked"), [(None, [10, 24, 38, 52]), (0, [10] * 4), (2, [10, 24, 38, 38])]
)
def test_the_asked_length_has_what_is_carried_on(carried: int | None, asked: list[int]) -> None:
    assert [prompt.asked_input_tokens for prompt in talked(carried, 4)] == asked


def test_of_a_question_that_a_tokenizer_counted_its_count_is_carried_on() -> None:
    new = Prompt(text="q", asked_input_tokens=10, counted_input_tokens=11)
    later = with_history(Prompt(text="r", asked_input_tokens=10), [exchange(new, "a", 4)])
    assert later.asked_input_tokens == 25


@pytest.mark.parametrize(("asked", "answered"), [(None, 4), (10, None)])
def test_the_asked_length_is_not_known_where_a_part_is_not(asked: int | None, answered: int | None) -> None:
    past = [exchange(Prompt(text="q", asked_input_tokens=asked), "a", answered)]
    assert with_history(Prompt(text="r", asked_input_tokens=10), past).asked_input_tokens is None


def test_what_the_system_was_told_stands_first_whatever_is_carried_on() -> None:
    lead = (said("system", "be brief"),)
    assert with_history(Prompt(text="q"), (), lead).messages == (*lead, said("user", "q"))


@given(st.none() | st.integers(0, 5), st.integers(1, 8))
def test_roles_take_turns_and_the_user_has_the_last_word(carried: int | None, turns: int) -> None:
    messages = talked(carried, turns)[-1].messages or (said("user", ""),)
    assert [m["role"] for m in messages] == [
        ("user", "assistant")[i % 2]
        for i in range(1 + 2 * min(turns - 1, turns if carried is None else carried))
    ]


# Scripts


def test_each_message_of_a_user_is_a_turn_and_answers_of_the_line_are_left_out() -> None:
    tools: dict[str, Any] = {"tools": [{"type": "function"}]}
    line = Prompt(
        messages=(
            said("system", "s"),
            *(said("user", "a"), said("assistant", "b"), said("tool", "c"), said("user", "d")),
        ),
        extra=tools,
        asked_input_tokens=50,
        expected="42",
        id="x",
    )
    script = script_of(line)
    assert script.lead == (said("system", "s"),)
    assert [turn.messages for turn in script.turns] == [(said("user", "a"),), (said("user", "d"),)]
    assert [turn.expected for turn in script.turns] == [None, "42"]
    assert all((t.extra, t.id, t.asked_input_tokens) == (tools, "x", None) for t in script.turns)


@pytest.mark.parametrize(
    "line",
    [
        Prompt(text="a", asked_input_tokens=5),
        Prompt(messages=(said("system", "s"), said("user", "a"))),
        Prompt(messages=(said("system", "s"),)),
    ],
)
def test_a_line_of_one_question_is_one_turn_as_it_is(line: Prompt) -> None:
    assert script_of(line).turns == (line,)


DIALOGUES = tuple(
    ShareGptConversation(
        (ShareGptTurn(f"why {k}?", "so"), ShareGptTurn("and?")),
        system=None if k % 2 else "be brief",
        id=str(k),
    )
    for k in range(20)
)


def test_a_dialogue_keeps_its_questions_and_its_id() -> None:
    script = script_of_dialogue(DIALOGUES[0])
    assert script.lead == (said("system", "be brief"),)
    assert [(turn.text, turn.id) for turn in script.turns] == [("why 0?", "0"), ("and?", "0")]


@pytest.mark.parametrize(("number", "start"), [(0, "HEAD be brief"), (1, "HEAD why 1?")])
def test_a_head_stands_before_all_that_a_dialogue_says(number: int, start: str) -> None:
    script = script_of_dialogue(DIALOGUES[number], "HEAD")
    (first, *_) = with_history(script.turns[0], (), script.lead).messages or (
        said("user", script.turns[0].text or ""),
    )
    assert first["content"] == start


def test_dialogues_are_drawn_by_the_place_and_begin_as_in_no_other_run() -> None:
    drawn = [drawn_script(DIALOGUES, replace(PLACE, number=k), None) for k in range(200)]
    assert drawn == [drawn_script(DIALOGUES, replace(PLACE, number=k), None) for k in range(200)]
    assert {script.turns[0].id for script in drawn} == {d.id for d in DIALOGUES}
    assert drawn_script(DIALOGUES, PLACE, "one run") != drawn_script(DIALOGUES, PLACE, "another run")


# Turns and times


def test_the_plan_says_how_many_turns_there_are_up_to_what_there_is_to_say() -> None:
    plan = parse_plan(turns="uniform:3,8")
    counts = [turn_count(plan, replace(PLACE, number=k), 2) for k in range(300)]
    assert set(counts) == set(range(3, 9))
    assert {turn_count(plan, replace(PLACE, number=k), 2, most=4) for k in range(100)} == {3, 4}
    assert turn_count(ConversationPlan(), PLACE, 2) == 2


def test_a_user_thinks_and_waits_as_the_plan_says_and_otherwise_not_at_all() -> None:
    plan = parse_plan(think_time="uniform:1s,2s", patience="uniform:3s,4s")
    one, two = (manner(plan, replace(PLACE, number=k)) for k in range(2))
    thought = list(islice(one.think_s, 20))
    assert all(1 <= s <= 2 for s in thought)
    assert len(set(thought)) == 20
    assert thought == list(islice(manner(plan, PLACE).think_s, 20))
    assert one.patience_s != two.patience_s
    assert 3 <= (one.patience_s or 0) <= 4
    nothing = manner(ConversationPlan(), PLACE)
    assert (nothing.patience_s, list(islice(nothing.think_s, 2))) == (None, [0.0, 0.0])


@pytest.mark.parametrize("changed", [{"seed": 8}, {"worker": 1}, {"user": 4}, {"number": 1}])
def test_no_two_conversations_are_held_alike(changed: dict[str, int]) -> None:
    plan = parse_plan(think_time="exponential:1s", patience="exponential:1s")
    one, other = (manner(plan, place) for place in (PLACE, replace(PLACE, **changed)))
    assert one.patience_s != other.patience_s
    assert next(one.think_s) != next(other.think_s)


def test_follow_ups_have_the_asked_lengths_no_shared_prefix_and_are_all_different() -> None:
    spec = WorkloadSpec(
        input_tokens=parse_lengths("uniform:20,60"), shared_prefix=SharedPrefix(groups=1, tokens=200)
    )
    workload = Workload(spec, 7, 0, 2, "salt")
    prompts = list(islice(workload.follow_ups(PLACE), 40))
    assert prompts == list(islice(Workload(spec, 7, 0, 2, "salt").follow_ups(PLACE), 40))
    asked = [prompt.asked_input_tokens or 0 for prompt in prompts]
    assert 20 <= min(asked) < max(asked) <= 60
    words = [len((prompt.text or "").split()) for prompt in prompts]
    assert [n - w for n, w in zip(asked, words, strict=True)] == [8] * 40, "the template's tokens"
    elsewhere = list(islice(workload.follow_ups(replace(PLACE, user=4)), 40))
    assert len({prompt.text for prompt in prompts + elsewhere}) == 80


def test_a_follow_up_of_a_file_of_pairs_keeps_them_together(tmp_path: Any) -> None:
    file = tmp_path / "pairs.csv"
    file.write_text("30,3\n40,4\n")
    workload = Workload(WorkloadSpec(input_tokens=parse_lengths(f"file:{file}")), 7, 0, 1, "salt")
    pairs = {(p.asked_input_tokens, p.asked_output_tokens) for p in islice(workload.follow_ups(PLACE), 30)}
    assert pairs == {(30, 3), (40, 4)}


# Texts


@pytest.mark.parametrize(("text", "carried"), [("full", None), ("none", 0), ("last:3", 3)])
def test_a_history_policy_says_how_many_turns_are_carried_on(text: str, carried: int | None) -> None:
    assert parse_plan(history=text).carried == carried


@pytest.mark.parametrize("text", ["", "last", "last:0", "last:x", "last:-1", "all", "last:1.5"])
def test_another_policy_is_an_error_that_says_what_is_allowed(text: str) -> None:
    with pytest.raises(ConversationError, match=r"allowed are full, none, or last:N") as error:
        parse_plan(history=text)
    assert repr(text) in str(error.value)


def test_a_wrong_text_of_a_plan_is_its_grammars_error() -> None:
    with pytest.raises(LengthError):
        parse_plan(turns="0")
    for name in ("think_time", "patience"):
        with pytest.raises(TimesError):
            parse_plan(**{name: "5"})
    assert parse_plan(turns=parse_lengths("4")).turns == parse_lengths("4")
