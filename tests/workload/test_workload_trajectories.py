"""Trajectories: what readers make of files, marks, own answers, order, hashes; possible prefix-cache hits."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from llm_locust.workload.trajectories import (
    TrajectoryPool,
    how_read,
    load_pool,
    mark_of,
    possible_shares,
    shared_characters,
)
from llm_locust.workload.trajectory_formats import (
    Chain,
    HashedPrompt,
    Trajectory,
    TrajectoryError,
    Turn,
    answered,
    marked,
)

# --- Trajectories: what readers make of files, marks, own answers, order, and possible prefix-cache hits


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


# --- Trajectories of hashes: texts in common are those of equal hashes, and sub-agents are where they were


BLOCK = 16


def words(prompt: HashedPrompt) -> list[str]:
    return " ".join(str(message["content"]) for message in prompt.messages()).split()


def common_texts(a: Sequence[object], b: Sequence[object]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


HASHES = st.lists(st.integers(0, 3), max_size=8)


@given(st.lists(st.tuples(HASHES, st.integers(1, 9 * BLOCK)), min_size=2, max_size=6), st.integers(0, 3))
def test_two_prompts_have_in_common_what_their_hashes_have(
    given: list[tuple[list[int], int]], system: int
) -> None:
    chain = Chain("trace", BLOCK)
    prompts = [chain.following(hashes, tokens, system) for hashes, tokens in given]
    for prompt, (hashes, tokens) in zip(prompts, given, strict=True):
        kept = hashes[: -(-tokens // BLOCK)]
        assert prompt.hashes() == kept
        assert len(words(prompt)) == tokens
        assert prompt.messages()[-1]["role"] == "user"
    for a in prompts:
        for b in prompts:
            alike = common_texts(a.hashes(), b.hashes()) * BLOCK
            shared = common_texts(words(a), words(b))
            if len(a.hashes()) * BLOCK <= a.tokens and len(b.hashes()) * BLOCK <= b.tokens:
                assert shared >= alike
            if alike < min(len(a.hashes()), len(b.hashes())) * BLOCK:
                assert shared < alike + BLOCK


def test_equal_hashes_of_two_traces_are_different_texts() -> None:
    one, other = (Chain(scope, 64).following([1, 2], 128) for scope in "ab")
    assert common_texts(words(one), words(other)) < 2
    assert words(one) == words(Chain("a", 64).following([1, 2], 128))


def entry(t: float, hashes: list[int], **more: Any) -> dict[str, Any]:
    tokens = more.pop("tokens", len(hashes) * BLOCK)
    return {
        "t": t,
        "type": "n",
        "model": "m",
        "in": tokens,
        "out": 5,
        "hash_ids": hashes,
        "api_time": 1.0,
        **more,
    }


def agent(t: float, *requests: Mapping[str, Any], name: str = "sub") -> dict[str, Any]:
    return {"t": t, "type": "subagent", "agent_id": name, "requests": list(requests)}


def trace(*requests: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": "trace_1",
        "models": ["m"],
        "block_size": BLOCK,
        "hash_id_scope": "local",
        "requests": requests,
        **more,
    }


def load(folder: Path, *rows: Mapping[str, Any], indent: int | None = None, name: str = "t.jsonl") -> Any:
    path = folder / name
    data = "\n".join(json.dumps(row, indent=indent) for row in rows).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return load_pool(path)


@pytest.mark.parametrize("name", ["t.jsonl", "t.json", "t.json.gz"])
def test_a_trace_of_weka_is_a_trajectory_with_its_pauses_and_lengths(tmp_path: Path, name: str) -> None:
    rows = trace(
        entry(0, [1, 2], think_time=9),
        entry(4, [1, 2, 3], think_time=2.5),
        entry(9, [1, 2, 3, 4], out=0, type="s"),
    )
    (found,) = load(tmp_path, rows, indent=None if name == "t.jsonl" else 2, name=name)
    assert [turn.pause_s for turn in found.turns] == [2.5, 4.0, 0.0]  # recorded, and 9 − (4 + 1)
    assert [turn.asked_output_tokens for turn in found.turns] == [5, 5, 1]
    assert [turn.hashed.tokens for turn in found.turns] == [32, 48, 64]
    texts = [" ".join(words(turn.hashed)) for turn in found.turns]
    assert texts[2].startswith(texts[1])
    assert texts[1].startswith(texts[0])


def test_a_folder_of_traces_is_one_pool(tmp_path: Path) -> None:
    for k in range(3):
        load(tmp_path, trace(entry(0, [1])) | {"id": f"trace_{k}"}, indent=2, name=f"trace_{k}.json")
    pool = load_pool(tmp_path)
    assert [found.id for found in pool] == ["trace_0", "trace_1", "trace_2"]
    first = [words(found.turns[0].hashed) for found in pool if found.turns[0].hashed]
    assert first[0] != first[1]  # hashes are those of one trace


def test_sub_agents_of_weka_begin_after_the_request_before_them_and_share_its_texts(tmp_path: Path) -> None:
    (main,) = load(
        tmp_path,
        trace(
            agent(0, entry(0, [7]), name="early"),
            entry(0, [1, 2]),
            agent(
                3,
                entry(3, [1, 2, 5]),
                agent(4, entry(5, [6]), name="inner"),
                entry(8, [1, 2, 5, 6]),
                name="left",
            ),
            agent(4, entry(0, [9]), entry(2, [9, 9]), name="right"),  # its times are relative
            agent(4, name="nothing"),
            entry(12, [1, 2, 3], think_time=11),
            agent(14, entry(14, [1, 2, 3, 8]), name="last"),
        ),
    )
    first, second = main.turns
    assert [fork.id for fork in first.forks] == ["early", "left", "right"]
    assert [fork.delay_s for fork in first.forks] == [0.0, 2.0, 3.0]
    assert [len(fork.turns) for fork in first.forks] == [1, 2, 2]
    assert [fork.id for fork in first.forks[1].turns[0].forks] == ["inner"]
    assert first.pause_s == 3.0  # left ended at 9: the recorded think time waited for it
    assert [fork.id for fork in second.forks] == ["last"]
    left = first.forks[1].turns[0].hashed
    assert left is not None
    assert words(left)[: 2 * BLOCK] == words(first.hashed)
    shares = possible_shares(main, marked=True)
    assert shares[first.forks[1].index] == pytest.approx([2 / 3, 3 / 4], abs=1e-4)
    assert shares[main.index] == pytest.approx([0, 2 / 3], abs=1e-4)


def test_the_system_prompt_that_a_trace_declares_is_before_the_mark(tmp_path: Path) -> None:
    (main,) = load(
        tmp_path,
        trace(
            entry(0, [1, 2, 3]),
            agent(2, entry(0, [1, 2, 9])),
            agent(2, entry(0, [8, 9])),
            tool_tokens=BLOCK,
            system_tokens=BLOCK + 3,
        ),
    )
    roles = [[m["role"] for m in turn.content()] for turn in (main.turns[0], main.turns[0].forks[0].turns[0])]
    assert roles == [["system", "user"]] * 2
    assert [m["role"] for m in main.turns[0].forks[1].turns[0].content()] == ["user"]
    assert possible_shares(main, marked=True)[0] == pytest.approx([2 / 3], abs=1e-4)
    assert possible_shares(main, marked=False)[0] == [1.0]


def test_a_trace_of_sub_agents_alone_has_the_first_of_them_as_its_agent(tmp_path: Path) -> None:
    (main,) = load(
        tmp_path, trace(agent(0, entry(0, [1]), entry(2, [1, 2])), agent(1, entry(1, [3]), name="b"))
    )
    assert (len(main.turns), [fork.id for fork in main.turns[1].forks]) == (2, ["b"])


def test_lines_of_mooncake_with_sessions_are_turns(tmp_path: Path) -> None:
    rows = [
        {"session_id": "a", "input_length": 600, "output_length": 7, "hash_ids": [1, 2]},
        {"session_id": 5, "input_length": 512, "hash_ids": [1], "timestamp": 10},
        {"session_id": "a", "input_length": 1200, "output_length": 9, "hash_ids": [1, 2, 3], "delay": 1500},
    ]
    a, b = load(tmp_path, *rows)
    assert ([a.id, b.id], [len(t.turns) for t in (a, b)]) == (["a", "5"], [2, 1])
    assert [turn.pause_s for turn in a.turns] == [1.5, 0.0]
    assert [turn.asked_output_tokens for turn in (*a.turns, *b.turns)] == [7, 9, None]
    assert words(a.turns[0].hashed)[:512] == words(b.turns[0].hashed)  # hashes are those of all sessions


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (trace(), "'trace_1' has no request"),
        (trace({"t": 0, "hash_ids": [1]}), "has no 'in'"),
        (trace(entry(0, [1], tokens=0)), "t.jsonl:1: "),
        (trace(entry(0, [1])) | {"block_size": 10**9}, "t.jsonl:1: "),
        ({"input_length": 5, "hash_ids": [1]}, "no session_id"),
        ({"session_id": "a", "input_length": 5, "hash_ids": ["x"]}, "t.jsonl:1: "),
    ],
)
def test_what_is_no_trace_is_refused_with_its_place(row: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(TrajectoryError) as error:
        load(tmp_path, row)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_sub_agents_without_end_are_refused(tmp_path: Path) -> None:
    row = entry(0, [1])
    for _ in range(40):
        row = agent(0, row)
    with pytest.raises(TrajectoryError, match="more than 32 levels"):
        load(tmp_path, trace(row))


def test_many_hashes_of_a_short_prompt_cost_nothing(tmp_path: Path) -> None:
    (found,) = load(tmp_path, trace(entry(0, list(range(200_000)), tokens=20)))
    assert found.turns[0].hashed.hashes() == [0, 1]
    facts = TrajectoryPool((found,)).facts
    assert (facts.ids, facts.possible) == (["trace_1"], [[0.0]])
    assert isinstance(found, Trajectory)


def _sessions(folder: Path, block: int, count: int = 12) -> Path:
    lines = [
        {
            "session_id": i % 3,
            "input_length": block * 8 + 1 + i,
            "output_length": 5.0,
            "hash_ids": [*range(9)],
        }
        for i in range(count)
    ]
    path = folder / "sessions.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


@pytest.mark.parametrize("block", [16, 64, 1024])
def test_sessions_with_another_size_of_block_are_refused_with_the_size_that_fits(
    tmp_path: Path, block: int
) -> None:
    path = _sessions(tmp_path, block)
    with pytest.raises(TrajectoryError, match=rf"sessions\.jsonl:1: 9 hash .* --trace-block {block} "):
        load_pool(path)
    pool = load_pool(path, block)
    assert {turn.hashed.block for found in pool for turn in found.turns if turn.hashed} == {block}
    said = how_read(path, pool)
    assert (
        said == f"trajectories {str(path)!r}: 3 trajectories, 12 turns, no pauses, hashes of {block} tokens"
    )


def test_sessions_of_blocks_of_512_are_read_as_such(tmp_path: Path) -> None:
    pool = load_pool(_sessions(tmp_path, 512))
    assert [turn.asked_output_tokens for turn in pool[0].turns] == [5] * 4
