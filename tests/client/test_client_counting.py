"""Which answers the run's tokenizer counts, and where."""

import threading
from array import array
from dataclasses import replace

import pytest

from llm_locust.client.recording import MAX_COUNTED_CHARS, MAX_LOOP_CHARS, count_here, count_in_thread
from llm_locust.wire.draft import Draft, Reply
from llm_locust.wire.usage import OutputCount


def reply(chars: int, count: OutputCount = OutputCount()) -> Reply:  # noqa: B008
    ends = array("q", [1] * bool(chars))
    return replace(Draft().finish(), text="x" * chars, output_chars=chars, token_ends=ends, count=count)


@pytest.mark.parametrize(
    ("chars", "here", "in_thread"),
    [
        (0, False, False),
        (1, True, False),
        (MAX_LOOP_CHARS, True, False),
        (MAX_LOOP_CHARS + 1, False, True),
        (MAX_COUNTED_CHARS, False, True),
        (MAX_COUNTED_CHARS + 1, False, False),
    ],
)
def test_a_short_text_is_counted_in_the_loop_and_a_long_one_in_a_thread(
    chars: int, here: bool, in_thread: bool
) -> None:
    threads = list[int]()

    def count(text: str) -> int:
        threads.append(threading.get_ident())
        return len(text) + 1

    asked = reply(chars)
    counted = chars + 1
    assert count_here(asked, count) == (counted if here else None)
    assert count_in_thread(asked, count) == (counted if in_thread else None)
    assert [thread == threading.get_ident() for thread in threads] == [True] * here + [False] * in_thread
    assert count_here(asked, None) is None


@pytest.mark.parametrize(("count", "counts"), [(OutputCount(tokens=5), False), (OutputCount(), True)])
def test_what_the_server_has_counted_is_not_counted_again(count: OutputCount, counts: bool) -> None:
    short, long = reply(10, count), reply(MAX_LOOP_CHARS + 1, count)
    assert (count_here(short, len), count_in_thread(long, len)) == (
        (10, MAX_LOOP_CHARS + 1) if counts else (None, None)
    )
