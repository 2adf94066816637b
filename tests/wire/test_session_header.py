"""The header that a session gives back: what of a server's bytes may go into a request, and for how long."""

import pytest
from hypothesis import given, strategies as st

from llm_locust.wire.headers import MOST_BYTES, MOST_CHARS, Fate, HeaderError, SessionHeader, SessionTokens

HEADER = SessionHeader.parse("X-Session-Token")
COOKIE = SessionHeader.parse("cookie:llm-d-session")
TOKEN = b"ZGVmYXVsdC9wb2QtMQ=="
NAMES = st.sampled_from(["a", "b", "c", "d"])


def request(tokens: SessionTokens, session: str | None) -> bytes:
    return b"POST /v1 HTTP/1.1\r\nHost: h\r\n%b\r\nx-session-token: in the body" % tokens.line(session)


def asked(tokens: SessionTokens, session: str | None, turn: int | None) -> Fate | None:
    return tokens.fate(session, turn, request(tokens, session))


def test_the_next_request_of_the_session_gives_the_value_back_and_no_other_does() -> None:
    tokens = SessionTokens(HEADER)
    assert asked(tokens, "a", 0) is None
    tokens.take("a", {b"x-session-token": TOKEN})
    assert tokens.line("a") == b"x-session-token: %b\r\n" % TOKEN
    assert (asked(tokens, "a", 1), asked(tokens, "b", 1), asked(tokens, None, None)) == (
        "echoed",
        "missing",
        None,
    )


def test_an_answer_without_the_header_changes_nothing_and_an_empty_value_takes_it_back() -> None:
    tokens = SessionTokens(HEADER)
    tokens.take("a", {b"x-session-token": TOKEN})
    tokens.take("a", {b"content-type": b"text/plain"})
    assert asked(tokens, "a", 2) == "echoed"
    tokens.take("a", {b"x-session-token": b""})
    assert asked(tokens, "a", 3) == "missing"


def test_a_cookie_is_found_among_others_and_goes_back_without_its_attributes() -> None:
    tokens = SessionTokens(COOKIE)
    lines = b"other=1; Path=/\nllm-d-session=%b; Path=/; HttpOnly; SameSite=Lax\nnone" % TOKEN
    tokens.take("a", {b"set-cookie": lines})
    assert tokens.line("a") == b"cookie: llm-d-session=%b\r\n" % TOKEN
    assert asked(tokens, "a", 1) == "echoed"
    tokens.take("b", {b"set-cookie": b"xllm-d-session=1\nllm-d-session-2=2"})
    assert asked(tokens, "b", 1) == "missing"
    tokens.take("a", {b"set-cookie": b"llm-d-session=; Max-Age=0"})
    assert tokens.line("a") == b""


@pytest.mark.parametrize(
    "value",
    [
        b"x" * (MOST_CHARS + 1),
        b"a\r\nX-Admin: 1",
        b"a\nb",
        b"a\x00b",
        b"tab\there",
        b"caf\xe9",
        b"\x7f",
        b"\x1b[31m",
    ],
)
def test_a_value_that_no_request_may_have_is_not_sent_and_takes_the_earlier_one_along(value: bytes) -> None:
    tokens = SessionTokens(HEADER)
    tokens.take("a", {b"x-session-token": TOKEN})
    tokens.take("a", {b"x-session-token": value})
    assert tokens.line("a") == b""
    assert asked(tokens, "a", 1) == "refused"


@given(st.lists(st.tuples(NAMES, st.binary(max_size=40)), max_size=30))
def test_whatever_comes_a_request_has_one_line_of_plain_text_or_none(given: list[tuple[str, bytes]]) -> None:
    tokens = SessionTokens(HEADER)
    for session, value in given:
        tokens.take(session, {b"x-session-token": value})
        line = tokens.line(session)
        assert line in (b"", b"x-session-token: %b\r\n" % value)
        assert line.count(b"\r\n") == bool(line)
        assert all(32 <= byte < 127 for byte in line[:-2])


@given(st.binary(max_size=200))
def test_no_bytes_of_a_cookie_header_raise_or_break_the_line(value: bytes) -> None:
    tokens = SessionTokens(COOKIE)
    tokens.take("a", {b"set-cookie": value})
    assert b";" not in tokens.line("a")
    assert tokens.line("a").count(b"\n") <= 1


def test_a_server_that_gives_each_session_a_long_value_does_not_fill_the_memory() -> None:
    tokens, value = SessionTokens(HEADER), b"v" * MOST_CHARS
    sessions = 2 * MOST_BYTES // MOST_CHARS
    for number in range(sessions):
        tokens.take(str(number), {b"x-session-token": value})
    assert asked(tokens, "0", 1) == "missing"
    assert asked(tokens, str(sessions - 1), 1) == "echoed"
    kept = sum(bool(tokens.line(str(number))) for number in range(sessions))
    assert kept * MOST_CHARS <= MOST_BYTES < (kept + 2) * (MOST_CHARS + 300)


def test_the_texts_that_a_record_must_not_have_are_those_of_the_call() -> None:
    tokens = SessionTokens(HEADER)
    assert tokens.take("a", {b"x-session-token": TOKEN}) == (TOKEN.decode(),)
    assert set(tokens.take("a", {b"x-session-token": b"another-token"})) == {TOKEN.decode(), "another-token"}
    assert tokens.take("b", {b"x-session-token": b"short"}) == ()
    assert tokens.take(None, {b"x-session-token": TOKEN}) == ()


@pytest.mark.parametrize("name", ["Content-Type", "authorization", "Cookie", "Set-Cookie", "X-Request-Id"])
def test_a_header_that_requests_have_themselves_is_refused(name: str) -> None:
    with pytest.raises(HeaderError, match=name):
        SessionHeader.parse(name)


@pytest.mark.parametrize("text", ["", "a b", "cookie:", "cookie:a b", "cookie:a;b", "header:x", "x:y"])
def test_what_names_no_header_is_refused(text: str) -> None:
    with pytest.raises(HeaderError):
        SessionHeader.parse(text)
