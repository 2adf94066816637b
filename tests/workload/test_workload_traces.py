"""Recorded traces: each format's lines, order, slices, scale, division over workers, and wrong lines."""

import gzip
import itertools
import json
import tracemalloc
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from llm_locust.workload.arrivals import ListedSchedule
from llm_locust.workload.trace_formats import TraceEntry, TraceError
from llm_locust.workload.traces import WINDOW, open_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"

#: Requests of the sample: uneven gaps, two at one time.
AT_S = [0.0, 0.5, 0.5, 2.25, 7.0, 7.125]
INPUTS = [6955, 374, 1, 4000, 12, 600]
OUTPUTS = [52, 44, 0, 999, 7, 1]


def azure_line(at_s: float, inputs: int, outputs: int) -> str:
    at = datetime(2023, 11, 16, 23, 59, 58) + timedelta(seconds=at_s)
    return f"{at:%Y-%m-%d %H:%M:%S.%f}0,{inputs},{outputs}"


def burstgpt_line(at_s: float, inputs: int, outputs: int) -> str:
    return f"{at_s + 5},ChatGPT,{inputs},{outputs},{inputs + outputs},Conversation log"


def mooncake_line(at_s: float, inputs: int, outputs: int) -> str:
    blocks = list(range(-(-inputs // 512)))
    line = {"timestamp": at_s * 1000, "input_length": inputs, "output_length": outputs, "hash_ids": blocks}
    return json.dumps(line)


def turn(id_: object, at_s: float, **more: Any) -> str:
    return json.dumps({"id": id_, "at": at_s, "input_tokens": 10, "output_tokens": 5} | more)


def text_of(format_: str, requests: Iterable[tuple[float, int, int]]) -> str:
    """A file of that format with these (seconds, input tokens, output tokens)."""
    match format_:
        case "azure":
            lines = [AZURE, *itertools.starmap(azure_line, requests)]
        case "burstgpt":
            lines = [BURSTGPT, *itertools.starmap(burstgpt_line, requests)]
        case "mooncake":
            lines = list(itertools.starmap(mooncake_line, requests))
        case _:
            lines = [
                turn(number, at_s + 1.7e9, input_tokens=inputs, output_tokens=outputs)
                for number, (at_s, inputs, outputs) in enumerate(requests)
            ]
    return "\n".join(lines) + "\n"


FORMATS = ["azure", "burstgpt", "mooncake", "sessions"]


def write(folder: Path, text: str, name: str = "trace") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def sample(folder: Path, format_: str) -> Path:
    return write(folder, text_of(format_, zip(AT_S, INPUTS, OUTPUTS, strict=True)))


def error_of(path: Path, **arguments: Any) -> str:
    """What opening and reading the trace says, without the folder."""
    with pytest.raises(TraceError) as error:
        list(open_trace(path, **arguments))
    message = str(error.value).replace(f"{path.parent}/", "")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("format_", FORMATS)
def test_each_format_is_recognised_and_gives_times_and_lengths(tmp_path: Path, format_: str) -> None:
    trace = open_trace(sample(tmp_path, format_))
    assert trace.format == format_
    entries = list(trace)
    assert [e.k for e in entries] == list(range(6))
    assert [e.at_s for e in entries] == pytest.approx(AT_S, abs=1e-6)
    assert [e.input_tokens for e in entries] == INPUTS
    assert [e.output_tokens for e in entries] == OUTPUTS
    assert list(trace) == entries


@pytest.mark.parametrize("format_", FORMATS)
def test_a_gzip_file_reads_as_the_plain_one(tmp_path: Path, format_: str) -> None:
    plain = sample(tmp_path, format_)
    packed = tmp_path / "packed"  # known by its content, not by its name
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert list(open_trace(packed)) == list(open_trace(plain))


def test_azure_times_with_seven_digits_a_zone_or_no_fraction_are_understood(tmp_path: Path) -> None:
    lines = [
        "2023-11-16 18:17:03.9799600,1,1",
        "2023-11-16 18:17:04,2,1",
        "2023-11-16 18:17:05.25+00:00,3,1",
        "2023-11-16 19:17:06+01:00,4,1",
    ]
    entries = list(open_trace(write(tmp_path, "\n".join([AZURE, *lines]))))
    assert [e.at_s for e in entries] == pytest.approx([0, 0.02004, 1.27004, 2.02004], abs=1e-9)


def test_mooncake_hash_ids_come_with_their_request(tmp_path: Path) -> None:
    text = (
        '{"timestamp": 0, "input_length": 655, "output_length": 52, "hash_ids": [46, 47]}\n'
        '{"timestamp": 3052, "input_length": 512, "output_length": 1, "hash_ids": [46], "other": [1]}\n'
    )
    entries = list(open_trace(write(tmp_path, text)))
    assert [e.hash_ids for e in entries] == [(46, 47), (46,)]
    assert entries[1].at_s == pytest.approx(3.052)


def test_burstgpt_columns_may_stand_in_any_order_with_others_between(tmp_path: Path) -> None:
    text = (
        "SessionID,Elapsed time,Response tokens,Timestamp,Model,Request tokens,Log Type\n"
        '"7",1.5,18,5,ChatGPT,472,"Conversation, log"\n'
        ",1.5,19,6.5,GPT-4,473,API log\n"
    )
    first, second = open_trace(write(tmp_path, text))
    assert (first.session, first.input_tokens, first.output_tokens, first.at_s) == ("7", 472, 18, 0)
    assert (second.session, second.input_tokens, second.at_s) == (None, 473, 1.5)


@pytest.mark.parametrize("format_", FORMATS)
def test_a_scale_stretches_the_times(tmp_path: Path, format_: str) -> None:
    path = sample(tmp_path, format_)
    assert [e.at_s for e in open_trace(path, scale=2.0)] == pytest.approx([2 * t for t in AT_S])


def test_a_slice_counts_from_its_own_start_and_leaves_out_its_end(tmp_path: Path) -> None:
    trace = open_trace(sample(tmp_path, "azure"), start_s=0.25, end_s=7.0, scale=10.0)
    entries = list(trace)
    assert [e.at_s for e in entries] == pytest.approx([2.5, 2.5, 20.0])
    assert [(e.k, e.input_tokens) for e in entries] == [(0, 374), (1, 1), (2, 4000)]


@pytest.mark.parametrize("rate", [0.1, 3.0, 500.0])
def test_a_rate_scales_the_mean_from_the_first_request_to_the_last(tmp_path: Path, rate: float) -> None:
    trace = open_trace(sample(tmp_path, "burstgpt"), rate=rate)
    assert trace.facts().rate == pytest.approx(rate)
    assert list(trace)[-1].at_s == pytest.approx(5 / rate)


def test_facts_count_the_slice(tmp_path: Path) -> None:
    trace = open_trace(sample(tmp_path, "mooncake"), start_s=0.5, scale=2.0)
    facts = trace.facts()
    assert (facts.entries, facts.input_tokens, facts.output_tokens) == (5, sum(INPUTS[1:]), sum(OUTPUTS[1:]))
    assert facts.span_s == pytest.approx(13.25)
    assert facts.rate == pytest.approx(4 / 13.25)


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize(("scale", "workers"), [(0.25, 4), (1.0, 1), (3.0, 4)])
def test_the_rate_over_time_is_the_file_s_scaled_to_one_percent(
    tmp_path: Path, format_: str, scale: float, workers: int
) -> None:
    """A day in a minute: the rate goes up and down, and every window has its share."""
    rng = np.random.default_rng(4)
    at_s = np.sort(rng.beta(2, 3, 1500) * 60)
    at_s = np.round(at_s - at_s[0], 6)
    path = write(tmp_path, text_of(format_, ((t, 10, 10) for t in at_s.tolist())))
    trace = open_trace(path, scale=scale)
    schedules = [ListedSchedule(trace.share(i, workers)) for i in range(workers)]
    ends = np.arange(1, 13) * 5.0 * scale
    replayed = [sum(len(s.before(end)) for s in schedules) for end in ends.tolist()]
    assert all(s.ended for s in schedules)
    recorded = np.histogram(at_s, np.arange(13) * 5.0)[0]
    assert np.all(np.abs(replayed - recorded) <= 0.01 * recorded)


@given(st.lists(st.floats(0, 100).map(lambda t: round(t, 3)), min_size=1, max_size=50), st.randoms())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_lines_out_of_order_within_the_window_are_put_in_order(
    tmp_path: Path, at_s: list[float], random: Any
) -> None:
    shuffled = random.sample(at_s, len(at_s))
    entries = list(open_trace(write(tmp_path, text_of("azure", ((t, 1, 1) for t in shuffled)))))
    assert [e.at_s for e in entries] == pytest.approx([t - min(at_s) for t in sorted(at_s)], abs=2e-6)


def test_a_line_further_out_of_order_than_the_window_is_an_error_that_names_both_lines(
    tmp_path: Path,
) -> None:
    times = [0.0, *(t / 10 for t in range(20, 21 + WINDOW)), 1.0]
    message = error_of(write(tmp_path, text_of("burstgpt", ((t, 1, 1) for t in times))))
    assert message == (
        f"trace:{WINDOW + 4}: 1 s earlier than line 3; "
        "expected times that ascend, or lines at most 4,096 off: sort the file by time"
    )


def test_one_line_less_out_of_order_is_sorted(tmp_path: Path) -> None:
    times = [0.0, *(t / 10 for t in range(20, 20 + WINDOW)), 1.0]
    entries = list(open_trace(write(tmp_path, text_of("burstgpt", ((t, 1, 1) for t in times)))))
    assert [e.at_s for e in entries] == pytest.approx(sorted(times))


@pytest.mark.parametrize("workers", [1, 2, 3, 10])
def test_each_request_is_one_worker_s_and_every_w_th(tmp_path: Path, workers: int) -> None:
    trace = open_trace(sample(tmp_path, "azure"))
    shares = [list(trace.share(i, workers)) for i in range(workers)]
    assert sorted((e for share in shares for e in share), key=lambda e: e.k) == list(trace)
    assert all(e.k % workers == i for i, share in enumerate(shares) for e in share)


AGENTS = [
    turn("plan", 0.0),
    turn("search", 2.0, after=["plan"], gap_s=0.5),
    turn("read", 2.0, after=["plan"], gap_s=0.25),
    turn("other", 3.0, session="x", hash_ids=[1, 2], input_tokens=1000),
    turn("answer", 9.0, after=["search", "read"]),
    turn(17, 9.5, after=["other"]),
]


def test_turns_know_their_session_their_depth_and_what_they_wait_for(tmp_path: Path) -> None:
    entries = {e.id: e for e in open_trace(write(tmp_path, "\n".join(AGENTS)))}
    assert {i: (e.session, e.turn, e.after, e.gap_s) for i, e in entries.items()} == {
        "plan": ("plan", 0, (), 0.0),
        "search": ("plan", 1, ("plan",), 0.5),
        "read": ("plan", 1, ("plan",), 0.25),
        "other": ("x", 0, (), 0.0),
        "answer": ("plan", 2, ("search", "read"), 0.0),
        "17": ("x", 1, ("other",), 0.0),
    }
    assert entries["other"].hash_ids == (1, 2)


def test_idle_gaps_are_scaled_with_the_times(tmp_path: Path) -> None:
    entries = {e.id: e for e in open_trace(write(tmp_path, "\n".join(AGENTS)), scale=4.0)}
    assert (entries["search"].at_s, entries["search"].gap_s) == (8.0, 2.0)


def test_a_turn_is_due_at_its_time_but_not_before_its_gap_after_the_last_of_those_it_waits_for() -> None:
    entry = TraceEntry(k=0, at_s=10.0, input_tokens=1, output_tokens=1, after=("a", "b"), gap_s=2.0)
    assert entry.due_s([]) == 10.0
    assert entry.due_s([3.0, 7.5]) == 10.0
    assert entry.due_s([11.0, 3.0]) == 13.0


def test_a_turn_does_not_wait_for_one_before_the_slice(tmp_path: Path) -> None:
    entries = list(open_trace(write(tmp_path, "\n".join(AGENTS)), start_s=1.0))
    assert [(e.id, e.at_s, e.after, e.session, e.turn) for e in entries[:2]] == [
        ("search", 1.0, (), "plan", 1),
        ("read", 1.0, (), "plan", 1),
    ]
    assert entries[3].after == ("search", "read")


def test_sessions_stay_on_one_worker_and_are_divided_about_equally(tmp_path: Path) -> None:
    text = "\n".join(
        turn(f"{s}.{t}", s + t * 50, after=[f"{s}.{t - 1}"] if t else [])
        for s in range(400)
        for t in range(3)
    )
    trace = open_trace(write(tmp_path, text))
    shares = [list(trace.share(i, 4)) for i in range(4)]
    assert sorted((e for share in shares for e in share), key=lambda e: e.k) == list(trace)
    homes = {(e.session, i) for i, share in enumerate(shares) for e in share}
    assert len(homes) == 400
    assert all(70 < n < 130 for n in Counter(i for _, i in homes).values())


def test_turns_older_than_the_memory_are_forgotten_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_locust.workload.trace_formats.MEMORY", 1_000)
    many = "\n".join(turn(k, k / 1000) for k in range(1_001))
    last = turn("last", 1e6, after=["0"])
    message = error_of(write(tmp_path, f"{many}\n{last}"))
    assert "trace:1002: after '0': no such turn earlier in time among the last 1,000;" in message


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        (
            [AZURE, "yesterday,1,2"],
            "trace:2: TIMESTAMP 'yesterday' is not a time; expected one like 2023-11-16 18",
        ),
        (
            [AZURE, "2023-11-16 18:17:03,-1,2"],
            "trace:2: ContextTokens '-1' is not a token count; expected a whole",
        ),
        ([AZURE, "2023-11-16 18:17:03,1,"], "trace:2: GeneratedTokens '' is not a token count"),
        ([AZURE, "", "2023-11-16 18:17:03,1"], "trace:3: 2 cells in '2023-11-16 18:17:03,1'; expected 3"),
        ([BURSTGPT, "nan,x,1,2,3,y"], "trace:2: Timestamp 'nan' is not a time; expected a number"),
        ([BURSTGPT, "1,x,1,2.5,3,y"], "trace:2: Response tokens '2.5' is not a token count"),
        (
            [BURSTGPT, "1,x,1,20000000,3,y"],
            "'20000000' is not a token count; expected a whole number in 0 .. 10,000,",
        ),
        (
            [mooncake_line(0, 1, 1), '{"timestamp": 5}'],
            "trace:2: Object missing required field `input_length`",
        ),
        (
            [mooncake_line(0, 1, 1), "{"],
            "trace:2: Input data was truncated, in '{'; expected {\"timestamp\": MS",
        ),
        ([turn(1, 0), turn(2, 1, gap_s=-1)], "trace:2: Expected `float` >= 0.0 - at `$.gap_s`"),
        ([turn(1, 0), turn(2, 1, afer=[1])], "trace:2: Object contains unknown field `afer`"),
        ([turn(1, 0), turn(1, 1)], "trace:2: id '1' is that of line 1 too"),
        ([turn(1, 0), turn(2, 1, after=[3])], "trace:2: after '3': no such turn earlier in time"),
        (
            [turn(1, 0), turn(2, 1), turn(3, 2, after=[1, 2])],
            "trace:3: '3' joins the sessions '1', '2'; expected",
        ),
        (
            [turn(1, 0), turn(2, 1, after=[1], session="b")],
            "trace:2: '2' joins the sessions '1', 'b'; expected",
        ),
        (
            ["a,b", "1,2"],
            "trace:1: 'a,b' is the start of no known format; allowed are azure, mooncake, bailian",
        ),
        (["", "[1, 2]"], "trace:2: '[1, 2]' is the start of no known format"),
        (['{"x": 1}'], "trace:1: '{\"x\": 1}' is the start of no known format"),
        ([], "trace 'trace': it is empty; expected one of the formats azure"),
        ([AZURE], "trace 'trace': it has no request in its slice from 0 s to inf s"),
    ],
)
def test_a_wrong_line_says_file_line_value_and_what_is_expected(
    tmp_path: Path, lines: list[str], what: str
) -> None:
    assert what in error_of(write(tmp_path, "\n".join(lines)))


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"format": "excel"}, "no format 'excel'; allowed are azure, mooncake, bailian, burstgpt, sess"),
        ({"format": "burstgpt"}, "trace:1: no column 'Request tokens', 'Response tokens' in 'TIMESTAMP,Con"),
        ({"format": "mooncake"}, "trace:1: JSON is malformed: invalid character"),
        ({"scale": 0.0}, "scale 0 is not above 0 (2 is twice as slow)"),
        ({"scale": float("nan")}, "scale nan is not above 0"),
        ({"rate": -1.0}, "rate -1 is not above 0 requests/s"),
        ({"rate": 5.0, "scale": 2.0}, "both a scale of 2 and a rate of 5/s; give one of the two"),
        ({"start_s": -1.0}, "no slice from -1 s to inf s"),
        ({"start_s": 5.0, "end_s": 5.0}, "no slice from 5 s to 5 s"),
        ({"start_s": 8.0}, "no request in its slice from 8 s"),
        ({"start_s": 7.1, "rate": 5.0}, "all its requests (1) have the same time: there is no rate to scale"),
    ],
)
def test_wrong_arguments_say_the_value_and_what_is_allowed(
    tmp_path: Path, arguments: dict[str, Any], what: str
) -> None:
    assert what in error_of(sample(tmp_path, "azure"), **arguments)


@pytest.mark.parametrize("id_", ["a\x7f", "a\u2028b", "a\x9b2J", "a" * 100_000, "\x7f" * 9_000], ids=ascii)
def test_an_error_is_one_short_printable_line_whatever_the_file_holds(tmp_path: Path, id_: str) -> None:
    path = tmp_path / "t.jsonl"
    line = f'{{"id": "{id_}", "at": 1, "input_tokens": 5, "output_tokens": 6}}\n'
    for text in (line * 2, line.replace('"id"', f'"{id_}"')):
        path.write_text(text)
        with pytest.raises(TraceError) as caught:
            list(open_trace(path, format="sessions"))
        message = str(caught.value)
        assert message.isprintable()
        assert len(message) <= 2_000
        assert message.startswith(f"{path}:")


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    assert error_of(tmp_path / "none") == "trace 'none': cannot be read: No such file or directory"
    assert error_of(tmp_path).endswith("cannot be read: Is a directory")
    assert "cannot be read: embedded null byte" in error_of(tmp_path / "a\0b")


def test_a_line_that_is_not_utf8_or_has_no_end_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(f"{AZURE}\n2023-11-16 18:17:03,1,2\n".encode() + b"\xff\n")
    assert error_of(path) == "trace:3: not UTF-8, byte 1 is 0xff"
    path.write_bytes(f"{AZURE}\n".encode() + b"1" * 2_000_000)
    assert error_of(path) == "trace:2: longer than 1 MiB, the limit of a line"


def test_a_gzip_file_that_was_cut_off_is_an_error_not_a_shorter_trace(tmp_path: Path) -> None:
    packed = gzip.compress(text_of("azure", ((t, t, t) for t in range(1000))).encode())
    path = tmp_path / "trace"
    path.write_bytes(packed[:-20])
    assert "cannot be read: Compressed file ended before the end-of-stream marker" in error_of(path)


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_byte_order_mark_windows_line_ends_and_quotes_do_no_harm(tmp_path: Path, quote: str) -> None:
    path = tmp_path / "trace"
    text = text_of("azure", [(0, 1, 2), (1, 3, 4)])
    cells = [[f"{quote}{cell}{quote}" for cell in line.split(",")] for line in text.splitlines()]
    path.write_bytes(b"\xef\xbb\xbf" + "".join(",".join(line) + "\r\n" for line in cells).encode())
    assert [e.output_tokens for e in open_trace(path)] == [2, 4]


def test_a_long_trace_is_never_held_in_memory(tmp_path: Path) -> None:
    """15,000 lines are almost 4 times the window; as entries they would take 5 MB."""
    path = write(tmp_path, text_of("mooncake", ((t / 1000, 3000, 5) for t in range(15_000))))
    tracemalloc.start()
    try:
        assert sum(1 for _ in open_trace(path)) == 15_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3_000_000
