"""Trajectories: what readers make of files, marks, own answers, order, and possible prefix-cache hits."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from llm_locust.workload.trajectories.pool import (
    TrajectoryPool,
    load_pool,
    mark_of,
    possible_shares,
    shared_characters,
)
from llm_locust.workload.trajectories.trajectory import Trajectory, TrajectoryError, Turn, answered, marked

SYSTEM = {"role": "system", "content": "You are a careful agent."}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def file(folder: Path, *rows: Mapping[str, Any], name: str = "pool.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def line(of: str, *messages: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"conversation_id": of, "messages": [SYSTEM, *messages], **more}


def test_lines_of_one_conversation_are_its_turns_with_pauses_and_lengths(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "bash"}}]
    path = file(
        tmp_path,
        line("a", user("1"), tools=tools, target_output_tokens=7, simulated_tool_delay_ms_after=95.5),
        line("b", user("x"), max_tokens=3),
        line("a", user("1"), assistant("2"), user("3"), pause_ms_after=10),
    )
    a, b = load_pool(path)
    assert [(t.id, len(t.turns), t.index) for t in (a, b)] == [("a", 2, 0), ("b", 1, 1)]
    assert [turn.pause_s for turn in a.turns] == pytest.approx([0.0955, 0.01])
    assert (a.turns[0].asked_output_tokens, b.turns[0].asked_output_tokens) == (7, 3)
    assert a.turns[0].extra == {"tools": tools}
    # A history is held once, however many turns repeat it.
    assert a.turns[1].messages[1] is a.turns[0].messages[1]


def test_sub_agents_hang_on_the_turns_that_began_them(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        line("main", user("1")),
        line("main", user("1"), assistant("2"), user("3")),
        line("other", user("o")),
        line("left", user("l"), parent="main", after_turn=0),
        line("right", user("r"), parent="main", after_turn=0),
        line("inner", user("i"), parent="right", after_turn=0),
    )
    main, other = load_pool(path)
    left, right = main.turns[0].forks
    (inner,) = right.turns[0].forks
    assert [t.id for t in (left, right, inner)] == ["left", "right", "inner"]
    assert sorted(t.index for t in (main, other, left, right, inner)) == [0, 1, 2, 3, 4]
    assert main.turns[1].forks == other.turns[0].forks == ()


def test_files_of_one_name_in_two_folders_are_two_trajectories(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.jsonl").write_text(json.dumps({"messages": [user(name)]}) + "\n")
    (tmp_path / "top.jsonl").write_text(2 * (json.dumps({"messages": [user("top")]}) + "\n"))
    assert [(t.id, len(t.turns)) for t in load_pool(tmp_path)] == [("a/run", 1), ("b/run", 1), ("top", 2)]
    assert [t.id for t in load_pool(tmp_path / "a" / "run.jsonl")] == ["run"]


def test_rows_of_mlperf_become_the_requests_of_users_and_tools(tmp_path: Path) -> None:
    call = {"id": "c:0", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    path = file(
        tmp_path,
        {"conversation_id": "s", "turn": 1, "role": "user", "content": "go", "system": "be good"},
        {"conversation_id": "s", "turn": 2, "role": "assistant", "tool_calls": [call]},
        {
            "conversation_id": "s",
            "turn": 3,
            "role": "tool",
            "delay_seconds": 1.5,
            "temperature": 0.7,
            "tool_results": [{"tool_call_id": "c:0", "content": "done"}],
            "max_new_tokens": 256,
        },
        {"conversation_id": "s", "turn": 4, "role": "assistant", "content": "fine"},
    )
    (found,) = load_pool(path)
    first, second = found.turns
    assert first.messages == ({"role": "system", "content": "be good"}, user("go"))
    assert second.messages == (
        *first.messages,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c:0", "content": "done"},
    )
    assert (first.pause_s, second.pause_s) == (1.5, 0.0)
    assert (second.asked_output_tokens, second.extra) == (256, {"temperature": 0.7})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "nothing in it"),
        ("{", "pool.jsonl:1: "),
        ('{"messages": []}', "pool.jsonl:1: "),
        ('{"messages": [{"content": "x"}]}', "a message has no role"),
        ('{"messages": [{"role": "user", "content": "x"}], "pause_ms_after": -1}', "pool.jsonl:1: "),
        (
            '{"messages": [{"role": "user"}], "parent": "none", "conversation_id": "a"}',
            "'none' has no turn 0",
        ),
        ('{"messages": [{"role": "user"}], "parent": "a", "conversation_id": "a"}', "'a' has no turn 0"),
        (
            '{"conversation_id": "a", "turn": 2, "role": "user", "content": "x"}',
            "turn 2 where turn 1 is next",
        ),
        (
            '{"conversation_id": "a", "turn": 1, "role": "assistant", "content": "x"}',
            "pool.jsonl:1: conversation 'a' has no row of a user",
        ),
        ('{"messages": [{"role": "user"}], "pause_ms_after": 1e308}', "pool.jsonl:1: "),
        ('{"messages": [{"role": "user"}], "pause_ms_after": NaN}', "pool.jsonl:1: "),
        ('{"messages": [{"role": "user", "content": 5}]}', "the content of a message is '5'"),
        ('{"messages": [{"role": "user", "content": [["x"]]}]}', "pool.jsonl:1: the content of a message"),
        ('{"messages": [{"role": "user"}], "after_turn": 1}', "not those of its trajectory"),
        (
            "\n".join(
                f'{{"messages": [{{"role": "user"}}], "conversation_id": "{name}"{of}}}'
                for name, of in (("a", ""), ("b", ""), ("b", ', "parent": "a"'))
            ),
            "pool.jsonl:3: parent 'a'",
        ),
        (
            "\n".join(
                f'{{"messages": [{{"role": "user"}}], "conversation_id": "{i}"'
                + (f', "parent": "{i - 1}"}}' if i else "}")
                for i in range(2_000)
            ),
            "pool.jsonl:34: sub-agents of more than 32 levels",
        ),
        ("[" * 100_000, "pool.jsonl:1: "),
    ],
)
def test_what_is_no_pool_is_refused_with_its_place(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_text(text)
    with pytest.raises(TrajectoryError) as error:
        load_pool(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("parents", [{"x": "y", "y": "z"}, {"x": "y", "y": "x"}], ids=["late", "circle"])
def test_a_sub_agent_before_its_parent_is_refused_because_it_would_be_left_out(
    parents: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "pool.jsonl"
    lines = [
        {"conversation_id": name, "messages": [{"role": "user", "content": "x"}], "parent": parents.get(name)}
        for name in "xyz"
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(TrajectoryError, match="before this line"):
        load_pool(path)


def test_a_folder_without_lines_and_a_file_that_is_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(TrajectoryError, match="no file in it ends in"):
        load_pool(tmp_path)
    with pytest.raises(TrajectoryError, match="cannot be read"):
        load_pool(tmp_path / "none.jsonl")


def test_the_mark_has_64_bits_and_stands_after_the_system_prompt() -> None:
    mark = mark_of("salt", 0, 1, 2)
    assert len(mark) == len("[]") + 64 // 4
    assert mark != mark_of("salt", 0, 1, 3)
    messages = marked((SYSTEM, user("go"), assistant("x")), mark)
    assert messages == (SYSTEM, user(f"{mark} go"), assistant("x"))
    assert marked((SYSTEM,), mark)[0]["content"].startswith(mark)


def test_own_answers_replace_recorded_ones_and_keep_their_tool_calls() -> None:
    call = {"role": "assistant", "content": "recorded", "tool_calls": [1]}
    before = Turn(messages=(SYSTEM, user("1")))
    after = Turn(messages=(SYSTEM, user("1"), call, {"role": "tool", "content": "t"}))
    sent = (SYSTEM, user("1"))
    assert answered(sent, before, after, "own") == (
        SYSTEM,
        user("1"),
        {**call, "content": "own"},
        {"role": "tool", "content": "t"},
    )
    compacted = Turn(messages=(SYSTEM, user("summary")))
    assert answered(sent, before, compacted, "own") == compacted.messages


def test_each_agent_walks_through_all_trajectories_in_an_order_of_its_own() -> None:
    pool = TrajectoryPool(
        tuple(Trajectory(id=str(i), turns=(Turn(messages=(user("x"),)),), index=i) for i in range(12))
    )
    orders = [[pool.walk_of(7, 0, agent, walk).index for walk in range(24)] for agent in range(4)]
    for order in orders:
        assert sorted(order[:12]) == sorted(order[12:]) == list(range(12))
    assert len({tuple(order[:12]) for order in orders}) == 4
    assert orders[0] == [pool.walk_of(7, 0, 0, walk).index for walk in range(24)]


def common(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def brute(requests: Sequence[Sequence[str]], known: Sequence[Sequence[str]]) -> list[int]:
    """Longest common beginning with any earlier text. Texts end in a byte that is nowhere else."""
    texts = ["".join(request) for request in requests]
    before = ["".join(request) for request in known]
    return [
        max((common(text, other) for other in [*before, *texts[:i]]), default=0)
        for i, text in enumerate(texts)
    ]


WORD = st.text("ab", max_size=4).map(lambda text: f"{text}.")
REQUEST = st.lists(WORD, max_size=5)


@given(st.lists(REQUEST, max_size=6), st.lists(REQUEST, max_size=3))
def test_shared_beginnings_are_those_of_a_comparison_of_all_texts(
    requests: list[list[str]], known: list[list[str]]
) -> None:
    assert shared_characters(requests, known) == brute(requests, known)


def test_possible_hits_are_the_system_prompt_and_the_own_turns_before() -> None:
    turns = [
        Turn(messages=(SYSTEM, user("1"))),
        Turn(messages=(SYSTEM, user("1"), assistant("2"), user("3"))),
    ]
    found = possible_shares(Trajectory(id="a", turns=tuple(turns)), marked=True)[0]
    sizes = [[len(json.dumps(m)) for m in turn.messages] for turn in turns]
    # The second turn's assistant begins as nothing that was sent before.
    assert found == pytest.approx([sizes[0][0] / sum(sizes[0]), sum(sizes[1][:2]) / sum(sizes[1])], abs=1e-5)
    assert possible_shares(Trajectory(id="a", turns=tuple(turns)), marked=False) == {0: [1.0, 1.0]}


def test_a_sub_agent_can_have_what_its_parent_began_with_and_the_next_turn_what_it_sent(
    tmp_path: Path,
) -> None:
    path = file(
        tmp_path,
        line("main", user("1")),
        line("main", user("2")),
        {
            "conversation_id": "sub",
            "messages": [SYSTEM, user("1"), user("2")],
            "parent": "main",
            "after_turn": 0,
        },
    )
    (main,) = load_pool(path)
    found = possible_shares(main, marked=True)
    (sub,) = main.turns[0].forks
    sizes = [len(json.dumps(m)) for m in sub.turns[0].messages]
    assert found[sub.index] == pytest.approx([sum(sizes[:2]) / sum(sizes)], abs=1e-3)
