"""Units of a trace: what sets them, what cannot be, and the line that says how a trace was read."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from llm_locust.workload.plan import Workload, WorkloadSpec
from llm_locust.workload.trace_formats import TraceError
from llm_locust.workload.traces import Trace, TraceAsked, how_read, open_trace

CHAT = {"chat_id": 7, "parent_chat_id": -1, "type": "text", "turn": 1}


def line(at: float, tokens: int, blocks: int | Sequence[int] | None = None, **more: Any) -> dict[str, Any]:
    ids = {} if blocks is None else {"hash_ids": list(range(blocks) if isinstance(blocks, int) else blocks)}
    return {"timestamp": at, "input_length": tokens, "output_length": 5} | ids | more


def write(folder: Path, lines: Sequence[dict[str, Any]]) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    return path


def opened(path: Path, **asked: Any) -> Trace:
    return open_trace(path, asked=TraceAsked(**asked))


def refusal(path: Path, **arguments: Any) -> str:
    with pytest.raises(TraceError) as caught:
        how_read(opened(path, **arguments))
    assert "\n" not in str(caught.value)
    return str(caught.value)


#: Keys beside Mooncake's, and whether they make a trace of Bailian's.
KEYS: list[tuple[dict[str, Any], bool]] = [
    (CHAT, True),
    ({"chat_id": "c-1"}, True),
    ({"parent_chat_id": -1}, True),
    ({"turn": 3, "type": "search"}, True),
    ({}, False),
    ({"type": "text"}, False),
    ({"session_id": "s", "turn": 3}, False),
    ({"model": "m", "user": 4}, False),
]


@pytest.mark.parametrize(("more", "is_chat"), KEYS)
@pytest.mark.parametrize("is_reversed", [False, True])
def test_the_keys_of_a_chat_mean_seconds_and_blocks_of_16_whatever_their_order(
    tmp_path: Path, more: dict[str, Any], is_chat: bool, is_reversed: bool
) -> None:
    scale, block = (1, 16) if is_chat else (1000, 512)
    lines = [line(at * scale, 40 * block, 40) | more for at in (61.114, 61.614, 63.0)]
    if is_reversed:
        lines = [dict(reversed(each.items())) for each in lines]
    path = write(tmp_path, lines)
    path.write_bytes(gzip.compress(b"\n\r\n" + path.read_bytes()))
    trace = open_trace(path)
    entries = list(trace)
    assert [round(e.at_s, 6) for e in entries] == [0, 0.5, 1.886]
    assert {(e.block_tokens, len(e.hash_ids)) for e in entries} == {(block, 40)}
    unit = "seconds" if is_chat else "milliseconds"
    says = f"3 requests in 1.886 s (1.06/s): {unit}, blocks of {block} tokens, which are 100% of the prompts"
    assert says in how_read(trace)


def test_turns_of_a_chat_are_of_the_session_of_its_first_turn(tmp_path: Path) -> None:
    chats = [(1, -1), (2, -1), (3, 1), (4, 3), (5, 99)]
    lines = [line(i, 16, 1, chat_id=c, parent_chat_id=p, turn=1) for i, (c, p) in enumerate(chats)]
    assert [e.session for e in open_trace(write(tmp_path, lines))] == ["1", "2", "1", "1", "5"]


@pytest.mark.parametrize("block", [16, 32, 64, 128, 256, 1024, 2048])
@pytest.mark.parametrize("has_part", [True, False], ids=["all blocks", "full blocks"])
def test_another_size_of_block_is_refused_with_the_size_that_fits(
    tmp_path: Path, block: int, has_part: bool
) -> None:
    lengths = [block * n + n for n in range(5, 30)]
    lines = [line(i * 500, n, n // block + has_part) for i, n in enumerate(lengths)]
    path = write(tmp_path, lines)
    said = refusal(path)
    assert "trace.jsonl:1: " in said
    assert f"blocks of 512 {'do not fit' if block < 512 else 'would be its beginning only'}" in said
    assert f"blocks of {block} fit: add --trace-block {block} " in said
    assert ("--trace-unit s" in said) == (block == 16)
    assert f"blocks of {block} tokens" in how_read(opened(path, block_tokens=block))
    # What somebody says counts, and what is beyond a prompt's length is left out.
    how_read(opened(path, block_tokens=512))
    assert all((len(e.hash_ids) - 1) * 512 < e.input_tokens for e in opened(path, block_tokens=512))


@given(st.lists(st.integers(1, 200_000), min_size=1, max_size=40), st.booleans(), st.sampled_from([16, 512]))
def test_blocks_of_the_formats_own_size_are_never_refused(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], has_part: bool, block: int
) -> None:
    more = CHAT if block == 16 else {}
    lines = [
        line(i * (1 if more else 1000), n, -(-n // block) if has_part else n // block, **more)
        for i, n in enumerate(lengths)
    ]
    how_read(open_trace(write(tmp_path_factory.mktemp("t"), lines)))


def test_one_odd_line_among_many_is_cut_and_not_refused(tmp_path: Path) -> None:
    lines = [line(i * 100, 1000, 2) for i in range(200)]
    path = write(tmp_path, [*lines, line(20_000, 1000, 9)])
    assert "cut in 1 prompt, which is shorter than its blocks" in how_read(open_trace(path))
    assert [len(e.hash_ids) for e in open_trace(path)][-1] == 2


def test_prompts_of_which_only_the_beginning_has_blocks_are_read_and_said(tmp_path: Path) -> None:
    path = write(tmp_path, [line(i * 100, 5120, 1) for i in range(20)])
    assert "blocks of 512 tokens, which are 10% of the prompts' tokens" in how_read(open_trace(path))


#: Times of the requests, keys beside, and what the refusal says.
RATES: list[tuple[list[float], dict[str, Any], str]] = [
    ([i * 0.5 for i in range(12)], {}, "12 requests in 5.5 ms are 2,000 requests/s, if its times are milli"),
    ([1.7e9 + i * 0.25 for i in range(30)], {}, "--trace-unit s if they are seconds"),
    ([i * 7 for i in range(12)], {}, "143 requests/s, if its times are milliseconds: add --trace-unit s"),
    (
        [i * 5.25 for i in range(1, 40)],
        {},
        "190 requests/s, if its times are milliseconds: add --trace-unit s",
    ),
    (
        [i * 2.5e9 for i in range(12)],
        {},
        "requests an hour, if its times are milliseconds: add --trace-unit us",
    ),
    ([i * 5e8 for i in range(12)], {}, "--trace-unit us if they are microseconds"),
    ([i * 5e5 for i in range(20)], {}, "7.2 requests an hour, if its times are milliseconds"),
    (
        [i * 500 for i in range(20)],
        CHAT,
        "7.2 requests an hour, if its times are seconds: add --trace-unit ms",
    ),
    ([i * 1e4 for i in range(12)], CHAT, "requests an hour, if its times are seconds: add --trace-unit ms"),
    ([i * 1e-4 for i in range(12)], CHAT, "10,000 requests/s, if its times are seconds: add --trace-unit s"),
]


@pytest.mark.parametrize(("times", "more", "says"), RATES)
def test_a_rate_that_no_service_has_is_refused_with_the_unit_that_it_may_be(
    tmp_path: Path, times: list[float], more: dict[str, Any], says: str
) -> None:
    path = write(tmp_path, [line(at, 48, **more) for at in times])
    assert says in refusal(path)
    for unit in ("s", "ms", "us", "ns"):
        assert {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}[
            unit
        ] in how_read(opened(path, unit=unit))
    how_read(open_trace(path), stretched=True)  # to a rate: whatever the unit is, the times are the same


def test_more_tokens_a_second_than_anybody_serves_are_a_wrong_unit(tmp_path: Path) -> None:
    path = write(tmp_path, [line(i * 12, 20000) for i in range(50)])
    assert "tokens/s, if its times are milliseconds: add --trace-unit s" in refusal(path)


@pytest.mark.parametrize(
    ("times", "more"),
    [
        ([i * 152 for i in range(100)], {}),  # Mooncake's rate
        ([0] * 50, {}),  # all at once
        ([0, 1], {}),  # too few to tell
        ([i * 10 for i in range(50)], {}),
        ([i * 27.5 for i in range(50)], {}),  # half milliseconds
        ([i * 0.17 for i in range(100)], CHAT),
        ([i * 86.4 for i in range(100)], CHAT),
    ],
)
def test_rates_that_a_service_has_are_read(tmp_path: Path, times: list[float], more: dict[str, Any]) -> None:
    assert "requests in" in how_read(open_trace(write(tmp_path, [line(at, 48, **more) for at in times])))


def test_prompts_have_in_common_what_their_hashes_have(tmp_path: Path) -> None:
    lines = [
        line(0, 208, [1, 2, 3, *range(100, 110)], **CHAT),
        line(1, 208, [1, 2, 3, *range(200, 210)], **CHAT),
        line(2, 208, [9, *range(300, 312)], **CHAT),
    ]
    workload = Workload(WorkloadSpec(), 1, 0, 1, "salt")
    words = [
        (workload.replayed(e.k, e.input_tokens, 5, e.hash_ids, e.block_tokens).text or "").split()
        for e in open_trace(write(tmp_path, lines))
    ]

    def common(a: list[str], b: list[str]) -> int:
        return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))

    assert 45 <= common(words[0], words[1]) <= 50
    assert common(words[0], words[2]) <= 1
    assert {len(each) for each in words} <= set(range(195, 212))


def test_numbers_that_are_whole_may_be_written_as_floats(tmp_path: Path) -> None:
    path = write(tmp_path, [line(0, 48), {**line(1000, 48), "input_length": 512.0, "output_length": 3.0}])
    assert [(e.input_tokens, e.output_tokens) for e in open_trace(path)] == [(48, 5), (512, 3)]
    assert "`$.input_length`" in refusal(write(tmp_path, [{**line(0, 1), "input_length": 5.5}]))


def test_bad_lines_are_skipped_up_to_a_number_and_said(tmp_path: Path) -> None:
    path = write(tmp_path, [line(i * 1000, 48) for i in range(4)])
    good = path.read_text().splitlines()
    path.write_text("\n".join([good[0], "{", good[1], '{"timestamp": 2}', good[2], good[3]]) + "\n")
    assert "trace.jsonl:2: Input data was truncated" in refusal(path)
    trace = opened(path, most_skipped=2)
    assert [e.at_s for e in trace] == [0, 1, 2, 3]
    said = how_read(trace)
    assert said.startswith(f"trace {str(path)!r}, format mooncake: 4 requests in 3 s (1/s): milliseconds, ")
    assert "2 lines skipped, the first: " in said
    assert "trace.jsonl:4: Object missing required field `input_length`" in refusal(path, most_skipped=1)


@pytest.mark.parametrize(
    ("format_", "unit", "says"),
    [
        ("azure", "s", "unit 's': the times of the format azure are dates"),
        ("sessions", "ms", "unit 'ms': the times of the format sessions are seconds"),
    ],
)
def test_a_unit_for_times_that_have_one_is_refused(
    tmp_path: Path, format_: str, unit: str, says: str
) -> None:
    path = tmp_path / "trace"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,1\n"
        if format_ == "azure"
        else '{"id": 1, "at": 0, "input_tokens": 1, "output_tokens": 1}\n'
    )
    assert says in refusal(path, unit=unit)
    if format_ == "azure":
        assert "blocks of 16: the format azure has no hash ids" in refusal(path, block_tokens=16)


@pytest.mark.parametrize(
    ("first", "flag"),
    [
        ({"session_id": "a", "text_input": "hi", "output_length": 3}, "--trajectories FILE"),
        ({"input_length": 5, "output_length": 3, "hash_ids": [1], "session_id": "a"}, "--trajectories FILE"),
        ({"messages": [{"role": "user", "content": "hi"}]}, "--dataset FILE"),
        ({"text_input": "hi"}, "--dataset FILE"),
    ],
)
def test_a_file_of_another_kind_is_refused_with_the_option_for_it(
    tmp_path: Path, first: dict[str, Any], flag: str
) -> None:
    assert flag in refusal(write(tmp_path, [first]))


def test_a_parquet_file_is_refused_as_such(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    path.write_bytes(b"PAR1" + bytes(range(256)))
    assert "a Parquet file; write it as CSV or JSON lines: azure, mooncake, bailian, " in refusal(path)


def test_the_unit_of_a_table_s_times_may_be_said(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("Timestamp,Request tokens,Response tokens\n1000,5,6\n2500,7,8\n")
    assert [e.at_s for e in opened(path, unit="ms")] == [0, 1.5]
    assert [e.at_s for e in open_trace(path)] == [0, 1500]


def test_a_line_of_many_hashes_takes_no_more_than_its_prompt_needs(tmp_path: Path) -> None:
    path = write(tmp_path, [line(0, 1000, 40_000)])
    assert "40,000 hash ids for a prompt of 1,000 tokens: blocks of 512 do not fit; no siz" in refusal(path)
    (entry,) = open_trace(path)
    assert entry.hash_ids == (0, 1)
    path = write(tmp_path, [line(0, 1000, [1] * 150_000)])
    assert "trace.jsonl:1: more than 131,072 values in one line" in refusal(path)
