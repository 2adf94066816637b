"""The builders give the bytes and the times that they promise."""

import pytest
from hypothesis import given, strategies as st

from scripted import (
    Step,
    chat_chunk,
    chunk,
    json_response,
    last_chunk,
    response_head,
    script_header,
    sse,
    stream_script,
    write,
)
from scripted.raw import said
from scripted.script import decode_script

STEPS = st.builds(write, st.none() | st.floats(0, 1e4), st.binary()) | st.sampled_from(
    [Step(close=True, close_notify=False), Step(at_ms=3, reset=True), Step(stall=True), Step(send="hé\r\n")]
)


@given(st.lists(STEPS))
def test_a_script_survives_its_header(script: list[Step]) -> None:
    (value,) = script_header(script).values()
    assert value.isascii()
    assert decode_script(value) == decode_script(value.rstrip("=")) == script


@pytest.mark.parametrize("wrong", [{}, {"close": True, "reset": True}, {"send": "x", "stall": True}])
def test_a_step_that_does_not_do_exactly_one_thing_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="exactly one thing"):
        Step(**wrong)  # type: ignore[arg-type]


def test_builders_give_the_bytes_of_the_protocol() -> None:
    assert response_head(404, {"X-A": "b"}, content_type="text/plain") == (
        b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nX-A: b\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    assert json_response([1], 503).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert json_response([1]).endswith(b"Content-Length: 3\r\n\r\n[1]")
    assert chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"
    assert sse({"a": 1}) == b'data: {"a":1}\n\n'
    assert last_chunk() == b"0\r\n\r\n"
    with pytest.raises(ValueError, match="ends the body"):
        chunk(b"")


def test_a_chunk_of_usage_alone_has_no_choices() -> None:
    assert chat_chunk(usage={"completion_tokens": 3})["choices"] == []
    assert chat_chunk("a", usage={"completion_tokens": 3})["choices"][0]["delta"] == {"content": "a"}


@given(st.integers(1, 40), st.integers(0, 5))
def test_a_split_stream_has_the_same_bytes_and_the_same_token_times(split: int, tokens: int) -> None:
    whole = stream_script(tokens=tokens, ttft_ms=50, gap_ms=20)
    cut = stream_script(tokens=tokens, ttft_ms=50, gap_ms=20, split=split, split_ms=3)
    assert said(cut) == said(whole)
    assert [s.at_ms for s in cut[2:-1:2]] == [s.at_ms for s in whole[1:-1]]
    assert [s.at_ms for s in cut[1:-1:2]] == [50 + 20 * k - 3 for k in range(tokens)]
