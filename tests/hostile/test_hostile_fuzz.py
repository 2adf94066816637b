"""Fuzzers of all that reads bytes of strangers; ``make fuzz`` runs them for long.

Whatever once failed stands here as an example, or as a file under ``seeds``.
"""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from fuzz import MODULES
from fuzz_files import SCENARIO, TRACES
from fuzz_frames import FRAMES, frames_by_hand
from fuzz_inputs import DATASETS, MODELS, PAGES
from fuzz_streams import CHUNKS, HEAD, SSE, check_events, check_reply, check_response, events_of_standard
from fuzz_target import SEEDS, Target
from hypothesis import example, given, strategies as st

from llm_locust.store import FrameHeader, encode_frame
from llm_locust.wire.dialects import DIALECTS
from llm_locust.wire.dialects.chat import CHAT
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.messages import MESSAGES
from llm_locust.wire.sse import SseEvent

PLACES = st.lists(st.integers(0, 400), max_size=10)


def bytes_of(target: Target) -> st.SearchStrategy[bytes]:
    """What the format is made of, and what breaks it."""
    return st.lists(st.sampled_from(target.tokens) | st.binary(max_size=6), max_size=30).map(b"".join)


@pytest.mark.parametrize("targets", [[*MODULES][:-1], [*MODULES][-1:]], ids=["all", "uploads"])
def test_random_cases_and_all_seeds_break_no_rule(tmp_path: Path, targets: list[str]) -> None:
    """In a process of their own: an extension that crashes would end this one, and Locust patches it, and
    would patch the threads of the uploads' store. Each day has cases of its own; a failure says the seed."""
    words = [sys.executable, str(Path(__file__).with_name("fuzz.py")), *targets, "--engine", "random"]
    today = str(int(time.time()) // 86_400)
    words += ["--seed", today, "--cases", "30", "--seconds", "600", "--found", str(tmp_path)]
    ended = subprocess.run(words, capture_output=True, check=False, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count(" 0 places where a rule broke") == len(targets), ended.stdout


def test_every_seed_is_of_a_fuzzer() -> None:
    assert {path.name for path in SEEDS.iterdir()} <= MODULES.keys()


@given(data=bytes_of(SSE), places=PLACES, bound=st.integers(1, 60))
@example(data=b"\n" * 9 + b"data: x\n\n", places=[], bound=60)
@example(data=b"data: x\r" + b"\r" * 9 + b"\ndata: y\n\n", places=[8], bound=60)
@example(data=b":\r" * 9 + b"\ndata: x\n\n", places=[18], bound=60)
@example(data=b"\xef\xbb\xbf" + b"\n" * 9 + b"data: x\n\n", places=[3], bound=60)
@example(data=b"\n" * 9 + b"\xef\xbb\xbfdata: x\n\n", places=[], bound=60)
@example(data=b"data: x\n" + b"\n\r" * 9 + b"data: y\n\n", places=[9, 10], bound=60)
@example(data=b":data\n:data\n:data\n", places=[2], bound=4)
@example(data=b"\xef\xbb\xbf\n", places=[], bound=3)
def test_a_stream_has_the_events_of_the_standard_however_it_is_split(
    data: bytes, places: list[int], bound: int
) -> None:
    check_events(data, places, bound)


def test_the_standards_own_examples_are_what_the_slow_decoder_makes_of_them() -> None:
    stocks = b"data: YHOO\ndata: +2\ndata: 10\n\n"
    tests = b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n"
    assert events_of_standard(stocks) == [SseEvent(b"YHOO\n+2\n10", len(stocks))]
    assert [e.data for e in events_of_standard(tests)] == [b"first event", b"second event", b" third event"]
    assert [e.data for e in events_of_standard(b"data\n\ndata\ndata\n\ndata:")] == [b"\n"]
    assert [e.event for e in events_of_standard(b"event: add\ndata: 7\n\ndata: 8\r\r")] == [b"add", b""]


@given(body=bytes_of(CHUNKS), places=PLACES)
@example(body=b"5;a=b\r\nhello\r\n0\r\nA: b\r\n\r\n", places=[1, 2, 3])
@example(body=b"fffffffffffffffff\r\n", places=[])
def test_a_response_is_the_same_however_it_is_split_and_what_another_reader_makes_of_it(
    body: bytes, places: list[int]
) -> None:
    check_response(HEAD + body, places)
    check_response(body, places)


@given(endpoint=st.sampled_from(list(DIALECTS.values())), streamed=st.booleans(), data=bytes_of(SSE))
@example(endpoint=CHAT, streamed=False, data=b"[" * 5_000)
@example(endpoint=MESSAGES, streamed=True, data=b'data: {"type":"content_block_delta"}\n\n')
def test_any_body_is_a_reply(endpoint: Dialect, streamed: bool, data: bytes) -> None:
    check_reply(data, endpoint, streamed=streamed)


@pytest.mark.parametrize(
    "target", [FRAMES, SCENARIO, TRACES, PAGES, DATASETS, MODELS], ids=lambda target: target.name
)
def test_any_bytes_are_read_or_refused(target: Target) -> None:
    @given(bytes_of(target))
    def read(case: bytes) -> None:
        target.check(case)

    read()


def test_frames_are_found_by_hand_where_they_are() -> None:
    frame = encode_frame(FrameHeader("r", "w", 0, 1), b"payload")
    begin, end = 5, 5 + len(frame)
    assert frames_by_hand(b"LLB1x" + frame + frame[:-1] + frame) == [
        (begin, end),
        (2 * end - 6, 3 * end - 11),
    ]
